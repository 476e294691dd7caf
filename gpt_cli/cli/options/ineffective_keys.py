"""Keys that have no effect because of the value of another key."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpt_cli.cli.options.data_options import refuse_encoding, refuse_text_key
from gpt_cli.cli.output import note
from gpt_cli.config import Config
from gpt_cli.config.keys import dotted_keys, fields, get_key
from gpt_cli.config.load import enclosing_run, merge_layers, read_config_file
from gpt_cli.config.recipes import RECIPES
from gpt_cli.config.section import show_plain
from gpt_cli.corpus.store import find_store
from gpt_cli.errors import RequestError
from gpt_cli.run.run_files import run_of

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
_OF_TEXTS = ("data.encoding", "data.text_key", "tokenizer.train_bytes", "tokenizer.allow_special")
_FOLLOWING = ("data.split", "sample.prefix", "sample.suffix", "sample.stop")  # data.format, whatever they are set to


def note_without_effect(config: Config, overrides: Sequence[str], file: Path | None = None) -> None:
    """Note each key that has no effect in `config`, of those that `overrides` and the config `file` set.

    The config of a run holds every key, and is left alone.
    """
    of_run = file is None or enclosing_run(file) is not None or run_of(config) is not None
    text = "" if file is None or of_run else read_config_file(file)
    written = dotted_keys(merge_layers(text, str(file), ()).values)
    changes = merge_layers("", "the overrides", overrides)
    asked = {key: changes.value(tuple(key.split("."))) for key in dotted_keys(changes.values)}
    for key, field in fields().items():
        is_changed = key in written | asked.keys() and get_key(config, key) != field.default
        if is_changed and (needed := missing_condition(config, key)) is not None:
            note(f"{key} has no effect here: it needs {needed}")
        elif key in _FOLLOWING and key in asked and asked[key] != get_key(config, key):
            note(f"{key} has no effect here: it follows from data.format and data.documents")
        elif key in _OF_TEXTS and key in asked and is_changed:
            _note_without_texts(config, key)
    if "recipe" in asked and config.recipe is not None and _is_overridden(config, config.recipe):
        note("recipe has no effect here: the config sets all of its keys")


def _note_without_texts(config: Config, key: str) -> None:
    """Note a `key` of how texts are read where no source is read so."""
    data = config.data
    try:
        if find_store(data.source) is not None:
            raise RequestError(f"{key} is for texts: {data.source} is a token store")
        if key == "data.text_key":
            refuse_text_key(data.sources, data.text_key, key)
        if key == "data.encoding":
            refuse_encoding([*data.sources, *data.val_sources], data.encoding, key)
    except RequestError as error:
        note(f"{key} has no effect here: {error.message}")


def _is_overridden(config: Config, recipe: str) -> bool:
    """True if `config` has another value for every key that `recipe` would change from its default."""
    values = {f"{section}.{key}": value for section, keys in RECIPES[recipe].items() for key, value in keys.items()}
    changes = [(key, value) for key, value in values.items() if value != fields()[key].default]
    return bool(changes) and all(get_key(config, key) != value for key, value in changes)


def missing_condition(config: Config, key: str) -> str | None:
    """The override without which `key` has no effect in `config`; None if it has one."""
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
