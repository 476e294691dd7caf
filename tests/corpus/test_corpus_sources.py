"""Text is read as it was written, or refused with the place."""

import bz2
import errno
import gzip
import io
import json
import lzma
import os
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.corpus.decoding import decode_utf8
from gpt_cli.corpus.readers import ReaderOptions
from gpt_cli.corpus.sources import BUILTIN, Document, read_documents
from gpt_cli.errors import RequestError, UserError


def read(source: str | Path | list[str]) -> list[Document]:
    notes: list[str] = []
    documents = list(read_documents(source if isinstance(source, list) else str(source), note=notes.append))
    assert not notes
    return documents


def texts(source: str | Path | list[str]) -> list[str]:
    return [document.text for document in read(source)]


def refusal(path: Path, data: bytes) -> UserError:
    path.write_bytes(data)
    with pytest.raises(UserError) as caught:
        read(path)
    assert caught.value.exit_code == 1
    assert str(path) in caught.value.message
    return caught.value


@settings(max_examples=200)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff"), min_size=1))
def test_any_utf8_file_is_read_character_for_character(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(text.encode())
    assert texts(path) == [text]


@settings(max_examples=300)
@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused_with_a_reason(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(data)
    notes: list[str] = []
    try:
        [document] = read_documents(str(path), note=notes.append)
    except UserError:
        return
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or data[:4] == b"\0\0\xfe\xff":
        encoding = "utf-32" if data[:4] in (b"\xff\xfe\0\0", b"\0\0\xfe\xff") else "utf-16"
        assert document.text == data.decode(encoding).removeprefix("\ufeff")
        assert encoding.upper() in notes[0]
        return
    has_mark = any("byte order mark" in note for note in notes)
    assert data == (b"\xef\xbb\xbf" if has_mark else b"") + document.text.encode()


def test_json_lines_that_are_read_as_plain_text_are_noted(tmp_path: Path) -> None:
    for text, expected in (('{"text": "a"}\n', 1), ("{\n", 0), ("[1]\n", 0), ("{a}\n", 0), ("{" * 99_999, 0)):
        (tmp_path / "x.txt").write_text(text)
        notes: list[str] = []
        [document] = read_documents(str(tmp_path / "x.txt"), note=notes.append)
        assert (document.text, len(notes)) == (text, expected)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16"])
def test_what_is_compressed_is_no_text_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "x").write_bytes(gzip.compress(b"text"))
    with pytest.raises(UserError, match=r"x is gzip, not text"):
        list(read_documents(str(tmp_path / "x"), note=print, options=ReaderOptions(encoding)))


@settings(max_examples=300)
@given(st.binary(max_size=12) | st.text(st.sampled_from("aé😀"), max_size=6).map(str.encode), st.data())
def test_another_encoding_of_what_could_be_utf8_is_noted(content: bytes, data: st.DataObject) -> None:
    """However the bytes come: characters may be divided between pieces."""
    content = b"a" + content.replace(b"\0", b"")
    cuts = sorted(data.draw(st.lists(st.integers(1, len(content)), max_size=4)))
    pieces = [content[start:end] for start, end in pairwise([0, *cuts, len(content)])]
    notes: list[str] = []
    assert b"".join(decode_utf8(pieces, "x", "latin-1", notes.append)).decode() == content.decode("latin-1")
    try:
        is_noted = not content.decode().isascii()
    except UnicodeDecodeError:
        is_noted = False
    assert ["x is valid UTF-8" in note for note in notes] == [True] * is_noted


def test_newlines_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"a\r\nb\rc\nd\x0c\xe2\x80\xa8")
    assert texts(tmp_path / "x.txt") == ["a\r\nb\rc\nd\x0c\u2028"]


def test_a_byte_order_mark_is_dropped_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbfhi")
    notes: list[str] = []
    [document] = read_documents(str(tmp_path / "x.txt"), note=notes.append)
    assert document.text == "hi"
    assert len(notes) == 1
    assert "byte order mark" in notes[0]


def test_what_is_not_utf8_is_refused_with_the_byte_its_offset_and_its_line(tmp_path: Path) -> None:
    error = refusal(tmp_path / "x.txt", b"\xef\xbb\xbfone\ntwo\nth\xe9ree")
    assert "0xe9 at offset 13" in error.message
    assert error.where == f"{tmp_path / 'x.txt'}:3"
    assert error.suggestion == "data.encoding=latin-1"


