"""`gpt data peek`: the contexts that a model sees, and the targets it learns to say."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpt_cli.cli.output import note, print_json
from gpt_cli.errors import RequestError

if TYPE_CHECKING:
    from gpt_cli.corpus.store import Tokens
    from gpt_cli.tokenizer import Tokenizer


def peek(
    source: Annotated[
        str, typer.Argument(metavar="STORE|CORPUS", help="What `gpt tokenize` made, or a text.", show_default=False)
    ],
    at: Annotated[
        int | None, typer.Option(metavar="N", help="Start at this token. [default: where training starts]", min=0)
    ] = None,
    context: Annotated[int, typer.Option(metavar="K", help="Tokens that the model sees at once.", min=1)] = 8,
    split: Annotated[Literal["train", "val"], typer.Option(help="Which part of the text.")] = "train",
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="How a text becomes tokens. [default: one per character]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Show what the model is asked: after this context, which token comes next?

    One window of K tokens asks K questions at once. Without --at it is the first window that training takes, with
    the default seed and K as model.context_length.

    Example: gpt data peek book.txt --at 0
    """
    from gpt_cli.config import Config
    from gpt_cli.corpus.peek import cut_window, first_start
    from gpt_cli.report.window import render_window, window_json

    used, tokens = _read(source, tokenizer, split)
    seed, first = Config().seed, ""
    if at is None:
        at = 0
        if split == "train":
            at = first_start(len(tokens), context, seed)
            first = f", the first that training with seed {seed} takes"
    window = cut_window(tokens, at, context)
    if json:
        print_json({"source": source, "split": split, "tokens": len(tokens), **window_json(window, used)})
    else:
        where = f"tokens {at:,} to {at + context:,} of {len(tokens):,} in the {split} split{first}"
        print(render_window(window, used, where))


def _read(source: str, tokenizer: Path | None, split: Literal["train", "val"]) -> "tuple[Tokenizer, Tokens]":
    """The tokenizer and the (n,) ids of a split of a store, or of a text."""
    from gpt_cli.config import DataConfig, TokenizerConfig
    from gpt_cli.corpus.build import prepare_corpus
    from gpt_cli.corpus.sources import find_path
    from gpt_cli.corpus.store import TokenStore, is_store
    from gpt_cli.tokenizer import load_tokenizer

    if not source:
        raise RequestError("the CORPUS is empty text, which names nothing")
    if is_store(path := find_path(source)):
        if tokenizer is not None:
            raise RequestError(f"{source} is a token store, which has a tokenizer of its own", hint="no --tokenizer")
        store = TokenStore.open(path)
        return store.tokenizer, store.tokens(split)
    config = TokenizerConfig(kind="char")
    if tokenizer is not None:
        if not tokenizer.exists():
            raise RequestError(f"{tokenizer} does not exist")
        kind = load_tokenizer(tokenizer).kind
        config = TokenizerConfig.model_validate({"kind": kind, "file": str(tokenizer)})
    corpus = prepare_corpus(DataConfig(source=source), config, cache=False, note=note)
    return corpus.tokenizer, corpus.train if split == "train" else corpus.val
