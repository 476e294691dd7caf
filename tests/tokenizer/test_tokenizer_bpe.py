"""Byte-level BPE: what is learned, that the fast path changes no id, and that the file is Hugging Face's."""

import dataclasses
import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from pydoc_data import topics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers import Tokenizer as HuggingFace
from tokenizers.pre_tokenizers import ByteLevel, Split

from gpt_cli.config.schema import TokenizerConfig
from gpt_cli.errors import RequestError, UserError
from gpt_cli.literals import Pattern
from gpt_cli.tokenizer import BPETokenizer, load_tokenizer, train_tokenizer, trainer, vocab_stats
from gpt_cli.tokenizer.bpe import BPEEncoder
from gpt_cli.tokenizer.bpe_vocabulary import BYTE_ENCODER
from gpt_cli.tokenizer.pretokenizer import RULES, pre_tokenize, split_chunks
from tests.support.command import ROOT

ENGLISH = "".join(topics.topics[name] for name in sorted(topics.topics))[:60_000]
SPACES = "".join(map(chr, [*range(9, 14), 0x1C, 0x1F, 0x20, 0x85, 0xA0, 0x1680, 0x2003, 0x2028, 0x200B, 0x3000]))
PIECES = [
    *SPACES,
    "\n\n",
    "\r\n",
    "  ",
    "a",
    "B",
    "ß",
    "'s",
    "'LL",
    "'S\u00e9",
    "it'll\u00e9",
    "\u017f",
    "e\u0301",
    "don't",
    "1",
    "234",
    "½",
    "!",
    "?!",
    "/",
    "\n/",
    "HTMLs",
    "caf\u00e9",
    "\u2014",
    "語",
    "。",
    "🙂",
]
PATTERNS: tuple[Pattern, ...] = ("gpt2", "gpt4", "o200k")
TEXTS = st.lists(st.sampled_from([*PIECES, "<|endoftext|>"]) | st.characters(exclude_categories=["Cs"])).map("".join)

# The ASCII part of GPT-2's pattern, for the reference below.
GPT2_ASCII = r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"


def train(text: str, vocab_size: int, pattern: Pattern = "gpt2") -> BPETokenizer:
    config = TokenizerConfig(kind="bpe", vocab_size=vocab_size, pattern=pattern)
    tokenizer = train_tokenizer([text], config)
    assert isinstance(tokenizer, BPETokenizer)
    return tokenizer


@cache
def hugging_face(tokenizer: BPETokenizer) -> HuggingFace:
    """The same file in Hugging Face's own hands, which encode a text as one string."""
    hf_tokenizer = HuggingFace.from_str(tokenizer.to_json())
    hf_tokenizer.encode_special_tokens = True
    return hf_tokenizer


@pytest.fixture(scope="module", params=["gpt2", "gpt4", "o200k"])
def bpe(request: pytest.FixtureRequest) -> BPETokenizer:
    spaced_text = "".join(a + b + c for a in PIECES for b in SPACES for c in PIECES[-12:])  # so that spaces merge too
    return train(ENGLISH + spaced_text, 1200, request.param)


# Learning


def test_the_wikipedia_example_is_merged_in_its_order() -> None:
    tokenizer = train("aaabdaaabac", 260)
    merges = [tuple(map(tokenizer.token_bytes, pair)) for *pair, _ in tokenizer.vocabulary.merges]
    assert merges == [(b"a", b"a"), (b"a", b"b"), (b"aa", b"ab")]  # Z = aa, Y = ab, X = ZY
    assert [tokenizer.token_bytes(token) for token in tokenizer.encode("aaabdaaabac").tolist()] == [
        b"aaab",
        b"d",
        b"aaab",
        b"a",
        b"c",
    ]


def test_learning_equals_the_written_out_definition() -> None:
    text = re.sub(r"[^A-Za-z ]", "", ENGLISH[:20_000])
    tokenizer = train(text, 500)
    tokens = tokenizer.vocabulary.tokens
    assert [(left, right) for left, right, _ in tokenizer.vocabulary.merges] == reference_merges(text, tokens)


