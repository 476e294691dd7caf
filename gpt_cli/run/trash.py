"""Removing a run: it is moved beside the other runs, into a folder where nothing looks, and can be moved back."""

import os
from contextlib import suppress
from pathlib import Path

from gpt_cli.errors import RequestError
from gpt_cli.files import DirectoryLock, DiskError, free_name, make_directory, sync_directory
from gpt_cli.files.os_errors import translate_os_errors, why_closed
from gpt_cli.run.checkpoint import list_checkpoints
from gpt_cli.run.run_files import RUN


def trash_run(path: Path) -> Path:
    """Move the run `path` into the trash beside it; returns where it is now.

    Raises LockedError while something trains in it, RequestError for what is no run directory.
    """
    path = lasting_path(path)
    if not (path / RUN).is_file() and not (path.is_dir() and list_checkpoints(path)):
        raise RequestError(f"{path} is not a run directory", kind="no run")
    for folder in (path, path.parent):
        if not os.access(folder, os.W_OK):
            raise DiskError(f"cannot move {path}: {why_closed(folder)}")
    with DirectoryLock(path):
        trash = path.parent / ".trash"
        make_directory(trash)
        target = free_name(trash / path.name)
        with translate_os_errors("move", path):
            os.rename(path, target)
        with suppress(DiskError):  # the move is done; only a power cut could undo it
            sync_directory(trash)
            sync_directory(path.parent)
    return target


def lasting_path(path: Path) -> Path:
    """`path` as it means the same folder once that is moved: absolute if it leads through a parent, as from within."""
    return Path(os.path.abspath(path)) if path.name == "" or ".." in path.parts else path


def size_of(path: Path) -> int:
    """Bytes of all files under `path`."""
    return sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())
