"""Download data sets of the Hugging Face Hub, and pin sources to their commits.

The names of a revision's files are kept in `cache_dir()/hub`, the files in the Hub's own cache: a commit that was read
before is read again without the network.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import quote

from gpt_cli.config.keys import get_key, replace_keys
from gpt_cli.config.paths import TEXT_KEYS
from gpt_cli.config.schema import Config
from gpt_cli.config.section import ConfigValues
from gpt_cli.corpus.hub_source import HubSource, configurations, select_files
from gpt_cli.errors import Notify, UserError, require_package
from gpt_cli.files import cache_dir, make_directory, read_file, replace_file
from gpt_cli.terminal.words import format_size, plural

_CARD = "README.md"
_LISTING_LIMIT = 1 << 27  # bytes
_REFUSALS = (401, 403, 404)  # of HTTP: the Hub answers


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
    trained, validated = ([], []) if there is None else (there.data.sources, there.data.val_sources)
    known = {"data.source": [*trained, *validated], "data.val_source": [*validated, *trained]}  # the likelier first
    changes = [pin_sources({key: get_key(config, key)}, note, known[key]) for key in TEXT_KEYS]
    return replace_keys(config, {key: value for change in changes for key, value in change.items()})


def _pinned(value: str | list[str], note: Notify, known: Collection[str]) -> Any:
    if isinstance(value, list):
        return [_pinned(one, note, known) for one in value]
    if not value.startswith("hf:") or value in known or HubSource.parse(value).is_pinned:
        return value
    source = HubSource.parse(value)
    for other in (one for one in known if one.startswith("hf:") and source.revision == "main"):
        pinned = HubSource.parse(other)
        if pinned.is_pinned and replace(source, revision=pinned.revision) == pinned:
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
        return configurations(card)

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
            is_refusal = getattr(getattr(error, "response", None), "status_code", None) in _REFUSALS
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
