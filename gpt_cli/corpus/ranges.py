"""Large plain files, which several processes read and encode in ranges; the tokens are those of one process.

The first pass counts the characters of each range: that says where its ids belong in the store, and the second writes
them there. No text and no ids pass between the processes; the files are hashed beside them. What this room does not
know, such as text that is not UTF-8, it leaves to the passes for every text, which say what is wrong with it.
"""

import codecs
import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.crew import Crew, Range
from gpt_cli.corpus.decoding import check_encoding
from gpt_cli.corpus.range_worker import OtherTextError, runs
from gpt_cli.corpus.split import SPLITS, Borders, Split
from gpt_cli.corpus.store import SplitFacts, StoreWriter, little, narrow, token_dtype
from gpt_cli.corpus.survey import Fingerprint, Progress, Survey
from gpt_cli.corpus.text import Text
from gpt_cli.corpus.threads import InOrder, aside
from gpt_cli.errors import UserError
from gpt_cli.files.disk import reported, write_into
from gpt_cli.tokenizer import CharTokenizer, Tokenizer
from gpt_cli.tokenizer.describe import Counts

RANGE = 4 << 20  # bytes that a process reads for one request
SHARE = 16 << 20  # bytes of text that are worth a process
_CONTINUATION = bytes(range(0x80, 0xC0))  # 10xxxxxx: inside a character
_CODES = 0x110000


@dataclass(frozen=True, eq=False)
class Ranges:
    """All ranges of a text that was surveyed, in order."""

    ranges: list[Range]
    codes: npt.NDArray[np.int64]
    """(codes,) how often each occurs: of a character, or, where these are the ids, of a byte."""
    identities: list[tuple[int, ...]]
    """Of the files, before the first of them was read."""


class _Hashes:
    """What `survey` finds by hashing, computed by a thread that reads the ranges which it is given in order."""

    def __init__(self, hasher: InOrder, sizes: list[int]) -> None:
        self._hasher = hasher
        self._sizes = sizes
        self._fingerprint = Fingerprint()
        self.documents, self.files = array("Q"), array("Q")

    def beside(self, parts: Iterable[Range]) -> Iterator[Range]:
        """Each range, once it will be hashed."""
        for part in parts:
            self._hasher.do(self._add, part)
            yield part

    def fingerprint(self) -> str:
        """Of all files, when everything is hashed."""
        self._hasher.settle()
        return self._fingerprint.hexdigest()

    def _add(self, part: Range) -> None:
        for run in runs(part.path, part.start, part.end):
            self._fingerprint.add(run, ends=False)
        if part.end == self._sizes[part.file] and (digest := self._fingerprint.add(b"", ends=True)) is not None:
            self.documents.append(int.from_bytes(digest[:8], "big"))
            self.files.append(int.from_bytes(hashlib.sha256(digest).digest()[:8], "big"))


