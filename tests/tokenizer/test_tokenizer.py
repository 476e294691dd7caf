"""What holds for tokenizers of every kind, and for the two alphabets."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.config.schema import TokenizerConfig
from gpt_cli.errors import RequestError, UserError
from gpt_cli.tokenizer import (
    ByteTokenizer,
    CharTokenizer,
    StreamDecoder,
    Tokenizer,
    UnknownCharacters,
    load_tokenizer,
    train_tokenizer,
    vocab_stats,
)
from gpt_cli.tokenizer.loader import check_tokenizer

PANGRAM = "The quick brown fox jumps over the lazy dog.\n"
EVERY_WIDTH = (
    "aé→語🙂👩‍👩‍👧e\u0301\x00\x1b\u2028\u202e\U0010ffff"  # 1 to 4 bytes, joined, combining, controls, the last one
)
KINDS = ("char", "byte", "bpe")


def trained(kind: str, text: str) -> Tokenizer:
    config = TokenizerConfig.model_validate({"kind": kind, "vocab_size": 257 if kind == "bpe" else None})
    return train_tokenizer([text], config)


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "bpe":  # with merges that end inside characters
        return train_tokenizer([PANGRAM, EVERY_WIDTH * 4], TokenizerConfig(kind="bpe", vocab_size=264))
    return trained(request.param, PANGRAM + EVERY_WIDTH)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(min_size=1))
def test_decode_of_encode_is_identity_for_any_unicode(kind: str, text: str) -> None:
    tokenizer = trained(kind, text)
    ids = tokenizer.encode(text)
    assert ids.dtype == np.uint32
    assert ids.ndim == 1
    assert tokenizer.decode(ids) == tokenizer.decode(ids.tolist()) == text
    assert b"".join(tokenizer.token_bytes(token) for token in ids.tolist()) == text.encode()


def test_the_empty_text_is_no_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("").shape == (0,)
    assert tokenizer.encode("").dtype == np.uint32
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(min_size=1), data=st.data())
def test_streamed_tokens_join_to_the_whole_decoding_of_any_ids(kind: str, text: str, data: st.DataObject) -> None:
    tokenizer = trained(kind, text)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1)))
    stream = StreamDecoder(tokenizer)
    assert "".join([stream.push(token) for token in ids] + [stream.flush()]) == tokenizer.decode(ids)


@given(text=st.text(alphabet="語🙂👩‍👧é\u0301a", min_size=1))
def test_streaming_text_never_shows_half_a_character(text: str) -> None:
    for tokenizer in (ByteTokenizer(), trained("bpe", text), trained("char", text)):
        stream = StreamDecoder(tokenizer)
        streamed = ""
        for token in tokenizer.encode(text).tolist():
            streamed += stream.push(token)
            assert text.startswith(streamed)
        assert streamed == text
        assert stream.flush() == ""


def test_a_character_that_is_never_completed_ends_as_a_replacement_character() -> None:
    stream = StreamDecoder(ByteTokenizer())
    assert [stream.push(byte) for byte in "🙂".encode()[:3]] == ["", "", ""]
    assert stream.flush() == "\ufffd"


def test_a_saved_tokenizer_loads_as_an_equal_one(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = load_tokenizer(path)
    assert loaded == tokenizer
    assert loaded.digest == tokenizer.digest
    assert loaded.to_json() == path.read_text(encoding="utf-8")
    assert loaded.kind == tokenizer.kind
    assert loaded.encode(PANGRAM).tolist() == tokenizer.encode(PANGRAM).tolist()


def test_the_digests_of_formats_in_use_never_change() -> None:
    assert ByteTokenizer().digest == "96a66a598bea320bd7a56d0d5e482cb43e0ff3f2b3dcb40212ee28cc0a07d738"
    assert CharTokenizer("\n ab語").digest == "9c88598b6215e8f848b94960d245832a37b85c644e4fdff8ce37107e4498ffd8"
    bpe = train_tokenizer(["aaabdaaabac"], TokenizerConfig(kind="bpe", vocab_size=260))
    assert bpe.digest == "f45d44f885e6129aaaf96e9153023da11801c452a662f16a447f296c2074cf47"


def test_different_vocabularies_have_different_digests() -> None:
    assert len({trained(kind, text).digest for kind in ("char", "bpe") for text in ("ab", "ac")}) == 3
    assert CharTokenizer("ab").digest != CharTokenizer("ba").digest


def test_a_tokenizer_cannot_be_changed(tokenizer: Tokenizer) -> None:
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
        tokenizer.vocab_size = 3  # type: ignore[misc]


@pytest.mark.parametrize("beyond", [-1, "vocab_size", 2**40, 2**70, -(2**70)])
def test_an_id_outside_the_vocabulary_is_named_with_its_position(tokenizer: Tokenizer, beyond: int | str) -> None:
    token = tokenizer.vocab_size if isinstance(beyond, str) else beyond
    with pytest.raises(UserError, match=rf"token id {token} at position 2 is outside the vocabulary"):
        tokenizer.decode([0, 1, token, 0])
    for look_up in (tokenizer.token_bytes, StreamDecoder(tokenizer).push):
        with pytest.raises(UserError, match=rf"token id {token} "):
            look_up(token)


def test_half_a_surrogate_pair_is_refused_with_its_position(tokenizer: Tokenizer) -> None:
    for text in ("fox\ud800", "語ox\udfff"):
        with pytest.raises(RequestError, match=r"half a surrogate pair \(U\+D[8F].{2}\) as character 4"):
            tokenizer.encode(text)


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_half_a_surrogate_pair_is_refused_in_training_too(kind: str) -> None:
    with pytest.raises(RequestError, match=r"half a surrogate pair \(U\+D800\) as character 4"):
        trained(kind, "fox\ud800")


# Characters


def test_a_character_alphabet_is_ordered_by_code_point_and_does_not_depend_on_the_order_of_the_texts() -> None:
    config = TokenizerConfig(kind="char")
    tokenizer = train_tokenizer(["z語a", "🙂\n"], config)
    assert isinstance(tokenizer, CharTokenizer)
    assert tokenizer.characters == "\naz語🙂"
    assert tokenizer == train_tokenizer(["🙂\na語z"], config)
    assert tokenizer.encode("語a\n").tolist() == [3, 1, 0]


def test_unknown_characters_are_listed_once_escaped_with_code_point_and_first_position() -> None:
    tokenizer = trained("char", "ab\n")
    with pytest.raises(UnknownCharacters) as caught:
        tokenizer.encode("a\x1b語b語\x1b")
    assert caught.value.characters == ("\x1b", "語")
    assert caught.value.exit_code == 2
    assert caught.value.message == (
        "the text has 2 characters that the vocabulary lacks:"
        " '\\x1b' (U+001B, first at character 2), '語' (U+8A9E, first at character 3)"
    )
    assert caught.value.kind == "unknown characters"


def test_of_many_unknown_characters_the_message_lists_a_few_and_counts_the_rest() -> None:
    with pytest.raises(UnknownCharacters, match=r"has 26 characters .* and 16 more$") as caught:
        trained("char", "A").encode("abcdefghijklmnopqrstuvwxyz")
    assert len(caught.value.characters) == 26


def test_unknown_characters_are_those_without_which_the_text_encodes() -> None:
    tokenizer = trained("char", "ab")
    text = "cabbage"
    unknown = tokenizer.unknown_characters(text)
    assert unknown == ["c", "g", "e"]
    assert tokenizer.decode(tokenizer.encode("".join(c for c in text if c not in unknown))) == "abba"


def test_bytes_and_bpe_know_every_character() -> None:
    for kind in ("byte", "bpe"):
        assert trained(kind, "a").unknown_characters(EVERY_WIDTH) == []


def test_an_empty_text_has_no_alphabet() -> None:
    with pytest.raises(UserError, match="the text is empty"):
        train_tokenizer(["", ""], TokenizerConfig(kind="char"))


def test_tiny_shakespeare_has_65_characters(shared_data: Path) -> None:
    text = (shared_data / "shakespeare.txt").read_text(encoding="utf-8")
    tokenizer = trained("char", text)
    assert tokenizer.vocab_size == 65
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("First Citizen:").tolist() == [18, 47, 56, 57, 58, 1, 15, 47, 58, 47, 64, 43, 52, 10]


def with_unknown(text: str, min_count: int = 1) -> Tokenizer:
    return train_tokenizer([text], TokenizerConfig(kind="char", unknown="token", min_count=min_count))


def test_unk_is_one_more_id_and_only_there_if_asked_for() -> None:
    assert trained("char", "ab").unk_id is None
    tokenizer = with_unknown("ab")
    assert (tokenizer.vocab_size, tokenizer.unk_id, tokenizer.token_bytes(2)) == (3, 2, b"")
    assert tokenizer.digest != trained("char", "ab").digest


@given(text=st.text(), alphabet=st.text(min_size=1))
def test_with_unk_every_text_encodes_and_what_is_lost_comes_back_as_replacement_characters(
    text: str, alphabet: str
) -> None:
    tokenizer = with_unknown(alphabet)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == "".join(c if c in alphabet else "\ufffd" for c in text)
    assert tokenizer.unknown_characters(text) == [c for c in dict.fromkeys(text) if c not in alphabet]
    stream = StreamDecoder(tokenizer)
    assert "".join([stream.push(token) for token in ids.tolist()] + [stream.flush()]) == tokenizer.decode(ids)


def test_rare_characters_fold_into_unk() -> None:
    tokenizer = with_unknown("aaabbc語", min_count=2)
    assert isinstance(tokenizer, CharTokenizer)
    assert tokenizer.characters == "ab"
    assert tokenizer.encode("cab語").tolist() == [2, 0, 1, 2]
    with pytest.raises(RequestError, match=r"tokenizer\.min_count 4 times: the most frequent one 3"):
        with_unknown("aaabbc", min_count=4)


def test_unk_survives_the_file(tmp_path: Path) -> None:
    tokenizer = with_unknown("ab語")
    tokenizer.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path / "tokenizer.json") == tokenizer
    assert tokenizer.encode("x語").tolist() == [3, 2]
    assert trained("char", "ab").encode("", allow_special=True).shape == (0,)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kind": "byte", "unknown": "token"}, r"needs tokenizer.kind \(byte\) to be char"),
        ({"kind": "bpe", "vocab_size": 300, "min_count": 2}, r"needs tokenizer.kind \(bpe\) to be char"),
        ({"kind": "char", "min_count": 2}, r"needs tokenizer.unknown \(error\) to be token"),
    ],
)
def test_settings_of_unk_that_have_no_meaning_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenizerConfig.model_validate(keys)


def test_a_file_without_unk_is_not_taken_for_one_with_it(tmp_path: Path) -> None:
    trained("char", "ab").save(tmp_path / "tokenizer.json")
    with pytest.raises(RequestError, match=r"unknown is token, but the tokenizer has unknown error"):
        train_tokenizer([], TokenizerConfig(kind="char", unknown="token", file=str(tmp_path / "tokenizer.json")))


# Bytes


def test_byte_ids_are_the_bytes_of_utf8() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.vocab_size == 256
    assert tokenizer.encode(EVERY_WIDTH).tolist() == list(EVERY_WIDTH.encode())
    assert tokenizer.decode(list(b"a\xff\xc3")) == "a\ufffd\ufffd"


# Files: a ready one in the config, and damaged ones


def test_the_file_of_a_config_is_taken_as_it_is(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    config = TokenizerConfig.model_validate({"kind": tokenizer.kind, "file": str(path)})
    assert train_tokenizer(["other text"], config) == tokenizer


def test_a_file_of_another_kind_or_size_than_the_config_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    trained("bpe", "text").save(path)
    with pytest.raises(RequestError, match=r"kind is char, but the tokenizer has kind bpe"):
        train_tokenizer([], TokenizerConfig(kind="char", file=str(path)))
    with pytest.raises(RequestError, match=r"vocab_size is 512, but the tokenizer has vocab_size 257"):
        train_tokenizer([], TokenizerConfig(kind="bpe", vocab_size=512, file=str(path)))
    with pytest.raises(RequestError, match="does not exist"):
        train_tokenizer([], TokenizerConfig(kind="char", file=str(tmp_path / "nothing.json")))


@pytest.mark.parametrize(
    ("kind", "keys", "way_out"),
    [
        ("char", {"kind": "byte"}, "tokenizer.kind=char"),
        ("bpe", {"kind": "bpe", "vocab_size": 300}, "tokenizer.vocab_size=257"),
        ("bpe", {"kind": "bpe", "pattern": "o200k"}, "tokenizer.pattern=gpt2"),
        ("char", {"kind": "char", "unknown": "token"}, "tokenizer.unknown=error"),
        ("char", {"kind": "char", "file": "other.json"}, "tokenizer.file=store"),
    ],
)
def test_the_first_key_of_a_config_that_a_tokenizer_contradicts_is_named_with_the_value_it_has(
    kind: str, keys: dict[str, Any], way_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trained("char", "other").save(Path("other.json"))
    tokenizer = trained(kind, "text")
    with pytest.raises(RequestError) as caught:
        check_tokenizer(tokenizer, TokenizerConfig.model_validate(keys), "store")
    assert (caught.value.suggestion, caught.value.where) == (way_out, "store")
    check_tokenizer(tokenizer, TokenizerConfig.model_validate({"kind": kind}), "store")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe\x00", "can't decode byte"),
        (b"PK\x03\x04", "Expecting value"),
        (b"[" * 200_000, "nested too deep"),
        (b'{"format": ' * 100_000, "nested too deep"),
        (b"[1, 2, 3]", "not a JSON object"),
        (b'{"format": "gpt-char-2", "characters": "ab"}', "gpt-char-2"),
        (b'{"format": "gpt-char-1"}', "gpt-char-1"),
        (b'{"format": "gpt-char-1", "characters": ["a"]}', "gpt-char-1"),
        (b'{"format": "gpt-char-1", "characters": "ab", "more": 1}', "gpt-char-1"),
        (b'{"format": "gpt-char-1", "characters": "ab", "unknown": 1}', "gpt-char-1"),
        (b'{"format": "gpt-char-1", "characters": "ab", "characters": "cd"}', "twice"),
        (b'{"format": "gpt-char-1", "characters": ""}', "empty"),
        (b'{"format": "gpt-char-1", "characters": "aba"}', r"U\+0061 is in the alphabet twice"),
        (rb'{"format": "gpt-char-1", "characters": "a\ud800"}', "surrogates not allowed"),
        (b'{"format": "gpt-byte-1", "vocab_size": NaN}', "gpt-byte-1"),
        (b'{"format": "gpt-byte-1", "n": ' + b"9" * 10_000 + b"}", "integer"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused_with_the_reason(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"no tokenizer that gpt can use: .*{reason}") as caught:
        load_tokenizer(path)
    assert caught.value.where == str(path)
    assert len(caught.value.message) < 300


def test_a_missing_tokenizer_file_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_a_mutated_tokenizer_file_is_refused_or_still_lossless(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A damaged file can be a valid one; what loads keeps every promise, and what does not says so."""
    path = tmp_path / "tokenizer.json"
    saved = tokenizer.to_json()
    chance = random.Random(1)
    refused = 0
    for i in range(400):
        path.write_bytes(mutated_bytes(saved.encode(), chance) if i % 2 else mutated_json(saved, chance).encode())
        try:
            loaded = load_tokenizer(path)
        except UserError:  # any other exception fails the test
            refused += 1
            continue
        chars = "".join(c for c in EVERY_WIDTH + PANGRAM if c not in loaded.unknown_characters(EVERY_WIDTH + PANGRAM))
        assert loaded.decode(loaded.encode(chars)) == chars
    assert refused > 100


