"""Errors of the operating system as sentences for the user: one table from errno."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpt_cli.errors import UserError
from gpt_cli.terminal.words import format_size

_SENTENCES = {
    errno.ENOSPC: "no space left on device while writing {path} ({space})",
    errno.EDQUOT: "disk quota exceeded while writing {path}",
    errno.ENOTDIR: "cannot {action} {path}: {file} is a file, not a directory",
}
_LONGEST_NAME = 255  # bytes, on the file systems in use
_OTHER = "cannot {action} {path}: {reason}"


class DiskError(UserError):
    """The operating system refused a file operation: no space, no permission, a read-only or failing disk."""


@contextmanager
def translate_os_errors(action: str, path: Path, needed: int | None = None) -> Iterator[None]:
    """Raise an OSError as a DiskError: cannot `action` `path`, with the reason; `needed`: the bytes to be written."""
    try:
        yield
    except OSError as error:
        file = next((place for place in (path, *path.parents) if os.path.isfile(place)), None)
        number = errno.ENOTDIR if error.errno == errno.EEXIST and action == "create" else error.errno
        sentence = _SENTENCES.get(number or 0, _OTHER) if number != errno.ENOTDIR or file else _OTHER
        space, reason = _space(path, needed), reason_of(error, path)
        raise DiskError(sentence.format(action=action, path=path, file=file, space=space, reason=reason)) from error


def no_space(path: Path, needed: int) -> DiskError:
    """The error for `needed` bytes that are not free where `path` is."""
    return DiskError(_SENTENCES[errno.ENOSPC].format(path=path, space=_space(path, needed)))


def reason_of(error: OSError, path: Path) -> str:
    """Describe an `error` about `path`, with the owner of what is closed, or the length of a name that is too long."""
    reason = (error.strerror or str(error)).lower()
    if error.errno == errno.ENAMETOOLONG:
        length = max(len(os.fsencode(part)) for part in path.parts)
        return f"{reason} (a name has at most {_LONGEST_NAME} bytes, not {length})" * (length > _LONGEST_NAME) or reason
    return reason + owner_of(path) * (error.errno == errno.EACCES)


def owner_of(path: Path) -> str:
    """The owner of what is closed, ` (PATH belongs to ann)`: `path` or a folder above it; "" if unknown."""
    places = [place for place in (*reversed(path.parents), path) if os.path.lexists(place)]
    *folders, there = places or [path]
    closed = next((folder for folder in folders if not os.access(folder, os.X_OK)), there)
    if closed == path and folders and os.access(path, os.R_OK) and not os.access(folders[-1], os.W_OK):
        closed = folders[-1]  # in which nothing may be replaced
    try:
        try:
            owner = closed.owner()
        except KeyError:  # the number has no name
            owner = f"user {closed.stat().st_uid}"
        return f" ({closed if closed.name else closed.absolute()} belongs to {owner})"
    except (OSError, NotImplementedError):  # Windows has no owners
        return ""


def why_closed(folder: Path) -> str:
    """The reason, in words, why nothing may be written into `folder`."""
    is_read_only = hasattr(os, "statvfs") and os.statvfs(folder).f_flag & os.ST_RDONLY
    number = errno.EROFS if is_read_only else errno.EACCES
    return reason_of(OSError(number, os.strerror(number)), folder)


def _space(path: Path, needed: int | None) -> str:
    details = [] if needed is None else [f"needs {format_size(needed)}"]
    with suppress(OSError):  # e.g. no parent; the free space is only a detail
        details.append(f"{format_size(shutil.disk_usage(path if path.is_dir() else path.parent).free)} free")
    return ", ".join(details)
