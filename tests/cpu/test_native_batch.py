"""Many texts at once: each is, to the last bit, the text that is written alone, whatever multiplies, whoever shares."""

import platform
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt_cli.cpu.common.kernel import SOURCE, Kernel, find_compiler, load_kernel
from gpt_cli.cpu.decode import bindings
from gpt_cli.cpu.decode.decoder import NativeDecoder
from gpt_cli.cpu.decode.numpy_decoder import NumpyDecoder
from gpt_cli.cpu.decode.numpy_sampler import TokenChoice
from gpt_cli.cpu.decode.weight_formats import FORMATS, fake_quantize
from gpt_cli.cpu.train.build_settings import SOURCES
from tests.support.native import decode_with_logits
from tests.support.native_model import VOCAB_SIZE, make_model, weights_of

SHAPES: list[dict[str, Any]] = [
    {},
    {"n_embd": 40, "n_head": 2, "bias": True},
    {"n_embd": 48, "n_head": 3, "bias": True, "mlp": "relu"},
    {"n_embd": 72, "n_head": 3, "mlp": "gelu", "norm_position": "post"},
    {"n_embd": 160, "n_head": 5, "qk_norm": False, "position": "learned"},
    {"n_embd": 96, "n_head": 4, "n_kv_head": 2, "window": 7},
    {"n_embd": 32, "n_head": 4, "n_kv_head": 1, "mlp": "relu2", "logit_softcap": 3.0},
    {"n_embd": 128, "n_head": 2, "context_length": 36},
    {"n_embd": 288, "n_head": 4, "mlp": "gelu", "bias": True},
]
SIZES = (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 70)
STEPS = 30  # half as many again as the context has: the window moves


def texts(decoder: NativeDecoder, n: int) -> tuple[Any, Any]:
    """Tokens (steps, n) and the logits that they were chosen from, of prompts of unequal length."""
    prompts = [[i % VOCAB_SIZE, *range(i % 7)] for i in range(n)]
    tokens, logits = decode_with_logits(decoder.start(prompts, list(range(n)), TokenChoice(1.0)), STEPS)
    return np.array(tokens), logits


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("format", FORMATS)
def test_logits_in_a_batch_of_any_size_are_those_of_each_text_alone(format: Any, shape: dict[str, Any]) -> None:
    weights = weights_of(make_model(n_layer=2, **shape))
    single = NativeDecoder(weights, format=format, use_amx=False)
    tokens, logits = texts(single, 1)
    everything = {1: (tokens, logits)}
    for n in SIZES[1:]:
        decoder = NativeDecoder(weights, format=format, threads=1 + n % 3, use_amx=n % 4 != 0)
        everything[n] = texts(decoder, n)
    for (n, smaller), (_, larger) in pairwise(everything.items()):
        np.testing.assert_array_equal(smaller[0], larger[0][:, :n])
        np.testing.assert_array_equal(smaller[1], larger[1][:, :n])
    (last,) = decode_with_logits(single.start([[69 % VOCAB_SIZE, *range(69 % 7)]], [69], TokenChoice(1.0)), STEPS)[1:]
    np.testing.assert_array_equal(everything[70][1][:, 69], last[:, 0])


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("format", FORMATS[1:])
@pytest.mark.parametrize("n_embd", [4, 20, 60, 64, 68, 132, 260, 516])
def test_tiles_give_the_sums_of_vectors_for_widths_that_fill_none(n_embd: int, format: Any) -> None:
    weights = weights_of(make_model(vocab_size=VOCAB_SIZE + n_embd, n_embd=n_embd, n_head=2, mlp_ratio=3.1))
    tokens = [i * 5 % VOCAB_SIZE for i in range(20)]
    by_tiles, by_vectors = (NativeDecoder(weights, format=format, use_amx=t).score(tokens) for t in (True, False))
    np.testing.assert_array_equal(by_tiles, by_vectors)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("threads", [1, 3])
