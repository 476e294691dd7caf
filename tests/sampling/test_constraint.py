"""Constrained text: what is finished is a match, and drawn from the model's own distribution, renormalised."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpt_cli.config import TokenizerConfig
from gpt_cli.cpu.decode.numpy_sampler import apply_mask
from gpt_cli.errors import RequestError
from gpt_cli.sampling import Sampler, SamplingOptions, SamplingParams
from gpt_cli.sampling.constraint import Constraint, Matcher, compile_constraint
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer, train_tokenizer
from tests.support.tiny_gpt import make_model

ALPHABET = "ab1é"
CHAR = CharTokenizer(ALPHABET)
BYTE = ByteTokenizer()
BPE = train_tokenizer(["aba ab1 éa éé b1b1 " * 20], TokenizerConfig(kind="bpe", vocab_size=262))

ATOMS = st.sampled_from(["a", "b", "1", "é", ".", r"\d", r"\w", "[ab]", "[^a]", "[a-b1]", "ab"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        inner.map("({})".format),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,2}", "{0,2}"])).map(
            lambda t: f"(?:{t[0]}){t[1]}"
        ),
        inner.map("(?i:{})".format),
    ),
    max_leaves=5,
)


def constraint_of(tokenizer: Tokenizer, never: tuple[int, ...] = (), **options: object) -> Constraint:
    sampling = SamplingParams().replace(SamplingOptions(**options))  # type: ignore[typeddict-item]
    compiled = compile_constraint(tokenizer, sampling, never)
    assert compiled is not None
    return compiled


def allowed(matcher: Matcher, vocab_size: int) -> list[int] | None:
    """The tokens that may follow; None: any."""
    mask = matcher.mask()
    if mask is None:
        return None
    return np.flatnonzero(apply_mask(np.zeros(vocab_size, np.float32), mask) == 0).tolist()


def texts_up_to(length: int) -> Iterator[str]:
    for n in range(length + 1):
        yield from map("".join, product(ALPHABET, repeat=n))


@settings(max_examples=60)
@given(PATTERNS)
def test_what_may_follow_is_what_a_match_begins_with(pattern: str) -> None:
    """Against every text of the alphabet, matched by `re` itself."""
    assume(re._parser.parse(pattern).getwidth()[1] <= 6)  # type: ignore[attr-defined]
    matches = {text for text in texts_up_to(6) if re.fullmatch(pattern, text)}
    matcher_of = constraint_of(CHAR, regex=pattern).matcher
    for text in texts_up_to(3):
        if not any(match.startswith(text) for match in matches):
            continue
        matcher = matcher_of()
        for character in text:
            matcher.accept(ALPHABET.index(character))
        can_follow = [i for i, c in enumerate(ALPHABET) if any(match.startswith(text + c) for match in matches)]
        if text in matches:
            assert matcher.matches
            assert allowed(matcher, 4) is None
            assert text == "" or matcher.finished == (not can_follow)
        else:
            assert allowed(matcher, 4) == can_follow
        assert not matcher.rejected_last


@lru_cache(maxsize=64)
def pattern_of(kind: str, pattern: str) -> Constraint:
    return constraint_of({"char": CHAR, "byte": BYTE, "bpe": BPE}[kind], regex=pattern)


@settings(max_examples=60)
@given(st.sampled_from(["char", "byte", "bpe"]), PATTERNS, st.randoms(use_true_random=False))
def test_whatever_a_model_prefers_its_finished_text_matches_and_nothing_is_a_dead_end(kind, pattern, random) -> None:
    tokenizer = {"char": CHAR, "byte": BYTE, "bpe": BPE}[kind]
    for _ in range(4):
        tokens, matcher = [], pattern_of(kind, pattern).matcher()
        while len(tokens) < 30 and not matcher.finished:
            choices = allowed(matcher, tokenizer.vocab_size)
            assert not matcher.stuck
            tokens.append(random.choice(range(tokenizer.vocab_size) if choices is None else choices))
            matcher.accept(tokens[-1])
        if matcher.rejected_last:
            tokens.pop()
        if matcher.finished:
            text = b"".join(map(tokenizer.token_bytes, tokens)).decode()
            assert re.fullmatch(pattern, text), (pattern, text)


def test_samples_are_drawn_from_the_masked_and_renormalised_distribution_of_the_model() -> None:
    model = make_model(4, context_length=16)
    sampler = Sampler(model, CHAR, SamplingParams(temperature=1.0, max_new_tokens=9))
    pattern, n = "(a|b1?)[ab]?", 1000
    matches = frozenset(text for text in texts_up_to(3) if re.fullmatch(pattern, text))

    @torch.inference_mode()
    def share(text: str) -> float:
        """The probability of a text: of each token among those that may follow, then of an end where one is open."""
        prefix = ""
        probability = 1.0
        for character in (*text, None):
            next_characters = [c for c in ALPHABET if any(m.startswith(prefix + c) for m in matches)]
            if not next_characters:
                return probability if character is None else 0.0
            tokens = CHAR.encode("1" + prefix).tolist()
            p = dict(zip(ALPHABET, model(torch.tensor([tokens]))[0, -1].softmax(-1).tolist(), strict=True))
            mass = 1.0 if prefix in matches else sum(p[c] for c in next_characters)
            if character is None:
                return probability * (1 - sum(p[c] for c in next_characters))
            probability *= p[character] / mass
            prefix += character
        raise AssertionError

    shares = {text: share(text) for text in matches}
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-5)
    counts = Counter(
        text.text() for seed in range(10) for text in sampler.generate_batch("1", n // 10, regex=pattern, seed=seed)
    )
    assert counts.keys() <= shares.keys()
    chi_square = sum((counts[text] - n * p) ** 2 / (n * p) for text, p in shares.items())
    degrees = len(shares) - 1
    assert chi_square < degrees + 3.1 * math.sqrt(2 * degrees) + 6, (counts, shares)  # about the 99.9 % quantile


@pytest.mark.parametrize("tokenizer", [CHAR, BYTE, BPE], ids=lambda t: t.kind)
@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_one_of_the_choices_is_written_whole_even_if_one_begins_another(
    tokenizer: Tokenizer, temperature: float
) -> None:
    sampler = Sampler(make_model(tokenizer.vocab_size), tokenizer, SamplingParams(temperature=temperature))
    choices = ("a", "ab", "b1é", "é")
    actual = {(str(text), text.finish_reason) for text in sampler.generate_batch("1", 40, choices=choices, seed=2)}
    assert {text for text, _ in actual} <= set(choices)
    assert {reason for _, reason in actual} <= {"match", "end_of_text"}
    if temperature:
        assert len({text for text, _ in actual}) >= 3


def test_tokens_are_those_of_the_text_and_a_refused_one_is_not_among_them() -> None:
    sampler = Sampler(make_model(256), BYTE, SamplingParams(temperature=2.0))
    for text in sampler.generate_batch("x", 20, regex="[a-zé€]{2,6}", seed=4, log_probs=True):
        assert re.fullmatch("[a-zé€]{2,6}", text.text())
        assert BYTE.decode(text.tokens) == text.text()
        assert text.log_probs is not None
        assert len(text.log_probs) == len(text.tokens)


def test_a_text_that_is_cut_says_so_and_any_other_is_a_match() -> None:
    sampler = Sampler(make_model(256), BYTE, SamplingParams(temperature=3.0))
    for n in range(1, 6):
        for text in sampler.generate_batch("x", 10, regex=r"[é€😀]+|a", seed=n, max_new_tokens=n):
            finished = text.text() and text.finish_reason in ("match", "end_of_text")
            assert text.finish_reason == "length" or finished
            assert not finished or re.fullmatch(r"[é€😀]+|a", text.text())


def test_a_token_that_is_never_written_is_no_way_to_a_match() -> None:
    with pytest.raises(RequestError, match="the vocabulary cannot write any text that matches"):
        constraint_of(CHAR, never=(0,), regex="a+")
    assert allowed(constraint_of(CHAR, never=(0,), regex="ab|1b").matcher(), 4) == [2]


def test_a_dead_end_of_the_vocabulary_ends_the_text_and_is_no_match() -> None:
    sampler = Sampler(make_model(4), CHAR, SamplingParams(temperature=1.0))
    text = sampler.generate("1", grammar='start: "a" "x"')
    assert text.text() == "a"
    assert text.finish_reason == "dead_end"


def test_greedy_text_that_satisfies_the_grammar_anyway_is_unchanged() -> None:
    sampler = Sampler(make_model(4, context_length=16), CHAR, SamplingParams(temperature=0.0, max_new_tokens=60))
    free = sampler.generate("1")
    assert sampler.generate("1", regex=r"[ab1é]*").tokens == free.tokens
    assert sampler.generate("1", grammar='start: ("a" | "b" | "1" | "é")*').tokens == free.tokens


def test_a_text_of_a_grammar_is_in_its_language_which_may_nest() -> None:
    sampler = Sampler(make_model(256), BYTE, SamplingParams(temperature=1.0))
    grammar = 'start: "(" start ")" | "[" start "]" | /[a-z]/'
    texts = [text.text() for text in sampler.generate_batch("x", 20, grammar=grammar, seed=3)]
    for text in texts:
        while (inner := re.sub(r"^\((.*)\)$|^\[(.*)\]$", r"\1\2", text)) != text:
            text = inner
        assert re.fullmatch("[a-z]", text)
    assert any(len(text) > 2 for text in texts)


def test_a_stop_string_ends_the_text_of_a_grammar_only_where_it_is_a_match() -> None:
    sampler = Sampler(make_model(4), CHAR, SamplingParams(temperature=1.0))
    for text in sampler.generate_batch("1", 20, grammar="start: /[ab]*/ | /1[ab1é]{3}/", stop="b", seed=1):
        assert text.text().startswith("1") or "b" not in text.text()
        assert len(text.text()) == 4 or not text.text().startswith("1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "("}, "regex: unclosed group, at character 1"),
        ({"regex": "ab*+c|*"}, "regex: repetition operator missing expression, at character 7"),
        ({"regex": r"é(a)\1"}, "regex: backreferences are not supported, at character 5"),
        ({"regex": "a(?=a)"}, "regex: look-around, including look-ahead and look-behind, is not supported, at char"),
        ({"regex": r"a\b"}, "lookarounds not supported"),
        ({"regex": "[xyz]"}, "regex: the vocabulary cannot write any text that matches"),
        ({"json_schema": "{"}, "json_schema: not JSON: "),
        ({"json_schema": "[]"}, "json_schema: not a JSON object"),
        ({"json_schema": '{"multipleOf": NaN}'}, "json_schema: not JSON: NaN"),
        ({"json_schema": '{"multipleOf": 1e999}'}, "json_schema: more than 50,000 states of multipleOf"),
        ({"json_schema": '{"multipleOf": ' + "9" * 4000 + "}"}, "json_schema: multipleOf has an integer beyond 2^53"),
        ({"json_schema": {"type": "text"}}, "json_schema: Invalid type: text"),
        ({"json_schema": {"not": {}}}, 'json_schema: Unimplemented keys: ["not"]'),
        ({"json_schema": {"type": "object"}}, "json_schema: the vocabulary cannot write any text that matches"),
        ({"grammar": "start: x"}, 'grammar: at 1(8): unknown name: "x"'),
        ({"grammar": "start: " + "a" * 300_000}, "grammar: more than 16,384 bytes"),
        ({"grammar": 'start: %json {"a": "%json", "multipleOf": 1000003}'}, "grammar: more than 50,000 states of mult"),
        ({"grammar": 'start: "%json" %json {"multipleOf": 1000003}'}, "grammar: more than 50,000 states of mult"),
    ],
)
def test_a_constraint_that_cannot_be_followed_is_one_clear_error(options: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError) as error:
        constraint_of(CHAR, **options)
    assert message in error.value.render()
    assert len(error.value.render()) < 500


def test_a_schema_whose_references_nest_by_the_thousand_compiles() -> None:
    items = '{"type": "array", "items": ' * 10 + '{"$ref": "#/$defs/d%d"}' + "}" * 10
    definitions = ", ".join(f'"d{i}": {items % (i + 1)}' for i in range(150))
    schema = f'{{"$ref": "#/$defs/d0", "$defs": {{{definitions}, "d150": {{"type": "null"}}}}}}'
    assert constraint_of(BYTE, json_schema=schema).matcher().mask() is not None


def test_what_a_schema_in_a_grammar_quotes_is_no_part_of_the_grammar() -> None:
    schema = json.dumps({"const": "a & b & c & d & e & f & g & h & i & j %json {"})
    assert constraint_of(BYTE, grammar=f"start: %json {schema}").matcher().mask() is not None


@pytest.mark.parametrize("pair", [("choices", "regex"), ("regex", "json_schema"), ("json_schema", "grammar")])
def test_a_text_has_one_constraint_at_most(pair: tuple[str, str]) -> None:
    values = {"choices": ["a"], "regex": "a", "json_schema": {}, "grammar": "start: /a/"}
    with pytest.raises(RequestError, match=f"give {pair[0]} or {pair[1]}, not both"):
        SamplingParams().replace(SamplingOptions(**{name: values[name] for name in pair}))  # type: ignore[typeddict-item]


def test_json_may_have_white_space_but_not_without_end() -> None:
    matcher_of = constraint_of(
        BYTE, json_schema={"type": "object", "additionalProperties": {"type": "integer"}}
    ).matcher

    def takes(text: str) -> bool:
        matcher = matcher_of()
        for byte in text.encode():
            matcher.accept(byte)
        return matcher.matches and not matcher.rejected_last

    value = {"a": 1, "b": -20}
    assert all(takes(json.dumps(value, indent=indent)) for indent in (None, 0, 2, 4, "\t"))
    assert takes(json.dumps(value, separators=(",", ":")))
    assert not takes('{"a":' + " " * 50 + "1}")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("^ab$", "ab"), ("a # b", "a # b"), ("(?x)a b", "ab"), ("(?i)aB", "Ab"), ("a/b\n", "a/b\n"), ('"', '"')],
)
def test_anchors_at_the_ends_and_flags_mean_what_they_mean_to_re(pattern: str, text: str) -> None:
    assert re.fullmatch(pattern, text)
    matcher = constraint_of(BYTE, regex=pattern).matcher()
    for byte in text.encode():
        assert byte in (allowed(matcher, 256) or [])
        matcher.accept(byte)
    assert matcher.finished
    assert not matcher.rejected_last
