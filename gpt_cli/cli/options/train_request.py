"""The request of `gpt train` as a config: a config file, a run to resume, or a text that a config is fitted to."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from gpt_cli.cli.options.budget import refuse_another_length, refuse_to_lift
from gpt_cli.cli.options.keep_stdin import (
    Stdin,
    keep_stdin,
    keep_stdin_of,
    refuse_stdin_as_examples,
    refuse_stdin_as_val_source,
)
from gpt_cli.cli.options.train_source import TEXTS, config_file
from gpt_cli.cli.output import note
from gpt_cli.errors import RequestError
from gpt_cli.files.kinds import RUN, kind_of, refuse_unless
from gpt_cli.files.locations import refuse_dash
from gpt_cli.files.os_errors import translate_os_errors

if TYPE_CHECKING:
    from gpt_cli.config import Config
    from gpt_cli.config.section import ConfigValues

_BPE = ("tokenizer.vocab_size", "tokenizer.pattern", "tokenizer.train_bytes")
_FILE, _TEXT = "gpt train --config configs/quickstart.yaml", "gpt train book.txt"


def is_override(argument: str) -> bool:
    """True if it is `section.key=value`; a file may be called like one, but not like one of a key that there is."""
    from gpt_cli.config.keys import fields, sections

    if not re.match(r"[a-z_]\w*(\.[a-z_]\w*)*=", argument, re.ASCII | re.IGNORECASE):
        return False
    key = argument.partition("=")[0]
    return key in fields() or key in sections() or not os.path.lexists(argument)


class Request:
    """A request: `config`, the `file` it was read from (None: it was fitted to a text), and `overrides`."""

    def __init__(self, arguments: Sequence[str], file: Path | None, *, stdin: Stdin, into_run: bool = True) -> None:
        """Read the arguments of `gpt train`. `stdin`: what becomes of a text from standard input.

        `into_run`: the config is trained in its run_dir, where a run may be that it has to agree with.
        """
        _refuse_open_list(arguments)
        self.overrides = [argument for argument in arguments if is_override(argument)]
        self.file = file
        self._stdin, self._into_run = stdin, into_run
        sources = [argument for argument in arguments if argument not in self.overrides]
        for source in sources:
            _refuse_key(source)
        if sources and file is not None:
            hint = None if kind_of(sources[0]) == "config" else f"data.source={quote(sources[0])}"
            raise RequestError(f"give either --config {file} or {sources[0]}, not both", hint=hint)
        self.config = self._of_file(file) if file is not None else self._of(sources)
        from gpt_cli.cli.options.ineffective_keys import note_without_effect
        from gpt_cli.run.resume import TEXT_SECTIONS, resumed_changes

        note_without_effect(self.config, self.overrides, self.file)
        if self.file is None and into_run:
            resumed_changes(self.config, sections=TEXT_SECTIONS)  # before the text is read with another tokenizer

    def _of_file(self, file: Path) -> "Config":
        from gpt_cli.cli.options.data_options import refuse_twice
        from gpt_cli.config import load_config

        self.file = file
        config = load_config(file, self.overrides)
        refuse_to_lift(config, file, self.overrides)
        _refuse_paths_beside(file, config)
        if config.run_dir is not None:
            from gpt_cli.run.resume import TEXT_SECTIONS, resumed_changes, with_own_tokenizer

            with translate_os_errors("write", Path(config.run_dir)):
                _refuse_below_file(Path(config.run_dir))
                _refuse_imported(Path(config.run_dir))
            config = keep_stdin_of(config, self._stdin)
            config = with_own_tokenizer(config)
            if self._into_run:
                config = _with_pinned_sources(config)
                resumed_changes(config, sections=TEXT_SECTIONS)  # before the text is read as it is asked for
                _note_new_run(file, config, self.overrides)
            assert config.run_dir is not None
            if not (Path(config.run_dir) / RUN).exists():  # a run of older versions resumes as it is
                refuse_twice(list(config.data.sources))
        return config

    def _of(self, sources: list[str]) -> "Config":
        if len(sources) == 1 and (file := config_file(sources[0])) is not None:
            return self._of_file(file)
        for source in sources if len(sources) > 1 else []:
            if config_file(source) is not None:
                refuse_unless(TEXTS, source, "text")  # one run, or one config, is trained at a time
        return self._fitted(sources)

    def _fitted(self, sources: list[str]) -> "Config":
        """The config of the run that was made for this text before, or else one fitted to it and this machine."""
        from gpt_cli.cli.options.data_options import refuse_encoding, refuse_text_key, refuse_twice
        from gpt_cli.config import dump_config, parse_config, to_yaml_scalar
        from gpt_cli.config.load import parse_overrides, sets_null

        # null leaves to `gpt` what it would choose anyway
        chosen_anyway = ("run_dir=", "tokenizer.vocab_size=")
        self.overrides = [one for one in self.overrides if not (one.startswith(chosen_anyway) and sets_null(one))]
        keys = [override.partition("=")[0] for override in self.overrides if not sets_null(override)]
        if any(key.startswith(_BPE) for key in keys) and "tokenizer.kind" not in keys:
            self.overrides = [*self.overrides, "tokenizer.kind=bpe"]
        values = parse_overrides(self.overrides)
        source = _source(sources, values.get("data.source"), self.overrides)
        refuse_twice(source)
        if "data.weights" in values and source != "-":  # of which there are as many as texts
            parse_overrides([*self.overrides, f"data.source={to_yaml_scalar(source)}"])
        by_time = values.get("train.budget") is not None  # which decides on the shape
        if by_time:
            refuse_another_length(values)
        base, init_from = None, values.get("train.init_from")
        run_dir = values.get("run_dir") or f"runs/{_run_name(source, init_from)}"
        with translate_os_errors("write", Path(run_dir)):
            is_there = (Path(run_dir) / "config.yaml").is_file()
        if init_from is not None and not is_there:  # a run resumes without the one that it began from
            from gpt_cli.cli.options.inherit import inherit

            base = inherit(Path(init_from), values)
            base.refuse_another_model(values)
            base.refuse_another_tokenizer(values)
        texts = [source] if isinstance(source, str) else source
        for one in texts:
            if Path(one).is_fifo():
                raise RequestError(
                    f"{one} is a pipe, which is read once: a run reads its text again when it resumes",
                    hint="standard input is kept beside the run: gpt train - < FILE",
                )
        val_source = values.get("data.val_source")
        val_sources = [val_source] if isinstance(val_source, str) else val_source or []
        refuse_stdin_as_val_source(val_sources)
        refuse_text_key(texts, values.get("data.text_key"), "data.text_key")
        refuse_encoding([*texts, *val_sources], values.get("data.encoding"), "data.encoding")
        with translate_os_errors("write", Path(run_dir)):
            _refuse_below_file(Path(run_dir))
        if source == "-":
            is_labelled = values.get("task.kind") == "classes"
            refuse_stdin_as_examples("labelled" if is_labelled else values.get("data.format", "text"))
            source = keep_stdin(run_dir, self._stdin)
        if is_there:
            return self._existing(Path(run_dir), source, values)
        from gpt_cli.cli.options.fit_config import fit_to_this_machine
        from gpt_cli.config.keys import replace_keys
        from gpt_cli.corpus.hub import pin_sources

        values = {**values, "data.source": source}
        pinned = pin_sources(values, note) if self._into_run else {}
        fitted, reasons = fit_to_this_machine({**values, **pinned}, run_dir, None if base is None else base.values)
        sentences = [*(base.sentences if base is not None else []), *(reasons[:2] if by_time else reasons)]
        note("\n".join(sentences))
        overrides = [one for one in self.overrides if not one.startswith("data.source=")]
        config = parse_config(dump_config(fitted, full=False), str(Path(run_dir) / "config.yaml"), overrides)
        return replace_keys(config, pinned)

    def _existing(self, run_dir: Path, source: str | list[str], values: "ConfigValues") -> "Config":
        from gpt_cli.cli.options.fit_config import resolve_source
        from gpt_cli.config import load_config
        from gpt_cli.config.keys import replace_keys
        from gpt_cli.config.paths import is_gone
        from gpt_cli.corpus.hub import pin_sources
        from gpt_cli.corpus.prepare import check_paths

        overrides = [one for one in self.overrides if not one.startswith("data.source=")]
        try:
            existing = _with_pinned_sources(load_config(run_dir / "config.yaml", overrides))
        except RequestError as error:
            load_config(run_dir / "config.yaml")  # what is wrong by itself is reported as it is
            error.message = f"{run_dir} is a run with another config: {error.message}"
            if error.suggestion is None:
                error.kind = error.kind or "another run"
            raise
        source = pin_sources({"data.source": source}, note, existing.data.sources).get("data.source", source)
        requested = [source] if isinstance(source, str) else source
        if [*map(resolve_source, existing.data.sources)] == [*map(resolve_source, requested)]:
            return existing
        check_paths(requested)  # a name that is mistyped is no text
        if is_gone(existing.data.source):
            return replace_keys(existing, {"data.source": source})
        trained_on = ", ".join(existing.data.sources)
        kept = [quote(one) for one in overrides if not one.startswith(("run_dir=", "train.init_from="))]
        if (init_from := values.get("train.init_from")) is not None:
            kept.append(f"train.init_from={quote(init_from)}")
        another = " ".join(["gpt train", *map(quote, requested), "run_dir=runs/NAME", *kept])
        raise RequestError(
            f"{run_dir} is a run on another text, {trained_on}", hint=f"give this one another name: {another}"
        )


def _with_pinned_sources(config: "Config") -> "Config":
    """Return `config` with the commits of data sets of the Hub: those of the run that it resumes, or the newest."""
    from gpt_cli.config import load_config
    from gpt_cli.corpus.hub import pin_config
    from gpt_cli.run.run_files import run_of

    written = Path(run_of(config) or os.devnull, "config.yaml")
    return pin_config(config, note, load_config(written) if written.is_file() else None)


def _refuse_open_list(arguments: Sequence[str]) -> None:
    """Raise RequestError for a list that the shell has cut up at its spaces."""
    for start, argument in enumerate(arguments):
        if is_override(argument) and "=[" in argument and "]" not in argument:
            end = next((i for i, word in enumerate(arguments[start:], start + 1) if word.endswith("]")), None)
            if end is not None:
                whole = quote(" ".join(arguments[start:end]))
                raise RequestError(f"{argument} does not end", hint=f"a list with spaces is one word: {whole}")


def _refuse_paths_beside(file: Path, config: "Config") -> None:
    """Raise RequestError for a text that is not there from the current folder, and is from that of `file`."""
    from gpt_cli.config.paths import is_gone

    for source in (*config.data.sources, *config.data.val_sources):
        beside = file.parent / source
        if is_gone(source) and not is_gone(str(beside)):
            hint = f"paths are relative to the current folder: this one is {beside}"
            raise RequestError(f"{source} does not exist here", where=str(file), hint=hint)


def _note_new_run(file: Path, config: "Config", overrides: Sequence[str]) -> None:
    """Say that `config` is of another run than the one whose config is taken, and what is still of that one's text."""
    from gpt_cli.config.load import enclosing_run

    taken, run_dir = enclosing_run(file), Path(config.run_dir or "")
    if taken is None or run_dir.exists():
        return
    weights = "random weights" if config.train.init_from is None else f"the weights of {config.train.init_from}"
    note(f"{run_dir} is a new run with the config of {taken}, from {weights}; {taken} stays as it is")
    keys = {override.partition("=")[0] for override in overrides}
    if isinstance(config.task.class_weights, list) and "task.class_weights" not in keys:
        if "task.labels" in keys:
            raise RequestError(
                f"task.class_weights of {taken} are in the order of its own labels, not of task.labels here",
                hint="task.class_weights=balanced chooses them anew",
            )
        if "data.source" in keys:
            note(f"task.class_weights are those of {taken}; task.class_weights=balanced weighs the labels of this text")


