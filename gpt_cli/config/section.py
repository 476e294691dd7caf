"""The base of the schema's sections, the types of their values, and the errors of keys that do not go together."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from gpt_cli.errors import join_or
from gpt_cli.literals import INT32_MAX

DISAGREEMENT = "disagreement"
"""The type of pydantic's error for keys that do not go together; its context has the `keys`."""
ConfigValues = Mapping[str, Any]
"""{dotted key: value} of some keys of a config."""
Conditions = tuple[tuple[Callable[[Any], object], str, str], ...]
"""(predicate of a section, error if it is false, keys it depends on, those for each {} of the error first)."""

_DURATION = re.compile(r"(?=.)(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?")


def parse_duration(text: str) -> int | None:
    """Seconds in a duration such as 90s, 10m or 1h30m, at least one; None if `text` is none."""
    if (match := _DURATION.fullmatch(text)) is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds or None


Count = Annotated[int, Field(ge=1, le=INT32_MAX)]
Steps = Annotated[int, Field(ge=0, le=INT32_MAX)]
Every = Count | None
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0, le=1e30)]  # that fp32 holds, with room for a product
Factor = Annotated[float, Field(ge=1e-6, le=1e6)]
Minutes = Annotated[float, Field(gt=0.0, le=1e7)]  # 19 years, which every timer can add
Name = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True)
class Needed:
    """A condition on a value that another key needs; `text` completes "must be"."""

    text: str
    holds: Callable[[Any], bool]


SET = Needed("set", lambda value: value is not None)


def other_than(*values: object) -> Needed:
    return Needed(f"other than {join_or(list(map(show_plain, values)))}", lambda value: value not in values)


Needs = tuple[tuple[str, Any, str, Any], ...]
"""(key, value, other key, the value it then must have); a value may be a `Needed`."""


class ConfigSection(BaseModel):
    """A part of the config: frozen, strict about types, and closed to unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
    needs: ClassVar[Needs] = ()
    conditions: ClassVar[Conditions] = ()

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        for key, other, needed in self.unmet_needs():
            message = f"{self._describe(key)} needs {self._describe(other)} to be {needed}"
            raise self._disagreement(message, [key, other])
        for holds, message, keys in self.conditions:
            if not holds(self):
                raise self._disagreement(message.format(*map(self._describe, keys.split())), keys.split())
        return self

    def unmet_needs(self) -> list[tuple[str, str, str]]:
        """(key, the other key, what it must be) of each row of `needs` that is not met."""
        return [
            (key, other, needed.text if isinstance(needed, Needed) else show_plain(needed))
            for key, value, other, needed in self.needs
            if _is(attrgetter(key)(self), value) and not _is(attrgetter(other)(self), needed)
        ]

    def _name(self, key: str) -> str:
        section = type(self).__name__.removesuffix("Config").lower()
        return f"{section}.{key}" if section else key

    def _describe(self, key: str) -> str:
        return f"{self._name(key)} ({show_plain(attrgetter(key)(self))})"

    def _disagreement(self, message: str, keys: Sequence[str]) -> PydanticCustomError:
        return PydanticCustomError(DISAGREEMENT, "{message}", {"message": message, "keys": [*map(self._name, keys)]})


def _is(value: object, wanted: object) -> bool:
    return wanted.holds(value) if isinstance(wanted, Needed) else value == wanted


def show_plain(value: object) -> str:
    """A value as a config has it, texts without quotes."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def given_values(section: Any) -> Mapping[str, Any]:
    """The values that are set in a section, validated or not; none if it is not a section."""
    if isinstance(section, BaseModel):
        return section.model_dump(exclude_unset=True)
    return section if isinstance(section, Mapping) else {}
