"""A layout: an architecture of Transformers, with its names of our tensors and its config.json.

It lists the values of our options that it can represent, after its rewrites.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gpt_cli.capabilities import SIZES, Capabilities, options_of
from gpt_cli.config import ModelConfig, to_yaml_scalar
from gpt_cli.errors import RequestError
from gpt_cli.export.canonicalize import ModelTensors
from gpt_cli.export.names import TensorName, Tensors, named_tensors, to_foreign
from gpt_cli.model.sizing import build_on_meta
from gpt_cli.terminal.words import with_article

Rewrite = Callable[[ModelConfig, Tensors], ModelTensors]
Transform = Callable[[ModelConfig, dict[str, Tensor]], dict[str, Tensor]]


def _identity(config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors


@dataclass(frozen=True)
class Layout:
    """An architecture of Transformers.

    requires  option -> its possible values, after the rewrites, besides `capabilities.SIZES`
    names     our modules -> its modules
    describe  the keys of its config.json that are not common to all
    transform converts renamed tensors to its format
    inverse   the inverse of `transform`; None: `transform` itself
    rewrites  applied to a model first (`canonicalize`)
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
        """Its capabilities: an option that is neither in `requires` nor in SIZES must have the schema's default."""
        return Capabilities(self.architecture, {**SIZES, **self.requires})

    def rewrite(self, config: ModelConfig, tensors: Tensors) -> ModelTensors:
        """Apply all rewrites."""
        for rewrite in self.rewrites:
            config, tensors = rewrite(config, tensors)
        return config, tensors

    def mismatches(self, config: ModelConfig) -> dict[str, tuple[Any, ...]]:
        """The options of a model that this layout cannot represent -> the values it could."""
        shapes = named_tensors(build_on_meta(config, vocab_size=1).state_dict())
        return self.capabilities.unsupported(self.rewrite(config, shapes)[0])

    def tensors(self, config: ModelConfig, tensors: Tensors) -> dict[str, Tensor]:
        """The tensors of its model.safetensors."""
        config, tensors = self.rewrite(config, tensors)
        if config.tie_embeddings:
            tensors = {ours: tensor for ours, tensor in tensors.items() if ours != "head.weight"}
        return self.transform(config, to_foreign(self.names, config, tensors))

    def restore(self, config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Undo `transform`."""
        return (self.inverse or self.transform)(config, tensors)


def choose_layout(config: ModelConfig, layouts: "tuple[Layout, ...]") -> Layout:
    """The first layout that represents the model exactly.

    Raises RequestError if there is none, with the options that the nearest one lacks, and what to set.
    """
    candidates = [(layout, layout.mismatches(config)) for layout in layouts]
    for layout, mismatches in candidates:
        if not mismatches:
            return layout
    nearest, mismatches = min(candidates, key=lambda pair: len(pair[1]))
    values = options_of(config)
    prevents = " and ".join(f"model.{option} is {to_yaml_scalar(values[option])}" for option in mismatches)
    settings = ", ".join(
        f"model.{option}={' or '.join(map(to_yaml_scalar, allowed))}" for option, allowed in mismatches.items()
    )
    raise RequestError(
        f"no architecture there is this model exactly: {prevents}",
        hint=f"train with {settings} and it is {with_article(nearest.architecture)}",
    )
