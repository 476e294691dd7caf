"""Tokenize a text of any length.

The text is read up to three times: to scan it (sizes, hashes, characters), to train the tokenizer (unless the scan has
what it needs), and to encode it. A short text stays in memory after the first time; of a long one a few blocks do.
"""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.cores import usable_cores
from gpt_cli.corpus.blocks import BLOCK, SPLITS, CorpusText, Split, SplitBlock, count_characters
from gpt_cli.corpus.encode import CutRule, batches, encode_batches
from gpt_cli.corpus.encoder_pool import SerialExecutor
from gpt_cli.corpus.scan import CorpusStats, Stage, StageProgress, scan
from gpt_cli.corpus.split import SplitPlan, split_blocks
from gpt_cli.corpus.store import FORMAT, SplitSpec, SplitStats, StoreWriter
from gpt_cli.corpus.tokens import Tokens
from gpt_cli.corpus.vocab_size import COUNTED, choose_vocab_size
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.terminal.words import format_size
from gpt_cli.tokenizer import Tokenizer, UnknownCharacters, train_tokenizer
from gpt_cli.tokenizer.bpe_vocabulary import END_OF_TEXT
from gpt_cli.tokenizer.pretokenizer import SAMPLED, choose_pattern
from gpt_cli.tokenizer.vocab_stats import Counts

SHARE = 4 << 20  # bytes of text per encoding worker, at least
_LONGEST_SEGMENT = 40 * BLOCK  # bytes: no segment is longer


@dataclass(frozen=True, eq=False)
class Tokenized:
    """Statistics of a text that was written as a token store."""

    tokenizer: Tokenizer
    stats: dict[Split, SplitStats]
    fingerprint: str
    counts: Counts
    """(vocab_size,) how often each id occurs, in all splits."""


class _SplitCounter:
    """Accumulates the statistics of one split."""

    def __init__(self) -> None:
        self.characters = self.bytes = self.tokens = 0
        self.starts = array("q")

    def add(self, blocks: Sequence[SplitBlock], lengths: npt.NDArray[np.uint32]) -> None:
        """Count blocks; `lengths` are their numbers of tokens."""
        for block, length in zip(blocks, lengths.tolist(), strict=True):
            if block.starts:
                self.starts.append(self.tokens)
            self.characters += count_characters(block.data)
            self.bytes += len(block.data)
            self.tokens += length

    def stats(self) -> SplitStats:
        starts = np.frombuffer(self.starts, dtype=np.int64) if self.starts else np.zeros(0, dtype=np.int64)
        return SplitStats(self.characters, self.bytes, self.tokens, len(self.starts), starts)


