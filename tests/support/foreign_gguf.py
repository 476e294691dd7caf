"""Tokenizers of imported models that llama.cpp runs, and the ids that it gave: `python -m tests.support.foreign_gguf`.

Run again, with llama-cpp-python, after a change of the tokenizers or texts; the tests compare the kept ids without it.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpt_cli.export.gguf import export_gguf
from gpt_cli.tokenizer import ForeignTokenizer
from tests.support.export_models import TOKENIZERS, make_run

IDS = Path(__file__).parent / "llama_cpp_ids.json"
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
TEXTS = (
    "The quick brown fox",
    "<s>The</s> <bot>:hi<bot>: two words",
    "<|im_start|>user\n'tis 12345 <|im_end|>",
    "  naïve — 日本 \U0001f642\n\n\t x<bot>",
)


def foreign_tokenizer(kind: str, **fields: Any) -> ForeignTokenizer:
    """A byte-level BPE that puts `<s>` before each text, with an ordinary added token and special ones."""
    file = json.loads(TOKENIZERS[kind].to_json())
    size = TOKENIZERS[kind].vocab_size
    special, ordinary = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<pad>"], ["<bot>:", "two words"]
    ids = {text: size + i for i, text in enumerate([*special, *ordinary])}
    file["added_tokens"] += [{"id": ids[text], "content": text, "special": text in special, **FLAGS} for text in ids]
    begin = {"id": "<s>", "ids": [ids["<s>"]], "tokens": ["<s>"]}
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    file["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": {"<s>": begin},
    }
    values: dict[str, Any] = {
        "size": size + 10,
        "ends": (ids["</s>"], ids["<|im_end|>"]),
        "named": (("bos_token", "<s>"), ("eos_token", "</s>"), ("pad_token", "<pad>")),
    }
    return ForeignTokenizer(json.dumps(file), **{**values, **fields})


def measured(library: Any, kind: str) -> Iterator[tuple[str, list[int], list[int]]]:
    """(text, its ids as a prompt, its ids with the text of special tokens as text) of llama.cpp."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        export_gguf(make_run({"context_length": 64}, foreign_tokenizer(kind)), file)
        model = library.Llama(str(file), n_ctx=64, verbose=False, vocab_only=True)
        for text in TEXTS:
            data = text.encode()
            yield text, model.tokenize(data, special=True), model.tokenize(data, add_bos=False, special=False)


def main() -> None:
    import llama_cpp

    kept = {kind: list(measured(llama_cpp, kind)) for kind in ("bpe", "bpe as gpt4")}
    IDS.write_text(json.dumps({"llama-cpp-python": llama_cpp.__version__, **kept}) + "\n")


if __name__ == "__main__":
    main()
