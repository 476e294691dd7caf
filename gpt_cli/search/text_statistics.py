"""The statistics of a text, or of a folder of tokens, that a config is fitted to."""

import hashlib
import math
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpt_cli.config.schema import DataConfig
from gpt_cli.config.section import ConfigValues
from gpt_cli.corpus.blocks import SPLITS, CorpusText
from gpt_cli.corpus.detect import propose_lines
from gpt_cli.corpus.scan import Fingerprint, StageProgress
from gpt_cli.corpus.split import assign_by_hash
from gpt_cli.corpus.stamps import Stamps
from gpt_cli.corpus.store import TokenStore, find_store
from gpt_cli.literals import SUBWORD_KINDS, SplitBy
from gpt_cli.search.tokenizer_choice import choose_tokenizer, estimate_bytes_per_token, existing_tokenizer
from gpt_cli.tokenizer.bpe_vocabulary import END_OF_TEXT

_VALIDATION_CHARACTERS = 1_000_000  # enough to measure the loss on
_BEGINNING_CHARACTERS = 10 * _VALIDATION_CHARACTERS
_BEGINNING_TOKENS = 1 << 20
_SOURCE_KEYS = (
    "source",
    "weights",
    "encoding",
    "text_key",
    "documents",
    "val_source",
)  # keys of data that decide what is read


@dataclass(frozen=True)
class ExampleLengths:
    """The lengths of pairs, chats or labelled texts, in tokens that a model reads: of a pair all but the last."""

    training: Sequence[float]
    """Of those of the training split."""
    prompts: Sequence[float]
    """Of these, before the first token that is learned."""
    longest: float
    """Of all splits."""

    @property
    def mean(self) -> float:
        """The mean length of those of the training split."""
        return sum(self.training) / len(self.training)

    def read(self, context_length: int, *, cut: bool) -> Sequence[float]:
        """The tokens that are read of each that is trained on; longer ones are left out or, if they learn, `cut`.

        All, if none fits.
        """
        lengths = zip(self.training, self.prompts, strict=True)
        read = [min(n, context_length) for n, prompt in lengths if (prompt if cut else n) <= context_length]
        return read or self.training


@dataclass(frozen=True)
class TextStatistics:
    """The size of a text in tokens, and the values of the config that it decides."""

    tokens: float
    """In all splits, those of `data.weights` once."""
    training_tokens: float
    """As often as `data.weights` has them."""
    validation_tokens: float
    values: ConfigValues
    """Keys and their values."""
    tokenizer_reason: str
    """A sentence on the tokenizer; before it, of examples, one on what is learned."""
    split_reason: str
    """A sentence on the validation split."""
    has_carriage_returns: bool = False
    """True if a character of the text is one: its lines do not end in line feeds alone."""
    is_exact: bool = True
    """False if the numbers of tokens are estimates."""
    examples: ExampleLengths | None = None
    """None for a text."""


@dataclass(frozen=True)
class _Division:
    """The shares of a text, in tokens, that fall into its splits."""

    training: float
    """With the repetitions of `data.weights`: it may be more than 1."""
    validation: float
    test: float
    validation_units: int
    """Documents or files."""
    units: int
    training_documents: int
    """Without repetitions."""


