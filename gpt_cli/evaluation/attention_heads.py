"""Classify attention heads on one text by three scores.

Each score is the mean share of attention, from 0 to 1, that queries give to

    previous     the token before (a previous-token head)
    first        the first token (an attention sink; Xiao et al., 2023)
    induction    the tokens that followed earlier occurrences of the query's token (Olsson et al., 2022)

A head is marked if its score is at least `THRESHOLD` and at least twice the score of uniform attention on the same
text. The first two scores leave out the first two queries, which see too few keys.

Shapes: T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt_cli.errors import RequestError
from gpt_cli.evaluation.attention_capture import LayerAttention
from gpt_cli.model.attention import causal_mask

THRESHOLD = 0.4
KINDS = ("previous", "first", "induction")


@dataclass(frozen=True)
class Head:
    """The scores of one head. None if the text has no query for a score: too short, or no token repeats."""

    layer: int
    head: int
    scores: dict[str, float | None]
    """By kind, as in KINDS."""
    marks: tuple[str, ...]
    """The kinds whose thresholds it reaches."""


def classify_heads(layers: Sequence[LayerAttention], tokens: Sequence[int]) -> list[Head]:
    """The scores of every head of `layers` on the text `tokens` that they attended to."""
    return [
        classify_head(weights, tokens, layer=layer.layer, head=head, window=layer.window)
        for layer in layers
        for head, weights in enumerate(layer.weights())
    ]


def select_heads(heads: Sequence[Head], layers: Sequence[int] | None, numbers: Sequence[int] | None) -> list[Head]:
    """The heads of these layers with these numbers; None: all. Raises RequestError for one that is not there."""
    for name, selected in (("layer", layers), ("head", numbers)):
        known = {getattr(head, name) for head in heads}
        if missing := sorted(set(selected or ()) - known):
            raise RequestError(f"there is no {name} {missing[0]}: they are numbered from 0 to {max(known)}")
    return [head for head in heads if (not layers or head.layer in layers) and (not numbers or head.head in numbers)]


def classify_head(
    weights: Tensor, tokens: Sequence[int], *, layer: int = 0, head: int = 0, window: int | None = None
) -> Head:
    """The scores of a head with the (T, T) `weights`."""
    visible = causal_mask(len(tokens), len(tokens), window, weights.device)
    uniform = visible / visible.sum(dim=-1, keepdim=True)
    targets = _targets(tokens)
    scores = {kind: _share(weights, target) for kind, target in targets.items()}
    chance = {kind: _share(uniform, target) for kind, target in targets.items()}
    marks = tuple(
        kind
        for kind in KINDS
        if (score := scores[kind]) is not None and score >= THRESHOLD and score >= 2 * (chance[kind] or 0.0)
    )
    return Head(layer, head, scores, marks)


def _targets(tokens: Sequence[int]) -> dict[str, Tensor]:
    """For each kind a (T, T) mask of target keys by query; a query without any is not counted."""
    n_token = len(tokens)
    previous, first = torch.zeros(2, n_token, n_token, dtype=torch.bool)
    for query in range(2, n_token):
        previous[query, query - 1] = first[query, 0] = True
    ids = torch.tensor(list(tokens))
    same = (ids[:, None] == ids[None, :]).tril(-1)  # query t, key s < t: the same token, earlier
    induction = torch.zeros_like(same)
    induction[:, 1:] = same[:, :-1]  # the key after it
    return {"previous": previous, "first": first, "induction": induction.tril(-1)}  # not the query itself


def _share(weights: Tensor, target: Tensor) -> float | None:
    queries = target.any(dim=-1)
    if not queries.any():
        return None
    return float((weights * target).sum(dim=-1)[queries].mean())
