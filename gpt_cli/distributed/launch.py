"""`gpt train --devices N`: torchrun's launcher, with one process for each device of this machine."""

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from uuid import uuid4

import torch
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gpt_cli.cores import usable_cores
from gpt_cli.distributed.world import LAUNCHER
from gpt_cli.errors import ExitCode, RequestError, UserError

_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGUSR1"  # passed on to the processes, which save and end
_PROCESSES_A_CORE, _LEAST_MOST = 4, 8  # on CPUs: to try out what a cluster would do, but not to fill the memory
_SECONDS_TO_SAVE = 300  # after a signal, until processes are killed


def device_count(devices: str) -> int:
    """The number of processes for `devices`: a number, or auto, one for each GPU that there is. Raises RequestError."""
    gpus = torch.cuda.device_count()
    if devices == "auto":
        return max(1, gpus)
    if not devices.isdecimal() or not int(devices):
        raise RequestError(f"--devices must be auto or a number from 1 up, not {devices!r}")
    if gpus and int(devices) > gpus:
        raise RequestError(f"--devices is {devices}, but there are {gpus} GPUs here", hint=f"--devices {gpus}")
    cores = len(usable_cores())
    if not gpus and int(devices) > max(_LEAST_MOST, _PROCESSES_A_CORE * cores):
        raise RequestError(
            f"--devices is {devices}, but there {'is 1 core' if cores == 1 else f'are {cores} cores'} here",
            hint=f"--devices {cores}: more processes than cores only compete",
        )
    return int(devices)


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Run `gpt` with `arguments` in this many processes that train together; returns the exit code.

    Raises UserError if one of them was killed; other errors were printed by their process.
    """
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # ours is one line instead of pages
    try:
        with TemporaryDirectory(prefix="gpt-") as logs, _environment():  # torch leaves its own behind
            config = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=processes,
                run_id=uuid4().hex,
                rdzv_backend="c10d",
                rdzv_endpoint="localhost:0",
                max_restarts=0,
                shutdown_timeout=_SECONDS_TO_SAVE,
                signals_to_handle=_SIGNALS,
                logs_specs=DefaultLogsSpecs(log_dir=logs),
            )
            elastic_launch(config, sys.executable)("-m", "gpt_cli", *arguments)
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    except ChildFailedError as error:
        codes = {number: failed.exitcode for number, failed in error.failures.items()}
        # The process that printed an error ends first; the launcher ends the others, which lose contact.
        if reasons := [code for code in codes.values() if code > 0 and code != ExitCode.LOST]:
            return reasons[0]
        killed = next((number for number, code in codes.items() if code < 0), None)
        lost = "lost contact with one of the processes"
        problem = lost if killed is None else f"process {killed} was killed by {error.failures[killed].signal_name()}"
        raise UserError(problem, hint="the same command resumes from the newest checkpoint") from error
    return 0


@contextmanager
def _environment() -> Iterator[None]:
    """Signals and variables for the processes to be started; restored on exit."""
    handlers = {name: signal.getsignal(getattr(signal, name)) for name in _SIGNALS.split(",")}
    before = dict(os.environ)
    os.environ |= {LAUNCHER: str(os.getpid()), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        for name, handler in handlers.items():
            signal.signal(getattr(signal, name), handler)
