"""From a config's `data` and `tokenizer` to tokens, cached: the user prepares nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus.examples.prepare_examples import divide_examples, learn_from_examples, prepare_examples
from gpt_cli.corpus.examples.tokens import Examples
from gpt_cli.corpus.labelled.prepare_labelled import (
    LabelledTexts,
    divide_labelled,
    learn_from_labelled,
    prepare_labelled,
)
from gpt_cli.corpus.mapped import MappedTokens
from gpt_cli.corpus.scan import StageProgress
from gpt_cli.corpus.sources import find_path
from gpt_cli.corpus.split import Split
from gpt_cli.corpus.store import SplitSpec, SplitStats, Tokens, TokenStore, is_store, new_store, write_store
from gpt_cli.corpus.tokenize_pipeline import Tokenized, TokenizePipeline
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.files import DamagedError, ExistsError, cache_dir
from gpt_cli.tokenizer import Tokenizer, train_tokenizer

MAPPED_FROM = 1 << 27  # ids of a split that stay on the disk, in place of a quarter of a gigabyte of memory
_HEAD = 1 << 22  # ids of each split that an outline holds: a short text is encoded once


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as tokens, in its splits."""

    tokenizer: Tokenizer
    train: Tokens | MappedTokens
    """(n,) ids, in memory or, of a long text, on the disk."""
    val: Tokens | MappedTokens
    """(n,) ids."""
    facts: dict[Split, SplitStats]
    """Statistics of each split there is."""
    fingerprint: str
    """sha256 (hex) of the text."""
    source: str | list[str]
    """`data.source` as it was given."""
    test: Tokens | MappedTokens | None = None
    """(n,) ids; None unless asked for: nothing but a final evaluation looks at them."""
    examples: dict[Split, Examples] = field(default_factory=dict)
    """Of pairs and chats, what stands where in the tokens of each split; empty for text."""
    labelled: dict[Split, LabelledTexts] = field(default_factory=dict)
    """Of labelled texts, each with its label; else empty."""


def prepare_corpus(
    data: DataConfig,
    tokenizer: TokenizerConfig,
    *,
    cache: bool = True,
    note: Notify,
    progress: StageProgress | None = None,
    processes: int | None = None,
    with_test: bool = False,
) -> Corpus:
    """Read, split and tokenize a text, or take a token store as it is.

    The tokens are kept in the cache under what decides them: the text, the tokenizer and the split; with
    `cache=False` an entry is used but none is written. `note` is told what is worth knowing. `processes`: how many
    encode a long text side by side; None: one a core. `with_test`: whether the test split is wanted.

    Raises what reading and `train_tokenizer` raise, RequestError for a token store that is not what the config asks
    for or a test split that is not there, and UserError for a text too small to split.
    """
    is_text = data.format == "text"
    if is_text and isinstance(data.source, str) and is_store(path := find_path(data.source)):
        return _from_store(_open_matching_store(path, data, tokenizer), data, with_test)
    _refuse_store_of_examples(data)
    if with_test and not data.test_fraction:
        raise RequestError(
            "there is no test split: data.test_fraction is 0",
            hint="data.test_fraction=0.05 holds one out, if it is given when the run is trained",
        )
    if data.format == "labelled":
        return _of_labelled(data, tokenizer, note, with_test)
    if not is_text:
        return _of_examples(data, tokenizer, note, with_test)
    work = TokenizePipeline.scan(data, tokenizer, note, progress, processes)
    entry = cache_dir() / "stores" / work.cache_key
    if (cached := _cached(entry, note)) is not None:
        return _from_store(cached, data, with_test)
    if cache and not work.text.is_cached:
        try:
            with new_store(entry, work.train_tokenizer(), replace=is_store(entry)) as writer:
                work.encode_to_store(writer)
        except ExistsError:  # another process was faster, with the same result
            pass
        return _from_store(TokenStore.open(entry), data, with_test)
    tokens, made = work.encode_to_memory(work.train_tokenizer())
    if cache:
        try:
            write_store(
                entry,
                made.tokenizer,
                tokens,
                made.facts,
                fingerprint=made.fingerprint,
                division=SplitSpec.of(data),
                replace=is_store(entry),
            )
        except ExistsError:
            pass
        except UserError as error:
            note(f"the tokens are not cached: {error.message} (GPT_CACHE names another folder)")
    test = tokens["test"] if with_test else None
    return Corpus(made.tokenizer, tokens["train"], tokens["val"], made.facts, made.fingerprint, data.source, test)


