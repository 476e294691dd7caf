"""The base of the schema's sections, the types of their values, and the errors of keys that do not go together."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from gpt_cli.literals import INT32_MAX

DISAGREEMENT = "disagreement"
"""The type of pydantic's error for keys that do not go together; its context has the `keys`."""
ConfigValues = Mapping[str, Any]
"""{dotted key: value} of some keys of a config."""
Conditions = tuple[tuple[Callable[[Any], object], str], ...]
"""What a section must meet, each with the error if it does not."""

_COUNT = re.compile(r"([0-9]{1,9})([kKmM])")
_DURATION = re.compile(r"(?=.)(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?")


def parse_duration(text: str) -> int | None:
    """Seconds in a duration such as 90s, 10m or 1h30m, at least one; None if `text` is none."""
    if (match := _DURATION.fullmatch(text)) is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds or None


def _read_count(value: Any) -> Any:
    """Accept 10k, 2M and 1e3 for whole numbers."""
    if isinstance(value, str) and (found := _COUNT.fullmatch(value)):
        return int(found[1]) * {"k": 1000, "m": 1_000_000}[found[2].lower()]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _read_minutes(value: Any) -> Any:
    """Accept 90s for minutes."""
    seconds = parse_duration(value) if isinstance(value, str) else None
    return value if seconds is None else seconds / 60


AsCount = BeforeValidator(_read_count)
Count = Annotated[int, Field(ge=1, le=INT32_MAX), AsCount]
Steps = Annotated[int, Field(ge=0, le=INT32_MAX), AsCount]
Every = Count | None
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0, le=1e30)]  # that fp32 holds, with room for a product
Factor = Annotated[float, Field(ge=1e-6, le=1e6)]
Minutes = Annotated[float, Field(gt=0.0, le=1e7), BeforeValidator(_read_minutes)]  # 19 years, which every timer can add
Name = Annotated[str, Field(min_length=1)]


class ConfigSection(BaseModel):
    """A part of the config: frozen, strict about types, and closed to unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
    conditions: ClassVar[Conditions] = ()
    """In the errors `{key}` stands for `section.key (value)`, and `{key:key}` for `section.key`."""

    @model_validator(mode="after")
    def _check_conditions(self) -> Self:
        for holds, message in self.conditions:
            if not holds(self):
                named = _NamedValues(self)
                context = {"message": message.format_map(named), "keys": tuple(named.keys)}
                raise PydanticCustomError(DISAGREEMENT, "{message}", context)
        return self


class _NamedValues:
    """The values of a section for the message of a condition; `keys` are those that it names."""

    def __init__(self, section: ConfigSection) -> None:
        self.section = section
        self.prefix = type(section).__name__.removesuffix("Config").lower()
        self.keys: list[str] = []

    def __getitem__(self, name: str) -> "_NamedValue":
        key = f"{self.prefix}.{name}" if self.prefix else name
        return _NamedValue(key, getattr(self.section, name), self.keys)


class _NamedValue:
    def __init__(self, key: str, value: Any, keys: list[str]) -> None:
        self._key, self._value, self._keys = key, value, keys

    def __getattr__(self, name: str) -> "_NamedValue":
        return _NamedValue(f"{self._key}.{name}", getattr(self._value, name), self._keys)

    def __format__(self, style: str) -> str:
        self._keys.append(self._key)
        return self._key if style == "key" else f"{self._key} ({show_plain(self._value)})"


def show_plain(value: object) -> str:
    """A value as a config has it, texts without quotes."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def given_values(section: Any) -> Mapping[str, Any]:
    """The values that are set in a section, validated or not; none if it is not a section."""
    if isinstance(section, BaseModel):
        return section.model_dump(exclude_unset=True)
    return section if isinstance(section, Mapping) else {}
