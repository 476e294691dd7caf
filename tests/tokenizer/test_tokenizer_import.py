"""Tokenizers as others publish them: GPT-2's two files and tiktoken's rank files give the published ids."""

import base64
import hashlib
import json
import random
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.cli.main import main
from gpt_cli.config.schema import TokenizerConfig
from gpt_cli.errors import RequestError, UserError
from gpt_cli.literals import Pattern
from gpt_cli.tokenizer import BPETokenizer, load_tokenizer, train_tokenizer
from gpt_cli.tokenizer.pretokenizer import RULES

END = "<|endoftext|>"
LESSON = "the cat sat on the mat, the rat sat on the cat; aaaa aaaaa 12 123 café cafés 語語 don't can't\n" * 3
AWKWARD = [
    "Hello world",
    " ",
    "  ",
    "\n\n",
    "\r\n \t",
    "don't",
    "I'LL",
    "\xa0",
    "é",
    "語",
    "🙂",
    "e\u0301",
    "12345",
    "...!",
    END,
]
TEXTS = st.lists(st.sampled_from(AWKWARD) | st.characters(exclude_categories=["Cs"])).map("".join) | st.text()

# Ids as OpenAI's own code gives them.
GOLDEN = {
    "Hello world": [15496, 995],
    "Hello, I'm a language model,": [15496, 11, 314, 1101, 257, 3303, 2746, 11],
    "The quick brown fox jumps over the lazy dog.": [464, 2068, 7586, 21831, 18045, 625, 262, 16931, 3290, 13],
    "  two  spaces\n\n\tand a tab": [220, 734, 220, 9029, 628, 197, 392, 257, 7400],
    "café 語 🙂 don't": [66, 1878, 2634, 5525, 103, 252, 32485, 836, 470],
    "": [],
}


@pytest.fixture(scope="module")
def gpt2(shared_data: Path) -> BPETokenizer:
    return bpe(shared_data / "gpt2")


def bpe(path: Path, pattern: Pattern | None = None) -> BPETokenizer:
    tokenizer = load_tokenizer(path, pattern)
    assert isinstance(tokenizer, BPETokenizer)
    return tokenizer


def rank_lines(tokenizer: BPETokenizer) -> bytes:
    """The rank file of a vocabulary. Its ids must be in the order of its merges, the special token last."""
    tokens = [token for i, token in enumerate(tokenizer.vocabulary.tokens) if i not in tokenizer.vocabulary.special]
    return b"".join(b"%s %d\n" % (base64.b64encode(token), i) for i, token in enumerate(tokens))


@cache
def learned(pattern: Pattern = "gpt2") -> BPETokenizer:
    tokenizer = train_tokenizer([LESSON], TokenizerConfig(kind="bpe", vocab_size=290, pattern=pattern))
    assert isinstance(tokenizer, BPETokenizer)
    return tokenizer


# GPT-2


def test_gpt2_gives_the_published_ids(gpt2: BPETokenizer) -> None:
    assert (gpt2.vocab_size, gpt2.eot_id) == (50_257, 50_256)
    for text, ids in GOLDEN.items():
        assert gpt2.encode(text).tolist() == ids
        assert gpt2.decode(ids) == text


def test_gpt2_is_its_folder_or_either_file_under_both_names(
    gpt2: BPETokenizer, shared_data: Path, tmp_path: Path
) -> None:
    for name in ("encoder.json", "vocab.bpe"):
        assert load_tokenizer(shared_data / "gpt2" / name) == gpt2
    shutil.copy(shared_data / "gpt2/encoder.json", tmp_path / "vocab.json")
    shutil.copy(shared_data / "gpt2/vocab.bpe", tmp_path / "merges.txt")
    for path in (tmp_path, tmp_path / "vocab.json", tmp_path / "merges.txt"):
        assert load_tokenizer(path) == gpt2


@given(text=TEXTS)
def test_gpt2_gives_the_ids_of_openais_own_encoder(gpt2: BPETokenizer, text: str) -> None:
    assert gpt2.encode(text).tolist() == openai(gpt2).encode_ordinary(text)
    assert gpt2.encode(text, allow_special=True).tolist() == openai(gpt2).encode(text, allowed_special="all")


