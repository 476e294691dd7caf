"""Limits of requests, and of their number at once. Beyond it a request is refused: nothing grows without bound."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """All of them; `gpt serve` has an option for most."""

    seats: int = 64
    """Texts that are written at once; others queue."""
    queue: int = 256
    """Texts that wait; with so many a request gets 429."""
    prompt_tokens: int = 16_384
    """Tokens of one prompt. The model sees the last ones of what is longer than its context."""
    max_tokens: int = 4096
    """New tokens of one text."""
    n: int = 16
    """Texts of a prompt."""
    texts: int = 128
    """Texts of one request: prompts times n."""
    body: int = 1 << 20
    """Bytes of a request."""
    seconds: float = 300.0
    """From a request to the end of its text, the queue included."""
    body_seconds: float = 30.0
    """For a client to send a request."""
    logprobs: int = 20
    """Alternatives of a token."""
    prompt_step: int = 256
    """Tokens of prompts that a step reads beside the texts that are being written."""
