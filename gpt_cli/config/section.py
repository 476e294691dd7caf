"""The base of the schema's sections, and the types of their values."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

INT32_MAX = 2**31 - 1  # of whole numbers: products of two of them still fit in 64 bits

Count = Annotated[int, Field(ge=1, le=INT32_MAX)]
Steps = Annotated[int, Field(ge=0, le=INT32_MAX)]
Every = Count | None
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Name = Annotated[str, Field(min_length=1)]

ConfigValues = Mapping[str, Any]
"""{dotted key: value} of some keys of a config."""


class ConfigSection(BaseModel):
    """A part of the config: frozen, strict about types, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def given_values(section: Any) -> Mapping[str, Any]:
    """The values that are set in a section, be it validated or not; of what is no section, none."""
    if isinstance(section, BaseModel):
        return section.model_dump(exclude_unset=True)
    return section if isinstance(section, Mapping) else {}
