"""Page headers of a Parquet column chunk: they have the size of each page before it is decompressed.

pyarrow does not expose them. They are Thrift structs in the compact protocol: a field is a byte (step from the last
field's number in the upper half, type in the lower), then its value; numbers are zigzag varints
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md, and parquet-format's
`PageHeader`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

_FIRST_READ = 512  # bytes, more than nearly every header has
_MAX_HEADER = 1 << 20  # bytes: with the smallest and the largest value of the page
_MAX_DEPTH = 8  # nested structs
_DETAILS_FIELD = {0: 5, 2: 7, 3: 8}  # type of a page: field of its type's own header
_ENCODING_FIELD = {
    0: 2,
    2: 2,
    3: 4,
}  # type of a page: field of the encoding in that header; field 1 is the number of values

Struct = dict[int, Any]


class PageError(ValueError):
    """A page header is malformed, or its page does not fit into the column chunk."""


@dataclass(frozen=True, slots=True)
class Page:
    """The header of one page."""

    kind: int
    """0: data, 1: index, 2: dictionary, 3: data of version 2."""
    size: int
    """Bytes once decompressed."""
    values: int
    encoding: int

    @property
    def is_data(self) -> bool:
        """True if it holds values of rows."""
        return self.kind in (0, 3)

    @property
    def is_dictionary(self) -> bool:
        """True if it holds the distinct values of the chunk."""
        return self.kind == 2


def read_pages(stream: IO[bytes], start: int, size: int) -> Iterator[Page]:
    """The pages in the `size` bytes of a file from `start` on. Raises PageError, and OSError."""
    end = start + size
    while start < end:
        header, length = _read_header(stream, start, end)
        kind, expanded, compressed = (
            _required_number(header, 1),
            _required_number(header, 2),
            _required_number(header, 3),
        )
        if start + length + compressed > end:
            raise PageError(f"the page at byte {start:,} is longer than its column")
        values = encoding = 0
        if kind in _DETAILS_FIELD:
            details = header.get(_DETAILS_FIELD[kind])
            values, encoding = _required_number(details, 1), _required_number(details, _ENCODING_FIELD[kind])
        yield Page(kind, expanded, values, encoding)
        start += length + compressed


def _required_number(struct: Any, field: int) -> int:
    """The number in a field that must be there. Raises PageError if it is missing or negative."""
    number = struct.get(field) if isinstance(struct, dict) else None
    if not isinstance(number, int) or number < 0:
        raise PageError("a page header lacks what it must have")
    return number


def _read_header(stream: IO[bytes], start: int, end: int) -> tuple[Struct, int]:
    """The header at `start`, and its length."""
    size = _FIRST_READ
    while True:
        stream.seek(start)
        data = stream.read(min(size, end - start))
        try:
            reader = _Reader(data)
            return reader.struct(), reader.position
        except IndexError as error:
            if size >= min(_MAX_HEADER, end - start):
                raise PageError(f"there is no page at byte {start:,}") from error
        size *= 16


class _Reader:
    """Parses Thrift's compact protocol. Raises IndexError at the end of the data, PageError for malformed data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0
        """Index of the next byte."""

    def struct(self, depth: int = 0) -> Struct:
        """The integers and structs of a struct, by field number; other fields are skipped."""
        if depth > _MAX_DEPTH:
            raise PageError("a page header has too many structs in each other")
        fields: Struct = {}
        field = 0
        while byte := self._byte():
            field = field + (byte >> 4) if byte >> 4 else self._number()
            if (value := self._value(byte & 15, depth)) is not None:
                fields[field] = value
        return fields

    def _value(self, thrift_type: int, depth: int) -> Any:
        match thrift_type:
            case 1 | 2:  # true and false, which have no more bytes in a struct
                return None
            case 3:
                self._byte()
            case 4 | 5 | 6:
                return self._number()
            case 7:
                self._skip(8)
            case 8:
                self._skip(self._varint())
            case 9 | 10:
                self._list(depth)
            case 12:
                return self.struct(depth + 1)
            case _:
                raise PageError(f"a page header has a field of type {thrift_type}")
        return None

    def _list(self, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise PageError("a page header has too many lists in each other")
        byte = self._byte()
        count = self._varint() if byte >> 4 == 15 else byte >> 4
        for _ in range(count):
            if byte & 15 in (1, 2):
                self._byte()
            else:
                self._value(byte & 15, depth + 1)

    def _number(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
            if shift > 63:
                raise PageError("a page header has a number of more than 64 bits")

    def _byte(self) -> int:
        self.position += 1
        return self._data[self.position - 1]

    def _skip(self, size: int) -> None:
        self.position += size
        if self.position > len(self._data):
            raise IndexError
