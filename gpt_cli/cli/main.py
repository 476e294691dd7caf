"""`gpt`: the verbs, and where an exception becomes a message and an exit code.

Which of several processes that train together does so, `train_together.py` decides.
"""

import errno
import io
import os
import shutil
import signal
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
from gpt_cli.cli.hints import add_hint
from gpt_cli.cli.interruptible import SigTerm
from gpt_cli.cli.output import discard, note
from gpt_cli.cli.usage import called, options_of, takes_changes, usage_error, without_removed_options
from gpt_cli.cli.verbs import config, data, runs
from gpt_cli.cli.verbs.attention import attention
from gpt_cli.cli.verbs.bench import bench
from gpt_cli.cli.verbs.chat import chat
from gpt_cli.cli.verbs.classify import classify
from gpt_cli.cli.verbs.diff import diff
from gpt_cli.cli.verbs.draw import draw
from gpt_cli.cli.verbs.eval import evaluate
from gpt_cli.cli.verbs.export import export
from gpt_cli.cli.verbs.import_ import import_
from gpt_cli.cli.verbs.info import info
from gpt_cli.cli.verbs.plot import plot
from gpt_cli.cli.verbs.report import report
from gpt_cli.cli.verbs.sample import sample
from gpt_cli.cli.verbs.scale import scale
from gpt_cli.cli.verbs.score import score
from gpt_cli.cli.verbs.selftest import doctor, selftest
from gpt_cli.cli.verbs.serve import serve
from gpt_cli.cli.verbs.sweep import sweep
from gpt_cli.cli.verbs.tokenize import tokenize
from gpt_cli.cli.verbs.train import train
from gpt_cli.cli.verbs.tune import tune
from gpt_cli.errors import OUT_OF_MEMORY_MESSAGES, ExitCode, RequestError, UserError
from gpt_cli.files.os_errors import reason_of
from gpt_cli.runtime.cpu_level import restrict_libraries

COMPLETION = "_GPT_COMPLETE"  # the environment variable in which a shell asks
IN_UTF_8 = "have names and arguments read as UTF-8: export PYTHONUTF8=1"
_CANNOT_MAP = ("failed to map segment", "cannot allocate memory", "Cannot allocate memory")  # words of the loader
CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

