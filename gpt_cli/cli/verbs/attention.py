"""`gpt attention`: where a model looks."""

from pathlib import Path
from typing import Annotated

import typer

from gpt_cli.cli.options.prompts import read_prompts
from gpt_cli.cli.options.run_options import RunArgument, RunOption, find_one
from gpt_cli.cli.output import note, print_json, refuse_several
from gpt_cli.cli.process import gc_paused
from gpt_cli.cli.unknown_characters import UnknownOption, without_unknown
from gpt_cli.report.html import check_page
from gpt_cli.sampling import encode_prompt

_MAX = 256  # tokens that a picture still shows


def attention(
    run: RunArgument = None,
    run_option: RunOption = None,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="- is stdin. [default: the run's]")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="An .html file. [default: attention.html]")
    ] = None,
    layer: Annotated[list[int] | None, typer.Option(metavar="N", help="Show this layer. Repeatable.")] = None,
    head: Annotated[list[int] | None, typer.Option(metavar="N", help="Show this head of a layer. Repeatable.")] = None,
    max_tokens: Annotated[int, typer.Option(metavar="N", min=1, max=_MAX, help="Show the last N tokens alone.")] = 64,
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
    if not (ascii or json):
        check_page(page)
    given = read_prompts(prompt)
    with gc_paused():
        import torch

        from gpt_cli.evaluation.attention_capture import capture_attention
        from gpt_cli.evaluation.attention_heads import classify_heads, select_heads
        from gpt_cli.report.attention_page import AttentionReport, write_attention
        from gpt_cli.report.attention_text import render_heads, weights_of
        from gpt_cli.run.load_model import load_model

    path = find_one(run, run_option)
    loaded = load_model(path, torch.device("cpu"), note)
    text = loaded.config.sample.prompt if given is None else given[0].text
    (text,) = without_unknown(loaded.tokenizer, [text], unknown, "prompt")
    whole = encode_prompt(loaded.tokenizer, text)
    tokens = whole[-min(max_tokens, loaded.config.model.context_length) :]
    if left_out := len(whole) - len(tokens):
        why = "--max-tokens" if len(tokens) == max_tokens else "the model's context"
        note(f"the text has {len(whole):,} tokens; the last {len(tokens):,} are shown ({why})")
    layers = capture_attention(loaded.model, tokens)
    heads = select_heads(classify_heads(layers, tokens), layer, head)
    pieces = [loaded.tokenizer.token_bytes(token).decode(errors="backslashreplace") for token in tokens]
    weights = weights_of(layers, heads)
    if json:
        heads_json = [{**vars(one), "weights": w.tolist()} for one, w in zip(heads, weights.values(), strict=True)]
        print_json({"run": path, "step": loaded.step, "tokens": tokens, "pieces": pieces, "heads": heads_json})
    elif ascii:
        print(render_heads(weights, heads, pieces))
    else:
        write_attention(AttentionReport(path.resolve().name, loaded.step, pieces, left_out, layers, heads), page)
        note(f"wrote {page}")
