"""Each rule equals its definition written out, and the processor of that name in transformers."""

import math
import re
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpt_cli.config import TokenizerConfig
from gpt_cli.errors import RequestError
from gpt_cli.sampling import SamplingParams, stream_batches
from gpt_cli.sampling.filters import filter_logits
from gpt_cli.sampling.generate import generate
from gpt_cli.sampling.logits_processors import (
    LogitBias,
    LogitsProcessor,
    MinNewTokens,
    NoRepeatNgram,
    Penalties,
    PresenceFrequencyPenalty,
    ProcessorFactory,
    RepetitionPenalty,
    token_bias,
)
from gpt_cli.sampling.prompt import Opening
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer, train_tokenizer
from tests.support.tiny_gpt import make_model

CPU = torch.device("cpu")
V = 6
LOGITS = st.lists(st.integers(-60, 60).map(lambda i: i / 8), min_size=V, max_size=V)
HISTORY = st.lists(st.integers(0, V - 1), max_size=12)


def apply_rule(rule: LogitsProcessor, output_ids: Sequence[int], logits: Sequence[float]) -> list[float]:
    """What a rule for one sequence makes of logits, after these tokens."""
    for token in output_ids:
        rule.accept([token])
    input_logits = torch.tensor([logits])
    logits_copy = input_logits.clone()
    output_logits: list[float] = rule.apply(input_logits)[0].tolist()
    assert torch.equal(input_logits, logits_copy), "logits are not the rule's to change"
    return output_logits


@given(LOGITS, HISTORY, HISTORY, st.sampled_from([0.5, 1.0, 1.3, 4.0]))
def test_the_penalty_makes_what_was_there_less_likely(
    logits: list[float], prompt: list[int], output_ids: list[int], penalty: float
) -> None:
    expected = [
        (logit / penalty if logit > 0 else logit * penalty) if token in prompt + output_ids else logit
        for token, logit in enumerate(logits)
    ]
    actual = apply_rule(RepetitionPenalty(penalty, [prompt], V, CPU), output_ids, logits)
    assert actual == pytest.approx(expected)


@given(LOGITS, HISTORY, HISTORY, st.integers(1, 4))
def test_no_ngram_is_completed_a_second_time_unless_everything_would_be_forbidden(
    logits: list[float], prompt: list[int], output_ids: list[int], n: int
) -> None:
    text = prompt + output_ids
    ngrams = {tuple(text[i : i + n]) for i in range(len(text) - n + 1)}
    prefix = tuple(text[len(text) - n + 1 :])
    forbidden_ids = {token for token in range(V) if (*prefix, token) in ngrams}
    actual = apply_rule(NoRepeatNgram(n, [prompt]), output_ids, logits)
    if len(forbidden_ids) == V:
        forbidden_ids = set()
    assert actual == [-math.inf if token in forbidden_ids else logit for token, logit in enumerate(logits)]


def test_a_text_without_repeated_ngrams_has_none_and_costs_no_more_as_it_grows() -> None:
    prompt = [1, 2, 1]
    rule = NoRepeatNgram(3, [prompt])
    model = make_model(13)
    output_ids = [t[0] for t in generate(model, [prompt], SamplingParams(max_new_tokens=300, temperature=0.3), [rule])]
    text = prompt + output_ids
    triples = [tuple(text[i : i + 3]) for i in range(len(text) - 2)]
    assert len(triples) == len(set(triples))


def test_rows_of_a_batch_have_each_their_own_history_and_take_it_along_when_beams_divide() -> None:
    prompts = [[0], [1, 2], []]
    rules: list[LogitsProcessor] = [
        RepetitionPenalty(2.0, prompts, V, CPU),
        NoRepeatNgram(1, prompts),
    ]
    for rule in rules:
        rule.apply(torch.zeros(3, V))
        rule.accept([3, 4, 5])
        rule.reorder([1, 1, 0, 2])
    logits = torch.full((4, V), 8.0)
    histories = [{1, 2, 4}, {1, 2, 4}, {0, 3}, {5}]
    penalty_logits, ngram_logits = rules[0].apply(logits), rules[1].apply(logits)
    for row, history in enumerate(histories):
        assert {t for t in range(V) if penalty_logits[row, t] == 4.0} == history
        assert {t for t in range(V) if ngram_logits[row, t] == -math.inf} == history
    rules[1].accept([0, 3, 1, 1])  # copies that divided go separate ways
    assert rules[1].apply(logits)[0, 3] == 8.0


