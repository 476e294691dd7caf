"""A text made into tokens, however long it is.

It is read up to three times: scanned (how long, which hashes, which characters), learned from (where that takes more
than to know the characters), encoded. A short text is in memory after the first time; of a long one there is never more
in memory than a few blocks.
"""

import hashlib
import json
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus.corpus_text import CorpusText, count_characters
from gpt_cli.corpus.encoder_pool import encode_batches
from gpt_cli.corpus.executors import serial_executor
from gpt_cli.corpus.scan import CorpusStats, Stage, StageProgress, scan
from gpt_cli.corpus.segments import Segment, batches
from gpt_cli.corpus.split import SPLITS, Split, SplitPlan, iter_chunks
from gpt_cli.corpus.store import FORMAT, SplitSpec, SplitStats, StoreWriter, Tokens, to_token_dtype
from gpt_cli.corpus.vocab_size import COUNTED, choose_vocab_size
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.files.safe_io import format_size
from gpt_cli.tokenizer import BPETokenizer, Tokenizer, UnknownCharacters, train_tokenizer
from gpt_cli.tokenizer.bpe_vocabulary import END_OF_TEXT
from gpt_cli.tokenizer.vocab_stats import Counts

_SHARE = 4 << 20  # bytes of text that are worth a worker to encode them


@dataclass(frozen=True, eq=False)
class Tokenized:
    """Statistics of a text that was written as a token store."""

    tokenizer: Tokenizer
    facts: dict[Split, SplitStats]
    fingerprint: str
    counts: Counts
    """(vocab_size,) how often each id occurs, in all splits."""


class _SplitCounter:
    """Counts of one split while it is encoded."""

    def __init__(self) -> None:
        self.characters = self.bytes = self.tokens = 0
        self.starts = array("q")

    def add(self, segments: Sequence[Segment], lengths: npt.NDArray[np.uint32]) -> None:
        """Take segments, and how many tokens each has."""
        for segment, length in zip(segments, lengths.tolist(), strict=True):
            if segment.part_start:
                self.starts.append(self.tokens)
            self.characters += count_characters(segment.data)
            self.bytes += len(segment.data)
            self.tokens += length

    def facts(self) -> SplitStats:
        starts = np.frombuffer(self.starts, dtype=np.int64) if self.starts else np.zeros(0, dtype=np.int64)
        return SplitStats(self.characters, self.bytes, self.tokens, len(self.starts), starts)


