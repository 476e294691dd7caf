"""The sampling options of `gpt sample` and `gpt chat`, each declared once, and the settings that they make."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, cast

from gpt_cli.cli.options.shared_options import OptionTable, option
from gpt_cli.cli.output import note
from gpt_cli.config import Config
from gpt_cli.corpus.small_file import read_small_file
from gpt_cli.errors import UsageError
from gpt_cli.sampling import SamplingOptions, SamplingParams, random_seed
from gpt_cli.sampling.sampling_params import with_learned_end
from gpt_cli.sampling.text_stream import FinishReason
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.terminal.words import plural

DRAWS = ("temperature", "top_k", "top_p", "min_p")
PROMPTS, _LENGTH, _CHOICE, _LIMITS = "What to continue", "How long", "How to choose tokens", "What may be written"


def _optional(kind: Any, heading: str, text: str, metavar: str | None = None) -> Any:
    """An option that is None unless it is given."""
    return Annotated[kind | None, option(heading, text, metavar=metavar)], None


SAMPLING_OPTIONS: OptionTable = {
    "heal": _optional(bool, PROMPTS, "Complete a word that the prompt breaks off."),
    "max_new_tokens": _optional(int, _LENGTH, "Tokens to write."),
    "min_new_tokens": _optional(int, _LENGTH, "Tokens before which nothing ends the text."),
    "stop": _optional(list[str], _LENGTH, "End before this text. Repeatable.", "TEXT"),
    "temperature": _optional(float, _CHOICE, "Below 1 safer, above 1 wilder; 0: always the likeliest."),
    "top_k": _optional(int, _CHOICE, "Among the k likeliest tokens. 0: off."),
    "top_p": _optional(float, _CHOICE, "Among the likeliest with this probability. 1: off."),
    "min_p": _optional(float, _CHOICE, "Not below this times the likeliest's probability. 0: off."),
    "repetition_penalty": _optional(float, _CHOICE, "Above 1: against tokens seen before. 1: off."),
    "no_repeat_ngram": _optional(int, _CHOICE, "Never the same n tokens in a row again. 0: off."),
    "logit_bias": _optional(list[str], _CHOICE, "Add X to a token's logit: its text, or #id. Repeatable.", "TOKEN=X"),
    "seed": _optional(int, _CHOICE, "The same seed, the same text. [default: random, printed]"),
    "beams": _optional(int, _CHOICE, "Search the likeliest text with N candidates. 0: off."),
    "length_penalty": _optional(float, _CHOICE, "Of beams: the higher, the longer."),
    "choices": _optional(str, _LIMITS, "One of these texts.", "A,B,..."),
    "regex": _optional(str, _LIMITS, "A match of this regular expression.", "PATTERN"),
    "json_schema": _optional(Path, _LIMITS, "JSON that the schema in this file allows; - is standard input.", "FILE"),
    "grammar": _optional(Path, _LIMITS, "Text of the Lark grammar in this file; - is standard input.", "FILE"),
}
"""The options that are fields of `SamplingParams`, in the order in which help lists them."""


def sampling_options(given: Mapping[str, Any]) -> SamplingOptions:
    """The sampling options that were given, their texts parsed and their files read."""
    options = {name: value for name, value in given.items() if value is not None}
    if "logit_bias" in options:
        options["logit_bias"] = [_parse_bias(text) for text in options["logit_bias"]]
    if "choices" in options:
        options["choices"] = options["choices"].split(",")
    for name in ("json_schema", "grammar"):
        if name in options:
            options[name] = read_small_file(options[name])
    return cast(SamplingOptions, options)


def sampling_params(config: Config, options: SamplingOptions) -> SamplingParams:
    """The settings of a run, changed by `options`; without a seed a random one. Notes options without effect."""
    options = with_learned_end(options, config.data.learned_end)
    sampling = SamplingParams.from_config(config.sample, random_seed()).replace(options)
    unused = [_flag(name) for name in DRAWS if options.get(name)]
    if unused and (sampling.beams is not None or sampling.greedy):
        reason = "at temperature 0" if sampling.beams is None else "with beam search"
        note(f"no effect {reason}: {', '.join(unused)}")
    return sampling


def note_unmatched(sampling: SamplingParams, finish_reasons: Iterable[FinishReason | None]) -> None:
    """Note texts that ended before they satisfied their constraint."""
    if sampling.constraint is None:
        return
    counts = Counter(finish_reasons)
    for count, cause in (
        (counts["length"], f"cut after {sampling.max_new_tokens:,} tokens (max_new_tokens)"),
        (counts["dead_end"], "ended where no token of the vocabulary could follow"),
    ):
        if count:
            note(f"{plural(count, 'text')} {cause}: {_flag(sampling.constraint[0])} may not be satisfied")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parse_bias(text: str) -> tuple[str | int, float]:
    """`TOKEN=X`, where TOKEN is a text, or # and an id."""
    token, _, number = text.rpartition("=")
    try:
        bias = float(number if token else "")
    except ValueError:
        shown = escape_control_chars(text)
        raise UsageError(f"--logit-bias must be TOKEN=NUMBER, not '{shown}'") from None
    return (int(token[1:]) if token.startswith("#") and token[1:].isdecimal() else token), bias
