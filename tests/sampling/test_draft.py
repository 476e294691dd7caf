"""Drafts: several tokens by one pass over the weights, and not a bit of difference to the text."""

import json
import math
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpt_cli
from gpt_cli.cli.main import main
from gpt_cli.config import Config, ModelConfig, SampleConfig
from gpt_cli.cpu.common.kernel import KernelUnavailable, load_kernel
from gpt_cli.cpu.decode import numpy_gpt
from gpt_cli.cpu.decode.decoder import DraftOptions, NativeDecoder, NativeSession
from gpt_cli.cpu.decode.numpy_sampler import TokenChoice
from gpt_cli.cpu.decode.weight_formats import FORMATS
from gpt_cli.errors import RequestError
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import save
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer
from tests.support.native import decode_with_logits, draft_stats
from tests.support.native_model import CONTEXT, OPTIONS, VOCAB_SIZE, make_model, weights_of


@pytest.fixture(autouse=True)
def _kernel() -> None:
    try:
        load_kernel()
    except KernelUnavailable as error:
        pytest.skip(f"no kernel here: {error}")


def tokens(writing: Any, n: int) -> list[int]:
    """Up to `n` tokens, 16 a call: the calls of `stream_tokens`, and with them the passes, depend on the clock."""
    chunks = (writing.decode(min(16, n - start)) for start in range(0, n, 16))
    return [token for chunk in chunks for (token,) in chunk]


def drafts(decoder: NativeDecoder) -> list[DraftOptions]:
    """Of each source; those of the model itself are all right, those of another hardly ever."""
    context = min(12, decoder.weights.config.context_length)
    other_decoder = NativeDecoder(weights_of(make_model(n_layer=1, context_length=context)))
    text = [(i * i) % VOCAB_SIZE for i in range(300)]
    return [
        DraftOptions(),
        DraftOptions(length=3),
        DraftOptions(text=text, length=9),
        DraftOptions(other_decoder, length=2),
        DraftOptions(decoder, length=5),
    ]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_drafted_text_is_the_same_for_every_option_of_the_model_greedy_and_drawn(options: dict[str, Any]) -> None:
    decoder = NativeDecoder(weights_of(make_model(**options)))
    for temperature in (0.0, 0.4, 1.0):
        choice = TokenChoice(temperature, top_p=0.95)
        alone = tokens(decoder.start([[1, 2, 3]], [5], choice), 4 * CONTEXT)
        for draft in drafts(decoder):
            writing = decoder.start([[1, 2, 3]], [5], choice, draft)
            assert tokens(writing, 4 * CONTEXT) == alone
            passes, guessed, accepted = draft_stats(writing)
            assert passes <= 4 * CONTEXT
            assert accepted <= guessed
            if draft.model is decoder and decoder.weights.config.context_length >= CONTEXT:
                assert passes < 2.5 * CONTEXT  # the model guesses itself right, if a pass is wide enough for it
                assert accepted > CONTEXT


@pytest.mark.parametrize("format", FORMATS)
def test_a_drafted_text_has_the_same_logits_in_every_format_and_with_helpers(format: Any) -> None:
    weights = weights_of(make_model())
    for length in (1, 4, 15):
        alone = NativeDecoder(weights, format=format).start([[4]], [2], TokenChoice(0.5))
        decoder = NativeDecoder(weights, format=format, threads=3)
        writing = decoder.start([[4]], [2], TokenChoice(0.5), DraftOptions(NativeDecoder(weights), length=length))
        (expected, expected_logits), (actual, logits) = decode_with_logits(alone, 50), decode_with_logits(writing, 50)
        assert actual == expected
        np.testing.assert_array_equal(logits, expected_logits)


def test_a_drafted_text_ends_where_it_ends_and_however_its_tokens_are_asked_for() -> None:
    decoder = NativeDecoder(weights_of(make_model()))
    free = tokens(decoder.start([[1]], [1], TokenChoice(1.0)), 60)
    for end in (free[7], free[30]):
        draft = DraftOptions(decoder, length=6)
        writing = decoder.start([[1]], [1], TokenChoice(1.0, end_of_text=end), draft)
        assert tokens(writing, 60) == free[: free.index(end) + 1]
        assert writing.decode(3) == []
    writing = decoder.start([[1]], [1], TokenChoice(1.0), DraftOptions(decoder, length=6))
    assert [token for _ in range(60) for (token,) in writing.decode(1)] == free
    writing = decoder.start([[2] * 50], [1], TokenChoice(1.0), DraftOptions(decoder, length=6))
    assert tokens(writing, 30) == tokens(decoder.start([[2] * 50], [1], TokenChoice(1.0)), 30)


def test_what_stood_in_the_text_before_or_in_another_takes_few_passes() -> None:
    decoder = NativeDecoder(weights_of(make_model()))
    text = tokens(decoder.start([[1, 2, 3]], [0], TokenChoice(0.8)), 200)
    writing = decoder.start([[1, 2, 3]], [0], TokenChoice(0.8), DraftOptions(text=[1, 2, 3, *text], length=8))
    assert tokens(writing, 200) == text
    assert draft_stats(writing)[0] < 70
    repeated = decoder.start([[1, 2, 3, *text, 0, 1, 2, 3]], [0], TokenChoice(0.8), DraftOptions(length=8))
    tokens(repeated, 5)
    assert draft_stats(repeated)[1] > 0


N = 4000


def softmax(logits: Any, temperature: float) -> Any:
    powers = np.exp((logits - logits.max()) / temperature)
    return powers / powers.sum()


