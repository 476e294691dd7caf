"""Text under a pattern: always a match, never a dead end, and drawn from the model's own distribution, renormalised."""

import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from gpt_cli.config import TokenizerConfig
from gpt_cli.errors import RequestError
from gpt_cli.sampling import Sampler, SamplingParams
from gpt_cli.sampling.constraint import CompiledPattern, Matcher
from gpt_cli.sampling.constraint.dfa import classify
from gpt_cli.sampling.constraint.nfa import NFA, build_nfa, characters_of
from gpt_cli.sampling.constraint.utf8 import INVALID, make_utf8_dfa
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer, train_tokenizer
from tests.support.tiny_gpt import make_model

ALPHABET = "ab1é"
CHAR = CharTokenizer(ALPHABET)
BYTE = ByteTokenizer()
BPE = train_tokenizer(["aba ab1 éa éé b1b1 " * 20], TokenizerConfig(kind="bpe", vocab_size=262))

ATOMS = st.sampled_from(["a", "b", "1", "é", ".", r"\d", r"\w", r"\W", "[ab]", "[^a]", "[a-b1]", "ab"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        inner.map("({})".format),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,2}", "{,2}"])).map(
            lambda t: f"(?:{t[0]}){t[1]}"
        ),
        inner.map("(?i:{})".format),
    ),
    max_leaves=5,
)


def texts_up_to(length: int) -> Iterator[str]:
    for n in range(length + 1):
        yield from map("".join, product(ALPHABET, repeat=n))


@given(PATTERNS)
def test_what_may_follow_is_what_a_match_in_the_tokens_left_begins_with(pattern: str) -> None:
    """Against every text of the alphabet, matched by `re` itself."""
    budget = 4
    matches = {text for text in texts_up_to(budget) if re.fullmatch(pattern, text)}
    if not matches:
        with pytest.raises(RequestError, match=r"cannot write any text|may take \d+ tokens"):
            CompiledPattern(CHAR, pattern, budget)
        return
    compiled_pattern = CompiledPattern(CHAR, pattern, budget)
    for text in texts_up_to(budget - 1):
        if not any(match.startswith(text) for match in matches):
            continue
        matcher = compiled_pattern.matcher()
        for character in text:
            matcher.accept(ALPHABET.index(character))
        can_follow = [any(match.startswith(text + c) for match in matches) for c in ALPHABET]
        if text in matches:
            assert matcher.mask() is None
            assert text == "" or matcher.finished == (not any(can_follow))
        else:
            assert matcher.mask() is not None
            assert list(matcher.mask()) == can_follow  # type: ignore[arg-type]
        assert not matcher.rejected_last


@lru_cache(maxsize=64)
def pattern_of(kind: str, pattern: str, budget: int) -> CompiledPattern:
    return CompiledPattern({"char": CHAR, "byte": BYTE, "bpe": BPE}[kind], pattern, budget)


@settings(max_examples=60)
@given(st.sampled_from(["char", "byte", "bpe"]), PATTERNS, st.randoms(use_true_random=False))
def test_whatever_a_model_prefers_its_text_matches_and_nothing_is_a_dead_end(kind: str, pattern: str, random) -> None:
    tokenizer = {"char": CHAR, "byte": BYTE, "bpe": BPE}[kind]
    try:
        compiled_pattern = pattern_of(kind, pattern, 12)
    except RequestError:
        return  # such as \W, of which the alphabet has nothing
    for _ in range(4):
        text = random_text(compiled_pattern.matcher(), tokenizer, random, 12)
        assert re.fullmatch(pattern, text), (pattern, text)


def random_text(matcher: Matcher, tokenizer: Tokenizer, random, budget: int) -> str:
    tokens = []
    for _ in range(budget):
        mask = matcher.mask()
        allowed_tokens = range(tokenizer.vocab_size) if mask is None else np.flatnonzero(mask).tolist()
        assert len(allowed_tokens), "a dead end"
        token = random.choice(allowed_tokens)
        matcher.accept(token)
        if matcher.rejected_last:
            break
        tokens.append(token)
        if matcher.finished:
            break
    return b"".join(map(tokenizer.token_bytes, tokens)).decode()


