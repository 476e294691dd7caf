"""The origin of each value of a config, and the differences of two configs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpt_cli.config.diagnostics import SourceLocation
from gpt_cli.config.keys import description, fields, get_key
from gpt_cli.config.load import merge_layers, read_config_file
from gpt_cli.config.presets import RECIPES
from gpt_cli.config.schema import Config

RESUMABLE_CHANGES = frozenset(
    {
        "run_dir",
        "train.steps",
        "train.until_loss",
        "train.max_minutes",
        "train.patience",
        "train.micro_batch_size",
        "train.activation_checkpointing",
        "eval.every",
        "eval.batch_size",
        "checkpoint.*",
        "sample.*",
        "log.*",
        "runtime.*",
        "parallel.*",
    }
)
"""Keys, or whole sections as `section.*`, in which the config of a resumed run may differ from the run's own."""


def may_change(key: str) -> bool:
    """True if the config of a resumed run may differ in `key` from the run's own."""
    return key in RESUMABLE_CHANGES or f"{key.partition('.')[0]}.*" in RESUMABLE_CHANGES


class KeyOrigin(NamedTuple):
    """A key with its value, where that comes from (`default`, `recipe`, `file:line` or `override`), and its meaning."""

    key: str
    value: Any
    origin: str
    description: str


def explain(config: Config, path: Path, overrides: Sequence[str] = ()) -> list[KeyOrigin]:
    """Every key of `config`, which `load_config(path, overrides)` returned, in the order of the schema."""
    document = merge_layers(read_config_file(path), str(path), overrides)
    return [
        KeyOrigin(
            key,
            get_key(config, key),
            _origin(key, document.locations.get(tuple(key.split("."))), config),
            description(definition),
        )
        for key, definition in fields().items()
    ]


def _origin(key: str, place: SourceLocation | None, config: Config) -> str:
    if place is None:
        section, _, name = key.rpartition(".")
        recipe = RECIPES[config.recipe] if config.recipe is not None else {}
        return f"recipe {config.recipe}" if name in recipe.get(section, {}) else "default"
    return "override" if place.line is None else f"{place.source}:{place.line}"


def changed_keys(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
    """(key, old value, new value) of every key in which the two differ, in the order of the schema."""
    return [(key, get_key(old, key), get_key(new, key)) for key in fields() if get_key(old, key) != get_key(new, key)]
