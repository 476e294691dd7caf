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

from gpt_cli.cpu.decode import numpy_gpt
from gpt_cli.cpu.decode.weight_formats import FORMATS, WeightDtype, fake_quantize
from tests.portable.comparison import MODELS, VOCAB_SIZE, compare_training, prompts
from tests.portable.engines import TARGETS, Target, Texts, answers, build, decode_input
from tests.support.autograd_reference import make_model
from tests.support.native_model import weights_of

pytestmark = [pytest.mark.slow, pytest.mark.portable]

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


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_the_decoder_computes_the_logits_of_numpy(
    engines: Engines, name: str, format: WeightDtype, record_property: Callable[[str, object], None]
) -> None:
    model = make_model(MODELS[name], VOCAB_SIZE)
    weights = weights_of(model)
    rounded = weights if format == "fp32" else fake_quantize(weights, format)
    scored = [i * i % VOCAB_SIZE for i in range(39)]
    prompt = [1, 2, 3, 4] * 4
    texts = (Texts(prompts(19), 9), Texts([prompt], 12), Texts([prompt] * 3, 12))
    actual = answers(engines.command("decode"), decode_input(weights, format, 2, scored, texts))
    expected = numpy_gpt.forward(rounded, scored)
    furthest = [float(np.abs(_floats(actual[0]) - expected).max() / np.abs(expected).max())]
    first: list[tuple[Any, Any]] = []  # of each batch the tokens and logits of its first text
    for number, batch in enumerate(texts):
        tokens = np.frombuffer(actual[1 + 2 * number], np.int32).reshape(batch.steps, -1)
        logits = _floats(actual[2 + 2 * number]).reshape(batch.steps, len(batch.prompts), VOCAB_SIZE)
        assert ((tokens >= 0) & (tokens < VOCAB_SIZE)).all()
        first.append((tokens[:, 0], logits[:, 0]))
        for i, prompt in enumerate(batch.prompts):
            expected = numpy_gpt.forward(rounded, prompt + tokens[:-1, i].tolist())[len(prompt) - 1 :]
            furthest.append(float(np.abs(logits[:, i] - expected).max() / np.abs(expected).max()))
    record_property("furthest", max(furthest))
    assert max(furthest) <= FURTHEST[format], max(furthest)
    for alone, in_batch in zip(first[1], first[2], strict=True):
        assert np.array_equal(alone, in_batch), "a batch changed a text"


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
