"""Log-probabilities of given tokens, which the scheduler's thread computes between two rounds of generation."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from gpt_cli.evaluation.scored_text import ScoredText
from gpt_cli.evaluation.sliding_windows import SlidingWindow, default_stride, windows
from gpt_cli.serve.api_errors import ApiError
from gpt_cli.serve.encoding import token_text
from gpt_cli.serve.model_registry import ServedModel
from gpt_cli.serve.request_schemas import ScoreRequest
from gpt_cli.serve.scheduler import Scheduler
from gpt_cli.serve.text_engine import TextEngine
from gpt_cli.serve.token_logprobs import TokenLogprob, compute_logprob
from gpt_cli.terminal.words import plural


async def prompt_logprobs(
    scheduler: Scheduler, model: ServedModel, tokens: Sequence[int], n_top: int, deadline: float
) -> list[TokenLogprob]:
    """The log-probability of each token given those before it in its window, as in `gpt score`; None for the first.

    Raises ApiError 504 once `deadline`, a time of `time.monotonic`, is over.
    """
    entries = [TokenLogprob(tokens[0], None, [])]
    for window in windows(len(tokens), model.context_length, default_stride(model.context_length)):
        if time.monotonic() > deadline:
            raise ApiError(504, "the time for a request is over", code="timeout")
        window_tokens = tokens[window.begin : window.end]
        future = scheduler.call(partial(_window_logprobs, model.engine, window, window_tokens, n_top))
        window_entries: list[TokenLogprob] = await asyncio.wrap_future(future)
        entries += window_entries
    return entries


def _window_logprobs(
    engine: TextEngine, window: SlidingWindow, tokens: Sequence[int], n_top: int
) -> list[TokenLogprob]:
    """The entries of those of `tokens` that no earlier window has."""
    first = window.first - window.begin
    logits = engine.prompt_logits(tokens[:-1])
    return [compute_logprob(logits[i - 1], tokens[i], n_top) for i in range(first, len(tokens))]


async def score_text(
    scheduler: Scheduler, model: ServedModel, body: ScoreRequest, tokens: list[int], deadline: float
) -> dict[str, Any]:
    """The answer of /score: the figures of `gpt score`, and the log-probability of each token."""
    text = body.text
    if not text:
        raise ApiError(400, "the text is empty", param="text")
    if len(tokens) < 2:
        few = plural(len(tokens), "token")
        raise ApiError(400, f"a text of {few} leaves nothing to predict", param="text")
    entries = await prompt_logprobs(scheduler, model, tokens, body.top_logprobs, deadline)
    log_probs = np.array([np.nan if entry.logprob is None else entry.logprob for entry in entries])
    ids = np.array(tokens, np.uint32)
    scored = ScoredText(model.tokenizer, text, ids, log_probs, allow_special=bool(body.parse_special))
    return {
        "model": model.name,
        "step": model.step,
        **scored.figures(),
        "scored": [
            {
                "id": entry.token,
                "text": token_text(model, entry.token),
                "logprob": entry.logprob,
                "top": [{"id": i, "text": token_text(model, i), "logprob": value} for i, value in entry.top_logprobs],
            }
            for entry in entries
        ],
    }
