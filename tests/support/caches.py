"""Caches of `gpt` for tests: each begins with the engines that were compiled before, and with nothing else."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

ENGINES = ("decode-", "network-")  # what is worth keeping; tests compile this and that


def copy_kernels(source: Path, target: Path) -> None:
    """Copy compiled libraries and their records: each file whole or not at all, and no record without its library."""
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    records = [*source.glob("*-*.json")]
    for file in [*source.glob("*-*.so"), *records]:
        if file.name.startswith(ENGINES) and not (target / file.name).exists():
            with suppress(FileNotFoundError):  # another worker forgets old ones: the record first, then its library
                copy = shutil.copy(file, target / f".{file.name}.{os.getpid()}")
                os.rename(copy, target / file.name)


COMPILE = """
from gpt_cli.cpu.common.kernel import DECODER, KernelUnavailable, build_in_background, load_kernel
from gpt_cli.cpu.train.build_settings import KERNELS
kernels = (*KERNELS.values(), DECODER)
for kernel in kernels:
    build_in_background(kernel)
for kernel in kernels:
    try:
        load_kernel(kernel)
    except KernelUnavailable:
        pass  # tests of it say so
"""


def compile_engines(kernels: Path, cache: Path) -> None:
    """Compile what is not yet in `kernels`, so that no test waits for a compiler that it does not know of."""
    with open(kernels / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other worker finds what this one made
        with cache_with(kernels, cache):
            subprocess.run([sys.executable, "-c", COMPILE], check=True)


def forget_old(kernels: Path, keep: int = 6) -> None:
    """Remove all but the newest `keep`."""
    with suppress(FileNotFoundError):  # another worker is at it
        for record in sorted(kernels.glob("*.json"), key=lambda file: -file.stat().st_mtime)[keep:]:
            record.unlink()
            for library in kernels.glob(f"{record.stem}-*.so"):
                library.unlink()


@contextmanager
def cache_with(kernels: Path, cache: Path) -> Iterator[None]:
    """Within: `cache` is that of `gpt`, with the kernels there are. What was compiled meanwhile is kept."""
    copy_kernels(kernels, cache / "native")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPT_CACHE", str(cache))
        patch.delenv("GPT_DEBUG", raising=False)
        yield
    copy_kernels(cache / "native", kernels)
    shutil.rmtree(cache, ignore_errors=True)
