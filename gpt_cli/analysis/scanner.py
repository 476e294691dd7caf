"""Inspect a text: characters, lines, duplicates, contamination and baselines, in one pass."""

from collections.abc import Iterable, Iterator
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from gpt_cli.analysis.baselines import measure_baselines
from gpt_cli.analysis.characters import CharacterCounts
from gpt_cli.analysis.lines import LineLengths
from gpt_cli.analysis.passages import PASSAGE, HashPrefixSample, ShingleHasher, hash_texts, is_informative
from gpt_cli.analysis.split_text import SplitText
from gpt_cli.analysis.text_report import Contamination, CopiedPassage, DuplicateCount, RepeatedLine, TextReport
from gpt_cli.analysis.text_sample import BLOCK, SystematicSample, TextSpan, text_blocks
from gpt_cli.corpus.scan import StageProgress
from gpt_cli.tokenizer.base import encode_text

LEARN = 4_000_000  # characters that the baselines are fitted to, at most
_MEASURE = 1_000_000  # characters that they are measured on, at most
HASHES = 1 << 21  # of passages; a quarter of it for lines and documents
_MAX_LISTED = 5


def inspect_text(text: SplitText, progress: StageProgress) -> TextReport:
    """Report on the training and the validation part of a text; the test part is skipped.

    Memory is bounded: passages of a text of more than 2 million characters are sampled, and baselines are fitted to a
    spread sample of at most 4 million. Raises as reading does.
    """
    scanner = _TextScanner(divides_lines=text.divides_lines)
    for block in text_blocks(scanner.count(text, progress)):
        scanner.add(block)
    scanner.finish()
    text.check(scanner.cut, scanner.sample.characters - scanner.cut)
    return scanner.result()