@dataclass(frozen=True)
class TokenizePipeline:
    """A scanned text, with the settings to tokenize it."""

    text: CorpusText
    stats: CorpusStats
    split_plan: SplitPlan
    data: DataConfig
    config: TokenizerConfig
    pretrained: Tokenizer | None
    """The tokenizer of `tokenizer.file`; None if one is to be trained."""
    note: Notify
    progress: StageProgress
    processes: int
    may_adapt: bool = False
    """True if a BPE may have fewer ids than are asked for, where the text supports no more."""

    @classmethod
    def scan(
        cls,
        data: DataConfig,
        config: TokenizerConfig,
        note: Notify,
        progress: StageProgress | None,
        processes: int | None = None,
        text: CorpusText | None = None,
    ) -> "TokenizePipeline":
        """Read the text once. `processes`: number of encoding workers for a long text; None: one a core.

        `text`: the files of `data`, where they were found before.

        Raises what reading raises, and UserError for a text too small to split.
        """
        progress = progress or _silent
        pretrained = None if config.file is None else train_tokenizer((), config)
        text = text or CorpusText.find(data, note)
        processes = processes or len(usable_cores())
        alphabet = pretrained is None and _is_scanned_alphabet(config, text)
        end_lines = _ends_lines(config, pretrained)
        stats = scan(text, end_lines=end_lines, progress=progress, alphabet=alphabet, workers=processes)
        text.mute_notes()
        processes = min(processes, max(1, stats.total_bytes // SHARE))
        plan = SplitPlan.of(data, stats)
        return cls(text, stats, plan, data, config, pretrained, note, progress, processes)

    @property
    def cache_key(self) -> str:
        """The cache key of the tokens: a digest of the text, the tokenizer and the split."""
        vocabulary = (
            self.config.model_dump() if self.pretrained is None else [self.pretrained.digest, self.config.allow_special]
        )
        division = self.data.model_dump(exclude={"source", "encoding", "text_key", "documents", "rules"})
        division |= {"val_source": self.data.val_source is not None, "files": None}
        if self.data.split == "files" or self.data.weights is not None:  # else the boundaries of files do not matter
            weights = [member.weight for member in self.text.files]
            division["files"] = hashlib.sha256(self.stats.files.tobytes() + repr(weights).encode()).hexdigest()
        parts = [FORMAT, self.stats.fingerprint, division, vocabulary]
        is_learned = self.pretrained is None and self.config.kind == "bpe"
        if is_learned and self._sampled_share < 1 and self.config.train_bytes < _LONGEST_SEGMENT:
            parts.append("cut")  # segments longer than the sample, which older versions read whole
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def train_tokenizer(self) -> Tokenizer:
        """The pretrained tokenizer, or a new one: BPE learns from the training split, an alphabet from all text."""
        if self.pretrained is not None:
            return self.pretrained
        match self.config.kind:
            case "char" if self.stats.alphabet is not None:
                return train_tokenizer([self.stats.alphabet], self.config)
            case "char":
                return train_tokenizer(self._training_text(None), self.config)
            case "byte" | "hf":
                return train_tokenizer((), self.config)
            case "bpe":
                if (share := self._sampled_share) < 1:
                    read = self.config.train_bytes
                    self.note(
                        f"the vocabulary is learned from about {format_size(read)} of the text,"
                        f" spread evenly over its training part of about {format_size(round(read / share))}"
                    )
                config = self._with_vocab_size()
                tokenizer = train_tokenizer(self._training_text("train"), config, at_most=self.may_adapt)
                if config.vocab_size is not None and tokenizer.vocab_size < config.vocab_size:
                    size, asked = tokenizer.vocab_size, config.vocab_size
                    self.note(f"the text supports {size:,} ids, fewer than the {asked:,} that were asked for")
                return tokenizer

    @property
    def _sampled_share(self) -> float:
        """`tokenizer.train_bytes` as a share of the bytes of the training split; above 1 for a shorter one."""
        trains = 1.0 - self.data.test_fraction - (self.data.val_fraction if self.data.val_source is None else 0)
        return self.config.train_bytes / max(1, self.stats.bytes * trains)

    def _with_vocab_size(self) -> TokenizerConfig:
        """The config with a vocabulary size, chosen by the length of the text if it has none."""
        if self.config.vocab_size is not None:
            return self.config
        start = self._start_of_training(COUNTED)
        vocab_size = choose_vocab_size(start, self.stats.characters, self.config.pattern or "gpt2")
        self.note(
            f"BPE with {vocab_size:,} ids suits {self.stats.characters:,} characters; a longer text would get more"
        )
        return self.config.model_copy(update={"vocab_size": vocab_size})

    def adapted(self) -> "TokenizePipeline":
        """This pipeline with a BPE that adapts to the text: its pattern, where none is asked for, and its size."""
        pattern = self.config.pattern
        if self.config.kind == "bpe" and self.pretrained is None and pattern is None:
            pattern = choose_pattern(self._start_of_training(SAMPLED))
            if pattern == "gpt2":
                pattern = None
            else:
                self.note(f"split by {pattern}, which keeps combining marks with letters (--pattern gpt2 cuts there)")
        return replace(self, config=self.config.model_copy(update={"pattern": pattern}), may_adapt=True)

    def _start_of_training(self, characters: int) -> str:
        """The first `characters` of the text that a tokenizer is trained on, or a little more."""
        pieces: list[str] = []
        for piece in self._training_text("train"):
            pieces.append(piece)
            characters -= len(piece)
            if characters <= 0:
                break
        return "".join(pieces)

    def encode_to_store(self, writer: StoreWriter) -> Tokenized:
        tokenized = self._encode(writer.tokenizer, writer.append)
        writer.finish(tokenized.stats, fingerprint=tokenized.fingerprint, division=SplitSpec.of(self.data))
        return tokenized

    def encode_to_memory(self, tokenizer: Tokenizer) -> tuple[dict[Split, Tokens], Tokenized]:
        """Encode the text; return the ids of each split."""
        arrays: dict[Split, list[Tokens]] = {}
        tokenized = self._encode(tokenizer, lambda split, ids: arrays.setdefault(split, []).append(ids))
        return {split: np.concatenate(arrays[split]) for split in tokenized.stats}, tokenized

    def _encode(self, tokenizer: Tokenizer, sink: Callable[[Split, Tokens], None]) -> Tokenized:
        rule = CutRule.of(tokenizer, allow_special=self.config.allow_special)
        counters: dict[Split, _SplitCounter] = {}
        counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        try:
            with SerialExecutor(self.processes) as hasher, SerialExecutor(self.processes) as writer:
                blocks = split_blocks(
                    self.text,
                    self.split_plan,
                    self.stats,
                    end_lines=tokenizer.eot_id is None,
                    progress=self._show("encoding"),
                    hasher=hasher,
                )
                for batch, (ids, lengths) in encode_batches(
                    tokenizer, batches(blocks, rule), self.processes, allow_special=self.config.allow_special
                ):
                    writer.submit(sink, batch.split, ids)
                    counters.setdefault(batch.split, _SplitCounter()).add(batch.blocks, lengths)
                    counts += np.bincount(ids, minlength=tokenizer.vocab_size)
        except UnknownCharacters as error:  # of a batch, which need not have all of them
            if not (unknown := self._find_unknown_characters(tokenizer)):
                message = "a newline separates the documents of a text, and the vocabulary lacks it"
                raise RequestError(message) from error
            raise UnknownCharacters(unknown) from error
        for split in SPLITS[: 3 if self.data.test_fraction else 2]:
            if split not in counters or counters[split].characters < 2:
                raise UserError(
                    f"the {split} split has fewer than 2 characters",
                    kind="set",
                    keys=["data.split"],
                    choices=["characters"],
                )
        stats = {split: counters[split].stats() for split in SPLITS if split in counters}
        return Tokenized(tokenizer, stats, self.stats.fingerprint, counts)

    def _find_unknown_characters(self, tokenizer: Tokenizer) -> dict[str, int]:
        """The characters of the text that `tokenizer` lacks, and the index of the first of each."""
        places: dict[str, int] = {}
        read = 0
        for number in range(len(self.text.files)):
            for block in self.text.blocks(number):
                for character in tokenizer.unknown_characters(block.text):
                    places.setdefault(character, read + block.text.index(character))
                read += len(block.text)
        return places

    def _training_text(self, split: Split | None) -> Iterator[str]:
        """The text that a tokenizer is trained on: all of it, or up to `tokenizer.train_bytes` of a split.

        The sample of a split is deterministic and spread evenly over it: whole segments, or the beginnings of such as
        are longer than the sample.
        """
        share = 1.0 if split is None else self._sampled_share
        bytes_read = bytes_used = 0
        special = [END_OF_TEXT] if self.config.allow_special else []
        rule = CutRule() if split is None else CutRule(self.config.pattern or "gpt2", special)
        blocks = split_blocks(
            self.text, self.split_plan, self.stats, end_lines=split is None, progress=self._show("learning")
        )
        for batch in batches(blocks, rule):
            for block in batch.blocks if split in (None, batch.split) else ():
                data = block.data
                bytes_read += len(data)
                if share < 1 and len(data) > self.config.train_bytes:
                    data = data[: max(0, max(int(bytes_read * share), 1) - bytes_used)]
                elif share < 1 and bytes_used and bytes_used + len(data) > bytes_read * share:
                    continue
                bytes_used += len(data)
                yield data.decode(errors="ignore")  # of a character that is cut

    def _show(self, stage: Stage) -> Callable[[int], None]:
        return lambda done: self.progress(stage, done, self.stats.total_bytes)


def _ends_lines(config: TokenizerConfig, pretrained: Tokenizer | None) -> bool:
    """True if newlines separate documents, as the vocabulary has no end of text."""
    return config.kind != "bpe" if pretrained is None else pretrained.eot_id is None


def _is_scanned_alphabet(config: TokenizerConfig, text: CorpusText) -> bool:
    """True if the vocabulary is every character of the text, which the scan collects."""
    return config.kind == "char" and config.min_count == 1 and all(member.weight == 1 for member in text.files)


def _silent(_stage: Stage, _done: int, _total: int | None) -> None:
    pass
