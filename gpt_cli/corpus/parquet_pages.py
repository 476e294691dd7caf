"""Headers of a Parquet column chunk's pages, which say how large each page becomes before it is decompressed.

pyarrow does not tell them. They are Thrift structs in the compact protocol: a field is a byte (step from the last
field's number in the upper half, type in the lower), then its value; numbers are zigzag varints
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md, and parquet-format's
`PageHeader`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

_FIRST_READ = 512  # bytes, more than nearly every header has
_LARGEST_HEADER = 1 << 20  # bytes: with the smallest and the largest value of the page
_DEEPEST = 8  # structs in structs
_DETAILS = {0: 5, 2: 7, 3: 8}  # type of a page: number of the field that says more
_ENCODING = {0: 2, 2: 2, 3: 4}  # and in that, of the encoding; field 1 is the number of values

Struct = dict[int, Any]


class PageError(ValueError):
    """A page header is not one, or does not fit into its column chunk."""


@dataclass(frozen=True, slots=True)
class Page:
    """The size of one page, and what is in it."""

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
    """The pages that lie in `size` bytes of a file from `start` on. Raises PageError, and OSError."""
    end = start + size
    while start < end:
        header, length = _read_header(stream, start, end)
        kind, expanded, compressed = _number(header, 1), _number(header, 2), _number(header, 3)
        if start + length + compressed > end:
            raise PageError(f"the page at byte {start:,} is longer than its column")
        values = encoding = 0
        if kind in _DETAILS:
            details = header.get(_DETAILS[kind])
            values, encoding = _number(details, 1), _number(details, _ENCODING[kind])
        yield Page(kind, expanded, values, encoding)
        start += length + compressed


def _number(struct: Any, field: int) -> int:
    """A field that has to be there, and not below zero."""
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
            return reader.struct(), reader.at
        except IndexError as error:
            if size >= min(_LARGEST_HEADER, end - start):
                raise PageError(f"there is no page at byte {start:,}") from error
        size *= 16


class _Reader:
    """Thrift's compact protocol. Raises IndexError where the data end, PageError for what is not in it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0
        """Index of the next byte."""

    def struct(self, depth: int = 0) -> Struct:
        """The numbers and structs of a struct, by their fields' numbers; what else it has is passed over."""
        if depth > _DEEPEST:
            raise PageError("a page header has too many structs in each other")
        found: Struct = {}
        field = 0
        while byte := self._byte():
            field = field + (byte >> 4) if byte >> 4 else self._number()
            if (value := self._value(byte & 15, depth)) is not None:
                found[field] = value
        return found

    def _value(self, kind: int, depth: int) -> Any:
        match kind:
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
                raise PageError(f"a page header has a field of type {kind}")
        return None

    def _list(self, depth: int) -> None:
        if depth > _DEEPEST:
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
        self.at += 1
        return self._data[self.at - 1]

    def _skip(self, size: int) -> None:
        self.at += size
        if self.at > len(self._data):
            raise IndexError
