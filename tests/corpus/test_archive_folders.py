"""Archives are read as the folders they hold: the same documents, and nothing that is unpacked or followed."""

import io
import json
import os
import random
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus import archive_folders, stored_file
from gpt_cli.corpus.examples import read_examples
from gpt_cli.corpus.labelled import read_labelled
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.corpus.readers import ReaderOptions
from gpt_cli.corpus.sources import find_files, read_documents
from gpt_cli.errors import UserError
from tests.support.command import subprocess_env

ARCHIVES = [".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst"]
NAMES = ["a", "b.d", "c", ".h", "Z", "é", "a b", "run.json", "x-y", "1"]
SUFFIXES = [".txt", ".md", "", ".png", ".jsonl", ".json", ".csv", ".txt.gz", ".tar"]


def pack(folder: Path, archive: Path) -> Path:
    """Write what is in `folder` to `archive`, in no order."""
    paths = sorted(folder.rglob("*"), key=lambda path: hash(path.name[::-1]))
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
            for path in paths:
                opened.write(path, path.relative_to(folder))
        return archive
    mode = {".gz": "w:gz", ".tgz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}.get(archive.suffix, "w")
    with tarfile.open(archive, mode) as tar:  # type: ignore[call-overload]
        for path in paths:
            tar.add(path, f"./{path.relative_to(folder)}", recursive=False)
    if archive.suffix == ".zst":
        compressor = pytest.importorskip("zstandard").ZstdCompressor()
        archive.write_bytes(compressor.compress(archive.read_bytes()))
    return archive


def contents(order: random.Random, suffix: str) -> bytes:
    import gzip

    text = "".join(order.choices(["some ", "text ", "größer ", "\n"], k=order.choice((0, 1, 9, 900))))
    match suffix:
        case ".jsonl" | ".json":
            return "".join(json.dumps({"text": f"{n} {text}"}) + "\n" for n in range(3)).encode()
        case ".csv":
            return f'text,b\n"{text}x",1\n'.encode()
        case ".txt.gz":
            return gzip.compress(text.encode() + b"x")
    return text.encode()


def make_tree(folder: Path, order: random.Random) -> None:
    for _ in range(order.randrange(1, 25)):
        path = folder.joinpath(*order.choices(NAMES, k=order.choice((1, 1, 2, 3))))
        suffix = order.choice(SUFFIXES)
        path = path.with_name(path.name + suffix)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents(order, suffix))
        except OSError:  # a file is in the place of a folder
            continue
    (folder / "last.txt").write_text("the last text\n" * 9)


def documents(source: Path, notes: list[str]) -> list[tuple[str, str]]:
    return [
        (os.path.relpath(document.name, source), document.text)
        for document in read_documents(str(source), note=notes.append)
    ]


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_an_archive_is_read_as_the_folder_that_it_unpacks_to(tmp_path: Path, suffix: str) -> None:
    for seed in range(12):
        folder = tmp_path / f"texts-{seed}"
        make_tree(folder, random.Random(seed))
        archive = pack(folder, tmp_path / f"packed-{seed}{suffix}")
        expected, found = list[str](), list[str]()
        assert documents(archive, found) == documents(folder, expected)
        assert [note.replace(str(archive), str(folder)) for note in found] == expected
        glob = f"{tmp_path}/packed-{seed}.*"
        assert [one.text for one in read_documents(glob, note=lambda _: None)] == [
            text for _, text in documents(folder, [])
        ]
        archive.unlink()


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_the_tokens_and_the_fingerprint_are_those_of_the_folder(tmp_path: Path, suffix: str) -> None:
    make_tree(tmp_path / "texts", random.Random(5))
    archive = pack(tmp_path / "texts", tmp_path / f"packed{suffix}")
    for split in ("characters", "documents", "files"):
        corpora = [
            prepare_corpus(DataConfig(source=str(source), split=split), TokenizerConfig(), cache=False, note=print)
            for source in (tmp_path / "texts", archive)
        ]
        assert corpora[0].fingerprint == corpora[1].fingerprint
        assert corpora[0].train.tolist() == corpora[1].train.tolist()
        assert corpora[0].val.tolist() == corpora[1].val.tolist()


def test_a_hard_link_is_the_file_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("one text")
    os.link(tmp_path / "texts" / "a.txt", tmp_path / "texts" / "b.txt")
    with tarfile.open(tmp_path / "texts.tar", "w") as tar:
        tar.add(tmp_path / "texts", "texts")
    assert [one.text for one in read_documents(str(tmp_path / "texts.tar"), note=pytest.fail)] == ["one text"] * 2


def test_more_archives_than_a_process_may_open_are_read(tmp_path: Path) -> None:
    for number in range(60):
        for suffix in (".zip", ".tar"):
            (tmp_path / "texts").mkdir(exist_ok=True)
            (tmp_path / "texts" / "a.txt").write_text(f"{number}{suffix}")
            pack(tmp_path / "texts", tmp_path / f"{number:02}{suffix}")
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60));"
        "from gpt_cli.corpus.sources import read_documents;"
        "print(sum(1 for _ in read_documents(sys.argv[1:], note=sys.exit)))"
    )
    command = [sys.executable, "-c", script, f"{tmp_path}/*.zip", f"{tmp_path}/*.tar"]
    completed = subprocess.run(command, env=subprocess_env(), capture_output=True, text=True, check=False)
    assert (completed.stdout, completed.stderr) == ("120\n", "")


