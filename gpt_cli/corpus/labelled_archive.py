"""Texts with labels out of a tar.gz archive, read as a stream: nothing is ever extracted."""

import json
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpt_cli.errors import UserError
from gpt_cli.files.safe_io import format_size

if TYPE_CHECKING:
    from gpt_cli.corpus.registry import DatasetInfo


def read_labelled_archive(archive: Path, corpus: "DatasetInfo") -> Iterator[bytes]:
    """A JSON line for each file `FOLDER/LABEL/NAME.txt` of `archive`, in its order.

    Raises UserError for an archive that cannot be read, has none of them, or more text than it is known to have.
    """
    pattern = re.compile(rf"{re.escape(corpus.tar_folder or '')}/({'|'.join(corpus.labels)})/[^/]+\.txt")
    size = 0
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                match = pattern.fullmatch(member.name)
                if match is None or not member.isreg():
                    continue
                size += member.size
                if size > corpus.text_limit:
                    raise UserError(f"{archive} has more than the expected {format_size(corpus.text_limit)} of text")
                stream = tar.extractfile(member)
                assert stream is not None, "it is a regular file"
                line = {"text": stream.read().decode(), "label": match[1]}
                yield json.dumps(line, ensure_ascii=False).encode() + b"\n"
    except (tarfile.TarError, zlib.error, EOFError, OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {corpus.tar_folder} in {archive}: {error}") from error
    if not size:
        raise UserError(f"{archive} has no texts in {corpus.tar_folder}")
