"""C sources, compiled once for this machine by the system's compiler, kept in the cache and loaded.

The name of what is kept tells the sources, the compiler, its options and the processor apart. The compiler is called
without a shell, and only a file that belongs to the user, in a folder that nobody else can write to, is loaded.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from gpt_cli.errors import UserError
from gpt_cli.files import cache_dir, make_directory, replace_file

SOURCE = Path(__file__).with_name("decode.c")
_OPTIONS = ("-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
# What of -O3 makes decode.c fast, without what only takes time: gcc compiles it in two thirds of the time.
_OPTIONS_OF_GCC = ("-O2", "-fvect-cost-model=dynamic")
_SECONDS = 120  # for the compiler
_LOCKS: dict[object, threading.Lock] = defaultdict(threading.Lock)  # two threads may want the same kernel
_KEEP = ContextVar("keep", default=True)  # whether what is compiled goes into the cache


class NoKernel(Exception):  # noqa: N818 (named for what it says)
    """There is no kernel on this machine; the message says why."""


@cache
def load_kernel(*sources: Path, options: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The compiled kernel, from the cache or compiled now (a few seconds). Raises NoKernel.

    `sources` (by default decode.c) are compiled together, with `options` besides the usual ones.
    """
    lock = _LOCKS[sources, options]
    if not lock.acquire(timeout=_SECONDS):  # also in the fork of a process that was compiling
        raise NoKernel("it is being compiled, and that does not end")
    try:
        return _load(sources or (SOURCE,), options)
    finally:
        lock.release()


def load_ahead(*sources: Path, options: tuple[str, ...] = ()) -> None:
    """Begin what `load_kernel` will do, in the background: the compiler works while Python imports."""

    def load() -> None:
        with suppress(NoKernel):  # told to who asks for the kernel
            load_kernel(*sources, **({"options": options} if options else {}))  # as it will be asked for

    threading.Thread(target=load, daemon=True).start()


@contextmanager
def leaving_nothing() -> Iterator[None]:
    """Within: what is compiled is not kept in the cache."""
    token = _KEEP.set(False)
    try:
        yield
    finally:
        _KEEP.reset(token)


def processor_flags() -> frozenset[str]:
    """What the processor can do, in Linux' words; empty where they are not told."""
    lines = _processor().splitlines()
    return frozenset(word for line in lines if line.startswith(("flags", "Features")) for word in line.split())


def _load(sources: tuple[Path, ...], options: tuple[str, ...]) -> ctypes.CDLL:
    if os.name != "posix":
        raise NoKernel("the kernel is written for POSIX threads")
    compiler = find_compiler()
    if sources == (SOURCE,) and "gcc" in os.path.basename(os.path.realpath(compiler)):
        options = (*_OPTIONS_OF_GCC, *options)
    try:
        path = _place(compiler, sources, options)
        if not path.exists():
            if not _KEEP.get():
                with tempfile.TemporaryDirectory(prefix="gpt-") as folder:
                    return ctypes.CDLL(str(_compile(compiler, sources, options, Path(folder))))
            _keep(path, compiler, sources, options)
        _refuse_foreign(path)
        return ctypes.CDLL(str(path))
    except (OSError, UserError) as error:
        raise NoKernel(str(error)) from error


def find_compiler() -> str:
    """The path of `$CC`, or of the first C compiler there is. Raises NoKernel."""
    for name in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        if found := shutil.which(name):
            return found
    raise NoKernel("there is no C compiler")


def _place(compiler: str, sources: tuple[Path, ...], options: tuple[str, ...]) -> Path:
    """Where the kernel for this very machine is kept."""
    found = os.stat(compiler)
    headers = sorted({header for source in sources for header in source.parent.glob("*.h")})
    texts = [path.read_bytes() for path in (*sources, *headers)]
    facts = (texts, compiler, found.st_size, found.st_mtime_ns, _options(), options, _processor())
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()
    return cache_dir() / "native" / f"{sources[0].stem}-{digest[:32]}.so"


def _options() -> tuple[str, ...]:
    """For the processor that this runs on, whose longest vectors are used."""
    if platform.machine() in ("x86_64", "AMD64"):
        return (*_OPTIONS, "-march=native", "-mprefer-vector-width=512")
    return (*_OPTIONS, "-mcpu=native") if platform.machine() in ("aarch64", "arm64") else _OPTIONS


def _processor() -> str:
    """What the processor can do, for a cache that several machines share."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read(1 << 16).partition("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    facts = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part")
    return "\n".join(line for line in lines if line.partition(":")[0].strip() in facts)


def _keep(path: Path, compiler: str, sources: tuple[Path, ...], options: tuple[str, ...]) -> None:
    make_directory(path.parent)
    os.chmod(path.parent, 0o700)
    _refuse_foreign(path.parent)
    with tempfile.TemporaryDirectory(prefix="gpt-") as folder:
        replace_file(path, _compile(compiler, sources, options, Path(folder)).read_bytes())
        os.chmod(path, 0o600)


def _compile(compiler: str, sources: tuple[Path, ...], options: tuple[str, ...], folder: Path) -> Path:
    """The library, made in `folder`."""
    made = folder / "kernel.so"
    command = [compiler, *_options(), *options, "-o", str(made), *map(str, sources), "-lm", "-lpthread"]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL, env=_environment()
        )
    except subprocess.TimeoutExpired:
        raise NoKernel(f"{compiler} did not end within {_SECONDS} s") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise NoKernel(f"{compiler} failed: {said[0] if said else done.returncode}")
    return made


def _environment() -> dict[str, str]:
    """The compiler's surroundings: nothing that would change what it makes."""
    return {name: value for name, value in os.environ.items() if name in ("PATH", "TMPDIR", "HOME", "LD_LIBRARY_PATH")}


def _refuse_foreign(path: Path) -> None:
    """Raise NoKernel for a file or folder that somebody else owns or could write to."""
    facts = path.lstat()
    if stat.S_ISLNK(facts.st_mode):
        raise NoKernel(f"{path} is a symbolic link")
    if facts.st_uid != os.getuid():
        raise NoKernel(f"{path} belongs to another user")
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NoKernel(f"others may write to {path}")
    if path.suffix == ".so":
        _refuse_foreign(path.parent)
