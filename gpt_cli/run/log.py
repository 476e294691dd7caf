"""The logs of a run: three append-only files of one JSON object a line.

    metrics.jsonl   {"step": 120, "time": 14.2, "loss": 2.31, ...}   time: seconds of training, resumed or not
    samples.jsonl   {"step": 120, "prompt": "...", "text": "..."}
    events.jsonl    {"time": "2026-01-31T12:00:00+00:00", "event": "resumed", ...}

The console, plots and reports render these files. They are ASCII, so that showing one drives no terminal. A damaged
line is skipped, with a note of its place, and stays in the file. Older versions ended each line with a `crc32`.
"""

import json
import math
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpt_cli.errors import Notify
from gpt_cli.files import AppendOnlyFile, read_file
from gpt_cli.run.sinks import Sinks

METRICS, SAMPLES, EVENTS = "metrics.jsonl", "samples.jsonl", "events.jsonl"
Record = dict[str, Any]
_STEPS = range(1 << 53)  # those that a float holds, too


class RunLog(AbstractContextManager["RunLog"]):
    """The three files of a run, open for writing by the one process that trains it."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._files = {name: AppendOnlyFile(run_dir / name) for name in (METRICS, SAMPLES, EVENTS)}
        self.sinks = Sinks(self.event)

    def metrics(self, step: int, *, time: float, **values: float) -> None:
        """Record the `values` measured at `step`, after `time` seconds of training.

        A value that is not finite is written as null: JSON has no word for it.
        """
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        record = {"step": step, "time": time, **finite}
        self._append(METRICS, record)
        self.sinks.each(lambda sink: sink.metrics(record))

    def sample(self, step: int, *, prompt: str, text: str) -> None:
        """Record what the model wrote after `prompt` at `step`."""
        self._append(SAMPLES, {"step": step, "prompt": prompt, "text": text})

    def event(self, event: str, **details: Any) -> None:
        """Record what happened to the run, now; `details` is JSON. Events are never cut back."""
        self._append(EVENTS, {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, **details})

    def recording(self, note: Notify) -> Notify:
        """`note`, whose texts are events, too."""

        def record(text: str) -> None:
            self.event("note", text=text)
            note(text)

        return record

    def truncate(self, step: int, note: Notify = lambda _: None) -> None:
        """Drop, atomically, metrics and samples of later steps: training resumes from `step` and repeats them.

        Damaged lines stay; those of all three files are noted.
        """
        for name in (METRICS, SAMPLES):
            lines = _read(self._run_dir / name, note)
            self._files[name].rewrite(line for line, record in lines if record is None or record["step"] <= step)
        read_events(self._run_dir, note)
        records = read_metrics(self._run_dir)
        self.sinks.each(lambda sink: sink.begin(step, records))

    def sync(self) -> None:
        """Make what was written survive a power cut; called before a checkpoint is reported as saved."""
        for file in self._files.values():
            file.sync()

    def close(self) -> None:
        self.sinks.each(lambda sink: sink.close())
        for file in self._files.values():
            file.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, name: str, record: Record) -> None:
        self._files[name].append(json.dumps(record, allow_nan=False))


def read_metrics(run_dir: Path, note: Notify = lambda _: None) -> list[Record]:
    """The lines of metrics.jsonl: `step`, `time` and the finite numbers measured then; [] if there are none yet.

    A last line that is being written is left out; a damaged one is noted and skipped, as in the other logs.
    """
    records = _records(run_dir / METRICS, note)
    return [{name: value for name, value in record.items() if _is_finite(value)} for record in records]


def read_samples(run_dir: Path, note: Notify = lambda _: None) -> list[Record]:
    """The lines of samples.jsonl: `step`, `prompt` and `text`."""
    records, texts = _records(run_dir / SAMPLES, note), ("prompt", "text")
    return [{"step": record["step"], **{name: str(record.get(name, "")) for name in texts}} for record in records]


def read_events(run_dir: Path, note: Notify = lambda _: None) -> list[Record]:
    """The lines of events.jsonl: `time`, `event` and its details."""
    return _records(run_dir / EVENTS, note)


def last_logged_step(run_dir: Path) -> int:
    """Return the last step in the logs, or 0: without a checkpoint, the training up to it is lost."""
    # The last event has the last step; earlier ones may be of trainings that started again.
    lines = [*read_metrics(run_dir), *read_events(run_dir)[-1:]]
    return max((step for line in lines if isinstance(step := line.get("step"), int)), default=0)


def _records(path: Path, note: Notify) -> list[Record]:
    return [record for _, record in _read(path, note) if record is not None]


def _read(path: Path, note: Notify) -> Iterator[tuple[bytes, Record | None]]:
    """Each whole line of `path`, as it is and parsed; None for a damaged one, which lacks an object or its key."""
    key, kind = ("event", str) if path.name == EVENTS else ("step", int)
    *lines, _unfinished = read_file(path).split(b"\n") if path.exists() else [b""]
    damaged = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and type(value := record.get(key)) is kind and (kind is str or value in _STEPS):
            record.pop("crc32", None)
            yield line, record
        else:
            damaged.append(number)
            yield line, None
    if damaged:
        more = f", and so are {len(damaged) - 1:,} more lines of it" if len(damaged) > 1 else ""
        note(f"{path}:{damaged[0]} is damaged and skipped{more}")


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max
