"""Folders and globs, walked without following links to folders; the number of entries and the depth are bounded."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from gpt_cli.errors import UserError

MAX_ENTRIES = 200_000  # under one folder: each file takes a kilobyte, and is opened by itself
MAX_DEPTH = 100  # nested folders

Entry = os.DirEntry[str]


def walk(folder: str) -> Iterator[tuple[str, list[Entry]]]:
    """Yield (path, sorted entries that are not hidden) of `folder` and the folders below it, parents first.

    Links to folders are not followed, and nothing is walked below a folder whose list the caller clears. Raises
    OSError, and UserError for more than MAX_ENTRIES entries or MAX_DEPTH nested folders.
    """
    pending = [(folder, 0)]
    count = 0
    while pending:
        path, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise UserError(f"{folder} has more than {MAX_DEPTH} folders in each other")
        children: list[Entry] = []
        with os.scandir(path or ".") as entries:
            for entry in entries:
                count += 1
                if count > MAX_ENTRIES:
                    raise UserError(
                        f"{folder or '.'} has more than {MAX_ENTRIES:,} files",
                        hint="put their texts into one .jsonl file, a line for each",
                    )
                if not entry.name.startswith("."):
                    children.append(entry)
        children.sort(key=lambda entry: entry.name)
        yield path, children
        subfolders = [entry.name for entry in children if entry.is_dir(follow_symlinks=False)]
        pending += [(os.path.join(path, name), depth + 1) for name in reversed(subfolders)]


def is_file(entry: Entry) -> bool:
    """True if it is a regular file, or a link that leads to one. Raises OSError."""
    return Path(entry.path).is_file() if entry.is_symlink() else entry.is_file()  # a loop of links is no file


def match_sorted(pattern: str) -> list[str]:
    """The paths that a pattern matches, sorted: as `glob`, but `**` follows no links.

    Raises OSError, and UserError as `walk` does or for more than MAX_ENTRIES paths.
    """
    paths: set[str] = set()
    for path in _match(pattern):
        paths.add(path)
        if len(paths) > MAX_ENTRIES:
            raise UserError(f"{pattern} matches more than {MAX_ENTRIES:,} files")
    return sorted(paths, key=by_parts)


def by_parts(path: str) -> str:
    """A sort key that orders paths as `Path` does, so that the files of a folder are adjacent."""
    return path.replace(os.sep, "\0")


def _match(pattern: str) -> Iterator[str]:
    parts = pattern.split(os.sep)
    if "**" not in parts:
        yield from glob.iglob(pattern)
        return
    wildcard = parts.index("**")
    before, after = os.sep.join(parts[:wildcard]), os.sep.join(parts[wildcard + 1 :]) or "*"
    roots = glob.iglob(before + os.sep) if before else iter([os.sep if wildcard else ""])
    for root in roots:
        for path, _ in walk(root):
            yield from _match(os.path.join(glob.escape(path), after))
