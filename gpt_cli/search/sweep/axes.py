"""Keys to vary, parsed from the command line: `key=v1,v2` lists values, `key=low..high` is a range to search.

A range is searched on a log scale if its key is a rate, or with `key=log:low..high`.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpt_cli.config.keys import accepted_types, fields, schema_of
from gpt_cli.config.load import sets_null
from gpt_cli.config.yaml_reader import resolve_scalar
from gpt_cli.errors import RequestError

Point = Mapping[str, str]
"""{dotted key: value as it is written in an override} of one combination of values."""

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"(log:)?({_NUMBER})\.\.({_NUMBER})")
_RATES = frozenset({"optim.lr", "optim.adamw_lr", "optim.weight_decay", "optim.eps", "model.init_std"})
MAX_POINTS = 10_000
_DIGITS = 3  # significant digits of a number drawn from a range: it is part of the run's name
_REFUSED = {
    "run_dir": "each run has a directory of its own in that of the sweep (--out)",
    "seed": "each combination is trained with several seeds (--seeds)",
    "runtime.threads": "runs side by side share the processor (--jobs)",
    "train.budget": "a budget chooses size and steps by itself: sweep the config.yaml of the run that it chose, with"
    " train.budget=null train.max_minutes=null train.steps=N",
    "eval.max_tokens": "losses of different parts of the validation text do not compare",
    "tokenizer.min_count": "losses of texts of which different characters are unknown do not compare",
}
_TEXT = "losses on different texts do not compare"


@dataclass(frozen=True)
class ValueList:
    """Values of `key`, each tried with every value of the other keys."""

    key: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.key}={','.join(self.values)}"

    def ends(self) -> tuple[str, ...]:
        """The values that the schema must accept."""
        return self.values


@dataclass(frozen=True)
class ValueRange:
    """A range of `key` that is searched, ends included."""

    key: str
    low: float
    high: float
    log: bool
    whole: bool

    def __str__(self) -> str:
        return f"{self.key}={'log:' if self.log else ''}{self.low:g}..{self.high:g}"

    def ends(self) -> tuple[str, ...]:
        """The values that the schema must accept; it accepts what lies between, too."""
        return self.written(self.low), self.written(self.high)

    def written(self, value: float) -> str:
        """`value` as it is written in an override: of a fraction, three digits."""
        return str(round(value)) if self.whole else f"{value:.{_DIGITS}g}"


Axis = ValueList | ValueRange


def parse_axes(arguments: Sequence[str]) -> tuple[list[str], list[Axis]]:
    """(overrides with one value, keys with several) of `arguments`, `section.key=value` each.

    Raises RequestError for a key that may not be varied, or is varied twice, and for an invalid range.
    """
    fixed: list[str] = []
    axes: list[Axis] = []
    for argument in arguments:
        key, _, text = argument.partition("=")
        axis = None
        if key in fields():  # the loader reports an unknown key with its place
            listed = text.startswith("[") and text.endswith("]")
            if listed and not any(word.startswith("a list") for word in accepted_types(schema_of(key))):
                hint = f"values to try stand without brackets: {key}={text[1:-1].replace(' ', '')}"
                raise RequestError(f"{key} takes no list", hint=hint)
            axis = _parse(key, text)
        if axis is None:
            if key == "run_dir" or (key == "train.budget" and not sets_null(argument)):
                raise RequestError(f"{key} is not for a sweep", hint=_REFUSED[key])
            fixed.append(argument)
            continue
        if any(other.key == key for other in axes):
            raise RequestError(f"{key} is varied twice", hint=f"give all its values at once: {key}=A,B,C")
        axes.append(axis)
    given = {override.partition("=")[0] for override in fixed}
    if twice := next((axis.key for axis in axes if axis.key in given), None):
        raise RequestError(f"{twice} has one value and several", hint=f"give all its values at once: {twice}=A,B,C")
    _check(axes, fixed)
    return fixed, axes


def grid(axes: Sequence[Axis]) -> Iterator[dict[str, str]]:
    """Every combination of the values of lists, the last key fastest."""
    lists = [axis for axis in axes if isinstance(axis, ValueList)]
    for values in itertools.product(*(axis.values for axis in lists)):
        yield dict(zip((axis.key for axis in lists), values, strict=True))


def corners(axes: Sequence[Axis]) -> Iterator[dict[str, str]]:
    """Every combination of values and of ends of ranges: the schema must accept them all."""
    for values in itertools.product(*(axis.ends() for axis in axes)):
        yield dict(zip((axis.key for axis in axes), values, strict=True))


def every_point(axes: Sequence[Axis], limit: int) -> list[dict[str, str]] | None:
    """All combinations of values, whole numbers of ranges included; None for more than `limit`, or fractions."""
    if any(isinstance(axis, ValueRange) and not axis.whole for axis in axes):
        return None
    values = [
        axis.values if isinstance(axis, ValueList) else range(round(axis.low), round(axis.high) + 1) for axis in axes
    ]
    if math.prod(map(len, values)) > limit:
        return None
    return [
        dict(zip((axis.key for axis in axes), map(str, point), strict=True)) for point in itertools.product(*values)
    ]


def overrides_of(point: Point) -> list[str]:
    return [f"{key}={value}" for key, value in point.items()]


def short_name(point: Point) -> str:
    """`point` as a part of a directory's name: keys without their section, and nothing that a shell would read."""
    text = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in point.items())
    return re.sub(r"[^\w.,=+-]+", "-", text)[:60].rstrip(".,-=")


