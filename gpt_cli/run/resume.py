"""The changes of config, tokenizer and text that a resumed run allows, and those that it refuses."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt_cli.config import Config, changed_keys, load_config, parse_config, to_yaml_scalar
from gpt_cli.config.keys import replace_keys
from gpt_cli.config.load import read_config_file, uses_of_removed_keys
from gpt_cli.config.paths import TEXT_KEYS, as_written, is_gone
from gpt_cli.errors import RequestError
from gpt_cli.run.checkpoint import CONFIG, TOKENIZER, Checkpoint, checkpoint_step, list_checkpoints
from gpt_cli.run.run_files import DATA, read_fingerprint, run_of
from gpt_cli.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from gpt_cli.corpus.prepare import Corpus  # which `gpt sample` need not load

Changes = dict[str, tuple[Any, Any]]  # key -> the value there, the value here

RESUMABLE_CHANGES = frozenset(
    {
        "run_dir",
        "train.steps",
        "train.until_loss",
        "train.max_minutes",
        "train.patience",
        "train.micro_batch_size",
        "train.activation_checkpointing",
        "eval.every",
        "eval.batch_size",
        "checkpoint.*",
        "sample.*",
        "log.*",
        "runtime.*",
        "parallel.*",
    }
)
"""Keys, or whole sections as `section.*`, in which the config of a resumed run may differ from the run's own."""


def may_change(key: str) -> bool:
    """True if the config of a resumed run may differ in `key` from the run's own."""
    return key in RESUMABLE_CHANGES or f"{key.partition('.')[0]}.*" in RESUMABLE_CHANGES


def with_own_tokenizer(config: Config) -> Config:
    """`config` with the run's copy of `tokenizer.file`, if that file is gone and the run in `run_dir` began with it."""
    run, file = run_of(config), config.tokenizer.file
    if run is None or file is None or Path(file).exists() or not (run / TOKENIZER).is_file():
        return config
    written = parse_config(read_config_file(run / CONFIG), str(run / CONFIG), of_run=True)
    if written.tokenizer.file != file:
        return config
    return replace_keys(config, {"tokenizer.file": load_config(run / CONFIG).tokenizer.file})


def refuse_another_text(config: Config) -> None:
    """Raise RequestError if the run in `config.run_dir` reads its text otherwise, or began with another tokenizer."""
    if (run := run_of(config)) is not None and (run / CONFIG).is_file():  # else it is refused with a way out, later
        of_text = {
            key: change for key, change in _changes(run, config).items() if key.startswith(("data.", "tokenizer."))
        }
        _refuse_fixed_changes(run, of_text)


def refuse_another_config(config: Config) -> Changes:
    """The keys in which `config` changes the run in its run_dir. Raises RequestError where a run does not allow it."""
    if (run := run_of(config)) is None:
        return {}
    changes = _changes(run, config)
    if config.optim.lr == "auto":  # and adamw_lr: rates are proposed to a training only
        changes = {key: change for key, change in changes.items() if key not in ("optim.lr", "optim.adamw_lr")}
    _refuse_fixed_changes(run, changes)
    _refuse_fewer_steps(run, changes)
    return changes


def _refuse_fewer_steps(run: Path, changes: Changes) -> None:
    """Raise RequestError if `changes` ask for fewer steps than the run at `run` has saved."""
    if "train.steps" not in changes or not (checkpoints := list_checkpoints(run)):
        return
    saved, steps = checkpoint_step(checkpoints[0]), changes["train.steps"][1]
    if steps < saved:
        raise RequestError(
            f"train.steps is {steps:,}, and {run} has {saved:,} steps already",
            keys=["train.steps"],
            kind="another run",
        )


def _refuse_removed_keys(config_file: Path) -> None:
    """Raise RequestError if the run was trained in a way that later versions cannot continue."""
    for use in uses_of_removed_keys(config_file):
        if not may_change(".".join(map(str, use.path or ()))):
            raise RequestError(use.message, where=str(use.place))


def _changes(path: Path, config: Config) -> Changes:
    _refuse_removed_keys(path / CONFIG)
    return {key: (old, new) for key, old, new in changed_keys(load_config(path / CONFIG), config)}


def _refuse_fixed_changes(path: Path, changes: Changes) -> None:
    """Raise RequestError if a resumed run does not allow one of the changes.

    A text that is gone may lie elsewhere: whether it is the same one, its checksum will tell.
    """
    if fixed := {key: change for key, change in changes.items() if not may_change(key) and key not in moved(changes)}:
        lines = [f"{key} {to_yaml_scalar(old)} there, {to_yaml_scalar(new)} here" for key, (old, new) in fixed.items()]
        changed = f" {lines[0]}" if len(lines) == 1 else "".join(f"\n  {line}" for line in lines)
        raise RequestError(f"{path} is a run with another config:{changed}", keys=fixed, kind="another run", path=path)


def moved(changes: Changes) -> set[str]:
    """The keys of `changes` that name a new place for a text that is gone from the old one."""
    named = {key: old for key, (old, new) in changes.items() if key in TEXT_KEYS and new is not None}
    return {key for key, old in named.items() if is_gone(old)}


def refuse_edited_config(path: Path, config: Config, checkpoint: Checkpoint) -> None:
    """Raise RequestError if `config`, of the run at `path`, differs from that of its `checkpoint` in a key that may not
    change: then config.yaml was edited. Paths are not compared; the text and the tokenizer are, by their checksums."""
    changed = changed_keys(as_written(checkpoint.config, config), config)
    if fixed := [change for change in changed if not may_change(change[0])]:
        there = f"in the checkpoint of step {checkpoint.step:,}"
        lines = [f"\n  {key}: {to_yaml_scalar(old)} {there}, {to_yaml_scalar(new)} here" for key, old, new in fixed]
        raise RequestError(
            f"{path / CONFIG} differs from {checkpoint.path / CONFIG}, with which the run was trained{''.join(lines)}",
            kind="another run",
            path=path / CONFIG,
        )


def check_resumed(path: Path, config: Config, corpus: "Corpus") -> Changes:
    """The keys that `config` changes in the run that it resumes. Raises RequestError for one that may not change, and
    for another tokenizer or text."""
    changes = _changes(path, config)
    _refuse_fixed_changes(path, changes)
    _refuse_fewer_steps(path, changes)
    if (there := read_fingerprint(path / DATA)) != corpus.fingerprint:
        sums = f"(its sha256 was {there[:12]}..., now it is {corpus.fingerprint[:12]}...)"
        if moved(changes):
            raise RequestError(
                f"this is not the text of the run in {path} {sums}", keys=sorted(moved(changes)), kind="another run"
            )
        texts = ", ".join([*config.data.sources, *config.data.val_sources])
        raise RequestError(f"the text has changed since the run in {path} began: {texts} {sums}", kind="another run")
    if load_tokenizer(path / TOKENIZER).digest != corpus.tokenizer.digest:
        raise RequestError(f"run_dir {path} is a run with another tokenizer", kind="another run")
    return changes
