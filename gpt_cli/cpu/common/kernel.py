"""Compile C sources once for this machine, cache the library and load it.

The cache key is of the sources, the compiler, its options and the processor. `compiler` makes a library, `build_store`
stores it with its SHA-256, and the bytes that are loaded are those that were checked.
"""

import ctypes
import hashlib
import os
import platform
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpt_cli.cpu.common import compiler as compilers
from gpt_cli.cpu.common.build_store import BuildRecord, DamagedLibraryError, Store
from gpt_cli.cpu.common.compiler import Compiler, CompilerHangs, KernelUnavailable, WrongKernel, find_compiler
from gpt_cli.cpu.common.hangs import forget_hang, remember_hang, remembered_hang
from gpt_cli.cpu.common.trust import UntrustedError
from gpt_cli.errors import Notify, UserError
from gpt_cli.files import cache_dir
from gpt_cli.files.durable import write_all

__all__ = [
    "COMPILING",
    "DECODER",
    "Kernel",
    "KernelUnavailable",
    "WrongKernel",
    "build_in_background",
    "declare",
    "find_compiler",
    "load_kernel",
    "no_build_cache",
]

SOURCE = Path(__file__).parents[1] / "decode" / "decode.c"
_FORMAT = 2  # of the cache
# The parts of -O3 that make decode.c faster: gcc compiles it in two thirds of the time.
_OPTIONS_OF_GCC = ("-O2", "-fvect-cost-model=dynamic")
PATIENCE = 1.0  # seconds before a note says that the compiler is running
COMPILING = "compiling "  # begins the note that asks for patience: no problem, unlike the others
_KEEP = ContextVar("keep", default=True)  # whether compiled libraries are cached