@dataclass
class _Units:
    """The documents that a text is divided by, or its files: one entry for each in the five arrays."""

    hashes: "array[int]" = field(default_factory=lambda: array("Q"))
    """64 bits of the hash of its content."""
    characters: "array[int]" = field(default_factory=lambda: array("Q"))
    utf8: "array[int]" = field(default_factory=lambda: array("Q"))
    """Bytes."""
    documents: "array[int]" = field(default_factory=lambda: array("Q"))
    weights: "array[int]" = field(default_factory=lambda: array("Q"))
    """Times that it is trained on."""

    def add(self, digest: bytes, characters: int, size: int, documents: int, weight: int) -> None:
        self.hashes.append(int.from_bytes(digest[:8], "big"))
        self.characters.append(characters)
        self.utf8.append(size)
        self.documents.append(documents)
        self.weights.append(weight)

    def divide(self, split: SplitBy, val_fraction: float, test_fraction: float, *, of_characters: bool) -> _Division:
        """Divide them as `SplitPlan` does. By characters, the end of the text is held out.

        `of_characters`: a token is a character; else its bytes count. Raises UserError if they are too few.
        """
        sizes = self.characters if of_characters else self.utf8
        total, trained, held_out, tested, n_documents = max(1, sum(sizes)), 0.0, 0.0, 0.0, 0
        if split == "characters":
            end = sum(self.characters)
            cuts = (1 - val_fraction - test_fraction) * end, (1 - test_fraction) * end
            start = 0
            for n, size, documents, weight in zip(self.characters, sizes, self.documents, self.weights, strict=True):
                in_training, before_test = (min(max(cut - start, 0), n) / max(1, n) for cut in cuts)
                trained += in_training * size * weight
                held_out += (before_test - in_training) * size
                n_documents += math.ceil(documents * in_training)
                start += n
            return _Division(trained / total, held_out / total, test_fraction, 0, len(self.hashes), n_documents)
        split_of_each = assign_by_hash(self.hashes, val_fraction, test_fraction, split)
        for size, documents, weight, index in zip(sizes, self.documents, self.weights, split_of_each, strict=True):
            trained += size * weight if SPLITS[index] == "train" else 0
            n_documents += documents if SPLITS[index] == "train" else 0
            held_out += size if SPLITS[index] == "val" else 0
            tested += size if SPLITS[index] == "test" else 0
        n_val = split_of_each.count(SPLITS.index("val"))
        shares = trained / total, held_out / total, tested / total
        return _Division(*shares, n_val, len(self.hashes), n_documents)


@dataclass
class _TextCounts:
    """Counts over the text of a corpus that is to be split, without repetitions, unless they say otherwise."""

    units: _Units = field(default_factory=_Units)
    characters: int = 0
    size: int = 0
    """Bytes."""
    documents: int = 0
    separators: int = 0
    """Newlines that a tokenizer of single characters or bytes puts between documents."""
    validation_characters: int = 0
    """In files of data.val_source."""
    validation_separators: int = 0
    """As `separators`, between documents of data.val_source."""
    alphabet: set[str] = field(default_factory=set)
    """Characters of all files."""
    is_plain: bool = True
    """True if all files are plain text."""
    training_newline: bool = False
    """True if the text that is to be split has a newline, or gets one between documents."""
    beginning: list[str] = field(default_factory=list)
    """The first blocks."""

    @property
    def position(self) -> tuple[int, int, int]:
        """(characters, bytes, documents) counted so far."""
        return self.characters, self.size, self.documents

    def add_unit(self, digest: bytes, start: tuple[int, int, int], weight: int) -> None:
        """Add what was counted since the position `start` as one unit."""
        characters, size, documents = (now - then for now, then in zip(self.position, start, strict=True))
        self.units.add(digest, characters, size, documents, weight)


def measure_source(
    sources: Sequence[str],
    requested: ConfigValues,
    fixed: ConfigValues,
    *,
    has_gpu: bool,
    progress: StageProgress | None,
) -> TextStatistics:
    """The statistics of `sources`, read as the keys of data in `requested` say.

    `fixed` are all values that are not to be chosen. Raises what reading and `TokenStore.open` raise.
    """
    data = DataConfig(**{key: requested[f"data.{key}"] for key in _SOURCE_KEYS if f"data.{key}" in requested})
    if len(sources) == 1 and (path := find_store(sources[0])) is not None:
        return _measure_store(path, fixed)
    return _measure_files(data, fixed, has_gpu, progress)


