"""Measure verbatim copying: which spans of a sample are in the training text of its run.

Texts are compared as UTF-8, and lengths counted in characters.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from gpt_cli.corpus.tokens import MappedTokens, Tokens
from gpt_cli.errors import Notify, RequestError
from gpt_cli.run.checkpoint import Checkpoint
from gpt_cli.run.run_corpus import load_run_corpus
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.terminal.progress import stage_progress
from gpt_cli.tokenizer import Tokenizer

GRAMS = (8, 20)
_SHOWN = 40  # characters of a span
_CHUNK = 1 << 20  # tokens or bytes at once
_SEPARATOR, _GAP = b"\xff", b"\xfe"  # never in UTF-8: no match spans one
_HASHES = 1 << 20  # the highest 20 bits of a product
_MIX, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(44)


class TrainingText:
    """The training and validation text of a run, verified by its fingerprint, to compare samples with.

    Raises RequestError if the text is missing or has changed.
    """

    def __init__(self, checkpoint: Checkpoint, note: Notify) -> None:
        if "-" in checkpoint.config.data.sources:
            raise RequestError("the run was trained on standard input, so there is no text to compare with")
        with stage_progress() as progress:
            corpus = load_run_corpus(checkpoint, note=note, progress=progress)
        self._training = decode_all(corpus.tokenizer, corpus.train)
        self.validation = decode_all(corpus.tokenizer, corpus.val).decode("utf-8", "surrogateescape")

    def measure(self, sample: str) -> dict[str, Any]:
        """Return `measure_novelty` of `sample`."""
        return measure_novelty(sample, self._training)

    def describe(self, sample: str) -> str:
        """Return what `sample` copies, in two lines."""
        novelty = self.measure(sample)
        span = escape_control_chars(novelty["span"])
        shares = {n: novelty[f"copied_{n}"] for n in GRAMS}
        parts = [f"{'no' if share is None else f'{share:.1%} of the'} {n}-grams" for n, share in shares.items()]
        longest = f"{novelty['longest']:,} characters, '{span[:_SHOWN]}{'...' * (len(span) > _SHOWN)}'"
        return f"copied: {', '.join(parts)}\nlongest: {longest}"


def decode_all(tokenizer: Tokenizer, tokens: Tokens | MappedTokens) -> bytes:
    """The text of all tokens. Special ones, which separate documents, and `<unk>` become a byte that UTF-8 lacks."""
    pieces = [tokenizer.token_bytes(token) or _SEPARATOR for token in range(tokenizer.vocab_size)]
    chunks = (tokens[start : start + _CHUNK].tolist() for start in range(0, len(tokens), _CHUNK))
    return b"".join(b"".join([pieces[token] for token in chunk]) for chunk in chunks)


def measure_novelty(sample: str, training: bytes) -> dict[str, Any]:
    """Return the longest span of `sample` found in `training` (the first if tied) and the shares of its n-grams there.

    A share is None for a sample of fewer than n characters.
    """
    matches: list[int] = []
    for width in (8, 4, 0):  # less where nothing as long is copied
        matches = _matches(sample, _shared_parts(_encode(sample), training, width) if width else training)
        if max(matches, default=0) >= width:
            break
    longest = max(matches, default=0)
    end = matches.index(longest) + 1 if matches else 0
    shares: dict[str, float | None] = {}
    for n in GRAMS:
        grams = len(sample) - n + 1
        shares[f"copied_{n}"] = round(sum(match >= n for match in matches) / grams, 6) if grams > 0 else None
    return {"longest": longest, "span": sample[end - longest : end], **shares}


def _matches(sample: str, training: bytes) -> list[int]:
    """The length of the longest substring of `training` that ends at each index of `sample`."""
    matches: list[int] = []
    start = 0
    for end in range(1, len(sample) + 1):
        while _encode(sample[start:end]) not in training:
            start += 1
        matches.append(end - start)
    return matches


def _shared_parts(sample: bytes, training: bytes, width: int) -> bytes:
    """The parts of `training` that share `width` bytes in a row with `sample`, and a few others: hashes collide."""
    is_shared = np.zeros(_HASHES, dtype=np.bool_)
    is_shared[_hashes(sample, width)] = True
    edges = []
    for at in range(0, max(1, len(training)), _CHUNK):
        hits = is_shared[_hashes(training[at : at + _CHUNK + width - 1], width)]
        edges.append(at + np.flatnonzero(np.diff(hits, prepend=False, append=False)))
    bounds, counts = np.unique(np.concatenate(edges), return_counts=True)
    runs = bounds[counts == 1].reshape(-1, 2)  # a run that ends where the next begins continues
    return _GAP.join({training[first : end + width - 1] for first, end in runs})


def _hashes(text: bytes, width: int) -> npt.NDArray[np.uint64]:
    """A hash of each `width` bytes in a row."""
    grams: npt.NDArray[np.uint64] = np.ndarray(max(0, len(text) - width + 1), f"<u{width}", text, strides=(1,))
    return grams * _MIX >> _SHIFT


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
