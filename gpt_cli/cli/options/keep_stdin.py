"""Keep a text from standard input in a file beside the run that trains on it, which can resume from there."""

import filecmp
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from gpt_cli.cli.output import note
from gpt_cli.corpus.sources import refuse_standard_input, standard_input
from gpt_cli.errors import RequestError, UserError

Stdin = Literal["keep", "discard", "refuse"]
"""Keep a text from standard input beside the run, in a file that vanishes with the process, or refuse it."""

_TEMPORARY: list[Any] = []  # files of this process, which vanish with it


def keep_stdin(
    sources: Sequence[str], val_sources: Sequence[str], data_format: str, run_dir: str, stdin: Stdin
) -> list[str]:
    """Return `sources` with the file that keeps standard input, RUN_DIR.txt, in place of `-`.

    Raises UserError where standard input is empty, RequestError where that file has another text, where it is no plain
    text, whose format the suffix of a file tells, where it is among `val_sources` or to be refused.
    """
    if "-" in val_sources:
        raise RequestError("data.val_source is standard input, which is read once: put that text in a file")
    if "-" not in sources:
        return list(sources)
    if stdin == "refuse":
        refuse_standard_input(sources)
    if data_format != "text":
        raise RequestError(f"standard input is read as plain text, not as {data_format}: give a .jsonl or .csv file")
    if sys.stdin is not None and sys.stdin.isatty():
        note("reading the text from this terminal; Ctrl-D ends it")
    kept = _discard() if stdin == "discard" else str(_keep(Path(f"{run_dir}.txt"), run_dir))
    return [kept if source == "-" else source for source in sources]


def _discard() -> str:
    temporary = tempfile.NamedTemporaryFile(suffix=".txt")  # noqa: SIM115 - as long as the process
    temporary.writelines(standard_input())
    temporary.flush()
    _TEMPORARY.append(temporary)
    return temporary.name


def _keep(path: Path, run_dir: str) -> Path:
    """Write standard input to the new file `path`, or verify that it has the same text."""
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
            raise RequestError(f"{path} keeps another text from standard input", kind="another run", path=run_dir)
    finally:
        new.unlink(missing_ok=True)
    return path
