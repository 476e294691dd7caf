"""`gpt attention`: where a model looks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpt_cli.cli.options.prompts import read_prompts
from gpt_cli.cli.options.run_options import RunArgument, RunOption, find_one
from gpt_cli.cli.output import note, print_json, refuse_several
from gpt_cli.cli.unknown_characters import UnknownOption, without_unknown
from gpt_cli.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpt_cli.evaluation.attention_heads import Head
    from gpt_cli.run.load_model import LoadedRun

_MAX = 256  # tokens that a picture still shows
_TOKENS = 64


def attention(
    run: RunArgument = None,
    run_option: RunOption = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="What the model reads; - is standard input. [default: sample.prompt of the run]"
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="An .html file. [default: attention.html]"),
    ] = None,
    layer: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Show this layer. May be given several times.")
    ] = None,
    head: Annotated[list[int] | None, typer.Option(metavar="N", help="Show this head of each layer. Likewise.")] = None,
    max_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, max=_MAX, help="Of a longer text the last ones are shown.")
    ] = _TOKENS,
    unknown: UnknownOption = "error",
    ascii: Annotated[bool, typer.Option("--ascii", help="Print it for a terminal instead.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print scores and weights as one JSON object instead.")] = False,
) -> None:
    """Show where a model looks: each head of each layer on a text, and what kind of head it is.

    The weights follow from the model's own queries and keys. Heads are marked that look at the token before
    (previous), at the first token (first), or at what followed the same token earlier (induction). Layers and heads
    count from 0.

    Example: gpt attention runs/quickstart --prompt "The class" -o att.html
    """
    refuse_several({"--output": output is not None, "--ascii": ascii, "--json": json})
    page = output or Path("attention.html")

    import torch

    from gpt_cli.evaluation.attention_capture import capture_attention
    from gpt_cli.evaluation.attention_heads import classify_heads
    from gpt_cli.report.attention_page import AttentionReport, write_attention
    from gpt_cli.report.attention_text import render_heads, weights_of
    from gpt_cli.report.html import check_page
    from gpt_cli.run.load_model import load_model

    if not (ascii or json):
        check_page(page)
    given = read_prompts(prompt, None, None, "auto")
    path = find_one(run, run_option)
    loaded = load_model(path, torch.device("cpu"), note)
    text = loaded.config.sample.prompt if given is None else given[0].text
    (text,) = without_unknown(loaded.tokenizer, [text], skip=unknown == "skip", source="prompt")
    tokens, left_out = _tokens(loaded, text, max_tokens)
    layers = capture_attention(loaded.model, tokens)
    heads = _chosen(classify_heads(layers, tokens), layer, head)
    if len(tokens) == 1 and given is None:
        note("the text is one token, sample.prompt of the run, before which there is none to look at: --prompt TEXT")
    pieces = [loaded.tokenizer.token_bytes(token).decode(errors="backslashreplace") for token in tokens]
    weights = weights_of(layers, heads)
    if json:
        heads_json = [
            {"layer": h.layer, "head": h.head, "scores": h.scores, "marks": h.marks, "weights": w.tolist()}
            for h, w in zip(heads, weights.values(), strict=True)
        ]
        print_json({"run": path, "step": loaded.step, "tokens": tokens, "pieces": pieces, "heads": heads_json})
    elif ascii:
        print(render_heads(weights, heads, pieces))
    else:
        write_attention(AttentionReport(path.resolve().name, loaded.step, pieces, left_out, layers, heads), page)
        note(f"wrote {page}")


def _tokens(loaded: "LoadedRun", text: str, max_tokens: int) -> tuple[list[int], int]:
    """The tokens that the model is to read, the last ones of the text, and how many before them are left out."""
    from gpt_cli.sampling import encode_prompt

    tokens = encode_prompt(loaded.tokenizer, text)
    limit = min(max_tokens, loaded.config.model.context_length)
    if (left_out := len(tokens) - limit) > 0:
        why = "--max-tokens" if limit == max_tokens else "the model's context"
        note(f"the text has {len(tokens):,} tokens; the last {limit:,} are shown ({why})")
    return tokens[-limit:], max(0, left_out)


def _chosen(heads: "Sequence[Head]", layers: list[int] | None, numbers: list[int] | None) -> "list[Head]":
    """The heads that the filters leave. Raises RequestError for a layer or head that is not there."""
    there = {"layer": {head.layer for head in heads}, "head": {head.head for head in heads}}
    for name, selected in (("layer", layers), ("head", numbers)):
        if missing := sorted(set(selected or ()) - there[name]):
            raise RequestError(
                f"there is no {name} {missing[0]}: they are numbered from 0 to {max(there[name])}",
                hint=f"--{name} 0",
            )
    return [head for head in heads if (not layers or head.layer in layers) and (not numbers or head.head in numbers)]
