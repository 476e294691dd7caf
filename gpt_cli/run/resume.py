"""The changes of config, tokenizer and text that a resumed run allows, and those that it refuses.

The config that is asked for is compared with the run's config.yaml, and that with the verified copy in the checkpoint:
an edited config.yaml is refused. Text and tokenizer are compared with what the checkpoint contains.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt_cli.config import Config, changed_keys, load_config, parse_config, to_yaml_scalar
from gpt_cli.config.keys import replace_keys
from gpt_cli.config.load import read_config_file, uses_of_removed_keys
from gpt_cli.config.paths import TEXT_KEYS, as_written, is_gone
from gpt_cli.errors import RequestError
from gpt_cli.files import DamagedError
from gpt_cli.run.checkpoint import CONFIG, checkpoint_step, list_checkpoints, verified_copy
from gpt_cli.run.run_files import read_fingerprint, run_of, tokenizer_file
from gpt_cli.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from gpt_cli.corpus.prepare import Corpus  # which `gpt sample` need not load

Changes = dict[str, tuple[Any, Any]]  # key -> the value there, the value here
TEXT_SECTIONS = ("data.", "tokenizer.")  # keys that decide how a text is read

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
    """Replace a tokenizer.file that is gone by the copy of the run in `run_dir`, if the run began with that file."""
    run, file = run_of(config), config.tokenizer.file
    if run is None or file is None or Path(file).exists():
        return config
    written = parse_config(read_config_file(run / CONFIG), str(run / CONFIG), of_run=True)
    if written.tokenizer.file != file:
        return config
    return replace_keys(config, {"tokenizer.file": load_config(run / CONFIG).tokenizer.file})


def resumed_changes(config: Config, *, sections: tuple[str, ...] = ("",)) -> Changes:
    """Return the keys in which `config` changes the run that it resumes, of `sections` alone; none without a run.

    Raises RequestError where a resumed run may not change one, or has more steps already. A text that is gone may be
    elsewhere now: its checksum decides whether it is the same one.
    """
    if (run := run_of(config)) is None:
        return {}
    if not (run / CONFIG).is_file():
        raise DamagedError(f"{run} is damaged: {CONFIG} is missing", kind="damaged run", path=run)
    written = load_config(run / CONFIG)
    refuse_edited_config(run, written)
    for use in uses_of_removed_keys(run / CONFIG):  # by which later versions cannot continue
        if not may_change(".".join(map(str, use.path or ()))):
            raise RequestError(use.message, where=str(use.place))
    changes = {key: (old, new) for key, old, new in changed_keys(written, config)}
    changes = {key: change for key, change in changes.items() if key.startswith(sections)}
    if config.optim.lr == "auto":  # rates are proposed to a training that begins
        changes = {key: change for key, change in changes.items() if key not in ("optim.lr", "optim.adamw_lr")}
    if fixed := {key: change for key, change in changes.items() if not may_change(key) and key not in moved(changes)}:
        lines = [f"{key} {to_yaml_scalar(old)} there, {to_yaml_scalar(new)} here" for key, (old, new) in fixed.items()]
        changed = f" {lines[0]}" if len(lines) == 1 else "".join(f"\n  {line}" for line in lines)
        raise RequestError(f"{run} is a run with another config:{changed}", keys=fixed, kind="another run", path=run)
    _refuse_fewer_steps(run, changes)
    return changes


def _refuse_fewer_steps(run: Path, changes: Changes) -> None:
    """Raise RequestError if `changes` ask for fewer steps than the run at `run` has saved."""
    if "train.steps" not in changes or not (checkpoints := list_checkpoints(run)):
        return
    saved, steps = checkpoint_step(checkpoints[0]), changes["train.steps"][1]
    if steps < saved:
        message = f"train.steps is {steps:,}, and {run} has {saved:,} steps already"
        raise RequestError(message, keys=["train.steps"], kind="another run")


def moved(changes: Changes) -> set[str]:
    """Return the keys of `changes` that name a new place for a text that is gone from the old one."""
    named = {key: old for key, (old, new) in changes.items() if key in TEXT_KEYS and new is not None}
    return {key for key, old in named.items() if is_gone(old)}


def refuse_edited_config(run: Path, config: Config) -> None:
    """Raise RequestError if `config`, of the `run`, differs from that of its checkpoints in a key that may not change:
    then config.yaml was edited. Paths are not compared; the text and the tokenizer are, by their checksums."""
    if (copy := verified_copy(run, CONFIG)) is None:
        return
    trained = parse_config(read_config_file(copy), str(copy), of_run=True)
    changed = changed_keys(as_written(trained, config), config)
    if fixed := [change for change in changed if not may_change(change[0])]:
        there = f"in the checkpoint of step {checkpoint_step(copy.parent):,}"
        lines = [f"\n  {key}: {to_yaml_scalar(old)} {there}, {to_yaml_scalar(new)} here" for key, old, new in fixed]
        raise RequestError(
            f"{run / CONFIG} differs from {copy}, with which the run was trained{''.join(lines)}",
            kind="another run",
            path=run / CONFIG,
        )


def check_resumed(run: Path, config: Config, corpus: "Corpus") -> Changes:
    """Return the keys that `config` changes in the `run` that it resumes.

    Raises RequestError for one that may not change, and for another tokenizer or text.
    """
    changes = resumed_changes(config)
    if (there := read_fingerprint(run)) != corpus.fingerprint:
        sums = f"(its sha256 was {there[:12]}..., now it is {corpus.fingerprint[:12]}...)"
        if keys := sorted(moved(changes)):
            message = f"this is not the text of the run in {run} {sums}"
        else:
            texts = ", ".join([*config.data.sources, *config.data.val_sources])
            message = f"the text has changed since the run in {run} began: {texts} {sums}"
        raise RequestError(message, keys=keys, kind="another run")
    if load_tokenizer(tokenizer_file(run)).digest != corpus.tokenizer.digest:
        raise RequestError(f"run_dir {run} is a run with another tokenizer", kind="another run")
    return changes
