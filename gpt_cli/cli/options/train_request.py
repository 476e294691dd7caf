"""Resolve the arguments of `gpt train` to a config: of a file, of a run to resume, or fitted to texts."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gpt_cli.cli.options.config_argument import is_override, note_without_effect
from gpt_cli.cli.options.data_options import KEYS_OF_READING, note_unread, refuse_twice
from gpt_cli.cli.options.keep_stdin import Stdin, keep_stdin
from gpt_cli.cli.options.run_name import resolve_source, run_name
from gpt_cli.cli.output import note
from gpt_cli.config import Config, dump_config, load_config, parse_config, to_yaml_scalar
from gpt_cli.config.keys import fields, replace_keys
from gpt_cli.config.load import enclosing_run, parse_overrides, sets_null
from gpt_cli.config.paths import is_gone
from gpt_cli.config.section import ConfigValues
from gpt_cli.corpus.hub import pin_config, pin_sources
from gpt_cli.corpus.prepare import check_paths
from gpt_cli.errors import RequestError, UsageError
from gpt_cli.files.kinds import CONFIG, RUN, TEXTS, YAML, Kind, kind_of, refuse_unless
from gpt_cli.files.locations import refuse_dash
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.run.find_run import refuse_without_record
from gpt_cli.run.resume import TEXT_SECTIONS, resumed_changes, with_own_tokenizer
from gpt_cli.run.run_files import is_imported, run_of
from gpt_cli.search.run_budget import lift_budget, refuse_another_length

FITTED: tuple[Kind | None, ...] = ("text", "token store", None)
"""Kinds that a config is fitted to."""
_BPE = ("tokenizer.vocab_size", "tokenizer.pattern", "tokenizer.train_bytes")
_CHOSEN_ANYWAY = ("run_dir", "tokenizer.vocab_size")  # where they are null


class Request(NamedTuple):
    """A config, the `file` it was read from (None: it was fitted to texts), and the `overrides` that it has."""

    config: Config
    file: Path | None
    overrides: list[str]


def resolve(arguments: Sequence[str], file: Path | None = None, *, stdin: Stdin, into_run: bool = True) -> Request:
    """Return what `gpt train ARGUMENTS`, with --config `file`, asks for.

    `stdin`: what to do with a text from standard input. `into_run`: the config is trained in its run_dir, and must
    agree with a run that is there. Raises RequestError for what cannot be trained, as `load_config`, fitting and
    resuming do.
    """
    overrides = [argument for argument in arguments if is_override(argument)]
    names = [argument for argument in arguments if not is_override(argument)]
    if names and file is not None:
        raise UsageError(f"give either --config {file} or {names[0]}, not both")
    if len(names) == 1:
        file = config_file(names[0])
    else:
        for name in names:  # one run, or one config, is trained at a time
            refuse_unless(TEXTS if config_file(name) is None else FITTED, name, "text")
    if file is None:
        overrides = _completed(overrides)
        config = _of_texts(names, overrides, stdin, into_run=into_run)
    else:
        config = _of_file(file, overrides, stdin)
    note_without_effect(config, overrides, file)
    if into_run:
        config = _of_run(config, file, overrides)
    return Request(config, file, overrides)


def config_file(name: str) -> Path | None:
    """Return the config that an argument names: itself, or that of the run it is; None for a text.

    Raises RequestError for anything else, and UserError for a run that has lost a file.
    """
    path, kind = Path(name), kind_of(name)
    if kind == "config":
        return path
    if kind == "run":
        if not (path / RUN).exists():
            raise RequestError(f"{path} is a run that was stopped before it began: there is nothing to resume")
        return path / CONFIG
    refuse_without_record(path)
    refuse_unless(FITTED, name, "text")
    key = re.match(r"[a-z_.]*", name)[0]  # type: ignore[index]  # it matches at least nothing
    if kind is None and key in fields():
        raise RequestError(f"{name} sets no key: write {key}=VALUE", keys=[key])
    files = [file for file in path.iterdir() if not file.name.startswith(".")] if path.is_dir() else []
    if files and all(file.suffix.lower() in YAML for file in files):
        raise RequestError(f"{name} is a folder of configs", kind="config", path=min(files))
    return None


def _of_file(file: Path, overrides: list[str], stdin: Stdin) -> Config:
    config = lift_budget(load_config(file, overrides), file, overrides)
    for source in (*config.data.sources, *config.data.val_sources):
        beside = str(file.parent / source)
        if is_gone(source) and not is_gone(beside):
            raise RequestError(f"{source} does not exist here", where=str(file), choices=[beside])
    assert config.run_dir is not None
    _check_place(Path(config.run_dir))
    run = run_of(config)
    if run is None:
        refuse_twice(config.data.sources)
    elif stdin != "refuse" and "-" in (there := load_config(run / CONFIG).data).sources + there.val_sources:
        return config  # a run of an older version reads standard input again
    data = config.data
    kept = keep_stdin(data.sources, data.val_sources, data.format, config.run_dir, stdin)
    return config if kept == data.sources else replace_keys(config, {"data.source": _one_or_all(kept)})


def _completed(overrides: list[str]) -> list[str]:
    """`overrides` of a config that is fitted: without nulls that leave to `gpt` what it chooses anyway."""
    kept = [one for one in overrides if not (one.partition("=")[0] in _CHOSEN_ANYWAY and sets_null(one))]
    keys = [override.partition("=")[0] for override in kept if not sets_null(override)]
    return [*kept, "tokenizer.kind=bpe"] if {*_BPE} & {*keys} and "tokenizer.kind" not in keys else kept


def _of_texts(names: list[str], overrides: list[str], stdin: Stdin, *, into_run: bool) -> Config:
    """Return the config of the run that was made for these texts before, or else one fitted to them."""
    values = parse_overrides(overrides)
    sources = _sources(names, values)
    refuse_twice(sources)
    if "data.weights" in values:  # of which there are as many as texts
        parse_overrides([*overrides, f"data.source={to_yaml_scalar(sources)}"])
    if values.get("train.budget") is not None:
        refuse_another_length(values)
    init_from = values.get("train.init_from")
    run_dir = values.get("run_dir") or f"runs/{_run_name(sources, init_from)}"
    _check_place(Path(run_dir))
    for source in sources:
        if Path(source).is_fifo():
            raise RequestError(f"{source} is a pipe, which is read once: a run reads its text again when it resumes")
    validation = values.get("data.val_source") or []
    validation = [validation] if isinstance(validation, str) else validation
    is_there = Path(run_dir, CONFIG).is_file()
    base = None
    if init_from is not None and not is_there:  # a run resumes without the one that it began from
        from gpt_cli.search.inherit import inherit  # and torch

        base = inherit(Path(init_from), values, note)
    note_unread(sources, values.get("data.text_key"), values.get("data.encoding"), KEYS_OF_READING)
    data_format = "labelled" if values.get("task.kind") == "classes" else values.get("data.format", "text")
    sources = keep_stdin(sources, validation, data_format, run_dir, stdin)
    rest = [override for override in overrides if not override.startswith("data.source=")]
    if is_there:
        return _of_existing(Path(run_dir), sources, rest)
    if names or "-" in values["data.source"]:  # else it is as it was asked for, maybe a list of one
        values["data.source"] = _one_or_all(sources)
    pinned = pin_sources(values, note) if into_run else {}
    check_paths(sources)  # sooner than torch is loaded
    from gpt_cli.search.auto_config import fit_to_this_machine

    base_values, sentences = (None, []) if base is None else (base.values, base.sentences)
    fitted, reasons = fit_to_this_machine({**values, **pinned}, run_dir, base_values)
    by_time = values.get("train.budget") is not None  # which decides on the shape
    note("\n".join([*sentences, *(reasons[:2] if by_time else reasons)]))
    return replace_keys(parse_config(dump_config(fitted, full=False), str(Path(run_dir, CONFIG)), rest), pinned)


def _sources(names: list[str], values: ConfigValues) -> list[str]:
    """Return the texts that the command line names."""
    override = values.get("data.source")
    if names and override is not None:
        raise RequestError(f"the text is named twice: {', '.join(names)}, and data.source={override}")
    if not names and override is None:
        raise RequestError("there is nothing to train: give a text, a config or a run", kind="no runs")
    if override is None:
        return names
    return [override] if isinstance(override, str) else list(override)


def _one_or_all(sources: list[str]) -> str | list[str]:
    """Return `sources` as a value of data.source."""
    return sources[0] if len(sources) == 1 else sources


def _run_name(sources: list[str], init_from: str | None) -> str:
    if init_from is None:
        return run_name(sources)
    path = Path(init_from)
    run = path.parent.parent if path.parent.name == "checkpoints" else path
    return f"{run_name(sources)}-from-{run_name(run.name)}"


def _of_existing(run_dir: Path, sources: list[str], overrides: list[str]) -> Config:
    config = load_config(run_dir / CONFIG, overrides)
    sources = [pin_sources({"data.source": one}, note, config.data.sources).get("data.source", one) for one in sources]
    if [*map(resolve_source, config.data.sources)] == [*map(resolve_source, sources)]:
        return config
    check_paths(sources)  # a name that is mistyped is no text
    if is_gone(config.data.source):
        return replace_keys(config, {"data.source": _one_or_all(sources)})
    there = ", ".join(config.data.sources)
    raise RequestError(f"{run_dir} is a run on another text, {there}", kind="another run", path=run_dir)


def _of_run(config: Config, file: Path | None, overrides: list[str]) -> Config:
    """Return `config` as the run in its run_dir has it. Raises RequestError where they do not agree."""
    config, run = with_own_tokenizer(config), run_of(config)
    written = None if run is None or not (run / CONFIG).is_file() else load_config(run / CONFIG)
    config = pin_config(config, note, written)
    resumed_changes(config, sections=TEXT_SECTIONS)  # before a text is read as it is asked for
    taken = None if file is None else enclosing_run(file)
    if taken is not None and run is None:
        _note_new_run(config, taken, overrides)
    return config


def _note_new_run(config: Config, taken: Path, overrides: list[str]) -> None:
    """Note that `config`, that of the run `taken`, is trained in another run.

    Raises RequestError where weights of classes would be those of other labels.
    """
    weights = "random weights" if config.train.init_from is None else f"the weights of {config.train.init_from}"
    note(f"{config.run_dir} is a new run with the config of {taken}, from {weights}; {taken} stays as it is")
    keys = {override.partition("=")[0] for override in overrides}
    if isinstance(config.task.class_weights, list) and "task.class_weights" not in keys:
        if "task.labels" in keys:
            message = f"task.class_weights are in the order of the labels of {taken}, not of task.labels"
            raise RequestError(message, keys=["task.class_weights"], choices=["balanced"], kind="set")
        if "data.source" in keys:
            note(f"task.class_weights are those of {taken}; task.class_weights=balanced weighs the labels of this text")


def _check_place(run: Path) -> None:
    """Raise RequestError where `run` cannot be a run, or was imported and has no text."""
    refuse_dash(run, "a run")
    with translate_os_errors("write", run):
        around = next(parent for parent in run.absolute().parents if os.path.lexists(parent))
        if not around.is_dir():
            raise RequestError(f"{around} is no folder, so {run} cannot be a run")
        if is_imported(run):
            raise RequestError(f"{run} was imported: it has no text of its own", kind="checkpoint", path=run)
