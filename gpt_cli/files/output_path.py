"""A path that a command is asked to write to, checked before its work and not after it."""

import errno
import os
import re
import unicodedata
from itertools import chain, count
from pathlib import Path

from gpt_cli.errors import RequestError
from gpt_cli.files.safe_io import DiskError, owner_of, translate_os_errors


def refuse_dash(output: Path, what: str = "a directory") -> None:
    """Raise RequestError for `-`, a standard stream elsewhere, and for a new run or folder named like an option."""
    if str(output) == "-":
        raise RequestError(f"- is no name for {what}: elsewhere it means standard input")
    if what != "a file" and str(output).startswith("-") and not os.path.lexists(output):
        problem = f"{output} is no name for {what}: what begins with a dash is an option elsewhere"
        raise RequestError(problem, choices=[name for name in [str(output).lstrip("-")] if name])


def require_directory(path: Path, *, missing: bool = True) -> None:
    """Raise RequestError if `path` is no directory. `missing`: it need not exist."""
    with translate_os_errors("use", path):
        is_wrong = not path.is_dir() and (path.exists() or not missing)
    if is_wrong:
        raise RequestError(f"{path} is not a directory" if path.exists() else f"there is no directory {path}")


def require_writable(output: Path) -> None:
    """Raise RequestError if `output` cannot be a file, DiskError if it may not be."""
    refuse_dash(output, "a file")
    with translate_os_errors("write", output):
        has_parent, is_directory = output.parent.is_dir(), output.is_dir()
        file = next((folder for folder in output.parents if folder.is_file()), None)
    if file is not None:
        raise RequestError(f"{file} is a file, not a directory to write into")
    if not has_parent:
        raise RequestError(f"there is no directory {output.parent} to write {output.name} into")
    if is_directory:
        raise RequestError(f"{output} is a directory")
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise DiskError(f"cannot write {output}: {why_closed(output.parent)}")


def free_name(stem: str, suffix: str) -> Path:
    """A name in the current folder that nothing has: `stem` with `suffix`, else with -2, -3 and so on before it."""
    names = chain([stem], (f"{stem}-{number}" for number in count(2)))
    return next(path for path in (Path(name + suffix) for name in names) if not os.path.lexists(path))


def why_closed(folder: Path) -> str:
    """The reason, in words, why nothing may be written into `folder`."""
    if hasattr(os, "statvfs") and os.statvfs(folder).f_flag & os.ST_RDONLY:
        return os.strerror(errno.EROFS).lower()
    return f"{os.strerror(errno.EACCES).lower()}{owner_of(folder)}"


def to_slug(stem: str) -> str:
    """`stem` in letters, digits, _ and -, which no shell needs quotes for."""
    return re.sub(r"[^\w-]+", "-", unicodedata.normalize("NFC", stem)).strip("-") or "text"
