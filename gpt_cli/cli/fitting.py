"""A text instead of a config: what its run is called, and a config fitted to it and to this machine."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from gpt_cli.errors import RequestError

if TYPE_CHECKING:
    from gpt_cli.config import Config


def name_after(source: str) -> str:
    """A name of letters, digits, _ and - for what is made of the text `source`, which any data.source may be."""
    scheme, _, name = source.partition(":")
    path = Path(name) if scheme in ("builtin", "corpus", "hf") else resolve_source(source)
    return re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem).strip("-") or "text"


def resolve_source(source: str) -> Path:
    """The absolute path, free of links, that `source` names; equal for two ways to write the same file.

    Raises RequestError for what cannot be a path.
    """
    from os.path import realpath

    from gpt_cli.corpus.sources import find_path

    if "\0" in source:
        raise RequestError(f"{source} cannot be a path: it has a NUL character")
    return Path(realpath(find_path(source)))  # Path.resolve fails at links in a circle


def fit_to_this_machine(source: str, run_dir: str) -> tuple["Config", list[str]]:
    """`fit_config` for the processor and the GPU that are here."""
    import torch

    from gpt_cli.corpus.bars import stage_bars
    from gpt_cli.corpus.fit import fit_config
    from gpt_cli.runtime.processor import physical_cores

    has_gpu, cores = torch.cuda.is_available(), physical_cores()
    with stage_bars() as progress:
        return fit_config(source, run_dir=run_dir, has_gpu=has_gpu, cores=cores, progress=progress)