def reference_merges(text: str, tokens: tuple[bytes, ...]) -> list[tuple[int, int]]:
    """Count all pairs, merge the most frequent (ties: the lower ids), until the vocabulary is full."""
    words = Counter(re.findall(GPT2_ASCII, text))
    word_ids = {word: [tokens.index(bytes([byte])) for byte in word.encode()] for word in words}
    merges = []
    for new_id in range(256, len(tokens) - 1):
        pairs: Counter[tuple[int, int]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word_ids[word]):
                pairs[pair] += count
        best_pair = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best_pair)
        word_ids = {word: apply_merge(ids, best_pair, new_id) for word, ids in word_ids.items()}
    return merges


def apply_merge(ids: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    out: list[int] = []
    for token in ids:
        out.append(token)
        if tuple(out[-2:]) == pair:
            out[-2:] = [new_id]
    return out


def test_encoding_equals_the_written_out_definition() -> None:
    """Within each word, again and again: the merge that was learned first, wherever it applies."""
    tokenizer = train(ENGLISH, 600)
    tokens = tokenizer.vocabulary.tokens
    rank = {(left, right): (i, new_id) for i, (left, right, new_id) in enumerate(tokenizer.vocabulary.merges)}
    text = ENGLISH[30_000:33_000].encode("ascii", "ignore").decode()
    expected = []
    for word in re.findall(GPT2_ASCII, text):
        ids = [tokens.index(bytes([byte])) for byte in word.encode()]
        while candidates := [pair for pair in pairwise(ids) if pair in rank]:
            first_pair = min(candidates, key=lambda pair: rank[pair])
            ids = apply_merge(ids, first_pair, rank[first_pair][1])
        expected += ids
    assert tokenizer.encode(text).tolist() == expected


def test_the_vocabulary_is_256_bytes_then_merges_then_the_end_of_text(bpe: BPETokenizer) -> None:
    tokens = bpe.vocabulary.tokens
    assert len(tokens) == bpe.vocab_size == 1200
    assert sorted(tokens[:256]) == [bytes([byte]) for byte in range(256)]
    assert bpe.eot_id == 1199
    assert bpe.vocabulary.special == {1199}
    assert len(set(tokens)) == 1200


def test_bytes_are_spelled_as_hugging_face_spells_them() -> None:
    assert sorted(BYTE_ENCODER) == sorted(ByteLevel.alphabet())
    assert (BYTE_ENCODER[ord(" ")], BYTE_ENCODER[ord("\n")], BYTE_ENCODER[ord("a")]) == ("Ġ", "Ċ", "a")


def test_learning_does_not_depend_on_threads_processes_or_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = train(ENGLISH, 500).digest
    program = (
        "import sys; from gpt_cli.config.schema import TokenizerConfig; from gpt_cli.tokenizer import train_tokenizer;"
        "print(train_tokenizer([sys.stdin.read()], TokenizerConfig(kind='bpe', vocab_size=500)).digest)"
    )
    environment = {**os.environ, "RAYON_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    completed = subprocess.run(
        [sys.executable, "-c", program],
        input=ENGLISH.encode(),
        capture_output=True,
        check=True,
        cwd=ROOT,
        env=environment,
    )
    assert completed.stdout.decode().strip() == digest
    monkeypatch.setattr("gpt_cli.tokenizer.trainer.BLOCK", 100)
    assert train(ENGLISH, 500).digest == digest


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("word", ["ACGTTAG", "漢字", "अनुवाद", " ", " \n", "=", "_-"])
def test_learning_sees_no_very_long_word_and_all_of_the_text(word: str, pattern: Pattern) -> None:
    text = "a text before " + word * 5_000 + " and one after"

    chunks = list(trainer._trainer_chunks([text], pattern, []))

    split = Split(Regex(RULES[pattern].published), "isolated").pre_tokenize_str
    assert "".join(chunks) == text
    assert max(len(piece) for chunk in chunks for piece, _ in split(chunk)) < 3 * trainer._LONG_WORD


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(
    "text",
    [
        "a word of 499 letters: " + "x" * 499 + " and others, " * 500,
        "0123456789" * 400,
        "deadbeef0123" * 400,
        "नमस्ते दुनिया " * 400,
        "".join(f"{n}漢字。" for n in range(1000)),
    ],
)
def test_text_without_very_long_words_is_learned_from_uncut(text: str, pattern: Pattern) -> None:
    split = Split(Regex(RULES[pattern].published), "isolated").pre_tokenize_str
    if max(len(piece) for piece, _ in split(text)) < trainer._LONG_WORD // 2:
        assert list(trainer._trainer_chunks([text], pattern, [])) == [text]


def test_ctrl_c_interrupts_while_merges_are_learned() -> None:
    over = threading.Event()
    main_thread = threading.main_thread().ident
    assert main_thread is not None

    def work() -> None:
        signal.pthread_kill(main_thread, signal.SIGINT)
        over.wait()

    with pytest.raises(KeyboardInterrupt):
        trainer._wait_for(work)
    over.set()


def test_what_fails_while_merges_are_learned_is_raised() -> None:
    def texts() -> Iterator[str]:
        yield "a text"
        raise UserError("the disk is gone")

    with pytest.raises(UserError, match="the disk is gone"):
        train_tokenizer(texts(), TokenizerConfig(kind="bpe", vocab_size=300))


def test_a_vocabulary_out_of_reach_says_how_many_ids_the_text_supports() -> None:
    text = "the cat sat on the mat, the rat sat on the cat"
    with pytest.raises(RequestError, match=r"tokenizer\.vocab_size 5,000 is out of reach") as excinfo:
        train(text, 5000)
    supported_size = int(re.findall(r"supports (\d+)", excinfo.value.message)[0])
    assert excinfo.value.suggestion == f"tokenizer.vocab_size={supported_size}"
    assert train(text, supported_size).vocab_size == supported_size
    with pytest.raises(RequestError, match=f"supports {supported_size} "):
        train(text, supported_size + 1)


def test_a_vocabulary_without_merges_is_the_bytes_and_the_end_of_text() -> None:
    tokenizer = train("", 257)
    assert tokenizer.vocabulary.merges == ()
    assert tokenizer.decode(tokenizer.encode("語")) == "語"


# Encoding


@given(text=TEXTS)
def test_encoding_by_distinct_pieces_gives_the_ids_of_the_whole_text(bpe: BPETokenizer, text: str) -> None:
    assert bpe.encode(text).tolist() == hugging_face(bpe).encode(text, add_special_tokens=False).ids
    assert bpe.decode(bpe.encode(text)) == text


@pytest.mark.system
def test_python_docs_have_the_ids_that_hugging_face_gives() -> None:
    text = "".join(topics.topics[name] for name in sorted(topics.topics))
    assert not text.isascii()
    for pattern in PATTERNS:
        tokenizer = train(text, 1024, pattern)
        assert tokenizer.encode(text).tolist() == hugging_face(tokenizer).encode(text, add_special_tokens=False).ids


# Few characters, so that short texts hit every pair of alternatives of the patterns.
DENSE_CHARACTERS = [*"aaBZ'sStTlL12 \n\r\t/!.-", *"éÉſʰǅ語½\u0301", *"\xa0\x85\u2003—’🙂\x1c"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_cut_changes_what_the_pattern_splits(pattern: Pattern) -> None:
    rng = random.Random(1)
    hf_split = Split(Regex(RULES[pattern].published), "isolated").pre_tokenize_str
    for _ in range(10_000):
        text = "".join(rng.choices(DENSE_CHARACTERS, k=rng.randint(1, 14)))
        hf_words = [word for word, _ in hf_split(text)]
        for pieces in (pre_tokenize(text, pattern), list(split_chunks(text, rng.randint(1, 5), pattern))):
            assert [word for piece in pieces if piece for word, _ in hf_split(piece)] == hf_words


@given(text=TEXTS, size=st.integers(1, 9))
def test_a_text_can_be_encoded_block_by_block(bpe: BPETokenizer, text: str, size: int) -> None:
    blocks = list(split_chunks(text, size, bpe.vocabulary.pattern))
    assert "".join(blocks) == text
    assert [i for block in blocks for i in bpe.encode(block).tolist()] == bpe.encode(text).tolist()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_ascii_is_cut_as_the_pattern_cuts_it_and_the_rest_at_white_space(pattern: Pattern) -> None:
    end = [",", "\n"] if pattern == "gpt2" else [",\n"]
    assert pre_tokenize("To be,\nor not  to be", pattern) == ["To", " be", *end, "or", " not", " ", " to", " be"]
    assert pre_tokenize("le caf\u00e9, c'est bon", pattern)[:2] == ["le", " caf\u00e9,"]


@pytest.mark.parametrize("pattern", PATTERNS)
@given(text=st.text(st.characters(codec="ascii")) | st.text("aB'sLl1 2\n\r\t/!"))
def test_pieces_of_ascii_are_those_of_the_published_pattern(pattern: Pattern, text: str) -> None:
    hf_pieces = [piece for piece, _ in Split(Regex(RULES[pattern].published), "isolated").pre_tokenize_str(text)]
    assert pre_tokenize(text, pattern) == hf_pieces


@pytest.mark.system
def test_white_space_is_what_the_patterns_take_for_it() -> None:
    all_characters = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    hf_spaces = [space for run, _ in Split(Regex(r"\S+"), "removed").pre_tokenize_str(all_characters) for space in run]
    spaces = [c for c in all_characters if next(split_chunks(f"aa{c}b", 1, "gpt2")) == "aa"]
    assert spaces == hf_spaces


@pytest.mark.system
def test_tiny_shakespeare_has_the_ids_that_hugging_face_gives(shared_data: Path) -> None:
    text = (shared_data / "shakespeare.txt").read_text(encoding="utf-8")
    for pattern in PATTERNS:
        tokenizer = train(text, 1024, pattern)
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert ids.tolist() == hugging_face(tokenizer).encode(text, add_special_tokens=False).ids


def test_a_block_border_changes_nothing(bpe: BPETokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = bpe.encode(ENGLISH).tolist()
    monkeypatch.setattr("gpt_cli.tokenizer.bpe.BLOCK", 1000)
    assert bpe.encode(ENGLISH).tolist() == expected


@given(text=st.text("aab<te ", max_size=80))
def test_the_ids_are_those_of_merging_each_piece_by_definition(bpe: BPETokenizer, text: str) -> None:
    pieces = re.findall(GPT2_ASCII, text)
    assert bpe.encode(text).tolist() == [i for piece in pieces for i in reference_encode(piece.encode(), bpe)]


def reference_encode(word: bytes, tokenizer: BPETokenizer) -> list[int]:
    rank = {(left, right): (i, new_id) for i, (left, right, new_id) in enumerate(tokenizer.vocabulary.merges)}
    ids = [tokenizer.vocabulary.tokens.index(bytes([byte])) for byte in word]
    while candidates := [pair for pair in pairwise(ids) if pair in rank]:
        first_pair = min(candidates, key=lambda pair: rank[pair])
        ids = apply_merge(ids, first_pair, rank[first_pair][1])
    return ids


def test_with_riptoken_the_ids_are_the_same(bpe: BPETokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("riptoken")
    monkeypatch.setattr("gpt_cli.tokenizer.bpe.MIN_LENGTH", 0)
    rng = random.Random(2)
    encoder = BPEEncoder(bpe.vocabulary)
    assert encoder._is_trusted
    for text in (ENGLISH, "".join(rng.choices(DENSE_CHARACTERS, k=30_000)), "a" * 9_000, " " * 9_000, ""):
        assert encoder.encode(text).tolist() == hugging_face(bpe).encode(text, add_special_tokens=False).ids
    assert encoder._is_trusted


def test_an_accelerator_that_gives_other_ids_steps_aside_with_a_note(
    bpe: BPETokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    class WrongEncoder:
        def encode_ordinary(self, text: str) -> list[int]:
            return [0] * len(text)

    encoder = BPEEncoder(bpe.vocabulary)
    encoder._riptoken = WrongEncoder()
    for _ in range(2):
        ids = encoder.encode(ENGLISH * 2).tolist()
        assert ids == hugging_face(bpe).encode(ENGLISH * 2, add_special_tokens=False).ids
    assert caplog.text.count("riptoken returns other ids") == 1


def test_an_accelerator_is_not_used_where_its_rules_are_others() -> None:
    vocabulary = train("aaabdaaabac", 260).vocabulary
    swapped_merges = (vocabulary.merges[1], vocabulary.merges[0], *vocabulary.merges[2:])
    for changes in ({"ignore_merges": True}, {"merges": swapped_merges}, {"merges": vocabulary.merges[:2]}):
        changed_vocabulary = dataclasses.replace(vocabulary, **changes)  # type: ignore[arg-type]
        assert not BPEEncoder(changed_vocabulary)._is_trusted


def test_without_riptoken_the_reference_encodes_much_text(bpe: BPETokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = bpe.encode(ENGLISH).tolist()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "riptoken", None)  # an import of it would fail
    monkeypatch.setattr("gpt_cli.tokenizer.bpe.MIN_LENGTH", 0)
    assert BPETokenizer(bpe.vocabulary).encode(ENGLISH).tolist() == expected


def test_what_it_remembers_is_bounded_and_changes_nothing(bpe: BPETokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = bpe.encode(ENGLISH).tolist()
    monkeypatch.setattr("gpt_cli.tokenizer.bpe.CACHE_BYTES", 1 << 16)
    monkeypatch.setattr("gpt_cli.tokenizer.bpe.BLOCK", 1000)
    tokenizer = BPETokenizer(bpe.vocabulary)
    assert tokenizer.encode(ENGLISH).tolist() == expected
    assert len(tokenizer._encoder._cache) < 1000


def test_another_process_gets_the_tokenizer_without_what_it_remembers(bpe: BPETokenizer) -> None:
    pickled_size = len(pickle.dumps(BPETokenizer(bpe.vocabulary)))
    bpe.encode(ENGLISH)
    data = pickle.dumps(bpe)
    assert len(data) == pickled_size
    assert pickle.loads(data) == bpe


# Special tokens


def test_text_that_looks_like_a_special_token_stays_text(bpe: BPETokenizer) -> None:
    ids = bpe.encode("one<|endoftext|>two <|endoftext|>").tolist()
    assert bpe.eot_id not in ids
    assert bpe.decode(ids) == "one<|endoftext|>two <|endoftext|>"


@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
def test_where_it_is_allowed_text_that_looks_like_a_special_token_is_it(bpe: BPETokenizer, texts: list[str]) -> None:
    text = "<|endoftext|>".join(texts)
    hf_tokenizer = HuggingFace.from_str(bpe.to_json()) if text.isascii() else None
    ids = bpe.encode(text, allow_special=True).tolist()
    assert ids.count(bpe.eot_id) == text.count("<|endoftext|>")
    assert bpe.decode(ids) == text
    assert hf_tokenizer is None or ids == hf_tokenizer.encode(text).ids


def test_a_text_with_special_tokens_is_learned_without_them() -> None:
    text = "<|endoftext|>".join(["the cat", "the mat"] * 9)
    config = TokenizerConfig(kind="bpe", vocab_size=260, allow_special=True)
    tokenizer = train_tokenizer([text], config)
    assert not any(b"|" in tokenizer.token_bytes(token) for token in range(256, 260))
    assert tokenizer.encode(text, allow_special=True).tolist().count(259) == 17


def test_the_longest_of_two_special_tokens_wins_where_both_begin(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    added_tokens = [{"id": 259, "content": "<a>"}, {"id": 260, "content": "<a><b>"}]
    vocab = {token: i for token, i in VOCAB.items() if i != 259}
    path.write_text(edited_json({"added_tokens": added_tokens, "model.vocab": vocab}), encoding="utf-8")
    assert load_tokenizer(path).encode("<a><b><a>", allow_special=True).tolist() == [260, 259]


def test_a_special_token_decodes_to_its_text_and_has_no_bytes(bpe: BPETokenizer) -> None:
    end = bpe.eot_id
    assert end is not None
    assert bpe.decode([*bpe.encode("a").tolist(), end]) == "a<|endoftext|>"
    assert bpe.token_bytes(end) == b""


# The file


def test_hugging_face_reads_the_file_and_decodes_what_we_encode(bpe: BPETokenizer, tmp_path: Path) -> None:
    bpe.save(tmp_path / "tokenizer.json")
    hf_tokenizer = HuggingFace.from_file(str(tmp_path / "tokenizer.json"))
    assert hf_tokenizer.get_vocab_size() == bpe.vocab_size
    assert hf_tokenizer.token_to_id("<|endoftext|>") == bpe.eot_id
    assert hf_tokenizer.decode(bpe.encode(ENGLISH[:999]).tolist()) == ENGLISH[:999]
    assert hf_tokenizer.encode("a<|endoftext|>").ids[-1] == bpe.eot_id


def test_a_file_that_hugging_face_wrote_loads_as_the_same_tokenizer(bpe: BPETokenizer, tmp_path: Path) -> None:
    HuggingFace.from_str(bpe.to_json()).save(str(tmp_path / "tokenizer.json"), pretty=True)
    assert load_tokenizer(tmp_path / "tokenizer.json") == bpe


def test_gpt2_itself_loads_and_gives_its_published_ids(shared_data: Path, tmp_path: Path) -> None:
    merges = (shared_data / "gpt2/vocab.bpe").read_text(encoding="utf-8").splitlines()[1:]
    file = {  # as published: without the type of the model, and with empty strings for what is off
        "added_tokens": [{"id": 50256, "content": "<|endoftext|>"}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "model": {
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "vocab": json.loads((shared_data / "gpt2/encoder.json").read_text(encoding="utf-8")),
            "merges": merges,
        },
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    tokenizer = load_tokenizer(path)
    assert tokenizer.vocab_size == 50_257
    assert tokenizer.eot_id == 50_256
    assert tokenizer.encode("Hello, I'm a language model,").tolist() == [15496, 11, 314, 1101, 257, 3303, 2746, 11]
    assert len(tokenizer.encode((shared_data / "shakespeare.txt").read_text(encoding="utf-8"))) == 338_025


def edited_json(edit: dict[str, Any]) -> str:
    """A good file with `edit` (dotted keys) applied."""
    file = json.loads(train("aaabdaaabac", 260).to_json())
    for key, value in edit.items():
        *parents, last_key = key.split(".")
        node = file
        for parent in parents:
            node = node[parent]
        node[last_key] = value
    return json.dumps(file)


def split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
VOCAB = json.loads(train("aaabdaaabac", 260).to_json())["model"]["vocab"]


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ({"model.type": "WordPiece"}, "not a byte-level BPE"),
        ({"normalizer": {"type": "NFC"}}, "normalizer changes the text"),
        ({"pre_tokenizer.add_prefix_space": True}, "space before every text"),
        ({"pre_tokenizer": None}, "'pre_tokenizer' is missing"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "does not split text with GPT-2's"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split("(x+x+)+y"), BYTE_LEVEL]}}, "pattern"),
        ({"model.dropout": 0.1}, "needs dropout"),
        ({"model.end_of_word_suffix": "</w>"}, "needs end_of_word_suffix"),
        ({"model.vocab": {**VOCAB, "aaaa": 261}}, "ids of its 261 tokens are not 0 to 260"),
        ({"model.vocab": {**VOCAB, "aaaa": 3}}, "are not 0 to"),
        ({"model.vocab": {**VOCAB, "aaaa": True}}, "has no id, but True"),
        ({"model.vocab": {**VOCAB, "aaaa": 2.0}}, "has no id"),
        ({"model.vocab": {**VOCAB, "語": 260}}, "not spelled in bytes"),
        ({"model.vocab": {**VOCAB, "": 260}}, "token 260 is empty"),
        ({"model.vocab": []}, "'vocab' is missing"),
        ({"model.vocab": {"a": 0}, "model.merges": [], "added_tokens": []}, "no token for the byte 0x00"),
        ({"model.merges": ["a a", "a a"]}, "merged twice"),
        ({"model.merges": ["a"]}, "not of two tokens"),
        ({"model.merges": ["a a a"]}, "not of two tokens"),
        ({"model.merges": [["a", 3]]}, "not of two tokens"),
        ({"model.merges": ["d d"]}, "not of two tokens"),
        ({"model.merges": 7}, "'merges' is missing"),
        ({"added_tokens": [{"id": 5, "content": "<|endoftext|>"}]}, "two ids, 5 and 259"),
        ({"added_tokens": [{"id": 259, "content": "<|endoftext|>"}] * 2}, "added twice"),
        ({"added_tokens": [{"id": VOCAB["a"], "content": "a"}]}, "no token for the byte 0x61"),
        ({"added_tokens": [{"id": VOCAB["aa"], "content": "aa"}, {"id": 259, "content": "<|endoftext|>"}]}, "special"),
        ({"added_tokens": [{"id": 260, "content": "\ud800"}]}, "surrogates not allowed"),
        ({"added_tokens": ["<|endoftext|>"]}, "'content' is missing"),
        ({"added_tokens": True}, "'added_tokens' is missing"),
    ],
)
def test_a_file_that_would_lose_text_or_contradicts_itself_is_refused(
    edit: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(edited_json(edit), encoding="utf-8")
    with pytest.raises(UserError, match=rf"no tokenizer that gpt can use: .*{reason}"):
        load_tokenizer(path)


def test_added_tokens_that_are_not_special_come_from_text_and_special_ones_only_where_asked(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added_tokens = [
        {"id": 259, "content": "<|endoftext|>", "special": True, **flags},
        {"id": 260, "content": "dab", "special": False, **flags},
    ]
    path.write_text(edited_json({"added_tokens": added_tokens}), encoding="utf-8")
    tokenizer = load_tokenizer(path)
    assert tokenizer.vocab_size == 261
    assert tokenizer.encode("dabdab dab").tolist() == [260, 260, *tokenizer.encode(" ").tolist(), 260]
    assert tokenizer.token_bytes(260) == b"dab"
    assert 259 not in tokenizer.encode("a<|endoftext|>").tolist()
    assert 259 in tokenizer.encode("a<|endoftext|>", allow_special=True).tolist()


def test_gpt2s_pattern_may_be_spelled_out(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    pre_tokenizer = {"type": "Sequence", "pretokenizers": [split(RULES["gpt2"].published), BYTE_LEVEL]}
    path.write_text(edited_json({"pre_tokenizer": pre_tokenizer}), encoding="utf-8")
    assert load_tokenizer(path) == train("aaabdaaabac", 260)


def test_a_whole_word_is_taken_without_merges_where_the_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for ignore_merges, expected in ((False, [b"d", b"ab"]), (True, [b"dab"])):
        edit = {"model.vocab": {**VOCAB, "dab": 260}, "model.ignore_merges": ignore_merges}
        path.write_text(edited_json(edit), encoding="utf-8")
        tokenizer = load_tokenizer(path)
        assert [tokenizer.token_bytes(token) for token in tokenizer.encode("dab").tolist()] == expected
        tokenizer.save(path)
        assert load_tokenizer(path) == tokenizer


# Facts for tables


def test_merges_are_described_in_order_with_how_often_their_token_stands_in_the_ids() -> None:
    tokenizer = train("aaabdaaabac", 260)
    counts = vocab_stats.count_ids(tokenizer.encode("aaabdaaabac"), tokenizer.vocab_size)
    assert [(*map(tokenizer.token_bytes, merge), counts[merge[2]]) for merge in tokenizer.vocabulary.merges] == [
        (b"a", b"a", b"aa", 0),
        (b"a", b"b", b"ab", 0),
        (b"aa", b"ab", b"aaab", 2),
    ]
    assert vocab_stats.longest_tokens(tokenizer, 2) == [258, 256]