def test_a_whole_book_gives_the_ids_of_openais_own_encoder(gpt2: BPETokenizer, shared_data: Path) -> None:
    text = (shared_data / "shakespeare.txt").read_text(encoding="utf-8")
    ids = gpt2.encode(text).tolist()
    assert len(ids) == 338_025
    assert ids == openai(gpt2).encode_ordinary(text)


@cache
def openai(tokenizer: BPETokenizer) -> Any:
    """OpenAI's encoder with the same ranks."""
    tiktoken = pytest.importorskip("tiktoken")
    vocabulary = tokenizer.vocabulary
    return tiktoken.Encoding(
        "published",
        pat_str=RULES[vocabulary.pattern].published,
        mergeable_ranks={t: i for i, t in enumerate(vocabulary.tokens) if i not in vocabulary.special},
        special_tokens={vocabulary.tokens[i].decode(): i for i in vocabulary.special},
    )


def test_the_rank_file_of_gpt2_is_known_and_gives_the_same_tokenizer(gpt2: BPETokenizer, tmp_path: Path) -> None:
    data = rank_lines(gpt2)
    assert hashlib.sha256(data).hexdigest() == "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
    (tmp_path / "r50k_base.tiktoken").write_bytes(data)
    assert load_tokenizer(tmp_path / "r50k_base.tiktoken") == gpt2


def test_one_half_of_gpt2_says_which_file_is_missing(tmp_path: Path) -> None:
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\nĠ t\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"encoder\.json is not beside it"):
        load_tokenizer(tmp_path / "vocab.bpe")
    (tmp_path / "other.bpe").write_text("#version: 0.2\nĠ t\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"would be called encoder\.json or"):
        load_tokenizer(tmp_path / "other.bpe")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="there is no tokenizer in the folder"):
        load_tokenizer(tmp_path / "empty")


# tiktoken's rank files


@pytest.mark.parametrize("pattern", ["gpt2", "gpt4", "o200k"])
def test_the_merges_of_a_rank_file_are_those_that_were_learned(pattern: Pattern, tmp_path: Path) -> None:
    path = tmp_path / "mine.tiktoken"
    path.write_bytes(rank_lines(learned(pattern)))
    assert load_tokenizer(path, pattern) == learned(pattern)
    path.write_bytes(rank_lines(learned(pattern)).replace(b"\n", b"\r\n"))
    assert load_tokenizer(path, pattern) == learned(pattern)


@given(text=TEXTS | st.text("abc"), extra=st.lists(st.text("abc", min_size=2, max_size=9), max_size=6, unique=True))
def test_any_rank_file_gives_the_ids_of_tiktoken(text: str, extra: list[str], tmp_path_factory: Any) -> None:
    """Also one whose last tokens no merge makes: those are only found as whole words."""
    rank_file = rank_lines(learned())
    tokens = learned().vocabulary.tokens
    added = [word.encode() for word in extra if word.encode() not in tokens]
    path = tmp_path_factory.mktemp("ranks") / "mine.tiktoken"
    path.write_bytes(rank_file + b"".join(b"%s %d\n" % (base64.b64encode(t), 289 + i) for i, t in enumerate(added)))
    tokenizer = bpe(path, "gpt2")
    assert tokenizer.encode(text).tolist() == openai(tokenizer).encode_ordinary(text)


def test_a_rank_file_that_nobody_knows_needs_its_pattern(tmp_path: Path) -> None:
    path = tmp_path / "mine.tiktoken"
    path.write_bytes(rank_lines(learned()))
    with pytest.raises(RequestError, match="has no split pattern") as caught:
        load_tokenizer(path)
    assert caught.value.keys == ("tokenizer.pattern",)
    config = TokenizerConfig(kind="bpe", file=str(path), pattern="gpt2")
    assert train_tokenizer([], config) == learned()
    assert main(["tokenize", "--tokenizer", str(path), "--text", "cat"]) == 2
    assert main(["tokenize", "--tokenizer", str(path), "--text", "cat", "--pattern", "gpt2"]) == 0


