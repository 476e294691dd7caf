"""Read a run directory, for reports and comparisons of runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from gpt_cli.config import Config, load_config
from gpt_cli.errors import Notify, RequestError
from gpt_cli.files import DamagedError
from gpt_cli.files.kinds import is_checkpoint
from gpt_cli.run.checkpoint import CONFIG, load_newest
from gpt_cli.run.find_run import run_around
from gpt_cli.run.log import read_events, read_metrics, read_samples
from gpt_cli.run.model_info import num_parameters_of_task
from gpt_cli.run.resume import refuse_edited_config
from gpt_cli.run.run_files import DATA, RUN, read_json_object, tokenizer_file
from gpt_cli.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class SavedWeights:
    """The newest intact checkpoint of a run."""

    path: str
    step: int
    sha256: str
    seconds: float | None
    """All the time that the run took, as the end of `gpt train` says; None in runs of an older gpt."""


@dataclass(frozen=True)
class SplitSize:
    characters: int
    bytes: int
    tokens: int
    documents: int


@dataclass(frozen=True)
class RunRecord:
    """The contents of a run directory."""

    path: Path
    name: str
    config: Config
    tokenizer: Tokenizer
    parameters: int
    source: str
    fingerprint: str
    splits: dict[str, SplitSize]
    created: str
    command: tuple[str, ...]
    environment: dict[str, str]
    """Versions of packages and properties of the machine, by name."""
    metrics: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    events: list[dict[str, Any]]
    saved: SavedWeights | None

    @property
    def bytes_per_token(self) -> float:
        """Bytes of training text per token."""
        train = self.splits["train"]
        return max(1, train.bytes) / max(1, train.tokens)

    @property
    def bytes_per_prediction(self) -> float:
        """Bytes of training text per token that has a loss."""
        return bytes_per_prediction(self.config, self.metrics, self.bytes_per_token)

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The metrics of the evaluations, in their order."""
        return [line for line in self.metrics if "val_loss" in line]

    @property
    def steps(self) -> int:
        """The last step logged."""
        return max((line["step"] for line in self.metrics), default=0)


def read_record(run: Path, name: str, note: Notify) -> RunRecord:
    """Read the run directory `run`; `name` is its display name.

    Raises RequestError if it is not a run, DamagedError if it cannot be read. A damaged checkpoint, or line of a
    log, is skipped with a `note`.
    """
    if is_checkpoint(run):
        raise RequestError(f"{run} is a checkpoint, and its run has the curves and samples", choices=run_around(run))
    data, metadata = read_json_object(run / DATA), read_json_object(run / RUN)
    if data.get("splits") == {}:
        raise RequestError(
            f"{run} was imported, not trained: there are no metrics to show", hint=f"gpt info {quote(str(run))}"
        )
    config, tokenizer = load_config(run / CONFIG), load_tokenizer(tokenizer_file(run))
    refuse_edited_config(run, config)
    checkpoint = load_newest(run, note)
    try:
        sizes = ("characters", "bytes", "tokens", "documents")
        splits = {
            str(split): SplitSize(*(int(numbers[size]) for size in sizes)) for split, numbers in data["splits"].items()
        }
        source, fingerprint = data["source"], str(data["fingerprint"])
        environment = {key: str(value) for key, value in metadata["versions"].items() if value is not None}
        environment |= {key: str(value) for key, value in metadata.get("machine", {}).items()}  # older runs lack it
        created, command = str(metadata["created"]), tuple(map(str, metadata["command"]))
        splits["train"], splits["val"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(f"{run} is damaged: its {DATA} or {RUN} does not say what a run's does ({error})") from error
    metrics, samples, events = read_metrics(run, note), read_samples(run, note), read_events(run, note)
    logged = max((line["step"] for line in metrics), default=0)
    if checkpoint is not None and logged + config.log.every <= checkpoint.step:  # a run that is stopped logs no step
        note(
            f"{run}: metrics.jsonl ends at step {logged:,}, and the run at step {checkpoint.step:,}: figures are of"
            f" step {logged:,}"
        )
    devices = [event["device"] for event in events if event["event"] == "started" and "device" in event]
    return RunRecord(
        path=run,
        name=name,
        config=config,
        tokenizer=tokenizer,
        parameters=num_parameters_of_task(config, tokenizer.vocab_size),
        source=source if isinstance(source, str) else ", ".join(map(str, source)),
        fingerprint=fingerprint,
        splits=splits,
        created=created,
        command=command,
        environment=environment | ({"device": str(devices[-1])} if devices else {}),
        metrics=metrics,
        samples=samples,
        events=events,
        saved=None
        if checkpoint is None
        else SavedWeights(
            str(checkpoint.path), checkpoint.step, checkpoint.weights_sha256, checkpoint.state.get("seconds")
        ),
    )


def read_records(runs: Sequence[Path], note: Notify) -> list[RunRecord]:
    """Read several runs, with display names that distinguish them."""
    return [read_record(run, name, note) for run, name in zip(runs, run_names(runs), strict=True)]


def bytes_per_prediction(config: Config, metrics: Sequence[Mapping[str, Any]], bytes_per_token: float) -> float:
    """Bytes of training text per token that has a loss: of pairs and chats, as in their validation split.

    Only completions have a loss there, which the sizes of a split do not tell apart.
    """
    losses = [(line["val_loss"], line["bpb"]) for line in metrics if line.get("bpb") and "val_loss" in line]
    if config.data.format not in ("pairs", "chat") or not losses:
        return bytes_per_token
    return float(losses[-1][0] / losses[-1][1] / math.log(2))


def read_bytes_per_token(run: Path) -> float:
    """Bytes of training text per token, from the run's data.json. Raises DamagedError if it does not have them."""
    try:
        train = read_json_object(run / DATA)["splits"]["train"]
        return max(1, int(train["bytes"])) / max(1, int(train["tokens"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{run} is damaged: its {DATA} does not tell the size of the text") from error


def run_names(runs: Sequence[Path]) -> list[str]:
    """Display names of runs: the directory's name, or the path where names would be equal."""
    names = [run.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run) for run in runs]
