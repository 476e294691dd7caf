"""Folders and globs, walked without following links to folders; how many entries and how deep is bounded."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from gpt_cli.errors import UserError

MOST_ENTRIES = 200_000  # under one folder: each file takes a kilobyte, and is opened by itself
DEEPEST = 100  # folders in each other

Entry = os.DirEntry[str]


def walk(folder: str) -> Iterator[tuple[str, list[Entry]]]:
    """Each folder from `folder` on, before those in it: its path, and what is in it but for hidden entries, sorted.

    Where the caller clears the list nothing below is walked. Links to folders are not. Raises OSError, and UserError
    for more than MOST_ENTRIES entries or DEEPEST folders in each other.
    """
    waiting = [(folder, 0)]
    seen = 0
    while waiting:
        place, depth = waiting.pop()
        if depth > DEEPEST:
            raise UserError(f"{folder} has more than {DEEPEST} folders in each other")
        found: list[Entry] = []
        with os.scandir(place or ".") as entries:
            for entry in entries:
                seen += 1
                if seen > MOST_ENTRIES:
                    raise UserError(
                        f"{folder or '.'} has more than {MOST_ENTRIES:,} files",
                        hint="put their texts into one .jsonl file, a line for each",
                    )
                if not entry.name.startswith("."):
                    found.append(entry)
        found.sort(key=lambda entry: entry.name)
        yield place, found
        below = [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
        waiting += [(os.path.join(place, name), depth + 1) for name in reversed(below)]


def is_file(entry: Entry) -> bool:
    """True if it is a regular file, or a link that leads to one. Raises OSError."""
    return Path(entry.path).is_file() if entry.is_symlink() else entry.is_file()  # a circle of links is no file


def match_sorted(pattern: str) -> list[str]:
    """The paths that a pattern matches, sorted: as `glob`, but `**` follows no links.

    Raises OSError, and UserError as `walk` does or for more than MOST_ENTRIES paths.
    """
    found: set[str] = set()
    for path in _match(pattern):
        found.add(path)
        if len(found) > MOST_ENTRIES:
            raise UserError(f"{pattern} matches more than {MOST_ENTRIES:,} files")
    return sorted(found, key=by_parts)


def by_parts(path: str) -> str:
    """A key to sort paths as `Path` does, a folder's files after one another."""
    return path.replace(os.sep, "\0")


def _match(pattern: str) -> Iterator[str]:
    parts = pattern.split(os.sep)
    if "**" not in parts:
        yield from glob.iglob(pattern)
        return
    at = parts.index("**")
    before, after = os.sep.join(parts[:at]), os.sep.join(parts[at + 1 :]) or "*"
    tops = glob.iglob(before + os.sep) if before else iter([os.sep if at else ""])
    for top in tops:
        for place, _ in walk(top):
            yield from _match(os.path.join(glob.escape(place), after))
