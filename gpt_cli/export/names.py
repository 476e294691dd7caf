"""Our tensors under the names that others have for them, and back.

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
    """A module of ours, and the one or several that hold its rows elsewhere; `{}` stands for the layer."""

    ours: str
    theirs: tuple[str, ...]
    rows: Rows = lambda config: ()

    def pairs(self, config: ModelConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
        """(our parameter, their parameters) of every layer, whether there or not."""
        for layer in range(config.n_layer) if "{}" in self.ours else (0,):
            for parameter in _PARAMETERS:
                ours = f"{self.ours.format(layer)}.{parameter}"
                yield ours, tuple(f"{module.format(layer)}.{parameter}" for module in self.theirs)


def named_tensors(tensors: Tensors) -> dict[str, Tensor]:
    """The tensors of a model of ours, the table of positions named like the weight of a module, too."""
    return {f"{key}.weight" if key == "embedding.positions" else key: tensor for key, tensor in tensors.items()}


def name(ours: str, *theirs: str, rows: Rows | None = None) -> TensorName:
    """A `Name`, short enough for a table."""
    return TensorName(ours, theirs) if rows is None else TensorName(ours, theirs, rows)


def to_foreign(names: tuple[TensorName, ...], config: ModelConfig, tensors: Tensors) -> dict[str, Tensor]:
    """Our tensors under their names. Every one of ours has its place, or this is a bug."""
    found: dict[str, Tensor] = {}
    left = set(tensors)
    for entry in names:
        for ours, theirs in entry.pairs(config):
            if ours in tensors:
                left.discard(ours)
                parts = (tensors[ours],) if len(theirs) == 1 else tensors[ours].split(entry.rows(config))
                found |= zip(theirs, parts, strict=True)
    assert not left, f"no name for {sorted(left)}"
    return found


def from_foreign(names: tuple[TensorName, ...], config: ModelConfig, tensors: Tensors) -> dict[str, Tensor]:
    """The way back. Tensors of names that are not in the table keep them, so that a check of ours tells them."""
    found: dict[str, Tensor] = {}
    left = dict(tensors)
    for entry in names:
        for ours, theirs in entry.pairs(config):
            if all(module in left for module in theirs):
                found[ours] = torch.cat([left.pop(module) for module in theirs])
    return found | left