BPE = train_tokenizer(["the cat sat on the mat " * 20], TokenizerConfig(kind="bpe", vocab_size=262))


def test_bias_is_added_and_minus_infinity_is_never_written() -> None:
    bias = token_bias(CharTokenizer("abc", has_unknown=True), (("a", 1.5), (1, -2.0), ("c", -math.inf)))
    assert bias == {0: 1.5, 1: -2.0, 2: -math.inf, 3: -math.inf}
    assert apply_rule(LogitBias(bias, 4, CPU), [], [1.0, 1.0, 1.0, 1.0]) == [2.5, -1.0, -math.inf, -math.inf]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("xy", "logit_bias: 'xy' is 2 tokens, not one: 'x' 'y'"),
        ("", "logit_bias: '' is 0 tokens, not one"),
        (262, "logit_bias: there is no id 262 in a vocabulary of 262"),
        (-1, "no id -1"),
    ],
)
def test_a_bias_on_what_is_not_one_token_is_refused(name: str | int, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        token_bias(BPE, ((name, 1.0),))


def test_a_token_is_biased_once_whatever_it_is_called() -> None:
    with pytest.raises(RequestError, match="token 97 is given twice"):
        token_bias(ByteTokenizer(), [("a", 1.0), (97, 2.0)])


def test_a_special_token_can_be_biased_by_its_text() -> None:
    assert token_bias(BPE, (("<|endoftext|>", -1.0),)) == {BPE.eot_id: -1.0}


def test_forbidding_every_token_is_refused() -> None:
    with pytest.raises(RequestError, match="leaves no token that may be written"):
        token_bias(CharTokenizer("ab"), (("a", -math.inf), ("b", -math.inf)))


def test_the_text_does_not_end_before_min_new_tokens() -> None:
    assert apply_rule(MinNewTokens((2,), [3]), [0, 1], [1.0] * V)[2] == -math.inf
    assert apply_rule(MinNewTokens((2,), [3]), [0, 1, 0], [1.0] * V) == [1.0] * V
    model = make_model(262)
    model.head.weight.data.zero_()
    bias = ((BPE.eot_id or 0, 50.0),)
    (text,) = next(stream_batches(model, BPE, [[65]], SamplingParams(min_new_tokens=7, logit_bias=bias)))
    assert (len(text.text()) > 0, len(text.tokens), text.finish_reason) == (True, 8, "end_of_text")


def test_a_stop_string_counts_only_after_min_new_tokens() -> None:
    model = make_model(256)
    model.head.weight.data.zero_()
    options = SamplingParams(logit_bias=(("x", 50.0),), stop=("xx",), min_new_tokens=5)
    (text,) = next(stream_batches(model, ByteTokenizer(), [[65]], options))
    assert (text.text(), len(text.tokens), text.finish_reason) == ("xxxx", 6, "stop")


def test_log_probs_are_those_of_the_model_itself_whatever_shapes_the_choice() -> None:
    model = make_model(256, init_std=0.1)
    sampling = SamplingParams(
        temperature=0.3, top_k=5, repetition_penalty=2.0, logit_bias=((66, 4.0),), max_new_tokens=5, log_probs=True
    )
    prompt = [65, 66]
    (text,) = next(stream_batches(model, ByteTokenizer(), [prompt], sampling))
    assert text.log_probs == []
    text.text()
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([prompt + text.tokens]))[0, 1:-1]
    expected = logits.log_softmax(-1)[torch.arange(5), torch.tensor(text.tokens)]
    assert text.log_probs == pytest.approx(expected.tolist(), abs=1e-5)
    (plain_text,) = next(stream_batches(model, ByteTokenizer(), [prompt], SamplingParams()))
    assert plain_text.log_probs is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, not 0.0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be from 1e-06 to 1e+06, not 0.0"),
        ({"repetition_penalty": math.nan}, "repetition_penalty must be from 1e-06 to 1e+06, not nan"),
        ({"no_repeat_ngram": 0}, "no_repeat_ngram must be at least 1, not 0"),
        ({"min_new_tokens": -1}, "min_new_tokens must be at least 0, not -1"),
        (
            {"logit_bias": (("a", math.nan),)},
            "logit_bias of 'a' must be a number from -1e+09 to 1e+09, or -inf for never",
        ),
        ({"logit_bias": (("a", 1e300),)}, "not 1e+300"),
        ({"logit_bias": (("a", math.inf),)}, "logit_bias of 'a' must be"),
        ({"beams": 0}, "beams must be at least 1, not 0"),
        ({"beams": 2**31}, "beams must be at most 1,024, not 2147483648"),
        ({"no_repeat_ngram": 2**63}, "no_repeat_ngram must be at most 2,147,483,647"),
        ({"temperature": 1e300}, "temperature must be at most 1,000,000, not 1e+300"),
        ({"length_penalty": 400.0}, "length_penalty must be from -10 to 10, not 400.0"),
        ({"length_penalty": math.inf}, "length_penalty must be from -10 to 10, not inf"),
        ({"seed": 1.0}, "seed must be a whole number, not 1.0"),
        ({"top_k": True}, "top_k must be a whole number, not True"),
        ({"temperature": None}, "temperature must be a number, not None"),
        ({"max_new_tokens": None}, "max_new_tokens must be a whole number, not None"),
        ({"stop": ("a", "\udcff")}, "the text is not UTF-8: its byte 0xff"),
        ({"regex": "\ud800"}, "the text has half a surrogate pair"),
        ({"choices": ("a",), "regex": "b"}, "give choices or regex, not both"),
        ({"regex": "b", "stop": ("c",)}, "stop does not go with regex, which ends the text itself"),
        ({"choices": ("b",), "beams": 3}, "beams does not go with choices"),
    ],
)
def test_a_setting_out_of_range_or_at_odds_with_another_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        SamplingParams(**options)  # type: ignore[arg-type]