def split_values(text: str) -> list[str]:
    """`text` cut at the commas that are outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and not parts[-1]:
            quote = character
        elif character in "[]":
            depth += 1 if character == "[" else -1
        elif character == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += character
    return parts


def _parse(key: str, text: str) -> Axis | None:
    """The values or the range in `text`; None if it is a single value."""
    types = accepted_types(schema_of(key))
    is_number, is_whole = "a number" in types, "a whole number" in types and "a number" not in types
    if (is_number or is_whole) and (match := _RANGE.fullmatch(text)):
        low, high = float(match[2]), float(match[3])
        if not low < high:
            problem = f"{key}={text} is no range: {match[2]} is not below {match[3]}"
            raise RequestError(problem, hint=f"{key}=LOW..HIGH")
        if is_whole and (low != round(low) or high != round(high)):
            raise RequestError(f"{key}={text}: {key} takes whole numbers", hint=f"{key}={low:.0f}..{high:.0f}")
        log = match[1] is not None or (key in _RATES and low > 0)
        if log and low <= 0:
            raise RequestError(f"{key}={text}: a log scale begins above 0", hint=f"{key}=log:{high / 1000:g}..{high:g}")
        return ValueRange(key, low, high, log, is_whole)
    values = split_values(text)
    if len(values) == 1:
        return None
    if any(not value.strip() for value in values):
        raise RequestError(f"{key}={text} has an empty value", hint=f"{key}=A,B,C lists values, without spaces")
    stripped = [value.strip() for value in values]
    if len(set(map(resolve_scalar, stripped) if is_number or is_whole else stripped)) < len(values):
        raise RequestError(f"{key}={text} has a value twice", hint="--seeds N trains each value with N seeds")
    return ValueList(key, tuple(stripped))


def _check(axes: Sequence[Axis], fixed: Sequence[str]) -> None:
    for axis in axes:
        if reason := _refusal(axis.key, fixed):
            raise RequestError(f"{axis.key} cannot be swept: {reason}")
    if (points := _count(axes)) > MAX_POINTS:
        hint = "search ranges in their place: key=low..high"
        raise RequestError(f"{points:,} combinations are more than {MAX_POINTS:,}", hint=hint)


def _refusal(key: str, fixed: Sequence[str]) -> str | None:
    if key.startswith("data.") and key not in ("data.weights", "data.source"):
        return _TEXT
    if key == "data.source" and not any(override.startswith("data.val_source=") for override in fixed):
        return f"{_TEXT} (data.val_source=FILE has all evaluated on one)"
    return _REFUSED.get(key)


def _count(axes: Sequence[Axis]) -> int:
    return math.prod(len(axis.values) for axis in axes if isinstance(axis, ValueList))


def to_json(axis: Axis) -> dict[str, Any]:
    """`axis` as the plan of a sweep and `--json` have it."""
    if isinstance(axis, ValueList):
        return {"key": axis.key, "values": list(axis.values)}
    return {"key": axis.key, "low": axis.low, "high": axis.high, "log": axis.log}