def test_samples_are_drawn_from_the_masked_and_renormalised_distribution_of_the_model() -> None:
    model = make_model(4, context_length=16)
    sampler = Sampler(model, CHAR, SamplingParams(temperature=1.0, max_new_tokens=3))
    pattern, n = "(a|b1?)[ab]?", 1000

    @torch.inference_mode()
    def share(text: str) -> float:
        """The probability of a text: of each token among those that may follow, then of an end where one is open."""
        prefix = ""
        probability = 1.0
        for character in (*text, None):
            next_characters = [c for c in ALPHABET if any(m.startswith(prefix + c) for m in MATCHES)]
            if not next_characters or len(prefix) == 3:
                return probability if character is None else 0.0
            tokens = CHAR.encode("1" + prefix).tolist()
            p = dict(zip(ALPHABET, model(torch.tensor([tokens]))[0, -1].softmax(-1).tolist(), strict=True))
            mass = 1.0 if prefix in MATCHES else sum(p[c] for c in next_characters)
            if character is None:
                return probability * (1 - sum(p[c] for c in next_characters))
            probability *= p[character] / mass
            prefix += character
        raise AssertionError

    matches = [text for text in texts_up_to(3) if re.fullmatch(pattern, text)]
    MATCHES = frozenset(matches)  # noqa: N806
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
    for text in sampler.generate_batch("x", 20, regex=r"\w{2,6}", seed=4, log_probs=True):
        assert re.fullmatch(r"\w{2,6}", text.text())
        assert BYTE.decode(text.tokens) == text.text()
        assert text.log_probs is not None
        assert len(text.log_probs) == len(text.tokens)


def test_a_character_is_never_cut_by_the_last_token() -> None:
    sampler = Sampler(make_model(256), BYTE, SamplingParams(temperature=3.0))
    for n in range(1, 6):
        for text in sampler.generate_batch("x", 10, regex=r"[é€😀]+|a", seed=n, max_new_tokens=n):
            assert re.fullmatch(r"[é€😀]+|a", text.text())


def test_a_token_that_is_never_written_is_no_way_to_a_match() -> None:
    with pytest.raises(RequestError, match="the vocabulary cannot write any text that matches"):
        CompiledPattern(CHAR, "a+", 9, never=[0])
    pattern = CompiledPattern(CHAR, "ab|1b", 9, never=[0])
    assert list(pattern.matcher().mask()) == [False, False, True, False]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "'(' is not a regular expression: missing ), unterminated subpattern"),
        ("*", "is not a regular expression: nothing to repeat"),
        ("\x1b[", r"'\x1b[' is not a regular expression"),
        (r"(a)\1", r"a back reference such as \1, which sampling cannot follow"),
        ("(?=a)a", "a lookahead or lookbehind"),
        ("(?<!b)a", "a lookahead or lookbehind"),
        (r"a\b", r"an anchor such as ^, $ or \b inside the pattern"),
        ("(^a)*", "an anchor"),
        ("b^a", "an anchor"),
        ("(a$)b", "an anchor"),
        ("(?>a)", "an atomic group"),
        ("a++", "a possessive repeat such as *+"),
        ("(a)?(?(1)b|a)", "a conditional group"),
        ("(?:a{100}){1000}", "the pattern is too large: it needs more than 20,000 states"),
        ("(a|b)*a(a|b){15}", "the pattern is too large"),
        ("(a{1,100}){1,100}", "the pattern is too large: too many of its parts can match the same text"),
        ("(" * 3000 + "a" + ")" * 3000, ""),
        ("[xyz]", "the vocabulary cannot write any text that matches the pattern"),
        ("a{20}", "a text that matches the pattern may take 20 tokens; max_new_tokens is 9"),
        ("\ud800", "the vocabulary cannot write"),
    ],
)
def test_a_pattern_that_cannot_be_followed_is_one_clear_error(pattern: str, message: str) -> None:
    with pytest.raises(RequestError) as error:
        CompiledPattern(CHAR, pattern, 9)
    assert message in error.value.render()
    assert len(error.value.render()) < 500


@pytest.mark.parametrize(
    ("pattern", "text"), [("^ab$", "ab"), (r"\Aab\Z", "ab"), ("a # b", "a # b"), ("(?x)a b", "ab")]
)
def test_anchors_at_the_ends_and_flags_mean_what_they_mean_to_re(pattern: str, text: str) -> None:
    matcher = CompiledPattern(BYTE, pattern, 20).matcher()
    for byte in text.encode():
        assert (mask := matcher.mask()) is not None
        assert mask[byte]
        matcher.accept(byte)
    assert matcher.finished


def matches(nfa: NFA, text: str) -> bool:
    """True if the automaton accepts a text, by following all ways at once."""

    def closure(states: set[int]) -> set[int]:
        while new_states := {n for state in states for n in nfa.free[state]} - states:
            states |= new_states
        return states

    states = closure({nfa.start})
    for character in text:
        edges = (edge for state in states for edge in nfa.edges[state])
        states = closure({target for ranges, target in edges if any(lo <= ord(character) <= hi for lo, hi in ranges)})
    return nfa.accept in states


