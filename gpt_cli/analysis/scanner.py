"""A text, inspected: what it consists of, what is in it twice, and what a good loss on it is."""

from collections.abc import Iterable, Iterator
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from gpt_cli.analysis.baselines import measure_baselines
from gpt_cli.analysis.characters import CharacterCounts
from gpt_cli.analysis.lines import LineLengths
from gpt_cli.analysis.passages import PASSAGE, HashPrefixSample, ShingleHasher, hash_texts, is_informative
from gpt_cli.analysis.results import Contamination, CopiedPassage, DuplicateCount, RepeatedLine, TextReport
from gpt_cli.analysis.split_text import SplitText
from gpt_cli.analysis.text_sample import BLOCK, SystematicSample, TextSpan, text_blocks
from gpt_cli.corpus.scan import StageProgress
from gpt_cli.tokenizer.base import encode_text

_LEARN = 4_000_000  # characters that the baselines learn from, at most
_MEASURE = 1_000_000  # characters that they are measured on, at most
_HASHES = 1 << 21  # kept of passages; a quarter of it of lines and of documents
_LISTED = 5


def inspect_text(text: SplitText, progress: StageProgress) -> TextReport:
    """Report on the training and the validation part of a text; the test part is passed over.

    Memory is bounded: of a text of more than 2 million characters a sample is compared, and of more than 4 million one
    is learned from, spread over all of it. Raises what reading raises.
    """
    survey = _TextScanner()
    for block in text_blocks(survey.count(text, progress)):
        survey.add(block)
    survey.finish()
    text.check(survey.cut, survey.sample.characters - survey.cut)
    return survey.result()


