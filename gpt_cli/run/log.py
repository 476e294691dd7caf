"""The logs of a run: three append-only files of one JSON object a line.

    metrics.jsonl   {"step": 120, "time": 14.2, "loss": 2.31, ...}   time: seconds of training, resumed or not
    samples.jsonl   {"step": 120, "prompt": "...", "text": "..."}
    events.jsonl    {"time": "2026-01-31T12:00:00+00:00", "event": "resumed", ...}

Each line ends with `"crc32"`, the sum of the line without it, so that a flipped bit is detected by whoever reads the
file; lines of older runs have none. The console, plots and reports render these files. They are ASCII, so that showing
one drives no terminal.
"""

import json
import math
import re
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpt_cli.errors import Notify
from gpt_cli.files import AppendOnlyFile, DamagedError, read_lines
from gpt_cli.run.sinks import Sinks

METRICS, SAMPLES, EVENTS = "metrics.jsonl", "samples.jsonl", "events.jsonl"
_SUM = re.compile(r', "(.{5})": "([0-9a-f]{8})"\}$')  # also of one whose name is no longer crc32


class RunLog(AbstractContextManager["RunLog"]):
    """The three files of a run, open for writing by the one process that trains it."""

    def __init__(self, run_dir: Path) -> None:
        self._metrics = AppendOnlyFile(run_dir / METRICS)
        self._samples = AppendOnlyFile(run_dir / SAMPLES)
        self._events = AppendOnlyFile(run_dir / EVENTS)
        self.sinks = Sinks(self.event)

    def metrics(self, step: int, *, time: float, **values: float) -> None:
        """Record the `values` measured at `step`, after `time` seconds of training.

        A value that is not finite is written as null: JSON has no word for it.
        """
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        record = {"step": step, "time": time, **finite}
        self._metrics.append(_to_json(record))
        self.sinks.each(lambda sink: sink.metrics(record))

    def sample(self, step: int, *, prompt: str, text: str) -> None:
        """Record what the model wrote after `prompt` at `step`."""
        self._samples.append(_to_json({"step": step, "prompt": prompt, "text": text}))

    def event(self, event: str, **details: Any) -> None:
        """Record what happened to the run, now; `details` is JSON. Events are never cut back."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._events.append(_to_json({"time": now, "event": event, **details}))

    def recording(self, note: Notify) -> Notify:
        """`note`, whose texts are events, too."""

        def record(text: str) -> None:
            self.event("note", text=text)
            note(text)

        return record

    def truncate(self, step: int) -> None:
        """Drop, atomically, metrics and samples of later steps: training goes on from `step` and repeats them."""
        for file in (self._metrics, self._samples):
            file.rewrite([line for record, line in _read_records(file.path) if record["step"] <= step])
        records = [record for record, _ in _read_records(self._metrics.path)]
        self.sinks.each(lambda sink: sink.begin(step, records))

    def sync(self) -> None:
        """Make what was written survive a power cut; done before a checkpoint says that it happened."""
        for file in (self._metrics, self._samples, self._events):
            file.sync()

    def close(self) -> None:
        self.sinks.each(lambda sink: sink.close())
        for file in (self._metrics, self._samples, self._events):
            file.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl: `step`, `time` and the finite values measured then; [] if there are none yet.

    A last line that is being written is left out. Raises DamagedError, with the place, for any other bad line.
    """
    records = [record for record, _ in _read_records(run_dir / METRICS)]
    return [{name: value for name, value in record.items() if value is not None} for record in records]


def last_logged_step(run_dir: Path) -> int:
    """The last step that the logs tell of, 0 if there is none: of a run without a checkpoint they are lost.

    Raises DamagedError for a bad line of metrics.jsonl; a bad one of events.jsonl is passed over.
    """
    last: list[dict[str, Any]] = []
    with suppress(DamagedError):
        last = read_events(run_dir)[-1:]  # the end of a training tells its last step; earlier ones may have begun anew
    steps = [line.get("step") for line in [*read_metrics(run_dir), *last]]
    return max((step for step in steps if isinstance(step, int)), default=0)


def read_samples(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of samples.jsonl: `step`, `prompt` and `text`. Raises DamagedError for a bad line."""
    return [record for record, _ in _read_records(run_dir / SAMPLES)]


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of events.jsonl: `time`, `event` and its details. Raises DamagedError for a bad line."""
    return [record for record, _ in _read_records(run_dir / EVENTS, "event", str)]


def _read_records(path: Path, key: str = "step", kind: type = int) -> Iterator[tuple[dict[str, Any], str]]:
    """Each whole line of `path`, which has a `key` of that `kind`: parsed, and as it is."""
    for number, line in read_lines(path):
        try:
            record = json.loads(line) if _is_whole(line) else None
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or type(record.get(key)) is not kind:
            raise _damaged(path, number)
        record.pop("crc32", None)
        yield record, line


def _is_whole(line: str) -> bool:
    """True if `line` has the sum that it ends with, or none."""
    if (match := _SUM.search(line)) is None:
        return '"crc32": ' not in line
    return match[1] == "crc32" and zlib.crc32(f"{line[: match.start()]}}}".encode()) == int(match[2], 16)


def _damaged(path: Path, number: int) -> DamagedError:
    return DamagedError(f"{path} has a damaged line", where=f"{path}:{number}")


def _to_json(record: dict[str, Any]) -> str:
    line = json.dumps(record, allow_nan=False)
    return f'{line[:-1]}, "crc32": "{zlib.crc32(line.encode()):08x}"}}'
