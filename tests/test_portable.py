"""The C engines compile without a warning for other processors, and compute there what their references do.

Processors of other kinds are those of qemu; what is not here, a compiler or qemu, is skipped.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_native_training import by_autograd, make_model

from gpt_cli.cpu.decode import numpy_gpt
from gpt_cli.cpu.decode.quantize import FORMATS, WeightDtype, fake_quantize
from gpt_cli.cpu.decode.weights import Weights, read_weights
from gpt_cli.model.gpt import GPT
from gpt_cli.run.arrays import unpack_arrays
from gpt_cli.run.tensors import pack_tensors
from gpt_cli.training.muon import newton_schulz_batched
from tests.portable.engines import TARGETS, Target, Texts, answers, build, decode_input, train_input

pytestmark = [pytest.mark.slow, pytest.mark.portable]

VOCAB_SIZE = 61
MODELS: dict[str, dict[str, Any]] = {
    "swiglu": {"n_kv_head": 2, "window": 17, "n_layer": 2, "n_embd": 96, "n_head": 4, "context_length": 40},
    "gelu": {
        "position": "learned", "norm": "layernorm", "mlp": "gelu", "qk_norm": False, "bias": True,
        "tie_embeddings": True, "logit_softcap": 5.0, "n_layer": 1, "n_embd": 40, "n_head": 2, "context_length": 40,
    },
}  # fmt: skip
FURTHEST: dict[WeightDtype, float] = {"fp32": 1e-5, "bf16": 1e-2, "int8": 1e-2}
"""Of the largest logit: sums in another order, and with bf16 and int8 numbers that are rounded the other way."""


@dataclass
class Engines:
    """The drivers for a processor, each compiled when it is first asked for."""

    target: Target
    folder: Path
    commands: dict[str, list[str]] = field(default_factory=dict)

    def command(self, driver: str, *options: str) -> list[str]:
        """What runs `driver`, compiled with these `options`, too."""
        if (key := " ".join((driver, *options))) not in self.commands:
            build_dir = self.folder / str(len(self.commands))
            build_dir.mkdir()
            self.commands[key] = build(self.target, driver, build_dir, *options)
        return self.commands[key]


@pytest.fixture(scope="module", params=TARGETS)
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engines:
    target = TARGETS[request.param]
    target.require()
    return Engines(target, tmp_path_factory.mktemp("engines"))


def weights_of(model: GPT) -> Weights:
    return read_weights(model.config, VOCAB_SIZE, unpack_arrays(pack_tensors(model.state_dict()), "model"))


def prompts(n: int) -> list[list[int]]:
    """Of many lengths: more than a pass takes together, and fewer."""
    return [[(7 * i + 3 * j * j + 1) % VOCAB_SIZE for j in range(1 + 5 * i % 13)] for i in range(n)]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_the_decoder_computes_the_logits_of_numpy(
    engines: Engines, name: str, format: WeightDtype, record_property: Callable[[str, object], None]
) -> None:
    model = make_model(MODELS[name], VOCAB_SIZE)
    weights = weights_of(model)
    rounded = weights if format == "fp32" else fake_quantize(weights, format)
    scored = [i * i % VOCAB_SIZE for i in range(39)]
    guessed = [1, 2, 3, 4] * 4
    texts = (Texts(prompts(19), 9), Texts([guessed], 12), Texts([guessed], 12))
    actual = answers(engines.command("decode"), decode_input(weights, format, 2, scored, texts))
    expected = numpy_gpt.forward(rounded, scored)
    furthest = [float(np.abs(_floats(actual[0]) - expected).max() / np.abs(expected).max())]
    for number, batch in enumerate(texts):
        tokens = np.frombuffer(actual[1 + 2 * number], np.int32).reshape(batch.steps, -1)
        logits = _floats(actual[2 + 2 * number]).reshape(batch.steps, len(batch.prompts), VOCAB_SIZE)
        assert ((tokens >= 0) & (tokens < VOCAB_SIZE)).all()
        for i, prompt in enumerate(batch.prompts):
            expected = numpy_gpt.forward(rounded, prompt + tokens[:-1, i].tolist())[len(prompt) - 1 :]
            furthest.append(float(np.abs(logits[:, i] - expected).max() / np.abs(expected).max()))
    record_property("furthest", max(furthest))
    assert max(furthest) <= FURTHEST[format], max(furthest)
    assert actual[3:5] == actual[5:7], "a guess changed a text"


def _floats(block: bytes) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    actual = np.frombuffer(block, np.float32)
    return actual.reshape(-1, VOCAB_SIZE) if len(actual) % VOCAB_SIZE == 0 else actual


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_the_training_code_computes_the_gradient_of_torch(
    engines: Engines, name: str, dtype: torch.dtype, record_property: Callable[[str, object], None]
) -> None:
    bf16 = dtype == torch.bfloat16
    if bf16 and not engines.target.multiplies_bf16:
        pytest.skip("this processor does not multiply bf16")
    command = engines.command("train", *(["-DBF16"] if bf16 else []))
    record_property("furthest", compare_training(command, name, dtype))


def compare_training(command: list[str], name: str, dtype: torch.dtype, **environment: str) -> float:
    """Losses, gradients and orthogonalised matrices beside those of torch; the distance of the furthest gradient."""
    of_loss, of_gradient, of_matrix = (1e-5, 5e-5, 1e-4) if dtype == torch.float32 else (5e-3, 5e-2, 5e-2)
    model = make_model({**MODELS[name], "context_length": 70}, VOCAB_SIZE)
    tokens = torch.arange(3 * 71).reshape(3, 71) ** 2 * 5 % VOCAB_SIZE
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    torch.manual_seed(1)
    matrices = [torch.randn(20, 36), torch.randn(36, 20)]
    loss, gradients = by_autograd(model, inputs, targets)
    data, starts = train_input(model, dtype, 2, inputs, targets, matrices)
    losses, flat, *results = (np.frombuffer(block, np.float64 if i == 0 else np.float32)
                              for i, block in enumerate(answers(command, data, **environment)))  # fmt: skip
    for actual in losses:
        assert abs(actual / inputs.numel() - loss) <= of_loss * loss
    furthest = 0.0
    for key, expected in gradients.items():
        ours = torch.from_numpy(flat[starts[key] : starts[key] + expected.numel()].copy()).view_as(expected)
        furthest = max(furthest, float((ours - expected).norm() / expected.norm()))
    assert furthest <= of_gradient, furthest
    expected_matrices = newton_schulz_batched(matrices, [0.5, 0.5], torch.float32)
    for ours_, theirs in zip(results, expected_matrices, strict=True):
        difference = torch.from_numpy(ours_.copy()).view_as(theirs) - theirs
        assert float(difference.norm() / theirs.norm()) <= of_matrix
    return furthest
