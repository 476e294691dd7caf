"""`gpt`: run a command, and turn an exception into a message and an exit code."""

import errno
import io
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gpt_cli import __version__
from gpt_cli.cli.help_format import App
from gpt_cli.cli.lazy_group import LazyGroup
from gpt_cli.cli.output import discard, note
from gpt_cli.cli.process import SigTerm, exit_code_of
from gpt_cli.errors import OUT_OF_MEMORY_MESSAGES, ExitCode, RequestError, UserError, first_line
from gpt_cli.files.os_errors import reason_of
from gpt_cli.runtime.cpu_level import restrict_libraries

COMPLETION = "_GPT_COMPLETE"  # the environment variable in which a shell asks
IN_UTF_8 = "have names and arguments read as UTF-8: export PYTHONUTF8=1"
_CANNOT_MAP = ("failed to map segment", "cannot allocate memory", "Cannot allocate memory")  # words of the loader
CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

app = App(
    cls=LazyGroup,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback(invoke_without_command=True)
def gpt(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks (also: GPT_DEBUG=1).")] = False,
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.")] = False,
) -> None:
    """Train GPT language models on any text, on CPUs or GPUs, and sample, evaluate, export and serve them.

    Start with `gpt train TEXT`, then `gpt sample`.
    """
    if debug:
        os.environ["GPT_DEBUG"] = "1"
    if version or context.invoked_subcommand is None:
        print(f"gpt {__version__}" if version else context.get_help())
        raise typer.Exit
    try:
        os.getcwd()
    except OSError as error:  # MKL would end the process
        raise UserError("the current directory was removed", hint="change to another one, such as: cd ~") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `gpt` with `arguments` (default: the process's own) and return its exit code; raises nothing."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _open_standard_streams()
    # Threads that wait for each other by spinning take seconds for a step of 30 ms once other processes keep all cores
    # busy. Have them sleep after a while: it costs 7 % of a small model's step on a quiet machine (31 ms against 29; a
    # tenth of the spinning costs 90 %). OpenMP reads it when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # pydantic looks for plugins among all that is installed, which takes 8 ms.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        restrict_libraries()
        code = _complete(os.environ[COMPLETION]) if os.environ.get(COMPLETION) else _run(given)
        sys.stdout.flush()  # a full disk or a closed pipe shows here at the latest, not at interpreter exit
        return code
    except KeyboardInterrupt as stop:
        print(file=sys.stderr)
        return exit_code_of(stop)
    except SystemExit as done:  # of `--install-completion` and `--show-completion`
        return done.code if isinstance(done.code, int) else ExitCode.DONE
    except BrokenPipeError:  # `| head` has read enough
        return ExitCode.DONE
    except UserError as error:
        if sys.getfilesystemencoding() != "utf-8" and any("\udc80" <= byte <= "\udcff" for byte in "".join(given)):
            error.hint = IN_UTF_8  # the locale left a byte of an argument undecoded
        return _report(error)
    except Exception as error:
        if (stopped := _wrapped_signal(error)) is not None:
            print(file=sys.stderr)
            return exit_code_of(stopped)
        return _report(_explain(error))
    finally:
        _drain_stdout()


def _run(arguments: list[str]) -> int:
    """Run a command line. `gpt help VERB` is `gpt VERB --help`."""
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    command = typer.main.get_command(app)
    columns = shutil.get_terminal_size().columns
    width = columns - 2 if columns < 52 else None  # None: at least 50, however narrow the terminal
    try:
        with command.make_context("gpt", arguments, terminal_width=width) as context:
            code = command.invoke(context)
    except typer.Exit as request:
        return request.exit_code
    return code if isinstance(code, int) else ExitCode.DONE


def _complete(instruction: str) -> int:
    """Print what the shell asks for by `instruction`, as the script of `gpt --install-completion` has it do."""
    from typer.completion import shell_complete

    from gpt_cli.cli.options.complete import complete_in_bash

    if instruction.startswith("complete_") and not {"COMP_WORDS", "_TYPER_COMPLETE_ARGS"} & os.environ.keys():
        raise RequestError(f"{COMPLETION} is for a shell that completes a line, see gpt --install-completion")
    complete = partial(shell_complete, typer.main.get_command(app), {}, "gpt", COMPLETION, instruction)
    return complete_in_bash(complete) if instruction == "complete_bash" else complete()


def _open_standard_streams() -> None:
    """Give a closed stdout or stderr (`>&-`) the null device, so that no file takes its number.

    What is written to stdout is an error (EBADF), as it is of a full disk; messages are lost.
    """
    if sys.stdout is None:
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w")  # noqa: SIM115 - as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale without a character must not end the run


def _drain_stdout() -> None:
    """Leave nothing in the buffer for the interpreter to fail on when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        discard(sys.stdout.fileno())


def _wrapped_signal(error: Exception) -> KeyboardInterrupt | None:
    """The signal whose exception a library has made a text of its own error, as pydantic-core does."""
    last = str(error).rstrip().rpartition("\n")[2].strip()
    return next((kind() for kind in (KeyboardInterrupt, SigTerm) if last.startswith(f"{kind.__name__}:")), None)


def _explain(error: Exception) -> UserError:
    """The error for the user behind an exception that no verb has translated: a limit of the machine, or a bug."""
    limit = _limit(error)
    message, hint = limit or (f"a bug in gpt: {type(error).__name__}: {first_line(error)}", _keep_traceback(error))
    explained = UserError(message, hint=hint)
    explained.exit_code = ExitCode.FAILED if limit else ExitCode.BUG
    explained.__cause__ = error
    return explained


def _limit(error: Exception) -> tuple[str, str | None] | None:
    """(message, hint) of an exception that a limit of the machine has caused, else None."""
    text = first_line(error)
    is_memory = isinstance(error, MemoryError) or any(message in text for message in OUT_OF_MEMORY_MESSAGES)
    match error:
        case ImportError() if any(message in str(error) for message in _CANNOT_MAP):
            return "there is too little memory to load a library", "allow the process more: ulimit -v"
        case _ if is_memory:
            message = "out of memory" + f": {text}" * (text != "MemoryError")
            return message, "lower train.micro_batch_size (same result) or model.n_embd, or raise ulimit -v"
        case OSError(errno=errno.EBADF) if isinstance(sys.stdout.name, int):
            return "standard output is closed", None  # `_open_standard_streams` opened this one by its number
        case OSError(errno=number, filename=name) if number in CANNOT_WRITE:
            return f"cannot write to {name or 'standard output'}: {error.strerror}", None
        case OSError(errno=int(), filename=str() | bytes() | os.PathLike() as name):
            place = Path(os.fsdecode(name))
            return f"cannot use {place}: {reason_of(error, place)}", None
        case UnicodeEncodeError(encoding=encoding) if encoding == sys.getfilesystemencoding() != "utf-8":
            return f"the name {error.object!r} cannot be used: this locale has names in {encoding}", IN_UTF_8
        case ImportError(name=str(module)) if (package := module.partition(".")[0]) not in ("", "gpt_cli"):
            is_of_python = package in sys.stdlib_module_names  # such as _ssl: Python was compiled without it
            return f"cannot import {package}: {text}", None if is_of_python else f"pip install {package}"
    return None


def _keep_traceback(error: Exception) -> str | None:
    """Write the traceback to a file for a bug report, unless it is printed; return a hint that names it."""
    if os.environ.get("GPT_DEBUG") == "1":
        return None
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="gpt-bug-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.writelines(traceback.format_exception(error))
    except OSError:
        return "--debug prints the traceback"
    return f"the traceback is in {file.name}; please report it"


def _report(error: UserError) -> int:
    if os.environ.get("GPT_DEBUG") == "1":
        note("".join(traceback.format_exception(error)))
    note(error.render())
    return error.exit_code
