"""Durable file operations: whole or not at all, proven, and never written to what is not a file of ours."""

import errno
import hashlib
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli import files
from gpt_cli.errors import UserError
from gpt_cli.files import AppendOnlyFile, DamagedError, DirectoryLock, DiskError, ExistsError, LockedError
from gpt_cli.files.locations import similar_paths
from tests.support.faulty_disk import REASONS, FaultyDisk
from tests.support.lock import locked_elsewhere

CONTENTS = {"a.bin": bytes(range(256)), "b.txt": b"text\n", "empty": b""}


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    return FaultyDisk(tmp_path, monkeypatch)


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    files.commit_files(tmp_path / "committed", CONTENTS)
    return tmp_path / "committed"


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


# One file


@pytest.mark.parametrize("data", [b"", b"abc", os.urandom(3 << 20)], ids=["empty", "small", "several chunks"])
def test_what_is_written_is_what_is_read_and_its_sum_is_returned(tmp_path: Path, data: bytes) -> None:
    digest = files.write_file(tmp_path / "file", data)
    assert files.read_file(tmp_path / "file") == data
    assert digest == hashlib.sha256(data).hexdigest() == files.sha256_file(tmp_path / "file")


def test_pieces_are_written_one_after_the_other(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"one "
        yield b""
        yield b"two"

    assert files.write_file(tmp_path / "file", chunks()) == hashlib.sha256(b"one two").hexdigest()
    assert (tmp_path / "file").read_bytes() == b"one two"


def test_a_system_that_writes_less_than_it_was_given_loses_nothing(tmp_path: Path, disk: FaultyDisk) -> None:
    disk.short = True
    files.write_file(tmp_path / "file", b"all of this")
    assert (tmp_path / "file").read_bytes() == b"all of this"


def test_a_file_is_on_the_disk_before_writing_it_returns(tmp_path: Path, disk: FaultyDisk) -> None:
    files.write_file(tmp_path / "file", b"data")
    assert [name for name, _ in disk.log] == ["create", "write", "fsync"]


def test_writing_a_file_leaves_nothing_behind_when_it_fails(tmp_path: Path, disk: FaultyDisk) -> None:
    for at in range(3):
        disk.fail(at, errno.EIO)
        with pytest.raises(DiskError, match="input/output error"):
            files.write_file(tmp_path / "file", b"data")
        assert list(tmp_path.iterdir()) == []


def test_a_replaced_file_is_old_or_new_at_every_failure_and_leaves_nothing_else(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    failures = 0
    for _ in disk.each_failure(lambda: files.replace_file(path, b"new"), errno.EIO):
        assert path.read_bytes() in (b"old", b"new")
        assert list(tmp_path.iterdir()) == [path]
        failures += 1
    assert failures == 6  # create, write, fsync, replace; open and fsync of the directory
    assert path.read_bytes() == b"new"


def special_files(tmp_path: Path) -> list[Path]:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    (tmp_path / "dangling").symlink_to(tmp_path / "created")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    return [tmp_path / name for name in ("link", "dangling", "folder", "pipe")] + [Path("/dev/null")]


def test_nothing_is_written_through_a_link_or_into_a_device(tmp_path: Path) -> None:
    for path in special_files(tmp_path):
        kind = stat.S_IFMT(os.lstat(path).st_mode)
        for write in (files.write_file, files.replace_file):
            with pytest.raises(DiskError, match=path.name):
                write(path, b"overwritten")
        with pytest.raises(DiskError, match=path.name):
            AppendOnlyFile(path)
        assert stat.S_IFMT(os.lstat(path).st_mode) == kind
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert not (tmp_path / "created").exists()


def test_an_existing_file_is_never_overwritten_in_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(DiskError, match="file exists"):
        files.write_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"


def test_reading_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert files.read_file(tmp_path / "file", limit=5) == b"12345"
    with pytest.raises(UserError, match="larger than 4 bytes"):
        files.read_file(tmp_path / "file", limit=4)
    with pytest.raises(UserError, match="larger than"):
        files.read_file(Path("/dev/zero"), limit=1 << 20)


@pytest.mark.parametrize("name", ["folder", "pipe"])
def test_what_may_never_end_is_not_read_without_a_bound(tmp_path: Path, name: str) -> None:
    special_files(tmp_path)
    with pytest.raises(DiskError, match="not a file"):
        files.read_file(tmp_path / name)


def test_a_full_disk_is_told_with_what_is_needed_and_what_is_free(tmp_path: Path, disk: FaultyDisk) -> None:
    disk.fail(1, errno.ENOSPC)
    with pytest.raises(DiskError, match=r"no space left .*/file \(needs 3\.0 MB, [\d.]+ .B free\)"):
        files.write_file(tmp_path / "file", bytes(3_000_000))


def test_space_that_is_not_there_is_noticed_before_anything_is_written(tmp_path: Path) -> None:
    files.require_space(tmp_path, 1)
    with pytest.raises(DiskError, match=r"needs 1,000\.0 PB"):
        files.require_space(tmp_path, 10**18)


@pytest.mark.parametrize("error", REASONS)
def test_a_place_that_may_not_be_written_to_is_named_with_a_way_out(
    tmp_path: Path, disk: FaultyDisk, error: int
) -> None:
    disk.fail(0, error)
    with pytest.raises(DiskError, match=f"^cannot create {tmp_path / 'new'}: {REASONS[error]}$"):
        files.make_directory(tmp_path / "new")


def test_made_directories_are_on_the_disk_with_all_their_parents(tmp_path: Path, disk: FaultyDisk) -> None:
    files.make_directory(tmp_path / "a" / "b")
    synced = [path for name, path in disk.log if name == "fsync"]
    assert synced == [str(tmp_path), str(tmp_path / "a")]
    files.make_directory(tmp_path / "a" / "b")  # may exist


# A directory


def test_a_committed_directory_verifies_and_gives_its_contents_back(committed: Path) -> None:
    files.verify_directory(committed)
    assert files.read_directory(committed, CONTENTS) == CONTENTS
    assert files.read_sums(committed) == {n: hashlib.sha256(d).hexdigest() for n, d in CONTENTS.items()}


def test_both_ways_to_commit_leave_the_same_bytes(committed: Path, tmp_path: Path) -> None:
    with files.atomic_directory(tmp_path / "other") as temporary:
        for name, data in CONTENTS.items():
            (temporary / name).write_bytes(data)
    assert contents(tmp_path / "other") == contents(committed)


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="there is no sha256sum here")
def test_sha256sum_verifies_a_committed_directory_without_us(committed: Path) -> None:
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=committed, capture_output=True, text=True, check=True).stdout.count("OK") == 3
    (committed / "a.bin").write_bytes(b"?")
    assert subprocess.run(check, cwd=committed, capture_output=True, check=False).returncode == 1


