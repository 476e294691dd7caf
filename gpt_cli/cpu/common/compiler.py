"""Find the system's C compiler, and compile a library with it, within a time limit.

It is called without a shell, in a private folder that has its temporary files, too. Leftovers of a killed compilation
are removed by the next one.
"""

import atexit
import hashlib
import os
import platform
import re
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpt_cli.cpu.common.trust import UntrustedError, require_own, require_trusted_parents
from gpt_cli.runtime.cpu_level import chosen_level

if sys.platform != "win32":
    import fcntl

SECONDS = 60.0
"""The time limit of a compilation: of wall time, or on a busy machine of processor time. A busy Zen 3 took 19."""
_MAX_SECONDS = 240.0
_ALIVE = 0.02  # share of a processor below which a process counts as waiting, not computing
_VERSION_SECONDS = 5.0
_MAX_OUTPUT = 1 << 16  # bytes of its messages that are read
_FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
_MIN_FREE_BYTES = 1 << 25  # bytes, more than a compilation needs
_PREFIX, _LOCK = "gpt-kernel-", "lock"
_STALE = 3600.0  # seconds after which a folder without a lock counts as abandoned
_NICE = 5  # more than that of this process; so little that on a busy machine it does not count as waiting
_running: set[int] = set()  # process groups of compilers


class KernelUnavailable(Exception):  # noqa: N818 (named for what it says)
    """There is no kernel on this machine; the message says why."""


class WrongKernel(KernelUnavailable):
    """The compiled kernel computes something else than its reference."""


class CompilerHangs(KernelUnavailable):
    """The compiler did not end in time."""


@dataclass(frozen=True)
class Compiler:
    """A C compiler, identified by path, size and modification time."""

    path: str
    size: int
    mtime_ns: int

    @classmethod
    def find(cls) -> "Compiler":
        """`$CC`, or the first C compiler there is. Raises KernelUnavailable."""
        path = find_compiler()
        try:
            status = os.stat(path)
        except OSError as error:
            raise KernelUnavailable(f"{path}: {error.strerror}") from None
        return cls(path, status.st_size, status.st_mtime_ns)

    @property
    def is_gcc(self) -> bool:
        """True if the file behind all links is called gcc."""
        return "gcc" in os.path.basename(os.path.realpath(self.path))

    def version(self) -> str:
        """The first line of `--version`; empty if it fails, hangs or prints nothing."""
        with suppress(KernelUnavailable, OSError):
            code, output = _run([self.path, "--version"], _environment(None), _VERSION_SECONDS, stdout=True)
            return output.decode(errors="replace").partition("\n")[0].strip()[:200] if code == 0 else ""
        return ""


def find_compiler() -> str:
    """The path of `$CC`, or of the first C compiler there is. Raises KernelUnavailable."""
    for name in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        if path := shutil.which(name):
            return path
    raise KernelUnavailable("there is no C compiler (install gcc or clang)")


def missing_cc() -> str | None:
    """The value of `$CC` if it is not the name or path of a program."""
    named = os.environ.get("CC")
    return named if named and shutil.which(named) is None else None


def flags() -> tuple[str, ...]:
    """The compiler flags for this processor, with its longest vectors, or for the level that is set."""
    if (level := chosen_level()) is not None:
        return (*_FLAGS, *level.compiler_options)
    if platform.machine() in ("x86_64", "AMD64"):
        return (*_FLAGS, "-march=native", "-mprefer-vector-width=512")
    return (*_FLAGS, "-mcpu=native") if platform.machine() in ("aarch64", "arm64") else _FLAGS


def source_texts(sources: tuple[Path, ...]) -> list[bytes]:
    """The C files, all headers beside them, and those that both engines share."""
    folders = {Path(__file__).parent, *(source.parent for source in sources)}
    headers = sorted(header for folder in folders for header in folder.glob("*.h"))
    return [path.read_bytes() for path in (*sources, *headers)]


def sources_sha256(texts: list[bytes]) -> str:
    """One SHA-256 of several texts, in hex."""
    return hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in texts)).hexdigest()


def compile_library(
    compiler: Compiler, sources: tuple[Path, ...], options: tuple[str, ...], place: Path | None = None
) -> bytes:
    """Compile `sources` in a new folder in `place`, where nobody else can write, or in a temporary one.

    Raises KernelUnavailable, CompilerHangs and OSError.
    """
    if place is None or shutil.disk_usage(place).free < _MIN_FREE_BYTES:
        place = private_place()
    with _private_directory(place) as folder:
        library, errors = folder / "kernel.so", list[Exception]()

        def run(*arguments: str, nice: int = 0) -> None:
            try:
                _compile([compiler.path, *options, *arguments], folder, nice)
            except (KernelUnavailable, OSError) as error:
                errors.append(error)

        # Side by side, but the first, which takes longest, before the others where cores are few. The threads are
        # daemons, for whom the interpreter does not wait when it ends.
        objects = [str(folder / f"{source.stem}.o") for source in sources]
        first, *others = [("-c", "-o", made, str(source)) for source, made in zip(sources, objects, strict=True)]
        threads = [threading.Thread(target=run, args=one, kwargs={"nice": _NICE}, daemon=True) for one in others]
        for thread in threads:
            thread.start()
        run(*first)
        for thread in threads:
            thread.join()
        if not errors:
            run("-o", str(library), *objects, "-lm", "-lpthread")
        if errors:
            raise errors[0]
        try:
            return library.read_bytes()
        except FileNotFoundError:
            raise KernelUnavailable(f"{compiler.path} made nothing, and said nothing") from None