def _refuse_key(source: str) -> None:
    """Raise RequestError for a key of the config that is not set as keys are: by an equals sign without spaces."""
    from gpt_cli.config.keys import fields

    if source.startswith("=") and not os.path.lexists(source):
        raise RequestError(
            f"{source} names no key to set", hint=f"write its key before it, such as train.steps{source}"
        )
    key, value = re.fullmatch(r"([a-z_.]*)\s*[:=]?\s*(.*)", source, flags=re.DOTALL).groups()  # type: ignore[union-attr]
    if key in fields() and not os.path.lexists(source):
        raise RequestError(
            f"{source} sets no key: one is written with an equals sign, without spaces",
            hint=f"write {key}={quote(value) if value else 'VALUE'}",
        )


def _refuse_below_file(run: Path) -> None:
    """Raise RequestError where no run can be made, because what should be a folder around it is a file."""
    refuse_dash(run, "a run")
    for parent in run.parents:
        if os.path.lexists(parent):
            if not parent.is_dir():
                raise RequestError(
                    f"{parent} is no folder, so {run} cannot be a run", hint="name another: run_dir=runs/NAME"
                )
            return


def _refuse_imported(run: Path) -> None:
    """Raise RequestError where `run` came from other tools: it has no text to resume on."""
    from gpt_cli.run.run_files import is_imported

    if is_imported(run):
        raise RequestError(
            f"{run} was imported, not trained: it has no text of its own",
            hint=f"start a new run from it with: gpt train TEXT train.init_from={quote(str(run))}",
        )


def _source(sources: list[str], override: Any, overrides: Sequence[str]) -> Any:
    """The text, or the texts, that the command line names."""
    if sources and override is not None:
        others = [one for one in overrides if not one.startswith("data.source=")]
        raise RequestError(
            f"the text is named twice: {', '.join(sources)}, and data.source={override}",
            hint=f"leave one of them out: {' '.join(['gpt train', *map(quote, [*sources, *others])])}",
        )
    if not sources and override is None:
        raise RequestError("there is nothing to train: give a text, a config or a run", hint=f"{_TEXT}, or: {_FILE}")
    if override is not None:
        return override
    return sources[0] if len(sources) == 1 else sources


def _run_name(source: Any, init_from: str | None) -> str:
    from gpt_cli.cli.options.fit_config import run_name

    name = run_name(source)
    if init_from is not None:
        path = Path(init_from)
        run = path.parent.parent if path.parent.name == "checkpoints" else path
        name += f"-from-{run_name(run.name)}"
    return name