@dataclass(frozen=True, eq=False)
class LazyCorpus:
    """A text as tokens of which only a part is in memory: how many there are, and any stretch of them."""

    tokenizer: Tokenizer
    facts: dict[Split, SplitStats]
    """Statistics of each split there is."""
    read: Callable[[Split, int, int], Tokens]
    """(stop - start,) ids of a split, fewer where it ends."""
    examples: dict[Split, Examples] = field(default_factory=dict)
    """As in `Corpus`."""
    labelled: dict[Split, LabelledTexts] = field(default_factory=dict)
    """As in `Corpus`."""


def open_lazy(
    data: DataConfig, tokenizer: TokenizerConfig, *, note: Notify, progress: StageProgress | None = None
) -> LazyCorpus:
    """The corpus that `prepare_corpus` would make, without holding or writing it. Raises as it does."""
    _refuse_store_of_examples(data)
    if data.format == "labelled":
        some = prepare_labelled(data, tokenizer, note)
        read_tokens = lambda split, i, j: some.splits[split].tokens[i:j]  # noqa: E731
        return LazyCorpus(some.tokenizer, some.facts, read_tokens, labelled=some.splits)
    if data.format != "text":
        of = prepare_examples(data, tokenizer, note)
        return LazyCorpus(of.tokenizer, of.facts, lambda split, i, j: of.splits[split].tokens[i:j], of.splits)
    if isinstance(data.source, str) and is_store(path := find_path(data.source)):
        store = _open_matching_store(path, data, tokenizer)
        return LazyCorpus(store.tokenizer, store.facts, store.read)
    work = TokenizePipeline.scan(data, tokenizer, note, progress, None)
    if (cached := _cached(cache_dir() / "stores" / work.cache_key, note)) is not None:
        return LazyCorpus(cached.tokenizer, cached.facts, cached.read)
    learned = work.train_tokenizer()
    head, made = work.encode_to_memory(learned, stop=_HEAD)

    def read(split: Split, start: int, stop: int) -> Tokens:
        in_memory = min(stop, made.facts[split].tokens) <= len(head[split])
        return head[split][start:stop] if in_memory else work.encode_to_memory(learned, start, stop)[0][split]

    return LazyCorpus(made.tokenizer, made.facts, read)


def tokenize_corpus(
    path: Path,
    data: DataConfig,
    tokenizer: TokenizerConfig,
    *,
    replace: bool = False,
    note: Notify,
    progress: StageProgress | None = None,
    processes: int | None = None,
) -> Tokenized:
    """Tokenize a text of any length into the token store `path`, which appears whole or not at all.

    Memory does not grow with the text. Raises as `prepare_corpus` and `new_store` do.
    """
    work = TokenizePipeline.scan(data, tokenizer, note, progress, processes)
    learned = work.train_tokenizer()
    with new_store(path, learned, replace=replace) as writer:
        return work.encode_to_store(writer)


def learn_tokenizer(
    data: DataConfig, tokenizer: TokenizerConfig, *, note: Notify, progress: StageProgress | None = None
) -> Tokenizer:
    """The tokenizer that `prepare_corpus` would learn or take. Raises as it does."""
    if data.format == "labelled":
        return learn_from_labelled(divide_labelled(data, note)[0], tokenizer, note)
    if data.format != "text":
        return learn_from_examples(divide_examples(data, note)[0], data, tokenizer, note)
    if isinstance(data.source, str) and is_store(path := find_path(data.source)):
        return _open_matching_store(path, data, tokenizer).tokenizer
    return TokenizePipeline.scan(data, tokenizer, note, progress, None).train_tokenizer()