def mutated_bytes(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return chance.choice(
        [
            data[:at],
            data[:at] + data[at + 1 :],
            data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :],
            data[:at] + data[at : at + 9] + data[at:],
            data[:at] + chance.randbytes(4) + data[at:],
        ]
    )


def mutated_json(text: str, chance: random.Random) -> str:
    """The file with one random node replaced, removed or doubled: valid JSON, so that deeper checks are reached."""
    file = json.loads(text)
    node: Any = file
    while True:
        key = chance.choice(list(node)) if isinstance(node, dict) else chance.randrange(len(node))
        if not isinstance(node[key], dict | list) or not node[key] or chance.random() < 0.2:
            break
        node = node[key]
    match chance.randrange(3):
        case 0:
            node[key] = chance.choice(
                [None, True, -1, 0, 300, 2**40, 0.5, "", "a", "Ġ", "\x00", [], {}, ["a", "b"], [[]]]
            )
        case 1:
            del node[key]
        case 2 if isinstance(node, list):
            node.insert(0, node[key])
        case 2:
            node["x"] = node[key]
    return json.dumps(file)


# Facts for tables


def test_ids_are_counted_and_those_that_never_occur_are_unused() -> None:
    counts = vocab_stats.count_ids(np.array([3, 1, 3], dtype=np.uint16), vocab_size=5)
    assert counts.tolist() == [0, 1, 0, 2, 0]
    assert np.flatnonzero(counts == 0).tolist() == [0, 2, 4]


def test_longest_tokens_are_those_with_the_most_bytes() -> None:
    assert vocab_stats.longest_tokens(CharTokenizer("aé語b🙂"), limit=3) == [4, 2, 1]


def test_a_quoted_token_shows_spaces_and_hides_nothing_that_drives_a_terminal() -> None:
    assert vocab_stats.repr_token(b" the") == "' the'"
    assert vocab_stats.repr_token(b"\x1b[2J\n") == r"'\x1b[2J\n'"
    assert vocab_stats.repr_token("語".encode()) == "'語'"
    assert vocab_stats.repr_token(b"\xe8\xaa") == r"'\xe8\xaa'"
