"""Tokens of a corpus, a text or ids: objects for JSON, and tables for the terminal."""

from pathlib import Path
from typing import Any

from gpt_cli.corpus.tokenize_pipeline import Tokenized
from gpt_cli.terminal.table import render_pairs, render_table
from gpt_cli.tokenizer import BPETokenizer, Tokenizer
from gpt_cli.tokenizer.vocab_stats import longest_tokens

UNKNOWN = "<unk>"  # how a table shows the token; in text it is U+FFFD
_SHOWN = 10  # longest tokens, and merges
_UNITS = ("characters", "bytes", "tokens")


def describe_tokens(corpus: Tokenized, out: Path) -> dict[str, Any]:
    """Statistics of a corpus's tokens, as --json prints them."""
    tokenizer, counts = corpus.tokenizer, corpus.counts
    splits: dict[str, dict[str, Any]] = {
        split: {unit: getattr(stats, unit) for unit in _UNITS} for split, stats in corpus.stats.items()
    }
    splits["all"] = {unit: sum(part[unit] for part in splits.values()) for unit in _UNITS}
    learned = tokenizer.vocabulary.merges[:_SHOWN] if isinstance(tokenizer, BPETokenizer) else ()
    text = {token: _readable(tokenizer.token_bytes(token)) for merge in learned for token in merge}
    return {
        "out": out,
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer_sha256": tokenizer.digest,
        "text_sha256": corpus.fingerprint,
        "splits": {
            split: {**part, "bytes_per_token": part["bytes"] / part["tokens"]} for split, part in splits.items()
        },
        "unused_ids": (counts == 0).nonzero()[0].tolist(),
        "unknown_characters": None if tokenizer.unk_id is None else int(counts[tokenizer.unk_id]),
        "longest_tokens": [{"id": id, "text": _piece(tokenizer, id)} for id in longest_tokens(tokenizer, _SHOWN)],
        "merges": [
            {"left": text[left], "right": text[right], "id": merged, "count": int(counts[merged])}
            for left, right, merged in learned
        ],
    }


def describe_encoding(tokenizer: Tokenizer, text: str, *, allow_special: bool) -> dict[str, Any]:
    """The tokens of a text, as --json prints them."""
    encoded = tokenizer.encode(text, allow_special=True) if allow_special else tokenizer.encode_prompt(text)
    ids = [int(token) for token in encoded]
    return {"ids": ids, "pieces": [_piece(tokenizer, token) for token in ids], "bytes": len(text.encode())}


def _piece(tokenizer: Tokenizer, token: int) -> str:
    """The text of a token."""
    special = UNKNOWN if token == tokenizer.unk_id else tokenizer.decode([token])
    return _readable(tokenizer.token_bytes(token)) or special


def _readable(token: bytes) -> str:
    """The text of a token's bytes; those that are only a part of a character as \\xe2."""
    return token.decode(errors="backslashreplace")


def render_tokens(result: dict[str, Any]) -> str:
    """The tables of `result`, as JSON has it; the text of ids as it is."""
    parts = []
    if "splits" in result:
        splits: dict[str, dict[str, Any]] = result["splits"]
        rows = [
            (unit.replace("_", " "), *(part[unit] for part in splits.values())) for unit in (*_UNITS, "bytes_per_token")
        ]
        longest = " ".join(f"'{token['text']}'" for token in result["longest_tokens"])
        pairs: dict[str, object] = {"tokenizer": result["kind"], "ids": f"{result['vocab_size']:,}"}
        if (unknown := result["unknown_characters"]) is not None:
            share = unknown / splits["all"]["characters"]
            pairs["unknown"] = f"{unknown:,} characters ({share:.2%}) became {UNKNOWN}, which cannot be decoded"
        pairs |= {"unused ids": f"{len(result['unused_ids']):,}", "longest tokens": longest}
        parts += [render_table(rows, header=("", *splits)), "", render_pairs(pairs)]
    if result.get("merges"):
        rows = [(f"'{m['left']}' + '{m['right']}'", m["id"], m["count"]) for m in result["merges"]]
        parts += ["", render_table(rows, header=("first merges", "id", "occurs"))]
    if (encoding := result.get("encoding")) is not None:
        pieces = " ".join(f"'{piece}'" for piece in encoding["pieces"])
        parts.append(render_pairs({"ids": " ".join(map(str, encoding["ids"])), "tokens": pieces}))
    return "\n".join([*parts, *([result["decoding"]] if "decoding" in result else [])])