def _of_examples(data: DataConfig, config: TokenizerConfig, note: Notify, with_test: bool) -> Corpus:
    made = prepare_examples(data, config, note)
    train, val = made.splits["train"].tokens, made.splits["val"].tokens
    test = made.splits["test"].tokens if with_test else None
    return Corpus(made.tokenizer, train, val, made.facts, made.fingerprint, data.source, test, made.splits)


def _of_labelled(data: DataConfig, config: TokenizerConfig, note: Notify, with_test: bool) -> Corpus:
    made = prepare_labelled(data, config, note)
    tokens = {split: found.tokens for split, found in made.splits.items()}
    test = tokens["test"] if with_test else None
    labelled = made.splits
    return Corpus(
        made.tokenizer,
        tokens["train"],
        tokens["val"],
        made.facts,
        made.fingerprint,
        data.source,
        test,
        labelled=labelled,
    )


def _cached(entry: Path, note: Notify) -> TokenStore | None:
    if not is_store(entry):
        return None
    try:
        return TokenStore.open(entry)
    except DamagedError as error:
        note(f"{error.message}; the text is tokenized again")
        return None


def _from_store(store: TokenStore, data: DataConfig, with_test: bool) -> Corpus:
    return Corpus(
        store.tokenizer,
        _ids(store, "train"),
        _ids(store, "val"),
        store.facts,
        store.fingerprint,
        data.source,
        _ids(store, "test") if with_test else None,
    )


def _ids(store: TokenStore, split: Split) -> Tokens | MappedTokens:
    part = store.facts.get(split)
    ids = store.mapped if part is not None and part.tokens >= MAPPED_FROM else store.tokens
    return ids(split)


def _refuse_store_of_examples(data: DataConfig) -> None:
    """Raise RequestError where a token store, which keeps one text, is to be read as pairs, chats or labelled texts."""
    if data.format == "text":
        return
    for source in [data.source] if isinstance(data.source, str) else data.source or []:
        if is_store(path := find_path(source)):
            raise RequestError(
                f"data.format {data.format} reads examples from files: {path} is a token store, which keeps one text",
                hint="name the files of the examples as data.source: they are encoded when a run begins",
            )


def _open_matching_store(path: Path, data: DataConfig, config: TokenizerConfig) -> TokenStore:
    """The store at `path`. Raises RequestError where it is not what the config describes."""
    store = TokenStore.open(path)
    asked_division = SplitSpec.of(data)
    if data.val_source is not None or data.weights is not None:
        key = "data.weights" if data.val_source is None else "data.val_source"
        raise RequestError(f"{key} is for texts: {path} is a token store, which was divided when it was made")
    has: dict[str, object] = {"tokenizer.kind": store.tokenizer.kind}
    asked: dict[str, object] = {"tokenizer.kind": config.kind}
    for key in ("val_fraction", "test_fraction", "split"):
        has[f"data.{key}"] = getattr(store.division, key)
        asked[f"data.{key}"] = getattr(asked_division, key)
    if store.tokenizer.kind == "bpe" and config.vocab_size is not None:
        has["tokenizer.vocab_size"] = store.tokenizer.vocab_size
        asked["tokenizer.vocab_size"] = config.vocab_size
    ready = None if config.file is None else train_tokenizer((), config)
    if ready is not None and ready.digest != store.tokenizer.digest:
        raise RequestError(f"the token store {path} was made with another tokenizer than {config.file}")
    if differing := [key for key, value in has.items() if asked[key] != value]:
        key = differing[0]
        raise RequestError(
            f"the token store {path} has {key} {has[key]}, the config asks for {asked[key]}",
            hint="use it with " + " ".join(f"{key}={has[key]}" for key in differing),
        )
    return store
