"""Keys without effect: they only matter where another key has a certain value, which it has not."""

from collections.abc import Sequence
from pathlib import Path

from gpt_cli.cli.options.data_options import refuse_encoding, refuse_text_key
from gpt_cli.cli.output import note
from gpt_cli.config import Config, load_config
from gpt_cli.config.keys import dotted_keys, fields, get_key
from gpt_cli.config.load import enclosing_run, merge_layers, read_config_file
from gpt_cli.config.recipes import RECIPES
from gpt_cli.config.removed import is_removed
from gpt_cli.corpus.matching_store import find_store
from gpt_cli.errors import RequestError
from gpt_cli.run.checkpoint import CONFIG
from gpt_cli.run.run_files import run_of

CONDITIONS: tuple[tuple[tuple[str, ...], str, tuple[str, ...]], ...] = (
    (("data.label_key", "data.split_seed"), "data.format", ("labelled",)),
    (("data.prompt_key", "data.completion_key"), "data.format", ("pairs",)),
    (("data.messages_key",), "data.format", ("chat",)),
    (("data.prompt_end", "data.completion_end", "data.loss_on"), "data.format", ("pairs", "chat")),
    (("data.too_long",), "data.format", ("pairs", "chat", "labelled")),
    (("data.documents",), "data.format", ("text", "labelled")),
    (("tokenizer.pattern", "tokenizer.train_bytes"), "tokenizer.kind", ("bpe",)),
    (("tokenizer.allow_special",), "tokenizer.kind", ("bpe", "hf")),
    (
        ("model.rope_theta", "model.rope_scaling", "model.rope_rounding"),
        "model.position",
        ("rope",),
    ),
    (("optim.momentum", "optim.adamw_lr"), "optim.name", ("muon",)),
    (("schedule.decay_fraction",), "schedule.kind", ("wsd",)),
    (("schedule.min_lr_ratio",), "schedule.kind", ("wsd", "cosine", "linear")),
)
"""(keys, the key that they depend on, its values with which they matter)."""


def refuse_without_effect(config: Config, overrides: Sequence[str]) -> None:
    """Raise RequestError for an override that changes a key from its default, and has no effect in `config`.

    In a file such a key may stand (`note_without_effect`). A run that was begun with it resumes with it.
    """
    begun = _config_of_run(config)
    for override in overrides:
        key = override.partition("=")[0]
        if is_removed(key):
            continue
        value = get_key(config, key)
        is_changed = value != fields()[key].default and (begun is None or value != get_key(begun, key))
        if is_changed and (needed := missing_condition(config, key)) is not None:
            raise RequestError(f"{key} has no effect here: it needs {needed}", where=f"override {override!r}")
        unused = ["data.val_fraction"] if config.data.test_fraction else ["data.val_fraction", "data.split"]
        if is_changed and config.data.val_source is not None and key in unused:
            raise RequestError(
                f"{key} has no effect here: data.val_source is the validation text",
                where=f"override {override!r}",
                hint="leave one of them out",
            )
        if key == "recipe" and config.recipe is not None and _is_overridden(config, config.recipe):
            raise RequestError(
                "recipe has no effect here: all that it sets is written down in the config",
                where=f"override {override!r}",
                hint=f"a config may have only what differs: recipe: {config.recipe} alone is one",
            )
        if key in ("sample.prefix", "sample.suffix", "sample.stop") and value and _is_empty(override):
            raise RequestError(
                f"{key} has no effect here when it is empty: data.format {config.data.format} has a template",
                where=f"override {override!r}",
                hint="leave it out, or give another text",
            )
        if key == "data.text_key" and config.data.source is not None:
            refuse_text_key(config.data.sources, config.data.text_key, key)
        if key == "data.encoding" and is_changed and config.data.source is not None:
            refuse_encoding([*config.data.sources, *config.data.val_sources], config.data.encoding, key)
        of_text = key in ("data.encoding", "data.text_key")
        of_text = of_text or (is_changed and key in ("tokenizer.train_bytes", "tokenizer.allow_special"))
        if of_text and find_store(config.data.source) is not None:
            raise RequestError(f"{key} is for texts: {config.data.source} is a token store", hint="leave it out")


def note_without_effect(config: Config, file: Path) -> None:
    """Tell which keys that `file` sets have no effect in `config`; that of a run holds every key, and is left alone."""
    if enclosing_run(file) is not None or _config_of_run(config) is not None:
        return
    written = dotted_keys(merge_layers(read_config_file(file), str(file), ()).values)
    for key, field in fields().items():
        is_changed = key in written and get_key(config, key) != field.default
        if is_changed and (needed := missing_condition(config, key)) is not None:
            note(f"{key} has no effect here: it needs {needed}")


def _is_empty(override: str) -> bool:
    """True if its value is an empty text or list."""
    return not override.partition("=")[2].strip("[]\"' ")


def _is_overridden(config: Config, recipe: str) -> bool:
    """True if `config` has another value for every key that `recipe` would change from its default."""
    values = {f"{section}.{key}": value for section, keys in RECIPES[recipe].items() for key, value in keys.items()}
    changes = [(key, value) for key, value in values.items() if value != fields()[key].default]
    return bool(changes) and all(get_key(config, key) != value for key, value in changes)


def _config_of_run(config: Config) -> Config | None:
    """The config of the run in `config.run_dir`; None if there is none yet."""
    run = run_of(config)
    return load_config(run / CONFIG) if run is not None and (run / CONFIG).is_file() else None


def missing_condition(config: Config, key: str) -> str | None:
    """The override without which `key` has no effect in `config`; None if it has one."""
    if key in ("lora.alpha", "lora.targets") and config.lora.rank is None:
        return "lora.rank=8 or another rank"
    if key in ("optim.lr", "optim.momentum") and config.rate_keys == ("optim.adamw_lr",):
        trained = "LoRA" if config.lora.rank is not None else "a head"
        return f"parameters that Muon updates, and {trained} is trained by AdamW, at the rate of optim.adamw_lr"
    for keys, other, values in CONDITIONS:
        is_met = get_key(config, other) in values or (other == "tokenizer.kind" and config.tokenizer.file is not None)
        if key in keys and not is_met:
            return " or ".join(f"{other}={value}" for value in values)
    return None