def test_a_commit_reaches_the_disk_in_the_order_that_survives_a_power_cut(tmp_path: Path, disk: FaultyDisk) -> None:
    final = tmp_path / "final"
    files.commit_files(final, {"a": b"a", "b": b"b"})
    steps = [(name, Path(path).name.partition("-")[0]) for name, path in disk.log if name != "open"]
    one_file = ["create", "write", "fsync"]
    assert [name for name, _ in steps] == ["mkdir", *one_file * 3, "fsync", "rename", "fsync"]
    assert [path for name, path in steps if name == "fsync"] == [
        "a",
        "b",
        "SHA256SUMS",
        ".tmp",
        tmp_path.name.partition("-")[0],
    ]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("lasting", [False, True])
def test_a_commit_that_fails_anywhere_leaves_all_or_nothing(
    tmp_path: Path, disk: FaultyDisk, error: int, lasting: bool
) -> None:
    final = tmp_path / "final"
    failures = 0
    for _ in disk.each_failure(lambda: files.commit_files(final, CONTENTS), error, lasting=lasting):
        if final.exists():  # it failed after the rename: only whether it would survive a power cut is unknown
            files.verify_directory(final)
            shutil.rmtree(final)
        assert list(tmp_path.iterdir()) == []
        failures += 1
    assert failures > 15
    files.verify_directory(final)


def test_a_block_that_raises_commits_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with files.atomic_directory(tmp_path / "final") as temporary:
            (temporary / "half").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_taken_is_refused_or_replaced_as_asked(committed: Path) -> None:
    before = contents(committed)
    with pytest.raises(ExistsError, match="exists already"):
        files.commit_files(committed, {"new": b"new"})
    assert contents(committed) == before
    files.commit_files(committed, {"new": b"new"}, replace=True)
    assert files.read_directory(committed, ["new"]) == {"new": b"new"}
    assert list(committed.parent.iterdir()) == [committed]


def test_a_name_taken_while_committing_is_not_overwritten(tmp_path: Path) -> None:
    final = tmp_path / "final"

    def overtaken() -> None:
        with files.atomic_directory(final) as temporary:
            (temporary / "slow").write_bytes(b"slow")
            files.commit_files(final, {"fast": b"fast"})

    with pytest.raises(ExistsError, match="another process made it just now"):
        overtaken()
    assert files.read_directory(final, ["fast"]) == {"fast": b"fast"}
    assert list(tmp_path.iterdir()) == [final]


