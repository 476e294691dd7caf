"""Inputs that are small, or slow to look at, and would become more than a machine has: each a function of a folder.

A function writes its files and returns what is to be given to `gpt tokenize`.
"""

import gzip
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

MB = 1 << 20
LONG = b"a" * (10 * MB)

Bomb = Callable[[Path], Path]


def written(path: Path, *parts: bytes) -> Path:
    with path.open("wb") as stream:
        stream.writelines(parts)
    return path


# JSON lines


def json_nested_deeply(folder: Path) -> Path:
    return written(folder / "x.jsonl", b'{"text": ' + b"[" * 10_000_000)


def json_objects_in_each_other(folder: Path) -> Path:
    return written(folder / "x.jsonl", b'{"a":' * 2_000_000)


def json_of_empty_lists(folder: Path) -> Path:
    return written(folder / "x.jsonl", b'{"text": "x", "more": [' + b"[]," * 5_000_000 + b"[]]}")


def json_of_short_strings(folder: Path) -> Path:
    return written(folder / "x.jsonl", b'{"text": "x", "more": [' + b'"\xc3\xbc",' * 3_000_000 + b'""]}')


def json_line_that_does_not_end(folder: Path) -> Path:
    return written(folder / "x.jsonl", b'{"text": "', "🙂".encode(), *[b"a" * MB] * 100)


def json_of_many_characters(folder: Path) -> Path:
    """As long as a line may be, in characters of four bytes each, and then a line that is none."""
    line = b'{"text": "' + "🙂".encode() + b"a" * (16 * MB - 100) + b'"}\n'
    return written(folder / "x.jsonl", line, b"no\n")


def json_lines_that_are_blank(folder: Path) -> Path:
    return written(folder / "x.jsonl.gz", gzip.compress(b"\n" * 30 * MB))


# Tables


def csv_of_quoted_newlines(folder: Path) -> Path:
    return written(folder / "x.csv.gz", gzip.compress('"日\n",'.encode() * 20 * MB, 5))


def csv_with_a_quote_that_is_never_closed(folder: Path) -> Path:
    return written(folder / "x.csv", b'id,text\n1,"', *[b"a line of text, and more of it\n" * 32_768] * 100)


def csv_of_commas(folder: Path) -> Path:
    return written(folder / "x.csv", b"text\n", *[b"," * MB] * 60)


def csv_of_short_fields(folder: Path) -> Path:
    return written(folder / "x.csv", b"text\n", '"日",'.encode() * 3_000_000)


# Compressed text


def gzip_of_gzips(folder: Path) -> Path:
    data = gzip.compress(LONG) * 1000
    for _ in range(3):
        data = gzip.compress(data)
    return written(folder / "x.txt.gz", data)


def gzip_of_empty_members(folder: Path) -> Path:
    return written(folder / "x.txt.gz", gzip.compress(b"") * 1_000_000)


def gzip_of_zeros_between_members(folder: Path) -> Path:
    return written(folder / "x.txt.gz", gzip.compress(b"a"), bytes(200 * MB))


def xz_with_a_dictionary_of_4_gb(folder: Path) -> Path:
    data = bytearray(lzma.compress(b"text\n" * 1000, preset=0))
    size = (data[12] + 1) * 4  # of the block's header, which follows the 12 bytes of the stream's
    assert data[14:16] == b"\x21\x01"  # LZMA2, with one byte that says how large its dictionary is
    data[16] = 40
    data[12 + size - 4 : 12 + size] = struct.pack("<I", zlib.crc32(data[12 : 12 + size - 4]))
    return written(folder / "x.txt.xz", data)


def lzma_with_a_dictionary_of_4_gb(folder: Path) -> Path:
    data = bytearray(lzma.compress(b"text\n" * 1000, lzma.FORMAT_ALONE))
    data[1:5] = b"\xff\xff\xff\xff"
    return written(folder / "x.txt.xz", data)


def _zstd_frame(*blocks: bytes, window: int = 0x58) -> bytes:
    return b"\x28\xb5\x2f\xfd\x00" + bytes([window]) + b"".join(blocks)


def _zstd_block(kind: int, size: int, data: bytes, last: bool = False) -> bytes:
    return struct.pack("<I", int(last) | kind << 1 | size << 3)[:3] + data


def zstd_with_a_window_of_2_gb(folder: Path) -> Path:
    return written(folder / "x.txt.zst", _zstd_frame(_zstd_block(0, 4, b"text", last=True), window=21 << 3))


def zip_of_entries_that_overlap(folder: Path) -> Path:
    """A hundred names for the same ten megabytes of zeros."""
    path = folder / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", bytes(10 * MB))
        first = archive.infolist()[0]
        archive.filelist += [first] * 99
    return path


# Parquet


def _parquet(folder: Path, texts: Any, **options: Any) -> Path:
    import pyarrow as arrow
    from pyarrow import parquet

    parquet.write_table(arrow.table({"text": texts}), folder / "x.parquet", write_statistics=False, **options)
    return folder / "x.parquet"


