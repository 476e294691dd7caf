"""The refusal of texts that no config is fitted to (pairs, chats, classes), with the command that trains on them."""

import os
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from shlex import quote

from gpt_cli.config.dump import join_overrides
from gpt_cli.config.keys import fields, get_key
from gpt_cli.config.load import load_config
from gpt_cli.config.schema import Config
from gpt_cli.config.section import ConfigValues
from gpt_cli.corpus.records import MissingKeyError, OtherFormatError
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files.output_path import to_slug

_OF_TEMPLATE = {"data.prompt_end", "data.completion_end", "data.loss_on", "data.packing"}
_FOLLOWS_FORMAT = {"data.source", "data.format", "data.split", "data.too_long"}
_OF_TRAINING = ("train.max_minutes", "train.until_loss", "train.patience", "train.budget")
"""Ends that were chosen for the training of a base."""


def refuse_other_formats(fixed: ConfigValues, overrides: ConfigValues, sources: Sequence[str]) -> None:
    """Raise RequestError for anything but plain text; its hint is the command that trains on it, with `overrides`."""
    data_format = fixed.get("data.format", "text")
    if data_format not in ("text", "labelled"):
        raise RequestError(
            f"a config is fitted to text, not to {data_format}",
            hint=_train_command({"data.format": data_format}, overrides, sources),
        )
    if data_format == "labelled" or fixed.get("task.kind", "language") != "language":
        keys = {"task.kind": "classes", "data.format": "labelled", "sample.every": None}
        raise RequestError("a config is fitted to text, not to classes", hint=_train_command(keys, overrides, sources))


def explain_format(error: UserError, overrides: ConfigValues, sources: Sequence[str]) -> None:
    """Have the hint of `error`, which found chats or pairs in place of texts, name the command that trains on them."""
    overrides = {key: value for key, value in overrides.items() if key != "data.text_key"}
    if isinstance(error, OtherFormatError):
        error.suggest(_train_command({"data.format": "chat"}, overrides, sources))
    elif isinstance(error, MissingKeyError) and error.pairs:
        command = _train_command(error.as_pairs(), overrides, sources)
        error.advise(f"data.text_key={quote(error.candidate)} reads one of them; for both: {command}")


def _train_command(keys: ConfigValues, requested: ConfigValues, sources: Sequence[str]) -> str:
    """The command that trains on `sources` with `keys`, a config of the user's own, and the rest of `requested`."""
    keys = {**keys, "data.source": sources[0] if len(sources) == 1 else list(sources)}
    base = requested.get("train.init_from")
    if base is None:
        name = _own_config(sources[0])
        return (
            f"gpt config init -o {name}, then gpt train {name} {join_overrides({**keys, **_others(requested, keys)})}"
        )
    run_dir = requested.get("run_dir") or f"runs/{Path(sources[0]).stem}-from-{Path(base).name}"
    keys |= {key: value for key, value in _own_of_base(Path(base), keys).items() if key not in requested}
    start = {"tokenizer.file": f"{base}/tokenizer.json", "train.init_from": base, "run_dir": run_dir}
    others = _others(requested, {**keys, **start})
    return f"gpt train {quote(f'{base}/config.yaml')} {join_overrides({**start, **keys, **others})}"


def _own_config(source: str) -> str:
    """The name of a config for `source`, where neither it nor its run is there already."""
    stem = to_slug(Path(source).stem)
    names = (f"{stem}{number}" for number in chain([""], (f"-{i}" for i in count(2))))
    return next(f"{name}.yaml" for name in names if not any(map(os.path.lexists, (f"{name}.yaml", f"runs/{name}"))))


def _own_of_base(base: Path, keys: ConfigValues) -> ConfigValues:
    """The defaults of what the config of `base` says of its own text and training alone, where it is not the default.

    The template of pairs and chats stays, as the model knows it.
    """
    classes = keys.get("task.kind") == "classes"
    stays = _FOLLOWS_FORMAT | (set() if classes else _OF_TEMPLATE)
    own = [key for key in fields() if key.startswith(("data.", "lora.")) and key not in stays]
    own += [*_OF_TRAINING, *(["eval.max_tokens"] if classes else [])]
    config, default = load_config(base / "config.yaml"), Config()
    return {key: get_key(default, key) for key in own if get_key(config, key) != get_key(default, key)}


def _others(requested: ConfigValues, keys: ConfigValues) -> ConfigValues:
    return {key: value for key, value in requested.items() if key not in keys}
