"""Check that files and directories can be written by their owner alone."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

_MAX_LINKS = 40  # as many as Linux follows in one path
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class UntrustedError(Exception):
    """Somebody else could have written this; the message says what and why."""


def require_trusted_parents(path: Path) -> None:
    """Raise UntrustedError if somebody else could replace the folder `path` or any folder or link on the way to it.

    Each must belong to root or the user, and only they may write to it (others, too, if it has the sticky bit). The
    check ends at a folder that does not exist yet. Raises OSError.
    """
    for place, status in _steps(path):
        if status.st_uid not in (0, os.geteuid()):
            raise UntrustedError(f"{place} belongs to another user")
        is_open = status.st_mode & _OTHERS and not status.st_mode & stat.S_ISVTX and not stat.S_ISLNK(status.st_mode)
        if is_open and not _is_own_group_alone(status):
            raise UntrustedError(f"others may write to {place}")


def require_own(name: str, status: os.stat_result) -> None:
    """Raise UntrustedError unless `status`, from `fstat` of an open descriptor, are of the user alone."""
    if status.st_uid != os.geteuid():
        raise UntrustedError(f"{name} belongs to another user")
    if status.st_mode & _OTHERS:
        raise UntrustedError(f"others may write to {name}")


def _steps(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every folder and link that the system passes from the root to `path`, itself included."""
    pending = list(reversed(path.absolute().parts[1:]))
    place, links = Path(path.absolute().anchor), 0
    yield place, os.lstat(place)
    while pending:
        name = pending.pop()
        if name == "..":
            place = place.parent
            continue
        step = place / name
        try:
            status = os.lstat(step)
        except FileNotFoundError:
            return
        yield step, status
        if not stat.S_ISLNK(status.st_mode):
            place = step
            continue
        links += 1
        if links > _MAX_LINKS:
            raise UntrustedError(f"{path} has too many symbolic links")
        target = Path(os.readlink(step))
        place = Path(target.anchor) if target.is_absolute() else place
        pending += [part for part in reversed(target.parts) if part != target.anchor]


def _is_own_group_alone(status: os.stat_result) -> bool:
    """True if the group that may write is the user's own, which many systems make, with nobody else in it."""
    if status.st_mode & stat.S_IWOTH:
        return False
    import grp  # noqa: PLC0415 (POSIX alone has them, and few folders ask)
    import pwd  # noqa: PLC0415

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return group.gr_gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
