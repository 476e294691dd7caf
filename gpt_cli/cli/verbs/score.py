"""`gpt score`: what a model makes of a text, token by token and line by line."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from gpt_cli.cli.open_generator import open_scorer
from gpt_cli.cli.options.data_options import note_unread
from gpt_cli.cli.options.run_options import RunArgument, RunOption, find_checkpoint
from gpt_cli.cli.options.shared_options import DeviceOption, DtypeOption, EngineOption, option
from gpt_cli.cli.output import note, print_json, refuse_several
from gpt_cli.cli.unknown_characters import UnknownChoice, located, unknown_option, without_unknown
from gpt_cli.corpus.readers import ReaderOptions
from gpt_cli.corpus.sources import read_documents, refuse_overwriting
from gpt_cli.errors import RequestError
from gpt_cli.evaluation.scored_text import ScoredText, SurpriseKey
from gpt_cli.evaluation.sliding_windows import checked_stride, read_tokens
from gpt_cli.files.kinds import TEXTS, refuse_unless
from gpt_cli.report.html import check_page
from gpt_cli.report.score_page import Scored, write_scored
from gpt_cli.report.score_text import render_legend, render_lines, render_tokens
from gpt_cli.terminal.words import plural
from gpt_cli.tokenizer import Tokenizer

_READ, _SHOW = "How it is read", "What is shown"


def score(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A text; - is standard input.", show_default=False)],
    run: RunArgument = None,
    run_option: RunOption = None,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    weights: DtypeOption = "fp32",
    stride: Annotated[
        int | None, option(_READ, "Tokens from a window to the next. [default: half the context]", metavar="N")
    ] = None,
    unknown: Annotated[UnknownChoice, unknown_option(_READ)] = "error",
    encoding: Annotated[str, option(_READ, "Of FILE.")] = "utf-8",
    text_key: Annotated[str, option(_READ, "Which column or key of FILE holds the text.", metavar="KEY")] = "text",
    worst: Annotated[int | None, option(_SHOW, "The N most surprising lines alone.", metavar="N", min=1)] = None,
    by: Annotated[SurpriseKey, option(_SHOW, "What makes a line surprising: its rate, or its sum.")] = "bits-per-byte",
    tokens: Annotated[bool, option(_SHOW, "A row for each token.", "--tokens")] = False,
    html: Annotated[Path | None, option(_SHOW, "Write one offline page instead.", metavar="FILE")] = None,
    jsonl: Annotated[bool, option(_SHOW, "A JSON line for each line, with log-probabilities.", "--jsonl")] = False,
    as_json: Annotated[bool, option(_SHOW, "One JSON object with the sums.", "--json")] = False,
) -> None:
    """Measure how surprising a text is to a model, in bits, line by line and token by token.

    Every token but the first is predicted once. A text longer than the context is read in windows that overlap, so
    that each token has more than half a context before it.

    Example: gpt score letter.txt --worst 10
    """
    refuse_several({"--html": html is not None, "--jsonl": jsonl, "--json": as_json, "--tokens": tokens})
    refuse_several({"--worst": worst is not None, "--json": as_json})
    if html is not None:
        check_page(html)
    refuse_unless(TEXTS, file, "text")
    path, saved = find_checkpoint(run, run_option)
    data, context_length = saved.config.data, saved.config.model.context_length
    if html is not None:
        refuse_overwriting(html, [file, *data.sources, *data.val_sources], "--html")
    note_unread([file], text_key, encoding)
    stride = checked_stride(stride, context_length)
    name = "standard input" if file == "-" else file
    written = _read(file, ReaderOptions(encoding, text_key), saved.tokenizer, unknown)
    with located(name):
        ids = saved.tokenizer.encode_prompt(written)
    scorer = open_scorer(saved, device, engine, weights)
    text = ScoredText(saved.tokenizer, written, ids, read_tokens(scorer, ids, stride))
    if as_json:
        head = {"run": path, "step": saved.step, "text": name, "engine": scorer.engine, "stride": stride}
        print_json(head | text.figures())
        return
    note(f"{path}, step {saved.step:,}")
    chosen = None if worst is None else text.top_surprising(worst, by)
    if html is not None:
        write_scored(Scored(path.resolve().name, saved.step, name, text, chosen, by, context_length, stride), html)
        note(f"wrote {html}")
    else:
        _print_lines(text, range(len(text)) if chosen is None else chosen, tokens=tokens, jsonl=jsonl)
    note(f"{plural(text.tokens, 'token')}, loss {text.loss:.4f}, {text.bits_per_byte:.4f} bits per byte")


def _read(source: str, options: ReaderOptions, tokenizer: Tokenizer, unknown: UnknownChoice) -> str:
    """The text that is to be scored, without unknown characters if they are to be skipped."""
    *documents, last = [document.text for document in read_documents(source, note=note, options=options)]
    if documents and tokenizer.unk_id is None and tokenizer.unknown_characters("\n"):
        message = "documents are scored as lines of one text, and the vocabulary lacks the newline"
        raise RequestError(message, where=source)
    if documents:
        note(f"{len(documents) + 1:,} documents, each of which begins a line; lines are counted through them")
    text = "".join(one if one.endswith("\n") else f"{one}\n" for one in documents) + last
    return without_unknown(tokenizer, [text], unknown, "text")[0]


def _print_lines(text: ScoredText, chosen: Sequence[int], *, tokens: bool, jsonl: bool) -> None:
    """Print the chosen lines or their tokens; coloured on a terminal that has colours."""
    lines = map(text.line, chosen)
    if jsonl:
        for line in lines:
            print(json.dumps(line.record(), allow_nan=False))
        return
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    for row in render_tokens(lines, len(text)) if tokens else render_lines(lines, len(text), coloured=coloured):
        print(row)
    sys.stdout.flush()
    if coloured and not tokens:
        print(render_legend(), flush=True)
