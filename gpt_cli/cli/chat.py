"""`gpt chat`: write a text with a model, in turns."""

import sys
from typing import Annotated, Literal

import typer

from gpt_cli.cli.engine import open_writer
from gpt_cli.cli.options import given_options
from gpt_cli.cli.output import note
from gpt_cli.cli.which import RunArgument, RunOption, find_one
from gpt_cli.errors import RequestError
from gpt_cli.literals import Device

_LENGTH, _CHOICE, _TURN = "How long", "How to choose tokens", "What a turn is"


def chat(
    run: RunArgument = None,
    run_option: RunOption = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = "auto",
    engine: Annotated[
        Literal["auto", "native", "torch"], typer.Option(help="native: without torch, on a CPU. auto: that, if it can.")
    ] = "auto",
    weights: Annotated[
        Literal["fp32", "bf16", "int8"],
        typer.Option("--dtype", "--weights", help="How native (or CUDA: bf16) keeps the matrices; fp32 is exact."),
    ] = "fp32",
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="ngram|RUN|FILE",
            help="Guess ahead, for the same answer sooner: from the text itself, a smaller run, or a text like it.",
        ),
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Put before what you write.", rich_help_panel=_TURN)
    ] = None,
    suffix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Put between that and the answer.", rich_help_panel=_TURN)
    ] = None,
    unknown: Annotated[
        Literal["error", "skip"],
        typer.Option(help="Characters that the vocabulary lacks are an error, or left out.", rich_help_panel=_TURN),
    ] = "error",
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="An answer ends before this text. Repeatable.", rich_help_panel=_LENGTH),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Tokens of an answer at most.", rich_help_panel=_LENGTH)
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="Below 1 safer, above 1 wilder; 0: always the likeliest.", rich_help_panel=_CHOICE),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Among the k likeliest tokens. 0: off.", rich_help_panel=_CHOICE)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Among the likeliest with this probability. 1: off.", rich_help_panel=_CHOICE),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="Not below this times the likeliest's probability. 0: off.", rich_help_panel=_CHOICE),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="The same seed, the same answers. [default: random, printed]", rich_help_panel=_CHOICE),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Send control characters to a terminal as they are.")] = False,
) -> int:
    """Write a text with a model, in turns: you write a line, it continues.

    A line is sent with Enter; an empty one has the model go on. /help lists what else can be said, such as /temp 0.5
    or /save FILE. Ctrl-C stops an answer, Ctrl-D ends the chat. A model continues text, and answers only if it
    learned to from its own: --prefix, --suffix and --stop make a turn of it. It sees the last turns that fit into its
    context.

    Example: gpt chat runs/quickstart --prefix "Q: " --suffix " A: " --stop "Q:"
    """
    from gpt_cli.cli.repl import Repl
    from gpt_cli.run.checkpoint import open_checkpoint
    from gpt_cli.run.directory import sample_defaults
    from gpt_cli.sampling import SamplingParams, random_seed
    from gpt_cli.sampling.conversation import Conversation

    if sys.stdin is None:
        raise RequestError("standard input is closed")
    path = find_one(run, run_option)
    saved = open_checkpoint(path, note)
    defaults = sample_defaults(path) or saved.config.sample
    options = given_options(
        stop=stop,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
    )
    sampling = SamplingParams.from_config(defaults, random_seed() if seed is None else seed).replace(options)
    before, between = defaults.prefix if prefix is None else prefix, defaults.suffix if suffix is None else suffix
    for name, template in (("prefix", before), ("suffix", between)):
        if missing := [] if saved.tokenizer.unk_id is not None else saved.tokenizer.unknown_characters(template):
            raise RequestError(f"--{name} has a character that the vocabulary lacks: {missing[0]!r}")
    writer = open_writer(saved, device, engine, weights, draft, rows=1)
    writer.warm_up()
    conversation = Conversation(saved.tokenizer, saved.config.model.context_length, before, between)
    note(f"{path}, step {saved.step:,}, seed {sampling.seed}\n/help lists the commands, Ctrl-D ends the chat")
    return Repl(writer, conversation, sampling, skip_unknown=unknown == "skip", raw=raw).run()
