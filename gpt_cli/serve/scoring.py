"""Texts that are there already: what each token costs, read between the steps of those being written."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from gpt_cli.evaluation.scored_text import ScoredText
from gpt_cli.evaluation.sliding_windows import SlidingWindow, default_stride, windows
from gpt_cli.serve.active_sequence import TokenLogprob, compute_logprob
from gpt_cli.serve.api_errors import ApiError
from gpt_cli.serve.model_registry import ServedModel
from gpt_cli.serve.scheduler import Scheduler
from gpt_cli.serve.text_engine import TextEngine


async def prompt_logprobs(
    scheduler: Scheduler, model: ServedModel, tokens: Sequence[int], top: int
) -> list[TokenLogprob]:
    """TokenLogprob of each of `tokens`, given those before it in its window, as in `gpt score`. The first has none."""
    costs = [TokenLogprob(tokens[0], None, [])]
    for window in windows(len(tokens), model.context_length, default_stride(model.context_length)):
        part = tokens[window.begin : window.end]
        found: list[TokenLogprob] = await asyncio.wrap_future(
            scheduler.call(partial(_costs, model.engine, window, part, top))
        )
        costs += found
    return costs


def _costs(engine: TextEngine, window: SlidingWindow, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    first = window.first - window.begin
    logits = engine.read(tokens[:-1])
    return [compute_logprob(logits[i - 1], tokens[i], top) for i in range(first, len(tokens))]


def token_text(model: ServedModel, token: int) -> str:
    """The display text of a token; `bytes:\\xe2` where it is a part of a character."""
    data = model.tokenizer.token_bytes(token)
    if not data:
        return model.tokenizer.decode([token])
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


async def score_text(
    scheduler: Scheduler, model: ServedModel, text: str, tokens: list[int], top: int
) -> dict[str, Any]:
    """The answer of /score: the figures of `gpt score`, and what each token cost."""
    if len(tokens) < 2:
        raise ApiError(400, f"a text of {len(tokens)} tokens leaves nothing to predict", param="text")
    costs = await prompt_logprobs(scheduler, model, tokens, top)
    log_probs = np.array([np.nan if cost.log_prob is None else cost.log_prob for cost in costs])
    scored = ScoredText(model.tokenizer, text, np.array(tokens, np.uint32), log_probs)
    return {
        "model": model.name,
        "step": model.step,
        **scored.figures(),
        "scored": [
            {
                "id": cost.token,
                "text": token_text(model, cost.token),
                "logprob": cost.log_prob,
                "top": [{"id": i, "text": token_text(model, i), "logprob": value} for i, value in cost.likeliest],
            }
            for cost in costs
        ],
    }