def survey_ranges(
    text: Text, data: DataConfig, tokenizer: str, crew: Crew, workers: int, *, alphabet: bool, progress: Progress
) -> tuple[Survey, Ranges] | None:
    """What `survey` finds, and the ranges; None for a text that this room does not know.

    `tokenizer`: its kind. `alphabet`: whether to say which characters there are.
    """
    workers = min(workers, (text.size or 0) // SHARE)
    files = [member.file.plain for member in text.members if member.weight == 1 and not member.validates]
    paths = [path for path in files if path is not None]
    is_plain = len(paths) == len(text.members) and check_encoding(data.encoding) == "utf-8"
    if workers < 2 or not is_plain or tokenizer == "bpe" or data.split != "characters":
        return None
    try:
        return _survey(text, paths, tokenizer == "byte", crew, workers, alphabet, progress)
    except OtherTextError:
        crew.end()
        return None


def _survey(
    text: Text, paths: list[Path], by_bytes: bool, crew: Crew, workers: int, alphabet: bool, progress: Progress
) -> tuple[Survey, Ranges]:
    identities = [_identity(path) for path in paths]
    sizes = [identity[0] for identity in identities]
    parts = [part for number, path in enumerate(paths) for part in _cut(number, path, sizes[number])]
    crew.start(workers)
    crew.tell(None if by_bytes else "", 0, np.dtype(np.uint16))
    codes = np.zeros(_CODES, dtype=np.int64)
    ranges: list[Range] = []
    size = 0
    with aside(workers) as hasher:
        hashes = _Hashes(hasher, sizes)
        for part, answer in crew.ask((part, {"do": "look"}) for part in hashes.beside(parts)):
            if "other" in answer:
                raise OtherTextError
            ranges.append(replace(part, characters=answer["characters"]))
            codes[answer["codes"]] += answer["counts"]
            size += part.bytes
            progress("reading", size, text.size)
            if part.end == sizes[part.file] and part.file + 1 < len(paths) and not _ends_line(part):
                ranges.append(replace(part, characters=1, is_newline=True))
                codes[ord("\n")] += 1
        fingerprint = hashes.fingerprint()
    text.keep_nothing()
    characters = sum(part.characters for part in ranges)
    known = "".join(map(chr, np.flatnonzero(codes))) if alphabet and not by_bytes else None
    found = Survey(fingerprint, characters, size, size, hashes.documents, hashes.files, known)
    return found, Ranges(ranges, codes, identities)


def encode_ranges(
    ranges: Ranges, survey: Survey, borders: Borders, crew: Crew, writer: StoreWriter, progress: Progress
) -> tuple[dict[Split, SplitFacts], Counts]:
    """Write the ids of all ranges; what is in the splits, and how often each id occurs.

    Raises UnknownCharacters before anything is written, DiskError, and UserError if the text is not what was surveyed.
    """
    counts = _count_ids(writer.tokenizer, ranges.codes)
    try:
        return _encode(ranges, survey, borders, crew, writer, progress), counts
    except BaseException as error:
        crew.end()  # before the directory goes into which it writes
        if isinstance(error, OtherTextError | UnicodeDecodeError):
            raise UserError(
                "the text changed while it was read", hint="run the same command again once it is written"
            ) from error
        raise


def _encode(
    ranges: Ranges, survey: Survey, borders: Borders, crew: Crew, writer: StoreWriter, progress: Progress
) -> dict[Split, SplitFacts]:
    by_bytes = writer.tokenizer.kind == "byte"
    parts = list(_divided(ranges.ranges, borders.cuts))
    facts: dict[Split, SplitFacts] = {}
    places: list[list[tuple[str, int, int]]] = []
    for split in dict.fromkeys(split for split, _ in parts):
        own = [part for one, part in parts if one == split]
        sizes = [part.bytes if by_bytes else part.characters for part in own]
        ends = np.cumsum([0, *sizes])
        starts = [int(ends[i]) for i, part in enumerate(own) if i == 0 or part.file > own[i - 1].file]
        facts[split] = SplitFacts(
            sum(part.characters for part in own),
            sum(part.bytes for part in own),
            int(ends[-1]),
            len(starts),
            np.array(starts, dtype=np.int64),
        )
        writer.reserve(split, facts[split].tokens)
        places += [writer.places(split, int(start), size) for start, size in zip(ends[:-1], sizes, strict=True)]
    crew.tell(*_table(writer.tokenizer))
    done = 0
    progress("encoding", done, survey.work)  # ids are written from now on
    with aside(2) as hasher:
        hashes = _Hashes(hasher, [identity[0] for identity in ranges.identities])

        def requests() -> Iterator[tuple[Range, dict[str, Any]]]:
            of_file = iter(hashes.beside(part for _, part in parts if not part.is_newline))
            for (_, part), into in zip(parts, places, strict=True):
                if part.is_newline:
                    newline = narrow(writer.tokenizer.encode("\n"), writer.tokenizer.vocab_size)
                    write_into(Path(into[0][0]), into[0][1], little(newline).tobytes())
                else:
                    yield next(of_file), {"do": "encode", "places": into}

        for part, answer in crew.ask(requests()):
            if "other" in answer:
                raise OtherTextError
            done += part.bytes
            progress("encoding", done, survey.work)
        fingerprint = hashes.fingerprint()
    paths = dict.fromkeys(part.path for _, part in parts)
    if fingerprint != survey.fingerprint or [_identity(path) for path in paths] != ranges.identities:
        raise OtherTextError
    return facts


def _divided(ranges: Iterable[Range], cuts: tuple[int, int]) -> Iterator[tuple[Split, Range]]:
    """The ranges, each in one split."""
    position = 0
    for part in ranges:
        for split, end in zip(SPLITS, (*cuts, position + part.characters), strict=True):
            if (size := min(end - position, part.characters)) > 0:
                first, part = _split(part, size)
                yield split, first
                position += size


def _split(part: Range, characters: int) -> tuple[Range, Range]:
    """The first characters of a range, and the others, of which there may be none."""
    if characters == part.characters:
        border = part.end
    else:
        text = b"".join(runs(part.path, part.start, part.end)).decode()
        border = part.start + len(text[:characters].encode())
    rest = replace(part, start=border, characters=part.characters - characters)
    return replace(part, end=border, characters=characters), rest


def _cut(number: int, path: Path, size: int) -> Iterator[Range]:
    """A file in ranges. Raises OtherTextError for one that is empty or starts with a byte order mark."""
    with reported("read", path), path.open("rb", buffering=0) as stream:
        if stream.read(len(codecs.BOM_UTF8)) in (b"", codecs.BOM_UTF8):
            raise OtherTextError
        start = 0
        while start < size:
            end = min(start + RANGE, size)
            stream.seek(end)
            following = stream.read(3)  # as many bytes as can be left of a character
            end += len(following) - len(following.lstrip(_CONTINUATION))
            yield Range(number, path, start, end)
            start = end


def _ends_line(part: Range) -> bool:
    return b"".join(runs(part.path, part.end - 1, part.end)) == b"\n"


def _identity(path: Path) -> tuple[int, ...]:
    """The size of a file, and what else changes when it does."""
    with reported("look at", path):
        facts = os.stat(path)
    return facts.st_size, facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns


def _count_ids(tokenizer: Tokenizer, codes: npt.NDArray[np.int64]) -> Counts:
    """(vocab_size,) how often each id occurs, from how often each code does. Raises UnknownCharacters."""
    if tokenizer.kind == "byte":
        return codes[: tokenizer.vocab_size]
    seen = np.flatnonzero(codes)
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    np.add.at(counts, tokenizer.encode("".join(map(chr, seen))), codes[seen])
    return counts


def _table(tokenizer: Tokenizer) -> tuple[str | None, int, np.dtype[Any]]:
    """What a process has to know of the ids."""
    alphabet = tokenizer.characters if isinstance(tokenizer, CharTokenizer) else None
    return alphabet, tokenizer.unknown or 0, token_dtype(tokenizer.vocab_size)
