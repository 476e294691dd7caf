"""Batches of examples as a pure function of (seed, step), and the examples that a loss is measured on.

Shapes: B rows per step over all devices, M per micro-batch, W their width.
"""

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from gpt_cli.config import Config
from gpt_cli.corpus.blocks import Split
from gpt_cli.corpus.prepare import Corpus
from gpt_cli.distributed.world import ALONE, World
from gpt_cli.errors import Notify
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.training.batches import Batches, MicroBatches, micro_batch_size, refuse_batch, rows_of_rank
from gpt_cli.training.device_tokens import DeviceTokens
from gpt_cli.training.evaluate import EvaluationText, LoadBatch
from gpt_cli.training.example_order import ExampleOrder, example_order
from gpt_cli.training.example_rows import ExampleRows
from gpt_cli.training.labelled_rows import LabelledRows


@dataclass
class ExampleBatches:
    """The examples of a training split, each once an epoch, in an order that depends on the seed and the step alone.

    The rows of a step are of similar length, padded to the longest.
    """

    rows: ExampleRows | LabelledRows
    device: torch.device
    context_length: int
    batch_size: int
    micro_batch_size: int
    seed: int
    world: World = ALONE
    rules: int = 2
    """As `data.rules`: 1 for runs begun before it."""

    @classmethod
    def of(
        cls, config: Config, rows: ExampleRows | LabelledRows, device: torch.device, world: World = ALONE
    ) -> "ExampleBatches":
        """The batches that `config` trains on, and this process's share. Raises RequestError as `Batches` does."""
        sizes = config.train.batch_size, micro_batch_size(config, world)
        refuse_batch(config, sizes[1], world)
        return cls(rows, device, config.model.context_length, *sizes, config.seed, world, config.data.rules)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one step reads on average, over all devices, without padding."""
        return max(1, round(self.batch_size * float(self.rows.widths.mean())))

    @property
    def steps_per_epoch(self) -> float:
        """The number of steps that train on each example once, but for those that are left out."""
        return len(self.rows) / self.batch_size

    def indices(self, step: int) -> list[int]:
        """The B rows of `step`, over all devices."""
        return self._order.at(step)

    def at(self, step: int) -> MicroBatches:
        """This rank's micro-batches of `step`: (M, W) inputs, and the targets that follow or are IGNORED."""
        rows, size = self.indices(step), self.micro_batch_size
        rank_rows = rows_of_rank(rows, size, self.world)
        width = int(self.rows.widths[rows].max())
        if self.device.type != "cpu":  # few widths: each may be compiled
            width = min(self.context_length, 1 << (width - 1).bit_length())
        inputs, targets = self.rows.tensors(rank_rows, width, self.device)
        return list(zip(inputs.split(size), targets.split(size), strict=True))

    @cached_property
    def _order(self) -> ExampleOrder:
        return example_order(self.rules, self.rows.widths, self.batch_size, self.seed)


@dataclass(frozen=True, eq=False)
class EvaluationExamples:
    """Examples to evaluate on; see `EvaluationText`."""

    rows: ExampleRows
    chosen: list[int]
    """The rows, from the shortest to the longest."""
    device: torch.device
    predicted: int
    characters: int
    bytes: int
    of_tokens: int

    @classmethod
    def of(
        cls, rows: ExampleRows, tokenizer: Tokenizer, device: torch.device, max_tokens: int | None = None
    ) -> "EvaluationExamples":
        """The first examples that together have at most `max_tokens` targets, at least one; None: all."""
        counts = rows.count_targets()
        n = len(rows) if max_tokens is None else max(1, int(np.searchsorted(np.cumsum(counts), max_tokens, "right")))
        chosen = sorted(range(n), key=rows.widths.tolist().__getitem__)
        n_bytes, characters = rows.count_text(chosen, tokenizer)
        return cls(rows, chosen, device, int(counts[:n].sum()), max(1, characters), max(1, n_bytes), int(counts.sum()))

    def batches(self, context: int, batch_size: int) -> list[LoadBatch]:
        """The rows, `batch_size` at a time; see `EvaluationText`."""
        groups = [self.chosen[i : i + batch_size] for i in range(0, len(self.chosen), batch_size)]
        return [partial(self._load, group) for group in groups]

    def _load(self, group: list[int]) -> tuple[Tensor, Tensor]:
        return self.rows.tensors(group, int(self.rows.widths[group].max()), self.device)


def open_batches(
    config: Config, corpus: Corpus, device: torch.device, note: Notify, world: World = ALONE
) -> Batches | ExampleBatches:
    """The batches of a corpus, of any `data.format`. Raises RequestError if the corpus is too small."""
    batches = open_example_batches(config, corpus, device, note, world)
    return Batches.of(config, DeviceTokens(corpus.train, device), world) if batches is None else batches


def open_example_batches(
    config: Config, corpus: Corpus, device: torch.device, note: Notify, world: World = ALONE
) -> ExampleBatches | None:
    """The batches of labelled texts, pairs or chats; None for a corpus of text."""
    rows: ExampleRows | LabelledRows
    if corpus.labelled:
        rows = LabelledRows.of(config, corpus.labelled["train"], "training", note)
    elif corpus.examples:
        rows = ExampleRows.of(config, corpus.examples["train"], "training", note, corpus.examples.values())
    else:
        return None
    return ExampleBatches.of(config, rows, device, world)


def open_evaluation(
    config: Config, corpus: Corpus, device: torch.device, note: Notify, max_tokens: int | None = None
) -> EvaluationText | EvaluationExamples | LabelledRows:
    """The text or examples to evaluate on: the test split if the corpus has one, else the validation split."""
    split: Split = "val" if corpus.test is None else "test"
    name = {"val": "validation", "test": "test"}[split]
    if corpus.labelled:
        return LabelledRows.of(config, corpus.labelled[split], name, note)
    if corpus.examples:
        rows = ExampleRows.of(config, corpus.examples[split], name, note)
        return EvaluationExamples.of(rows, corpus.tokenizer, device, max_tokens)
    ids = corpus.val if corpus.test is None else corpus.test
    return EvaluationText.of(ids, corpus.tokenizer, device, max_tokens)
