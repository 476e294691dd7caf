"""Limits on one request and on requests at once. A request beyond them is refused: nothing grows without bound."""

from dataclasses import dataclass

from gpt_cli.serve.api_errors import ApiError


@dataclass(frozen=True)
class Limits:
    """The limits of a server. `gpt serve` has an option for most."""

    seats: int = 64
    """The number of sequences that are generated at once: the slots of the batch. Others queue."""
    queue: int = 256
    """The number of sequences that may wait for a slot. A request beyond it gets 429."""
    prompt_tokens: int = 16_384
    """The most tokens of a prompt. A model sees the last ones of a prompt that is longer than its context."""
    max_tokens: int = 4096
    """The most new tokens of a sequence."""
    n: int = 16
    """The most sequences for one prompt."""
    texts: int = 128
    """The most sequences of a request: its prompts times n."""
    body: int = 1 << 20
    """The most bytes of a request's body."""
    seconds: float = 300.0
    """The most time from a request to the end of its sequences, the queue included."""
    body_seconds: float = 30.0
    """The most time for a client to send a request's body."""
    logprobs: int = 20
    """The most alternatives reported for a token."""
    prompt_step: int = 256
    """The number of prompt tokens that one step prefills, next to the sequences that it decodes."""


def check_limit(
    name: str, value: int, limit: int, *, param: str | None = None, code: str | None = "limit_exceeded"
) -> None:
    """Raise ApiError for a `value` beyond its limit."""
    if value > limit:
        raise ApiError(400, f"{name} must be at most {limit:,} here, not {value}", param=param or name, code=code)
