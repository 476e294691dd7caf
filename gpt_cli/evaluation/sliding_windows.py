"""Score a text longer than the context in overlapping windows; each token is predicted once.

Shapes: N tokens of the text.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpt_cli.errors import RequestError, UserError
from gpt_cli.evaluation.logprob_scorer import LogProbs, LogprobScorer
from gpt_cli.terminal.words import plural

_BATCH_SIZE = 64  # windows that are scored together


@dataclass(frozen=True)
class SlidingWindow:
    """The tokens from `begin` to `end`; those from `first` on are predicted, each from all before it in the window."""

    begin: int
    first: int
    end: int


def windows(n_token: int, context_length: int, stride: int) -> Iterator[SlidingWindow]:
    """The windows of a text: each begins `stride` tokens after the one before, and predicts the tokens new in it.

    So every token but the first of the text is predicted once, and in windows after the first from at least
    `context_length + 1 - stride` tokens. With `stride` equal to `context_length`
    the windows do not overlap: those of `gpt eval`.
    """
    assert 1 <= stride <= context_length
    begin, first = 0, 1
    while first < n_token:
        end = min(begin + context_length + 1, n_token)
        yield SlidingWindow(begin, first, end)
        begin, first = begin + stride, end


def default_stride(context_length: int) -> int:
    """Half a context: each token after the first window has more than half a context, at twice the work."""
    return max(1, context_length // 2)


def checked_stride(stride: int | None, context_length: int) -> int:
    """`stride`, or the default for None. Raises RequestError for one that would leave tokens out."""
    if stride is None:
        return default_stride(context_length)
    if not 1 <= stride <= context_length:
        raise RequestError(f"stride must be from 1 to {context_length:,}, the model's context, not {stride:,}")
    return stride


def read_tokens(reader: LogprobScorer, tokens: npt.NDArray[np.uint32], stride: int) -> LogProbs:
    """(N,) ids -> (N,) natural log-probabilities, each given the tokens before it in its window; NaN for the first.

    Raises UserError for a text of fewer than 2 tokens, and for logits that are not finite.
    """
    if len(tokens) < 2:
        raise UserError(f"a text of {plural(len(tokens), 'token')} leaves nothing to predict")
    log_probs = np.full(len(tokens), np.nan)
    batch: list[SlidingWindow] = []
    for window in windows(len(tokens), reader.context_length, stride):
        batch.append(window)
        if len(batch) == _BATCH_SIZE or window.end == len(tokens):
            texts = [tokens[item.begin : item.end].tolist() for item in batch]
            scores = reader.score(texts, [item.first - item.begin for item in batch])
            for item, values in zip(batch, scores, strict=True):
                log_probs[item.first : item.end] = values
            batch = []
    if not np.isfinite(log_probs[1:]).all():
        index = 1 + int(np.argmin(np.isfinite(log_probs[1:])))
        raise UserError(f"the model's logits for token {index:,} are not finite", hint="gpt doctor RUN examines a run")
    return log_probs
