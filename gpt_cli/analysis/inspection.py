"""Inspect a text: characters, lines, duplicates, contamination and baselines, in one pass."""

from collections.abc import Iterator
from hashlib import blake2b
from itertools import groupby

import numpy as np

from gpt_cli.analysis.baselines import code_points, measure_baselines
from gpt_cli.analysis.counts import CharacterCounts, LineLengths
from gpt_cli.analysis.duplicates import (
    PASSAGE,
    HashPrefixSample,
    LineHasher,
    PassageHasher,
    count_copies,
    find_leaked,
    longest_passages,
    most_repeated,
)
from gpt_cli.analysis.split_text import SplitText
from gpt_cli.analysis.text_report import Contamination, TextReport
from gpt_cli.analysis.text_sample import SystematicSample, text_blocks
from gpt_cli.corpus.scan import StageProgress

LEARN = 4_000_000  # characters that the baselines are fitted to, at most
HASHES = 1 << 21  # of passages; a quarter of it for lines and documents
_MEASURE = 1_000_000  # characters that the baselines are measured on, at most


def inspect_text(text: SplitText, progress: StageProgress) -> TextReport:
    """Report on the training and the validation part of a text; the test part is skipped.

    Memory is bounded: passages of a text of more than 2 million characters are sampled, and baselines are fitted to a
    spread sample of at most 4 million. Raises as reading does.
    """
    scanner = _TextScanner()
    pieces = scanner.count_documents(text, progress)
    for _, part in groupby(pieces, key=lambda piece: text.divides_lines or piece[0]):
        for block in text_blocks((content for _, content in part), scanner.sample.characters):
            scanner.add(block)
        scanner.end_line()
    text.check(scanner.cut, scanner.sample.characters - scanner.cut)
    return scanner.report()


class _TextScanner:
    """Accumulate the statistics of a text, which is the training part followed by the validation part."""

    def __init__(self) -> None:
        self.cut = 0
        """Characters of the training part."""
        self.sample = SystematicSample()
        self._characters = CharacterCounts()
        self._lengths = LineLengths()
        self._lines = LineHasher()
        self._passages = PassageHasher()
        self._documents = 0
        self._document_hashes = HashPrefixSample(HASHES // 4)
        self._line_hashes = HashPrefixSample(HASHES // 4)
        self._passage_hashes = HashPrefixSample(HASHES)

    def count_documents(self, text: SplitText, progress: StageProgress) -> Iterator[tuple[str, str]]:
        """Yield (split, piece) of the text; count and hash its documents, without a final newline, on the way."""
        document, newline, ends = blake2b(digest_size=8), b"", True
        for split, data, ends in text.read(progress):
            content = data.decode()
            self.cut += len(content) if split == "train" else 0
            newline, rest = b"\n" * data.endswith(b"\n"), newline + data
            document.update(rest.removesuffix(b"\n"))
            if ends:
                self._add_document(document.digest())
                document, newline = blake2b(digest_size=8), b""
            yield split, content
        if not ends:  # its rest is in the test part
            self._add_document(document.digest())

    def _add_document(self, digest: bytes) -> None:
        self._document_hashes.add(np.frombuffer(digest, dtype=np.uint64), np.array([self._documents]))
        self._documents += 1

    def add(self, block: str) -> None:
        """Add the next block of the text."""
        codes = code_points(block)
        self.sample.add(block)
        self._characters.add(codes)
        self._lengths.add(codes)
        self._line_hashes.add(*self._lines.add(block))
        self._passage_hashes.add(*self._passages.add(codes))

    def end_line(self) -> None:
        """End the last line: what follows is another."""
        self._lengths.end_line()
        self._line_hashes.add(*self._lines.add("", ends_line=True))

    def report(self) -> TextReport:
        characters, cut = self.sample.characters, self.cut
        train, val = self.sample.text(0, cut, LEARN), self.sample.text(cut, characters, _MEASURE)
        passages, positions = find_leaked(self._passage_hashes, cut, PASSAGE)
        is_whole = len(val) == characters - cut and self._passage_hashes.level == 0
        alphabet = self._characters.alphabet()
        return TextReport(
            characters=characters,
            bytes=self._characters.bytes,
            distinct_characters=len(alphabet),
            documents=self._documents,
            lines=self._lengths.stats(),
            train_characters=cut,
            val_characters=characters - cut,
            rare=self._characters.rare(),
            invisible=self._characters.invisible(),
            unseen=tuple(sorted(set(val) - set(train))) if len(train) == cut else (),
            duplicate_documents=count_copies(self._document_hashes),
            duplicate_lines=count_copies(self._line_hashes),
            repeated=most_repeated(self._line_hashes, (train, val)),
            leak=Contamination(
                passages=passages,
                lines=find_leaked(self._line_hashes, cut, 1)[0],
                longest=longest_passages(positions - cut, val) if is_whole else (),
            ),
            baselines=tuple(measure_baselines(train, val, alphabet)),
            learned_on=len(train),
            measured_on=len(val),
            compared_share=0.5**self._passage_hashes.level,
        )
