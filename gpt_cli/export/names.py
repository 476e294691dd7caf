"""Rename tensors between our names and foreign ones.

Shapes: C n_embd, H query heads, Hkv key/value heads, D head_dim, F mlp_hidden.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt_cli.config import ModelConfig

Tensors = Mapping[str, Tensor]
Rows = Callable[[ModelConfig], tuple[int, ...]]
_PARAMETERS = ("weight", "bias")


@dataclass(frozen=True)
class TensorName:
    """A module of ours and the foreign module or modules with its rows; `{}` is the index of the layer."""

    ours: str
    theirs: tuple[str, ...]
    rows: Rows = lambda config: ()

    def pairs(self, config: ModelConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield (our parameter, their parameters) of every layer; a bias need not exist."""
        for layer in range(config.n_layer) if "{}" in self.ours else (0,):
            for parameter in _PARAMETERS:
                ours = f"{self.ours.format(layer)}.{parameter}"
                yield ours, tuple(f"{module.format(layer)}.{parameter}" for module in self.theirs)


def named_tensors(tensors: Tensors) -> dict[str, Tensor]:
    """The tensors of our model; the position table, a bare parameter, is renamed like the weight of a module."""
    return {f"{key}.weight" if key == "embedding.positions" else key: tensor for key, tensor in tensors.items()}


def name(ours: str, *theirs: str, rows: Rows | None = None) -> TensorName:
    """A `TensorName`, in short for tables of names."""
    return TensorName(ours, theirs) if rows is None else TensorName(ours, theirs, rows)


def to_foreign(names: tuple[TensorName, ...], config: ModelConfig, tensors: Tensors) -> dict[str, Tensor]:
    """Our tensors under foreign names, split as `rows` says. All must be in `names` (asserted)."""
    converted: dict[str, Tensor] = {}
    unnamed = set(tensors)
    for entry in names:
        for ours, theirs in entry.pairs(config):
            if ours in tensors:
                unnamed.discard(ours)
                parts = (tensors[ours],) if len(theirs) == 1 else tensors[ours].split(entry.rows(config))
                converted |= zip(theirs, parts, strict=True)
    assert not unnamed, f"no name for {sorted(unnamed)}"
    return converted


def from_foreign(names: tuple[TensorName, ...], config: ModelConfig, tensors: Tensors) -> dict[str, Tensor]:
    """The inverse of `to_foreign`. Tensors that are not in `names` keep their names, for the caller to refuse."""
    converted: dict[str, Tensor] = {}
    remaining = dict(tensors)
    for entry in names:
        for ours, theirs in entry.pairs(config):
            if all(module in remaining for module in theirs):
                converted[ours] = torch.cat([remaining.pop(module) for module in theirs])
    return converted | remaining
