"""A run's directory: what belongs in it, who may write to it, and which requests fit it.

    config.yaml tokenizer.json data.json run.json   written once; config.yaml again when a key changed that may
    lock                                            held by the one process that trains here
    metrics.jsonl samples.jsonl events.jsonl        see `log`
    checkpoints/                                    see `checkpoint`

run.json is written last: without it the directory is not a run. These are plain files, for people to read: what decides
numbers is read from the verified copies in the checkpoints (`run_files`), with which an edited config.yaml is compared.
"""

import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gpt_cli.config import Config, dump_config
from gpt_cli.config.load import parse_config, read_config_file
from gpt_cli.config.paths import as_written
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import (
    DirectoryLock,
    DiskError,
    LockedError,
    free_name,
    list_directory,
    make_directory,
    remove_stale_temp_dirs,
    replace_file,
)
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.run import checkpoint
from gpt_cli.run.checkpoint import CONFIG, TOKENIZER, list_checkpoints
from gpt_cli.run.find_run import refuse_nested
from gpt_cli.run.lifecycle import RunLifecycle
from gpt_cli.run.log import RunLog
from gpt_cli.run.resume import Changes, check_resumed, moved
from gpt_cli.run.run_files import DATA, RUN
from gpt_cli.run.sinks import open_sinks, require_sinks
from gpt_cli.runtime.processor import physical_cores, processor_name
from gpt_cli.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from gpt_cli.corpus.prepare import Corpus  # which `gpt sample` need not load

_FORMAT = 1
_OLD_SUMS = "SHA256SUMS"  # of the files that are written once, up to version 0.2.0
_UNFINISHED = frozenset({CONFIG, TOKENIZER, DATA, _OLD_SUMS, "lock"})  # alone: creating the run was interrupted
_PACKAGES = ("gpt-cli", "torch", "numpy", "safetensors", "tokenizers")


class RunDirectory(AbstractContextManager["RunDirectory"]):
    """A run's directory, locked and open for training: its `path`, its `log` and the `lifecycle` of this process.

    `config` is what is trained, as the run and its checkpoints keep it: with paths as they were first written.

    A context manager: leaving it records how training ended, closes the log and releases the lock. A directory that
    was made for a run that could not begin is removed: the corrected command would be refused as another config.
    """

    def __init__(self, path: Path, lock: DirectoryLock, config: Config, *, is_made: bool = False) -> None:
        self.path, self.config = path, config
        self._lock, self._is_made = lock, is_made
        self._changes: Changes = {}  # not yet on disk: a run that cannot be resumed with them stays as it is
        self.log = RunLog(path)
        self.lifecycle = RunLifecycle(path, self.log, config.train.steps)

    @classmethod
    def open_for_training(cls, config: Config, corpus: "Corpus") -> Self:
        """Lock the directory `config.run_dir` and make it a run, or check that it is a run of this very request.

        Raises RequestError for a directory that is something else, or whose config (but for keys that may change),
        tokenizer or text differ, and LockedError when another process trains in it.
        """
        assert config.run_dir is not None
        assert config.optim.lr != "auto", "a run keeps the number that was chosen"
        path = Path(config.run_dir)
        refuse_foreign(path)
        require_sinks(config)
        is_made = not path.exists()
        make_directory(path)
        lock = _lock(path)
        try:
            remove_stale_temp_dirs(path)
            changes: Changes = {}
            if (path / RUN).exists():
                changes = check_resumed(path, config, corpus)
            else:
                _write_metadata(path, config, corpus.tokenizer, describe_data(corpus))
            written = parse_config(read_config_file(path / CONFIG), str(path / CONFIG), of_run=True)
            run = cls(path, lock, as_written(config, written, moved=moved(changes)), is_made=is_made)
            run.log.sinks = open_sinks(config, path, run.log.event)
        except BaseException:
            lock.release()
            raise
        run._changes = changes
        return run

    def begin(self, step: int, device: str) -> None:
        """Record what changes in the run's config, and that training resumes from `step` on `device`.

        Raises what RunLifecycle.begin raises.
        """
        if self._changes:
            self.log.event("config changed", keys=self._changes)
            replace_file(self.path / CONFIG, dump_config(self.config).encode())
        with translate_os_errors("remove", self.path / _OLD_SUMS), suppress(FileNotFoundError):
            os.unlink(self.path / _OLD_SUMS)
        self.lifecycle.begin(step, device)

    def save_checkpoint(
        self,
        step: int,
        tensors: "tuple[Mapping[str, Tensor], Mapping[str, Tensor]]",
        state: Mapping[str, Any],
        tokenizer: Tokenizer,
        keep: int,
    ) -> None:
        """Save the checkpoint of `step` and remove all but `keep` and the best.

        `tensors` are those of the model and of the optimizer. The place is beside this directory where that is removed,
        moved or replaced, before or meanwhile; then raises UserError. Raises what `save` and `prune` raise, too.
        """
        contents = (*tensors, state, self.config, tokenizer)
        try:
            if self._lock.is_in_place():
                checkpoint.save(self.path, step, *contents)
                checkpoint.prune(self.path, keep)
                if self._lock.is_in_place():
                    return
        except UserError:
            if self._lock.is_in_place():
                raise
        place, gone = free_name(self.path, "-rescued"), f"run_dir {self.path} was removed or moved while it was trained"
        try:
            checkpoint.save(place, step, *contents)
        except UserError as error:
            raise UserError(f"{gone}, and what was trained cannot be saved beside it: {error.message}") from error
        newest = next(iter(list_checkpoints(place)), place)
        raise UserError(f"{gone}; the newest step is saved in {place}", kind="checkpoint", path=newest)

    def close(self) -> None:
        """Close the log and release the lock."""
        self.log.close()
        self._lock.release()

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        try:
            self.lifecycle.end(error)
            if self._is_made and not self.lifecycle.begun and isinstance(error, UserError):
                shutil.rmtree(self.path, ignore_errors=True)
        finally:
            self.close()


