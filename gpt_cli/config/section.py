"""The base of the schema's sections, and the types of their values."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from gpt_cli.literals import INT32_MAX

Count = Annotated[int, Field(ge=1, le=INT32_MAX)]
Steps = Annotated[int, Field(ge=0, le=INT32_MAX)]
Every = Count | None
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0, le=1e30)]  # that fp32 holds, with room for a product
Factor = Annotated[float, Field(ge=1e-6, le=1e6)]
Minutes = Annotated[float, Field(gt=0.0, le=1e7)]  # 19 years, which every clock and timer can add up
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
