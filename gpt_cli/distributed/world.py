"""The processes that train one model together, as torchrun starts them, and their communication.

Each process computes its share of every step and makes the same update. Process 0 writes the run and the console.
Decisions are made from the same numbers in all processes, never from one's own clock or signal.
"""

import ctypes
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from signal import SIGTERM
from threading import Thread
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from gpt_cli.errors import RequestError, UserError

T = TypeVar("T")
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
LAUNCHER = "GPT_LAUNCHER"
"""The environment variable with the number of the process that launched this one."""
_PR_SET_PDEATHSIG = 1  # of prctl(2)
_TIMEOUT = timedelta(minutes=10)  # of a collective operation, until `answer_within` sets another
_PATIENCE = timedelta(days=2)  # while process 0 prepares a text, or tries learning rates
_SECONDS_TO_ASK = 10.0  # to read the number of failures from a store that may be gone
_SECONDS_TO_TELL = 30.0  # for a process that fails to print its error


class LostProcessError(UserError):
    """Another process is gone, or does not answer."""


@dataclass(frozen=True)
class World:
    """`size` processes, of which this one is number `rank`; on this machine `local_rank` of `local_size`."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_main(self) -> bool:
        """True for process 0, which writes the run and the console."""
        return self.rank == 0

    def wait(self) -> None:
        """Return when all processes have called this."""
        if self.size > 1:
            with self.exchanging():
                dist.barrier(_host_group())

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the block in process 0, then in the others, which find its files."""
        if not self.is_main:
            self._wait_patiently()
        yield
        if self.is_main:
            self._wait_patiently()

    def _wait_patiently(self) -> None:
        if self.size > 1:
            with self.exchanging():
                dist.barrier(_joined.patient)

    def answer_within(self, minutes: float) -> None:
        """Set the time after which a process that does not take part in a collective operation counts as lost."""
        _joined.timeout = timedelta(minutes=minutes)
        for group in (dist.group.WORLD, _joined.host) if self.size > 1 else ():
            dist.distributed_c10d._set_pg_timeout(_joined.timeout, group)

    def compare(self, values: Mapping[str, str]) -> None:
        """Raise UserError with the process and the name of the first of `values` that differs between processes."""
        if self.size == 1:
            return
        gathered: list[Mapping[str, str]] = [{}] * self.size
        with self.exchanging():
            dist.all_gather_object(gathered, dict(values), group=_host_group())
        for rank, others in enumerate(gathered):
            for name, value in gathered[0].items():
                if others[name] != value:
                    raise UserError(
                        f"process {rank} has another {name} ({others[name][:12]}) than process 0 ({value[:12]})",
                        hint="give every machine the same files and the same installation",
                    )

    def broadcast(self, value: T) -> T:
        """The `value` of process 0, in all processes, which wait for it as long as it takes."""
        if self.size == 1:
            return value
        objects = [value]
        with self.exchanging():
            dist.broadcast_object_list(objects, src=0, group=_joined.patient)
        return objects[0]

    def sync_clock_and_signal(self, seconds: float, signal: int | None) -> tuple[float, int | None]:
        """The clock of process 0, and the signal that any process has received."""
        if self.size == 1:
            return seconds, signal
        if os.environ.get(LAUNCHER, str(os.getppid())) != str(os.getppid()):
            signal = signal or SIGTERM  # the launcher is gone
        gathered = torch.zeros(self.size, 2, dtype=torch.float64)
        gathered[self.rank] = torch.tensor([seconds, float(signal or 0)])
        with self.exchanging():
            dist.all_reduce(gathered, group=_host_group())  # of one number and zeros: exact
        return float(gathered[0, 0]), int(gathered[:, 1].max()) or None

    def any(self, value: bool) -> bool:
        """True if `value` is true in any process."""
        if self.size == 1:
            return value
        flag = torch.tensor([int(value)])
        with self.exchanging():
            dist.all_reduce(flag, dist.ReduceOp.MAX, group=_host_group())
        return bool(flag)

    def all_reduce_disjoint(self, values: Tensor) -> Tensor:
        """The sum of (N,) `values` over processes, each of which has set some and left the others 0: an exact sum."""
        if self.size > 1:
            with self.exchanging():
                dist.all_reduce(values)  # of one number and zeros: exact
        return values

    def send_to_main(self, tensor: Tensor, owner: int) -> Tensor:
        """The `tensor` of process `owner` in process 0, on the host; in the others their own `tensor`."""
        if owner != 0 and self.rank in (0, owner):
            with self.exchanging():
                if self.rank == owner:
                    work = dist.isend(tensor.detach().cpu().contiguous(), dst=0, group=_host_group())
                else:
                    tensor = torch.empty(tensor.shape, dtype=tensor.dtype)
                    work = dist.irecv(tensor, src=owner, group=_host_group())
                assert work is not None
                work.wait(_joined.timeout)  # the group's own is not that of sending and receiving
        return tensor

    def fails_first(self) -> bool:
        """Record a failure; True if it is the first, whose process prints the error.

        If the store cannot be reached, one process of each machine does.
        """
        if self.size == 1:
            return True
        failures = _failures(1)
        return self.local_rank == 0 if failures is None else failures == 1

    def wait_for_who_failed(self) -> None:
        """If another process recorded a failure, wait for it to print its error (the launcher then ends this one)."""
        if _failures(0):
            time.sleep(_SECONDS_TO_TELL)

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Turn a failed exchange of tensors into LostProcessError."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise LostProcessError(
                f"lost another of the {self.size} processes (process {self.rank} was waiting for it)",
                hint="the same command resumes from the newest checkpoint",
            ) from error


