"""tiktoken's rank files: one token a line, its bytes in base64 and its rank, which is its id.

OpenAI publishes r50k_base (GPT-2 and GPT-3), p50k_base (Codex), cl100k_base (GPT-4) and o200k_base (GPT-4o) so. The
file has neither the split pattern nor the special tokens; those of the published ones are known by their sha256.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpt_cli.errors import RequestError
from gpt_cli.literals import Pattern
from gpt_cli.tokenizer.bpe_vocabulary import END_OF_TEXT, Vocabulary

_LINE = re.compile(rb"([A-Za-z0-9+/]+={0,2}) ([0-9]{1,9})")
_MAX_TOKEN = 256  # bytes of a token; the longest published one has 128


@dataclass(frozen=True)
class _Published:
    pattern: Pattern
    special: Mapping[str, int]


_FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_PUBLISHED = {
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930": _Published("gpt2", {END_OF_TEXT: 50_256}),
    "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069": _Published("gpt2", {END_OF_TEXT: 50_256}),
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": _Published(
        "gpt4",
        {END_OF_TEXT: 100_257, **dict(zip(_FIM, range(100_258, 100_261), strict=True)), "<|endofprompt|>": 100_276},
    ),
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": _Published(
        "o200k", {END_OF_TEXT: 199_999, "<|endofprompt|>": 200_018}
    ),
}


def is_tiktoken(data: bytes) -> bool:
    """True if the first line is one of a rank file."""
    return _LINE.fullmatch(data.partition(b"\n")[0].rstrip(b"\r")) is not None


def read_tiktoken(data: bytes, pattern: Pattern | None) -> Vocabulary:
    """The vocabulary of a rank file. One that is not published gets `<|endoftext|>` as its last id.

    The merges are not in the file; they are those that `bpe_merge` of tiktoken would do. Ids that a published
    vocabulary does not use become special tokens, `<|unused_100256|>`.

    Raises ValueError for a damaged file, RequestError for an unpublished one without `pattern`.
    """
    ranks = _read_lines(data)
    published = _PUBLISHED.get(hashlib.sha256(data).hexdigest())
    if published is None:
        if sorted(ranks.values()) != list(range(len(ranks))):
            raise ValueError(f"the ranks of its {len(ranks)} tokens are not 0 to {len(ranks) - 1}")
        if pattern is None:
            raise RequestError(
                "a rank file does not say how it splits text, and this is none of those that OpenAI publishes",
                kind="set",
                keys=["tokenizer.pattern"],
                choices=["gpt4", "gpt2", "o200k"],
            )
        published = _Published(pattern, {END_OF_TEXT: len(ranks)})
    tokens = {rank: token for token, rank in ranks.items()}
    special = {i: text for text, i in published.special.items()}
    special |= {i: f"<|unused_{i}|>" for i in range(max([*tokens, *special])) if i not in tokens and i not in special}
    if conflict := next((text for text in special.values() if text.encode() in ranks), None):
        raise ValueError(f"it has {conflict!r} as an ordinary token")
    merges, has_unmerged = _recover_merges(ranks)
    return Vocabulary(
        tokens=tuple(tokens[i] if i in tokens else special[i].encode() for i in range(len(tokens) + len(special))),
        merges=tuple(merges),
        special=frozenset(special),
        pattern=published.pattern,
        ignore_merges=has_unmerged,
    )


def _read_lines(data: bytes) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} is not a token in base64 and its rank")
        token = base64.b64decode(match[1], validate=True)
        if token in ranks:
            raise ValueError(f"line {number} has a token that was there before")
        if len(token) > _MAX_TOKEN:
            raise ValueError(f"line {number} has a token of {len(token)} bytes")
        ranks[token] = int(match[2])
    if len(set(ranks.values())) < len(ranks):
        raise ValueError("two tokens have the same rank")
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise ValueError(f"it has no token for the byte 0x{missing[0]:02x}, so there are texts it cannot encode")
    return ranks


def _recover_merges(ranks: dict[bytes, int]) -> tuple[list[tuple[int, int, int]], bool]:
    """(the merge of each token, by rank; True if there are tokens that no merge produces).

    tiktoken merges any two neighbours that make a token, lower ranks first. Lower ranks split the bytes of a token
    into the same parts wherever these stand, so if they are two, no other pair ever makes it. A token in more
    parts is only found as a whole word, which tiktoken looks up first (`ignore_merges`).
    """
    merges = []
    has_unmerged = False
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            parts = _split(token, rank, ranks)
            if len(parts) == 2:
                merges.append((ranks[parts[0]], ranks[parts[1]], rank))
            else:
                has_unmerged = True
    return merges, has_unmerged


def _split(token: bytes, limit: int, ranks: dict[bytes, int]) -> list[bytes]:
    """The parts of a token after the merges of ranks below `limit`."""
    parts = [token[i : i + 1] for i in range(len(token))]
    pairs = [ranks.get(token[i : i + 2], limit) for i in range(len(token) - 1)]
    while len(parts) > 2 and (lowest := min(pairs)) < limit:
        i = pairs.index(lowest)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
        del pairs[i]
        if i > 0:
            pairs[i - 1] = ranks.get(parts[i - 1] + parts[i], limit)
        if i < len(pairs):
            pairs[i] = ranks.get(parts[i] + parts[i + 1], limit)
    return parts
