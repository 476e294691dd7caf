"""Open the token store that a config names or the cache holds, and refuse one that does not match the config."""

from collections.abc import Sequence
from pathlib import Path

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus.sources import find_path
from gpt_cli.corpus.store import SplitSpec, TokenStore, is_store
from gpt_cli.errors import RequestError
from gpt_cli.tokenizer.loader import check_tokenizer


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
    check_tokenizer(store.tokenizer, config, str(path))
    for name in ("val_fraction", "test_fraction", "split"):
        if (actual := getattr(store.division, name)) != getattr(spec, name):
            raise RequestError(
                f"the token store {path} has data.{name} {actual}, the config asks for {getattr(spec, name)}",
                kind="set",
                keys=[f"data.{name}"],
                choices=[str(actual)],
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
            )
