"""Another process that holds the lock of a directory."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.command import ROOT

HOLD = """
import sys; from pathlib import Path; from gpt_cli.files import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1])); print("held", flush=True); sys.stdin.read()
"""


@contextmanager
def locked_elsewhere(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """The process, which holds the lock until it is killed, or this block ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