@dataclass(frozen=True)
class TokenizePipeline:
    """A text that was scanned, and how it is to become tokens."""

    text: CorpusText
    stats: CorpusStats
    split_plan: SplitPlan
    data: DataConfig
    config: TokenizerConfig
    pretrained: Tokenizer | None
    """The tokenizer, where it is not to be learned."""
    note: Notify
    progress: StageProgress
    processes: int

    @classmethod
    def scan(
        cls,
        data: DataConfig,
        config: TokenizerConfig,
        note: Notify,
        progress: StageProgress | None,
        processes: int | None,
    ) -> "TokenizePipeline":
        """Read the text once. `processes`: how many encode a long text side by side; None: one a core.

        Raises what reading raises, and UserError for a text too small to split.
        """
        progress = progress or _silent
        ready = None if config.file is None else train_tokenizer((), config)
        text = CorpusText.find(data, note)
        processes = processes or _available_cores()
        alphabet = ready is None and _is_plain(config, text)
        end_lines = _ends_lines(config, ready)
        stats = scan(text, end_lines=end_lines, progress=progress, alphabet=alphabet, workers=processes)
        text.mute_notes()
        processes = min(processes, max(1, stats.total_bytes // _SHARE))
        plan = SplitPlan.of(data, stats)
        return cls(text, stats, plan, data, config, ready, note, progress, processes)

    @property
    def cache_key(self) -> str:
        """The name of the tokens in the cache: a digest of all that decides them."""
        how = (
            self.config.model_dump() if self.pretrained is None else [self.pretrained.digest, self.config.allow_special]
        )
        division = self.data.model_dump(exclude={"source", "encoding", "text_key"})
        division |= {"val_source": self.data.val_source is not None, "files": None}
        if self.data.split == "files" or self.data.weights is not None:  # else it does not matter what is in which file
            weights = [member.weight for member in self.text.members]
            division["files"] = hashlib.sha256(self.stats.files.tobytes() + repr(weights).encode()).hexdigest()
        parts = [FORMAT, self.stats.fingerprint, division, how]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def train_tokenizer(self) -> Tokenizer:
        """The tokenizer. BPE learns from the training text alone, an alphabet is that of the whole text."""
        if self.pretrained is not None:
            return self.pretrained
        match self.config.kind:
            case "char" if self.stats.alphabet is not None:
                return train_tokenizer([self.stats.alphabet], self.config)
            case "char":
                return train_tokenizer(self._training_text(None), self.config)
            case "byte":
                return train_tokenizer((), self.config)
            case "bpe":
                return train_tokenizer(self._training_text("train"), self._with_vocab_size())

    def _with_vocab_size(self) -> TokenizerConfig:
        """The config with the size of its vocabulary, which may be left to the length of the text."""
        if self.config.vocab_size is not None:
            return self.config
        start: list[str] = []
        room = COUNTED
        for piece in self._training_text("train"):
            start.append(piece)
            room -= len(piece)
            if room <= 0:
                break
        vocab_size = choose_vocab_size("".join(start), self.stats.characters)
        self.note(
            f"BPE with {vocab_size:,} ids suits {self.stats.characters:,} characters; a longer text would get more"
        )
        return self.config.model_copy(update={"vocab_size": vocab_size})

    def encode_to_store(self, writer: StoreWriter) -> Tokenized:
        made = self._encode(writer.tokenizer, writer.append)
        writer.finish(made.facts, fingerprint=made.fingerprint, division=SplitSpec.of(self.data))
        return made

    def encode_to_memory(
        self, tokenizer: Tokenizer, start: int = 0, stop: int | None = None
    ) -> tuple[dict[Split, Tokens], Tokenized]:
        """Encode the text into memory, of each split what is from id `start` up to `stop`."""
        kept: dict[Split, list[Tokens]] = {
            split: [to_token_dtype(np.zeros(0, np.uint32), tokenizer.vocab_size)] for split in SPLITS
        }
        seen = dict.fromkeys(SPLITS, 0)

        def sink(split: Split, ids: Tokens) -> None:
            first, last = start - seen[split], len(ids) if stop is None else stop - seen[split]
            seen[split] += len(ids)
            if max(first, 0) < min(last, len(ids)):
                piece = ids[max(first, 0) : last]
                kept[split].append(piece if len(piece) == len(ids) else piece.copy())  # a view would hold all of it

        made = self._encode(tokenizer, sink)
        return {split: np.concatenate(arrays) for split, arrays in kept.items() if split in made.facts}, made

    def _encode(self, tokenizer: Tokenizer, sink: Callable[[Split, Tokens], None]) -> Tokenized:
        pattern = tokenizer.vocabulary.pattern if isinstance(tokenizer, BPETokenizer) else None
        end_lines = tokenizer.eot_id is None
        tallies: dict[Split, _SplitCounter] = {}
        counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        try:
            with serial_executor(self.processes) as hasher, serial_executor(self.processes) as writer:
                parts = iter_chunks(self.text, self.split_plan, self.stats, end_lines=end_lines, hasher=hasher)
                for batch, encoded in encode_batches(
                    tokenizer,
                    batches(parts, pattern, end_lines=end_lines, special=self._special(tokenizer)),
                    self.processes,
                    allow_special=self.config.allow_special,
                ):
                    writer.submit(sink, batch.split, encoded.ids)
                    tallies.setdefault(batch.split, _SplitCounter()).add(batch.segments, encoded.lengths)
                    counts += encoded.counts
                    self.progress("encoding", batch.done, self.stats.total_bytes)
        except UnknownCharacters as error:
            raise RequestError(
                error.message, hint="a tokenizer learned from this very text, or one of bytes or bpe, knows them"
            ) from error
        for split in SPLITS[: 3 if self.data.test_fraction else 2]:
            if split not in tallies or tallies[split].characters < 2:
                raise UserError(
                    f"the {split} split has fewer than 2 characters",
                    hint="give more text, or split by --split characters (data.split=characters)",
                )
        facts = {split: tallies[split].facts() for split in SPLITS if split in tallies}
        return Tokenized(tokenizer, facts, self.stats.fingerprint, counts)

    def _special(self, tokenizer: Tokenizer) -> list[str]:
        """The texts that become special tokens."""
        if not self.config.allow_special or not isinstance(tokenizer, BPETokenizer):
            return []
        vocabulary = tokenizer.vocabulary
        return [vocabulary.tokens[token].decode() for token in sorted(vocabulary.special)]

    def _training_text(self, split: Split | None) -> Iterator[str]:
        """The text of a split, or all of it, to learn from.

        Of a split as much as `tokenizer.train_bytes`, in whole segments, at least one, that are spread evenly over it:
        always the same ones.
        """
        share = 1.0
        if split is not None:
            trains = 1.0 - self.data.test_fraction - (self.data.val_fraction if self.data.val_source is None else 0)
            share = self.config.train_bytes / max(1, self.stats.bytes * trains)
        if share < 1:
            self.note(
                f"the vocabulary is learned from {format_size(self.config.train_bytes)} of the text,"
                f" spread evenly over its training part of about {format_size(round(self.config.train_bytes / share))}"
            )
        seen = taken = 0
        pattern = (self.config.pattern or "gpt2") if split is not None else None
        parts = iter_chunks(self.text, self.split_plan, self.stats, end_lines=split is None)
        special = [END_OF_TEXT] if self.config.allow_special else []
        for batch in batches(parts, pattern, end_lines=split is None, special=special):
            self.progress("learning", batch.done, self.stats.total_bytes)
            for segment in batch.segments if split in (None, batch.split) else ():
                size = len(segment.data)
                seen += size
                if share >= 1 or taken == 0 or taken + size <= seen * share:
                    taken += size
                    yield segment.text


def _ends_lines(config: TokenizerConfig, ready: Tokenizer | None) -> bool:
    """True if newlines keep documents apart: the vocabulary has no end of text."""
    return config.kind != "bpe" if ready is None else ready.eot_id is None


def _is_plain(config: TokenizerConfig, text: CorpusText) -> bool:
    """True if the vocabulary is every character that there is, however often: then reading once tells it."""
    return config.kind == "char" and config.min_count == 1 and all(member.weight == 1 for member in text.members)


def _available_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _silent(_stage: Stage, _done: int, _total: int | None) -> None:
    pass
