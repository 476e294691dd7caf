"""Classify attention heads on one text by three scores.

Each score is the mean share of attention, from 0 to 1, that queries give to

    previous     the token before (a previous-token head)
    first        the first token (a sink: where attention goes that has nowhere better to go; Xiao et al., 2023)
    induction    the tokens that followed earlier occurrences of the query's token (Olsson et al., 2022)

A head is marked if its score is at least `THRESHOLD` and at least twice the score of uniform attention on the same
text. The first two queries are left out of the first two scores: they have too few keys to choose from.

Shapes: T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt_cli.evaluation.attention_capture import LayerAttention
from gpt_cli.model.attention import causal_mask

THRESHOLD = 0.4
KINDS = ("previous", "first", "induction")


@dataclass(frozen=True)
class Head:
    """The scores of one head. None where the text does not ask: too short, or no token occurs again."""

    layer: int
    head: int
    scores: dict[str, float | None]
    """By kind, as in KINDS."""
    marks: tuple[str, ...]
    """The kinds that it is."""


def classify_heads(layers: Sequence[LayerAttention], tokens: Sequence[int]) -> list[Head]:
    """The scores of every head of `layers` on the text `tokens` that they attended to."""
    return [
        classify_head(weights, tokens, layer=layer.layer, head=head, window=layer.window)
        for layer in layers
        for head, weights in enumerate(layer.weights())
    ]


def classify_head(
    weights: Tensor, tokens: Sequence[int], *, layer: int = 0, head: int = 0, window: int | None = None
) -> Head:
    """The scores of a head with the (T, T) `weights`."""
    visible = causal_mask(len(tokens), len(tokens), window, weights.device)
    even = visible / visible.sum(dim=-1, keepdim=True)
    targets = _targets(tokens)
    scores = {kind: _share(weights, target) for kind, target in targets.items()}
    chance = {kind: _share(even, target) for kind, target in targets.items()}
    marks = tuple(
        kind
        for kind in KINDS
        if (score := scores[kind]) is not None and score >= THRESHOLD and score >= 2 * (chance[kind] or 0.0)
    )
    return Head(layer, head, scores, marks)


def _targets(tokens: Sequence[int]) -> dict[str, Tensor]:
    """For each kind (T, T) booleans: the keys that its queries look at; a row of none is a query that is not asked."""
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
    asked = target.any(dim=-1)
    if not asked.any():
        return None
    return float((weights * target).sum(dim=-1)[asked].mean())
