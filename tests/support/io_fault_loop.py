"""A process below which the disk fails, again and again while it trains; it says what came of it.

    LD_PRELOAD=io_fault_preload.so python -m tests.support.io_fault_loop TIMES SEED < config.yaml
    CONTROL=file python -m tests.support.io_fault_loop TIMES SEED < config.yaml

It runs in the folder of the runs, the second line where io_fault_fuse.c is mounted at `mount`.

Each kind of failure is met at TIMES moments of a training, which then must end with one error, or well. After that the
disk is sound: what was saved verifies, and the same command must come to the end of an undisturbed training, `whole`.
Prints, as JSON, how often a training was disturbed, and what was wrong.
"""

import ctypes
import errno
import json
import mmap
import os
import random
import shutil
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from gpt_cli.files import DamagedError
from gpt_cli.run.checkpoint import list_checkpoints, load
from tests.support.fault_injection import remains
from tests.support.kill_loop import TRAIN as COMMAND
from tests.support.kill_loop import end, prepare_folder, start, warm_up

TRAIN = [*COMMAND, "train.steps=10"]


class Preloaded:
    """io_fault_preload.c, in this very process and its forks."""

    run = "failing"

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)

    def fail(self, call: str, number: int, error: int, lasting: bool) -> None:
        """Count the calls of that name, and refuse call `number` (0: none) and, if `lasting`, all after it."""
        folder = os.path.join(os.getcwd(), self.run).encode()
        self._library.disk_fails(folder, call.encode(), ctypes.c_long(number), error, int(lasting))

    def calls(self) -> int:
        """How many there were."""
        return int(self._library.disk_calls())


class Mounted:
    """io_fault_fuse.c, whose Control is a file."""

    run = "mount/failing"
    _LAYOUT = "64s4q"

    def __init__(self, control: str) -> None:
        with open(control, "r+b") as file:
            self._control = mmap.mmap(file.fileno(), struct.calcsize(self._LAYOUT))

    def fail(self, call: str, number: int, error: int, lasting: bool) -> None:
        """See Preloaded."""
        self._control[:] = struct.pack(self._LAYOUT, call.encode(), number, error, lasting, 0)

    def calls(self) -> int:
        """See Preloaded."""
        return int(struct.unpack(self._LAYOUT, self._control[:])[-1])


DISK = Mounted(os.environ["CONTROL"]) if "CONTROL" in os.environ else Preloaded()
RUN = DISK.run


@dataclass(frozen=True)
class Failure:
    """A call of the C library that is refused: once, or from then on."""

    call: str
    error: int
    lasting: bool
    says: str


FAILURES = [
    Failure("write", errno.EIO, False, "input/output error"),
    Failure("write", errno.EIO, True, "input/output error"),
    Failure("fsync", errno.EIO, False, "input/output error"),
    Failure("rename", errno.EIO, False, "input/output error"),
    Failure("read", errno.EIO, False, "input/output error"),
    Failure("create", errno.EROFS, True, "read-only file system"),  # mounted again, for reading only
    Failure("rename", errno.EROFS, True, "read-only file system"),
    Failure("mkdir", errno.EROFS, True, "read-only file system"),
    Failure("write", errno.EDQUOT, True, "disk quota exceeded"),
    Failure("create", errno.EDQUOT, True, "disk quota exceeded"),
    Failure("mkdir", errno.EDQUOT, True, "disk quota exceeded"),
    Failure("flock", errno.ENOLCK, True, "no locks available"),
    Failure("flock", errno.EOPNOTSUPP, True, "operation not supported"),
]


def train(failure: Failure, number: int, log: str) -> tuple[int, int]:
    """Train while call `number` is refused: the exit code, and how many such calls there were."""

    def count_calls(writer: int) -> None:
        DISK.fail(failure.call, number, failure.error, failure.lasting)
        exit_process = os._exit

        def report_and_exit(code: int) -> None:
            os.write(writer, b"%d" % DISK.calls())
            exit_process(code)

        os._exit = report_and_exit  # type: ignore[assignment]

    child, pipe = start([*TRAIN, f"run_dir={RUN}"], count_calls, log)
    code = end(child)
    DISK.fail("", 0, 0, False)
    with open(pipe, "rb") as reader:
        return code, int(reader.read() or b"0")


def disturb(failure: Failure, number: int, expected: dict[str, str]) -> str | None:
    """Train while the disk fails, and then to the end: what was wrong, None if nothing."""
    log = Path("said")
    log.unlink(missing_ok=True)
    shutil.rmtree(RUN, ignore_errors=True)
    code, _ = train(failure, number, str(log))
    output = " ".join(log.read_text().split())
    if (
        code not in (0, 1)
        or output.count("error: ") != code
        or "Traceback" in output
        or (code and failure.says not in output)
    ):
        return f"exit code {code}, said {output[-600:]}"
    for checkpoint in list_checkpoints(Path(RUN)) if Path(RUN).exists() else []:
        try:
            load(checkpoint)
        except DamagedError as error:
            return f"it left {error.message}"
    log.unlink()
    code, _ = train(failure, 0, str(log))
    if code or "damaged" in (output := log.read_text()):
        return f"not resumed: exit code {code}, said {output[-600:]}"
    is_same = expected.items() <= remains(Path(RUN)).items()  # one that could not be read once is not pruned
    return None if is_same else "it ended as another run"


def main(times: int, seed: int) -> dict[str, object]:
    """Meet each failure at `times` moments, spread over a training."""
    warm_up()
    assert end(start([*TRAIN, "run_dir=whole"])[0]) == 0
    expected, dice = remains(Path("whole")), random.Random(seed)
    n_faults, problems, counts = 0, [], {}
    for failure in FAILURES:
        if failure.call not in counts:
            shutil.rmtree(RUN, ignore_errors=True)
            counts[failure.call] = train(failure, 0, "trainers.log")[1]
        calls = counts[failure.call]
        for i in range(min(times, calls)):
            number = 1 + dice.randrange(calls * i // min(times, calls), calls * (i + 1) // min(times, calls))
            n_faults += 1
            if (problem := disturb(failure, number, expected)) is not None:
                problems.append(f"{failure} at {number} of {calls}: {problem}")
    return {"met": n_faults, "calls": counts, "wrong": problems}


if __name__ == "__main__":
    prepare_folder()
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))
