"""`gpt` under an audit hook (`sys.addaudithook`) that ends it at the first dangerous thing that it does.

    python -m tests.support.audit_hook ARGUMENTS [then ARGUMENTS ...]

Ends with 99, saying what it was, at the first of: a pickle that names a class, code made from text or run from outside
the installed packages, a connection, another process, a file written outside the working directory and the cache.
"""

import os
import sys
import sysconfig
from types import CodeType
from typing import Any

from gpt_cli.cpu.common.compiler import find_compiler
from tests.support.command import ROOT

PACKAGE = str(ROOT / "gpt_cli")
STANDARD = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
INSTALLED = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]  # by .pth, too
LIBRARIES = tuple({os.path.realpath(path) for path in (*STANDARD, *INSTALLED)})
FORBIDDEN = {
    "pickle.find_class", "socket.connect", "socket.bind", "socket.getaddrinfo", "subprocess.Popen", "os.system",
    "os.exec", "os.posix_spawn", "os.fork", "ftplib.connect", "smtplib.connect", "urllib.Request", "webbrowser.open",
}  # fmt: skip
CREATE = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def is_library(file: str) -> bool:
    return file.startswith("<frozen ") or os.path.realpath(file).startswith(LIBRARIES)


def complaint(event: str, arguments: tuple[Any, ...]) -> str | None:
    """Why `event` must not happen here, if it must not."""
    if event in ("subprocess.Popen", "os.posix_spawn"):
        command = arguments[1]  # the compiler at work on files of ours, or Python asking what the processor is
        if command == ["uname", "-p"] or command == [find_compiler(), "--version"]:
            return None
        files = [word for word in command[1:] if word.startswith("/")]
        ours = (PACKAGE, os.environ["GPT_CACHE"])
        if command[0] == find_compiler() and files and all(file.startswith(ours) for file in files):
            return None
    if event in FORBIDDEN:
        return event
    if event == "exec" and isinstance(arguments[0], CodeType):
        file = arguments[0].co_filename
        if file.startswith(PACKAGE) or is_library(file):
            return None
        maker = sys._getframe(2).f_code.co_filename  # namedtuple and dataclasses make code; nobody else may
        return None if is_library(maker) else f"exec of {file} by {maker}"
    if event == "compile" and not is_library(sys._getframe(2).f_code.co_filename):
        return f"compile by {sys._getframe(2).f_code.co_filename}"
    if event == "open" and isinstance(arguments[0], str | bytes) and isinstance(arguments[2], int):
        path = os.path.realpath(os.fsdecode(arguments[0]))
        allowed = (os.getcwd(), os.environ["GPT_CACHE"], "/dev/")
        if arguments[2] & CREATE and not path.startswith(allowed):
            return f"{path} opened for writing"
    return None


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if (message := complaint(event, arguments)) is not None:
        os.write(2, f"FORBIDDEN: {message}\n".encode())
        os._exit(99)


if __name__ == "__main__":
    from gpt_cli.cli.main import main

    sys.addaudithook(watch)
    if sys.argv[1] == "do":
        __import__(sys.argv[2])  # a module of the test's, beside it: see that the watch is awake
        sys.exit(0)
    commands = " ".join(sys.argv[1:]).split(" then ")
    sys.exit(max(main(command.split()) for command in commands))