def test_a_pattern_puts_the_defaults_that_contradict_it_out_of_force() -> None:
    defaults = SamplingParams(stop=("x",), min_new_tokens=3)
    new_params = defaults.replace({"choices": ["a", "b"], "logit_bias": {"a": 1.0}})
    assert new_params == SamplingParams(choices=("a", "b"), logit_bias=(("a", 1.0),))
    with pytest.raises(RequestError, match="beams does not go with choices"):  # a search that is asked for is not lost
        SamplingParams(beams=2).replace({"choices": ["a", "b"]})
    assert SamplingParams(beams=2).replace({"choices": ["a", "b"], "beams": 0}).beams is None


# --- the same names in transformers ---------------------------------------------------------------------------------

transformers = pytest.importorskip("transformers.generation.logits_process", reason="transformers is not installed")
RANDOM = torch.randn(8, 40, generator=torch.Generator().manual_seed(11)) * 3
TEXTS = torch.randint(40, (8, 30), generator=torch.Generator().manual_seed(12))


@pytest.mark.parametrize(
    ("options", "theirs"),
    [
        ({"temperature": 0.7}, [("TemperatureLogitsWarper", 0.7)]),
        ({"top_k": 7}, [("TopKLogitsWarper", 7)]),
        ({"top_p": 0.8}, [("TopPLogitsWarper", 0.8)]),
        ({"top_p": 0.05}, [("TopPLogitsWarper", 0.05)]),
        ({"min_p": 0.1}, [("MinPLogitsWarper", 0.1)]),
        (
            {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
            [
                ("TemperatureLogitsWarper", 1.5),
                ("TopKLogitsWarper", 20),
                ("TopPLogitsWarper", 0.9),
                ("MinPLogitsWarper", 0.02),
            ],
        ),
    ],
    ids=str,
)
def test_filters_equal_those_of_transformers(options: dict[str, float], theirs: list[tuple[str, float]]) -> None:
    expected = RANDOM
    for name, value in theirs:
        expected = getattr(transformers, name)(value)(TEXTS, expected)
    actual = filter_logits(RANDOM, SamplingParams(**{"temperature": 1.0, **options}))  # type: ignore[arg-type]
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_the_penalty_equals_that_of_transformers(penalty: float) -> None:
    expected = transformers.RepetitionPenaltyLogitsProcessor(penalty)(TEXTS, RANDOM)
    assert torch.equal(RepetitionPenalty(penalty, TEXTS.tolist(), 40, CPU).apply(RANDOM), expected)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_forbidden_ngrams_equal_those_of_transformers(n: int) -> None:
    texts = TEXTS % 4  # so that n-grams repeat
    expected = transformers.NoRepeatNGramLogitsProcessor(n)(texts, RANDOM)
    assert (expected == -math.inf).any()
    assert torch.equal(NoRepeatNgram(n, texts.tolist()).apply(RANDOM), expected)


def test_bias_and_least_length_equal_those_of_transformers() -> None:
    bias = {3: 2.5, 7: -1.0, 9: -math.inf}
    expected = transformers.SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()})(
        TEXTS, RANDOM
    )
    assert torch.equal(LogitBias(bias, 40, CPU).apply(RANDOM), expected)
    hf_processor = transformers.MinNewTokensLengthLogitsProcessor(28, 4, 5)  # 2 of 4 new tokens are there
    rule = MinNewTokens((5,), [4] * len(RANDOM))
    rule.accept([0])
    rule.accept([0])
    assert torch.equal(rule.apply(RANDOM), hf_processor(TEXTS, RANDOM))


