"""Divide a text into training, validation and test splits.

A unit is a document or a file, whichever `data.split` names: all of it goes to one split.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.corpus_text import CorpusText, TextBlock, count_characters
from gpt_cli.corpus.executors import SerialExecutor
from gpt_cli.corpus.scan import CorpusStats, Fingerprint
from gpt_cli.errors import UserError
from gpt_cli.literals import SplitBy
from gpt_cli.terminal.words import plural

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a document, all of it in one split."""

    split: Split
    data: bytes
    """The text, in UTF-8."""
    part_start: bool
    """True if the document, or its part in this split, starts with this chunk."""
    part_end: bool
    """True if the document, or its part in this split, ends with this chunk."""
    document_end: bool
    """True if the document ends with this chunk."""
    append_eot: bool
    """True if another document follows: an end of text goes between them, if the vocabulary has one."""
    repeat_start: bool
    """True for the first chunk of a repetition, which is separated from the text before it."""
    done: int
    """Bytes of the corpus up to the end of the block that this chunk is from."""

    @property
    def text(self) -> str:
        return self.data.decode()


class _Piece(NamedTuple):
    """The part of a block that falls into one split."""

    split: Split
    data: bytes
    characters: int
    is_last: bool
    """True for the last piece of its block."""


@dataclass(frozen=True)
class SplitPlan:
    """The split of each character, by its position in the text, or of each unit."""

    by: SplitBy
    boundaries: tuple[int, int]
    """Positions of the first validation and the first test character, if `by` is "characters"."""
    units: bytes
    """The split of each unit otherwise, as an index into SPLITS."""

    @classmethod
    def of(cls, data: DataConfig, stats: CorpusStats) -> "SplitPlan":
        """The split plan of a config. Raises UserError if a split would have fewer than two characters or no unit.

        By characters, the text is cut in order: training, validation, test. Documents or files are sorted by the hash
        of their content: the lowest are the test split, the next validation. So equal ones are in one split, and their
        order in the corpus does not matter.
        """
        val_fraction = 0.0 if data.val_source is not None else data.val_fraction
        if data.split == "characters":
            size = stats.characters
            cuts = int((1 - val_fraction - data.test_fraction) * size), int((1 - data.test_fraction) * size)
            sizes = {"train": cuts[0], "val": cuts[1] - cuts[0], "test": size - cuts[1]}
            fractions = {"train": 1.0, "val": val_fraction, "test": data.test_fraction}
            if any(sizes[split] < 2 for split, fraction in fractions.items() if fraction):
                tests = f" and {data.test_fraction} for the test" if data.test_fraction else ""
                raise UserError(
                    f"the text is too small to split: {plural(size, 'character')}, of which"
                    f" data.val_fraction {val_fraction} is held out for validation{tests}",
                    keys=["data.val_fraction"],
                )
            return cls("characters", cuts, b"")
        hashes = stats.documents if data.split == "documents" else stats.files
        return cls(data.split, (0, 0), assign_by_hash(hashes, val_fraction, data.test_fraction, data.split))

    def cut(self, data: bytes, position: int, unit: int) -> Iterator[_Piece]:
        """Cut `data`, the text of `unit` from character `position` on, at the boundaries of the splits."""
        characters = count_characters(data)
        if self.by != "characters":
            is_known = unit < len(self.units)  # if not, the text has changed, which its fingerprint will tell
            yield _Piece(SPLITS[self.units[unit]] if is_known else "train", data, characters, is_last=True)
            return
        for split, end in zip(SPLITS, (*self.boundaries, position + characters), strict=True):
            size = min(end - position, characters)
            if size > 0:
                is_last = size == characters
                piece = data if is_last else data.decode()[:size].encode()
                yield _Piece(split, piece, size, is_last)
                data = data[len(piece) :]
                position += size
                characters -= size


def assign_by_hash(hashes: "Sequence[int]", val_fraction: float, test_fraction: float, units: str) -> bytes:
    """The index into SPLITS of each unit. The lowest hashes are the test split, the next validation, the rest training.

    Each split has about its fraction of the distinct hashes, at least one. Raises UserError for too few of them.
    `units` names the units in that message.
    """
    ordered = sorted(set(hashes))
    n_test = max(1, round(test_fraction * len(ordered))) if test_fraction else 0
    n_val = max(1, round(val_fraction * len(ordered))) if val_fraction else 0
    if n_test + n_val >= len(ordered) > (n_test > 0) + (n_val > 0):  # smaller fractions would do
        larger = "val" if n_val >= n_test else "test"
        fractions = [f"data.val_fraction={val_fraction:g}"] * (n_val > 0)
        fractions += [f"data.test_fraction={test_fraction:g}"] * (n_test > 0)
        raise UserError(
            f"{' and '.join(fractions)} of {len(ordered):,} different {units} leave none to train on",
            kind="set",
            keys=[f"data.{larger}_fraction", "data.val_fraction", "data.test_fraction"],
            choices=["0.1"],
        )
    if n_test + n_val >= len(ordered):
        of_text = units != "prompts"
        one = f"1 different {units.removesuffix('s')} is"
        number = one if len(ordered) == 1 else f"{len(ordered):,} different {units} are"
        raise UserError(
            f"{number} too few to split" + (f" by data.split={units}" if of_text else ""),
            kind="set" if of_text else None,
            keys=["data.split"] if of_text else [],
            choices=["characters"] if of_text else [],
        )
    first_val, first_train = ordered[n_test], ordered[n_test + n_val]
    return bytes(0 if key >= first_train else 1 if key >= first_val else 2 for key in hashes)


def iter_chunks(
    text: CorpusText, plan: SplitPlan, stats: CorpusStats, *, end_lines: bool, hasher: SerialExecutor | None = None
) -> Iterator[Chunk]:
    """The whole text in order, as chunks of one split each; the training text of a file is repeated by its weight.

    `hasher` computes the hashes. Raises what reading raises, and UserError if the text changed after the scan.
    """
    fingerprint = Fingerprint(hasher)
    position = document = 0
    start = 0, 0  # of the file, in characters and documents
    previous: Split | None = None  # the split of the last chunk of this document
    repeat_start = False
    for block in _read_blocks(text, fingerprint, end_lines=end_lines):
        if block.begins_file:
            start = start if block.repeat else (position, document)
            position, document = start
            previous, repeat_start = None, block.repeat > 0
        if text.files[block.file].validates:
            pieces = iter([_Piece("val", block.data, count_characters(block.data), is_last=True)])
        else:
            pieces = plan.cut(block.data, position, document if plan.by == "documents" else block.file)
        for piece in pieces:
            position += piece.characters
            at_boundary = plan.by == "characters" and position in plan.boundaries
            document_end = block.ends_document and piece.is_last
            if block.repeat == 0 or piece.split == "train":
                yield Chunk(
                    piece.split,
                    piece.data,
                    part_start=piece.split != previous,
                    part_end=at_boundary or document_end,
                    document_end=document_end,
                    append_eot=block.append_eot and piece.is_last,
                    repeat_start=repeat_start,
                    done=block.done,
                )
                repeat_start = False
            previous = piece.split
        if block.ends_document:
            document += 1
            previous = None
    if fingerprint.hexdigest() != stats.fingerprint:
        raise UserError("the text changed while it was read", hint="run the same command again once it is written")


class _ReadBlock(NamedTuple):
    """A block of a file, in one of the times that the file is read."""

    file: int
    repeat: int
    begins_file: bool
    data: bytes
    ends_document: bool
    append_eot: bool
    done: int
    """Bytes of the corpus up to the end of the block."""


def _read_blocks(text: CorpusText, fingerprint: Fingerprint, *, end_lines: bool) -> Iterator[_ReadBlock]:
    """The blocks of all files in order, each file as often as its weight says; once each goes into `fingerprint`."""
    done = 0
    for number, member in enumerate(text.files):
        if text.begins_validation(number):
            fingerprint.mark_val_source()
        is_last_file = number + 1 == len(text.files) or text.files[number + 1].validates != member.validates
        for repeat in range(member.weight):
            begins_file = True
            for block, append_eot in _mark_followed(text.blocks(number), is_last_file):
                done += len(block.data)
                if repeat == 0:
                    fingerprint.add(block.data, block.ends)
                needs_newline = append_eot and end_lines and not block.data.endswith(b"\n")
                data = block.data + b"\n" if needs_newline else block.data
                yield _ReadBlock(number, repeat, begins_file, data, block.ends, append_eot, done)
                begins_file = False


def _mark_followed(blocks: Iterator[TextBlock], is_last_file: bool) -> Iterator[tuple[TextBlock, bool]]:
    """Yield each block of a file, and True if it ends a document that another one follows."""
    previous: TextBlock | None = None
    for block in blocks:
        if previous is not None:
            yield previous, previous.ends
        previous = block
    if previous is not None:
        yield previous, previous.ends and not is_last_file
