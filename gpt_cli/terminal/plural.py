"""Nouns after numbers."""


def plural(count: int, noun: str) -> str:
    """`1 step`, `2,000 steps`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