class _TextScanner:
    """Everything that is gathered while a text passes by."""

    def __init__(self) -> None:
        self.characters = CharacterCounts()
        self.lengths = LineLengths()
        self.sample = SystematicSample()
        self.cut = 0
        """Characters that train."""
        self.documents = 0
        self.document_hashes = HashPrefixSample(_HASHES // 4)
        self.line_hashes = HashPrefixSample(_HASHES // 4)
        self.passage_hashes = HashPrefixSample(_HASHES)
        self._hasher = ShingleHasher()
        self._unfinished = TextSpan(0, "")  # the line that goes on in the next block

    def count(self, text: SplitText, progress: StageProgress) -> Iterator[str]:
        """The text, its documents counted and hashed (but for a newline at the end) as they pass."""
        document, newline, unfinished = blake2b(digest_size=8), b"", False
        for stretch in text.chunks():
            progress("inspecting", stretch.done, text.size)
            said = stretch.text
            self.cut += len(said) if stretch.split == "train" else 0
            data = newline + stretch.data
            newline = b"\n" * data.endswith(b"\n")
            document.update(data.removesuffix(b"\n"))
            unfinished = not stretch.document_end
            if stretch.document_end:
                self._count(document.digest())
                document, newline = blake2b(digest_size=8), b""
            yield said
        if unfinished:  # the rest is kept for the test
            self._count(document.digest())

    def _count(self, digest: bytes) -> None:
        self.document_hashes.add(np.frombuffer(digest, dtype=np.uint64), np.array([self.documents]))
        self.documents += 1

    def add(self, block: TextSpan) -> None:
        """The block of the text that follows those before."""
        codes = np.frombuffer(encode_text(block.text, "utf-32-le"), dtype="<u4")
        self.characters.add(codes)
        self.lengths.add(codes)
        self.sample.add(block)
        self.passage_hashes.add(*self._hasher.add(codes))
        begun = TextSpan(self._unfinished.start, self._unfinished.text + block.text)
        whole = begun.text.rfind("\n") + 1
        if not whole and len(begun.text) > BLOCK:  # hardly a line: what has no end is taken as it is
            whole = len(begun.text)
        self._add_lines(TextSpan(begun.start, begun.text[:whole]))
        self._unfinished = TextSpan(begun.start + whole, begun.text[whole:])

    def finish(self) -> None:
        self._add_lines(self._unfinished)

    def result(self) -> TextReport:
        characters, cut = self.sample.characters, self.cut
        train, val = self.sample.text(0, cut, _LEARN), self.sample.text(cut, characters, _MEASURE)
        lines, line_places = self.line_hashes.arrays()
        passages, passage_places = self.passage_hashes.arrays()
        seen_passages, places = _seen(passages, passage_places, cut, PASSAGE)
        seen_lines, _ = _seen(lines, line_places, cut, 1)
        whole = len(val) == characters - cut and self.passage_hashes.level == 0
        alphabet = self.characters.alphabet()
        return TextReport(
            characters=characters,
            bytes=self.characters.bytes,
            distinct_characters=len(alphabet),
            documents=self.documents,
            lines=self.lengths.facts(),
            train_characters=cut,
            val_characters=characters - cut,
            rare=tuple(self.characters.rare()),
            invisible=tuple(self.characters.invisible()),
            unseen=tuple(sorted(set(val) - set(train))) if len(train) == cut else (),
            duplicate_documents=_copies(self.document_hashes.arrays()[0]),
            duplicate_lines=_copies(lines),
            repeated=tuple(_most_repeated(lines, (train, val))),
            leak=Contamination(
                DuplicateCount(len(seen_passages), int(seen_passages.sum())),
                DuplicateCount(len(seen_lines), int(seen_lines.sum())),
                tuple(_longest(places[seen_passages] - cut, val)) if whole else (),
            ),
            baselines=tuple(measure_baselines(train, val, alphabet)),
            learned_on=len(train),
            measured_on=len(val),
            compared_share=0.5**self.passage_hashes.level,
        )

    def _add_lines(self, part: TextSpan) -> None:
        telling: list[str] = []
        places: list[int] = []
        place = part.start
        for line in part.text.split("\n"):
            if is_informative(stripped := line.strip()):
                telling.append(stripped)
                places.append(place)
            place += len(line) + 1
        self.line_hashes.add(hash_texts(telling), np.array(places, dtype=np.int64))


def _copies(hashes: npt.NDArray[np.uint64]) -> DuplicateCount:
    ordered = np.sort(hashes)
    return DuplicateCount(len(hashes), int(np.count_nonzero(ordered[1:] == ordered[:-1])))


def _seen(
    hashes: npt.NDArray[np.uint64], places: npt.NDArray[np.int64], cut: int, length: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """(n,) whether each of what starts at the cut or later is also in the training text, and (n,) where it starts.

    What has its first `length` characters before the cut is in the training text.
    """
    after = places >= cut
    known, asked = np.sort(hashes[places + length <= cut]), hashes[after]
    if not len(known):
        return np.zeros(len(asked), dtype=np.bool_), places[after]
    found = known[np.minimum(np.searchsorted(known, asked), len(known) - 1)]
    return found == asked, places[after]


def _most_repeated(hashes: npt.NDArray[np.uint64], texts: Iterable[str]) -> list[RepeatedLine]:
    """The lines that occur most often, as far as they are in the sample."""
    distinct, counts = np.unique(hashes, return_counts=True)
    often = np.argsort(-counts, kind="stable")[: 4 * _LISTED]
    wanted = {int(distinct[i]): int(counts[i]) for i in often if counts[i] > 1}
    found: dict[int, str] = {}
    for text in texts:
        lines = [line for line in map(str.strip, text.split("\n")) if is_informative(line)]
        found |= {
            int(value): line for value, line in zip(hash_texts(lines), lines, strict=True) if int(value) in wanted
        }
    repeated = [RepeatedLine(text, wanted[value]) for value, text in found.items()]
    return sorted(repeated, key=lambda line: (-line.count, line.text))[:_LISTED]


def _longest(places: npt.NDArray[np.int64], val: str) -> list[CopiedPassage]:
    """The longest passages made of copied ones that overlap, given (n,) places in the validation text."""
    if not len(places):
        return []
    borders = np.flatnonzero(np.diff(places) > 1) + 1
    starts, ends = (
        places[np.concatenate([[0], borders])],
        places[np.concatenate([borders, [len(places)]]) - 1] + PASSAGE,
    )
    longest = np.argsort(starts - ends, kind="stable")[:_LISTED]
    return [CopiedPassage(val[starts[i] : ends[i]], int(ends[i] - starts[i])) for i in longest]
