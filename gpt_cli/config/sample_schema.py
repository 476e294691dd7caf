"""The section `sample` of the schema."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from gpt_cli.config.section import ConfigSection, Count, Every, Name, Steps

# Bounds beyond which fp32 logits would overflow, or a search the memory.
MAX_TEMPERATURE = 1e6
MAX_PENALTY = 1e6
MAX_LENGTH_PENALTY = 10.0
MAX_BEAMS = 1024


class SampleConfig(ConfigSection):
    """Samples during training, and the default sampling settings afterwards."""

    every: Every = 250
    """Steps between samples; the last step always samples. null: never."""
    prompt: str = ""
    """Text that the samples continue. Empty: the start of a text."""
    max_new_tokens: Count = 200
    """Tokens written."""
    temperature: Annotated[float, Field(ge=0.0, le=MAX_TEMPERATURE)] = 0.8
    """Divides the logits; 0 always takes the likeliest token."""
    top_k: Count | None = None
    """Keep only the k likeliest tokens. null: off."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Keep the likeliest tokens that together have this probability (Holtzman et al., 2020). null: off."""
    min_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Keep tokens at least this fraction as likely as the likeliest (Nguyen et al., 2024). null: off."""
    repetition_penalty: Annotated[float, Field(ge=1.0 / MAX_PENALTY, le=MAX_PENALTY)] | None = None
    """Divides the logits of tokens that are there already (Keskar et al., 2019). null: off."""
    no_repeat_ngram: Count | None = None
    """No run of this many tokens occurs twice (Paulus et al., 2017). null: off."""
    min_new_tokens: Steps = 0
    """Before which neither the end of the text nor a stop string ends it."""
    stop: list[Name] = []
    """Texts before which a sample ends."""
    beams: Annotated[int, Field(ge=1, le=MAX_BEAMS)] | None = None
    """Search for the likeliest text with this many candidates, in place of sampling. null: off."""
    length_penalty: Annotated[float, Field(ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY)] = 1.0
    """Exponent, in beam search, of the length by which a text's log-probability is divided."""
    heal: bool = True
    """Draw the last tokens of a plain text prompt again, so that a word which it breaks off is completed."""
    prefix: str = ""
    """Put before each prompt."""
    suffix: str = ""
    """Put after each prompt."""

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"sample.min_new_tokens ({self.min_new_tokens:,}) is more than sample.max_new_tokens"
                f" ({self.max_new_tokens:,})"
            )
        return self
