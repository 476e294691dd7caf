"""A layout: the standard architecture that computes the same as a model, its names for our tensors, its config.json.

A layout says what it needs of a model, option by option; what a rewrite can supply is not asked for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gpt_cli.capabilities import SIZES, Capabilities, format_option, options_of
from gpt_cli.config import ModelConfig
from gpt_cli.errors import RequestError
from gpt_cli.export.canonicalize import ModelTensors
from gpt_cli.export.names import TensorName, Tensors, named_tensors, to_foreign
from gpt_cli.model.sizing import build_on_meta

Rewrite = Callable[[ModelConfig, Tensors], ModelTensors]
Transform = Callable[[ModelConfig, dict[str, Tensor]], dict[str, Tensor]]


def _identity(config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors


@dataclass(frozen=True)
class Layout:
    """An architecture of Transformers.

    requires  option -> the values it can have, after the rewrites, beside what all know (`capabilities.SIZES`)
    names     our modules and its own
    describe  what its config.json says beside what all of them do
    transform what its tensors need besides their names
    inverse   of `transform`, where that is not its own
    rewrites  what brings models to it
    """

    architecture: str
    model_type: str
    requires: Mapping[str, tuple[Any, ...]]
    names: tuple[TensorName, ...]
    describe: Callable[[ModelConfig], dict[str, Any]]
    transform: Transform = _identity
    rewrites: tuple[Rewrite, ...] = field(default=())
    inverse: Transform | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Its row: an option that `requires` does not name must stand at the schema's default, but for SIZES."""
        return Capabilities(self.architecture, {**SIZES, **self.requires})

    def rewrite(self, config: ModelConfig, tensors: Tensors) -> ModelTensors:
        """The model in the words of this layout, as far as the rewrites go."""
        for rewrite in self.rewrites:
            config, tensors = rewrite(config, tensors)
        return config, tensors

    def mismatches(self, config: ModelConfig) -> dict[str, tuple[Any, ...]]:
        """The options that keep a model from being one of these -> what they would have to be."""
        shapes = named_tensors(build_on_meta(config, vocab_size=1).state_dict())
        return self.capabilities.unsupported(self.rewrite(config, shapes)[0])

    def tensors(self, config: ModelConfig, tensors: Tensors) -> dict[str, Tensor]:
        """The tensors that its model.safetensors has."""
        config, tensors = self.rewrite(config, tensors)
        if config.tie_embeddings:
            tensors = {ours: tensor for ours, tensor in tensors.items() if ours != "head.weight"}
        return self.transform(config, to_foreign(self.names, config, tensors))

    def restore(self, config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Its tensors as they were before `transform`."""
        return (self.inverse or self.transform)(config, tensors)


def choose_layout(config: ModelConfig, among: "tuple[Layout, ...]") -> Layout:
    """The first of `among` that represents such a model exactly.

    Raises RequestError, naming for the nearest one what prevents it and what to set, when there is none.
    """
    mismatched = [(layout, layout.mismatches(config)) for layout in among]
    for layout, found in mismatched:
        if not found:
            return layout
    nearest, found = min(mismatched, key=lambda pair: len(pair[1]))
    values = options_of(config)
    prevents = " and ".join(f"model.{option} is {format_option(values[option])}" for option in found)
    ways_out = ", ".join(f"model.{option}={' or '.join(map(format_option, fits))}" for option, fits in found.items())
    raise RequestError(
        f"no architecture there is this model exactly: {prevents}",
        hint=f"train with {ways_out} and it is a {nearest.architecture}",
    )