def create_imported_run(config: Config, tokenizer: Tokenizer, tensors: "Mapping[str, Tensor]", source: str) -> Path:
    """Make the new directory `config.run_dir` a run that begins, and ends, with `tensors`; returns its checkpoint.

    It has no text and no optimizer: it samples, evaluates on any text, and other runs start from it. `source`: the
    origin of the weights. Raises RequestError when `run_dir` is not empty.
    """
    assert config.run_dir is not None
    path = Path(config.run_dir)
    with translate_os_errors("create", path):
        is_taken = path.exists() and (not path.is_dir() or bool(list_directory(path)))
    if is_taken:
        named = Path("runs/imported") if path.name in ("", "..") else path
        raise RequestError(f"there is something in {path} already", choices=[str(free_name(named))])
    refuse_foreign(path)
    make_directory(path)
    with DirectoryLock(path):
        try:
            saved = checkpoint.save(path, 0, tensors, {}, {"source": source, "seconds": 0.0}, config, tokenizer)
            _write_metadata(path, config, tokenizer, {"source": source, "fingerprint": "", "splits": {}})
        except BaseException:  # such as a full disk: the same command must work once there is space
            shutil.rmtree(path, ignore_errors=True)
            raise
    return saved


def _lock(path: Path) -> DirectoryLock:
    """The lock of the run. Raises LockedError if it is trained already, DiskError for a run of others."""
    try:
        return DirectoryLock(path)
    except (LockedError, DiskError) as error:
        if isinstance(error, LockedError) or isinstance(error.__cause__, PermissionError):
            error.kind = "another run"
        raise


def refuse_foreign(path: Path) -> None:
    """Raise RequestError unless `path` is free, a run, or one whose making was interrupted."""
    if "\0" in str(path):
        raise RequestError(f"{str(path)!r} cannot be a run_dir")
    with translate_os_errors("create", path):
        is_other = path.exists() and not path.is_dir()
    if is_other:
        raise RequestError(f"run_dir {path} is not a directory", kind="another run")
    names = {name for name in list_directory(path) if not name.startswith(".tmp-")}
    if RUN not in names and not names <= _UNFINISHED:
        raise RequestError(f"run_dir {path} holds other files and no run", kind="another run")
    if RUN not in names:
        refuse_nested(path)


def _write_metadata(path: Path, config: Config, tokenizer: Tokenizer, data: dict[str, Any]) -> None:
    """Write the files that a run has from its beginning, run.json last."""
    record = {
        "format": _FORMAT,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "directory": os.getcwd(),
        "machine": {"system": platform.platform(), "processor": processor_name(), "cores": physical_cores()},
        "versions": package_versions(),
    }
    contents = {
        CONFIG: dump_config(config),
        TOKENIZER: tokenizer.to_json(),
        DATA: _to_json(data),
        RUN: _to_json(record),
    }
    for name, text in contents.items():
        replace_file(path / name, text.encode())


def describe_data(corpus: "Corpus") -> dict[str, Any]:
    """Fingerprint and sizes of the text, for data.json."""
    counts = ("characters", "bytes", "tokens", "documents")
    return {
        "source": corpus.source,
        "fingerprint": corpus.fingerprint,
        "splits": {split: {name: getattr(stats, name) for name in counts} for split, stats in corpus.stats.items()},
    }


def package_versions() -> dict[str, str | None]:
    """The version of Python and of each package that computes; None for one that is not installed."""
    return {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # `gpt` itself, run from a checkout that is not installed
        return None


def _to_json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"
