"""Test whether a run is being trained just now: a process holds the lock that `directory.py` takes."""

import json
import os
import socket
from pathlib import Path

from gpt_cli.errors import UserError
from gpt_cli.files import DirectoryLock, LockedError, read_file


def is_training(run: Path) -> bool:
    """True if a process holds the lock of `run`; it is tried only if the process it names may be alive."""
    try:
        holder = dict(json.loads(read_file(run / "lock", 4096)))
        if holder["host"] == socket.gethostname():
            os.kill(int(holder["pid"]), 0)
    except PermissionError:  # alive, of another user
        pass
    except (OSError, UserError, ValueError, KeyError, TypeError, OverflowError):
        return False
    try:
        DirectoryLock(run, write=False).release()
    except LockedError:
        return True
    except UserError:  # not ours to lock
        return False
    return False
