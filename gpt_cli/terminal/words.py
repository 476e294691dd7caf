"""Numbers and nouns as text: counts, sizes, durations, articles."""


def plural(count: int, noun: str) -> str:
    """`1 step`, `2,000 steps`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def with_article(name: str) -> str:
    """`a LlamaForCausalLM`, `an OPTForCausalLM`."""
    return f"{'an' if name[:1] in 'AEIOaeio' else 'a'} {name}"


def format_size(size: int) -> str:
    """A size in bytes as 1 byte, 512 bytes, 1.5 MB or 12.0 GB."""
    for unit, scale in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return plural(size, "byte")


def format_duration(seconds: float) -> str:
    """A duration as 0:07, 12:30 or 1:05:00."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def short_number(number: float) -> str:
    """A number with three digits and a unit: 12.3M for 12,345,678."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g}{unit}"
    return f"{number:.0f}"
