"""From a config's `data` and `tokenizer` to tokens, which are cached."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus.blocks import CorpusText, Split
from gpt_cli.corpus.divide import Prepared
from gpt_cli.corpus.examples import Examples, divide_examples, learn_from_examples, prepare_examples
from gpt_cli.corpus.labelled import (
    LabelledTexts,
    divide_labelled,
    learn_from_labelled,
    prepare_labelled,
)
from gpt_cli.corpus.readers import ReaderOptions
from gpt_cli.corpus.scan import StageProgress
from gpt_cli.corpus.sources import find_files
from gpt_cli.corpus.stamps import Stamps
from gpt_cli.corpus.store import FORMAT, SplitSpec, SplitStats, TokenStore, find_store, is_store, new_store
from gpt_cli.corpus.tokenize_pipeline import Tokenized, TokenizePipeline
from gpt_cli.corpus.tokens import MappedTokens, Tokens
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.files import DamagedError, ExistsError, cache_dir
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.tokenizer.loader import check_tokenizer, load_configured

MAPPED_FROM = 1 << 27  # ids; a split from this size on is memory-mapped: it would take 256 MiB or more


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as tokens, in its splits."""

    tokenizer: Tokenizer
    train: Tokens | MappedTokens
    """(n,) ids; memory-mapped for a long text."""
    val: Tokens | MappedTokens
    """(n,) ids."""
    stats: dict[Split, SplitStats]
    """Statistics of each split there is."""
    fingerprint: str
    """sha256 (hex) of the text."""
    source: str | list[str]
    """`data.source` as it was given."""
    test: Tokens | MappedTokens | None = None
    """(n,) ids; None unless `with_test`: only a final evaluation uses them."""
    examples: dict[Split, Examples] = field(default_factory=dict)
    """The examples of each split, for pairs and chats; else empty."""
    labelled: dict[Split, LabelledTexts] = field(default_factory=dict)
    """The labelled texts of each split; else empty."""


_Load = Callable[[TokenStore], Corpus]


def prepare_corpus(
    data: DataConfig,
    tokenizer: TokenizerConfig,
    *,
    cache: bool = True,
    verify: bool = True,
    note: Notify,
    progress: StageProgress | None = None,
    with_test: bool = False,
) -> Corpus:
    """Read, split and tokenize a text, or open a token store.

    The tokens are cached; the key is a digest of the text, the tokenizer and the split. What was cached of files that
    have not changed since is found without reading them. With `cache=False` an entry is used but none is written.
    `verify` False: ids that are stored are mapped into memory unread, for whoever looks at a few of them. `note` is
    called with notices for the user. `with_test`: load the test split, too.

    Raises as reading and `train_tokenizer` do, RequestError for a token store that does not match the config or a test
    split that is not there, and UserError for a text too small to split.
    """
    load = partial(_corpus_of_store, data=data, with_test=with_test, verify=verify)
    if data.format == "text" and (path := find_store(data.source)) is not None:
        return load(_open_matching_store(path, data, tokenizer))
    _refuse_store_of_examples(data)
    if with_test and not data.test_fraction:
        raise RequestError("the run holds out no test split: its data.test_fraction is 0")
    if data.format == "text":
        return _prepare_text(data, tokenizer, load, cache=cache, note=note, progress=progress, with_test=with_test)
    made: Prepared[Any]
    members: dict[str, Any]
    if data.format == "labelled":
        made = prepare_labelled(data, tokenizer, note)
        members = {"labelled": made.splits}
    else:
        made = prepare_examples(data, tokenizer, note)
        members = {"examples": made.splits}
    tokens = {split: encoded.tokens for split, encoded in made.splits.items()}
    return _corpus_in_memory(made, tokens, data, with_test, **members)


def _prepare_text(
    data: DataConfig,
    tokenizer: TokenizerConfig,
    load: _Load,
    *,
    cache: bool,
    note: Notify,
    progress: StageProgress | None,
    with_test: bool,
) -> Corpus:
    text = CorpusText.find(data, note)
    digest = None if tokenizer.file is None else load_configured(tokenizer).digest
    files = [member.file.path for member in text.files]
    remembered = Stamps([FORMAT, data.model_dump(), tokenizer.model_dump(), digest], files)
    known, damaged = remembered.recall(), None
    if known is not None and is_store(_entry(known["key"])):
        if (corpus := _open_cached(known["key"], load, note)) is not None:
            for line in known["notes"]:
                note(line)
            return corpus
        damaged = known["key"]
    pipeline = TokenizePipeline.scan(data, tokenizer, note, progress, text=text)
    key = pipeline.cache_key
    corpus = None if key == damaged else _open_cached(key, load, note)
    if corpus is None:
        corpus = _tokenize(pipeline, _entry(key), load, cache=cache, with_test=with_test)
    if cache:
        remembered.remember({"key": key, "notes": text.notes})
    return corpus


def _entry(key: str) -> Path:
    return cache_dir() / "stores" / key


def _open_cached(key: str, load: _Load, note: Notify) -> Corpus | None:
    """Load what is cached under `key`; None if there is nothing, or something damaged, which `note` reports."""
    if not is_store(_entry(key)):
        return None
    try:
        return load(TokenStore.open(_entry(key)))
    except DamagedError as error:
        note(f"{error.message}; the text is tokenized again")
        return None


