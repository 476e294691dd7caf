"""Data sets of the Hugging Face hub, for sources that begin with `hf:`: the only ones that use the network."""

import fnmatch
from pathlib import Path
from textwrap import shorten

from gpt_cli.corpus.readers import inner_suffix
from gpt_cli.errors import Notify, RequestError, UserError, first_line, require_package
from gpt_cli.terminal.words import format_size

_DATA = (".parquet", ".jsonl", ".csv", ".txt")


def download_dataset(name: str, note: Notify) -> list[Path]:
    """The files of `OWNER/NAME[@REVISION][/PATTERN]`, downloaded into the hub's own cache unless they are there.

    Without a pattern: the files of the first kind it has of .parquet, .jsonl, .csv and .txt, and of these the ones
    for training where their names say so. Raises RequestError for a malformed name, UserError for what the hub or
    the network refuses.
    """
    owner, _, rest = name.partition("/")
    dataset, _, pattern = rest.partition("/")
    dataset, _, revision = dataset.partition("@")
    if not owner or not dataset:
        raise RequestError(
            f"'hf:{name}' names no data set", hint="write hf:OWNER/NAME, as in hf:roneneldan/TinyStories"
        )
    hub = require_package("huggingface_hub", f"hf:{name} needs", "huggingface_hub")
    repository = {"repo_id": f"{owner}/{dataset}", "repo_type": "dataset", "revision": revision or None}
    try:
        info = hub.HfApi().repo_info(**repository, files_metadata=True)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings}
        chosen = select_files(list(sizes), pattern)
        if not chosen:
            raise RequestError(f"hf:{name} has no such files", hint=f"it has: {', '.join(sorted(sizes)[:10])[:300]}")
        note(
            f"hf:{name}: {len(chosen)} files, {format_size(sum(sizes[file] for file in chosen))}, revision {info.sha};"
            " downloading what is not on this machine"
        )
        repository["revision"] = info.sha
        return [Path(hub.hf_hub_download(filename=file, **repository)) for file in chosen]
    except UserError:
        raise
    except Exception as error:  # the library's errors have no base in common
        reason = shorten(first_line(error), 200, placeholder=" ...")
        raise UserError(
            f"cannot get hf:{name} from the Hugging Face hub: {reason}",
            hint="hf: needs the network, and a login (hf auth login) for gated data sets",
        ) from error


def select_files(files: list[str], pattern: str) -> list[str]:
    """The files of a data set that hold its text, sorted."""
    if pattern:
        return sorted(file for file in files if fnmatch.fnmatchcase(file, pattern))
    for suffix in _DATA:
        if matches := [file for file in files if inner_suffix(Path(file)) == suffix and not file.startswith(".")]:
            return sorted([file for file in matches if "train" in file.lower()] or matches)
    return []
