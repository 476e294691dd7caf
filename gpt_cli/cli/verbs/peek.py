"""`gpt data peek`: the contexts that a model sees, and the targets it learns to say."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpt_cli.cli.options.data_options import (
    TEXT_KEY,
    VAL_FRACTION,
    EncodingOption,
    TestFractionOption,
    TextKeyOption,
    ValFractionOption,
    data_config,
)
from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.errors import RequestError
from gpt_cli.files.safe_io import similar_path

if TYPE_CHECKING:
    from gpt_cli.corpus.lazy_corpus import LazyCorpus


def peek(
    source: Annotated[
        str, typer.Argument(metavar="STORE|CORPUS", help="What `gpt tokenize` made, or a text.", show_default=False)
    ],
    at: Annotated[
        int | None, typer.Option(metavar="N", help="Start at this token. [default: where training starts]", min=0)
    ] = None,
    context: Annotated[int, typer.Option(metavar="K", help="Tokens that the model sees at once.", min=1)] = 8,
    split: Annotated[
        Literal["train", "val"], typer.Option(help="Which part of the text. What is kept for the test is never shown.")
    ] = "train",
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="How a text becomes tokens. [default: one per character]")
    ] = None,
    val_fraction: ValFractionOption = VAL_FRACTION,
    test_fraction: TestFractionOption = 0.0,
    encoding: EncodingOption = "utf-8",
    text_key: TextKeyOption = TEXT_KEY,
    json: JsonOption = False,
) -> None:
    """Show what the model is asked: after this context, which token comes next?

    One window of K tokens asks K questions at once. Without --at it is the first window that training takes, with
    the default seed and K as model.context_length.

    Example: gpt data peek book.txt --at 0
    """
    from gpt_cli.config import Config
    from gpt_cli.corpus.peek_window import cut_window, first_start
    from gpt_cli.report.window_view import render_window, window_json

    division = {"val_fraction": val_fraction, "test_fraction": test_fraction}
    outline = _outline(source, tokenizer, division, encoding=encoding, text_key=text_key)
    tokens = outline.stats[split].tokens
    seed, first = Config().seed, ""
    if at is None:
        at = 0
        if split == "train":
            at = first_start(tokens, context, seed)
            first = f", the first that training with seed {seed} takes"
    window = cut_window(outline.read, split, tokens, at, context)
    if json:
        print_json({"source": source, "split": split, "tokens": tokens, **window_json(window, outline.tokenizer)})
    else:
        title = f"tokens {at:,} to {at + context:,} of {tokens:,} in the {split} split{first}"
        print(render_window(window, outline.tokenizer, title))


def _of_texts(division: dict[str, float], keys: dict[str, str]) -> list[tuple[str, object, object]]:
    """(option, value, default) for the options that say how a text is read and divided."""
    return [
        ("--val-fraction", division["val_fraction"], VAL_FRACTION),
        ("--test-fraction", division["test_fraction"], 0.0),
        ("--encoding", keys["encoding"], "utf-8"),
        ("--text-key", keys["text_key"], TEXT_KEY),
    ]


def _outline(source: str, tokenizer: Path | None, division: dict[str, float], **keys: str) -> "LazyCorpus":
    """A store, or a text, of which only the window that is shown need be in memory."""
    from gpt_cli.config import TokenizerConfig
    from gpt_cli.corpus.lazy_corpus import LazyCorpus, open_lazy
    from gpt_cli.corpus.sources import find_path
    from gpt_cli.corpus.store import TokenStore, is_store
    from gpt_cli.terminal.progress import stage_progress
    from gpt_cli.tokenizer import load_tokenizer

    if is_store(path := find_path(source)):
        if tokenizer is not None:
            raise RequestError(
                f"{source} is a token store, which has a tokenizer of its own",
                hint=f"leave it out: gpt data peek {quote(source)}",
            )
        if given := [option for option, value, default in _of_texts(division, keys) if value != default]:
            raise RequestError(
                f"{given[0]} is for texts: {source} is a token store, which was divided when it was made",
                hint="leave it out",
            )
        store = TokenStore.open(path)
        return LazyCorpus(store.tokenizer, store.stats, store.read)
    config = TokenizerConfig(kind="char")
    if tokenizer is not None:
        if not tokenizer.exists():
            raise RequestError(f"{tokenizer} does not exist", hint=similar_path(tokenizer))
        kind = load_tokenizer(tokenizer).kind
        config = TokenizerConfig.model_validate({"kind": kind, "file": str(tokenizer)})
    data = data_config([source], **division, **keys)
    with stage_progress() as progress:
        return open_lazy(data, config, note=note, progress=progress)