def test_texts_of_a_batch_end_by_themselves_and_the_last_of_them_ends_the_batch(threads: int) -> None:
    weights = weights_of(make_model(n_layer=1))
    free = NativeDecoder(weights, format="int8")
    end = 3
    decoder = NativeDecoder(weights, format="int8", threads=threads)
    writing = decoder.start([[1]] * 40, list(range(40)), TokenChoice(1.0, end_tokens=(end,)))
    steps = [step for size in (1, 60, 939) for step in writing.decode(size)]
    together = list(zip(*steps, strict=True))
    lengths = []
    for i, text in enumerate(together):
        alone = [token for (token,) in free.start([[1]], [i], TokenChoice(1.0)).decode(len(steps))]
        lengths.append(alone.index(end) + 1)
        assert list(text[: lengths[-1]]) == alone[: lengths[-1]]
    assert len(steps) == max(lengths) < 1000
    assert writing.decode(5) == []


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("format", FORMATS[1:])
@pytest.mark.parametrize("tiles", [True, False])
def test_one_layer_rounds_as_the_reference_does(tiles: bool, format: Any) -> None:
    """Keys, values and what matrices meet. In most rows no float is so near halfway that it goes the other way."""
    weights = weights_of(make_model(n_layer=1, n_kv_head=2))
    tokens = [(i * 7 + 3) % VOCAB_SIZE for i in range(20)]
    actual = NativeDecoder(weights, format=format, use_amx=tiles).score(tokens)
    expected = NumpyDecoder(fake_quantize(weights, format)).score(tokens)
    apart = np.abs(actual - expected).max(axis=1)
    assert np.median(apart) < 1e-3
    assert apart.max() < 5e-2
    assert np.median(np.abs(expected - NumpyDecoder(weights).score(tokens)).max(axis=1)) > 1e-2


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("window", [None, 7, 40])
@pytest.mark.parametrize("width", [8, 24, 80])
def test_keys_and_values_in_bytes_are_those_of_the_reference_wherever_they_lie(
    width: int, window: int | None, threads: int
) -> None:
    """int8, whose sums are exact: what is apart is the rounding of single numbers, in each row alike."""
    shape = {"n_embd": 4 * width, "n_kv_head": 2, "context_length": 100, "window": window}
    weights = weights_of(make_model(n_layer=1, **shape))
    tokens = [(i * i * 7 + 3) % VOCAB_SIZE for i in range(100)]
    expected = NumpyDecoder(fake_quantize(weights, "int8")).score(tokens)
    apart = np.abs(NativeDecoder(weights, format="int8", threads=threads).score(tokens) - expected).max(axis=1)
    unrounded = np.abs(NumpyDecoder(weights).score(tokens) - expected).max(axis=1)
    largest = np.abs(expected).max()
    assert apart.max() < 3e-4 * largest
    assert np.median(unrounded) > 3e-3 * largest


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the processors that are tried are x86")
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "processor", ["x86-64", "x86-64-v3", "skylake-avx512", "icelake-server", "sapphirerapids", "native"]
)
@pytest.mark.parametrize("source", [SOURCE, *SOURCES], ids=lambda path: path.name)
def test_the_sources_are_c_for_processors_old_and_new(source: Path, processor: str) -> None:
    command = [find_compiler(), "-std=gnu11", "-fopenmp-simd", "-fsyntax-only", "-w", f"-march={processor}", source]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="only x86 has long vectors to leave out")
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("options", [("-mno-avx512f", "-mno-amx-tile"), ("-mno-avx512vnni", "-mno-amx-tile")], ids=str)
def test_an_older_processor_keeps_the_promises_too(options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "load_kernel", lambda **_: load_kernel(Kernel((SOURCE,), options)))
    for format in FORMATS:
        test_logits_in_a_batch_of_any_size_are_those_of_each_text_alone(format, {"n_embd": 40, "n_head": 2})
        weights = weights_of(make_model(n_layer=1))
        tokens = [1, 5, 9, 2]
        expected = NumpyDecoder(fake_quantize(weights, format)).score(tokens)
        np.testing.assert_allclose(NativeDecoder(weights, format=format).score(tokens), expected, rtol=0, atol=2e-2)
    for width, window in ((8, None), (24, 7), (80, 40)):
        test_keys_and_values_in_bytes_are_those_of_the_reference_wherever_they_lie(width, window, threads=1)