def _measure_store(path: Path, fixed: ConfigValues) -> TextStatistics:
    store = TokenStore.open(path)
    is_bpe = store.tokenizer.kind == fixed.get("tokenizer.kind", "bpe") == "bpe"  # another kind is refused by its name
    tokenizer, division = store.tokenizer, store.division
    tokens = sum(stats.tokens for stats in store.stats.values())
    values = {
        "tokenizer.kind": tokenizer.kind,
        "tokenizer.vocab_size": tokenizer.vocab_size if is_bpe else None,
        "data.split": division.split,
        "data.val_fraction": division.val_fraction,
        "data.test_fraction": division.test_fraction,
        "sample.prompt": _default_prompt(store),
    }
    return TextStatistics(
        tokens=tokens,
        training_tokens=store.stats["train"].tokens,
        validation_tokens=store.stats["val"].tokens,
        values=values,
        tokenizer_reason=f"{path} has {tokens:,} {tokenizer.kind} tokens.",
        split_reason=f"{store.stats['val'].tokens:,} of them are its validation.",
    )


def _default_prompt(store: TokenStore) -> str:
    """The start of a document where there are several, else that of a line."""
    tokenizer = store.tokenizer
    if (
        store.stats["train"].documents > 1
        or (store.mapped("train", verify=False)[:_BEGINNING_TOKENS] == tokenizer.eot_id).any()
    ):
        return ""
    return tokenizer.decode([0]) if tokenizer.unknown_characters("\n") else "\n"


def _measure_files(
    data: DataConfig, fixed: ConfigValues, has_gpu: bool, progress: StageProgress | None
) -> TextStatistics:
    text = CorpusText.find(data, lambda _: None)  # its messages come when it is read for training
    existing = existing_tokenizer(fixed)
    key = ["statistics", data.model_dump(), dict(fixed), has_gpu, existing and existing.digest]
    remembered = Stamps(key, [member.file.path for member in text.files])
    if (known := remembered.recall()) is not None:
        return TextStatistics(**known)
    statistics = _measure_text(text, data, fixed, has_gpu, progress)
    remembered.remember(asdict(statistics))
    return statistics


def _measure_text(
    text: CorpusText, data: DataConfig, fixed: ConfigValues, has_gpu: bool, progress: StageProgress | None
) -> TextStatistics:
    split = fixed.get("data.split", data.split)
    counts = _count(text, split, progress)
    existing = existing_tokenizer(fixed)
    if fixed.get("tokenizer.kind") != "bpe" if existing is None else existing.eot_id is None:
        counts.characters += counts.separators
        counts.size += counts.separators
        counts.validation_characters += counts.validation_separators
        counts.training_newline = counts.training_newline or counts.separators > 0
        if counts.separators or counts.validation_separators:
            counts.alphabet.add("\n")
    characters, alphabet = counts.characters, counts.alphabet
    beginning = "\n".join(counts.beginning)
    values, tokenizer_reason = choose_tokenizer(beginning, characters, len(alphabet), has_gpu, fixed)
    kind = fixed.get("tokenizer.kind", values["tokenizer.kind"])
    tokens: float = counts.size if kind == "byte" else characters
    if kind in SUBWORD_KINDS:
        tokens = counts.size / estimate_bytes_per_token(beginning, {**values, **fixed})
    test_fraction = fixed.get("data.test_fraction", 0.0)
    val_fraction = 0.0
    if data.val_source is None:
        values["data.val_fraction"] = (
            0.1 if characters <= 10 * _VALIDATION_CHARACTERS else round(_VALIDATION_CHARACTERS / characters, 4)
        )
        val_fraction = fixed.get("data.val_fraction", values["data.val_fraction"])
    division = counts.units.divide(split, val_fraction, test_fraction, of_characters=kind == "char")
    end = END_OF_TEXT if existing is None or existing.eot_id is None else existing.decode([existing.eot_id])
    has_documents = division.training_documents > 1 or (fixed.get("tokenizer.allow_special") and end in beginning)
    line_start = "\n" if counts.training_newline else counts.beginning[0][0]
    values["sample.prompt"] = "" if has_documents else line_start
    validation_tokens = tokens * division.validation
    if data.val_source is not None:
        validation_tokens = counts.validation_characters * tokens / max(1, characters)
        which = "the same" if data.val_source == data.source else "another"
        split_reason = f"{counts.validation_characters:,} characters of {which} text are its validation."
    elif split == "characters":
        split_reason = f"{_explain_cut(val_fraction, test_fraction)} {_propose_lines(data, counts)}".strip()
    else:
        split_reason = _explain_division(division, val_fraction, test_fraction, split)
    return TextStatistics(
        tokens=tokens,
        training_tokens=tokens * division.training,
        validation_tokens=validation_tokens,
        values=values,
        tokenizer_reason=tokenizer_reason,
        split_reason=split_reason,
        has_carriage_returns="\r" in alphabet,
        is_exact=kind not in SUBWORD_KINDS,
    )


