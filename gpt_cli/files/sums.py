"""SHA256SUMS: what files of a directory must be, as `sha256sum` writes and checks it.

A committed directory is exactly what its SHA256SUMS lists (`commit`). A directory that goes on growing may list some of
its files, which are written once: what stands there is checked, what does not is not.
"""

import errno
import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from gpt_cli.errors import UserError
from gpt_cli.files.safe_io import DiskError, read_chunks, replace_file, translate_os_errors

SUMS = "SHA256SUMS"
_SUMS_LIMIT = 1 << 20
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9_][A-Za-z0-9._-]*)")
_TRIES = 3  # of reading a directory in which a file is just being replaced


class DamagedError(UserError):
    """The files are not those that were written: a flipped bit, a lost or a foreign file."""


def format_sums(sums: Iterable[tuple[str, str]]) -> bytes:
    """The contents of SHA256SUMS: a line for each (name, SHA-256 in hex), sorted."""
    lines = [f"{sha256}  {name}" for name, sha256 in sorted(sums)]
    if unfit := [line for line in lines if not _LINE.fullmatch(line)]:
        raise ValueError(f"not a name for a file with a sum: {unfit[0]!r}")
    return "".join(f"{line}\n" for line in lines).encode()


def read_sums(path: Path) -> dict[str, str]:
    """SHA256SUMS of the directory `path`: {file name: hex}. Raises DamagedError if missing or malformed."""
    sums: dict[str, str] = {}
    for number, (name, sha256) in enumerate(_lines(path), start=1):
        if name in sums:
            raise _malformed(path, number)
        sums[name] = sha256
    return sums


def write_listed(path: Path, contents: Mapping[str, bytes], last: str) -> None:
    """Write these files into the directory `path`, the one called `last` after SHA256SUMS, which lists all of them."""
    for name in contents.keys() - {last}:
        replace_file(path / name, contents[name])
    replace_file(path / SUMS, format_sums((name, _sum(data)) for name, data in contents.items()))
    replace_file(path / last, contents[last])


def replace_listed(path: Path, name: str, data: bytes) -> None:
    """Replace a file of the directory `path`, and its line in SHA256SUMS if it has one.

    At any moment, and after a crash, there is the old file or the new one, and a line for it: for a while, two lines.
    """
    lines = _listed(path)
    others = {line for line in lines if line[0] != name}
    new = (name, _sum(data))
    if others != lines:
        replace_file(path / SUMS, format_sums(lines | {new}))
    replace_file(path / name, data)
    if others != lines:
        replace_file(path / SUMS, format_sums(others | {new}))


def check_listed(path: Path, names: Collection[str] | None = None) -> None:
    """Raise DamagedError unless files of the directory `path` (None: all) are as SHA256SUMS says, where it lists them.

    A directory without SHA256SUMS, which an older gpt wrote, is not checked.
    """
    for left in reversed(range(_TRIES)):
        lines = _listed(path)
        listed = {name for name, _ in lines if names is None or name in names}
        wrong = next((name for name in sorted(listed) if (name, _sum_of(path / name)) not in lines), None)
        if wrong is None:
            return
        if not left or lines == _listed(path):
            raise DamagedError(
                f"{path / wrong} does not match its SHA-256: it is damaged, or was edited",
                hint=f"if you edited it, remove its line from {path / SUMS}; else put back what it was",
            )


def read_member(path: Path) -> Iterator[bytes]:
    """The bytes of a file that has a sum, in pieces; a link, a device or a bad sector is damage."""
    with translate_os_errors("read", path):
        try:
            yield from read_chunks(path, follow=False)
        except DiskError as error:
            raise DamagedError(f"{path.parent} is damaged: {path.name} is not a file") from error
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ELOOP):
                raise
            reason = (error.strerror or "").lower()  # as every message says it
            raise DamagedError(f"{path.parent} is damaged: {path.name} cannot be read ({reason})") from error


def _listed(path: Path) -> set[tuple[str, str]]:
    """(name, hex) of SHA256SUMS of a directory that may have none."""
    return set(_lines(path)) if os.path.lexists(path / SUMS) else set()


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """(name, hex) of each line of SHA256SUMS of the directory `path`. Raises DamagedError if missing or malformed."""
    if not os.path.lexists(path / SUMS):
        raise DamagedError(f"{path} is damaged: {SUMS} is missing")
    if os.lstat(path / SUMS).st_size > _SUMS_LIMIT:
        raise DamagedError(f"{path} is damaged: {SUMS} is too large")
    text = b"".join(read_member(path / SUMS)).decode("utf-8", errors="replace")
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        match = _LINE.fullmatch(line)
        if match is None or not text.endswith("\n"):
            raise _malformed(path, number)
        yield match[2], match[1]


def _malformed(path: Path, number: int) -> DamagedError:
    return DamagedError(f"{path} is damaged: {SUMS} has a malformed line", where=f"{path / SUMS}:{number}")


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sum_of(path: Path) -> str:
    """SHA-256 of a listed file. Raises DamagedError where there is none."""
    if not os.path.lexists(path):
        raise DamagedError(f"{path.parent} is damaged: {path.name} is missing")
    digest = hashlib.sha256()
    for chunk in read_member(path):
        digest.update(chunk)
    return digest.hexdigest()
