"""Paths that a command names or chooses: checked before its work and not after it."""

import os
import re
import unicodedata
from difflib import get_close_matches
from itertools import chain, count
from pathlib import Path

from gpt_cli.errors import RequestError, UserError
from gpt_cli.files.os_errors import DiskError, translate_os_errors, why_closed


def cache_dir() -> Path:
    """Return `$GPT_CACHE`, else `$XDG_CACHE_HOME/gpt`, else `~/.cache/gpt`. Nothing is created."""
    if path := os.environ.get("GPT_CACHE"):
        return Path(path).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # relative paths are to be ignored (XDG specification)
        return Path(base) / "gpt"
    try:
        return Path.home() / ".cache" / "gpt"
    except RuntimeError as error:
        raise UserError("there is no home directory to keep a cache in, and GPT_CACHE is not set") from error


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


def similar_paths(path: Path) -> list[str]:
    """Return the path beside `path`, which does not exist, whose name is most like its name; none if none is."""
    try:
        names = [name for name in os.listdir(path.parent) if name != path.name]
        alike = get_close_matches(path.name, sorted(names))
        close = [name for name in alike if get_close_matches(path.stem, [Path(name).stem])]  # not by its suffix alone
        "".join([path.name, *close[:1]]).encode()  # a name that is not UTF-8 could not be typed
    except (OSError, ValueError):
        return []
    return [str(path.parent / name) for name in close[:1]]


def free_name(path: Path, suffix: str = "") -> Path:
    """Return `path` with `suffix`, and with a number after it where something has that name already."""
    if path.name in ("", ".."):
        path = Path(os.path.abspath(path))
    names = (path.with_name(f"{path.name}{suffix}{number}") for number in chain([""], (f"-{i}" for i in count(2))))
    return next(name for name in names if not os.path.lexists(name))


def to_slug(stem: str) -> str:
    """Return `stem` in letters, digits, _ and -, which no shell needs quotes for."""
    return re.sub(r"[^\w-]+", "-", unicodedata.normalize("NFC", stem)).strip("-") or "text"
