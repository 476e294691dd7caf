"""Faults planted in compiled code: in copies of its sources, or in the library that the cache holds."""

import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from gpt_cli.cpu.common import compiler, kernel
from gpt_cli.cpu.common.build_store import Store
from gpt_cli.cpu.common.compiler import Compiler
from gpt_cli.cpu.common.kernel import Kernel


def with_fault(original: Kernel, folder: Path, file: str, old: str, new: str) -> Kernel:
    """`original` from copies of its sources in `folder`, where `old` in `file` is `new`."""
    own = folder / "engine"
    for path, copy in ((Path(compiler.__file__).parent, folder / "common"), (original.sources[0].parent, own)):
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    text = (own / file).read_text()
    assert text.count(old) >= 1, f"{file} has no {old!r} any more"
    (own / file).write_text(text.replace(old, new))
    sources = tuple(own / source.name for source in original.sources)
    return replace(original, sources=sources, options=(*original.options, "-O0"))  # compiled in no time


def compiled(faulty: Kernel) -> bytes:
    """The library of `faulty`, as the cache would hold it."""
    return compiler.compile_library(Compiler.find(), faulty.sources, (*compiler.flags(), *faulty.options))


def plant(original: Kernel, library: bytes) -> None:
    """Have the cache hold `library` for `original`, with a sum that is right."""
    kernel.load(original, print)
    with Store(kernel.store_path()) as store:
        record = store.record(f"{original.name}-{kernel.key_of(original, Compiler.find())}")
        assert record is not None
        store.write(original.name, library, replace(record, sha256=sha256(library).hexdigest()))


@pytest.fixture
def own_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the cache that no other test sees, and no kernel in the memory of this process."""
    shutil.copytree(kernel.store_path(), tmp_path / "own-cache" / "native")
    monkeypatch.setenv("GPT_CACHE", str(tmp_path / "own-cache"))
    monkeypatch.setattr(kernel, "_jobs", {})
