"""`gpt chat`: write a text with a model, in turns."""

import sys
from typing import Annotated, Any

import typer

from gpt_cli.cli.open_generator import open_generator
from gpt_cli.cli.options.run_options import RunArgument, RunOption, find_checkpoint
from gpt_cli.cli.options.sampling_options import SAMPLING_OPTIONS, sampling_options, sampling_params
from gpt_cli.cli.options.shared_options import DeviceOption, DtypeOption, EngineOption, option, takes
from gpt_cli.cli.output import note
from gpt_cli.cli.repl import Repl
from gpt_cli.cli.unknown_characters import UnknownChoice, note_unknown_stops, refuse_unknown, unknown_option
from gpt_cli.errors import RequestError
from gpt_cli.sampling.chat_template import open_conversation

_TURN = "What a turn is"
_OF_SAMPLE = ("heal", "min_new_tokens", "logit_bias", "length_penalty")  # alone


@takes({name: one for name, one in SAMPLING_OPTIONS.items() if name not in _OF_SAMPLE})
def chat(
    run: RunArgument = None,
    run_option: RunOption = None,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    weights: DtypeOption = "fp32",
    prefix: Annotated[str | None, option(_TURN, "Put before what you write.", metavar="TEXT")] = None,
    suffix: Annotated[str | None, option(_TURN, "Put between that and the answer.", metavar="TEXT")] = None,
    system: Annotated[str | None, option(_TURN, "The system message, if it learned chats.", metavar="TEXT")] = None,
    unknown: Annotated[UnknownChoice, unknown_option(_TURN)] = "error",
    *,
    raw: Annotated[bool, typer.Option("--raw", help="Send control characters to a terminal as they are.")] = False,
    **given: Any,
) -> int:
    """Write a text with a model, in turns: you write a line, it continues.

    A line is sent with Enter; an empty one has the model continue its own text. /help lists the commands, such as
    /temp 0.5 or /save FILE. Ctrl-C stops an answer, Ctrl-D ends the chat. A model continues text, and answers only if
    it learned to from its own: --prefix, --suffix and --stop make a turn of it. It sees the last turns that fit into
    its context.

    Example: gpt chat runs/quickstart --prefix "Q: " --suffix " A: " --stop "Q:"
    """
    if sys.stdin is None:
        raise RequestError("standard input is closed")
    path, saved = find_checkpoint(run, run_option)
    sampling = sampling_params(saved.config, sampling_options(given))
    defaults, tokenizer = saved.config.sample, saved.tokenizer
    before, between = defaults.prefix if prefix is None else prefix, defaults.suffix if suffix is None else suffix
    learned = (system or "") if saved.config.data.format == "chat" else ""  # else it is refused
    refuse_unknown(tokenizer, {"--prefix": before, "--suffix": between, "--system": learned})
    note_unknown_stops(tokenizer, sampling.stop)
    generator = open_generator(saved, device, engine, weights, rows=1)
    generator.require(sampling)
    generator.warm_up()
    conversation = open_conversation(saved.config, tokenizer, before, between, system)
    note(f"{path}, step {saved.step:,}" + ("" if sampling.beams is not None else f", seed {sampling.seed}"))
    if sys.stdin.isatty():
        note("/help lists the commands, Ctrl-D ends the chat")
    return Repl(generator, conversation, sampling, saved.config.data.learned_end, unknown, raw).run()