def test_a_replacement_that_fails_leaves_the_old_or_the_new(committed: Path, disk: FaultyDisk) -> None:
    before = contents(committed)
    failures = 0
    for _ in disk.each_failure(lambda: files.commit_files(committed, {"new": b"new"}, replace=True), errno.EIO):
        files.verify_directory(committed)
        if contents(committed) != before:  # it failed after the rename
            files.commit_files(committed, CONTENTS, replace=True)
        files.remove_stale_temp_dirs(committed.parent)
        assert list(committed.parent.iterdir()) == [committed]
        failures += 1
    assert failures > 10


def test_only_a_directory_is_replaced_by_a_directory(tmp_path: Path) -> None:
    for path in special_files(tmp_path)[:2]:
        with pytest.raises(DiskError, match="not a directory"):
            files.commit_files(path, {"new": b"new"}, replace=True)
    assert (tmp_path / "victim").read_bytes() == b"precious"


# Damage


def test_every_flipped_bit_is_noticed(committed: Path) -> None:
    for file in committed.iterdir():
        data = file.read_bytes()
        for bit in range(8 * len(data)):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            file.write_bytes(flipped)
            with pytest.raises(DamagedError):
                files.verify_directory(committed)
        file.write_bytes(data)
    files.verify_directory(committed)


def test_every_truncation_and_extension_is_noticed(committed: Path) -> None:
    for file in committed.iterdir():
        data = file.read_bytes()
        for damaged in [*(data[:size] for size in range(len(data))), data + b"\n"]:
            file.write_bytes(damaged)
            with pytest.raises(DamagedError):
                files.verify_directory(committed)
        file.write_bytes(data)


@pytest.mark.parametrize("name", [*CONTENTS, "SHA256SUMS"])
def test_a_missing_file_is_named(committed: Path, name: str) -> None:
    (committed / name).unlink()
    with pytest.raises(DamagedError, match=f"{name} is missing"):
        files.verify_directory(committed)


def test_a_file_that_does_not_belong_is_named(committed: Path) -> None:
    (committed / "extra").mkdir()
    with pytest.raises(DamagedError, match="extra does not belong to it"):
        files.verify_directory(committed)


def test_swapped_files_are_noticed(committed: Path) -> None:
    (committed / "a.bin").write_bytes(CONTENTS["b.txt"])
    (committed / "b.txt").write_bytes(CONTENTS["a.bin"])
    with pytest.raises(DamagedError, match=r"a\.bin does not match its SHA-256"):
        files.verify_directory(committed)


