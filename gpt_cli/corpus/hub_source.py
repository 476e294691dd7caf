"""Names of data sets of the Hugging Face Hub, and which of their files a name selects.

`hf:OWNER/NAME[@REVISION]` is the training split; with `/CONFIGURATION` that of a configuration, as the data set's card
declares them, or of a folder; with `/PATTERN` the files that match.
"""

import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from glob import has_magic
from pathlib import Path
from textwrap import shorten
from typing import Any

import yaml

from gpt_cli.config.synonyms import suggest
from gpt_cli.corpus.stored_file import inner_suffix
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import read_file

_DATA = (".parquet", ".jsonl", ".csv", ".tsv", ".json", ".txt")
_NO_DATA = {"config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json"}  # as for `datasets`
_NAME = re.compile(r"hf:(\w[\w.-]*/\w[\w.-]*)(?:@(refs/(?:convert|pr)/[^/]+|[^/]*))?(?:/(.*))?", re.DOTALL)
_COMMIT = re.compile("[0-9a-f]{40}")
_FOR_TRAINING = re.compile(r"(?<![a-z])train(ing)?(?![a-z])", re.IGNORECASE)  # a whole word, of letters
_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(.*?)^---[ \t]*$", re.DOTALL | re.MULTILINE)
_CARD_LIMIT = 1 << 23  # bytes
_GLOB = {"**/": "(?:.+/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_SHOWN = 10  # configurations in an error


@dataclass(frozen=True)
class HubSource:
    """A data set at a revision, and what is selected of it: a configuration, folder or pattern; "": what trains."""

    repo: str
    revision: str
    selection: str

    @classmethod
    def parse(cls, source: str) -> "HubSource":
        """Parse a source. Raises RequestError."""
        if (match := _NAME.fullmatch(source)) is None:
            raise RequestError(f"'{source}' names no data set: hf:OWNER/NAME does")
        return cls(match[1], match[2] or "main", (match[3] or "").rstrip("/"))

    @property
    def is_pinned(self) -> bool:
        return _COMMIT.fullmatch(self.revision) is not None

    @property
    def place(self) -> dict[str, str]:
        """The arguments of huggingface_hub's functions."""
        return {"repo_id": self.repo, "repo_type": "dataset", "revision": self.revision}

    @property
    def name(self) -> str:
        """A name for what is made of the data set."""
        is_configuration = self.selection and "/" not in self.selection and not has_magic(self.selection)
        if is_configuration and inner_suffix(Path(self.selection)) not in _DATA:
            return f"{self.repo.partition('/')[2]}-{self.selection}"
        return Path(str(self).removeprefix("hf:")).stem

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"hf:{self.repo}{revision}" + (f"/{self.selection}" if self.selection else "")


@cache
def configurations(card: str) -> dict[str, dict[str, Any]]:
    """Return the configurations that the card of a data set declares in its front matter, by their names."""
    match = _FRONT_MATTER.match(read_file(Path(card), _CARD_LIMIT).decode(errors="replace"))
    try:
        values = yaml.safe_load(match[1]) if match is not None else None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"the card of a data set is no valid YAML: {shorten(str(error), 200)}", where=card) from error
    entries = values.get("configs") if isinstance(values, dict) else None
    entries = entries if isinstance(entries, list) else []
    named = [entry for entry in entries if isinstance(entry, dict) and "config_name" in entry]
    return {str(entry["config_name"]): entry for entry in named}


def select_files(
    files: Collection[str], source: HubSource, read_card: Callable[[], Mapping[str, Mapping[str, Any]]]
) -> list[str]:
    """Return the files of a data set that hold the selected text, sorted.

    `read_card` returns the configurations that the data set's card declares. Raises RequestError for a selection that
    is none of its configurations, folders and files, and for none where there are several configurations.
    """
    selection = source.selection
    if matches := sorted(file for file in files if fnmatch.fnmatchcase(file, selection)):
        return matches
    configurations = read_card()
    if not selection and configurations:
        usual = [name for name, values in configurations.items() if name == "default" or values.get("default") is True]
        usual = list(configurations) if len(configurations) == 1 else usual
        if len(usual) != 1:
            raise _ambiguous(source, list(configurations))
        selection = usual[0]
    if selection in configurations:
        chosen = _of_configuration(files, configurations[selection])
    else:
        chosen = _for_training([file for file in files if not selection or file.startswith(f"{selection}/")])
        folders = {file.partition("/")[0] for file in chosen if "/" in file and _FOR_TRAINING.search(file)}
        folders = {folder for folder in folders if not _FOR_TRAINING.search(folder)}
        if not selection and len(folders) > 1:  # each with a training split of its own
            raise _ambiguous(source, sorted(folders))
    if not chosen:
        if not source.selection:
            raise RequestError(f"{source} has no text")
        known = [*configurations, *{file.rpartition("/")[0] for file in files if "/" in file}]
        meant = [str(replace(source, selection=name)) for name in suggest(selection, known)]
        raise RequestError(f"{source} has no such files", choices=meant)
    return chosen


def _ambiguous(source: HubSource, names: list[str]) -> RequestError:
    choices = [str(replace(source, selection=name)) for name in names[:_SHOWN]]
    return RequestError(f"{source} has {len(names):,} configurations, and reads one", choices=choices)


def _of_configuration(files: Iterable[str], values: Mapping[str, Any]) -> list[str]:
    """Return the training files of a configuration, as `datasets` finds them."""
    folder = str(values.get("data_dir") or "").strip("./")
    folder += "/" if folder else ""
    entries = values.get("data_files") or {"path": "**"}
    splits = [
        (split, _to_expression(folder + str(path).removeprefix("./")))
        for entry in (entries if isinstance(entries, list) else [entries])
        for split, paths in [(entry.get("split"), entry.get("path")) if isinstance(entry, dict) else ("train", entry)]
        for path in (paths if isinstance(paths, list) else [paths])
    ]
    of_training = [expression for split, expression in splits if split == "train"]
    wanted = of_training or [expression for _, expression in splits]
    matches = [file for file in files if any(expression.fullmatch(file) for expression in wanted)]
    return _of_one_kind(matches) if of_training else _for_training(matches)


def _to_expression(pattern: str) -> re.Pattern[str]:
    """Translate a glob of which `**` alone matches several folders."""
    parts = re.findall(r"\*\*/|\*\*|\[[^\]]+\]|.", pattern, re.DOTALL)
    return re.compile("".join(_GLOB.get(part) or fnmatch.translate(part)[len("(?s:") : -len(r")\Z")] for part in parts))


def _for_training(files: Iterable[str]) -> list[str]:
    """Return the files of the first kind of _DATA there is; of these the ones for training where names tell."""
    files = _of_one_kind(files)
    return [file for file in files if _FOR_TRAINING.search(file)] or files


def _of_one_kind(files: Iterable[str]) -> list[str]:
    names = [file for file in sorted(files) if not file.startswith(".") and file.rpartition("/")[2] not in _NO_DATA]
    kinds = ([file for file in names if inner_suffix(Path(file)) == suffix] for suffix in _DATA)
    return next(filter(None, kinds), [])
