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
    """A JSON line for each line of the two files, with the keys prompt and completion; without an empty one.

    Raises UserError for an archive that cannot be read, files of different length, or more text than is expected.
    """
    prompts, completions = corpus.zip_pair
    left = corpus.text_limit
    try:
        with zipfile.ZipFile(archive) as opened, opened.open(prompts) as first, opened.open(completions) as second:
            while True:
                pair = [stream.readline(left + 1) for stream in (first, second)]
                left -= sum(map(len, pair))
                if left < 0:
                    raise UserError(f"{archive} has more than the expected {format_size(corpus.text_limit)} of text")
                if not all(pair):
                    break
                prompt, completion = (line.decode().strip() for line in pair)
                if prompt and completion:
                    example = {"prompt": prompt, "completion": completion}
                    yield json.dumps(example, ensure_ascii=False).encode() + b"\n"
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {prompts} and {completions} in {archive}: {error}") from error
    if any(pair):
        raise UserError(f"{prompts} and {completions} in {archive} have different numbers of lines")
