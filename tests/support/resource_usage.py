"""Runs `gpt` on many inputs and says what each took: a JSON list of command lines in, a JSON list of outcomes out.

    python -m tests.support.resource_usage SECONDS < commands.json

Each runs in a process of its own, forked off one that has imported what they need: `rc` (negative for a signal),
`stderr`, `peak` (MB of memory, that of the forked process included) and `cpu` (seconds). Past SECONDS of processor time
the kernel ends it, however busy the machine is.
"""

import importlib
import json
import os
import resource
import sys
import tempfile
from typing import Any

from gpt_cli.cli.main import main


def run(command: list[str], seconds: int) -> dict[str, Any]:
    """The outcome of one command."""
    with tempfile.TemporaryFile() as stderr:
        process = os.fork()
        if process == 0:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.dup2(stderr.fileno(), sys.stderr.fileno())
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 99
            try:
                code = main(command)
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status, used = os.wait4(process, 0)
        stderr.seek(0)
        return {
            "rc": os.waitstatus_to_exitcode(status),
            "stderr": stderr.read().decode(),
            "peak": used.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3),
            "cpu": used.ru_utime + used.ru_stime,
        }


if __name__ == "__main__":
    for name in ("gpt_cli.cli.verbs.tokenize", "gpt_cli.corpus.prepare", "pyarrow.parquet", "zstandard"):
        importlib.import_module(name)
    json.dump([run(command, int(sys.argv[1])) for command in json.load(sys.stdin)], sys.stdout)