def _count(text: CorpusText, split: SplitBy, progress: StageProgress | None) -> _TextCounts:
    counts = _TextCounts()
    bytes_read = 0
    needs_separator = False  # the document before ended without a newline
    fingerprint = Fingerprint()
    counts.is_plain = all(member.file.records is None for member in text.files)
    for number, member in enumerate(text.files):
        file_hash, file_start = hashlib.sha256(), counts.position
        document_start = file_start
        needs_separator = needs_separator and not text.begins_validation(number)
        for block in text.blocks(number):
            characters = block.text
            bytes_read += len(block.data)
            if progress is not None:
                progress("reading", bytes_read, text.size)
            counts.alphabet.update(characters)
            is_separated, needs_separator = needs_separator, block.ends and not characters.endswith("\n")
            if member.validates:
                counts.validation_characters += len(characters)
                counts.validation_separators += is_separated
                continue
            counts.separators += is_separated
            counts.training_newline = counts.training_newline or "\n" in characters
            if counts.characters < _BEGINNING_CHARACTERS:
                counts.beginning.append(characters)
            counts.characters += len(characters)
            counts.size += len(block.data)
            counts.documents += block.ends
            if split == "characters":
                continue
            if (digest := fingerprint.add(block.data, block.ends)) is not None:
                file_hash.update(digest)
                if split == "documents":
                    counts.add_unit(digest, document_start, member.weight)
                document_start = counts.position
        if split != "documents" and not member.validates:
            counts.add_unit(file_hash.digest(), file_start, member.weight)
    return counts


def _propose_lines(data: DataConfig, counts: _TextCounts) -> str:
    """A sentence that proposes to read lines as documents, for plain text of which nothing is asked."""
    is_asked = data.documents is not None or not counts.is_plain or counts.documents > 1
    return "" if is_asked else propose_lines(counts.beginning[0])


def _explain_division(division: _Division, val_fraction: float, test_fraction: float, units: str) -> str:
    tests = f", {_percent(division.test)} for the test" if test_fraction else ""
    asked = ((division.validation, val_fraction), (division.test, test_fraction))
    if any(abs(actual - share) > share / 2 for actual, share in asked):  # few, or of very different lengths
        held_out = f"{division.validation_units:,} of its {division.units:,} {units}, {_percent(division.validation)}"
        verb = "is" if division.validation_units == 1 else "are"
        return f"{held_out} of it, {verb} held out for validation{tests}."
    tests = f", {_percent(test_fraction)} for the test" if test_fraction else ""
    return f"About {_percent(val_fraction)} of its {units} are held out for validation{tests}."


def _explain_cut(val_fraction: float, test_fraction: float) -> str:
    if test_fraction:
        test, val = _percent(test_fraction), _percent(val_fraction)
        return f"The last {test} of it is held out for the test, the {val} before it for validation."
    return f"The last {_percent(val_fraction)} of it is held out for validation."


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.3g}%"
