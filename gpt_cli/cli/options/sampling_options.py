"""The options of verbs that sample, each declared once, and the sampling settings that were set by them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gpt_cli.cli.output import note
from gpt_cli.errors import RequestError
from gpt_cli.literals import Device
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.terminal.words import plural

if TYPE_CHECKING:
    from gpt_cli.config import SampleConfig
    from gpt_cli.sampling import SamplingOptions, SamplingParams
    from gpt_cli.sampling.text_stream import FinishReason

DRAWS = ("temperature", "top_k", "top_p", "min_p")
_LENGTH, _CHOICE, _LIMITS = "How long", "How to choose tokens", "What may be written"


def panel_option(panel: str, text: str, metavar: str | None = None) -> Any:
    """An option that `--help` shows in the box `panel`."""
    return typer.Option(help=text, rich_help_panel=panel, metavar=metavar)


DeviceOption = Annotated[Device, typer.Option(help="Where to compute.")]
EngineOption = Annotated[
    Literal["auto", "native", "torch"],
    typer.Option(help="native: without torch, on a CPU. auto: that, if it can."),
]
DtypeOption = Annotated[
    Literal["fp32", "bf16", "int8"],
    typer.Option("--dtype", "--weights", help="How native (or CUDA: bf16) keeps the matrices; fp32 is exact."),
]
MaxNewTokensOption = Annotated[int | None, panel_option(_LENGTH, "Tokens to write.")]
MinNewTokensOption = Annotated[int | None, panel_option(_LENGTH, "Tokens before which nothing ends the text.")]
StopOption = Annotated[list[str] | None, panel_option(_LENGTH, "End before this text. Repeatable.", metavar="TEXT")]
TemperatureOption = Annotated[
    float | None, panel_option(_CHOICE, "Below 1 safer, above 1 wilder; 0: always the likeliest.")
]
TopKOption = Annotated[int | None, panel_option(_CHOICE, "Among the k likeliest tokens. 0: off.")]
TopPOption = Annotated[float | None, panel_option(_CHOICE, "Among the likeliest with this probability. 1: off.")]
MinPOption = Annotated[float | None, panel_option(_CHOICE, "Not below this times the likeliest's probability. 0: off.")]
RepetitionPenaltyOption = Annotated[float | None, panel_option(_CHOICE, "Above 1: against tokens seen before. 1: off.")]
NoRepeatNgramOption = Annotated[int | None, panel_option(_CHOICE, "Never the same n tokens in a row again. 0: off.")]
LogitBiasOption = Annotated[
    list[str] | None,
    panel_option(_CHOICE, "Add X to a token's logit: its text, or #id. Repeatable.", metavar="TOKEN=X"),
]
SeedOption = Annotated[int | None, panel_option(_CHOICE, "The same seed, the same text. [default: random, printed]")]
BeamsOption = Annotated[int | None, panel_option(_CHOICE, "Search the likeliest text with N candidates. 0: off.")]
LengthPenaltyOption = Annotated[float | None, panel_option(_CHOICE, "Of beams: the higher, the longer.")]
ChoicesOption = Annotated[str | None, panel_option(_LIMITS, "One of these texts.", metavar="A,B,...")]
RegexOption = Annotated[str | None, panel_option(_LIMITS, "A match of this regular expression.", metavar="PATTERN")]
JsonSchemaOption = Annotated[
    Path | None, panel_option(_LIMITS, "JSON that the schema in this file allows; - is standard input.", metavar="FILE")
]
GrammarOption = Annotated[
    Path | None, panel_option(_LIMITS, "Text of the Lark grammar in this file; - is standard input.", metavar="FILE")
]


def sampling_options(arguments: Mapping[str, Any]) -> "SamplingOptions":
    """The `arguments` of a verb that are sampling settings and were given, but for the seed, which is never off."""
    from gpt_cli.sampling import SamplingOptions

    settings = {
        name: arguments[name] for name in SamplingOptions.__annotations__ if name in arguments and name != "seed"
    }
    if settings.get("logit_bias") is not None:
        settings["logit_bias"] = [parse_bias(text) for text in settings["logit_bias"]]
    if settings.get("choices") is not None:
        settings["choices"] = settings["choices"].split(",")
        _note_spaces(settings["choices"])
    for name in ("json_schema", "grammar"):
        if settings.get(name) is not None:
            from gpt_cli.corpus.small_file import read_small_file

            settings[name] = read_small_file(settings[name])
    return {name: value for name, value in settings.items() if value is not None}  # type: ignore[return-value]


def _note_spaces(choices: Sequence[str]) -> None:
    """Say so where only some of the `choices` begin with a space, which is a part of them."""
    if len({choice.startswith(" ") for choice in choices}) == 2:
        spaced = next(choice for choice in choices if choice.startswith(" "))
        stripped = quote(",".join(choice.lstrip(" ") for choice in choices))
        note(f"{spaced!r} of --choices begins with a space, which belongs to it; without: --choices {stripped}")


def sampling_params(defaults: "SampleConfig", seed: int | None, options: "SamplingOptions") -> "SamplingParams":
    """The `defaults` of a run, changed by `options`; without a `seed` a random one.

    Raises RequestError for options that have no effect.
    """
    from gpt_cli.sampling import SamplingParams, random_seed

    sampling = SamplingParams.from_config(defaults, random_seed() if seed is None else seed).replace(options)
    refuse_draws_of_search(options, sampling)
    if (least := options.get("min_new_tokens", 0)) > sampling.max_new_tokens:
        raise RequestError(
            f"--min-new-tokens {least} is more than the {sampling.max_new_tokens} tokens that are written",
            hint=f"--max-new-tokens {least}",
        )
    return sampling


def refuse_draws_of_search(options: "SamplingOptions", sampling: "SamplingParams") -> None:
    """Refuse `options` of drawing that were given where `sampling`, made of them and of a run's config, searches."""
    if options.get("length_penalty") is not None and sampling.beams is None:
        raise RequestError("--length-penalty is for beam search", hint="--beams 4, or leave it out")
    drawn = [f"--{name.replace('_', '-')}" for name in DRAWS if options.get(name)]
    if sampling.beams is not None and drawn:
        reason = f"--beams searches the likeliest text, in which {drawn[0]} has no effect"
        draw = "" if options.get("beams") else ", or draw: --beams 0"
        raise RequestError(reason, hint=f"leave {drawn[0]} out{draw}")


