"""Keep standard input as a file beside the run that is trained on it, which can be resumed from there."""

import filecmp
import os
import sys
import tempfile
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from gpt_cli.cli.output import note
from gpt_cli.errors import RequestError, UserError

if TYPE_CHECKING:
    from gpt_cli.config import Config

Stdin = Literal["keep", "discard", "refuse"]
"""The fate of a text from standard input: a file beside the run, one that vanishes with the process, or an error."""


def keep_stdin_of(config: "Config", stdin: Stdin) -> "Config":
    """`config` with the file that keeps standard input as its text where it names `-`; the same if it names none.

    A run that was begun on standard input itself, as older versions did, resumes as it is. Raises RequestError for
    validation text on standard input, and what `keep_stdin` raises.
    """
    data = config.data
    if "-" not in (texts := [*data.sources, *data.val_sources]):
        return config
    if stdin == "refuse":
        from gpt_cli.corpus.sources import refuse_standard_input

        refuse_standard_input(texts)
    if _reads_stdin(config.run_dir):
        return config
    refuse_stdin_as_val_source(data.val_sources)
    refuse_stdin_as_examples(data.format)
    assert config.run_dir is not None
    kept = keep_stdin(config.run_dir, stdin)
    source = kept if data.source == "-" else [kept if name == "-" else name for name in data.sources]
    return config.model_copy(update={"data": data.model_copy(update={"source": source})})


def _reads_stdin(run_dir: str | None) -> bool:
    from gpt_cli.config import load_config

    path = Path(run_dir or "", "config.yaml")
    if not path.is_file():
        return False
    data = load_config(path).data
    return "-" in [*data.sources, *data.val_sources]


def refuse_stdin_as_val_source(val_sources: list[str]) -> None:
    """Raise RequestError if validation text is standard input: a run reads it again when it resumes."""
    if "-" in val_sources:
        raise RequestError(
            "data.val_source is standard input, which is read once",
            hint="put that text in a file: data.val_source=FILE",
        )


def refuse_stdin_as_examples(data_format: str) -> None:
    """Raise RequestError for anything but plain text on standard input: the suffix of a file says how it is read."""
    if data_format != "text":
        kinds = {"chat": "chats", "labelled": "labelled texts"}
        raise RequestError(
            f"standard input is read as plain text, not as {kinds.get(data_format, data_format)}",
            hint="put it in a .jsonl or .csv file, and give that",
        )


def keep_stdin(run_dir: str, stdin: Stdin) -> str:
    """Write standard input to the file `run_dir`.txt, or to a temporary one if it is to be discarded; returns its path.

    Raises UserError for an empty standard input, and RequestError where that file holds another text, and where `stdin`
    is to be refused.
    """
    from gpt_cli.corpus.sources import refuse_standard_input, standard_input

    if stdin == "refuse":
        refuse_standard_input(["-"])
    if sys.stdin is not None and sys.stdin.isatty():
        note("the text is read from this terminal; Ctrl-D ends it")
    if stdin == "discard":
        temporary = tempfile.NamedTemporaryFile(suffix=".txt")  # noqa: SIM115 - as long as the process
        temporary.writelines(standard_input())
        temporary.flush()
        _TEMPORARY.append(temporary)
        return temporary.name
    path = Path(f"{run_dir}.txt")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with new.open("xb") as file:
            file.writelines(standard_input())
            file.flush()
            os.fsync(file.fileno())
        if not new.stat().st_size:
            raise UserError("standard input is empty")
        if not path.exists():
            new.rename(path)
            note(f"standard input is kept in {path}\nonce it trains, this run resumes with: gpt train {quote(run_dir)}")
        elif not filecmp.cmp(path, new, shallow=False):
            raise RequestError(
                f"{path} keeps another text than standard input has now",
                hint="give this one another name, run_dir=runs/NAME; or remove that file, if no run has it",
            )
    finally:
        new.unlink(missing_ok=True)
    return str(path)


_TEMPORARY: list[Any] = []
"""Temporary files of this process, which vanish with it."""
