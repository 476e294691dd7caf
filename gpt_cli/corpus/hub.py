"""Data sets of the Hugging Face Hub: sources `hf:OWNER/NAME[@REVISION][/CONFIGURATION]`, or with a pattern of files.

The names of a revision's files are kept in `cache_dir()/hub`, the files in the Hub's own cache: a commit that was read
before is read again without the network.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from glob import has_magic
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import quote

import yaml

from gpt_cli.config.keys import get_key, replace_keys
from gpt_cli.config.paths import TEXT_KEYS
from gpt_cli.config.schema import Config
from gpt_cli.config.section import ConfigValues
from gpt_cli.config.synonyms import suggest
from gpt_cli.corpus.readers import inner_suffix
from gpt_cli.errors import Notify, RequestError, UserError, require_package
from gpt_cli.files import cache_dir, make_directory, read_file, replace_file
from gpt_cli.terminal.words import format_size, plural

_DATA = (".parquet", ".jsonl", ".csv", ".tsv", ".json", ".txt")
_NO_DATA = {"config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json"}  # as for `datasets`
_NAME = re.compile(r"hf:(\w[\w.-]*/\w[\w.-]*)(?:@(refs/(?:convert|pr)/[^/]+|[^/]*))?(?:/(.*))?", re.DOTALL)
_COMMIT = re.compile("[0-9a-f]{40}")
_FOR_TRAINING = re.compile(r"(?<![a-z])train(ing)?(?![a-z])", re.IGNORECASE)  # a whole word, of letters
_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(.*?)^---[ \t]*$", re.DOTALL | re.MULTILINE)
_CARD, _CARD_LIMIT, _LISTING_LIMIT = "README.md", 1 << 23, 1 << 27  # bytes
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
        """What is made of it is called so."""
        is_configuration = self.selection and "/" not in self.selection and not has_magic(self.selection)
        if is_configuration and inner_suffix(Path(self.selection)) not in _DATA:
            return f"{self.repo.partition('/')[2]}-{self.selection}"
        return Path(str(self).removeprefix("hf:")).stem

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"hf:{self.repo}{revision}" + (f"/{self.selection}" if self.selection else "")


@dataclass(frozen=True)
class Listing:
    """The files of a commit, with their sizes in bytes."""

    commit: str
    files: Mapping[str, int]


def download_dataset(name: str, note: Notify) -> list[Path]:
    """Return the files of the source `hf:NAME`, sorted by name, downloaded unless they are in the Hub's cache.

    `note` is called before a download. Raises RequestError for a name or a selection that means nothing, UserError for
    what the Hub or the network refuses.
    """
    source = HubSource.parse(f"hf:{name}")
    listing, chosen = _find(source, note)
    source = replace(source, revision=listing.commit)
    with translate_errors(str(source)) as hub:
        is_here = partial(hub.try_to_load_from_cache, **source.place)
        if missing := [file for file in chosen if not isinstance(is_here(filename=file), str)]:
            size = sum(listing.files[file] for file in missing)
            note(f"{source}: downloading {plural(len(missing), 'file')}, {format_size(size)}")
        return [Path(hub.hf_hub_download(filename=file, **source.place)) for file in chosen]


def pin_sources(values: ConfigValues, note: Notify, known: Collection[str] = ()) -> ConfigValues:
    """Return the keys of `values` that name data sets of the Hub without a commit, with their commits.

    A data set that is among the `known` sources, those of a run, has the commit that it has there; any other one the
    newest. Raises as `download_dataset` does.
    """
    pinned = {key: _pinned(values[key], note, known) for key in TEXT_KEYS if values.get(key) is not None}
    return {key: value for key, value in pinned.items() if value != values[key]}


def pin_config(config: Config, note: Notify, there: Config | None = None) -> Config:
    """Return `config` with the commits of its data sets of the Hub: those of `there`, or else the newest."""
    known = [] if there is None else [*there.data.sources, *there.data.val_sources]
    return replace_keys(config, pin_sources({key: get_key(config, key) for key in TEXT_KEYS}, note, known))


def _pinned(value: str | list[str], note: Notify, known: Collection[str]) -> Any:
    if isinstance(value, list):
        return [_pinned(one, note, known) for one in value]
    if not value.startswith("hf:") or value in known or HubSource.parse(value).is_pinned:
        return value
    source = HubSource.parse(value)
    for other in known:
        pinned = HubSource.parse(other) if other.startswith("hf:") else None
        if pinned is not None and pinned.is_pinned and replace(source, revision=pinned.revision) == pinned:
            remembered = None if source.revision == "main" else _remembered(source)  # a tag may be of another commit
            if source.revision == "main" or (remembered is not None and remembered.commit == pinned.revision):
                return other
    return str(replace(source, revision=_find(source, note)[0].commit))


@contextmanager
def translate_errors(name: str) -> Iterator[Any]:
    """Yield the package huggingface_hub. Raises UserError for all that it raises."""
    hub = require_package("huggingface_hub", f"{name} needs", "huggingface_hub")
    try:
        yield hub
    except UserError:
        raise
    except Exception as error:  # the library's errors have no base in common
        reason = shorten(str(error) or type(error).__name__, 400, placeholder=" ...")
        raise UserError(f"cannot get {name} from the Hugging Face Hub: {reason}") from error


def _find(source: HubSource, note: Notify) -> tuple[Listing, list[str]]:
    """Return the commit that `source` means, and the files of it that are selected."""
    listing = _list_files(source, note)

    def read_card() -> dict[str, dict[str, Any]]:
        if _CARD not in listing.files:
            return {}
        with translate_errors(str(source)) as hub:
            card = hub.hf_hub_download(filename=_CARD, **replace(source, revision=listing.commit).place)
        return _configurations(card)

    return listing, select_files(listing.files, source, read_card)


def _list_files(source: HubSource, note: Notify) -> Listing:
    """Ask for the files of a revision; of a commit only once. Without an answer they are those of the last time."""
    remembered = _remembered(source)
    if remembered is not None and source.is_pinned:
        return remembered
    with translate_errors(str(source)) as hub:
        try:
            info = hub.HfApi().repo_info(**source.place, files_metadata=True)
        except Exception as error:
            is_refusal = getattr(getattr(error, "response", None), "status_code", 500) < 500
            cached = None if is_refusal else remembered or _in_hub_cache(hub, source.place)
            if cached is None:
                raise
            note(f"no answer from the Hugging Face Hub: {source} is commit {cached.commit}, which is on this machine")
            return cached
    listing = Listing(info.sha, {file.rfilename: file.size or 0 for file in info.siblings})
    for revision in (listing.commit, source.revision):
        path = _memory(replace(source, revision=revision))
        with suppress(UserError):  # the next start asks again
            make_directory(path.parent)
            replace_file(path, json.dumps(asdict(listing)).encode())
    return listing


def _memory(source: HubSource) -> Path:
    return cache_dir() / "hub" / source.repo.replace("/", "--") / f"{quote(source.revision, safe='')}.json"


def _remembered(source: HubSource) -> Listing | None:
    try:
        values = json.loads(read_file(_memory(source), _LISTING_LIMIT))
        return Listing(str(values["commit"]), {str(name): int(size) for name, size in values["files"].items()})
    except (UserError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _in_hub_cache(hub: Any, place: Mapping[str, str]) -> Listing | None:
    """List what another program has downloaded of a revision; newer versions of the library know if it is complete."""
    try:
        folder = Path(hub.snapshot_download(**place, local_files_only=True))
    except Exception:  # the reason of an error is that of the first request
        return None
    files = [path for path in folder.rglob("*") if path.is_file()]
    return Listing(folder.name, {path.relative_to(folder).as_posix(): path.stat().st_size for path in files})


def select_files(
    files: Collection[str], source: HubSource, read_card: Callable[[], Mapping[str, Mapping[str, Any]]]
) -> list[str]:
    """Return the files of a data set that hold the selected text, sorted.

    `read_card` returns the configurations that the data set's card declares. Raises RequestError for a selection that
    is none of its configurations, folders and files, and for none where there are several configurations.
    """
    selection = source.selection
    if matches := sorted(file for file in files if fnmatchcase(file, selection)):
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
        known = [*configurations, *{file.rpartition("/")[0] for file in files if "/" in file}]
        meant = [str(replace(source, selection=name)) for name in suggest(selection, known)]
        raise RequestError(f"{source} has no such files" if selection else f"{source} has no text", choices=meant)
    return chosen


def _ambiguous(source: HubSource, names: list[str]) -> RequestError:
    choices = [str(replace(source, selection=name)) for name in names[:_SHOWN]]
    return RequestError(f"{source} has {len(names):,} configurations, and reads one", choices=choices)


def _of_configuration(files: Iterable[str], values: Mapping[str, Any]) -> list[str]:
    """Return the training files of a configuration, as `datasets` finds them."""
    glob_translate = require_package("fsspec.utils", "configurations need", "fsspec").glob_translate
    folder = str(values.get("data_dir") or "").strip("./")
    folder = f"{folder}/" if folder else ""
    inside = [file for file in files if file.startswith(folder)]
    entries = values.get("data_files")
    if entries is None:
        return _for_training(inside)
    splits: dict[str, list[str]] = {}
    for entry in entries if isinstance(entries, list) else [entries]:
        split, paths = (entry.get("split"), entry.get("path")) if isinstance(entry, dict) else ("train", entry)
        patterns = paths if isinstance(paths, list) else [paths]
        splits.setdefault(str(split), []).extend(folder + str(path).removeprefix("./") for path in patterns)
    wanted = splits.get("train") or [pattern for patterns in splits.values() for pattern in patterns]
    try:
        expressions = [re.compile(glob_translate(pattern)) for pattern in wanted]
    except (ValueError, re.error) as error:
        raise UserError(f"the card of a data set has a pattern that means nothing: {error}") from error
    matches = [file for file in inside if any(expression.fullmatch(file) for expression in expressions)]
    return _of_one_kind(matches) if "train" in splits else _for_training(matches)


def _for_training(files: Iterable[str]) -> list[str]:
    """Return the files of the first kind of _DATA there is; of these the ones for training where names tell."""
    files = _of_one_kind(files)
    return [file for file in files if _FOR_TRAINING.search(file)] or files


def _of_one_kind(files: Iterable[str]) -> list[str]:
    names = [file for file in sorted(files) if not file.startswith(".") and file.rpartition("/")[2] not in _NO_DATA]
    kinds = ([file for file in names if inner_suffix(Path(file)) == suffix] for suffix in _DATA)
    return next(filter(None, kinds), [])


@cache
def _configurations(card: str) -> dict[str, dict[str, Any]]:
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
