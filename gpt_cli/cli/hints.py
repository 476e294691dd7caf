"""The way out of an error: one for each class, in the words of the command that was called."""

from collections.abc import Collection, Mapping
from shlex import quote

from gpt_cli.errors import ErrorKind, UsageError, UserError

WAYS_OUT: Mapping[ErrorKind, str] = {
    "set": "{assignment}",
    "another run": "run_dir=runs/NAME starts a new run",
    "package": "pip install {choice}",
    "no config": "gpt config init -o {path}",
    "no run": "gpt runs lists the runs there are",
    "no checkpoint": "gpt train {path}",
    "no text": "--text FILE reads another text",
    "damaged run": "gpt doctor {path}",
    "run": "gpt train {path} resumes it",
    "checkpoint": "gpt train TEXT train.init_from={path}",
    "token store": "gpt train {path}",
    "foreign model": "gpt import {path} RUN",
    "runs folder": "gpt runs --dir {path}",
    "config": "gpt train --config {path}",
    "text": "gpt train {path}",
    "classifier": "gpt classify --run {path} TEXT",
    "language model": "gpt train TEXT task.kind=classes",
    "no runs": "gpt train TEXT",
    "not finite": "gpt train {path} run_dir=runs/NAME optim.lr=RATE",
    "unknown characters": "--unknown skip leaves them out",
    "no corpus": "gpt data get {path}",
}
"""The hint for each class of error."""
_OPTIONS = {"tokenizer.file": "--tokenizer"}
"""Options that are not named after their key."""


def add_hint(error: UserError, options: Collection[str], *, takes_keys: bool = False, command: str = "gpt") -> None:
    """Give `error` the hint of its class; if the command line is wrong, the help of `command`.

    Keys are written as `options` of the command, where it has them, unless it takes keys itself; and a text that takes
    the place of something else is what its option --text takes, if it has one.
    """
    options = () if takes_keys else options
    spelled = {key: _OPTIONS.get(key) or f"--{key.rpartition('.')[2].replace('_', '-')}" for key in error.keys}
    names = {key: option if "." in key and option in options else key for key, option in spelled.items()}
    for key, name in names.items() if error.where is None else ():  # else it is written in the file there
        error.message = error.message.replace(key, name)
    if error.hint is not None:
        return
    if error.kind is not None:
        choice = quote(error.choices[0]) if error.choices else "VALUE"
        name = next(iter(names.values()), "KEY")
        assignment = f"{name} {choice}" if name.startswith("--") else f"{name}={choice}"
        way = "--text {path}" if error.kind == "text" and "--text" in options else WAYS_OUT[error.kind]
        hint = way.format(path=quote(error.path or "PATH"), choice=choice, assignment=assignment)
        is_option, is_key = hint.startswith("--"), error.kind in ("set", "another run")
        if (is_option and hint.partition(" ")[0] not in options) or (is_key and not is_option and not takes_keys):
            error.choices = ()  # nothing that this command takes
        else:
            error.hint = hint
    elif isinstance(error, UsageError) and not error.choices:
        error.hint = f"{command} --help"
