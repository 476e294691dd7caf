"""Processes that train runs side by side, each with its share of the machine."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import gpt_cli

_TAIL = 2000  # bytes at the end of a dead process's standard error


@dataclass(frozen=True)
class RunEnd:
    """The end of the run `name`, as its process reported it."""

    name: str
    exit_code: int | None = None
    """0 finished, 128 + signal interrupted; None where it failed."""
    error: str | None = None
    killed: bool = False
    """True if its process ended by a signal that was not ours."""


@dataclass
class _Trainer:
    process: subprocess.Popen[bytes]
    stderr: IO[bytes]
    slot: int
    name: str | None = None
    """The run that it trains."""
    stop_requested: bool = False
    buffer: bytearray = field(default_factory=bytearray)


class RunPool(AbstractContextManager["RunPool"]):
    """At most `jobs` processes. They live until the pool is closed, or this process ends, however that ends."""

    def __init__(self, jobs: int, devices: Sequence[str] = ()) -> None:
        """Each process sees one of `devices` (CUDA_VISIBLE_DEVICES), or all if there are none."""
        self.jobs, self.devices = jobs, list(devices)
        self._trainers: list[_Trainer] = []
        self._selector = selectors.DefaultSelector()

    @property
    def running(self) -> list[str]:
        return [trainer.name for trainer in self._trainers if trainer.name is not None]

    @property
    def has_free(self) -> bool:
        return len(self.running) < self.jobs

    def start(self, name: str, config: str) -> None:
        """Train the YAML `config` as run `name`."""
        assert self.has_free
        trainer = next((idle for idle in self._trainers if idle.name is None), None) or self._spawn()
        trainer.name = name
        assert trainer.process.stdin is not None
        with suppress(BrokenPipeError):  # it died: `wait` returns that
            trainer.process.stdin.write(json.dumps({"name": name, "config": config}).encode() + b"\n")
            trainer.process.stdin.flush()

    def stop(self, name: str) -> None:
        """Ask the run to save and end; `wait` returns its end."""
        for trainer in self._trainers:
            if trainer.name == name and not trainer.stop_requested:
                trainer.stop_requested = True
                trainer.process.send_signal(signal.SIGTERM)

    def stop_all(self) -> None:
        """Ask every run to save and end."""
        for name in self.running:
            self.stop(name)

    def wait(self, seconds: float) -> list[RunEnd]:
        """Wait at most this many seconds for runs to end; returns their ends."""
        ends: list[RunEnd] = []
        for key, _ in self._selector.select(seconds):
            trainer: _Trainer = key.data
            assert trainer.process.stdout is not None
            data = os.read(trainer.process.stdout.fileno(), 1 << 16)
            trainer.buffer += data
            *lines, partial = bytes(trainer.buffer).split(b"\n")
            trainer.buffer = bytearray(partial)
            ends += [self._handle_reply(trainer, json.loads(line)) for line in lines]
            if not data:
                ends += self._reap(trainer)
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

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _spawn(self) -> _Trainer:
        slot = next(n for n in range(self.jobs) if all(trainer.slot != n for trainer in self._trainers))
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        process = subprocess.Popen(
            [sys.executable, "-m", "gpt_cli.search.sweep.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=self._environment(slot),
            start_new_session=True,  # the parent alone gets Ctrl-C, and passes it on once
        )
        trainer = _Trainer(process, stderr, slot)
        self._trainers.append(trainer)
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ, trainer)
        return trainer

    def _environment(self, slot: int) -> dict[str, str]:
        package = str(Path(gpt_cli.__file__).parents[1])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        device = {"CUDA_VISIBLE_DEVICES": self.devices[slot % len(self.devices)]} if self.devices else {}
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **device}

    def _handle_reply(self, trainer: _Trainer, reply: dict[str, Any]) -> RunEnd:
        name, trainer.name, trainer.stop_requested = trainer.name, None, False
        assert name is not None
        return RunEnd(name, reply.get("exit_code"), reply.get("error"))

    def _reap(self, trainer: _Trainer) -> list[RunEnd]:
        """Forget a process that has exited; returns the end of the run that it trained, if any."""
        code = trainer.process.wait()
        trainer.stderr.seek(max(0, trainer.stderr.seek(0, os.SEEK_END) - _TAIL))
        last_line = trainer.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
        self._forget(trainer)
        if trainer.name is None:
            return []
        if trainer.stop_requested:  # before it trained
            return [RunEnd(trainer.name, exit_code=128 + signal.SIGTERM)]
        reason = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        error = f"its process ended {reason}" + (f": {last_line}" if last_line else "")
        return [RunEnd(trainer.name, error=error, killed=code < 0)]

    def _forget(self, trainer: _Trainer) -> None:
        self._trainers.remove(trainer)
        assert trainer.process.stdout is not None
        self._selector.unregister(trainer.process.stdout)
        trainer.process.stdout.close()
        if trainer.process.stdin is not None:
            with suppress(OSError):
                trainer.process.stdin.close()
        trainer.stderr.close()