def note_without_draws(options: "SamplingOptions", sampling: "SamplingParams", n: int) -> None:
    """Say which `options` of drawing have no effect at temperature 0, and that all of `n` texts are the same there."""
    if not sampling.greedy or sampling.beams is not None:
        return
    if filters := [f"--{name.replace('_', '-')}" for name in DRAWS if name != "temperature" and options.get(name)]:
        verb = "has" if len(filters) == 1 else "have"
        note(f"temperature 0 takes the likeliest token: {' and '.join(filters)} {verb} no effect")
    if n > 1:
        note(f"at temperature 0 all {n:,} texts are the same")


def note_unmatched(sampling: "SamplingParams", finish_reasons: "Sequence[FinishReason | None]") -> None:
    """Note texts that ended before they satisfied their constraint."""
    if sampling.constraint is None:
        return
    name = f"--{sampling.constraint[0].replace('_', '-')}"
    for reason, cause in (
        ("length", f"cut after {sampling.max_new_tokens:,} tokens (max_new_tokens)"),
        ("dead_end", "ended where no token of the vocabulary could follow"),
    ):
        if count := sum(one == reason for one in finish_reasons):
            note(f"{plural(count, 'text')} {cause}: {name} may not be satisfied")


def parse_bias(text: str) -> tuple[str | int, float]:
    """`TOKEN=X`, where TOKEN is a text, or # and an id."""
    token, equals, number = text.rpartition("=")
    try:
        if not token or not equals:
            raise ValueError
        is_id = token.startswith("#") and token[1:].isdecimal()
        return (int(token[1:]) if is_id else token), float(number)
    except ValueError:
        raise RequestError(
            f"--logit-bias must be TOKEN=NUMBER, not '{escape_control_chars(text)}'", hint="such as --logit-bias e=-2"
        ) from None
