"""SHA256SUMS files, in the format of `sha256sum`.

A committed directory has exactly the files of its SHA256SUMS (`atomic_dir`). A directory that still grows may list some
of its files, which are written once; only those are checked.
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
_MAX_TRIES = 3  # reads of a directory in which a file is being replaced


class DamagedError(UserError):
    """The files differ from those written: a flipped bit, a missing or an unexpected file."""


def format_sums(sums: Iterable[tuple[str, str]]) -> bytes:
    """The contents of SHA256SUMS: a line for each (name, SHA-256 in hex), sorted."""
    lines = [f"{sha256}  {name}" for name, sha256 in sorted(sums)]
    if invalid := [line for line in lines if not _LINE.fullmatch(line)]:
        raise ValueError(f"not a name for a file with a sum: {invalid[0]!r}")
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
    """Write these files into the directory `path`, then SHA256SUMS, which lists all of them, then the file `last`."""
    for name in contents.keys() - {last}:
        replace_file(path / name, contents[name])
    replace_file(path / SUMS, format_sums((name, _sum(data)) for name, data in contents.items()))
    replace_file(path / last, contents[last])


def replace_listed(path: Path, name: str, data: bytes) -> None:
    """Replace a file of the directory `path`, and its line in SHA256SUMS if it has one.

    At any time, and after a crash, there is the old or the new file, and a line for it; meanwhile there are two lines.
    """
    lines = _listed(path)
    other_lines = {line for line in lines if line[0] != name}
    new = (name, _sum(data))
    if other_lines != lines:
        replace_file(path / SUMS, format_sums(lines | {new}))
    replace_file(path / name, data)
    if other_lines != lines:
        replace_file(path / SUMS, format_sums(other_lines | {new}))


def check_listed(path: Path, names: Collection[str] | None = None, *, follow: bool = False) -> None:
    """Raise DamagedError unless the files `names` (None: all) of the directory `path` match their SHA256SUMS, if any.

    A directory without SHA256SUMS, of an older gpt, is not checked. Links are refused unless `follow`.
    """
    for retries in reversed(range(_MAX_TRIES)):
        lines = _listed(path, follow)
        listed = {name for name, _ in lines if names is None or name in names}
        mismatch = next((name for name in sorted(listed) if (name, _sum_of(path / name, follow)) not in lines), None)
        if mismatch is None:
            return
        if not retries or lines == _listed(path, follow):
            raise DamagedError(f"{path / mismatch} does not match its SHA-256: it is damaged, or was edited")


def unlisted(path: Path, names: Iterable[str]) -> list[str]:
    """The `names` that SHA256SUMS of the directory `path` does not list."""
    listed = {name for name, _ in _listed(path)}
    return [name for name in names if name not in listed]


def read_member(path: Path, follow: bool = False) -> Iterator[bytes]:
    """Yield the bytes of a file with a checksum.

    Raises DamagedError for a device, a bad sector and, unless `follow`, a link.
    """
    with translate_os_errors("read", path):
        try:
            yield from read_chunks(path, follow=follow)
        except DiskError as error:
            raise DamagedError(f"{path.parent} is damaged: {path.name} is not a file") from error
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ELOOP):
                raise
            reason = (error.strerror or "").lower()  # as in other messages
            raise DamagedError(f"{path.parent} is damaged: {path.name} cannot be read ({reason})") from error


def _listed(path: Path, follow: bool = False) -> set[tuple[str, str]]:
    """{(name, hex)} of SHA256SUMS; empty if the directory has none."""
    return set(_lines(path, follow)) if os.path.lexists(path / SUMS) else set()


def _lines(path: Path, follow: bool = False) -> Iterator[tuple[str, str]]:
    """Yield (name, hex) for each line of SHA256SUMS. Raises DamagedError if it is missing or malformed."""
    if not os.path.lexists(path / SUMS):
        raise DamagedError(f"{path} is damaged: {SUMS} is missing")
    with translate_os_errors("look at", path / SUMS):
        size = (os.stat if follow else os.lstat)(path / SUMS).st_size
    if size > _SUMS_LIMIT:
        raise DamagedError(f"{path} is damaged: {SUMS} is too large")
    text = b"".join(read_member(path / SUMS, follow)).decode("utf-8", errors="replace")
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        match = _LINE.fullmatch(line)
        if match is None or not text.endswith("\n"):
            raise _malformed(path, number)
        yield match[2], match[1]


def _malformed(path: Path, number: int) -> DamagedError:
    return DamagedError(f"{path} is damaged: {SUMS} has a malformed line", where=f"{path / SUMS}:{number}")


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sum_of(path: Path, follow: bool) -> str:
    """SHA-256 of a listed file. Raises DamagedError if it is missing."""
    if not os.path.lexists(path):
        raise DamagedError(f"{path.parent} is damaged: {path.name} is missing")
    digest = hashlib.sha256()
    for chunk in read_member(path, follow):
        digest.update(chunk)
    return digest.hexdigest()
