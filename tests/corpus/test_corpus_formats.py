"""Tables, encodings and the hub: a document a row, any encoding by its name, the network only when asked."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.config import DataConfig
from gpt_cli.corpus import decoding, records
from gpt_cli.corpus.decoding import decode_utf8
from gpt_cli.corpus.examples import read_examples
from gpt_cli.corpus.readers import ReaderOptions
from gpt_cli.corpus.sources import read_documents
from gpt_cli.errors import RequestError, UserError


def texts(
    source: str | Path | list[str], options: ReaderOptions | None = None, note: Callable[[str], None] = pytest.fail
) -> list[str]:
    named = source if isinstance(source, list) else str(source)
    return [document.text for document in read_documents(named, note=note, options=options)]


# Encodings


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-32", "shift_jis", "gb18030"])
def test_a_file_in_a_named_encoding_is_read_with_its_newlines(tmp_path: Path, encoding: str) -> None:
    text = "a\r\nb\n" + ("日本" if encoding in ("shift_jis", "gb18030") else "süß")
    (tmp_path / "x.txt").write_bytes(text.encode(encoding))
    assert texts(tmp_path / "x.txt", ReaderOptions(encoding=encoding)) == [text]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff"), min_size=1), st.integers(1, 5))
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-be", "gb18030"])
def test_where_the_pieces_end_does_not_matter(encoding: str, text: str, size: int) -> None:
    data = text.encode(encoding)
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    notes: list[str] = []
    assert b"".join(decode_utf8(chunks, "x", encoding, notes.append)).decode() == text
    assert all("valid UTF-8" in note for note in notes)  # as the bytes of a few characters can be


@given(st.binary(max_size=40), st.integers(1, 7))
def test_the_offset_of_what_does_not_decode_is_that_of_python_for_the_whole(data: bytes, size: int) -> None:
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    start = first_wrong(data)
    marks = (b"\xff\xfe", b"\xfe\xff", *decoding.FORMATS)
    if start is None or b"\0" in data or data.startswith(marks):
        return
    with pytest.raises(UserError) as caught:
        list(decode_utf8(chunks, "x", "utf-8", lambda _: None))
    assert caught.value.message.endswith(f"byte 0x{data[start]:02x} at offset {start:,}")
    assert caught.value.where == f"x:{data[:start].count(10) + 1}"


def first_wrong(data: bytes) -> int | None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None


@pytest.mark.parametrize(
    "encoding", ["", "utf-9", "rot13", "base64", "idna", "undefined", "unicode_escape", "\0", "x" * 999]
)
def test_what_is_no_encoding_of_text_is_a_wrong_request(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(RequestError, match="not an encoding of text"):
        texts(tmp_path / "x.txt", ReaderOptions(encoding=encoding))


def test_a_zero_character_is_binary_in_every_encoding(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes("a\0b".encode("utf-16"))
    with pytest.raises(UserError, match="binary"):
        texts(tmp_path / "x.txt", ReaderOptions(encoding="utf-16"))


# JSON lines and tables


def test_json_lines_are_read_under_the_key_chosen_and_the_keys_there_are_told(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"body": "one", "id": 1}\n{"body": "two"}')
    assert texts(tmp_path / "x.jsonl", ReaderOptions(text_key="body")) == ["one", "two"]
    with pytest.raises(UserError) as caught:
        texts(tmp_path / "x.jsonl")
    assert "keys: body, id" in caught.value.message
    assert (caught.value.keys, caught.value.choices) == (("data.text_key",), ("body",))


def test_a_record_too_long_to_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LONGEST_RECORD", 1 << 20)
    (tmp_path / "x.jsonl").write_text('{"text": "' + "a" * (4 << 20) + '"}')
    with pytest.raises(UserError, match="this line is longer than"):
        texts(tmp_path / "x.jsonl")


TABLE = [["id", "text"], ["1", 'said "no",\nthen\r\nleft'], ["2", ""], ["3", "größer, 世界"], ["4", " "]]


def test_a_csv_file_is_a_document_a_row(tmp_path: Path) -> None:
    rows = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in TABLE]
    (tmp_path / "x.csv").write_bytes("\r\n".join([*rows, ""]).encode())
    assert texts(tmp_path / "x.csv") == [row[1] for row in TABLE[1:] if row[1]]
    assert texts(tmp_path / "x.csv", ReaderOptions(text_key="id")) == ["1", "2", "3", "4"]
    with pytest.raises(UserError, match="no text under the key 'body'") as caught:
        texts(tmp_path / "x.csv", ReaderOptions(text_key="body"))
    assert "keys: id, text" in caught.value.message


@pytest.mark.parametrize(("rows", "line"), [('id,text\n1,"a', 2), ('id,text\n1,"a"b\n', 2), ("id,text\n1\n", 2)])
def test_what_is_not_csv_is_refused_with_its_line(tmp_path: Path, rows: str, line: int) -> None:
    (tmp_path / "x.csv").write_text(rows)
    with pytest.raises(UserError) as caught:
        texts(tmp_path / "x.csv")
    assert caught.value.where == f"{tmp_path / 'x.csv'}:{line}"


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as format

    columns = {"id": list(range(1000)), "text": [f"row {n} – 世界\r\n" if n % 3 else None for n in range(1000)]}
    format.write_table(arrow.table(columns), tmp_path / "x.parquet", row_group_size=100)
    return tmp_path / "x.parquet"


def test_a_parquet_file_is_a_document_a_row(parquet: Path) -> None:
    notes: list[str] = []
    expected = [f"row {n} – 世界\r\n" for n in range(1000) if n % 3]
    assert texts(parquet, note=notes.append) == expected
    assert notes == [f"{parquet}: there is nothing (null) under the key 'text' of 334 records"]
    assert texts(parquet.parent, note=notes.append) == expected  # also one in a folder
    with pytest.raises(UserError, match="no text under the key 'body'"):
        texts(parquet, ReaderOptions(text_key="body"))
    with pytest.raises(UserError, match="no text under the key 'id': it is a number"):
        texts(parquet, ReaderOptions(text_key="id"))


def test_a_parquet_file_without_rows_has_no_documents_and_is_not_damaged(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as format

    format.write_table(arrow.table({"text": arrow.array([], arrow.string())}), tmp_path / "x.parquet")
    assert texts(tmp_path / "x.parquet") == []


def test_nested_chats_in_parquet_are_read_as_in_json_lines(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as format

    rows = [
        {"id": f"{n}", "messages": [{"role": "user", "content": f"hi {n}"}, {"role": "assistant", "content": "yo"}]}
        for n in range(700)
    ]
    format.write_table(arrow.Table.from_pylist(rows), tmp_path / "chats.parquet", row_group_size=300)
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = DataConfig(format="chat")
    turns = [
        [example.turns for example in read_examples(str(tmp_path / name), data, pytest.fail)]
        for name in ("chats.parquet", "chats.jsonl")
    ]
    assert turns[0] == turns[1]
    assert len(turns[0]) == 700


def test_a_damaged_parquet_file_is_refused_or_read(parquet: Path) -> None:
    data = parquet.read_bytes()
    for offset in range(0, len(data), max(1, len(data) // 100)):
        for damaged in (data[:offset], data[:offset] + bytes([data[offset] ^ 255]) + data[offset + 1 :]):
            parquet.write_bytes(damaged)
            try:
                texts(parquet, note=lambda _: None)
            except UserError as error:
                assert error.exit_code == 1  # noqa: PT017 - some damage is in values that nobody reads


def test_a_failure_of_pyarrow_without_a_message_is_told_by_its_type(
    parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow import ArrowInvalid
    from pyarrow import parquet as format

    def fail(*_: Any, **__: Any) -> NoReturn:
        raise ArrowInvalid("")

    monkeypatch.setattr(format, "ParquetFile", fail)
    with pytest.raises(UserError, match=r"is not a whole Parquet file: ArrowInvalid$"):
        texts(parquet)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match="needs the package pyarrow") as caught:
        texts(tmp_path / "x.parquet")
    assert (caught.value.kind, caught.value.choices) == ("package", ("gpt-cli[data]",))


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", "PLAIN"])
def test_a_parquet_file_is_read_in_every_encoding(tmp_path: Path, encoding: str) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as format

    column = [None if n % 7 == 3 else f"a beginning that is shared, {n} größer" * (n % 5) for n in range(2_000)]
    format.write_table(
        arrow.table({"text": column}), tmp_path / "x.parquet", use_dictionary=False, column_encoding={"text": encoding}
    )
    assert texts(tmp_path / "x.parquet", note=lambda _: None) == [text for text in column if text]


def test_a_text_in_parquet_that_is_not_utf8_is_refused_with_its_row(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as format

    column = arrow.array([b"fine"] * 300 + [b"no: \xff"], arrow.binary()).view(arrow.string())
    format.write_table(arrow.table({"text": column}), tmp_path / "x.parquet", row_group_size=100)
    with pytest.raises(UserError, match="not UTF-8: byte at offset 4") as caught:
        texts(tmp_path / "x.parquet")
    assert caught.value.where == f"{tmp_path / 'x.parquet'}:301"


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff"), min_size=1), min_size=1)
)
def test_json_lines_give_back_any_documents(tmp_path: Path, documents: list[str]) -> None:
    (tmp_path / "x.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in documents))
    assert texts(tmp_path / "x.jsonl") == documents


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_records_in_utf_16_with_a_mark_are_records(tmp_path: Path, suffix: str) -> None:
    separator = "\n" if suffix == ".jsonl" else ",\n"
    lines = separator.join(json.dumps({"text": f"text {n}"}) for n in range(3))
    (tmp_path / f"x{suffix}").write_text(lines if suffix == ".jsonl" else f"[{lines}]", encoding="utf-16")
    texts = [one.text for one in read_documents(str(tmp_path / f"x{suffix}"), note=lambda _: None)]
    assert texts == ["text 0", "text 1", "text 2"]


def test_a_column_of_categories_is_read_as_its_texts(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = [f"{n:05}" * 500 for n in range(9000)]  # more than a value may have, together
    parquet.write_table(arrow.table({"text": arrow.array(texts).dictionary_encode()}), tmp_path / "x.parquet")
    assert [one.text for one in read_documents(str(tmp_path / "x.parquet"), note=pytest.fail)] == texts


def test_a_list_of_one_long_text_many_times_is_refused(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    repeated = arrow.DictionaryArray.from_arrays(arrow.array([0] * 3000), arrow.array(["x" * (1 << 20)]))
    column = arrow.ListArray.from_arrays([0, 3000], repeated)
    parquet.write_table(arrow.table({"text": column}), tmp_path / "x.parquet", store_schema=False)
    with pytest.raises(UserError, match="has lists of 3,000 texts"):
        list(read_documents(str(tmp_path / "x.parquet"), note=pytest.fail))
