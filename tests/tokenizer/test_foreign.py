"""Tokenizers of imported models: the same ids and texts as the library that made their files, and what needs more."""

import json
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as HFTokenizer

from gpt_cli.corpus.encode import LONGEST_WHOLE, CutRule, encode_stream, encode_texts
from gpt_cli.errors import RequestError, UserError
from gpt_cli.tokenizer import ForeignTokenizer, StreamDecoder, load_tokenizer
from gpt_cli.tokenizer.hf_directory import read_hf_directory
from gpt_cli.tokenizer.loader import parse_tokenizer

TEXT = topics["if"] + topics["class"] + topics["strings"] + "naïve café, 日本語 \u0301"
SAMPLES = (
    "",
    "The class statement",
    " if x:\n    return 8 ",
    "<s>hi</s>",
    "a<bot>:b",
    "é 🎉 e\u0301 日本",
    "A  B\t\n",
    "\x00\u2028",
)


def trained(tokenizer: HFTokenizer, **options: Any) -> HFTokenizer:
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<s>", "</s>"], show_progress=False, **options)
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def byte_level(*, prefix_space: bool = False) -> HFTokenizer:
    tokenizer = HFTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return trained(tokenizer, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def with_begin(tokenizer: HFTokenizer) -> HFTokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def normalized() -> HFTokenizer:
    tokenizer = with_begin(byte_level(prefix_space=True))
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def with_added() -> HFTokenizer:
    tokenizer = with_begin(byte_level())
    flagged = AddedToken("[x]", lstrip=True, rstrip=True, single_word=True)
    tokenizer.add_tokens(["<bot>:", "é", "two words", flagged])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    return tokenizer


def byte_fallback() -> HFTokenizer:
    """As SentencePiece's files are converted: Llama 2, Mistral, Gemma."""
    learned = HFTokenizer(models.BPE())
    learned.normalizer = normalizers.Replace(" ", "▁")
    trained(learned)
    file = json.loads(learned.to_str())
    vocab = file["model"]["vocab"]
    for text in ("<unk>", *(f"<0x{byte:02X}>" for byte in range(256))):
        vocab[text] = len(vocab)
    file["model"] |= {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    tokenizer = HFTokenizer.from_str(json.dumps(file))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    return with_begin(tokenizer)


MAKERS = {
    "plain": byte_level,
    "begin": lambda: with_begin(byte_level()),
    "prefix space, NFC": normalized,
    "added": with_added,
    "byte fallback": byte_fallback,
}


@pytest.fixture(scope="module", params=MAKERS)
def theirs(request: pytest.FixtureRequest) -> HFTokenizer:
    return MAKERS[request.param]()


@pytest.fixture(scope="module")
def ours(theirs: HFTokenizer) -> ForeignTokenizer:
    return foreign(theirs)


def foreign(tokenizer: HFTokenizer, **fields: Any) -> ForeignTokenizer:
    return ForeignTokenizer(tokenizer.to_str(), tokenizer.get_vocab_size(), **fields)


@pytest.mark.parametrize("text", SAMPLES)
def test_ids_and_texts_are_those_of_the_library(theirs, ours, text):
    ids = theirs.encode(text).ids
    assert ours.encode_prompt(text).tolist() == ids
    assert ours.encode(text, allow_special=True).tolist() == theirs.encode(text, add_special_tokens=False).ids
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("text", SAMPLES)
def test_ordinary_text_has_the_ids_of_the_library_that_splits_special_tokens(theirs, ours, text):
    splitting = HFTokenizer.from_str(theirs.to_str())
    splitting.encode_special_tokens = True
    assert ours.encode(text).tolist() == splitting.encode(text, add_special_tokens=False).ids


def test_its_file_is_read_back_as_an_equal_tokenizer(ours):
    assert parse_tokenizer(ours.to_json()) == ours
    assert parse_tokenizer(ours.to_json()).digest == ours.digest


@given(st.data())
def test_a_stream_is_the_text_of_the_whole_after_the_prompt(data):
    name = data.draw(st.sampled_from(list(FOREIGN)))
    tokenizer = FOREIGN[name]
    token = st.integers(0, tokenizer.vocab_size - 1)
    prompt, ids = data.draw(st.lists(token, max_size=6)), data.draw(st.lists(token, max_size=30))
    if name == "byte fallback":  # bytes of whole characters, of which the library makes a text
        text = data.draw(st.text())
        prompt, ids = tokenizer.encode_prompt("a").tolist(), tokenizer.encode_part(text).tolist()
    before, whole = tokenizer.decode_shown(prompt), tokenizer.decode_shown(prompt + ids)
    if before.endswith("\ufffd"):
        return  # the prompt ends inside a character, which no text does
    stream = StreamDecoder(tokenizer, prompt)
    pieces = [stream.push(one) for one in ids]
    assert before + "".join(pieces) + stream.flush() == whole


def test_characters_that_are_out_stay_where_the_bytes_after_them_are_invalid():
    tokenizer = FOREIGN["byte fallback"]
    bytes_of = {byte: tokenizer.encode(chr(byte)).tolist()[-1] for byte in b"\x01\x02"}
    invalid = tokenizer.encode("\xff").tolist()[-2]  # 0xC3, which begins a character
    stream = StreamDecoder(tokenizer, tokenizer.encode_prompt("a"))
    pieces = [stream.push(token) for token in (bytes_of[1], invalid, bytes_of[2])]
    assert (pieces, stream.flush()) == (["\x01", "", ""], "\ufffd\ufffd")


def test_a_character_that_is_held_back_is_counted_before_a_token_that_does_not_continue_it():
    tokenizer = FOREIGN["byte fallback"]
    first, second, third = tokenizer.encode_part("€").tolist()
    letter = tokenizer.encode_part("\x01").tolist()[-1]
    stream, places, n = StreamDecoder(tokenizer, tokenizer.encode_prompt("a")), [], 0
    for token in (first, second, third, letter, first, *tokenizer.encode_part("class").tolist()[:1]):
        places.append(n + stream.held_before(token))
        n += len(stream.push(token))
    assert places == [0, 0, 0, 1, 2, 3]


@given(st.data())
def test_a_part_of_a_text_has_no_space_before_it(data):
    tokenizer = data.draw(st.sampled_from(list(FOREIGN.values())))
    ids = [*tokenizer.encode_prompt("The").tolist(), *tokenizer.encode_part("class").tolist()]
    assert tokenizer.decode_shown(ids).strip() == "Theclass"


@given(st.data())
def test_the_bytes_of_the_tokens_of_a_text_are_those_of_its_decoding(data):
    tokenizer = data.draw(st.sampled_from(list(FOREIGN.values())))
    text = data.draw(st.text())
    ids = tokenizer.encode(text).tolist()
    decoded = tokenizer.decode_shown(ids)
    joined = b"".join(map(tokenizer.token_bytes, ids)).decode(errors="replace")
    assert decoded in (joined, joined.removeprefix(" "))  # some decoders take away the space that was put before


@given(st.data())
def test_spans_cover_the_text_and_carry_the_ids_of_a_prompt(data):
    tokenizer = data.draw(st.sampled_from(list(FOREIGN.values())))
    text = data.draw(st.one_of(st.text(), st.sampled_from(SAMPLES)))
    ids, starts = tokenizer.encode_spans(text)
    assert ids.tolist() == tokenizer.encode_prompt(text).tolist()
    assert len(starts) == len(ids) + 1
    assert (starts[0], starts[-1]) == (0, len(text.encode()) if len(ids) else 0)
    assert (np.diff(starts) >= 0).all()


@pytest.mark.parametrize("split", [False, True])
def test_a_prompt_names_special_tokens_if_it_may_or_the_tokenizer_lets_it(split):
    tokenizer = foreign(with_begin(byte_level()), split_special=split)
    begin = tokenizer.decode(tokenizer.begin_ids)
    text = f"a{begin}b é"
    letters = tokenizer.encode("a").tolist(), tokenizer.encode("b é").tolist()
    named = [*tokenizer.begin_ids, *letters[0], *tokenizer.begin_ids, *letters[1]]
    assert tokenizer.encode_prompt(text, allow_special=True).tolist() == named
    assert (tokenizer.encode_prompt(text).tolist() == named) != split
    for allow_special in (False, True):
        ids, starts = tokenizer.encode_spans(text, allow_special=allow_special)
        assert ids.tolist() == tokenizer.encode_prompt(text, allow_special=allow_special).tolist()
        assert starts[-1] == len(text.encode())


@given(st.data())
def test_a_text_that_comes_in_pieces_has_the_ids_of_the_whole_after_its_begin_token(data):
    tokenizer = data.draw(st.sampled_from(list(FOREIGN.values())))
    pieces = data.draw(st.lists(st.text()))
    expected = [*tokenizer.begin_ids, *tokenizer.encode("".join(pieces)).tolist()]
    assert encode_stream(tokenizer, pieces).tolist() == expected


def test_a_document_begins_with_the_begin_token_and_ends_with_the_first_end():
    tokenizer = foreign(with_begin(byte_level()), ends=(1, 0))
    ids, lengths = encode_texts(tokenizer, [b"hi", b" ho"], [True, False], [False, True], allow_special=False)
    expected = [0, *tokenizer.encode("hi").tolist(), *tokenizer.encode(" ho").tolist(), 1]
    assert (ids.tolist(), lengths.sum()) == (expected, len(expected))


def test_long_documents_are_encoded_in_parts_only_where_that_changes_no_id():
    assert CutRule.of(FOREIGN["begin"], allow_special=False).pattern == "gpt2"
    for name in ("added", "byte fallback", "prefix space, NFC"):
        rule = CutRule.of(FOREIGN[name], allow_special=False)
        assert rule.last_cut_utf8(b"some text " * 100) == 0
        with pytest.raises(UserError, match="as a whole"):
            rule.last_cut_utf8(bytes(LONGEST_WHOLE + 1))


def test_ids_without_a_token_have_no_text():
    tokenizer = byte_level()
    padded = ForeignTokenizer(tokenizer.to_str(), 512)
    assert padded.decode([511, *padded.encode("a").tolist(), 510]) == "a"
    assert padded.token_bytes(511) == b""


def test_a_decoder_that_joins_tokens_by_their_neighbours_has_no_bytes_and_says_so_by_name():
    tokenizer = HFTokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    wordpiece = foreign(tokenizer)
    stream = StreamDecoder(wordpiece, [1])
    assert "".join(map(stream.push, [2, 1])) + stream.flush() == "b a"
    with pytest.raises(RequestError, match="WordPiece"):
        wordpiece.token_bytes(1)


def test_dropout_which_draws_the_ids_is_refused():
    file = json.loads(byte_level().to_str())
    file["model"]["dropout"] = 0.1
    with pytest.raises(ValueError, match="dropout"):
        ForeignTokenizer(json.dumps(file), 500)


def test_ids_are_those_of_the_library_which_leaves_no_gaps(tmp_path: Path):
    file = json.loads(byte_level().to_str())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    file["added_tokens"].append({"id": 700, "content": "<end>", "special": True, **flags})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    tokenizer = read_hf_directory(tmp_path, json.dumps(file), 800)
    assert tokenizer.ends == (400,)
    assert tokenizer.encode("<end>", allow_special=True).tolist() == [400]
    assert tokenizer.special_ids == {0, 1, 400}


@pytest.mark.parametrize(
    "change",
    [
        {"size": 10},
        {"ends": [999]},
        {"ends": ["1"]},
        {"named": {"bos_token": 3}},
        {"tokenizer": {}},
        {"tokenizer": {"model": []}},
        {"surprise": 1},
    ],
)
def test_a_damaged_file_of_a_run_is_refused(change):
    with pytest.raises(ValueError, match=r"format|id|token|library|read"):
        parse_tokenizer(json.dumps({**json.loads(FOREIGN["begin"].to_json()), **change}))


@pytest.mark.parametrize(
    "parts",
    [
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "a"]]}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"added_tokens": [5]},
        {"model": {"type": "Surprise", "vocab": {}}},
    ],
)
def test_a_file_that_the_library_cannot_read_or_panics_at_is_refused(parts, tmp_path: Path):
    with pytest.raises(ValueError, match=r"read|tokens"):
        read_hf_directory(tmp_path, json.dumps({**json.loads(byte_level().to_str()), **parts}), 500)


