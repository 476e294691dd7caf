"""The native engine: the compiled kernel and NumPy write what torch writes, for every option of the model."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.cli.main import main
from gpt_cli.config import Config, ModelConfig
from gpt_cli.cpu.decode.decoder import NativeDecoder, stream_tokens
from gpt_cli.cpu.decode.numpy_decoder import NumpyDecoder
from gpt_cli.cpu.decode.numpy_sampler import TokenChoice, gumbel_noise, sample_token
from gpt_cli.cpu.decode.weight_formats import FORMATS, fake_quantize
from gpt_cli.cpu.decode.weights import WeightMismatch, read_weights
from gpt_cli.cpu.decode.weights import rotary_frequencies as numpy_frequencies
from gpt_cli.model.gpt import GPT
from gpt_cli.model.position import rotary_frequencies
from gpt_cli.run.arrays import unpack_arrays
from gpt_cli.run.checkpoint import save
from gpt_cli.run.tensors import pack_tensors
from gpt_cli.sampling import SamplingParams, native_decoder, stream_batches
from gpt_cli.sampling.filters import GumbelNoise, filter_logits
from gpt_cli.sampling.generate import generate
from gpt_cli.sampling.native_decoder import open_decoder, unsupported_settings
from gpt_cli.sampling.text_generator import stream_native
from gpt_cli.shuffle import derive_seed
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer
from tests.support.native import decode_with_logits
from tests.support.native_model import CONTEXT, OPTIONS, VOCAB_SIZE, make_model, weights_of


@pytest.mark.parametrize("theta", [500.0, 10_000.0, 500_000.0])
@pytest.mark.parametrize("scaling", [None, (8.0, 1.0, 4.0, 8192), (2.0, 1.0, 3.0, 64)])
@pytest.mark.parametrize("width", [8, 64, 128])
def test_rotary_frequencies_are_torchs_but_for_a_last_bit(width, scaling, theta):
    config = ModelConfig(n_embd=width, n_head=1, rope_theta=theta, rope_scaling=scaling)
    actual, expected = numpy_frequencies(config), rotary_frequencies(config).numpy()
    np.testing.assert_array_max_ulp(actual, expected, maxulp=1 if scaling is None else 16)  # a blend loses some
    assert scaling is not None or (actual != expected).sum() <= 1


def decode_tokens(decoder: Any, prompts: Sequence[Sequence[int]], sampling: SamplingParams) -> list[tuple[int, ...]]:
    """The tokens of each text."""
    choice = TokenChoice(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    seeds = [derive_seed(sampling.seed, "sample", i) for i in range(len(prompts))]
    steps = [
        step
        for chunk in stream_tokens(decoder.start(prompts, seeds, choice), sampling.max_new_tokens)
        for step in chunk
    ]
    return list(zip(*steps, strict=True))


def torch_tokens(model: GPT, prompts: Sequence[Sequence[int]], sampling: SamplingParams) -> list[tuple[int, ...]]:
    return list(zip(*generate(model, prompts, sampling), strict=True))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_logits_of_all_positions_are_those_of_torch_for_every_option(options: dict[str, Any]) -> None:
    model = make_model(**options)
    weights, tokens = weights_of(model), [(i * 7 + 3) % VOCAB_SIZE for i in range(model.config.context_length)]
    with torch.inference_mode():
        expected = model(torch.tensor([tokens]))[0].numpy()
    scale = max(1.0, float(np.abs(expected).max()))
    for decoder in (NativeDecoder(weights), NativeDecoder(weights, threads=3), NumpyDecoder(weights)):
        np.testing.assert_allclose(decoder.score(tokens), expected, rtol=0, atol=1e-4 * scale)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("options", OPTIONS[::3], ids=str)
def test_the_text_is_that_of_torch_within_the_context_and_far_past_it(options: dict[str, Any]) -> None:
    model = make_model(**options)
    weights, sampling = weights_of(model), SamplingParams(temperature=1.0, seed=5, max_new_tokens=4 * CONTEXT)
    prompts = [[1, 2, 3]] * 3
    expected = torch_tokens(model, prompts, sampling)
    assert decode_tokens(NativeDecoder(weights, threads=2), prompts, sampling) == expected
    assert decode_tokens(NumpyDecoder(weights), prompts, sampling) == expected


@pytest.mark.usefixtures("compiled")
def test_the_logits_that_tokens_are_chosen_from_are_those_of_torch_past_the_context() -> None:
    model = make_model(n_kv_head=2, window=9)
    session = NativeDecoder(weights_of(model)).start([[1, 2, 3]], [1], TokenChoice(1.0))
    tokens, logits = decode_with_logits(session, 3 * CONTEXT)
    text = [1, 2, 3, *(row[0] for row in tokens)]
    for step in range(len(tokens)):
        position = 3 + step
        start = max(0, -(-(position - CONTEXT) // (CONTEXT // 2))) * (CONTEXT // 2)
        with torch.inference_mode():
            expected = model(torch.tensor([text[start:position]]))[0, -1].numpy()
        np.testing.assert_allclose(logits[step, 0], expected, rtol=0, atol=2e-4)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"temperature": 0.3},
        {"top_k": 1},
        {"top_k": 5},
        {"top_k": 1000},
        {"top_k": 2**31 - 1},
        {"top_p": 0.05},
        {"top_p": 0.7},
        {"top_p": 1.0},
        {"min_p": 0.2},
        {"min_p": 1.0},
        {"temperature": 1.7, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    ],
    ids=str,
)
def test_every_filter_writes_what_torch_writes(settings: dict[str, Any]) -> None:
    model = make_model()
    sampling = SamplingParams(**{"temperature": 1.0, "seed": 9, "max_new_tokens": 60, **settings})
    weights, prompts = weights_of(model), [[4], [4]]
    expected = torch_tokens(model, prompts, sampling)
    assert decode_tokens(NativeDecoder(weights), prompts, sampling) == expected
    assert decode_tokens(NumpyDecoder(weights), prompts, sampling) == expected


LOGITS = st.lists(st.floats(-8, 8, width=16), min_size=1, max_size=40)


@given(
    LOGITS,
    st.floats(0.1, 3),
    st.none() | st.integers(1, 50),
    st.none() | st.floats(0.01, 1),
    st.none() | st.floats(0.01, 1),
)
def test_what_numpy_keeps_is_what_the_filters_keep(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None, min_p: float | None
) -> None:
    sampling = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    is_kept = filter_logits(torch.tensor([logits]), sampling)[0].isfinite()
    values = np.array(logits, np.float32)
    for token in range(len(logits)):
        noise = np.zeros(len(logits), np.float32)
        noise[token] = 1e6  # noise that takes this token, unless it was filtered out
        assert (sample_token(values, TokenChoice(temperature, top_k, top_p, min_p), noise) == token) == bool(
            is_kept[token]
        )


def test_the_noise_is_that_of_torch() -> None:
    noise = GumbelNoise(7, 1, VOCAB_SIZE, torch.device("cpu"))
    twister = np.random.RandomState(derive_seed(7, "sample", 0) & 0xFFFFFFFF)
    for _ in range(3000):  # several blocks of torch's
        np.testing.assert_allclose(gumbel_noise(twister, VOCAB_SIZE), noise.draw()[0].numpy(), rtol=2e-6, atol=2e-6)


@pytest.mark.usefixtures("compiled")
def test_unequal_prompts_in_one_batch_continue_as_each_does_alone_whatever_their_length() -> None:
    model = make_model()
    weights, sampling = weights_of(model), SamplingParams(temperature=0.0, max_new_tokens=3 * CONTEXT)
    prompts = [[1], [2, 3, 4], [5] * 50, [6, 7] * 10, [1]]
    expected = [torch_tokens(model, [prompt], sampling)[0] for prompt in prompts]
    assert decode_tokens(NativeDecoder(weights, threads=2), prompts, sampling) == expected
    assert decode_tokens(NumpyDecoder(weights), prompts, sampling) == expected


@pytest.mark.usefixtures("compiled")
def test_a_text_is_the_same_however_its_tokens_are_asked_for_and_whatever_runs_beside_it() -> None:
    decoder = NativeDecoder(weights_of(make_model()), threads=2)
    seeds = list(range(70))  # more than go through the layers at once
    batch_texts = list(zip(*decoder.start([[1, 2]] * 70, seeds, TokenChoice(1.0)).decode(30), strict=True))
    for text in (0, 1, 69):
        session = decoder.start([[1, 2]], [seeds[text]], TokenChoice(1.0))
        assert [token for _ in range(30) for (token,) in session.decode(1)] == list(batch_texts[text])
    assert len(set(batch_texts)) == 70


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("options", [{}, {"mlp": "gelu", "bias": True, "n_embd": 160, "n_head": 5}], ids=str)
def test_logits_are_the_same_to_the_last_bit_whatever_is_computed_beside_them(format: Any, options: Any) -> None:
    decoder = NativeDecoder(weights_of(make_model(n_layer=2, **options)), format=format)
    batch_decoder = NativeDecoder(decoder.weights, format=format, threads=3)
    prompts = [[i % VOCAB_SIZE, *range(i % 7)] for i in range(23)]
    expected = [decode_with_logits(decoder.start([prompt], [9], TokenChoice(1.0)), 30)[1][:, 0] for prompt in prompts]
    for n in (2, 3, 5, 8, 15, 23):
        batch_logits = decode_with_logits(batch_decoder.start(prompts[:n], [9] * n, TokenChoice(1.0)), 30)[1]
        for text in range(n):
            np.testing.assert_array_equal(batch_logits[:, text], expected[text])


@pytest.mark.usefixtures("compiled")
def test_a_text_that_has_ended_or_was_stopped_costs_nothing_and_leaves_the_others_alone() -> None:
    decoder = NativeDecoder(weights_of(make_model()))
    full_texts = list(zip(*decoder.start([[1], [1]], [1, 2], TokenChoice(1.0)).decode(40), strict=True))
    session = decoder.start([[1], [1]], [1, 2], TokenChoice(1.0))
    first_steps = session.decode(5)
    session.stop(0)
    assert [row[1] for row in first_steps + session.decode(35)] == list(full_texts[1])
    end_token = full_texts[0][7]
    session = decoder.start([[1]], [1], TokenChoice(1.0, end_tokens=(end_token,)))
    tokens = [token for (token,) in session.decode(40)]
    assert tokens == list(full_texts[0][: full_texts[0].index(end_token) + 1])
    assert session.decode(5) == []


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("format", FORMATS[1:])
def test_rounded_weights_give_the_logits_of_the_rounded_model(format: Any) -> None:
    weights = weights_of(make_model(n_embd=40, n_head=2))
    tokens = [1, 5, 9, 2]
    actual = NativeDecoder(weights, format=format).score(tokens)
    expected = NumpyDecoder(fake_quantize(weights, format)).score(tokens)
    # What the matrices meet is rounded, too, and what is kept of the text: of two floats as good as equal one goes up,
    # one down, by 1/256 or 1/127, and what follows is another rounding, as far from the exact one as this. Without such
    # there is nothing between them: see test_one_layer_rounds_as_the_reference_does.
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-2 if format == "int8" else 4e-2)
    exact_logits = NumpyDecoder(weights).score(tokens)
    assert 1e-6 < np.abs(actual - exact_logits).max() < 0.1 * np.abs(exact_logits).max()
    assert np.abs(actual - expected).max() < (0.1 if format == "int8" else 0.3) * np.abs(actual - exact_logits).max()


def test_arrays_that_do_not_fit_the_config_are_refused() -> None:
    model = make_model()
    arrays = unpack_arrays(pack_tensors(model.state_dict()), "model")
    assert open_decoder(model.config.model_copy(update={"n_layer": 2}), VOCAB_SIZE, arrays) is None
    for wrong_arrays in ({"norm.weight": np.ones(3, np.float32)}, {"norm.weight": np.ones(32)}, {"more": np.ones(1)}):
        with pytest.raises(WeightMismatch):
            read_weights(model.config, VOCAB_SIZE, arrays | wrong_arrays)


@pytest.mark.usefixtures("compiled")
def test_texts_end_where_those_of_torch_end_and_never_hold_the_unknown_token() -> None:
    model = make_model(vocab_size=256)
    arrays = unpack_arrays(pack_tensors(model.state_dict()), "model")
    decoder = open_decoder(model.config, 256, arrays)
    assert decoder is not None
    for stop in ((), ("e",), ("\x80", "no such text")):
        sampling = SamplingParams(temperature=1.0, seed=3, max_new_tokens=90, stop=stop)
        expected = next(stream_batches(model, ByteTokenizer(), [[65]], sampling, 3))
        texts = next(stream_native(decoder, ByteTokenizer(), [[65]], sampling, 3))
        for native_text, torch_text in zip(texts, expected, strict=True):
            assert (native_text.text(), native_text.tokens, native_text.finish_reason) == (
                torch_text.text(),
                torch_text.tokens,
                torch_text.finish_reason,
            )
    tokenizer = CharTokenizer("ab", has_unknown=True)
    small_model = make_model(vocab_size=3)
    decoder = open_decoder(small_model.config, 3, unpack_arrays(pack_tensors(small_model.state_dict()), "model"))
    assert decoder is not None
    for text in next(stream_native(decoder, tokenizer, [[2]], SamplingParams(max_new_tokens=60, temperature=5.0), 4)):
        assert set(text.text()) <= {"a", "b"}


def test_a_setting_that_the_engine_does_not_know_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = SamplingParams(3, 0.5, 4, 0.5, 0.1, 7, ("x",))
    assert unsupported_settings(sampling) == []
    monkeypatch.setattr(native_decoder, "COVERED", frozenset({"max_new_tokens", "seed", "stop", "min_p", "top_k"}))
    assert unsupported_settings(sampling) == ["temperature", "top_p"]
    assert unsupported_settings(SamplingParams(max_new_tokens=3)) == []


def test_the_engine_is_imported_without_torch() -> None:
    rooms = "gpt_cli.sampling.native_decoder, gpt_cli.run.checkpoint, gpt_cli.run.directory"
    source = f"import sys, {rooms}; print('torch' in sys.modules)"
    completed = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert completed.stdout == "False\n"


@pytest.mark.usefixtures("compiled")
def test_the_engines_write_the_same_and_what_does_not_go_together_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config(model=ModelConfig(n_layer=2, n_embd=32, context_length=CONTEXT))
    torch.manual_seed(0)
    path = save(tmp_path, 1, GPT(config.model, 256).state_dict(), {}, {}, config, ByteTokenizer())
    arguments = ["sample", "--run", str(path), "--prompt", "a", "--seed", "3", "--max-new-tokens", "80", "--json"]
    answers = {}
    for options in ([], ["--engine", "native"], ["--engine", "torch"], ["-n", "3"], ["--weights", "int8"]):
        assert main([*arguments, *options]) == 0
        answers[" ".join(options)] = json.loads(capsys.readouterr().out)
    assert [answer["engine"] for answer in answers.values()] == ["native", "native", "torch", "native", "native"]
    assert answers[""] == answers["--engine native"]
    assert answers[""]["samples"] == answers["--engine torch"]["samples"] == answers["-n 3"]["samples"][:1]
    for options in (["--engine", "torch", "--weights", "int8"], ["--engine", "native", "--device", "mps"]):
        assert main([*arguments, *options]) == 2
        assert re.search("hint: (auto lets it be chosen: --engine auto|leave)", capsys.readouterr().err)