def test_a_binary_file_is_refused_with_the_offset_of_its_first_zero_byte(tmp_path: Path) -> None:
    assert "zero byte at offset 3" in refusal(tmp_path / "x.txt", b"abc\0\xff").message


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_utf16_and_utf32_are_read_by_their_marks_with_a_note(tmp_path: Path, encoding: str) -> None:
    for name, content in (
        ("x.txt", "größer\r\n🙂"),
        ("x.jsonl", '{"text": "größer"}\n'),
        ("x.csv", "text,b\ngrößer,1\n"),
    ):
        (tmp_path / name).write_bytes(f"\ufeff{content}".encode(encoding))
        notes: list[str] = []
        [document] = read_documents(str(tmp_path / name), note=notes.append)
        assert document.text == (content if name == "x.txt" else "größer")
        assert len(notes) == 1
        assert f"the byte order mark of {encoding[:6].upper()}" in notes[0]
    options = ReaderOptions(encoding[:6])
    [document] = read_documents(str(tmp_path / "x.txt"), note=pytest.fail, options=options)
    assert document.text == "größer\r\n🙂"


def test_what_follows_a_mark_and_is_not_in_its_encoding_is_refused_with_the_offset(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes("\ufeffab".encode("utf-16-le") + b"\x00\xdc")
    with pytest.raises(UserError, match="is not UTF-16: byte 0x00 at offset 6"):
        list(read_documents(str(tmp_path / "x.txt"), note=lambda _: None))


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(data)
    with pytest.raises(UserError, match="is empty"):
        list(read_documents(str(path), note=lambda _: None))


def test_a_path_that_does_not_exist_is_a_wrong_request_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "shakespeare.txt").write_text("x")
    with pytest.raises(RequestError, match="does not exist") as caught:
        read(tmp_path / "shakespear.txt")
    assert caught.value.exit_code == 2
    assert caught.value.choices == (str(tmp_path / "shakespeare.txt"),)


@pytest.mark.parametrize("source", ["builtin:nothing", "corpus:nothing", "no/such/*.txt", "\0", "x" * 5000])
def test_a_source_that_cannot_be_is_refused_in_words(source: str) -> None:
    with pytest.raises(UserError):
        read(source)


def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.txt").write_text("x")

    def refuse(path: Path, *_: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UserError, match=r"x\.txt: permission denied"):
        read(tmp_path / "x.txt")


def test_a_device_without_end_is_refused() -> None:
    with pytest.raises(UserError, match="device"):
        read("/dev/zero")


