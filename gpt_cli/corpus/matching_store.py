"""Open the token store that a config names or the cache holds, and refuse one that does not match the config."""

from collections.abc import Sequence
from pathlib import Path

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus.sources import find_path
from gpt_cli.corpus.store import SplitSpec, TokenStore, is_store
from gpt_cli.errors import RequestError
from gpt_cli.tokenizer import BPETokenizer, train_tokenizer


def find_store(source: str | Sequence[str] | None) -> Path | None:
    """The token store that a data.source names; None for texts: standard input is one, whatever is called `-`."""
    if not isinstance(source, str) or source == "-":
        return None
    path = find_path(source)
    return path if is_store(path) else None


def open_matching_store(path: Path, data: DataConfig, config: TokenizerConfig) -> TokenStore:
    """The store at `path`. Raises RequestError if it does not match the config."""
    store = TokenStore.open(path)
    spec = SplitSpec.of(data)
    if data.val_source is not None or data.weights is not None:
        key = "data.weights" if data.val_source is None else "data.val_source"
        raise RequestError(f"{key} is for texts: {path} is a token store, which was divided when it was made")
    actual: dict[str, object] = {"tokenizer.kind": store.tokenizer.kind}
    requested: dict[str, object] = {"tokenizer.kind": config.kind}
    for key in ("val_fraction", "test_fraction", "split"):
        actual[f"data.{key}"] = getattr(store.division, key)
        requested[f"data.{key}"] = getattr(spec, key)
    if store.tokenizer.kind == "bpe" and config.vocab_size is not None:
        actual["tokenizer.vocab_size"] = store.tokenizer.vocab_size
        requested["tokenizer.vocab_size"] = config.vocab_size
    if isinstance(store.tokenizer, BPETokenizer) and config.pattern is not None:
        actual["tokenizer.pattern"] = store.tokenizer.vocabulary.pattern
        requested["tokenizer.pattern"] = config.pattern
    pretrained = None if config.file is None else train_tokenizer((), config)
    if pretrained is not None and pretrained.digest != store.tokenizer.digest:
        raise RequestError(f"the token store {path} was made with another tokenizer than {config.file}")
    if different := [key for key, value in actual.items() if requested[key] != value]:
        key = different[0]
        changes = [f"{key}={actual[key]}" for key in different]
        if store.tokenizer.kind != "bpe" and config.vocab_size is not None:
            changes.append("tokenizer.vocab_size=null")
        raise RequestError(
            f"the token store {path} has {key} {actual[key]}, the config asks for {requested[key]}",
            hint="use it with " + " ".join(changes),
        )
    return store


def refuse_store_of_examples(data: DataConfig) -> None:
    """Raise RequestError if a source of pairs, chats or labelled texts is a token store."""
    if data.format == "text":
        return
    for source in data.sources:
        if (path := find_store(source)) is not None:
            raise RequestError(
                f"data.format {data.format} reads examples from files: {path} is a token store, which keeps one text",
                hint="name the files of the examples as data.source: they are encoded when a run begins",
            )