@dataclass(frozen=True)
class Kernel:
    """C sources of one library, the longest first, with `options` besides the usual ones.

    A library that lacks one of `functions` is neither cached nor used.
    """

    sources: tuple[Path, ...]
    options: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in the cache."""
        return self.sources[0].stem


DECODER = Kernel(
    (SOURCE,),
    functions=("gpt_open", "gpt_close", "gpt_begin", "gpt_end", "gpt_write", "gpt_stop", "gpt_score"),
)


@dataclass
class _BuildJob:
    """The loading of a kernel in a thread; `remarks` are messages for the caller of `load_kernel`."""

    thread: threading.Thread
    remarks: list[str] = field(default_factory=list)
    library: ctypes.CDLL | None = None
    error: Exception | None = None


_jobs: dict[object, _BuildJob] = {}
_lock = threading.Lock()
_descriptors: list[int] = []  # of loaded libraries: /proc/self/fd/N must not be reused while the process lives


def load_kernel(kernel: Kernel = DECODER, *, anew: bool = False, note: Notify = lambda _: None) -> ctypes.CDLL:
    """The compiled kernel, from memory, from the cache or compiled now (a few seconds). Raises KernelUnavailable.

    `anew`: compile it even if it is cached, and replace that. `note` gets problems of the cache, and after a second
    that the compiler is running.
    """
    job = _job(kernel, anew=anew)
    job.thread.join(PATIENCE)
    if job.thread.is_alive():
        note(f"{COMPILING}{kernel.name}.c for this processor, once: some seconds, at most {compilers.SECONDS:.0f}")
        job.thread.join()
    while job.remarks:
        note(job.remarks.pop(0))
    if job.library is None:
        with _lock:  # the next call tries again
            if _jobs.get(_key(kernel)) is job:
                del _jobs[_key(kernel)]
        if isinstance(job.error, KernelUnavailable):
            raise KernelUnavailable(str(job.error)) from job.error
        assert job.error is not None
        raise job.error
    return job.library


def declare(library: ctypes.CDLL, functions: Mapping[str, tuple[Any, tuple[Any, ...]]]) -> None:
    """Tell ctypes the types of the `functions` of `library`: {name: (result, arguments)}."""
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


def build_in_background(kernel: Kernel = DECODER) -> None:
    """Start `load_kernel` in the background: the compiler runs while Python imports."""
    _job(kernel, anew=False)


@contextmanager
def no_build_cache() -> Iterator[None]:
    """Do not cache libraries that are compiled meanwhile."""
    token = _KEEP.set(False)
    try:
        yield
    finally:
        _KEEP.reset(token)


def store_path() -> Path:
    """The directory of compiled libraries. Raises UserError."""
    return cache_dir() / "native"


def _key(kernel: Kernel) -> object:
    return kernel, compilers.flags(), os.getpid()  # a fork does not have the thread


def _job(kernel: Kernel, *, anew: bool) -> _BuildJob:
    """The build job of a kernel in this process."""
    with _lock:
        job = _jobs.get(_key(kernel))
        if job is None or (anew and not job.thread.is_alive()):
            context = copy_context()
            job = _BuildJob(threading.Thread(target=lambda: context.run(work), daemon=True))
            _jobs[_key(kernel)] = job

            def work(job: _BuildJob = job) -> None:
                try:
                    job.library = load(kernel, job.remarks.append, anew=anew)
                except Exception as error:  # raised by `load_kernel`
                    job.error = error

            job.thread.start()
        return job


def load(kernel: Kernel, remark: Notify, *, anew: bool = False) -> ctypes.CDLL:
    """Load a kernel from the cache, or compile it and keep it there. Raises KernelUnavailable.

    `remark` gets problems of the cache, none of which prevents compiling.
    """
    if os.name != "posix":
        raise KernelUnavailable("the kernel is written for POSIX threads")
    compiler = Compiler.find()
    key = key_of(kernel, compiler)
    store = _open_store(remark)
    try:
        if store is not None and not anew:
            try:
                if (cached := store.read(f"{kernel.name}-{key}")) is not None:
                    return open_library(cached, kernel)
            except (DamagedLibraryError, KernelUnavailable) as error:
                remark(f"{error}; compiling it again")
        if missing := compilers.missing_cc():
            remark(f"CC names {missing}, which is no program here: {compiler.path} compiles {kernel.name}.c")
        options = options_for(kernel, compiler)
        compiled = _compile(compiler, kernel, options, store)
        library = open_library(compiled, kernel)
        if store is not None and _KEEP.get():
            sources = compilers.sources_sha256(compilers.source_texts(kernel.sources))
            sha256 = hashlib.sha256(compiled).hexdigest()
            record = BuildRecord(key, compiler.path, compiler.version(), options, sources, sha256)
            try:
                store.write(kernel.name, compiled, record)
            except OSError as error:
                remark(_not_kept(f"cannot write to {store.path}: {error.strerror}"))
        return library
    finally:
        if store is not None:
            store.close()


def options_for(kernel: Kernel, compiler: Compiler) -> tuple[str, ...]:
    """All options of `compiler` for `kernel` on this processor."""
    optimization = _OPTIONS_OF_GCC if kernel.sources == (SOURCE,) and compiler.is_gcc else ()
    return (*compilers.flags(), *optimization, *kernel.options)


def key_of(kernel: Kernel, compiler: Compiler) -> str:
    """The cache key of `kernel`: sources, options, compiler and processor."""
    parts = (_FORMAT, compilers.source_texts(kernel.sources), compiler, options_for(kernel, compiler), _processor())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def open_library(library: bytes, kernel: Kernel) -> ctypes.CDLL:
    """Load these very bytes. Raises KernelUnavailable for what is no library or lacks a function."""
    try:
        opened = _open_in_memory(library, kernel.name) or _open_copy(library)
    except OSError as error:
        raise KernelUnavailable(f"what the compiler made cannot be loaded: {error}") from None
    for name in kernel.functions:
        if not hasattr(opened, name):
            raise KernelUnavailable(f"what the compiler made of {kernel.name}.c has no function {name}")
    return opened


def _open_store(remark: Notify) -> Store | None:
    """The store; None if it does not exist and caching is off, or if it cannot be used, which `remark` gets."""
    try:
        path = store_path()
        if _KEEP.get():
            return Store.create(path)
        return Store(path) if os.path.lexists(path) else None
    except (UntrustedError, UserError) as error:
        remark(_not_kept(str(error)))
    except OSError as error:
        remark(_not_kept(f"cannot use {path}: {error.strerror}"))
    return None


def _not_kept(reason: str) -> str:
    return f"compiled code is not kept, and so compiled at every start: {reason} (GPT_CACHE names another folder)"


def _compile(compiler: Compiler, kernel: Kernel, options: tuple[str, ...], store: Store | None) -> bytes:
    seconds = None if store is None else remembered_hang(store, compiler)
    if store is not None and seconds is not None and seconds >= compilers.SECONDS:  # now it may have more
        raise KernelUnavailable(
            f"{compiler.path} did not end within {seconds:.0f} s at an earlier start; to try it again remove"
            f" {store.path / 'hang.json'}"
        )
    place = store.path if store is not None and _KEEP.get() else None
    try:
        library = compilers.compile_library(compiler, kernel.sources, options, place)
    except CompilerHangs:
        if store is not None and _KEEP.get():
            remember_hang(store, compiler, compilers.SECONDS)
        raise
    except OSError as error:
        raise KernelUnavailable(f"{compiler.path} cannot be used: {error.strerror}") from error
    if store is not None and _KEEP.get():
        forget_hang(store)
    return library


def _open_in_memory(library: bytes, name: str) -> ctypes.CDLL | None:
    """Load from an anonymous file, which nobody can replace; None where the system has none."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    except OSError:
        return None
    try:
        write_all(descriptor, library)
        opened = ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    except OSError:  # no /proc, or no code from memory; if it is no library, `_open_copy` raises
        os.close(descriptor)
        return None
    _descriptors.append(descriptor)
    return opened


def _open_copy(library: bytes) -> ctypes.CDLL:
    """Load from a copy in a folder of the user alone. Raises OSError."""
    place = compilers.private_place()
    with tempfile.TemporaryDirectory(prefix="gpt-library-", dir=place, ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / "kernel.so"
        copy.write_bytes(library)
        return ctypes.CDLL(str(copy))


def _processor() -> str:
    """The processor's part of the cache key, for a cache that several machines share."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read(1 << 16).partition("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    names = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part")
    return "\n".join(line for line in lines if line.partition(":")[0].strip() in names)