def chi_square(counts: Counter[Any], expected: dict[Any, float]) -> tuple[float, float]:
    """The statistic of `counts` against probabilities, and what it exceeds once in millions of times."""
    statistic = sum((counts[key] - N * p) ** 2 / (N * p) for key, p in expected.items())
    freedom = len(expected) - 1
    return statistic, freedom + 5.5 * math.sqrt(2 * freedom) + 10


@pytest.mark.parametrize("source", ["ngram", "model"])
def test_drafted_tokens_have_the_distribution_of_the_model_and_guesses_the_chance_that_theory_gives_them(
    source: str,
) -> None:
    """Leviathan et al. (2023): a guess from q is to stay with the probability sum min(p, q), and the text to be of p.

    A guess that is certain (an n-gram) stays with p of it, just so. Two models that share their noise agree with at
    least (1 - d) / (1 + d), where d = 1 - sum min(p, q) (Daliri et al., 2024), and at most with that sum.
    """
    n, prompt, temperature = 4, [1, 2, 3, 0, 1, 2, 3], 0.7
    model = weights_of(make_model(n, n_layer=2, n_embd=8, n_head=1, init_std=0.6))
    small_weights = weights_of(make_model(n, n_layer=1, n_embd=16, n_head=1, init_std=0.3))
    decoder, small = NativeDecoder(model), NativeDecoder(small_weights)
    draft = DraftOptions(length=1) if source == "ngram" else DraftOptions(small, length=1)
    pairs: Counter[Any] = Counter()
    accepted = 0
    for seed in range(N):
        writing = decoder.start([prompt], [seed], TokenChoice(temperature), draft)
        pairs[tuple(tokens_of_two(writing))] += 1
        passes, guessed, stayed = draft_stats(writing)
        assert (guessed, passes) == (1, 2 - stayed)
        accepted += stayed
    first = softmax(numpy_gpt.forward(model, prompt)[-1].astype(float), temperature)
    second = [softmax(numpy_gpt.forward(model, [*prompt, i])[-1].astype(float), temperature) for i in range(n)]
    statistic, allowed = chi_square(pairs, {(i, j): first[i] * second[i][j] for i, j in product(range(n), range(n))})
    assert statistic < allowed
    spread = 5 * math.sqrt(0.25 / N)
    if source == "ngram":  # after 1, 2, 3 the prompt went on with 0
        assert abs(accepted / N - first[0]) < spread
    else:
        agreed = float(
            np.minimum(first, softmax(numpy_gpt.forward(small_weights, prompt)[-1].astype(float), temperature)).sum()
        )
        assert 0.1 < agreed < 0.95
        assert agreed / (2 - agreed) - spread < accepted / N < agreed + spread


def tokens_of_two(writing: NativeSession) -> list[int]:
    return [token for (token,) in writing.decode(2)]


def test_the_statistic_would_show_a_distribution_that_is_off_by_a_little() -> None:
    rng = np.random.default_rng(0)
    even = dict.fromkeys(range(16), 1 / 16)
    statistic, allowed = chi_square(Counter(rng.integers(0, 16, N).tolist()), even)
    assert statistic < allowed
    statistic, allowed = chi_square(Counter(rng.choice(16, N, p=[0.1] + [0.06] * 15).tolist()), even)
    assert statistic > allowed


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run, a smaller one, and one with another vocabulary."""
    folder = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)

    def make(name: str, layers: int, tokenizer: Any) -> Path:
        shape = ModelConfig(n_layer=layers, n_embd=32, n_head=2, context_length=CONTEXT, zero_init=False, init_std=0.2)
        config = Config(model=shape, sample=SampleConfig(max_new_tokens=70, temperature=1.0))
        state = GPT(shape, tokenizer.vocab_size).state_dict()
        return save(folder / name, 1, state, {}, {}, config, tokenizer)

    return {
        "run": make("run", 2, ByteTokenizer()),
        "small": make("small", 1, ByteTokenizer()),
        "other": make("other", 1, CharTokenizer("abc")),
    }


def test_the_command_and_python_write_the_same_with_a_draft_and_refuse_what_is_none(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "like it.txt"
    text.write_text("To be, or not to be: that is the question.\n" * 20)
    command = ["sample", "--run", str(runs["run"]), "--prompt", "ab", "--seed", "3", "--json"]
    assert main(command) == 0
    plain = json.loads(capsys.readouterr().out)
    for draft in ("ngram", text, runs["small"]):
        assert main([*command, "--draft", str(draft)]) == 0
        assert json.loads(capsys.readouterr().out) == plain
        assert gpt_cli.load(runs["run"], draft=draft).generate("ab", seed=3).text() == plain["samples"][0]["text"]
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for flags, message in (
        (["--draft", str(runs["other"])], "has another vocabulary"),
        (["--draft", str(tmp_path / "nothing")], "there is no run at"),
        (["--draft", str(tmp_path / "binary")], "neither a run nor UTF-8 text: byte 0xff at offset 0"),
        (["--draft", "ngram", "--engine", "torch"], "a draft is for the native engine"),
        (["--draft", "ngram", "--regex", "a+"], "a draft does not go with regex"),
    ):
        assert main([*command, *flags]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(RequestError, match="has another vocabulary"):
        gpt_cli.load(runs["run"], draft=runs["other"])
    text.write_text("abracadabra café")  # more than the vocabulary has
    plain_text = gpt_cli.load(runs["other"]).generate("ab", seed=1).text()
    assert gpt_cli.load(runs["other"], draft=text).generate("ab", seed=1).text() == plain_text
