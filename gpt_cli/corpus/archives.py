"""Text out of zip and tar.gz archives, read as streams: nothing is ever extracted."""

import json
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpt_cli.errors import UserError
from gpt_cli.terminal.words import format_size

_READ_ERRORS = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, UnicodeDecodeError),
    *(KeyError, RuntimeError),  # of zipfile: there is no such file, or it is encrypted
)


def read_member(archive: Path, member: str, limit: int) -> Iterator[bytes]:
    """The bytes of one file of a zip archive, by its exact name.

    Raises UserError for an archive that cannot be read, or of more than `limit` bytes of text, as the others do.
    """
    size = 0
    with _translate_errors(archive, member), zipfile.ZipFile(archive) as opened, opened.open(member) as stream:
        while data := stream.read(1 << 20):
            size += len(data)
            _check_size(archive, size, limit)
            yield data


def read_pairs(archive: Path, members: tuple[str, ...], limit: int) -> Iterator[bytes]:
    """JSON lines with the keys prompt and completion, one for each line of two files of a zip archive, unless one of
    them is empty. Raises UserError for files of different length."""
    prompts, completions = members
    size = 0
    with (
        _translate_errors(archive, f"{prompts} and {completions}"),
        zipfile.ZipFile(archive) as opened,
        opened.open(prompts) as first,
        opened.open(completions) as second,
    ):
        while True:
            lines = [stream.readline(limit - size + 1) for stream in (first, second)]
            size += sum(map(len, lines))
            _check_size(archive, size, limit)
            if not all(lines):
                break
            prompt, completion = (line.decode().strip() for line in lines)
            if prompt and completion:
                yield _json_line({"prompt": prompt, "completion": completion})
    if any(lines):
        raise UserError(f"{prompts} and {completions} in {archive} have different numbers of lines")


def labelled_json_lines(archive: Path, folder: str, labels: tuple[str, ...], limit: int) -> Iterator[bytes]:
    """A JSON line with the keys text and label for each file `folder`/LABEL/NAME.txt of a tar.gz archive, in its
    order. Raises UserError if there is none."""
    pattern = re.compile(rf"{re.escape(folder)}/({'|'.join(labels)})/[^/]+\.txt")
    size = 0
    with _translate_errors(archive, folder), tarfile.open(archive, "r|gz") as tar:
        for member in tar:
            match = pattern.fullmatch(member.name)
            if match is None or not member.isreg():
                continue
            size += member.size
            _check_size(archive, size, limit)
            stream = tar.extractfile(member)
            assert stream is not None, "it is a regular file"
            yield _json_line({"text": stream.read().decode(), "label": match[1]})
    if not size:
        raise UserError(f"{archive} has no texts in {folder}")


@contextmanager
def _translate_errors(archive: Path, content: str) -> Iterator[None]:
    try:
        yield
    except _READ_ERRORS as error:
        raise UserError(f"cannot read {content} in {archive}: {error}") from error


def _check_size(archive: Path, size: int, limit: int) -> None:
    if size > limit:
        raise UserError(f"{archive} has more than the expected {format_size(limit)} of text")


def _json_line(values: dict[str, str]) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"