def test_all_rules_of_a_book_are_applied_in_the_order_of_transformers() -> None:
    sampling = SamplingParams(
        logit_bias=((3, 2.5), (7, -1.0)), repetition_penalty=1.4, no_repeat_ngram=2, min_new_tokens=2, log_probs=True
    )
    texts = TEXTS.clamp(max=38)
    rules, _ = ProcessorFactory(BPE, sampling).for_batch([Opening(text) for text in texts.tolist()], CPU)
    assert [type(rule).__name__ for rule in rules] == [
        "LogitBias",
        "RepetitionPenalty",
        "MinNewTokens",
        "NoRepeatNgram",
    ]
    logits = torch.randn(8, 262, generator=torch.Generator().manual_seed(5))
    actual = logits
    for rule in rules:
        actual = rule.apply(actual)
    assert BPE.eot_id is not None
    expected = logits
    for hf_processor in (
        transformers.SequenceBiasLogitsProcessor({(3,): 2.5, (7,): -1.0}),
        transformers.RepetitionPenaltyLogitsProcessor(1.4),
        transformers.NoRepeatNGramLogitsProcessor(2),
        transformers.MinNewTokensLengthLogitsProcessor(30, 2, BPE.eot_id),
    ):
        expected = hf_processor(texts, expected)
    torch.testing.assert_close(actual, expected)


def by_hand(
    logits: list[float], prompt: list[int], new: list[int], bias: dict[int, float], repetition: float, openai: Penalties
) -> list[float]:
    """Bias, repetition penalty, then presence and frequency, of one sequence, token by token."""
    result = []
    for token, logit in enumerate(logits):
        value = logit + bias.get(token, 0.0)
        if token in prompt + new:
            value = value / repetition if value > 0 else value * repetition
        if token in new:
            value -= openai.presence + openai.frequency * new.count(token)
        result.append(value)
    return result


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("openai", [Penalties(), Penalties(0.75), Penalties(-0.5, 1.25)], ids=str)
@pytest.mark.parametrize("repetition", [None, 1.5])
@pytest.mark.parametrize("bias", [{}, {1: 2.0, 4: -3.0}], ids=str)
def test_penalties_have_one_order_whichever_of_them_there_are(
    bias: dict[int, float], repetition: float | None, openai: Penalties, recorded: bool
) -> None:
    sampling = SamplingParams(logit_bias=tuple(bias.items()), repetition_penalty=repetition, log_probs=recorded)
    tokenizer, prompts = CharTokenizer("abcdef"), [[0, 1, 1], [2]]
    rules, _ = ProcessorFactory(tokenizer, sampling, openai).for_batch([Opening(prompt) for prompt in prompts], CPU)
    new, logits = [[1, 3, 1], [4, 2, 5]], torch.tensor([[0.5, 1.0, -2.0, 3.0, -1.5, 2.0]] * 2)
    for tokens in zip(*new, strict=True):
        for rule in rules:
            rule.accept(tokens)
    order = [1, 0, 1]
    for rule in rules:
        rule.reorder(order)
    actual = logits[order]
    for rule in rules:
        actual = rule.apply(actual)
    expected = [by_hand(logits[i].tolist(), prompts[i], new[i], bias, repetition or 1.0, openai) for i in order]
    torch.testing.assert_close(actual, torch.tensor(expected))


def test_a_penalty_before_any_token_changes_nothing() -> None:
    rule = PresenceFrequencyPenalty(Penalties(2.0, 2.0), [()] * 8, 40, CPU)
    assert torch.equal(rule.apply(RANDOM), RANDOM)