def test_a_compressed_archive_is_expanded_once_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tree(tmp_path / "texts", random.Random(7))
    archive = pack(tmp_path / "texts", tmp_path / "texts.tar.gz")
    spools: list[Any] = []
    spool = archive_folders.spool
    monkeypatch.setattr(stored_file, "_IN_MEMORY", 10)
    monkeypatch.setattr(archive_folders, "spool", lambda pieces: spools.append(spool(pieces)) or spools[-1])
    for _ in range(3):
        assert documents(archive, []) == documents(tmp_path / "texts", [])
    assert [file._rolled for file in spools] == [True]


def test_names_of_very_many_folders_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "deep.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("d/" * 2000 + "x"), io.BytesIO())
    with pytest.raises(UserError, match="more than 100 folders"):
        find_files(str(tmp_path / "deep.tar"), ReaderOptions(), pytest.fail)


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz"])
def test_tables_examples_and_labels_are_read_from_archives(tmp_path: Path, suffix: str) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "table").mkdir()
    parquet.write_table(arrow.table({"text": ["one", "two"]}), tmp_path / "table" / "x.parquet")
    table = pack(tmp_path / "table", tmp_path / f"table-packed{suffix}")
    assert [document.text for document in read_documents(str(table), note=pytest.fail)] == ["one", "two"]
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "x.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 3)
    pairs = pack(tmp_path / "pairs", tmp_path / f"pairs-packed{suffix}")
    assert len(list(read_examples(str(pairs), DataConfig(format="pairs"), pytest.fail))) == 3
    for label in ("good", "bad"):
        (tmp_path / "labels" / label).mkdir(parents=True)
        (tmp_path / "labels" / label / "1.txt").write_text(f"it is {label}")
    labels = pack(tmp_path / "labels", tmp_path / f"labels-packed{suffix}")
    found = [(text.label, text.text) for text in read_labelled(str(labels), DataConfig(format="labelled"), pytest.fail)]
    assert found == [("bad", "it is bad"), ("good", "it is good")]


def test_an_archive_in_a_folder_is_skipped_as_binary(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("text")
    pack(tmp_path / "texts", tmp_path / "texts" / "b.zip")
    notes: list[str] = []
    assert documents(tmp_path / "texts", notes) == [("a.txt", "text")]
    assert "b.zip" in notes[0]


def write_tar(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"text" * 128))
    return path


def tar_member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, link, 512 if kind == tarfile.REGTYPE else 0
    return member


def test_links_devices_and_names_that_lead_outside_are_never_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    tar = write_tar(
        tmp_path / "x.tar",
        tar_member("a.txt"),
        tar_member("link.txt", tarfile.SYMTYPE, str(tmp_path / "secret.txt")),
        tar_member("hard.txt", tarfile.LNKTYPE, "a.txt"),
        tar_member("device", tarfile.CHRTYPE),
        tar_member("../secret.txt"),
        tar_member(str(tmp_path / "secret.txt")),
    )
    notes: list[str] = []
    found = documents(tar, notes)
    assert [name for name, _ in found] == ["a.txt", "hard.txt", str(tmp_path / "secret.txt").lstrip("/")]
    assert {text for _, text in found} == {"text" * 128}
    assert "skipped 2 special files such as links" in notes[0]
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.txt", "text")
        link = zipfile.ZipInfo("link.txt")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, str(tmp_path / "secret.txt"))
    assert documents(tmp_path / "x.zip", notes) == [("a.txt", "text")]
    assert (tmp_path / "secret.txt").read_text() == "secret"


def test_an_encrypted_member_and_another_method_are_refused_by_name(tmp_path: Path) -> None:
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2):
        with zipfile.ZipFile(tmp_path / "x.zip", "w", method) as archive:
            archive.writestr("a.txt", "text " * 99)
        data = bytearray((tmp_path / "x.zip").read_bytes())
        if method == zipfile.ZIP_DEFLATED:
            data[6] |= 1
            data[data.index(b"PK\1\2") + 8] |= 1
        (tmp_path / "x.zip").write_bytes(data)
        with pytest.raises(UserError, match=r"x\.zip/a\.txt"):
            documents(tmp_path / "x.zip", [])


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz"])
def test_a_damaged_archive_is_refused_or_read(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "texts" / "b").mkdir(parents=True)
    for name in ("a.txt", "b/c.txt", "b/d.jsonl"):
        (tmp_path / "texts" / name).write_text(json.dumps({"text": name * 50}) + "\n")
    archive = pack(tmp_path / "texts", tmp_path / f"x{suffix}")
    data = archive.read_bytes()
    expected = documents(archive, [])
    for offset in range(0, len(data), max(1, len(data) // 400)):
        for damaged in (data[:offset], data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]):
            archive.write_bytes(damaged)
            try:
                found = documents(archive, [])
            except UserError as error:
                assert error.exit_code == 1  # noqa: PT017 - some bytes mean nothing
            else:
                assert suffix == ".tar" or found == expected or len(damaged) == len(data)


def test_a_header_that_is_damaged_does_not_end_a_tar_early(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", tar_member("a.txt"), tar_member("b.txt"))
    data = bytearray(path.read_bytes())
    data[1024] ^= 1  # the name of the second member
    path.write_bytes(data)
    with pytest.raises(UserError, match="damaged at byte 1,024"):
        documents(path, [])


def test_nothing_is_left_where_an_archive_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tree(tmp_path / "texts", random.Random(1))
    archives = [pack(tmp_path / "texts", tmp_path / f"x{suffix}") for suffix in ARCHIVES]
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for archive in archives:
        files = find_files(archive.name, ReaderOptions(), lambda _: None)
        readers: list[Callable[[], object]] = [lambda file=file: list(file.read(lambda _: None)) for file in files]  # type: ignore[misc]
        for read in readers:
            read()
        assert sorted(tmp_path.rglob("*")) == before