def test_text_that_the_library_cannot_encode_is_an_error():
    tokenizer = HFTokenizer(models.Unigram([("a", -1.0)], None))
    with pytest.raises(RequestError, match="cannot encode the text"):
        foreign(tokenizer).encode_prompt("龍")


def test_a_file_that_loses_no_text_is_a_tokenizer_file_and_another_is_refused(tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    path.write_text(with_begin(byte_level()).to_str())
    assert load_tokenizer(path).kind == "hf"
    path.write_text(normalized().to_str())
    with pytest.raises(UserError, match="normalizer"):
        load_tokenizer(path)


def test_what_a_directory_says_about_special_tokens_counts(tmp_path: Path):
    config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "lstrip": False},
        "pad_token": "<pad>",
        "add_bos_token": True,  # of no effect beside a tokenizer.json
        "extra_special_tokens": ["<|im_end|>"],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [401, 1, 7_000]}))
    tokenizer = read_hf_directory(tmp_path, byte_level().to_str(), 448)
    pad, end = tokenizer.encode("<pad><|im_end|>", allow_special=True).tolist()
    assert (pad, tokenizer.named_id("pad_token")) == (400, 400)
    assert tokenizer.ends == (1, end)
    assert tokenizer.encode_prompt("a").tolist() == tokenizer.encode("a").tolist()


FOREIGN = {name: foreign(make()) for name, make in MAKERS.items()}
