"""Other places that receive the lines of metrics.jsonl while a run trains; off unless `log.sinks` names them.

    csv          metrics.csv in the run's directory: a line per step that has figures
    tensorboard  event files in tensorboard/ there; `tensorboard --logdir runs` shows all runs
    wandb        Weights & Biases, configured by its own settings (WANDB_MODE, WANDB_PROJECT, ...)

metrics.jsonl stays the truth. A sink that fails is dropped, an event records it, and training continues.
"""

import hashlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from gpt_cli.config import Config
from gpt_cli.errors import RequestError
from gpt_cli.files import AppendOnlyFile, list_directory, read_file
from gpt_cli.files.kinds import RUN

MetricsRecord = Mapping[str, Any]  # a line of metrics.jsonl: `step` and figures, null where they are not finite
COLUMNS = ("step", "time", "tokens", "loss", "grad_norm", "lr", "val_loss", "bpc", "bpb", "epochs")


class Sink(Protocol):
    """Something that receives the metrics; made of a run's directory and its config."""

    def begin(self, step: int, records: Sequence[MetricsRecord]) -> None:
        """Called when training resumes after `step`; `records` are all figures up to it."""

    def metrics(self, record: MetricsRecord) -> None:
        """Another line of metrics.jsonl."""

    def close(self) -> None:
        """Called when training stops."""


class CSVSink:
    """Every figure has its column, empty where a line does not have it."""

    def __init__(self, run_dir: Path, config: Config) -> None:
        self._file = AppendOnlyFile(run_dir / "metrics.csv")
        self.close = self._file.close

    def begin(self, step: int, records: Sequence[MetricsRecord]) -> None:
        self._file.rewrite(line.encode() for line in (",".join(COLUMNS), *map(self._line, records)))

    def metrics(self, record: MetricsRecord) -> None:
        self._file.append(self._line(record))

    @staticmethod
    def _line(record: MetricsRecord) -> str:
        return ",".join("" if (value := record.get(column)) is None else repr(value) for column in COLUMNS)


class TensorBoardSink:
    """A curve for each figure; what is repeated after a resume replaces what was there."""

    def __init__(self, run_dir: Path, config: Config) -> None:
        self._folder = str(run_dir / "tensorboard")
        self._writer: Any = None

    def begin(self, step: int, records: Sequence[MetricsRecord]) -> None:
        module: Any = importlib.import_module("torch.utils.tensorboard")
        self._writer = module.SummaryWriter(self._folder, purge_step=step + 1)

    def metrics(self, record: MetricsRecord) -> None:
        for name, value in _figures(record).items():
            self._writer.add_scalar(name, value, record["step"])
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WandbSink:
    """One run there for each run here; a resumed one is continued, and steps that are repeated are ignored there."""

    def __init__(self, run_dir: Path, config: Config) -> None:
        module: Any = importlib.import_module("wandb")
        # A run begun before ids were made of run.json has its own, in the name of a folder.
        earlier = [name.rpartition("-")[2] for name in list_directory(run_dir / "wandb") if name.count("-") >= 2]
        run_hash = hashlib.sha256(read_file(run_dir / RUN)).hexdigest()[:16]
        self._run = module.init(
            name=run_dir.name,
            dir=os.environ.get("WANDB_DIR") or str(run_dir),
            id=earlier[0] if earlier else os.environ.get("WANDB_RUN_ID") or run_hash,
            resume="allow",
            config=config.model_dump(),
            settings=module.Settings(silent=True),
        )

    def begin(self, step: int, records: Sequence[MetricsRecord]) -> None:
        pass

    def metrics(self, record: MetricsRecord) -> None:
        self._run.log(_figures(record), step=record["step"])

    def close(self) -> None:
        self._run.finish()


_KINDS: dict[str, Callable[[Path, Config], Sink]] = {"csv": CSVSink, "tensorboard": TensorBoardSink, "wandb": WandbSink}


class Sinks:
    """All that a run has. One that fails is dropped; `log_event` records which, and why."""

    def __init__(self, log_event: Callable[..., None]) -> None:
        self._sinks: dict[str, Sink] = {}
        self._log_event = log_event

    def open(self, name: str, run_dir: Path, config: Config) -> None:
        with self._dropping(name):
            self._sinks[name] = _KINDS[name](run_dir, config)

    def each(self, act: Callable[[Sink], None]) -> None:
        for name, sink in list(self._sinks.items()):
            with self._dropping(name):
                act(sink)

    @contextmanager
    def _dropping(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._sinks.pop(name, None)
            self._log_event("sink failed", sink=name, error=f"{type(error).__name__}: {error}"[:500])


def require_sinks(config: Config) -> None:
    """Raise RequestError where a sink needs a package that is not installed."""
    for sink in config.log.sinks:
        if find_spec(sink) is None:  # they are called like their packages
            missing = f"log.sinks names {sink}, and the package {sink} is not installed"
            raise RequestError(missing, keys=["log.sinks"], kind="package", choices=["gpt-cli[track]"])


def open_sinks(config: Config, run_dir: Path, log_event: Callable[..., None]) -> Sinks:
    """The sinks that `config` asks for, of the run in `run_dir`."""
    sinks = Sinks(log_event)
    for name in dict.fromkeys(config.log.sinks):
        sinks.open(name, run_dir, config)
    return sinks


def _figures(record: MetricsRecord) -> dict[str, float]:
    return {name: value for name, value in record.items() if name not in ("step", "time") and value is not None}
