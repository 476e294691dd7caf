"""`gpt data inspect`: a text, looked over before a model learns from it."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from gpt_cli.analysis.inspection import inspect_text
from gpt_cli.analysis.split_text import SplitText
from gpt_cli.analysis.text_report import advise
from gpt_cli.cli.options.data_options import DATA_OPTIONS, CorpusArgument, data_config
from gpt_cli.cli.options.shared_options import takes
from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.config import Config, DataConfig, TokenizerConfig
from gpt_cli.corpus.detect import propose_lines
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.corpus.store import TokenStore, find_store
from gpt_cli.corpus.tokens import MappedTokens, Tokens
from gpt_cli.errors import UsageError
from gpt_cli.report.text_report_view import render_inspection
from gpt_cli.report.window_view import CONTEXT_LENGTH, cut_window, render_window, window_json
from gpt_cli.terminal.progress import stage_progress
from gpt_cli.tokenizer import Tokenizer


@takes(DATA_OPTIONS)
def inspect(
    corpus: CorpusArgument,
    window: Annotated[int | None, typer.Option(metavar="N", min=0, help="Show training window N, from 0.")] = None,
    *,
    json: JsonOption = False,
    **keys: Any,
) -> None:
    """Look a text over: rare and invisible characters, duplicates, train/val overlap, what a good loss is.

    The text is divided as training divides it, and the test split is not read. The baselines are
    Kneser-Ney n-gram models and compressors, learned on the training part and measured on the validation part. Of a
    large text, samples are compared, and that is said.

    With --window, show one 8-token training window (default seed): each context and the token to predict. Tokens are
    characters, or those of a token store if CORPUS is one.

    Example: gpt data inspect book.txt
    """
    assert corpus  # it is a required argument
    if window is not None:
        _show_window(corpus, window, keys, json=json)
        return
    data = data_config(corpus, **keys)
    with stage_progress() as progress:
        text = SplitText.find(data, note, progress)
        inspection = inspect_text(text, progress)
    is_plain = inspection.documents == 1 and text.text.files[0].file.records is None
    if is_plain and keys["documents"] is None and (proposal := propose_lines(next(text.text.blocks(0)).text)):
        note(proposal)
    if keys["test_fraction"]:
        note("what is kept for the test was not looked at")
    if json:
        print_json({"corpus": corpus, **asdict(inspection), "advice": advise(inspection)})
    else:
        print(render_inspection(inspection))


def _show_window(corpus: list[str], index: int, keys: dict[str, Any], *, json: bool) -> None:
    tokenizer, tokens = _training_tokens(corpus, keys)
    window = cut_window(tokens, index, Config().seed)
    if json:
        print_json({"corpus": corpus, "window": index, "tokens": len(tokens), **window_json(window, tokenizer)})
    else:
        place = f"tokens {window.at:,} to {window.at + CONTEXT_LENGTH:,} of {len(tokens):,} in the train split"
        print(render_window(window, tokenizer, place))


def _training_tokens(corpus: list[str], keys: dict[str, Any]) -> tuple[Tokenizer, Tokens | MappedTokens]:
    """The tokens of a store, or of a text as characters, of which only the window that is shown need be in memory."""
    path = find_store(corpus[0]) if len(corpus) == 1 else None
    if path is None:
        with stage_progress() as progress:
            data, characters = data_config(corpus, **keys), TokenizerConfig(kind="char")
            tokenized = prepare_corpus(data, characters, verify=False, note=note, progress=progress)
        return tokenized.tokenizer, tokenized.train
    if given := [key for key, value in keys.items() if value != getattr(DataConfig(), key)]:
        option = f"--{given[0].replace('_', '-')}"
        raise UsageError(f"{option} is for texts: {path} is a token store, which was divided when it was made")
    store = TokenStore.open(path)
    return store.tokenizer, store.mapped("train", verify=False)
