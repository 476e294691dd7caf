"""From a config's `data` and `tokenizer` to tokens, which are cached."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
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
from gpt_cli.corpus.matching_store import find_store, open_matching_store, refuse_store_of_examples
from gpt_cli.corpus.readers import ReaderOptions
from gpt_cli.corpus.scan import StageProgress
from gpt_cli.corpus.sources import find_files
from gpt_cli.corpus.stamps import Stamps
from gpt_cli.corpus.store import (
    FORMAT,
    MappedTokens,
    SplitSpec,
    SplitStats,
    Tokens,
    TokenStore,
    is_store,
    new_store,
)
from gpt_cli.corpus.tokenize_pipeline import Tokenized, TokenizePipeline
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.files import DamagedError, ExistsError, cache_dir
from gpt_cli.tokenizer import Tokenizer

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
    is_text = data.format == "text"
    if is_text and (path := find_store(data.source)) is not None:
        return _corpus_of_store(open_matching_store(path, data, tokenizer), data, with_test=with_test, verify=verify)
    refuse_store_of_examples(data)
    if with_test and not data.test_fraction:
        raise RequestError(
            "there is no test split: data.test_fraction is 0",
            hint="data.test_fraction=0.05 holds one out, if it is given when the run is trained",
        )
    if data.format == "labelled":
        texts = prepare_labelled(data, tokenizer, note)
        return _corpus_in_memory(texts, _tokens_of(texts), data, with_test, labelled=texts.splits)
    if not is_text:
        examples = prepare_examples(data, tokenizer, note)
        return _corpus_in_memory(examples, _tokens_of(examples), data, with_test, examples=examples.splits)
    text = CorpusText.find(data, note)
    files = [member.file.path for member in text.files]
    files += [] if tokenizer.file is None else [Path(tokenizer.file)]
    remembered = Stamps([FORMAT, data.model_dump(), tokenizer.model_dump()], files)
    known = remembered.recall() or {"entry": None}
    if known["entry"] is not None:
        corpus = _open_cached(known["entry"], data, with_test=with_test, verify=verify, note=note)
        if corpus is not None:
            for line in known["notes"]:
                note(line)
            return corpus
    pipeline = TokenizePipeline.scan(data, tokenizer, note, progress, text=text)
    corpus, key = None, pipeline.cache_key
    if key != known["entry"]:  # else it is damaged
        corpus = _open_cached(key, data, with_test=with_test, verify=verify, note=note)
    if corpus is None:
        corpus = _tokenize(pipeline, _entry(key), cache=cache, verify=verify, with_test=with_test)
    if cache:
        remembered.remember({"entry": key, "notes": text.notes})
    return corpus


def _entry(key: str) -> Path:
    return cache_dir() / "stores" / key


def _open_cached(key: str, data: DataConfig, *, with_test: bool, verify: bool, note: Notify) -> Corpus | None:
    """Load what is cached under `key`; None if there is nothing, or something damaged, which `note` reports."""
    if not is_store(_entry(key)):
        return None
    try:
        return _corpus_of_store(TokenStore.open(_entry(key)), data, with_test=with_test, verify=verify)
    except DamagedError as error:
        note(f"{error.message}; the text is tokenized again")
        return None


def _tokenize(pipeline: TokenizePipeline, entry: Path, *, cache: bool, verify: bool, with_test: bool) -> Corpus:
    """Tokenize a text, a long one into the cache, and a short one in memory."""
    tokenizer, data = pipeline.train_tokenizer(), pipeline.data
    if cache and not pipeline.text.is_in_memory:
        # ExistsError: another process was faster, with the same result.
        with suppress(ExistsError), new_store(entry, tokenizer, replace=is_store(entry)) as writer:
            pipeline.encode_to_store(writer)
        return _corpus_of_store(TokenStore.open(entry), data, with_test=with_test, verify=verify)
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
        return open_matching_store(path, data, tokenizer).tokenizer
    pipeline = TokenizePipeline.scan(data, tokenizer, note, progress)
    return (pipeline.adapted() if by_text else pipeline).train_tokenizer()


def _corpus_in_memory(
    made: Tokenized | Prepared[Any], tokens: Mapping[Split, Tokens], data: DataConfig, with_test: bool, **members: Any
) -> Corpus:
    """`made` with its `tokens`; `members` are its examples or its labelled texts."""
    test = tokens["test"] if with_test else None
    return Corpus(
        made.tokenizer, tokens["train"], tokens["val"], made.stats, made.fingerprint, data.source, test, **members
    )


def _tokens_of(prepared: Prepared[Any]) -> dict[Split, Tokens]:
    return {split: encoded.tokens for split, encoded in prepared.splits.items()}


def _corpus_of_store(store: TokenStore, data: DataConfig, *, with_test: bool, verify: bool) -> Corpus:
    def load(split: Split) -> Tokens | MappedTokens:
        stats = store.stats.get(split)
        if verify and (stats is None or stats.tokens < MAPPED_FROM):
            return store.tokens(split)
        return store.mapped(split, verify=verify)

    test = load("test") if with_test else None
    return Corpus(store.tokenizer, load("train"), load("val"), store.stats, store.fingerprint, data.source, test)