def _compile(command: list[str], folder: Path, nice: int) -> None:
    code, output = _run(command, _environment(folder), SECONDS, nice=nice)
    if code:
        raise KernelUnavailable(
            f"{command[0]} failed: {_reason(output) or f'exit code {code}'} (CC=NAME chooses another compiler)"
        )


def _reason(output: bytes) -> str:
    """The line of a compiler's output that says why it failed: its first error, else the first that is no heading."""
    lines = output.decode(errors="replace").strip().splitlines()
    telling = [line for line in lines if not re.search(r":\s*$|ld returned|linker command failed", line)]
    errors = [line for line in telling if re.search(r"\berror\b", line, re.IGNORECASE)]
    return next(iter(errors or telling or lines), "")


def private_place() -> Path:
    """A folder for temporary files in which nobody else can replace the user's files. Raises KernelUnavailable."""
    reason = "there is no folder for temporary files"
    for place in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")):
        try:
            require_trusted_parents(Path(place))
        except (UntrustedError, OSError) as error:
            reason = str(error)
            continue
        if os.access(place, os.W_OK | os.X_OK):
            return Path(place)
    raise KernelUnavailable(f"there is no safe place for temporary files: {reason}")


@contextmanager
def _private_directory(place: Path) -> Iterator[Path]:
    """A new folder of the user alone, removed on exit; first those of dead processes are removed."""
    _remove_leftovers(place)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    try:
        with open(folder / _LOCK, "wb") as lock:  # held as long as this process is alive and at work here
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers(place: Path) -> None:
    for folder in place.glob(f"{_PREFIX}*"):
        with suppress(OSError, UntrustedError):
            status = os.lstat(folder)
            require_own(str(folder), status)
            if stat.S_ISDIR(status.st_mode) and _is_abandoned(folder, status):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path, status: os.stat_result) -> bool:
    """True if no process uses `folder` any more."""
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # it was just made, or is half removed
        return time.time() - status.st_mtime > _STALE
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks on this file system
        return time.time() - status.st_mtime > _STALE
    finally:
        os.close(descriptor)
    return True


def _environment(folder: Path | None) -> dict[str, str]:
    """The compiler's environment, without variables that change its output; temporary files in `folder`."""
    variables = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LD_LIBRARY_PATH")}
    return variables if folder is None else variables | {"TMPDIR": str(folder)}


def _run(
    command: list[str], environment: dict[str, str], limit: float, *, stdout: bool = False, nice: int = 0
) -> tuple[int, bytes]:
    """Run `command` in a process group of its own; returns (exit code, beginning of stderr, or of `stdout`).

    Raises CompilerHangs after `limit` seconds (see SECONDS), and kills the whole group.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if stdout else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if stdout else subprocess.PIPE,
        env=environment,
        process_group=0,
    )
    if not _running:
        atexit.register(_kill_all)
    _running.add(process.pid)
    if nice:
        with suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PGRP, process.pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + nice))
    pipe = process.stdout if stdout else process.stderr
    assert pipe is not None
    output, began = b"", time.monotonic()
    try:
        with pipe, selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while True:
                if selector.select(0.2):
                    if not (chunk := os.read(pipe.fileno(), _MAX_OUTPUT)):
                        break
                    output = (output + chunk)[:_MAX_OUTPUT]
                _require_in_time(command[0], process.pid, time.monotonic() - began, limit)
        while True:  # it has closed its output, and is about to end
            with suppress(subprocess.TimeoutExpired):
                return process.wait(0.2), output
            _require_in_time(command[0], process.pid, time.monotonic() - began, limit)
    finally:
        _running.discard(process.pid)
        if process.returncode is None:
            _kill(process.pid)
            process.wait()


def _require_in_time(name: str, group: int, seconds: float, limit: float) -> None:
    if seconds < limit:
        return
    computed = _processor_seconds(group)
    if seconds < _MAX_SECONDS and computed is not None and seconds * _ALIVE < computed < limit:
        return  # a busy machine
    raise CompilerHangs(f"{name} did not end within {min(seconds, _MAX_SECONDS):.0f} s")


def _processor_seconds(group: int) -> float | None:
    """Processor seconds of a process group; None where the system does not say."""
    ticks, exists = 0, False
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks, exists = ticks + sum(map(int, fields[11:15])), True
    return ticks / os.sysconf("SC_CLK_TCK") if exists else None


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _kill_all() -> None:
    for group in tuple(_running):
        _kill(group)
