"""Lengths of time as people write them: 90s, 10m, 1h30m."""

import re

_DURATION = re.compile(r"(?=.)(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?")


def parse_duration(text: str) -> int | None:
    """Seconds, at least one; None if `text` is no length of time."""
    if (match := _DURATION.fullmatch(text)) is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds or None
