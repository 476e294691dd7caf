"""GGUF files of imported models: their fields by the real library, their ids as llama.cpp gave them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt_cli.errors import RequestError
from gpt_cli.export.gguf import export_gguf
from gpt_cli.export.gguf_reading import import_gguf
from gpt_cli.export.gguf_vocabulary import gguf_vocabulary
from gpt_cli.run.load_model import load_model
from gpt_cli.tokenizer import ForeignTokenizer
from tests.support.export_models import make_run
from tests.support.foreign_gguf import FLAGS, IDS, TEXTS, foreign_tokenizer, measured

gguf = pytest.importorskip("gguf", reason="the extra [gguf] is not installed")

KINDS = ["bpe", "bpe as gpt4"]
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['role'] + ': ' + m['content'] + eos_token }}{% endfor %}"


def kept(kind: str) -> list[list[Any]]:
    rows: list[list[Any]] = json.loads(IDS.read_text())[kind]
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_each_text_has_the_ids_that_llama_cpp_gave_it(kind):
    tokenizer = foreign_tokenizer(kind)
    assert [text for text, _, _ in kept(kind)] == list(TEXTS)
    for text, prompt, plain in kept(kind):
        assert tokenizer.encode_prompt(text).tolist() == prompt, text
        assert tokenizer.encode(text).tolist() == plain, text


@pytest.mark.parametrize("kind", KINDS)
def test_the_kept_ids_are_those_of_llama_cpp(kind):
    library = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    assert [list(row) for row in measured(library, kind)] == kept(kind)


def test_the_file_says_what_the_tokens_are_where_texts_begin_and_end_and_what_pads(tmp_path: Path):
    tokenizer = foreign_tokenizer("bpe", chat_template=TEMPLATE)
    export_gguf(make_run({}, tokenizer), tmp_path / "model.gguf")
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    keys = {key.removeprefix("tokenizer.ggml."): field.contents() for key, field in fields.items()}
    ids = {token["content"]: token["id"] for token in tokenizer.added_tokens}
    types = {keys["tokens"][i]: gguf.TokenType(kind).name for i, kind in enumerate(keys["token_type"])}
    special = {text: types[text] for text in ids}
    assert special == {text: "USER_DEFINED" if text in ("<bot>:", "two words") else "CONTROL" for text in ids}
    assert {kind for text, kind in types.items() if text.startswith("[PAD")} == {"UNUSED"}
    assert len(keys["tokens"]) == tokenizer.vocab_size
    names = ("bos_token_id", "eos_token_id", "eot_token_id", "padding_token_id", "add_bos_token")
    expected = (ids["<s>"], ids["</s>"], ids["<|im_end|>"], ids["<pad>"], True)
    assert tuple(keys[name] for name in names) == expected
    assert keys["tokenizer.chat_template"] == TEMPLATE


@pytest.mark.parametrize("fields", [{}, {"chat_template": TEMPLATE}, {"ends": ()}])
def test_an_imported_tokenizer_comes_back_from_its_file(fields, tmp_path: Path):
    tokenizer = foreign_tokenizer("bpe", **fields)
    export_gguf(make_run({}, tokenizer), tmp_path / "model.gguf")
    import_gguf(tmp_path / "model.gguf", tmp_path / "run")
    assert load_model(tmp_path / "run", torch.device("cpu"), print).tokenizer == tokenizer


def changed(tokenizer: ForeignTokenizer, **parts: Any) -> ForeignTokenizer:
    return replace(tokenizer, file=json.dumps({**json.loads(tokenizer.file), **parts}))


def with_added(tokenizer: ForeignTokenizer, *texts: str, **flags: bool) -> ForeignTokenizer:
    first = 1 + max(token["id"] for token in tokenizer.added_tokens)
    tokens = [{"id": first + i, "content": text, "special": False, **FLAGS, **flags} for i, text in enumerate(texts)]
    return changed(replace(tokenizer, size=400), added_tokens=[*tokenizer.added_tokens, *tokens])


@pytest.mark.parametrize("feature", ["normalizer", "flags", "overlap", "ends"])
def test_what_llama_cpp_does_not_have_is_refused(feature):
    tokenizer = foreign_tokenizer("bpe")
    refused = {
        "normalizer": (changed(tokenizer, normalizer={"type": "NFC"}), "normalizer"),
        "flags": (with_added(tokenizer, "[x]", single_word=True), "around them"),
        "overlap": (with_added(tokenizer, "abc", "cde"), "'abc' and 'cde'"),
        "ends": (replace(tokenizer, ends=(1, 2, 3, 4)), "3 end tokens"),
    }
    changed_tokenizer, message = refused[feature]
    with pytest.raises(RequestError, match=message):
        gguf_vocabulary(changed_tokenizer)
