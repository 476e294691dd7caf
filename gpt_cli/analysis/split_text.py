"""The training and validation text of a corpus, without the test split."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.blocks import CorpusText, Split
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
        """Find the text of a config, without weights. Raises as reading does, and UserError for an empty split."""
        return cls.of(CorpusText.find(data.model_copy(update={"weights": None}), note), data, progress)

    @classmethod
    def of(cls, text: CorpusText, data: DataConfig, progress: StageProgress) -> "SplitText":
        stats = scan(text, end_lines=True, progress=progress)
        text.mute_notes()
        return cls(text, stats, SplitPlan.of(data, stats))

    @property
    def divides_lines(self) -> bool:
        """True if the validation text may begin amid a line of the training text, not with a document of its own."""
        return self.split_plan.by == "characters" and not any(member.validates for member in self.text.files)

    def read(self, progress: StageProgress) -> Iterator[tuple[Split, bytes, bool]]:
        """Yield (split, UTF-8, True where a document ends): the training text, then the validation text.

        Documents end with a newline. Raises as reading does.
        """
        is_ordered = self.split_plan.by == "characters"
        show = lambda done: progress("inspecting", done, self.stats.total_bytes)  # noqa: E731
        for splits in [("train", "val")] if is_ordered else [("train",), ("val",)]:
            for block in split_blocks(self.text, self.split_plan, self.stats, end_lines=True, progress=show):
                if block.split in splits:
                    yield block.split, block.data, block.ends_document

    def check(self, train: int, val: int) -> None:
        """Raise UserError if one of the two parts has fewer than 2 characters."""
        if min(train, val) < 2:
            split = "training" if train < 2 else "validation"
            message = f"the {split} split has fewer than 2 characters"
            raise UserError(message, kind="set", keys=["data.val_fraction"], choices=["0.5"])
