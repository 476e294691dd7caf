"""Compiled code that computes something else than the reference is found before use, told, and made again once."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpt_cli.config import ModelConfig, RuntimeConfig
from gpt_cli.cpu.common.kernel import DECODER, KernelUnavailable, load_kernel
from gpt_cli.cpu.decode.decoder import NativeDecoder
from gpt_cli.cpu.decode.numpy_decoder import NumpyDecoder
from gpt_cli.cpu.decode.weights import read_weights
from gpt_cli.cpu.train.build_settings import KERNELS
from gpt_cli.cpu.train.native_engine import NativeEngine
from gpt_cli.cpu.train.train_bindings import NativeLibrary
from gpt_cli.errors import RequestError, UserError
from gpt_cli.model.gpt import GPT
from gpt_cli.run.arrays import unpack_arrays
from gpt_cli.run.log import read_events
from gpt_cli.run.tensors import pack_tensors
from gpt_cli.runtime.device import Runtime
from gpt_cli.sampling.native_decoder import open_decoder
from gpt_cli.training.native_gradcheck import check_native_gradients
from gpt_cli.training.select_engine import build_native_engine
from tests.support.command import Outcome, subprocess_env
from tests.support.kernel_faults import compiled, own_kernels, plant, with_fault
from tests.support.tiny_run import make_config

pytestmark = pytest.mark.robust

__all__ = ["own_kernels"]  # a fixture

FP32 = Runtime(torch.device("cpu"), "fp32", 2)
SWIGLU = ModelConfig(n_layer=1, n_embd=32, n_head=2, context_length=16)
FAULTS = [
    ("forward_backward.h", "logits[target] -= at_target;", "", SWIGLU),
    ("network.c", "other = 1; other < sum->threads", "other = 2; other < sum->threads", SWIGLU),
    ("layers.h", "sum - normal * delta", "sum", SWIGLU),
    ("layers.h", "(1.0f + x * (1.0f - s))", "(1.0f + x * s)", SWIGLU),
    ("layers.h", "3.0f * 0.044715f", "2.0f * 0.044715f", SWIGLU.model_copy(update={"mlp": "gelu"})),
    ("layers.h", "x[i] = a * cosines[i] - b * sines[i]", "x[i] = a * cosines[i] + b * sines[i]", SWIGLU),
    ("attention.h", "first - shape->window + 1", "first - shape->window + 40", SWIGLU.model_copy(update={"window": 9})),
    ("attention.h", "float scale = 1.0f /", "float scale = 1.01f /", SWIGLU),
    ("numeric.h", "1.6666665459e-1f", "1.5666665459e-1f", SWIGLU),
    ("muon.c", "abc[2], abc[1]", "abc[1], abc[2]", SWIGLU),
    ("muon.c", "lerp(buffer[i], gradient[i], share)", "lerp(buffer[i], gradient[i], momentum)", SWIGLU),
    ("muon.c", "lerp(gradient[i], buffer[i], momentum)", "lerp(gradient[i], buffer[i], share)", SWIGLU),
    ("muon.c", "parameter[i] *= keep;", "", SWIGLU),
    ("muon.c", "parameter[p] += ws.direction[p];", "parameter[p] += job->tall ? NAN : ws.direction[p];", SWIGLU),
]


@pytest.fixture(autouse=True)
def _compiled_code() -> None:
    try:
        load_kernel()
        NativeLibrary.load(torch.float32)
    except KernelUnavailable as error:
        pytest.skip(f"there is no compiled code here: {error}")


def make_model(config: ModelConfig = SWIGLU) -> GPT:
    torch.manual_seed(0)
    return GPT(config, 17)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sound_code_of_every_layout_is_found_to_be_right_and_no_randomness_is_used(dtype: torch.dtype) -> None:
    try:
        library = NativeLibrary.load(dtype)
    except KernelUnavailable as error:
        pytest.skip(str(error))
    old_rng_state = torch.random.get_rng_state()
    for mlp, width, options in (
        ("relu", 16, {"norm": "layernorm", "bias": True, "position": "learned", "qk_norm": False}),
        ("gelu", 32, {"tie_embeddings": True, "n_kv_head": 1}),
        ("swiglu", 64, {"window": 5, "logit_softcap": 30.0}),
        ("relu2", 128, {"norm_gain": False, "position": "sinusoidal"}),
        ("swiglu", 5, {"position": "none"}),
    ):
        config = ModelConfig.model_validate({"n_embd": 4 * width, "n_head": 4, "mlp": mlp, **options})
        assert check_native_gradients(library, config, 2) is None, config
    assert torch.equal(torch.random.get_rng_state(), old_rng_state)
    assert torch.get_num_threads() > 0


@pytest.mark.parametrize("faulty_call", range(4))
def test_a_gradient_that_is_wrong_at_one_place_of_the_stack_is_found(
    faulty_call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, calls = NativeLibrary.load(torch.float32), itertools.count()
    original_loss_and_gradients = NativeEngine.loss_and_gradients

    def loss_and_gradients(network: NativeEngine, *batch: Any) -> float:
        loss = original_loss_and_gradients(network, *batch)
        if next(calls) == faulty_call:
            gradient = next(network.model.parameters()).grad
            assert gradient is not None
            gradient.mul_(1.01)
        return loss

    monkeypatch.setattr(NativeEngine, "loss_and_gradients", loss_and_gradients)
    assert check_native_gradients(library, SWIGLU, 2) is not None


@pytest.mark.usefixtures("own_kernels")
@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=[pytest.mark.slow] if i else []) for i, fault in enumerate(FAULTS)],
    ids=[f"{file}: {old}" for file, old, _, _ in FAULTS],
)  # fmt: skip
def test_a_fault_in_the_training_code_is_found_and_torch_computes(
    fault: tuple[str, str, str, ModelConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, old, new, config = fault
    monkeypatch.setitem(KERNELS, False, with_fault(KERNELS[False], tmp_path, file, old, new))
    notes: list[str] = []
    assert build_native_engine(make_model(config), RuntimeConfig(), FP32, notes.append) is None
    warnings = [note for note in notes if not note.startswith("compiling")]
    assert warnings[0].startswith("the compiled training code is wrong: ")
    assert warnings[1].startswith(
        "computing by torch, about 2 to 3 times slower than by compiled code: what the C compiler"
    )
    with pytest.raises(UserError, match="is not available here: what the C compiler") as caught:
        build_native_engine(make_model(config), RuntimeConfig(engine="native"), FP32)
    assert caught.value.exit_code == 1


@pytest.mark.usefixtures("own_kernels")
def test_a_wrong_library_in_the_cache_whose_sum_is_right_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad_kernel = with_fault(KERNELS[False], tmp_path, *FAULTS[0][:3])
    plant(KERNELS[False], compiled(bad_kernel))
    notes: list[str] = []
    native = build_native_engine(make_model(), RuntimeConfig(), FP32, notes.append)
    assert native is not None
    (warning,) = (note for note in notes if not note.startswith("compiling"))
    assert warning.startswith("the compiled training code is wrong: its gradient of ")
    assert warning.endswith(" is not that of torch; compiling it again")
    monkeypatch.setattr("gpt_cli.cpu.common.kernel._jobs", {})  # as another process finds it
    notes.clear()
    assert build_native_engine(make_model(), RuntimeConfig(), FP32, notes.append) is not None
    assert notes == []


@pytest.mark.usefixtures("own_kernels")
def test_a_fault_in_the_decoder_is_found_and_made_again_or_numpy_decodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, notes = make_model(SWIGLU.model_copy(update={"zero_init": False, "init_std": 0.5})), []
    arrays = unpack_arrays(pack_tensors(model.state_dict()), "model")
    weights = read_weights(model.config, 17, arrays)
    bad_kernel = with_fault(DECODER, tmp_path, "simd.h", "0.6931470037f", "0.5931470037f")
    plant(DECODER, compiled(bad_kernel))
    actual = NativeDecoder(weights, note=notes.append)
    np.testing.assert_allclose(actual.score([1, 2, 3]), NumpyDecoder(weights).score([1, 2, 3]), rtol=0, atol=1e-4)
    assert [note for note in notes if not note.startswith("compiling")] == [
        "the compiled decoder is wrong: its logits differ from those of the reference; compiling it again"
    ]
    notes.clear()
    monkeypatch.setattr("gpt_cli.cpu.decode.bindings.load_kernel", lambda **kwargs: load_kernel(bad_kernel, **kwargs))
    decoder = open_decoder(model.config, 17, arrays, note=notes.append)
    assert decoder is not None
    assert decoder.engine == "numpy"
    assert notes[-1] == (
        "decoding in NumPy, 3 to 10 times slower than by compiled code, which cannot be used: its logits differ from"
        " those of the reference"
    )


def test_a_fall_back_is_told_on_the_console_and_in_the_events_and_the_engine_that_is_asked_for_is_refused(
    gpt: Callable[..., Outcome], tmp_path: Path
) -> None:
    config = make_config(tmp_path, "train.steps=1")
    from gpt_cli.config import dump_config

    (tmp_path / "config.yaml").write_text(dump_config(config))
    environment = {"CC": "", "PATH": str(tmp_path)}
    outcome = gpt("train", "--config", "config.yaml", **environment)
    assert outcome.rc == 0, outcome.stderr
    message = (
        "computing by torch, about 2 to 3 times slower than by compiled code: there is no C compiler (install gcc or"
        " clang)"
    )
    assert outcome.stderr.replace("\n", " ").count(message) == 1, outcome.stderr
    assert [event["text"] for event in read_events(Path(str(config.run_dir))) if event["event"] == "note"] == [message]
    refused_outcome = gpt("train", "--config", "config.yaml", "run_dir=other", "runtime.engine=native", **environment)
    assert refused_outcome.rc == 1
    assert refused_outcome.stderr.splitlines()[-2:] == [
        "error: runtime.engine: native is not available here: there is no C compiler (install gcc or clang)",
        "hint: runtime.engine=auto",
    ]


def test_what_the_code_cannot_compute_is_told_and_a_wrong_request_where_it_is_asked_for() -> None:
    model = make_model(SWIGLU.model_copy(update={"embedding_norm": True}))
    notes: list[str] = []
    assert build_native_engine(model, RuntimeConfig(), FP32, notes.append) is None
    assert notes == [
        "computing by torch, about 2 to 3 times slower than by compiled code: it does not know"
        " model.embedding_norm: true"
    ]
    with pytest.raises(RequestError, match=r"model\.embedding_norm"):
        build_native_engine(model, RuntimeConfig(engine="native"), FP32)


@pytest.mark.slow
@pytest.mark.usefixtures("own_kernels")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="each flip is tried in a fork")
def test_of_60_bit_flips_in_training_code_with_a_right_sum_none_trains_silently_wrong(
    record_property: Callable[[str, object], None], tmp_path: Path
) -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "tests.support.bit_flip_loop", "60"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env=subprocess_env(),
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    verdicts = json.loads(completed.stdout)
    assert sum(verdicts.values()) == 60
    assert set(verdicts) <= {"the same", "told", "died"}, verdicts
    assert verdicts["told"] > 0, verdicts
    record_property("faults", 60)