def parquet_of_long_texts(folder: Path) -> Path:
    """Pages of 100 MB, each of one text, which is longer than a text may be."""
    import pyarrow as arrow
    from pyarrow import parquet

    schema = arrow.schema([("text", arrow.large_string())])
    with parquet.ParquetWriter(folder / "x.parquet", schema, compression="zstd", use_dictionary=False) as writer:
        text = arrow.array(["a" * 100_000_000], arrow.large_string())
        for _ in range(2):
            writer.write_batch(arrow.record_batch([text], schema=schema), row_group_size=1)
    return folder / "x.parquet"


def parquet_of_a_page_of_240_mb(folder: Path) -> Path:
    return _parquet(folder, ["a" * 120_000_000] * 2, compression="zstd", use_dictionary=False)


def parquet_of_repeated_texts(folder: Path) -> Path:
    """A dictionary of one text of 10 MB, and half a million rows that are it."""
    import pyarrow as arrow

    texts = arrow.DictionaryArray.from_arrays(arrow.array([0] * 500_000, arrow.int32()), ["a" * 10_000_000])
    return _parquet(folder, texts, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=False)


def parquet_with_a_dictionary_of_one_text_of_100_mb(folder: Path) -> Path:
    import pyarrow as arrow

    texts = arrow.DictionaryArray.from_arrays(arrow.array([0] * 500_000, arrow.int32()), ["a" * 100_000_000])
    return _parquet(folder, texts, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=False)


def parquet_that_describes_itself_at_length(folder: Path) -> Path:
    """A footer of 60 MB: 200,000 row groups of a row would be as long."""
    import pyarrow as arrow
    from pyarrow import parquet

    schema = arrow.schema([("text", arrow.string())], metadata={str(i): "x" * 1_000 for i in range(60_000)})
    parquet.write_table(arrow.table({"text": ["x"]}, schema=schema), folder / "x.parquet")
    return folder / "x.parquet"


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def _zigzag(number: int) -> bytes:
    return _varint(number << 1)


def _page(size: int, body: bytes, values: int, encoding: int, kind: int = 0) -> bytes:
    """A page: its header in Thrift's compact protocol, and what is in it."""
    head = b"".join(b"\x15" + _zigzag(number) for number in (kind, size, len(body)))
    details = b"\x15" + _zigzag(values) + b"\x15" + _zigzag(encoding)
    page_header = b"\x2c" + details + (b"\x15" + _zigzag(3)) * 2 + b"\0" if kind == 0 else b"\x4c" + details + b"\0"
    return head + page_header + b"\0" + body


def parquet_with_pages(folder: Path, *pages: bytes) -> Path:
    """A table of 1,000 rows whose pages were exchanged for others; its footer still tells of the first ones."""
    from pyarrow import parquet

    replacement = b"".join(pages)
    path = _parquet(folder, ["x" * (len(replacement) // 1_000 + 1)] * 1_000, use_dictionary=False, compression="none")
    chunk = parquet.ParquetFile(path).metadata.row_group(0).column(0)
    data = bytearray(path.read_bytes())
    start, end = chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size
    data[start:end] = replacement.ljust(end - start, b"\0")
    return written(path, data)


_LEVELS = struct.pack("<I", 3) + b"\xd0\x0f\x01"  # 1,000 times: there is a value


def parquet_whose_page_says_2_gb(folder: Path) -> Path:
    return parquet_with_pages(folder, _page(2**31 - 1, _LEVELS + bytes(4_000), 1_000, 0))


def parquet_of_a_dictionary_of_2_billion(folder: Path) -> Path:
    return parquet_with_pages(folder, _page(8, bytes(8), 2**31 - 1, 0, kind=2), _page(20, _LEVELS + bytes(13), 1000, 8))


# Folders


def folders_in_each_other(folder: Path) -> Path:
    cwd = os.getcwd()
    top = folder / "top"
    top.mkdir()
    os.chdir(top)  # no path is as long as what there will be
    try:
        for _ in range(5_000):
            os.mkdir("d")
            os.chdir("d")
        written(Path("x.txt"), b"text")
    finally:
        os.chdir(cwd)
    return top


def links_in_a_circle(folder: Path) -> Path:
    (folder / "top").mkdir()
    for name in ("a", "b", "c"):
        (folder / "top" / name).symlink_to(folder / "top")
    (folder / "top" / "d.txt").symlink_to(folder / "top" / "e.txt")
    (folder / "top" / "e.txt").symlink_to(folder / "top" / "d.txt")
    return folder / "top" / "**" / "*.txt"


def a_million_files(folder: Path) -> Path:
    """Names of no file."""
    (folder / "top").mkdir()
    for number in range(200_001):
        os.symlink("nowhere", folder / "top" / str(number))
    return folder / "top"


LARGE: list[Bomb] = [  # which take seconds to make, or to look at
    a_million_files,
    csv_of_quoted_newlines,
    gzip_of_zeros_between_members,
    json_lines_that_are_blank,
    parquet_of_a_page_of_240_mb,
    parquet_of_long_texts,
    parquet_that_describes_itself_at_length,
]
BOMBS: list[Bomb] = [
    value
    for name, value in list(globals().items())
    if callable(value)
    and getattr(value, "__module__", "") == __name__
    and not name.startswith("_")
    and name not in ("written", "parquet_with_pages", "parquet_of_repeated_texts")
    and value not in LARGE
]
