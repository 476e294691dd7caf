"""`gpt score`: what a model makes of a text, token by token and line by line."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gpt_cli.cli.open_generator import open_scorer
from gpt_cli.cli.options import sampling_options as opts
from gpt_cli.cli.options.data_options import refuse_encoding, refuse_text_key
from gpt_cli.cli.options.run_options import RunArgument, RunOption, find_one
from gpt_cli.cli.output import note, print_json, refuse_several
from gpt_cli.cli.unknown_characters import UnknownChoice, unknown_option, without_unknown
from gpt_cli.errors import RequestError
from gpt_cli.files.kinds import TEXTS, refuse_unless
from gpt_cli.terminal.words import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpt_cli.corpus.readers import ReaderOptions
    from gpt_cli.evaluation.scored_text import ScoredLine
    from gpt_cli.tokenizer import Ids, Tokenizer

_READ, _SHOW = "How it is read", "What is shown"


def score(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A text; - is standard input.", show_default=False)],
    run: RunArgument = None,
    run_option: RunOption = None,
    device: opts.DeviceOption = "auto",
    engine: opts.EngineOption = "auto",
    weights: opts.DtypeOption = "fp32",
    stride: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Tokens by which a window of the context moves on. [default: half the context]",
            rich_help_panel=_READ,
        ),
    ] = None,
    unknown: Annotated[UnknownChoice, unknown_option(_READ)] = "error",
    encoding: Annotated[str, typer.Option(help="Of FILE.", rich_help_panel=_READ)] = "utf-8",
    text_key: Annotated[
        str,
        typer.Option(metavar="KEY", help="Which column or key of FILE holds the text.", rich_help_panel=_READ),
    ] = "text",
    worst: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="The N most surprising lines, worst first.", rich_help_panel=_SHOW),
    ] = None,
    by: Annotated[
        Literal["bits-per-byte", "bits"],
        typer.Option(help="What makes a line surprising: its rate, or its sum.", rich_help_panel=_SHOW),
    ] = "bits-per-byte",
    tokens: Annotated[bool, typer.Option("--tokens", help="A row for each token.", rich_help_panel=_SHOW)] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one offline page instead.", rich_help_panel=_SHOW)
    ] = None,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="A JSON line for each line, with log-probabilities.", rich_help_panel=_SHOW)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object with the sums.", rich_help_panel=_SHOW)
    ] = False,
) -> None:
    """Say how surprising a text is to a model, in bits, line by line and token by token.

    Every token but the first is predicted once. A text longer than the context is read in windows that overlap, so
    that each token has more than half a context before it.

    Example: gpt score letter.txt --worst 10
    """
    refuse_several({"--html": html is not None, "--jsonl": jsonl, "--json": as_json, "--tokens": tokens})
    if worst is not None and as_json:
        useless = "--worst" if by == "bits-per-byte" else "--worst and --by"
        raise RequestError("--worst chooses what is listed, and --json prints all", hint=f"leave {useless} out")
    if by != "bits-per-byte" and worst is None:
        hint = "leave --by out" if as_json else f"--worst 10 --by {by}"
        raise RequestError("--by is for --worst", hint=hint)
    if html is not None:
        from gpt_cli.report.html import check_page

        check_page(html)

    from gpt_cli.run.open_checkpoint import open_checkpoint
    from gpt_cli.run.overfitting import note_better_checkpoint

    refuse_unless(TEXTS, file, "text")
    path = find_one(run, run_option)
    saved = open_checkpoint(path, note)
    note_better_checkpoint(path, saved.step, note)
    if html is not None:
        from gpt_cli.corpus.sources import refuse_overwriting

        refuse_overwriting(html, [file, *saved.config.data.sources, *saved.config.data.val_sources], "--html")

    from gpt_cli.corpus.readers import ReaderOptions
    from gpt_cli.evaluation.scored_text import ScoredText
    from gpt_cli.evaluation.sliding_windows import checked_stride, read_tokens

    refuse_text_key([file], text_key)
    refuse_encoding([file], encoding)
    step_by = checked_stride(stride, saved.config.model.context_length)
    name, written = _read(file, ReaderOptions(encoding, text_key), saved.tokenizer, unknown)
    ids = _encode(saved.tokenizer, name, written)
    scorer = open_scorer(saved, device, engine, weights)
    text = ScoredText(saved.tokenizer, written, ids, read_tokens(scorer, ids, step_by))
    if as_json:
        head = {"run": path, "step": saved.step, "text": name, "engine": scorer.engine, "stride": step_by}
        print_json(head | text.figures())
        return
    note(f"{path}, step {saved.step:,}")
    chosen = range(len(text)) if worst is None else text.top_surprising(worst, by)
    if html is not None:
        from gpt_cli.report.score_page import WORST, Scored, write_scored

        method = _how(len(ids), saved.config.model.context_length, step_by)
        lines = [text.line(i) for i in chosen]
        top = [text.line(i) for i in text.top_surprising(WORST, by)] if worst is None and len(text) > WORST else []
        write_scored(Scored(path.resolve().name, saved.step, name, text, lines, top, method, worst is None), html)
        note(f"wrote {html}")
    elif jsonl:
        for i in chosen:
            print(json.dumps(_as_object(text.line(i)), allow_nan=False))
    else:
        _print_rows((text.line(i) for i in chosen), len(text), tokens)
    note(f"{plural(text.tokens, 'token')}, loss {text.loss:.4f}, {text.bits_per_byte:.4f} bits per byte")


def _encode(tokenizer: "Tokenizer", name: str, text: str) -> "Ids":
    """The token ids of the text called `name`, which a RequestError about what the vocabulary lacks names."""
    try:
        return tokenizer.encode_prompt(text)
    except RequestError as error:
        error.where = error.where or name
        raise


def _read(source: str, options: "ReaderOptions", tokenizer: "Tokenizer", unknown: UnknownChoice) -> tuple[str, str]:
    """The name and the text of what is to be scored, without what the vocabulary lacks if that is to be skipped."""
    from gpt_cli.corpus.sources import read_documents

    name = "standard input" if source == "-" else source
    documents = [document.text for document in read_documents(source, note=note, options=options)]
    last = documents.pop()
    if documents and tokenizer.unk_id is None and tokenizer.unknown_characters("\n"):
        raise RequestError(
            "documents are scored as lines of one text, and the vocabulary lacks the newline",
            where=name,
            hint="score them one at a time; gpt eval --text has the loss of all",
        )
    text = "".join(one if one.endswith("\n") else f"{one}\n" for one in documents) + last
    if documents:
        note(f"{len(documents) + 1:,} documents, each of which begins a line; lines are counted through them")
    (text,) = without_unknown(tokenizer, [text], skip=unknown == "skip", source="text")
    if tokenizer.unk_id is not None and tokenizer.unknown_characters(text):
        note("bits per byte have the loss of each <unk>, and divide it among the bytes of the other characters")
    return name, text


def _how(n_token: int, context_length: int, stride: int) -> str:
    """In a sentence, what each token was predicted from."""
    if n_token <= context_length + 1:
        return "Each token is predicted from all before it."
    least = context_length + 1 - stride
    return (
        f"Each token is predicted once, in windows of {context_length:,} tokens that move on by {stride:,}:"
        f" past the first from at least {plural(least, 'token')}."
    )


def _as_object(line: "ScoredLine") -> dict[str, Any]:
    """A line for JSON: its parts, joined, are the text."""
    log_probs = [None if value is None else round(value, 6) for value in line.log_probs]
    rate = line.bits_per_byte
    return {
        "line": line.number,
        "text": line.text,
        "tokens": line.tokens,
        "pieces": line.pieces,
        "log_probs": log_probs,
        "bits": round(line.bits, 6),
        "bytes": line.bytes,
        "bits_per_byte": None if rate is None else round(rate, 6),
    }


def _print_rows(lines: "Iterable[ScoredLine]", last: int, tokens: bool) -> None:
    """Print lines or tokens; coloured on a terminal that has colours."""
    from gpt_cli.report.score_text import render_legend, render_lines, render_tokens

    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    for row in render_tokens(lines, last) if tokens else render_lines(lines, last, coloured=coloured):
        print(row)
    sys.stdout.flush()
    if coloured and not tokens:
        print(render_legend(), flush=True)
