"""Keys that have no effect because of the value of another key."""

from typing import Any

from gpt_cli.config.keys import fields, get_key
from gpt_cli.config.recipes import RECIPES
from gpt_cli.config.schema import Config
from gpt_cli.config.section import show_plain

CONDITIONS: tuple[tuple[tuple[str, ...], str, tuple[Any, ...]], ...] = (
    (("data.label_key", "data.split_seed"), "data.format", ("labelled",)),
    (("data.prompt_key", "data.completion_key"), "data.format", ("pairs",)),
    (("data.messages_key",), "data.format", ("chat",)),
    (("data.text_key",), "data.format", ("text", "labelled")),
    (("data.prompt_end", "data.completion_end", "data.loss_on"), "data.format", ("pairs", "chat")),
    (("data.too_long",), "data.format", ("pairs", "chat", "labelled")),
    (("data.documents",), "data.format", ("text", "labelled")),
    (("data.val_fraction",), "data.val_source", (None,)),
    (("tokenizer.pattern", "tokenizer.train_bytes"), "tokenizer.kind", ("bpe",)),
    (("tokenizer.allow_special",), "tokenizer.kind", ("bpe", "hf")),
    (("model.rope_theta", "model.rope_scaling", "model.rope_rounding"), "model.position", ("rope",)),
    (("optim.momentum", "optim.adamw_lr"), "optim.name", ("muon",)),
    (("schedule.decay_fraction",), "schedule.kind", ("wsd",)),
    (("schedule.min_lr_ratio",), "schedule.kind", ("wsd", "cosine", "linear")),
)
"""(keys, the key that they depend on, its values with which they matter)."""


def missing_condition(config: Config, key: str) -> str | None:
    """Return the override without which `key` has no effect in `config`; None if it has one."""
    if key in ("lora.alpha", "lora.targets") and config.lora.rank is None:
        return "lora.rank=8 or another rank"
    if key in ("optim.lr", "optim.momentum") and config.rate_keys == ("optim.adamw_lr",):
        trained = "LoRA" if config.lora.rank is not None else "a head"
        return f"parameters that Muon updates; AdamW trains {trained}, at the rate of optim.adamw_lr"
    for keys, other, values in CONDITIONS:
        is_met = get_key(config, other) in values or (other == "tokenizer.kind" and config.tokenizer.file is not None)
        if key in keys and not is_met:
            return " or ".join(f"{other}={show_plain(value)}" for value in values)
    return None


def recipe_has_effect(config: Config) -> bool:
    """True if `config` has a value of its recipe for any key that the recipe changes from its default."""
    recipe = RECIPES[config.recipe] if config.recipe is not None else {}
    values = {f"{section}.{key}": value for section, keys in recipe.items() for key, value in keys.items()}
    changes = [(key, value) for key, value in values.items() if value != fields()[key].default]
    return not changes or any(get_key(config, key) == value for key, value in changes)