ALONE = World()
"""One process by itself."""


class _Joined:
    """The store and the process groups of processes that are `joined`."""

    store: Any = None
    host: Any = None
    patient: Any = None
    timeout: timedelta = _TIMEOUT


_joined = _Joined()


def _failures(increment: int) -> int | None:
    """The number of recorded failures after adding `increment`; None if the store cannot be reached."""
    counts: list[int] = []

    def ask() -> None:
        with suppress(RuntimeError, AttributeError):  # the store is gone, or was never reached
            counts.append(int(_joined.store.add("gpt/failures", increment)))

    thread = Thread(target=ask, daemon=True)  # a store on a lost machine blocks
    thread.start()
    thread.join(_SECONDS_TO_ASK)
    return counts[0] if counts else None


def _host_group() -> "dist.ProcessGroup":
    """The group for small messages, on the host, without a GPU sync."""
    assert isinstance(_joined.host, dist.ProcessGroup)
    return _joined.host


def world_of_environment() -> World:
    """The world of torchrun's environment variables, or of a single process without them.

    Raises RequestError if only some are set, or not to numbers.
    """
    values = [os.environ.get(name) for name in VARIABLES]
    if values[1] is None:
        return World()
    try:
        rank, size, local_rank, local_size = (int(value or "") for value in values)
    except ValueError:
        raise RequestError(
            f"WORLD_SIZE is set, but not all of {', '.join(VARIABLES)} are numbers",
            hint="start several processes by --devices or torchrun; for one, unset WORLD_SIZE",
        ) from None
    return World(rank, size, local_rank, local_size)


def _end_with_launcher() -> None:
    """Have Linux send SIGTERM to this process when its launcher dies, also while it waits for the others."""
    if LAUNCHER in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, SIGTERM)
        if str(os.getppid()) != os.environ[LAUNCHER]:  # it died before
            os.kill(os.getpid(), SIGTERM)


@contextmanager
def joined() -> Iterator[World]:
    """Join the process group that torchrun started; left on exit. Raises UserError."""
    _end_with_launcher()
    world = world_of_environment()
    if world.size == 1:
        yield world
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(world.local_rank)
        backend = "cpu:gloo,cuda:nccl"
    try:
        _joined.store, _, _ = next(iter(rendezvous("env://", timeout=_TIMEOUT)))
        dist.init_process_group(backend, store=_joined.store, rank=world.rank, world_size=world.size, timeout=_TIMEOUT)
        _joined.host = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        _joined.patient = dist.new_group(backend="gloo", timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"process {world.rank} of {world.size} cannot reach the others: {str(error).partition(chr(10))[0]}",
            hint="check MASTER_ADDR, MASTER_PORT and the network between the machines",
        ) from error
    try:
        yield world
        world.wait()  # the launcher ends all processes with the first that ends: wait until all have saved
    finally:
        _joined.host = _joined.patient = None
        dist.destroy_process_group()
