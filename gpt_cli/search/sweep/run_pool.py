"""Processes that train runs side by side, each with its share of the machine."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import gpt_cli

_TAIL = 2000  # bytes of what a process said before it died


@dataclass(frozen=True)
class RunEnd:
    """The end of the run called `name`, as its process told it."""

    name: str
    exit_code: int | None = None
    """0 finished, 128 + signal interrupted; None where it failed."""
    error: str | None = None
    killed: bool = False
    """True if its process ended by a signal that was not ours."""


@dataclass
class _Trainer:
    process: subprocess.Popen[bytes]
    said: IO[bytes]
    slot: int
    name: str | None = None
    """The run that it trains."""
    asked_to_stop: bool = False
    buffer: bytearray = field(default_factory=bytearray)


class RunPool:
    """At most `jobs` processes. They live until the pool is closed, or this process ends, however that ends."""

    def __init__(self, jobs: int, devices: Sequence[str] = (), worker: str = "gpt_cli.search.sweep.worker") -> None:
        """`devices`: of which each process sees one (CUDA_VISIBLE_DEVICES); none: all see all.

        `worker`: the module that trains.
        """
        self.jobs, self.devices, self.worker = jobs, list(devices), worker
        self._trainers: list[_Trainer] = []
        self._selector = selectors.DefaultSelector()

    @property
    def running(self) -> list[str]:
        return [trainer.name for trainer in self._trainers if trainer.name is not None]

    @property
    def has_free(self) -> bool:
        return len(self.running) < self.jobs

    def start(self, name: str, config: str) -> None:
        """Train what the YAML `config` says; it is called `name` here."""
        assert self.has_free
        trainer = next((one for one in self._trainers if one.name is None), None) or self._spawn()
        trainer.name = name
        assert trainer.process.stdin is not None
        with suppress(BrokenPipeError):  # it died: `wait` finds that
            trainer.process.stdin.write(json.dumps({"name": name, "config": config}).encode() + b"\n")
            trainer.process.stdin.flush()

    def stop(self, name: str) -> None:
        """Ask the run to save and end; `wait` returns its end."""
        for trainer in self._trainers:
            if trainer.name == name and not trainer.asked_to_stop:
                trainer.asked_to_stop = True
                trainer.process.send_signal(signal.SIGTERM)

    def stop_all(self) -> None:
        """Ask every run to save and end."""
        for name in self.running:
            self.stop(name)

    def wait(self, seconds: float) -> list[RunEnd]:
        """The runs that have ended, at the latest after so many seconds."""
        ends: list[RunEnd] = []
        for key, _ in self._selector.select(seconds):
            trainer: _Trainer = key.data
            assert trainer.process.stdout is not None
            read = os.read(trainer.process.stdout.fileno(), 1 << 16)
            trainer.buffer += read
            *lines, rest = bytes(trainer.buffer).split(b"\n")
            trainer.buffer = bytearray(rest)
            ends += [self._end(trainer, json.loads(line)) for line in lines]
            if not read:
                ends += self._bury(trainer)
        return ends

    def close(self) -> None:
        """End all processes; those that train save first."""
        for trainer in self._trainers:
            with suppress(OSError):
                if trainer.process.stdin is not None:
                    trainer.process.stdin.close()
        for trainer in list(self._trainers):
            trainer.process.wait()
            self._forget(trainer)
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _spawn(self) -> _Trainer:
        slot = next(n for n in range(self.jobs) if all(trainer.slot != n for trainer in self._trainers))
        said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        process = subprocess.Popen(
            [sys.executable, "-m", self.worker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env=self._environment(slot),
            start_new_session=True,  # Ctrl-C is for the process that asks, which passes it on once
        )
        trainer = _Trainer(process, said, slot)
        self._trainers.append(trainer)
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ, trainer)
        return trainer

    def _environment(self, slot: int) -> dict[str, str]:
        package = str(Path(gpt_cli.__file__).parents[1])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        device = {"CUDA_VISIBLE_DEVICES": self.devices[slot % len(self.devices)]} if self.devices else {}
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **device}

    def _end(self, trainer: _Trainer, answer: dict[str, Any]) -> RunEnd:
        name, trainer.name, trainer.asked_to_stop = trainer.name, None, False
        assert name is not None
        return RunEnd(name, answer.get("exit_code"), answer.get("error"))

    def _bury(self, trainer: _Trainer) -> list[RunEnd]:
        """The end of what a process trained that is gone."""
        code = trainer.process.wait()
        trainer.said.seek(max(0, trainer.said.seek(0, os.SEEK_END) - _TAIL))
        last = trainer.said.read().decode(errors="replace").strip().rpartition("\n")[2]
        self._forget(trainer)
        if trainer.name is None:
            return []
        if trainer.asked_to_stop:  # before it trained
            return [RunEnd(trainer.name, exit_code=128 + signal.SIGTERM)]
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return [RunEnd(trainer.name, error=f"its process ended {how}" + (f": {last}" if last else ""), killed=code < 0)]

    def _forget(self, trainer: _Trainer) -> None:
        self._trainers.remove(trainer)
        assert trainer.process.stdout is not None
        self._selector.unregister(trainer.process.stdout)
        trainer.process.stdout.close()
        if trainer.process.stdin is not None:
            with suppress(OSError):
                trainer.process.stdin.close()
        trainer.said.close()