@pytest.mark.parametrize("name", [*CONTENTS, "SHA256SUMS"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_link_or_device_in_place_of_a_file_is_damage_not_a_hang(committed: Path, name: str, kind: str) -> None:
    path = committed / name
    path.rename(committed.parent / "moved")
    if kind == "link":
        path.symlink_to(committed.parent / "moved")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(DamagedError, match=name):
        files.verify_directory(committed)


def test_a_bad_sector_is_damage(committed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "read", failing)
    with pytest.raises(DamagedError, match="cannot be read"):
        files.verify_directory(committed)


@pytest.mark.parametrize(
    "line",
    [
        "{sum}  ../../etc/passwd",
        "{sum}  /etc/passwd",
        "{sum}  .hidden",
        "{sum}  -rf",
        "{sum}  a b",
        "{sum}  a\x1b[31m",
        "{sum} *binary",
        "{sum}  b.txt",
        "0123  short",
        "",
        "\\{sum}  a\\nb",
    ],
)
def test_sums_that_we_would_not_write_are_refused(committed: Path, line: str) -> None:
    sums = committed / "SHA256SUMS"
    sums.write_text(sums.read_text() + line.format(sum="0" * 64) + "\n")
    with pytest.raises(DamagedError, match="malformed line") as caught:
        files.verify_directory(committed)
    assert caught.value.where == f"{sums}:4"


@given(st.binary(max_size=300))
def test_any_bytes_as_sums_are_refused_without_a_crash(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("sums")
    (path / "SHA256SUMS").write_bytes(data)
    with pytest.raises(DamagedError):
        files.verify_directory(path)


# Removal


def test_removal_that_fails_anywhere_never_leaves_a_half_under_the_name(
    committed: Path, disk: FaultyDisk, tmp_path: Path
) -> None:
    failures = 0
    for _ in disk.each_failure(lambda: files.remove_directory(committed), errno.EIO):
        if committed.exists():
            files.verify_directory(committed)
        else:
            files.commit_files(committed, CONTENTS)
        files.remove_stale_temp_dirs(tmp_path)
        failures += 1
    assert failures > 2
    assert list(tmp_path.iterdir()) == []


def test_leftovers_are_removed_without_following_links(committed: Path, tmp_path: Path) -> None:
    (tmp_path / ".tmp-half").mkdir()
    (tmp_path / ".tmp-half" / "file").write_bytes(b"half")
    (tmp_path / ".trash-link").symlink_to(committed)
    (tmp_path / ".tmp-file").write_bytes(b"half")
    (tmp_path / "mine").write_bytes(b"mine")
    files.remove_stale_temp_dirs(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["committed", "mine"]
    files.verify_directory(committed)


# Lines


def test_lines_are_written_at_once_and_an_unfinished_one_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with AppendOnlyFile(path) as log:
        log.append("one")
        log.append("zwei \u2028 ü")
        assert path.read_text() == "one\nzwei \u2028 ü\n"  # at once
    with path.open("a") as file:
        file.write('{"half')
    with AppendOnlyFile(path) as log:
        log.append("three")
    assert path.read_text() == "one\nzwei \u2028 ü\nthree\n"


@given(st.binary(max_size=100))
def test_opening_keeps_exactly_the_whole_lines(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("lines") / "log"
    path.write_bytes(data)
    AppendOnlyFile(path).close()
    assert path.read_bytes() == data[: data.rfind(b"\n") + 1]


def test_rewriting_goes_on_in_the_new_file(tmp_path: Path) -> None:
    with AppendOnlyFile(tmp_path / "log") as log:
        log.append("old")
        log.rewrite([b"new"])
        log.append("newer")
        log.sync()
    assert (tmp_path / "log").read_text() == "new\nnewer\n"


# The lock


def test_a_lock_is_held_by_one_process_named_to_others_and_freed_by_its_death(tmp_path: Path) -> None:
    with locked_elsewhere(tmp_path) as holder:
        with pytest.raises(LockedError, match=rf"another process .* \(process {holder.pid} on .*, since 2"):
            DirectoryLock(tmp_path)
        holder.kill()
        holder.wait()
        DirectoryLock(tmp_path).release()


def test_a_lock_is_not_shared_within_a_process_and_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        with DirectoryLock(tmp_path), pytest.raises(LockedError):
            DirectoryLock(tmp_path)


def test_a_child_does_not_keep_the_lock_of_its_parent(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, close_fds=False
    ):
        lock.release()
        DirectoryLock(tmp_path).release()


def test_a_lock_is_let_go_of_while_a_child_still_has_a_copy_of_its_descriptor(tmp_path: Path) -> None:
    """A child that was just started: the parent goes on before the child has closed what it inherited."""
    lock = DirectoryLock(tmp_path)
    copy = os.dup(lock._descriptor)
    lock.release()
    DirectoryLock(tmp_path).release()
    os.close(copy)


def test_a_lock_whose_holder_has_not_said_its_name_is_still_a_lock(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path):
        (tmp_path / "lock").write_bytes(b"\xff[]")
        with pytest.raises(LockedError, match="holder unknown"):
            DirectoryLock(tmp_path)


# The cache


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GPT_CACHE", "/chosen")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert files.cache_dir() == Path("/chosen")
    monkeypatch.setenv("GPT_CACHE", "")
    assert files.cache_dir() == Path("/xdg/gpt")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert files.cache_dir() == tmp_path / ".cache" / "gpt"
    assert not (tmp_path / ".cache").exists()


def test_a_missing_file_is_answered_by_the_one_most_like_it_or_by_none(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").touch()
    (tmp_path / "gone.txt").symlink_to("nowhere")
    assert similar_paths(tmp_path / "promts.txt") == [str(tmp_path / "prompts.txt")]
    (tmp_path / "notes.jsonl").touch()
    for name in (
        "nothing.json",
        "gone.txt",
        "qwertz",
        "no\0thing",
        "x" * 5000,
        "prompts.txt/inside",
        "nowhere/prompts.txt",
    ):
        assert similar_paths(tmp_path / name) == []
    longest = max(os.listdir(os.sep), key=len)
    assert similar_paths(Path(os.sep, f"{longest}x")) == [str(Path(os.sep, longest))]
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).touch()
    assert similar_paths(tmp_path / "cafe.txt") == []
