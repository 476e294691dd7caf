"""Divide a text into training, validation and test splits.

A unit is a document or a file, whichever `data.split` names: all of it goes to one split.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.blocks import SPLITS, CorpusText, Split, SplitBlock, count_characters
from gpt_cli.corpus.encoder_pool import SerialExecutor
from gpt_cli.corpus.scan import CorpusStats, Fingerprint
from gpt_cli.errors import UserError
from gpt_cli.literals import SplitBy
from gpt_cli.terminal.words import plural


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
        """Return the split plan of a config. Raises UserError if a split would have fewer than 2 characters or no unit.

        By characters, the text is cut in order: training, validation, test. Documents or files are sorted by the hash
        of their content: the lowest are the test split, the next validation. So equal ones are in one split, and their
        order in the corpus does not matter.
        """
        val_fraction = 0.0 if data.val_source is not None else data.val_fraction
        if data.split != "characters":
            hashes = stats.documents if data.split == "documents" else stats.files
            return cls(data.split, (0, 0), assign_by_hash(hashes, val_fraction, data.test_fraction, data.split))
        size = stats.characters
        cuts = int((1 - val_fraction - data.test_fraction) * size), int((1 - data.test_fraction) * size)
        sizes = dict(zip(SPLITS, (cuts[0], cuts[1] - cuts[0], size - cuts[1]), strict=True))
        fractions = dict(zip(SPLITS, (1.0, val_fraction, data.test_fraction), strict=True))
        if any(sizes[split] < 2 for split, fraction in fractions.items() if fraction):
            tests = f" and {data.test_fraction} for the test" if data.test_fraction else ""
            raise UserError(
                f"the text is too small to split: {plural(size, 'character')}, of which"
                f" data.val_fraction {val_fraction} is held out for validation{tests}",
                keys=["data.val_fraction"],
            )
        return cls("characters", cuts, b"")

    def cut(self, data: bytes, position: int, unit: int) -> Iterator[tuple[Split, bytes, int]]:
        """Cut `data`, the text of `unit` from character `position` on, at the boundaries of the splits.

        Yields (split, its part, characters of that).
        """
        characters = count_characters(data)
        if self.by != "characters":
            is_known = unit < len(self.units)  # if not, the text has changed, which shows in its fingerprint
            yield SPLITS[self.units[unit]] if is_known else "train", data, characters
            return
        for split, end in zip(SPLITS, (*self.boundaries, position + characters), strict=True):
            size = min(end - position, characters)
            if size > 0:
                part = data if size == characters else data.decode()[:size].encode()
                yield split, part, size
                data = data[len(part) :]
                position += size
                characters -= size


def assign_by_hash(hashes: "Sequence[int]", val_fraction: float, test_fraction: float, units: str) -> bytes:
    """Return the index into SPLITS of each unit: the lowest hashes are the test split, the next validation.

    Each split has about its fraction of the distinct hashes, at least one. Raises UserError for too few of them.
    `units` names the units in that message.
    """
    ordered = sorted(set(hashes))
    n_test = max(1, round(test_fraction * len(ordered))) if test_fraction else 0
    n_val = max(1, round(val_fraction * len(ordered))) if val_fraction else 0
    if n_test + n_val >= len(ordered):
        raise _too_few_units(len(ordered), n_val, n_test, units)
    first_val, first_train = ordered[n_test], ordered[n_test + n_val]
    return bytes(0 if key >= first_train else 1 if key >= first_val else 2 for key in hashes)


def _too_few_units(n: int, n_val: int, n_test: int, units: str) -> UserError:
    """Return the error for `n` distinct units, all of which would be held out."""
    if n > (n_test > 0) + (n_val > 0):  # smaller fractions would do
        key = "data.val_fraction" if n_val >= n_test else "data.test_fraction"
        return UserError(
            f"data.val_fraction and data.test_fraction hold out {n_val + n_test:,} of {n:,} different {units}, which"
            " leaves none to train on",
            kind="set",
            keys=[key, "data.val_fraction", "data.test_fraction"],
            choices=["0.1"],
        )
    number = f"1 different {units.removesuffix('s')} is" if n == 1 else f"{n:,} different {units} are"
    if units == "prompts":
        return UserError(f"{number} too few to split")
    keys, choices = ["data.split"], ["characters"]
    return UserError(f"{number} too few to split by data.split={units}", kind="set", keys=keys, choices=choices)


@dataclass
class _Place:
    """A place in the text to be split."""

    characters: int = 0
    documents: int = 0


def split_blocks(
    text: CorpusText,
    plan: SplitPlan,
    stats: CorpusStats,
    *,
    end_lines: bool,
    progress: Callable[[int], None] = lambda _: None,
    hasher: SerialExecutor | None = None,
) -> Iterator[SplitBlock]:
    """Yield the whole text in order, as blocks of one split each; a file's training text is repeated by its weight.

    `end_lines`: a newline separates documents, instead of an end of text. `progress` gets the bytes read so far,
    `hasher` computes the hashes. Raises what reading raises, and UserError if the text changed after the scan.
    """
    fingerprint = Fingerprint(hasher)
    end = _Place()
    done = 0
    is_separated = True  # the last training block ends with what separates documents

    def read(number: int, *, again: bool) -> Iterator[SplitBlock]:
        nonlocal done
        for block in text.blocks(number):
            done += len(block.data)
            progress(done)
            if not again:
                fingerprint.add(block.data, block.ends)
            yield block

    for number, member in enumerate(text.files):
        if text.begins_validation(number):
            fingerprint.mark_val_source()
        is_last_file = number + 1 == len(text.files) or text.files[number + 1].validates != member.validates
        start = end
        for repeat in range(member.weight):
            end = replace(start)
            lacks_separator = repeat > 0 and not is_separated
            blocks = _mark_followed(read(number, again=repeat > 0), is_last_file)
            for block in _split_file(blocks, plan, end, None if member.validates else number, end_lines):
                if repeat and block.split != "train":
                    continue
                if lacks_separator:
                    newline = b"\n" if end_lines else b""
                    yield SplitBlock("train", newline, starts=False, ends_document=False, followed=True)
                    lacks_separator = False
                if block.split == "train":
                    is_separated = block.data.endswith(b"\n") if end_lines else block.followed
                yield block
    if fingerprint.hexdigest() != stats.fingerprint:
        raise UserError("the text changed while it was read")


def _split_file(
    blocks: Iterable[tuple[SplitBlock, bool]], plan: SplitPlan, place: _Place, file: int | None, end_lines: bool
) -> Iterator[SplitBlock]:
    """Cut the blocks of a file at the boundaries of the splits; `place` moves on. `file` None: all of it validates."""
    previous: Split | None = None  # the split of the last block of this document
    for block, followed in blocks:
        data = block.data
        if followed and end_lines and not data.endswith(b"\n"):
            data += b"\n"
        parts: Iterable[tuple[Split, bytes, int]] = [("val", data, count_characters(data))]
        if file is not None:
            parts = plan.cut(data, place.characters, place.documents if plan.by == "documents" else file)
        left = len(data)
        for split, part, characters in parts:
            place.characters += characters
            left -= len(part)
            ends_document = block.ends and not left
            yield SplitBlock(
                split,
                part,
                starts=split != previous,
                ends=ends_document or (plan.by == "characters" and place.characters in plan.boundaries),
                ends_document=ends_document,
                followed=followed and not left,
            )
            previous = split
        if block.ends:
            place.documents += 1
            previous = None


def _mark_followed(blocks: Iterator[SplitBlock], is_last_file: bool) -> Iterator[tuple[SplitBlock, bool]]:
    """Yield each block of a file, and True if it ends a document that another one follows."""
    previous: SplitBlock | None = None
    for block in blocks:
        if previous is not None:
            yield previous, previous.ends
        previous = block
    if previous is not None:
        yield previous, previous.ends and not is_last_file