def test_a_folder_is_its_text_files_sorted_without_hidden_empty_and_binary_ones(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.md", "a/.hidden", ".git/config", "c.py", "photo.PNG", "empty.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("" if name == "empty.txt" else name)
    notes: list[str] = []
    documents = list(read_documents(str(tmp_path), note=notes.append))
    assert [document.text for document in documents] == ["a/z.md", "b.txt", "c.py"]
    assert len(notes) == 1
    assert "photo.PNG" in notes[0]


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(UserError, match="no text files"):
        read(tmp_path)


def test_runs_token_stores_and_models_in_a_folder_are_left_out_with_a_note(tmp_path: Path) -> None:
    for name in (
        "a.txt",
        "runs/one/run.json",
        "runs/one/config.yaml",
        "runs/one/metrics.jsonl",
        "runs/two/run.json",
        "runs/two/config.yaml",
        "copied/SHA256SUMS",
        "copied/state.json",
        "copied/config.yaml",
        "tokens/a/tokens.json",
        "tokens/a/tokenizer.json",
        "exported/config.json",
        "exported/model.safetensors",
        "config/config.yaml",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    notes: list[str] = []
    documents = list(read_documents(str(tmp_path), note=notes.append))
    assert [document.text for document in documents] == ["a.txt", "config/config.yaml"]
    assert notes == [
        f"left out the checkpoint {tmp_path}/copied",
        f"left out the foreign model {tmp_path}/exported",
        f"left out 2 runs in {tmp_path}, for instance {tmp_path}/runs/one",
        f"left out the token store {tmp_path}/tokens/a",
    ]
    artifacts = {"runs/one": "run", "copied": "checkpoint", "tokens/a": "token store", "exported": "foreign model"}
    for name, kind in artifacts.items():
        with pytest.raises(RequestError, match=f"is a {kind}, not text"):
            read(tmp_path / name)


def test_a_link_that_leads_in_a_circle_does_not_trap_the_reader(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    assert texts(tmp_path) == ["x"]


def test_a_glob_is_the_files_it_matches_sorted(tmp_path: Path) -> None:
    for name in ("2.txt", "1.txt", "3.md"):
        (tmp_path / name).write_text(name)
    assert texts(f"{tmp_path}/*.txt") == ["1.txt", "2.txt"]
    with pytest.raises(RequestError, match="no file matches"):
        read(f"{tmp_path}/*.rst")


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("it")
    assert texts(tmp_path / "a[1].txt") == ["it"]


def test_several_sources_are_read_in_the_order_given(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    assert texts([str(tmp_path / "b"), str(tmp_path / "a")]) == ["b", "a"]


def test_standard_input_is_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("grün\r\n".encode())))
    assert texts("-") == ["grün\r\n"]


def test_a_closed_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(RequestError, match="closed"):
        read("-")


def test_the_built_in_corpus_is_a_few_hundred_thousand_characters_of_english() -> None:
    [document] = read(BUILTIN)
    assert 400_000 < len(document.text) < 700_000
    assert document.text.startswith('The "assert" statement\n')
    assert "compound statement" in document.text


def test_a_named_pipe_is_read_like_the_file_it_stands_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("through a pipe",))
    writer.start()
    assert texts(path) == ["through a pipe"]
    writer.join()


# Compression


def compress(suffix: str, data: bytes) -> bytes:
    if suffix == ".gz":
        return gzip.compress(data)
    if suffix == ".bz2":
        return bz2.compress(data)
    if suffix == ".xz":
        return lzma.compress(data)
    return bytes(pytest.importorskip("zstandard").ZstdCompressor().compress(data))


SUFFIXES = [".gz", ".xz", ".zst"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_compressed_file_is_its_text_also_in_several_frames(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.txt{suffix}"
    path.write_bytes(compress(suffix, "süß ".encode() * 20_000) + compress(suffix, b"end"))
    assert texts(path) == ["süß " * 20_000 + "end"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_compressed_file_that_was_cut_off_is_refused_at_every_length(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.txt{suffix}"
    data = compress(suffix, os.urandom(300).hex().encode())
    for length in range(1, len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(UserError, match=r"x\.txt"):
            read(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_is_not_what_its_suffix_says_is_refused(tmp_path: Path, suffix: str) -> None:
    refusal(tmp_path / f"x.txt{suffix}", b"plain text, long enough to be looked at")


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".bz2"])
def test_damage_is_refused_or_changes_nothing(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.txt{suffix}"
    text = os.urandom(200).hex()
    data = compress(suffix, text.encode()) + compress(suffix, b"end")
    for offset in range(len(data)):
        path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        try:
            assert texts(path)[0] == text + "end" or suffix == ".zst"  # which has no sum unless it is asked for
        except UserError as error:
            assert str(path) in error.message  # noqa: PT017 - some bytes mean nothing, such as a time


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_zeros_after_compressed_text_are_padding(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.txt{suffix}"
    path.write_bytes(compress(suffix, b"text") + bytes(5000) + compress(suffix, b" and more") + bytes(8))
    assert texts(path) == ["text and more"]


# JSON lines


def test_a_json_lines_file_is_a_document_a_line(tmp_path: Path) -> None:
    lines = ['{"text": "one\\n"}', "", '{"id": 2, "text": "two\u2028"}', '{"text": ""}']
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress("\r\n".join(lines).encode()))
    documents = read(tmp_path / "x.jsonl.gz")
    assert [document.text for document in documents] == ["one\n", "two\u2028"]
    assert documents[1].name.endswith("x.jsonl.gz:3")


@pytest.mark.parametrize(
    "line", ["{", "[]", '"text"', '{"Text": "x"}', '{"text": 1}', '{"text": "\\ud800"}', "[" * 100_000, "9" * 5000]
)
def test_a_line_that_has_no_text_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": "fine"}) + "\n" + line)
    with pytest.raises(UserError) as caught:
        read(tmp_path / "x.jsonl")
    assert caught.value.where == f"{tmp_path / 'x.jsonl'}:2"


def test_a_glob_passes_over_empty_files_as_a_folder_does(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    (tmp_path / "b.py").write_text("text")
    assert [document.text for document in read_documents(f"{tmp_path}/*.py", note=pytest.fail)] == ["text"]
    (tmp_path / "b.py").unlink()
    with pytest.raises(UserError, match="is empty"):
        list(read_documents(f"{tmp_path}/*.py", note=pytest.fail))