def test_a_pattern_that_contradicts_the_file_is_refused(tmp_path: Path) -> None:
    learned().save(tmp_path / "tokenizer.json")
    config = TokenizerConfig(kind="bpe", file=str(tmp_path / "tokenizer.json"), pattern="gpt4")
    with pytest.raises(RequestError, match=r"pattern is gpt4, but the tokenizer has pattern gpt2"):
        train_tokenizer([], config)


BYTES = b"".join(b"%s %d\n" % (base64.b64encode(bytes([i])), i) for i in range(256))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (b"YQ== 0\nYQ== 1\n", "there before"),
        (b"YQ== 0\nYg== 0\n", "the same rank"),
        (BYTES + b"YWI= 257\n", "are not 0 to 256"),
        (b"YQ== 0\nYg=\n", "line 2 is not a token"),
        (b"YQ== 0\n\nYg== 1\n", "line 2 is not a token"),
        (b"YQ== 0\nYQ= 1\n", "padding"),
        (b"YQ== 0\n" + base64.b64encode(b"x" * 300) + b" 1\n", "300 bytes"),
        (b"YQ== 0\n", "no token for the byte 0x00"),
        (BYTES + b"PHxlbmRvZnRleHR8Pg== 256\n", "ordinary token"),
    ],
)
def test_a_rank_file_that_contradicts_itself_is_refused(lines: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "mine.tiktoken").write_bytes(lines)
    with pytest.raises(UserError, match=reason):
        load_tokenizer(tmp_path / "mine.tiktoken", "gpt2")


# Damage


def damaged(data: bytes, chance: random.Random) -> bytes:
    at, end = sorted((chance.randrange(len(data)), chance.randrange(len(data))))
    lines = data.split(b"\n")
    a, b = chance.randrange(len(lines)), chance.randrange(len(lines))
    match chance.randrange(8):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[at + 1 :]
        case 2:
            return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        case 3:
            return data[:at] + data[end:]
        case 4:
            return data[:at] + chance.randbytes(3) + data[at:]
        case 5:
            return data[:end] + data[at:]
        case 6:
            lines[a], lines[b] = lines[b], lines[a]
        case 7:
            lines[a] = lines[b]
    return b"\n".join(lines)


def test_damaged_files_of_every_published_form_are_refused_or_still_lossless(tmp_path: Path) -> None:
    """750 of them. What loads keeps every promise, what does not says so; any other exception fails the test."""
    chance = random.Random(1)
    model = json.loads(learned().to_json())["model"]
    originals = {
        "encoder.json": json.dumps(model["vocab"], indent=0).encode(),
        "vocab.bpe": "\n".join(["#version: 0.2", *model["merges"], ""]).encode(),
        "mine.tiktoken": rank_lines(learned()),
    }
    refused = dict.fromkeys(originals, 0)
    for name in originals:
        for _ in range(250):
            for file_name, data in originals.items():
                (tmp_path / file_name).write_bytes(damaged(data, chance) if file_name == name else data)
            try:
                loaded = bpe(tmp_path / name, "gpt2")
            except UserError:
                refused[name] += 1
                continue
            assert loaded.decode(loaded.encode(LESSON)) == LESSON
            saved = tmp_path / "tokenizer.json"
            loaded.save(saved)
            assert load_tokenizer(saved) == loaded
            saved.unlink()
    assert min(refused.values()) > 50


def test_an_imported_tokenizer_tokenizes_a_corpus_and_is_kept_as_tokenizer_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.tiktoken").write_bytes(rank_lines(learned()))
    Path("cats.txt").write_text(LESSON, encoding="utf-8")
    assert main(["tokenize", "cats.txt", "--tokenizer", "mine.tiktoken", "--pattern", "gpt2", "--out", "out"]) == 0
    assert load_tokenizer(Path("out")) == learned()
    capsys.readouterr()