def _tokenize(pipeline: TokenizePipeline, entry: Path, load: _Load, *, cache: bool, with_test: bool) -> Corpus:
    """Tokenize a text, a long one into the cache, and a short one in memory."""
    tokenizer, data = pipeline.train_tokenizer(), pipeline.data
    if cache and not pipeline.text.is_in_memory:
        # ExistsError: another process was faster, with the same result.
        with suppress(ExistsError), new_store(entry, tokenizer, replace=is_store(entry)) as writer:
            pipeline.encode_to_store(writer)
        return load(TokenStore.open(entry))
    tokens, tokenized = pipeline.encode_to_memory(tokenizer)
    if cache:
        try:
            with suppress(ExistsError), new_store(entry, tokenizer, replace=is_store(entry)) as writer:
                for split, ids in tokens.items():
                    writer.append(split, ids)
                writer.finish(tokenized.stats, fingerprint=tokenized.fingerprint, division=SplitSpec.of(data))
        except UserError as error:
            pipeline.note(f"the tokens are not cached: {error.message} (GPT_CACHE names another folder)")
    return _corpus_in_memory(tokenized, tokens, data, with_test)


def check_paths(sources: str | list[str]) -> None:
    """Raise as reading does for a path that is not there; nothing is read."""
    for source in [sources] if isinstance(sources, str) else sources:
        is_name = source.startswith(("builtin:", "corpus:", "hf:"))
        is_path = source.isprintable() and source not in ("", "-") and not is_name
        if is_path and find_store(source) is None:
            find_files(source, ReaderOptions(), lambda _: None)


def tokenize_corpus(
    path: Path,
    data: DataConfig,
    tokenizer: TokenizerConfig,
    *,
    replace: bool = False,
    note: Notify,
    progress: StageProgress | None = None,
    processes: int | None = None,
    by_text: bool = False,
) -> Tokenized:
    """Tokenize a text of any length into the token store `path`, atomically and in constant memory.

    `by_text`: a BPE without `tokenizer.pattern` is learned with the one that suits the text, not gpt2, and has fewer
    ids than are asked for where the text supports no more.
    Raises as `prepare_corpus` and `new_store` do.
    """
    pipeline = TokenizePipeline.scan(data, tokenizer, note, progress, processes)
    if by_text:
        pipeline = pipeline.adapted()
    trained = pipeline.train_tokenizer()
    with new_store(path, trained, replace=replace) as writer:
        return pipeline.encode_to_store(writer)


def learn_tokenizer(
    data: DataConfig,
    tokenizer: TokenizerConfig,
    *,
    note: Notify,
    progress: StageProgress | None = None,
    by_text: bool = False,
) -> Tokenizer:
    """The tokenizer of `prepare_corpus`, or that of `tokenize_corpus` if `by_text`. Raises as they do."""
    if data.format == "labelled":
        return learn_from_labelled(divide_labelled(data, note)[0], tokenizer, note)
    if data.format != "text":
        return learn_from_examples(divide_examples(data, note)[0], data, tokenizer, note)
    if (path := find_store(data.source)) is not None:
        return _open_matching_store(path, data, tokenizer).tokenizer
    pipeline = TokenizePipeline.scan(data, tokenizer, note, progress)
    return (pipeline.adapted() if by_text else pipeline).train_tokenizer()


def _open_matching_store(path: Path, data: DataConfig, config: TokenizerConfig) -> TokenStore:
    """The store at `path`. Raises RequestError if it does not match the config."""
    store = TokenStore.open(path)
    spec = SplitSpec.of(data)
    if data.val_source is not None or data.weights is not None:
        key = "data.weights" if data.val_source is None else "data.val_source"
        raise RequestError(f"{key} is for texts: {path} is a token store, which was divided when it was made")
    asked = config.model_copy(update={"unknown": "error"})  # of which older versions asked no store
    check_tokenizer(store.tokenizer, asked, str(path))
    for name in ("val_fraction", "test_fraction", "split"):
        if (actual := getattr(store.division, name)) != getattr(spec, name):
            raise RequestError(
                f"the token store {path} has data.{name} {actual}, the config asks for {getattr(spec, name)}",
                kind="set",
                keys=[f"data.{name}"],
                choices=[str(actual)],
            )
    return store


def _refuse_store_of_examples(data: DataConfig) -> None:
    """Raise RequestError if a source of pairs, chats or labelled texts is a token store."""
    if data.format == "text":
        return
    for source in data.sources:
        if (path := find_store(source)) is not None:
            raise RequestError(
                f"data.format {data.format} reads examples from files: {path} is a token store, which keeps one text",
            )


def _corpus_in_memory(
    made: Tokenized | Prepared[Any], tokens: Mapping[Split, Tokens], data: DataConfig, with_test: bool, **members: Any
) -> Corpus:
    """`made` with its `tokens`; `members` are its examples or its labelled texts."""
    test = tokens["test"] if with_test else None
    return Corpus(
        made.tokenizer, tokens["train"], tokens["val"], made.stats, made.fingerprint, data.source, test, **members
    )


def _corpus_of_store(store: TokenStore, data: DataConfig, with_test: bool, verify: bool) -> Corpus:
    def load(split: Split) -> Tokens | MappedTokens:
        stats = store.stats.get(split)
        if verify and (stats is None or stats.tokens < MAPPED_FROM):
            return store.tokens(split)
        return store.mapped(split, verify=verify)

    test = load("test") if with_test else None
    return Corpus(store.tokenizer, load("train"), load("val"), store.stats, store.fingerprint, data.source, test)