class _TextScanner:
    """Accumulates the statistics of a text."""

    def __init__(self, *, divides_lines: bool) -> None:
        """`divides_lines`: a line may go on from the training into the validation part."""
        self.divides_lines = divides_lines
        self.characters = CharacterCounts()
        self.lengths = LineLengths()
        self.sample = SystematicSample()
        self.cut = 0
        """Characters of the training part."""
        self.documents = 0
        self.document_hashes = HashPrefixSample(HASHES // 4)
        self.line_hashes = HashPrefixSample(HASHES // 4)
        self.passage_hashes = HashPrefixSample(HASHES)
        self._hasher = ShingleHasher()
        self._unfinished = TextSpan(0, "")  # the line that continues in the next block

    def count(self, text: SplitText, progress: StageProgress) -> Iterator[str]:
        """Yield the text, and count and hash its documents (without a final newline) on the way."""
        document, newline, unfinished = blake2b(digest_size=8), b"", False
        done = 0
        for chunk in text.chunks():
            done += len(chunk.data)
            progress("inspecting", min(done, text.size), text.size)
            content = chunk.text
            self.cut += len(content) if chunk.split == "train" else 0
            data = newline + chunk.data
            newline = b"\n" * data.endswith(b"\n")
            document.update(data.removesuffix(b"\n"))
            unfinished = not chunk.ends_document
            if chunk.ends_document:
                self._count(document.digest())
                document, newline = blake2b(digest_size=8), b""
            yield content
        if unfinished:  # its rest is in the test part
            self._count(document.digest())

    def _count(self, digest: bytes) -> None:
        self.document_hashes.add(np.frombuffer(digest, dtype=np.uint64), np.array([self.documents]))
        self.documents += 1

    def add(self, block: TextSpan) -> None:
        """Add the next block of the text."""
        codes = np.frombuffer(encode_text(block.text, "utf-32-le"), dtype="<u4")
        self.characters.add(codes)
        self.sample.add(block)
        self.passage_hashes.add(*self._hasher.add(codes))
        trained = self.cut - block.start  # characters; `cut` is final where a block goes beyond it
        if self.divides_lines or not 0 <= trained < len(block.text):
            self._count_lines(block, codes)
            return
        if trained:
            self._count_lines(TextSpan(block.start, block.text[:trained]), codes[:trained])
        self.lengths.end_line()
        self._add_lines(self._unfinished)
        self._unfinished = TextSpan(self.cut, "")
        self._count_lines(TextSpan(self.cut, block.text[trained:]), codes[trained:])

    def _count_lines(self, part: TextSpan, codes: npt.NDArray[np.uint32]) -> None:
        self.lengths.add(codes)
        lines = TextSpan(self._unfinished.start, self._unfinished.text + part.text)
        whole = lines.text.rfind("\n") + 1
        if not whole and len(lines.text) > BLOCK:  # hardly a line: count it as one
            whole = len(lines.text)
        self._add_lines(TextSpan(lines.start, lines.text[:whole]))
        self._unfinished = TextSpan(lines.start + whole, lines.text[whole:])

    def finish(self) -> None:
        self._add_lines(self._unfinished)

    def result(self) -> TextReport:
        characters, cut = self.sample.characters, self.cut
        train, val = self.sample.text(0, cut, LEARN), self.sample.text(cut, characters, _MEASURE)
        lines, line_positions = self.line_hashes.arrays()
        passages, passage_positions = self.passage_hashes.arrays()
        copied_passages, positions = _in_training(passages, passage_positions, cut, PASSAGE)
        copied_lines, _ = _in_training(lines, line_positions, cut, 1)
        whole = len(val) == characters - cut and self.passage_hashes.level == 0
        alphabet = self.characters.alphabet()
        return TextReport(
            characters=characters,
            bytes=self.characters.bytes,
            distinct_characters=len(alphabet),
            documents=self.documents,
            lines=self.lengths.stats(),
            train_characters=cut,
            val_characters=characters - cut,
            rare=tuple(self.characters.rare()),
            invisible=tuple(self.characters.invisible()),
            unseen=tuple(sorted(set(val) - set(train))) if len(train) == cut else (),
            duplicate_documents=_copies(self.document_hashes.arrays()[0]),
            duplicate_lines=_copies(lines),
            repeated=tuple(_most_repeated(lines, (train, val))),
            leak=Contamination(
                DuplicateCount(len(copied_passages), int(copied_passages.sum())),
                DuplicateCount(len(copied_lines), int(copied_lines.sum())),
                tuple(_longest(positions[copied_passages] - cut, val)) if whole else (),
            ),
            baselines=tuple(measure_baselines(train, val, alphabet)),
            learned_on=len(train),
            measured_on=len(val),
            compared_share=0.5**self.passage_hashes.level,
        )

    def _add_lines(self, part: TextSpan) -> None:
        informative: list[str] = []
        positions: list[int] = []
        position = part.start
        for line in part.text.split("\n"):
            if is_informative(stripped := line.strip()):
                informative.append(stripped)
                positions.append(position)
            position += len(line) + 1
        self.line_hashes.add(hash_texts(informative), np.array(positions, dtype=np.int64))


def _copies(hashes: npt.NDArray[np.uint64]) -> DuplicateCount:
    ordered = np.sort(hashes)
    return DuplicateCount(len(hashes), int(np.count_nonzero(ordered[1:] == ordered[:-1])))


def _in_training(
    hashes: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64], cut: int, length: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """(n,) True for each item from position `cut` on that is also in the training text, and (n,) their positions.

    An item is in the training text if its first `length` characters are before `cut`.
    """
    after = positions >= cut
    training, validation = np.sort(hashes[positions + length <= cut]), hashes[after]
    if not len(training):
        return np.zeros(len(validation), dtype=np.bool_), positions[after]
    matches = training[np.minimum(np.searchsorted(training, validation), len(training) - 1)]
    return matches == validation, positions[after]


def _most_repeated(hashes: npt.NDArray[np.uint64], texts: Iterable[str]) -> list[RepeatedLine]:
    """The lines that occur most often in the sample."""
    distinct, counts = np.unique(hashes, return_counts=True)
    frequent = np.argsort(-counts, kind="stable")[: 4 * _MAX_LISTED]
    count_of = {int(distinct[i]): int(counts[i]) for i in frequent if counts[i] > 1}
    lines_of: dict[int, str] = {}
    for text in texts:
        lines = [line for line in map(str.strip, text.split("\n")) if is_informative(line)]
        lines_of |= {
            int(value): line for value, line in zip(hash_texts(lines), lines, strict=True) if int(value) in count_of
        }
    repeated = [RepeatedLine(text, count_of[value]) for value, text in lines_of.items()]
    return sorted(repeated, key=lambda line: (-line.count, line.text))[:_MAX_LISTED]


def _longest(positions: npt.NDArray[np.int64], val: str) -> list[CopiedPassage]:
    """The longest unions of overlapping copied passages; `positions` are (n,) starts in the validation text."""
    if not len(positions):
        return []
    breaks = np.flatnonzero(np.diff(positions) > 1) + 1
    starts, ends = (
        positions[np.concatenate([[0], breaks])],
        positions[np.concatenate([breaks, [len(positions)]]) - 1] + PASSAGE,
    )
    longest = np.argsort(starts - ends, kind="stable")[:_MAX_LISTED]
    return [CopiedPassage(val[starts[i] : ends[i]], int(ends[i] - starts[i])) for i in longest]