LETTERS = "aA1 -]\n"
WORDS = ["".join(letters) for n in range(3) for letters in product(LETTERS, repeat=n)]
WORDS += ["aaa", "aA1", "11-", "a a", "]]]", "\\n\\na"]
PARTS = st.sampled_from(
    [
        *(
            "a",
            "A",
            "1",
            "-",
            "]",
            "}",
            "{",
            "{}",
            "{a",
            "{1",
            "{1,a}",
            " ",
            "#",
            ",",
            ".",
            r"\.",
            r"\-",
            r"\]",
            r"\\",
            r"\ ",
        ),
        *(r"\n", r"\x61", r"\u0041", r"\U00000031", r"\N{LATIN SMALL LETTER A}", r"\061", r"\101", r"\0", r"\w", r"\S"),
        *(
            "[a]",
            "[]a]",
            "[^]a]",
            r"[\]a]",
            r"[^\]]",
            "[-a]",
            "[a-]",
            "[0-9]",
            r"[\dA]",
            r"[\x61-\x7a]",
            "[[a]",
            "[^a\\n]",
        ),
        *("(?#c)", r"(?#a\)b)", "()", "(?:)", "(?i)", "a|", "|a"),
    ]
)
BODIES = st.recursive(
    PARTS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(inner, inner).map("|".join),
        st.tuples(
            st.sampled_from(["(", "(?:", "(?P<n>", "(?i:", "(?s:", "(?a-i:", "(?x:", "(?-i:", "(?u:"]), inner
        ).map(lambda t: f"{t[0]}{t[1]})"),
        st.tuples(
            inner, st.sampled_from(["*", "+", "?", "*?", "??", "{2}", "{1,2}", "{,2}", "{1,}?", "{,}", "{0}"])
        ).map(lambda t: f"(?:{t[0]}){t[1]}"),
    ),
    max_leaves=6,
)
STARTS = st.sampled_from(["", "^", r"\A", "(?i)", "(?s)^", "(?x)", "(?x) # [ a\\\n\n", "(?im)", "(?a)"])


@settings(max_examples=200)
@given(STARTS, BODIES, st.sampled_from(["", "$", r"\Z"]))
def test_a_pattern_of_supported_parts_matches_what_re_matches(start: str, body: str, end: str) -> None:
    pattern = f"{start}{body}{end}"
    with warnings.catch_warnings(action="ignore"):
        try:
            compiled = re.compile(pattern)
        except re.error:
            reject()  # such as flags that are not at the start
    nfa = build_nfa(pattern)
    for text in WORDS:
        assert matches(nfa, text) == (compiled.fullmatch(text) is not None), (pattern, text)


@settings(max_examples=300)
@given(st.text(alphabet="aA1()[]{}|*+?.^$\\-,:#i=!<>P xsdN0\n", max_size=9))
def test_whatever_is_typed_means_what_it_means_to_re_or_is_refused(pattern: str) -> None:
    with warnings.catch_warnings(action="ignore"):
        try:
            compiled = re.compile(pattern)
        except (re.error, OverflowError):
            with pytest.raises(RequestError, match="is not a regular expression"):
                build_nfa(pattern)
            return
    try:
        nfa = build_nfa(pattern)
    except RequestError as error:
        assert re.search("which sampling cannot follow|too large", error.message)  # noqa: PT017
        assert re.search(r"\\[bB1-9]|\(\?|[*+?}]\+|[$^]|\\[AZz]|\{\d", pattern), "nothing in it is unsupported"
        return
    for text in WORDS:
        assert matches(nfa, text) == (compiled.fullmatch(text) is not None), (pattern, text)


@pytest.mark.parametrize("source", [r"\w", r"\d", r"\s", "[^a-z]", "."])
def test_the_characters_of_a_class_are_those_that_re_matches(source: str) -> None:
    ranges = characters_of(source, 0)
    compiled = re.compile(source)
    codes = [*range(0x3000), *range(0xD700, 0xE100), *range(0x1F5F0, 0x1F700), 0x10FFFF]
    for code in codes:
        is_inside = any(low <= code <= high for low, high in ranges)
        assert is_inside == (not 0xD800 <= code < 0xE000 and compiled.match(chr(code)) is not None), hex(code)


def test_the_decoder_reads_what_is_utf_8_and_nothing_else() -> None:
    classes, _ = classify([characters_of(r"\w", 0), ((0xE9, 0xE9),)])
    decoder = make_utf8_dfa(classes)

    def read(data: bytes) -> int:
        state = decoder.root
        for byte in data[:-1]:
            state = int(decoder.table[state, byte])
            if state < 0:
                return INVALID
        return int(decoder.table[state, data[-1]])

    for code in [
        *range(0x900),
        *range(0xD700, 0xD800),
        *range(0xE000, 0xE080),
        0xFFFF,
        *range(0x10000, 0x10100),
        0x10FFFF,
    ]:
        assert read(chr(code).encode()) == -2 - classes.of(code)
    for invalid_bytes in (
        b"\x80",
        b"\xc0\x80",
        b"\xc1\xbf",
        b"\xe0\x9f\xbf",
        b"\xed\xa0\x80",
        b"\xf0\x8f\xbf\xbf",
        b"\xf4\x90\x80\x80",
        b"\xff",
    ):
        assert read(invalid_bytes) == INVALID
