"""tiktoken's rank files: one token a line, its bytes in base64 and its rank, which is its id.

OpenAI publishes r50k_base (GPT-2 and GPT-3), p50k_base (Codex), cl100k_base (GPT-4) and o200k_base (GPT-4o) so. The
file has neither the split pattern nor the special tokens; those of the published ones are known by their sha256.
"""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

from gpt_cli.errors import RequestError
from gpt_cli.literals import Pattern
from gpt_cli.tokenizer.bpe_vocabulary import END_OF_TEXT, Vocabulary

_LINE = re.compile(rb"([A-Za-z0-9+/]+={0,2}) ([0-9]{1,9})")
_MAX_TOKEN = 256  # bytes of a token; the longest published one has 128

_GPT2 = {END_OF_TEXT: 50_256}
_FIM = {"<|fim_prefix|>": 100_258, "<|fim_middle|>": 100_259, "<|fim_suffix|>": 100_260}
_GPT4 = {END_OF_TEXT: 100_257, **_FIM, "<|endofprompt|>": 100_276}
_GPT4O = {END_OF_TEXT: 199_999, "<|endofprompt|>": 200_018}
_PUBLISHED: Mapping[str, tuple[Pattern, Mapping[str, int]]] = {
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930": ("gpt2", _GPT2),
    "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069": ("gpt2", _GPT2),
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": ("gpt4", _GPT4),
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": ("o200k", _GPT4O),
}


def is_tiktoken(data: bytes) -> bool:
    """True if the first line is one of a rank file."""
    return _LINE.fullmatch(data.partition(b"\n")[0].rstrip(b"\r")) is not None


def read_tiktoken(data: bytes, pattern: Pattern | None) -> Vocabulary:
    """The vocabulary of a rank file. One that is not published gets `<|endoftext|>` as its last id.

    The merges are not in the file; they are those that `bpe_merge` of tiktoken would do. A token that no merge makes
    is only found as a whole word, which tiktoken looks up first (`ignore_merges`). Ids that a published vocabulary
    does not use become special tokens, `<|unused_100256|>`.

    Raises ValueError for a damaged file, RequestError for an unpublished one without `pattern`.
    """
    ranks = _read_lines(data)
    if (published := _PUBLISHED.get(hashlib.sha256(data).hexdigest())) is not None:
        pattern, named = published
    elif sorted(ranks.values()) != list(range(len(ranks))):
        raise ValueError(f"the ranks of its {len(ranks)} tokens are not 0 to {len(ranks) - 1}")
    elif pattern is None:
        raise RequestError(
            "a rank file has no split pattern, and this is none of those that OpenAI publishes",
            kind="set",
            keys=["tokenizer.pattern"],
            choices=["gpt4", "gpt2", "o200k"],
        )
    else:
        named = {END_OF_TEXT: len(ranks)}
    tokens = {rank: token for token, rank in ranks.items()}
    special = {i: text for text, i in named.items()}
    special |= {i: f"<|unused_{i}|>" for i in range(max([*tokens, *special])) if i not in tokens and i not in special}
    if conflict := next((text for text in special.values() if text.encode() in ranks), None):
        raise ValueError(f"it has {conflict!r} as an ordinary token")
    merges = tuple(_recover_merges(ranks))
    return Vocabulary(
        tokens=tuple(tokens[i] if i in tokens else special[i].encode() for i in range(len(tokens) + len(special))),
        merges=merges,
        special=frozenset(special),
        pattern=pattern,
        ignore_merges=len(merges) < len(ranks) - 256,
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
    return ranks


def _recover_merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[int, int, int]]:
    """Yield the merges by rank.

    tiktoken merges any two neighbours that make a token, lower ranks first. Lower ranks split the bytes of a token
    into the same parts wherever these stand, so if they are two, no other pair ever makes it.
    """
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        match [ranks.get(part) for part in _split(token, rank, ranks)]:
            case [int(left), int(right)]:
                yield left, right, rank


def _split(token: bytes, limit: int, ranks: Mapping[bytes, int]) -> list[bytes]:
    """The parts of a token after the merges of ranks below `limit`."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(left + right, limit) for left, right in pairwise(parts)]
        if (lowest := min(pairs)) == limit:
            break
        i = pairs.index(lowest)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts
