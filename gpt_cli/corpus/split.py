"""Divide a text into training, validation and test splits."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.corpus_text import CorpusText, TextBlock, count_characters
from gpt_cli.corpus.executors import SerialExecutor
from gpt_cli.corpus.scan import CorpusStats, Fingerprint
from gpt_cli.errors import UserError
from gpt_cli.literals import SplitBy

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of a document, all of it in one split."""

    split: Split
    data: bytes
    """The text, in UTF-8."""
    part_start: bool
    """True if the document, or the part of it that falls into this split, starts here."""
    part_end: bool
    """True if it ends here."""
    document_end: bool
    """True if the document itself ends here, not only what of it falls into this split."""
    append_eot: bool
    """True if another document follows: where the vocabulary has an end of text, it stands between them."""
    repeat_start: bool
    """True if a repetition begins here, which is kept apart from what came before."""
    done: int
    """Bytes of the corpus up to the block that this is from."""

    @property
    def text(self) -> str:
        return self.data.decode()


@dataclass(frozen=True)
class SplitPlan:
    """The boundaries of the splits: two characters, or the split of each unit (document or file)."""

    by: SplitBy
    boundaries: tuple[int, int]
    """The characters at which validation and test begin."""
    units: bytes
    """The split of each unit, as an index into SPLITS."""

    @classmethod
    def of(cls, data: DataConfig, stats: CorpusStats) -> "SplitPlan":
        """The split plan of a config. Raises UserError where a split would be (nearly) empty.

        By characters, the text is cut in order: training, validation, test. By documents or files, the ones whose
        content has the lowest hashes are the test split, the next ones validate: so equal ones stay together, and
        their order in the corpus does not matter.
        """
        val_fraction = 0.0 if data.val_source is not None else data.val_fraction
        if data.split == "characters":
            size = stats.characters
            cuts = int((1 - val_fraction - data.test_fraction) * size), int((1 - data.test_fraction) * size)
            parts = {"train": cuts[0], "val": cuts[1] - cuts[0], "test": size - cuts[1]}
            wanted = {"val": val_fraction, "test": data.test_fraction}
            if any(part < 2 for split, part in parts.items() if wanted.get(split, 1)):
                tests = f" and {data.test_fraction} for the test" if data.test_fraction else ""
                raise UserError(
                    f"the text is too small to split: {size:,} characters, of which data.val_fraction {val_fraction} is"
                    f" held out for validation{tests}",
                    hint="give a longer text: each part needs at least 2 characters",
                )
            return cls("characters", cuts, b"")
        hashes = stats.documents if data.split == "documents" else stats.files
        return cls(data.split, (0, 0), assign_by_hash(hashes, val_fraction, data.test_fraction, data.split))

    def parts(self, position: int, length: int, unit: int) -> Iterator[tuple[Split, int]]:
        """Yield (split, characters) for the `length` characters of one unit from `position` on."""
        if self.by != "characters":
            known = unit < len(self.units)  # if not, the text has changed, which its fingerprint will tell
            yield SPLITS[self.units[unit]] if known else "train", length
            return
        for split, end in zip(SPLITS, (*self.boundaries, position + length), strict=True):
            if (size := min(end - position, length)) > 0:
                yield split, size
                position += size
                length -= size


def assign_by_hash(hashes: "Sequence[int]", val_fraction: float, test_fraction: float, units: str) -> bytes:
    """The split of each unit: at least one, and of all about the fraction, has the lowest hashes."""
    ordered = sorted(set(hashes))
    tests = max(1, round(test_fraction * len(ordered))) if test_fraction else 0
    validates = max(1, round(val_fraction * len(ordered))) if val_fraction else 0
    if tests + validates >= len(ordered):
        of_text = units != "examples"
        raise UserError(
            f"{len(ordered):,} different {units} are too few to split" + (f" by data.split={units}" if of_text else ""),
            hint="give more" + (", or split by --split characters (data.split=characters)" if of_text else ""),
        )
    borders = (ordered[tests + validates], ordered[tests])  # the first hash that trains, that does not test
    return bytes(0 if key >= borders[0] else 1 if key >= borders[1] else 2 for key in hashes)


def iter_chunks(
    text: CorpusText, plan: SplitPlan, stats: CorpusStats, *, end_lines: bool, hasher: SerialExecutor | None = None
) -> Iterator[Chunk]:
    """The whole text, in order, each stretch in its split; training text as often as its weight says.

    `hasher`: who computes the hashes. Raises what reading raises, and UserError if the text changed after the scan.
    """
    fingerprint = Fingerprint(hasher)
    position = document = done = 0
    for number, member in enumerate(text.members):
        if member.validates and (number == 0 or not text.members[number - 1].validates):
            fingerprint.mark_val_source()
        is_last = number + 1 == len(text.members) or text.members[number + 1].validates != member.validates
        start = position, document
        for repeat in range(member.weight):
            position, document = start
            part: Split | None = None  # the split of the part of a document that goes on
            repeat_start = repeat > 0
            for block, ends_file in _with_last(text.blocks(number)):
                done += len(block.data)
                if repeat == 0:
                    fingerprint.add(block.data, block.ends)
                followed = block.ends and not (ends_file and is_last)
                rest = block.data + (b"\n" if followed and end_lines and not block.data.endswith(b"\n") else b"")
                length = count_characters(rest)
                unit = document if plan.by == "documents" else number
                parts: Iterable[tuple[Split, int]]
                parts = [("val", length)] if member.validates else plan.parts(position, length, unit)
                for split, size in parts:
                    place = len(rest) if size == length else len(rest.decode()[:size].encode())
                    piece, rest = rest[:place], rest[place:]
                    position += size
                    length -= size
                    cut = plan.by == "characters" and position in plan.boundaries
                    if repeat == 0 or split == "train":
                        yield Chunk(
                            split,
                            piece,
                            part_start=part != split,
                            part_end=cut or (block.ends and not rest),
                            document_end=block.ends and not rest,
                            append_eot=followed and not rest,
                            repeat_start=repeat_start,
                            done=done,
                        )
                        repeat_start = False
                    part = split
                if block.ends:
                    document += 1
                    part = None
    if fingerprint.hexdigest() != stats.fingerprint:
        raise UserError("the text changed while it was read", hint="run the same command again once it is written")


def _with_last(blocks: Iterator[TextBlock]) -> Iterator[tuple[TextBlock, bool]]:
    """Each block, and whether it is the last."""
    previous: TextBlock | None = None
    for block in blocks:
        if previous is not None:
            yield previous, False
        previous = block
    if previous is not None:
        yield previous, True
