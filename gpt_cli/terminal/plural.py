"""Nouns after numbers and articles."""


def plural(count: int, noun: str) -> str:
    """`1 step`, `2,000 steps`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def with_article(name: str) -> str:
    """`a LlamaForCausalLM`, `an OPTForCausalLM`."""
    return f"{'an' if name[:1] in 'AEIOaeio' else 'a'} {name}"
