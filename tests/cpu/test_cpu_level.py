"""`GPT_CPU`: what is compiled, and what is chosen, is what a processor of that level would get."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt_cli.config import ModelConfig, RuntimeConfig
from gpt_cli.cpu.common import compiler as compilers
from gpt_cli.cpu.common.compiler import Compiler, KernelUnavailable
from gpt_cli.cpu.common.kernel import DECODER, Kernel, key_of, no_build_cache, options_for
from gpt_cli.cpu.decode.decoder import NativeDecoder
from gpt_cli.cpu.decode.weight_formats import FORMATS
from gpt_cli.cpu.decode.weights import read_weights
from gpt_cli.cpu.train.build_settings import KERNELS, has_bf16_products
from gpt_cli.cpu.train.train_bindings import NativeLibrary
from gpt_cli.errors import RequestError
from gpt_cli.model.gpt import GPT
from gpt_cli.run.arrays import unpack_arrays
from gpt_cli.run.tensors import pack_tensors
from gpt_cli.runtime import cpu_level
from gpt_cli.runtime.cpu_level import LEVELS, VARIABLE, native_flags, processor_flags
from gpt_cli.runtime.device import setup_runtime
from gpt_cli.runtime.processor import processor_name
from gpt_cli.training.native_gradcheck import check_native_gradients

AMD64 = platform.machine() in ("x86_64", "AMD64")
amd64 = pytest.mark.skipif(not AMD64, reason="levels are those of x86-64")
MODEL = ModelConfig(n_layer=2, n_embd=64, n_head=2, context_length=32, zero_init=False)


@pytest.fixture(params=list(LEVELS))
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each level that this machine has."""
    if not AMD64 or not LEVELS[request.param].flags <= native_flags():
        pytest.skip(f"this processor is no {request.param}")
    monkeypatch.setenv(VARIABLE, request.param)
    with no_build_cache():
        yield request.param


@pytest.mark.parametrize(
    ("value", "machine", "flags", "error"),
    [
        ("x86-64-v5", "x86_64", None, "GPT_CPU must be x86-64-v3, x86-64-v4 or native, not 'x86-64-v5'"),
        ("x86-64-v4", "x86_64", LEVELS["x86-64-v3"].flags, "but this processor has no avx512bw, avx512cd, avx512dq"),
        ("x86-64-v3", "aarch64", frozenset({"asimd"}), "GPT_CPU is x86-64-v3, but this is aarch64"),
    ],
)
def test_a_level_that_is_none_or_not_here_is_one_error_with_a_hint(
    gpt_here: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    machine: str,
    flags: frozenset[str] | None,
    error: str,
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    if flags is not None:
        monkeypatch.setattr(cpu_level, "native_flags", lambda: flags)
    outcome = gpt_here("config", "show")
    assert outcome.rc == 2
    assert outcome.stderr.startswith("error: GPT_CPU")
    assert error in " ".join(outcome.stderr.split())
    assert outcome.stderr.count("hint: GPT_CPU=") == 1


def test_native_is_what_there_is_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    without = compilers.flags(), processor_flags(), processor_name()
    for value in ("native", ""):
        monkeypatch.setenv(VARIABLE, value)
        assert (compilers.flags(), processor_flags(), processor_name()) == without


def test_a_level_is_compiled_for_and_chosen_for_as_a_processor_without_bf16(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler.find()
    assert f"-march={level}" in options_for(DECODER, compiler)
    assert "-march=native" not in options_for(DECODER, compiler)
    assert not has_bf16_products()
    assert setup_runtime(RuntimeConfig(device="cpu")).precision == "fp32"
    with pytest.raises(RequestError, match="no bf16 instructions"):
        setup_runtime(RuntimeConfig(device="cpu", precision="bf16"))
    with pytest.raises(KernelUnavailable, match="AVX512-BF16"):
        NativeLibrary.load(torch.bfloat16)
    assert processor_name().endswith(f" as {level}, but for torch")  # whose variables are not set here
    for variable, value in LEVELS[level].libraries.items():
        monkeypatch.setenv(variable, value)
    assert processor_name().endswith(f" as {level}")
    level_key = key_of(DECODER, compiler)
    monkeypatch.delenv(VARIABLE)
    assert key_of(DECODER, compiler) != level_key


@pytest.mark.system
def test_torch_and_what_it_brings_keep_to_the_level(level: str) -> None:
    code = (
        "import sys; from gpt_cli.cli.main import main; main(['--version']); assert 'torch' not in sys.modules\n"
        "import torch; print(torch.backends.cpu.get_cpu_capability(), file=sys.stderr)"
    )
    completed = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=True)
    assert completed.stderr.split() == [{"x86-64-v3": "AVX2", "x86-64-v4": "AVX512"}[level]]


def registers(kernel: Kernel, tmp_path: Path) -> set[str]:
    """The kinds of vector registers that the code of `kernel` has."""
    compiler = Compiler.find()
    library = tmp_path / "library.so"
    library.write_bytes(compilers.compile_library(compiler, kernel.sources, options_for(kernel, compiler)))
    listing = subprocess.run(["objdump", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"%([xyzt]mm|k)\d", listing))


@amd64
@pytest.mark.slow
@pytest.mark.portable
@pytest.mark.skipif(shutil.which("objdump") is None, reason="there is no objdump to look into libraries with")
@pytest.mark.parametrize("kernel", [DECODER, KERNELS[False]], ids=lambda kernel: kernel.name)
def test_code_for_avx2_has_no_register_of_avx512_and_code_for_avx512_has_no_tile(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_level, "native_flags", lambda: LEVELS["x86-64-v4"].flags)  # it is not run
    monkeypatch.setenv(VARIABLE, "x86-64-v3")
    assert registers(kernel, tmp_path) == {"xmm", "ymm"}
    monkeypatch.setenv(VARIABLE, "x86-64-v4")
    assert registers(kernel, tmp_path) == {"xmm", "ymm", "zmm", "k"}


@pytest.mark.slow
@pytest.mark.portable
def test_what_is_compiled_for_a_level_computes_what_the_references_do(level: str) -> None:
    try:
        Compiler.find()
    except KernelUnavailable as error:
        pytest.skip(f"there is no compiler: {error}")
    library = NativeLibrary.load(torch.float32)  # which fails where it does not compile
    assert check_native_gradients(library, MODEL, 2) is None
    torch.manual_seed(0)
    model = GPT(MODEL, 37)
    weights = read_weights(MODEL, model.head.out_features, unpack_arrays(pack_tensors(model.state_dict()), "model"))
    for format in FORMATS:
        NativeDecoder(weights, format=format)  # which raises where its logits differ
