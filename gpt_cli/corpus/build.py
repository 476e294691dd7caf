"""From a config's `data` and `tokenizer` to arrays of tokens: nothing to prepare, nothing done twice."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus.sources import Note, find_path, read_documents
from gpt_cli.corpus.split import Piece, Split, end_lines, fingerprint, split_documents
from gpt_cli.corpus.store import FORMAT, SplitFacts, Tokens, TokenStore, is_store, narrow, write_store
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import DamagedError, ExistsError, cache_dir
from gpt_cli.tokenizer import Tokenizer, UnknownCharacters, train_tokenizer

Progress = Callable[[int, int], None]
"""Called with the characters tokenized so far and their total."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as tokens, in two splits."""

    tokenizer: Tokenizer
    train: Tokens
    """(n,) ids."""
    val: Tokens
    """(n,) ids."""
    facts: dict[Split, SplitFacts]
    fingerprint: str
    """sha256 (hex) of the text."""
    source: str | list[str]
    """`data.source` as it was given."""


def prepare_corpus(
    data: DataConfig,
    tokenizer: TokenizerConfig,
    *,
    cache: bool = True,
    note: Note,
    progress: Progress | None = None,
) -> Corpus:
    """Read, split and tokenize a text, or take a token store as it is.

    The tokens are kept in the cache under what decides them: the text, the tokenizer and the split; with
    `cache=False` an entry is used but none is written. `note` is told what is worth knowing.

    Raises what `read_documents` and `train_tokenizer` raise, RequestError for a token store that is not what
    the config asks for, and UserError for a text too small to split.
    """
    if isinstance(data.source, str) and is_store(path := find_path(data.source)):
        return _from_store(_open_as_asked(path, data, tokenizer), data)
    ready = _ready_tokenizer(tokenizer)
    documents = list(read_documents(data.source, note=note))
    if not (tokenizer.kind == "bpe" if ready is None else ready.end_of_text is not None):
        documents = end_lines(documents)
    text = fingerprint(documents)
    entry = cache_dir() / "stores" / _key(text, data.val_fraction, tokenizer, ready)
    if (cached := _cached(entry, note)) is not None:
        return _from_store(cached, data)
    corpus = _tokenize(split_documents(documents, data.val_fraction), data, tokenizer, ready, text, progress)
    if cache:
        try:
            write_corpus(entry, corpus, data.val_fraction, replace=is_store(entry))
        except ExistsError:  # another process was faster, with the same result
            pass
        except UserError as error:
            note(f"the tokens are not cached: {error.message}")
    return corpus


def write_corpus(path: Path, corpus: Corpus, val_fraction: float, *, replace: bool = False) -> None:
    """Keep `corpus` as the token store `path`. Raises as `write_store` does."""
    write_store(
        path,
        corpus.tokenizer,
        {"train": corpus.train, "val": corpus.val},
        corpus.facts,
        fingerprint=corpus.fingerprint,
        val_fraction=val_fraction,
        replace=replace,
    )


def _tokenize(
    pieces: dict[Split, list[Piece]],
    data: DataConfig,
    config: TokenizerConfig,
    ready: Tokenizer | None,
    text: str,
    progress: Progress | None,
) -> Corpus:
    """Learn the tokenizer, unless one is ready, and encode both splits. BPE learns from the training text alone."""
    every = [*pieces["train"], *pieces["val"]]
    total = sum(len(piece.text) for piece in every)
    if any(sum(len(piece.text) for piece in part) < 2 for part in pieces.values()):
        raise UserError(
            f"the text is too small to split: {total:,} characters, of which data.val_fraction"
            f" {data.val_fraction} validates",
            hint="each part needs at least 2 characters",
        )
    lesson = pieces["train"] if config.kind == "bpe" else every
    tokenizer = ready or train_tokenizer((piece.text for piece in lesson), config)
    special = config.allow_special
    train, train_facts = _encode(pieces["train"], tokenizer, special, progress, 0, total)
    val, val_facts = _encode(pieces["val"], tokenizer, special, progress, train_facts.characters, total)
    return Corpus(tokenizer, train, val, {"train": train_facts, "val": val_facts}, text, data.source)


def _encode(
    pieces: Sequence[Piece],
    tokenizer: Tokenizer,
    allow_special: bool,
    progress: Progress | None,
    done: int,
    total: int,
) -> tuple[Tokens, SplitFacts]:
    end = tokenizer.end_of_text
    separator = np.array([] if end is None else [end], dtype=np.uint32)
    arrays: list[Tokens] = [narrow(separator[:0], tokenizer.vocab_size)]
    starts: list[int] = []
    tokens = characters = size = 0
    for piece in pieces:
        try:
            ids = tokenizer.encode(piece.text, allow_special=allow_special)
        except UnknownCharacters as error:
            raise RequestError(
                error.message, hint="a tokenizer learned from this very text, or one of bytes or bpe, knows them"
            ) from error
        if piece.followed:
            ids = np.concatenate([ids, separator])
        arrays.append(narrow(ids, tokenizer.vocab_size))
        starts.append(tokens)
        tokens += len(ids)
        characters += len(piece.text)
        size += len(piece.text.encode())
        if progress is not None:
            progress(done + characters, total)
    return np.concatenate(arrays), SplitFacts(characters, size, tokens, len(pieces), tuple(starts))


def _ready_tokenizer(config: TokenizerConfig) -> Tokenizer | None:
    return None if config.file is None else train_tokenizer((), config)


def _key(text: str, val_fraction: float, config: TokenizerConfig, ready: Tokenizer | None) -> str:
    how = config.model_dump() if ready is None else [ready.digest, config.allow_special]
    parts = [FORMAT, text, val_fraction, how]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _cached(entry: Path, note: Note) -> TokenStore | None:
    if not is_store(entry):
        return None
    try:
        return TokenStore.open(entry)
    except DamagedError as error:
        note(f"{error.message}; the text is tokenized again")
        return None


def _from_store(store: TokenStore, data: DataConfig) -> Corpus:
    return Corpus(
        store.tokenizer,
        store.tokens("train"),
        store.tokens("val"),
        store.facts,
        store.fingerprint,
        data.source,
    )


def _open_as_asked(path: Path, data: DataConfig, config: TokenizerConfig) -> TokenStore:
    """The store at `path`, if it is what the config describes: a run's config must not tell another story."""
    store = TokenStore.open(path)
    has = {"tokenizer.kind": store.tokenizer.kind, "data.val_fraction": store.val_fraction}
    asked: dict[str, object] = {"tokenizer.kind": config.kind, "data.val_fraction": data.val_fraction}
    if store.tokenizer.kind == "bpe":
        has["tokenizer.vocab_size"] = store.tokenizer.vocab_size
        asked["tokenizer.vocab_size"] = config.vocab_size
    if (ready := _ready_tokenizer(config)) is not None and ready.digest != store.tokenizer.digest:
        raise RequestError(f"the token store {path} was made with another tokenizer than {config.file}")
    if differing := [key for key, value in has.items() if asked[key] != value]:
        key = differing[0]
        raise RequestError(
            f"the token store {path} has {key} {has[key]}, the config asks for {asked[key]}",
            hint="use it with " + " ".join(f"{key}={value}" for key, value in has.items()),
        )
    return store
