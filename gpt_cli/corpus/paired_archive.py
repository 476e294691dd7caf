"""Pairs of sentences out of a zip archive with a file for each language: nothing is ever extracted."""

import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpt_cli.errors import UserError
from gpt_cli.files.safe_io import format_size

if TYPE_CHECKING:
    from gpt_cli.corpus.registry import DatasetInfo


def read_paired_archive(archive: Path, corpus: "DatasetInfo") -> Iterator[bytes]:
    """JSON lines with the keys prompt and completion, one for each line of both files unless one of them is empty.

    Raises UserError for an archive that cannot be read, files of different length, or more text than is expected.
    """
    prompts, completions = corpus.zip_pair
    bytes_left = corpus.text_limit
    try:
        with (
            zipfile.ZipFile(archive) as zip_archive,
            zip_archive.open(prompts) as first,
            zip_archive.open(completions) as second,
        ):
            while True:
                lines = [stream.readline(bytes_left + 1) for stream in (first, second)]
                bytes_left -= sum(map(len, lines))
                if bytes_left < 0:
                    raise UserError(f"{archive} has more than the expected {format_size(corpus.text_limit)} of text")
                if not all(lines):
                    break
                prompt, completion = (line.decode().strip() for line in lines)
                if prompt and completion:
                    example = {"prompt": prompt, "completion": completion}
                    yield json.dumps(example, ensure_ascii=False).encode() + b"\n"
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {prompts} and {completions} in {archive}: {error}") from error
    if any(lines):
        raise UserError(f"{prompts} and {completions} in {archive} have different numbers of lines")
