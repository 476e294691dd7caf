"""The text files of a folder, and the files that a glob matches, by rules that hold for the folder in an archive, too.

Links to folders are not followed: those of many trees lead in circles.
"""

import errno
import glob
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from gpt_cli.corpus.stored_file import inner_suffix
from gpt_cli.errors import Notify, UserError
from gpt_cli.files.kinds import TEXTS, kind_of_names, refuse_unless
from gpt_cli.terminal.words import plural

Folder = tuple[str, list[str], list[str]]
"""(path, names of folders, names of files) as `os.walk` yields them; removed folders are not walked."""
ARCHIVES = (".zip", ".tar", ".tgz")  # and .tar.gz, .tar.bz2, .tar.xz, .tar.zst
_NOT_TEXT = frozenset(
    [
        *(".7z", ".jar", ".rar", ".whl", *ARCHIVES),  # archives
        *(".bmp", ".gif", ".ico", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"),  # images
        *(".avi", ".flac", ".m4a", ".mkv", ".mov", ".mp3", ".mp4", ".ogg", ".wav", ".webm"),  # sound and film
        *(".doc", ".docx", ".odt", ".pdf", ".ppt", ".pptx", ".xls", ".xlsx"),  # documents
        *(".eot", ".otf", ".ttf", ".woff", ".woff2"),  # fonts
        *(".class", ".dll", ".dylib", ".exe", ".o", ".pyc", ".so", ".wasm"),  # programs
        *(".bin", ".db", ".h5", ".npy", ".npz", ".pt", ".pth", ".safetensors", ".sqlite"),  # data
    ]
)


def files_in_folder(folder: Path, note: Notify) -> list[Path]:
    """The text files of a folder, sorted. Raises as `choose_texts` does, OSError, and RequestError for runs alone."""

    def has_bytes(path: str) -> bool:
        try:
            status = os.stat(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):  # a link that leads nowhere
                return False
            raise
        return stat.S_ISREG(status.st_mode) and status.st_size > 0

    try:
        files = choose_texts(folder, _walk(str(folder)), has_bytes, note)
    except RecursionError as error:
        raise UserError(f"{folder} has too many folders in each other") from error
    return list(map(Path, files))


def choose_texts(root: Path, folders: Iterable[Folder], has_bytes: Callable[[str], bool], note: Notify) -> list[str]:
    """The paths of the text files in `folders`, which `root` contains, sorted; `note` is called for what is skipped.

    Not hidden, empty and binary ones, nor those of runs, token stores and models. Raises UserError if there are none,
    and RequestError if there are but runs or the like.
    """
    files: list[str] = []
    skipped: list[str] = []
    hidden: list[str] = []
    others: dict[str, list[str]] = {}
    for path, subfolders, names in folders:
        hidden += [os.path.join(path, name) for name in sorted(subfolders + names) if name.startswith(".")][:1]
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        names = [name for name in names if not name.startswith(".")]
        if (kind := kind_of_names([*subfolders, *names])) is not None:
            others.setdefault(kind, []).append(path)
            subfolders.clear()
            continue
        for file in (os.path.join(path, name) for name in names):
            if has_bytes(file):
                (skipped if inner_suffix(Path(file)) in _NOT_TEXT else files).append(file)
    if not files:
        if root.is_dir():
            refuse_unless(TEXTS - {"runs folder"}, root, "text")
        raise UserError(f"{root} has no text files", choices=[*others.get("token store", []), *hidden][:1])
    for name, paths in sorted(others.items()):
        if len(paths) == 1:
            note(f"left out the {name} {Path(paths[0])}")
        else:
            note(f"left out {len(paths):,} {name}s in {root}, for instance {Path(min(paths))}")
    if skipped:
        note(f"skipped {plural(len(skipped), 'binary file')} in {root}, for instance {Path(min(skipped))}")
    return sorted(files, key=by_parts)


def match_sorted(pattern: str) -> list[str]:
    """The paths that a pattern matches, sorted: as `glob`, but `**` follows no links. Raises OSError."""
    return sorted(set(_match(pattern)), key=by_parts)


def by_parts(path: str) -> str:
    """A sort key that orders paths as `Path` does, so that the files of a folder are adjacent."""
    return path.replace(os.sep, "\0")


def _walk(folder: str) -> Iterator[Folder]:
    """As `os.walk`, but raises OSError."""

    def fail(error: OSError) -> None:
        raise error

    return os.walk(folder or ".", onerror=fail)


def _match(pattern: str) -> Iterator[str]:
    parts = pattern.split(os.sep)
    if "**" not in parts:
        yield from glob.iglob(pattern)
        return
    wildcard = parts.index("**")
    before, after = os.sep.join(parts[:wildcard]), os.sep.join(parts[wildcard + 1 :]) or "*"
    roots = glob.iglob(before + os.sep) if before else iter([os.sep if wildcard else ""])
    for root in roots:
        for path, subfolders, _ in _walk(root):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            place = path if root else os.path.normpath(path)
            yield from _match(os.path.join("" if place == "." else glob.escape(place), after))
