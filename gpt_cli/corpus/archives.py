"""Text out of zip and tar.gz archives, read as streams: nothing is ever extracted."""

import json
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpt_cli.errors import UserError
from gpt_cli.terminal.words import format_size

_READ_ERRORS = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, UnicodeDecodeError),
    *(KeyError, RuntimeError),  # of zipfile: there is no such file, or it is encrypted
)


def read_member(archive: Path, member: str, limit: int) -> Iterator[bytes]:
    """Yield the bytes of one file of a zip archive, by its exact name.

    Raises UserError for an archive that cannot be read or has more than `limit` bytes of text, as the others do.
    """
    with _reading(archive, member, limit) as count, zipfile.ZipFile(archive) as opened, opened.open(member) as stream:
        while data := stream.read(1 << 20):
            count(len(data))
            yield data


def read_pairs(archive: Path, members: tuple[str, ...], limit: int) -> Iterator[bytes]:
    """Yield JSON lines with the keys prompt and completion, one for each line of two files of a zip archive, unless one
    of them is empty. Raises UserError for files of different length."""
    with (
        _reading(archive, " and ".join(members), limit) as count,
        zipfile.ZipFile(archive) as opened,
        opened.open(members[0]) as first,
        opened.open(members[1]) as second,
    ):
        while any(lines := [stream.readline(limit + 1) for stream in (first, second)]):
            count(sum(map(len, lines)))
            if not all(lines):
                raise UserError(f"{' and '.join(members)} in {archive} have different numbers of lines")
            prompt, completion = (line.decode().strip() for line in lines)
            if prompt and completion:
                yield _json_line({"prompt": prompt, "completion": completion})


def labelled_json_lines(archive: Path, folder: str, labels: tuple[str, ...], limit: int) -> Iterator[bytes]:
    """Yield a JSON line with the keys text and label for each file `folder`/LABEL/NAME.txt of a tar.gz archive, in its
    order. Raises UserError if there is none."""
    pattern = re.compile(rf"{re.escape(folder)}/({'|'.join(labels)})/[^/]+\.txt")
    is_empty = True
    with _reading(archive, folder, limit) as count, tarfile.open(archive, "r|gz") as tar:
        for member in tar:
            if (match := pattern.fullmatch(member.name)) is None or not member.isreg():
                continue
            count(member.size)
            stream = tar.extractfile(member)
            assert stream is not None, "it is a regular file"
            is_empty = False
            yield _json_line({"text": stream.read().decode(), "label": match[1]})
    if is_empty:
        raise UserError(f"{archive} has no texts in {folder}")


@contextmanager
def _reading(archive: Path, content: str, limit: int) -> Iterator[Callable[[int], None]]:
    """Translate errors of reading. Yields what is called with each number of bytes, of `limit` together."""
    total = 0

    def count(size: int) -> None:
        nonlocal total
        total += size
        if total > limit:
            raise UserError(f"{archive} has more than the expected {format_size(limit)} of text")

    try:
        yield count
    except _READ_ERRORS as error:
        raise UserError(f"cannot read {content} in {archive}: {error}") from error


def _json_line(values: dict[str, str]) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"
