"""The cache directory: tokenized corpora and downloads."""

import os
from pathlib import Path

from gpt_cli.errors import UserError


def cache_dir() -> Path:
    """`$GPT_CACHE`, else `$XDG_CACHE_HOME/gpt`, else `~/.cache/gpt`. Nothing is created."""
    if path := os.environ.get("GPT_CACHE"):
        return Path(path).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # relative paths are to be ignored (XDG specification)
        return Path(base) / "gpt"
    try:
        return Path.home() / ".cache" / "gpt"
    except RuntimeError as error:
        raise UserError("there is no home directory to keep a cache in, and GPT_CACHE is not set") from error
