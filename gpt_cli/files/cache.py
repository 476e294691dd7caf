"""The cache directory: tokenized corpora and downloads."""

import os
from pathlib import Path

from gpt_cli.errors import UserError


def cache_dir() -> Path:
    """`$GPT_CACHE`, else `$XDG_CACHE_HOME/gpt`, else `~/.cache/gpt`. Nothing is created."""
    if chosen := os.environ.get("GPT_CACHE"):
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG specification: a relative one is to be ignored
        return Path(base) / "gpt"
    try:
        return Path.home() / ".cache" / "gpt"
    except RuntimeError as error:
        raise UserError("there is no home directory to keep a cache in", hint="set GPT_CACHE to a directory") from error
