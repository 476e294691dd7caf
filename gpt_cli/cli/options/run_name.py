"""Name what is made of texts, a run or tokens, and tell whether two names are of one text."""

import os
from collections.abc import Sequence
from pathlib import Path

from gpt_cli.corpus.hub_source import HubSource
from gpt_cli.corpus.sources import find_path
from gpt_cli.corpus.stored_file import is_compressed
from gpt_cli.errors import RequestError
from gpt_cli.files.locations import to_slug


def run_name(sources: str | Sequence[str]) -> str:
    """Name what is made of texts, in letters of any script, digits, _ and -: `book` for books/book.txt.gz."""
    source, *others = [sources] if isinstance(sources, str) else sources
    more = f"-and-{len(others)}-more" if others else ""
    scheme, _, name = source.partition(":")
    if source == "-":
        return f"standard-input{more}"
    if scheme == "hf":
        return to_slug(HubSource.parse(source).name) + more
    path = Path(name) if scheme in ("builtin", "corpus") else resolve_source(source)
    return to_slug((path.with_suffix("") if is_compressed(path) else path).stem) + more


def resolve_source(source: str) -> Path:
    """Return the absolute path, free of links, that `source` names; equal for two ways to write the same file.

    Raises RequestError for what cannot be a path.
    """
    if "\0" in source:
        raise RequestError(f"{source} cannot be a path: it has a NUL character")
    return Path(os.path.realpath(find_path(source)))  # Path.resolve fails at links in a circle
