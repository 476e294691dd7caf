"""The training and validation text of a corpus, without the test split."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.blocks import Block, CorpusText, Split
from gpt_cli.corpus.scan import CorpusStats, StageProgress, scan
from gpt_cli.corpus.split import SplitPlan, split_blocks
from gpt_cli.errors import Notify, UserError


@dataclass(frozen=True)
class SplitText:
    """A scanned text with the splits that training would use; it is read in bounded memory."""

    text: CorpusText
    stats: CorpusStats
    split_plan: SplitPlan

    @classmethod
    def find(cls, data: DataConfig, note: Notify, progress: StageProgress) -> "SplitText":
        """The text of a config, without weights. Raises as reading does, and UserError if a split would be empty."""
        return cls.of(CorpusText.find(data.model_copy(update={"weights": None}), note), data, progress)

    @classmethod
    def of(cls, text: CorpusText, data: DataConfig, progress: StageProgress) -> "SplitText":
        """The same for a `CorpusText`."""
        stats = scan(text, end_lines=True, progress=progress)
        text.mute_notes()
        return cls(text, stats, SplitPlan.of(data, stats))

    @property
    def size(self) -> int:
        """Bytes of the text, the test split included."""
        return self.stats.total_bytes

    @property
    def divides_lines(self) -> bool:
        """True if the validation text may begin amid a line of the training text, not with a document of its own."""
        return self.split_plan.by == "characters" and not any(member.validates for member in self.text.files)

    def chunks(self) -> Iterator[Block]:
        """The training text, then the validation text; documents end with a newline. Raises as reading does."""
        if self.split_plan.by == "characters":  # the splits are in this order
            yield from self._read("train", "val")
        else:
            yield from self._read("train")
            yield from self._read("val")

    def check(self, train: int, val: int) -> None:
        """Raise UserError if one of the two parts has fewer than 2 characters."""
        if min(train, val) < 2:
            split = "training" if train < 2 else "validation"
            raise UserError(
                f"the {split} split has fewer than 2 characters",
                kind="set",
                keys=["data.val_fraction"],
                choices=["0.5"],
            )

    def _read(self, *splits: Split) -> Iterator[Block]:
        for block in split_blocks(self.text, self.split_plan, self.stats, end_lines=True):
            if block.split in splits:
                yield block
