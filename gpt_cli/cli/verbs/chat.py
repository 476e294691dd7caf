"""`gpt chat`: write a text with a model, in turns."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpt_cli.cli.open_generator import open_generator
from gpt_cli.cli.options import sampling_options as opts
from gpt_cli.cli.options.run_options import RunArgument, RunOption, find_one
from gpt_cli.cli.output import note
from gpt_cli.cli.unknown_characters import UnknownChoice, note_unknown_stops, refuse_unknown, unknown_option
from gpt_cli.errors import RequestError

if TYPE_CHECKING:
    from gpt_cli.corpus.turn_template import TurnTemplate
    from gpt_cli.tokenizer import Tokenizer

_TURN = "What a turn is"


def chat(
    run: RunArgument = None,
    run_option: RunOption = None,
    device: opts.DeviceOption = "auto",
    engine: opts.EngineOption = "auto",
    weights: opts.DtypeOption = "fp32",
    prefix: Annotated[str | None, opts.panel_option(_TURN, "Put before what you write.", metavar="TEXT")] = None,
    suffix: Annotated[str | None, opts.panel_option(_TURN, "Put between that and the answer.", metavar="TEXT")] = None,
    system: Annotated[
        str | None,
        opts.panel_option(_TURN, "What the system says before all turns, if it learned chats.", metavar="TEXT"),
    ] = None,
    unknown: Annotated[UnknownChoice, unknown_option(_TURN)] = "error",
    stop: opts.StopOption = None,
    max_new_tokens: opts.MaxNewTokensOption = None,
    temperature: opts.TemperatureOption = None,
    top_k: opts.TopKOption = None,
    top_p: opts.TopPOption = None,
    min_p: opts.MinPOption = None,
    repetition_penalty: opts.RepetitionPenaltyOption = None,
    no_repeat_ngram: opts.NoRepeatNgramOption = None,
    seed: opts.SeedOption = None,
    beams: opts.BeamsOption = None,
    choices: opts.ChoicesOption = None,
    regex: opts.RegexOption = None,
    json_schema: opts.JsonSchemaOption = None,
    grammar: opts.GrammarOption = None,
    raw: Annotated[bool, typer.Option("--raw", help="Send control characters to a terminal as they are.")] = False,
) -> int:
    """Write a text with a model, in turns: you write a line, it continues.

    A line is sent with Enter; an empty one has the model go on. /help lists what else can be said, such as /temp 0.5
    or /save FILE. Ctrl-C stops an answer, Ctrl-D ends the chat. A model continues text, and answers only if it
    learned to from its own: --prefix, --suffix and --stop make a turn of it. It sees the last turns that fit into its
    context.

    Example: gpt chat runs/quickstart --prefix "Q: " --suffix " A: " --stop "Q:"
    """
    arguments = locals()
    from gpt_cli.cli.repl import Repl
    from gpt_cli.corpus.turn_template import TurnTemplate
    from gpt_cli.run.open_checkpoint import open_checkpoint
    from gpt_cli.run.overfitting import note_better_checkpoint
    from gpt_cli.sampling.chat_template import TemplateConversation, imported_template
    from gpt_cli.sampling.conversation import Conversation
    from gpt_cli.sampling.sampling_params import with_learned_end

    if sys.stdin is None:
        raise RequestError("standard input is closed")
    path = find_one(run, run_option)
    saved = open_checkpoint(path, note)
    note_better_checkpoint(path, saved.step, note)
    defaults = saved.config.sample
    learned_end = saved.config.data.learned_end
    options = with_learned_end(opts.sampling_options(arguments), learned_end)
    sampling = opts.sampling_params(defaults, seed, options)
    before, between = defaults.prefix if prefix is None else prefix, defaults.suffix if suffix is None else suffix
    context, turns = saved.config.model.context_length, TurnTemplate.of(saved.config.data)
    refuse_unknown(saved.tokenizer, {"--prefix": before, "--suffix": between})
    note_unknown_stops(saved.tokenizer, sampling.stop)
    generator = open_generator(saved, device, engine, weights, rows=1)
    generator.require(sampling)
    generator.warm_up()
    imported = None if before or between else imported_template(saved.config, saved.tokenizer)
    if imported is not None:
        conversation: Conversation | TemplateConversation = TemplateConversation(imported, context, system)
    else:
        head = "" if system is None else _system_head(system, saved.tokenizer, turns, context)
        conversation = Conversation(saved.tokenizer, context, before, between, turns, head, system)
    drawn = "" if sampling.beams is not None else f", seed {sampling.seed}"
    note(f"{path}, step {saved.step:,}{drawn}")
    if sys.stdin is not None and sys.stdin.isatty():
        note("/help lists the commands, Ctrl-D ends the chat")
    return Repl(generator, conversation, sampling, learned_end, skip_unknown=unknown == "skip", raw=raw).run()


def _system_head(system: str, tokenizer: "Tokenizer", template: "TurnTemplate | None", context_length: int) -> str:
    """The message of the system in the template. Raises RequestError for a run that learned no chats, and for a long
    text."""
    from gpt_cli.corpus.turn_template import refuse_marks

    if template is None or not template.is_chat:
        hint = "--prefix stands before what you write" if template is None else None
        raise RequestError("--system is for a run that learned chats (data.format=chat)", hint=hint)
    refuse_unknown(tokenizer, {"--system": system})
    refuse_marks(system, template.prompt_end, template.completion_end)
    head = template.message("system", system)
    n_token = len(tokenizer.encode_prompt(head))
    if n_token > context_length // 2:
        raise RequestError(f"--system has {n_token:,} tokens, more than half of the context of {context_length:,}")
    return head
