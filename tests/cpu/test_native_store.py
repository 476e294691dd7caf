"""The compiled library that is loaded is the one that was compiled and checked, whatever is done to the cache."""

import ctypes
import json
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpt_cli.cpu.common import compiler, kernel
from gpt_cli.cpu.common.compiler import Compiler, CompilerHangs, KernelUnavailable, find_compiler
from gpt_cli.cpu.common.kernel import Kernel, load, load_kernel, no_build_cache
from gpt_cli.cpu.common.trust import UntrustedError, require_trusted_parents
from tests.support.command import ROOT, subprocess_env
from tests.support.rename_exchange import exchange
from tests.support.waiting import HANG, wait_until

pytestmark = pytest.mark.robust

try:
    find_compiler()
except KernelUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

FOREIGN_SOURCE = """
#include <fcntl.h>
__attribute__((constructor)) static void leave_a_mark(void) {{ open("{mark}", O_CREAT | O_WRONLY, 0600); }}
int answer(void) {{ return 666; }}
"""


@pytest.fixture
def answer_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """A kernel that is compiled in no time, and a cache of its own."""
    monkeypatch.setenv("GPT_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "source" / "mine.c"
    source.parent.mkdir()
    source.write_text("int answer(void) { return 42; }\n")
    return Kernel((source,), functions=("answer",))


@pytest.fixture
def foreign_library(tmp_path: Path) -> bytes:
    """A library that leaves a mark when it is loaded: see `unmarked`."""
    source = tmp_path / "foreign.c"
    source.write_text(FOREIGN_SOURCE.format(mark=tmp_path / "mark"))
    library_path = tmp_path / "foreign.so"
    subprocess.run([find_compiler(), "-shared", "-fPIC", "-o", library_path, source], check=True)
    library = library_path.read_bytes()
    ctypes.CDLL(str(library_path))
    assert (tmp_path / "mark").exists()  # else nothing here would be found
    (tmp_path / "mark").unlink()
    return library


@pytest.fixture(autouse=True)
def _many_descriptors() -> Iterator[None]:
    """What is loaded in memory keeps a descriptor; hundreds are loaded here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def load_remarks(answer_kernel: Kernel) -> list[str]:
    """Load it as a new process would: what is told. It must be the one that was compiled."""
    remarks: list[str] = []
    assert load(answer_kernel, remarks.append).answer() == 42
    return remarks


def stored_files() -> tuple[Path, Path]:
    """The library and its record."""
    folder = kernel.store_path()
    (library,), (record,) = folder.glob("*.so"), folder.glob("*-*.json")
    return library, record


def test_what_is_kept_is_the_users_alone_recorded_and_loaded_without_a_word(answer_kernel: Kernel) -> None:
    assert load_remarks(answer_kernel) == []
    library, record = stored_files()
    assert {path.stat().st_mode & 0o777 for path in (library, record)} == {0o600}
    assert library.parent.stat().st_mode & 0o777 == 0o700
    facts = json.loads(record.read_text())
    assert facts["compiler"] == find_compiler()
    assert facts["version"]
    assert "-shared" in facts["flags"]
    old_mtime = library.stat().st_mtime_ns
    assert load_remarks(answer_kernel) == []
    assert library.stat().st_mtime_ns == old_mtime
    assert set(library.parent.iterdir()) == {library, record}


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _swap_for(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def swap(path: Path) -> None:
        path.rename(path.with_name("aside"))
        make(path)

    return swap


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "file").touch()


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (_truncate, "is damaged|no record"),
    "emptied": (lambda path: os.truncate(path, 0), "is damaged|no record"),
    "missing": (lambda path: path.unlink(), "is missing|"),
    "a link": (_swap_for(lambda path: path.symlink_to("aside")), "is a symbolic link"),
    "a link to nothing": (_swap_for(lambda path: path.symlink_to("nothing")), "is a symbolic link"),
    "a FIFO": (_swap_for(os.mkfifo), "is not a file"),
    "a folder": (_swap_for(_folder), "is not a file"),
    "a device": (_swap_for(lambda path: path.symlink_to("/dev/zero")), "is a symbolic link"),
    "writable by others": (lambda path: path.chmod(0o622), "others may write to"),
    "huge": (lambda path: os.truncate(path, 10**9), "is too large"),
    "other bytes": (lambda path: path.write_bytes(b"\x00nonsense\xff" * 99), "is damaged|no record"),
}


@pytest.mark.parametrize("which", [0, 1], ids=["library", "record"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_not_as_it_was_compiled_is_told_compiled_again_and_never_loaded(
    answer_kernel: Kernel, damage: str, which: int
) -> None:
    load_remarks(answer_kernel)
    apply_damage, alternatives = DAMAGE[damage]
    apply_damage(stored_files()[which])
    remarks = load_remarks(answer_kernel)
    if damage == "missing" and which == 1:
        assert remarks == []  # it was never finished
    else:
        assert len(remarks) == 1
        assert any(alternative in remarks[0] for alternative in alternatives.split("|"))
        assert remarks[0].endswith("; compiling it again")
    assert load_remarks(answer_kernel) == []


def test_a_foreign_library_under_the_name_of_the_users_is_never_loaded(
    answer_kernel: Kernel, foreign_library: bytes, tmp_path: Path
) -> None:
    load_remarks(answer_kernel)
    stored_files()[0].write_bytes(foreign_library)
    assert "is damaged" in load_remarks(answer_kernel)[0]
    if os.geteuid() == 0:  # with a record that fits, of another user
        _plant(stored_files()[0].parent, foreign_library)
        assert "belongs to another user" in load_remarks(answer_kernel)[0]
    assert not (tmp_path / "mark").exists()


def _plant(folder: Path, library: bytes) -> None:
    """Put a foreign library into a copy of the cache, as another user would: with a record that fits."""
    import hashlib

    old_path, record = next(iter(folder.glob("*.so"))), next(iter(folder.glob("*-*.json")))
    facts = json.loads(record.read_text())
    facts["sha256"] = hashlib.sha256(library).hexdigest()
    record.write_text(json.dumps(facts))
    new_path = old_path.with_name(f"{record.stem}-{facts['sha256'][:16]}.so")
    new_path.write_bytes(library)
    for path in (new_path, record):
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
        else:
            path.chmod(0o666)  # the nearest to another user's file that may be made here


def _race(answer_kernel: Kernel, foreign_library: bytes, tmp_path: Path, times: int) -> None:
    """Load while the folder, in a safe place and in one that is open to all, and the library are exchanged."""
    load_remarks(answer_kernel)
    folder = kernel.store_path()
    decoy = folder.with_name("decoy")
    shutil.copytree(folder, decoy)
    _plant(decoy, foreign_library)
    os.chown(decoy, 65534, 65534) if os.geteuid() == 0 else decoy.chmod(0o777)
    library, folder_inode = stored_files()[0], folder.stat().st_ino
    foreign_path = library.with_name("plain")
    for mode, target, replacement in ((0o700, folder, decoy), (0o777, folder, decoy), (0o700, library, foreign_path)):
        if target is library:
            foreign_path.write_bytes(foreign_library)
        folder.parent.chmod(mode)
        attacker = subprocess.Popen(
            [sys.executable, "-m", "tests.support.rename_exchange", target, replacement],
            env=subprocess_env(),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert attacker.stdout is not None
        try:
            assert attacker.stdout.readline() == "exchanging\n"
            for _ in range(times // 3):
                remarks = load_remarks(answer_kernel)
                assert mode == 0o700 or "others may write to" in remarks[0]
                if target is library:  # what was found was replaced
                    foreign_path.write_bytes(foreign_library)
        finally:
            attacker.kill()
            attacker.wait()
            attacker.stdout.close()
        if target is folder and folder.stat().st_ino != folder_inode:
            exchange(str(folder), str(decoy))
    assert not (tmp_path / "mark").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="renameat2 is Linux'")
def test_of_30_exchanges_while_it_is_loaded_none_brings_in_a_foreign_library(
    answer_kernel: Kernel, foreign_library: bytes, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    _race(answer_kernel, foreign_library, tmp_path, 30)
    record_property("faults", 30)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="renameat2 is Linux'")
def test_of_600_exchanges_while_it_is_loaded_none_brings_in_a_foreign_library(
    answer_kernel: Kernel, foreign_library: bytes, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    _race(answer_kernel, foreign_library, tmp_path, 600)
    record_property("faults", 600)


def _flip_and_cut(answer_kernel: Kernel, times: int) -> None:
    """Flip a bit or cut the file somewhere, of the library three times in four, and load."""
    load_remarks(answer_kernel)
    rng = random.Random(7)
    for turn in range(times):
        library, record = stored_files()
        path = record if turn % 4 == 3 else library
        content = path.read_bytes()
        if turn % 3 == 2:
            os.truncate(path, rng.randrange(len(content)))
        else:
            bit = rng.randrange(8 * len(content))
            path.write_bytes(content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :])
        remarks = load_remarks(answer_kernel)
        assert path is record or len(remarks) == 1  # a flip in the compiler's version, say, does not matter


def test_of_20_bit_flips_and_truncations_none_is_loaded(
    answer_kernel: Kernel, record_property: Callable[[str, object], None]
) -> None:
    _flip_and_cut(answer_kernel, 20)
    record_property("faults", 20)


@pytest.mark.slow
def test_of_300_bit_flips_and_truncations_none_is_loaded(
    answer_kernel: Kernel, record_property: Callable[[str, object], None]
) -> None:
    _flip_and_cut(answer_kernel, 300)
    record_property("faults", 300)


def test_a_cache_that_cannot_be_used_is_told_and_done_without(
    answer_kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link_target = tmp_path / "elsewhere"
    link_target.mkdir(mode=0o755)
    folder = kernel.store_path()
    folder.parent.mkdir()
    for make, message in (
        (lambda: folder.symlink_to(link_target), "is a symbolic link"),
        (lambda: os.mkfifo(folder), "is no folder"),
        (folder.touch, "is no folder"),
        (lambda: (folder.mkdir(), folder.chmod(0o777)), "others may write to"),
    ):
        make()
        remarks = load_remarks(answer_kernel)
        assert message in remarks[0]
        assert remarks[0].startswith("compiled code is not kept")
        folder.rmdir() if folder.is_dir() and not folder.is_symlink() else folder.unlink()
    assert stat.S_IMODE(link_target.stat().st_mode) == 0o755  # nothing was changed through the link
    assert list(link_target.iterdir()) == []
    monkeypatch.setenv("GPT_CACHE", "/dev/null/cache")
    assert "compiled code is not kept" in load_remarks(answer_kernel)[0]
    monkeypatch.setenv("GPT_CACHE", "/proc/self")  # where nothing can be made
    assert "compiled code is not kept" in load_remarks(answer_kernel)[0]


def test_a_way_to_the_cache_that_others_can_change_is_not_taken(tmp_path: Path) -> None:
    cache = tmp_path / "open" / "inner" / "cache"
    cache.mkdir(parents=True)
    require_trusted_parents(cache)
    require_trusted_parents(cache / "not" / "there")
    outer_folder = tmp_path / "open"
    outer_folder.chmod(0o777)
    with pytest.raises(UntrustedError, match=r"others may write to .*open$"):
        require_trusted_parents(cache)
    outer_folder.chmod(0o1777)  # sticky, as /tmp is
    require_trusted_parents(cache)
    outer_folder.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to("open/../open/inner")
    require_trusted_parents(link / "cache")
    cache.parent.chmod(0o777)
    with pytest.raises(UntrustedError, match=r"others may write to .*inner$"):
        require_trusted_parents(link / "cache")
    (tmp_path / "round").symlink_to("round")
    with pytest.raises((UntrustedError, OSError)):
        require_trusted_parents(tmp_path / "round" / "cache")
    if os.geteuid() == 0:
        cache.parent.chmod(0o755)
        os.chown(outer_folder, 65534, 65534)
        with pytest.raises(UntrustedError, match="belongs to another user"):
            require_trusted_parents(link / "cache")


def test_within_no_build_cache_nothing_is_left(answer_kernel: Kernel, tmp_path: Path) -> None:
    with no_build_cache():
        assert load_remarks(answer_kernel) == []
    assert not (tmp_path / "cache").exists()


# The compiler


def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A `cc` that does `script`, with `$out` the file that it is to make."""
    path = tmp_path / "bin" / "cc"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nout=$(echo "$@" | sed "s/.*-o \\([^ ]*\\).*/\\1/")\n{script}\n')
    path.chmod(0o755)
    monkeypatch.setenv("CC", str(path))
    return path


def test_without_a_compiler_or_with_a_broken_one_there_is_a_reason(
    answer_kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_compiler = find_compiler()
    for script, message in (
        ("echo 'no such option' >&2; exit 1", "failed: no such option"),
        ("exit 3", "failed: exit code 3"),
        ("echo 'x.s: Assembler messages:' >&2; echo 'No space left' >&2; exit 1", "failed: No space left"),
        ("echo 'a warning' >&2; echo 'x.c:1: error: no type' >&2; exit 1", "failed: x.c:1: error: no type"),
        ("echo 'ld: cannot find -lx' >&2; echo 'error: ld returned 1 exit status' >&2; exit 1", "cannot find -lx"),
        ("exit 0", "made nothing"),
        ("echo nonsense > $out", "cannot be loaded"),
        ("mkdir $out", "Is a directory"),
        ("yes >&2", "did not end"),
        (f"echo 'int other(void) {{ return 1; }}' | {real_compiler} -shared -o $out -x c -", "has no function answer"),
    ):
        monkeypatch.setattr(compiler, "SECONDS", 0.5 if message == "did not end" else HANG)
        fake_compiler(tmp_path, monkeypatch, script)
        with pytest.raises(KernelUnavailable, match=message):
            load_kernel(answer_kernel)
        assert not list(kernel.store_path().glob("*.so"))
    monkeypatch.setenv("CC", str(tmp_path / "nothing"))
    with monkeypatch.context() as alone:
        alone.setenv("PATH", str(tmp_path))
        with pytest.raises(KernelUnavailable, match="there is no C compiler"):
            load_kernel(answer_kernel)
    notes: list[str] = []
    load_kernel(answer_kernel, note=notes.append)
    assert f"CC names {tmp_path / 'nothing'}, which is no program here: {real_compiler} compiles mine.c" in notes


@pytest.mark.parametrize("script", ["sleep 1000", "while :; do :; done", "sleep 1000 & exit 0"])
def test_a_compiler_that_hangs_is_told_stopped_and_remembered_until_it_changes_or_may_take_longer(
    answer_kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    require_in_time, calls, expected = compiler._require_in_time, tmp_path / "calls", ["x\n"]

    def delayed_require(*facts: Any) -> None:  # a machine may be so busy that it takes longer than 0.3 s to begin
        if calls.exists() and calls.read_text() == expected[0]:
            require_in_time(*facts)

    monkeypatch.setattr(kernel, "PATIENCE", 0.0)
    monkeypatch.setattr(compiler, "SECONDS", 0.3)
    monkeypatch.setattr(compiler, "_require_in_time", delayed_require)
    prologue = f'case "$1" in --version) echo fake; exit 0;; esac; echo x >> {tmp_path}/calls\n'
    path = fake_compiler(tmp_path, monkeypatch, prologue + script)
    notes: list[str] = []
    with pytest.raises(KernelUnavailable, match="did not end within"):
        load_kernel(answer_kernel, note=notes.append)
    assert notes[0].startswith("compiling mine.c for this processor")
    for _ in range(2):
        with pytest.raises(
            KernelUnavailable, match=r"did not end within \d+ s at an earlier start; to try it again remove"
        ):
            load_kernel(answer_kernel)
    assert calls.read_text() == "x\n"
    expected[0] = "x\nx\n"
    path.write_text(path.read_text() + "# changed\n")
    with pytest.raises(KernelUnavailable, match="did not end within"):
        load_kernel(answer_kernel)
    assert calls.read_text() == "x\nx\n"
    expected[0] = "x\nx\nx\n"
    monkeypatch.setattr(compiler, "SECONDS", 0.4)  # more time than it had
    with pytest.raises(KernelUnavailable, match="did not end within"):
        load_kernel(answer_kernel)
    assert calls.read_text() == "x\nx\nx\n"
    monkeypatch.delenv("CC")
    monkeypatch.setattr(compiler, "SECONDS", HANG)
    monkeypatch.setattr(compiler, "_require_in_time", require_in_time)
    assert load_remarks(answer_kernel) == []
    assert not (kernel.store_path() / "hang.json").exists()


def test_a_compiler_that_computes_on_a_busy_machine_is_not_taken_for_one_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for cpu_seconds, seconds, hangs in ((3.0, 60.0, False), (0.1, 20.5, True), (20.0, 20.5, True), (None, 20.5, True),
                                        (3.0, 300.0, True), (0.0, 19.9, False)):  # fmt: skip
        monkeypatch.setattr(compiler, "_processor_seconds", lambda _, cpu_seconds=cpu_seconds: cpu_seconds)
        if hangs:
            with pytest.raises(CompilerHangs):
                compiler._require_in_time("cc", 1, seconds, 20.0)
        else:
            compiler._require_in_time("cc", 1, seconds, 20.0)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux says what a group has computed")
def test_what_a_group_of_processes_has_computed_is_known() -> None:
    child = subprocess.Popen(["sh", "-c", "while :; do :; done"], process_group=0)
    try:
        while not compiler._processor_seconds(child.pid):
            assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_what_a_killed_compilation_leaves_is_removed_by_the_next_and_what_is_in_use_stays(
    answer_kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kernel.store_path()
    fake_compiler(
        tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; sleep 100000"
    )
    program = (
        "import sys; from pathlib import Path; from gpt_cli.cpu.common.kernel import Kernel, load\n"
        "load(Kernel((Path(sys.argv[1]),)), print)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, answer_kernel.sources[0]], cwd=ROOT)
    wait_until((tmp_path / "pid").exists, process)
    (folder,) = store.iterdir()
    monkeypatch.delenv("CC")
    load_remarks(answer_kernel)
    assert folder in store.iterdir()  # somebody works there
    process.kill()
    process.wait()
    os.killpg(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    stored_files()[1].unlink()
    load_remarks(answer_kernel)
    assert folder not in store.iterdir()


@pytest.fixture
def two_source_kernel(answer_kernel: Kernel) -> Kernel:
    """A kernel of two sources, the second of which `answer_kernel` does not have."""
    second_source = answer_kernel.sources[0].with_name("more.c")
    second_source.write_text("int another(void) { return 43; }\n")
    return Kernel((*answer_kernel.sources, second_source), functions=("answer", "another"))


def test_sources_that_are_compiled_side_by_side_are_one_library_and_any_that_fails_is_told(
    two_source_kernel: Kernel,
) -> None:
    library = load_kernel(two_source_kernel)
    assert (library.answer(), library.another()) == (42, 43)
    for source in two_source_kernel.sources:
        text = source.read_text()
        source.write_text("int 1;\n")
        with pytest.raises(KernelUnavailable, match=source.name):
            load(two_source_kernel, print, anew=True)
        source.write_text(text)


def test_an_interpreter_that_ends_stops_the_compilers_of_all_sources_and_does_not_wait(
    two_source_kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_compiler(tmp_path, monkeypatch, f"echo $$ >> {tmp_path}/pids; exec sleep 100000")
    program = (
        "import sys, time; from pathlib import Path\n"
        "from gpt_cli.cpu.common.kernel import Kernel, build_in_background\n"
        "build_in_background(Kernel(tuple(map(Path, sys.argv[2:]))))\n"
        "while not Path(sys.argv[1]).exists() or len(Path(sys.argv[1]).read_text().split()) < 2: time.sleep(0.01)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "pids"), *map(str, two_source_kernel.sources)]
    subprocess.run(command, cwd=ROOT, timeout=HANG, check=True)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def is_alive(pid: int) -> bool:
    """Whether there is such a process, which is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_compiler_is_found_by_name_and_says_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    actual = Compiler.find()
    assert actual.path == find_compiler()
    assert actual.version()
    monkeypatch.setenv("CC", "/bin/false")
    assert Compiler.find().version() == ""