app = App(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"gpt {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def gpt(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks (also: GPT_DEBUG=1).")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Train GPTs on any text, character by character or with BPE, and read what they write.

    Start with `gpt train TEXT`, then `gpt sample`.
    """
    if debug:
        os.environ["GPT_DEBUG"] = "1"
    if context.invoked_subcommand is None:
        print(context.get_help())
        return
    try:
        os.getcwd()
    except OSError as error:  # MKL would end the process
        hint = "change to one that is there, such as: cd ~"
        raise UserError("the current directory was removed", hint=hint) from error


app.command("train")(train)
app.command("sample")(sample)
app.command("chat", short_help="Write a text with a model, in turns.")(chat)
app.command("classify", short_help="Say which label a text has.")(classify)
app.command("tokenize", short_help="Train or take a tokenizer, write a corpus as tokens.")(tokenize)
app.command("eval", short_help="Measure the exact loss of a run, on its text or another.")(evaluate)
app.command("score", short_help="Say how surprising a text is.")(score)
app.command("info", short_help="Say how large a model is and what training it costs.")(info)
app.command("report", short_help="Write one page about one or more runs.")(report)
app.command("plot", short_help="Draw the curves of runs for a paper.")(plot)
app.command("diff", short_help="Say how runs differ.")(diff)
app.command("attention", short_help="Show where a model looks, head by head.")(attention)
app.command("draw", short_help="Draw what a part of a config means.")(draw)
app.command("bench", short_help="Measure how fast it is on this machine.")(bench)
app.command("tune", short_help="Propose a learning rate.")(tune)
app.command("sweep", short_help="Compare values of keys over seeds.")(sweep)
app.command("scale", short_help="Fit a scaling law to small runs.")(scale)
app.command("export", short_help="Write a run for other tools.")(export)
app.command("import", short_help="Import a model of other tools as a run.")(import_)
app.command("serve", short_help="Put runs behind OpenAI's API, with a page.")(serve)
app.command("doctor", short_help="Examine a run.")(doctor)
app.command("selftest", short_help="Try the promises of gpt on this machine and disk.")(selftest)
app.add_typer(runs.app, name="runs", short_help="List the runs there are, or remove one.")
app.add_typer(config.app, name="config")
app.add_typer(data.app, name="data", short_help="List and download known texts, or look into one.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `gpt` with `arguments` (default: the process's own) and return its exit code; raises nothing."""
    _open_standard_streams()
    # Threads that wait for each other by spinning take seconds for a step of 30 ms once other processes keep all cores
    # busy. Have them sleep after a while: it costs 7 % of a small model's step on a quiet machine (31 ms against 29; a
    # tenth of the spinning costs 90 %). OpenMP reads it when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # pydantic looks for plugins among all that is installed, which takes 8 ms.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        restrict_libraries()
        if instruction := os.environ.get(COMPLETION):
            code = _complete(instruction)
        else:
            code = _run(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()  # a full disk or a closed pipe shows here at the latest, not at interpreter exit
        return code
    except KeyboardInterrupt as stop:
        print(file=sys.stderr)
        return 128 + signal.SIGTERM if isinstance(stop, SigTerm) else ExitCode.INTERRUPTED
    except SystemExit as done:  # of `--install-completion` and `--show-completion`
        return done.code if isinstance(done.code, int) else ExitCode.DONE
    except BrokenPipeError:  # `| head` has read enough
        return ExitCode.DONE
    except UserError as error:
        argv = sys.argv[1:] if arguments is None else arguments
        command = called(argv, typer.main.get_command(app))
        add_hint(error, options_of(command), takes_keys=takes_changes(command))
        if _misread(argv):
            error.hint = IN_UTF_8
        return _report(error)
    except Exception as error:
        if (interrupted := _wrapped_signal(error)) is not None:
            print(file=sys.stderr)
            return interrupted
        return _report(_explain(error))
    finally:
        _drain_stdout()


def _wrapped_signal(error: Exception) -> int | None:
    """The exit code of a signal whose exception a library has made a text of its own error, as pydantic-core does."""
    codes = {KeyboardInterrupt: ExitCode.INTERRUPTED, SigTerm: 128 + signal.SIGTERM}
    last = str(error).rstrip().rpartition("\n")[2].strip()
    return next((code for kind, code in codes.items() if last.startswith(f"{kind.__name__}:")), None)


def _misread(arguments: Sequence[str]) -> bool:
    """True if the locale is none of UTF-8 and has left a byte of an argument undecoded."""
    bytes_left = any("\udc80" <= character <= "\udcff" for argument in arguments for character in argument)
    return bytes_left and sys.getfilesystemencoding() != "utf-8"


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        columns = shutil.get_terminal_size().columns
        width = columns - 2 if columns < 52 else None  # None: at least 50, however narrow the terminal
        with command.make_context("gpt", arguments, terminal_width=width) as context:
            code = command.invoke(context)
    except typer.Exit as request:
        return request.exit_code
    except typer.TyperException as error:
        if (kept := without_removed_options(arguments)) != arguments:
            return _run(kept)
        raise usage_error(error, arguments) from error
    return code if isinstance(code, int) else ExitCode.DONE


def _complete(instruction: str) -> int:
    """Print what the shell asks for by `instruction`, as the script of `gpt --install-completion` has it do."""
    from typer.completion import shell_complete

    from gpt_cli.cli.options.complete import complete_in_bash

    if instruction.startswith("complete_") and not {"COMP_WORDS", "_TYPER_COMPLETE_ARGS"} & os.environ.keys():
        raise RequestError(
            f"{COMPLETION} is for a shell that completes a line", hint="gpt --install-completion sets it up"
        )
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


def _explain(error: Exception) -> UserError:
    """The error for the user behind an exception no verb has translated: the machine's limits, or a bug."""
    text = str(error).strip().partition("\n")[0]
    package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if isinstance(error, ImportError) and any(message in str(error) for message in _CANNOT_MAP):
        explained = UserError("there is too little memory to load a library", hint="allow the process more: ulimit -v")
    elif isinstance(error, MemoryError) or any(message in text for message in OUT_OF_MEMORY_MESSAGES):
        explained = UserError(
            f"out of memory: {text}" if text else "out of memory",
            hint="allow the process more memory (ulimit -v); a training needs less with a lower"
            " train.micro_batch_size (same result) or model.n_embd",
        )
    elif isinstance(error, OSError) and error.errno == errno.EBADF and isinstance(sys.stdout.name, int):
        explained = UserError("standard output is closed")  # `_open_standard_streams` opened this one by its number
    elif isinstance(error, OSError) and error.errno in CANNOT_WRITE:
        explained = UserError(f"cannot write to {error.filename or 'standard output'}: {error.strerror}")
    elif isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        place = os.fspath(error.filename)
        explained = UserError(f"cannot use {place}: {reason_of(error, Path(os.fsdecode(place)))}")
    elif isinstance(error, UnicodeEncodeError) and error.encoding == sys.getfilesystemencoding() != "utf-8":
        name = f"the name {error.object!r} cannot be used: this locale has names in {error.encoding}"
        explained = UserError(name, hint=IN_UTF_8)
    elif package in sys.stdlib_module_names:  # such as _ssl: what Python was compiled without, no package has
        explained = UserError(f"cannot import {package}: {text}", hint="install a Python that was built with it")
    elif package not in ("", "gpt_cli"):
        explained = UserError(f"cannot import {package}: {text}", hint=f"pip install {package}")
    else:
        hint = None if _debugging() else _keep_traceback(error)
        explained = UserError(f"a bug in gpt: {type(error).__name__}: {text}", hint=hint)
        explained.exit_code = ExitCode.BUG
    explained.__cause__ = error
    return explained


def _keep_traceback(error: Exception) -> str:
    """Write the traceback to a file for a bug report; say where."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="gpt-bug-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.writelines(traceback.format_exception(error))
    except OSError:
        return "run it again with GPT_DEBUG=1 to see the traceback"
    return f"the traceback is in {file.name}; please report it"


def _report(error: UserError) -> int:
    if _debugging():
        note("".join(traceback.format_exception(error)))
    note(error.render())
    return error.exit_code


def _debugging() -> bool:
    return os.environ.get("GPT_DEBUG") == "1"
