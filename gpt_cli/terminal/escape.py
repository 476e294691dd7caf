"""Untrusted text on a terminal: escaped control characters, display width, wrapped lines."""

import unicodedata

WIDTH = 80
"""Columns of a terminal that everybody has."""

# Format characters (Cf) that reorder or hide text; joiners stay, because emoji and many scripts need them.
_BIDIRECTIONAL = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def escape_control_chars(text: str, keep: str = "") -> str:
    """`text` with every character that could drive a terminal made visible (ESC becomes `\\x1b`).

    Escaped are control characters (C0, DEL, C1), bidirectional overrides, line separators and lone surrogates,
    except those in `keep`. Samples, names and file contents pass through here before a terminal sees them.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or not _drives_terminal(c) else _visible(c) for c in text)


def display_width(text: str) -> int:
    """Terminal columns of `text`: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(character_width(character) for character in text)


def character_width(character: str) -> int:
    """Terminal columns of a character that does not drive it."""
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def wrap_line(line: str, columns: int) -> list[str]:
    """`line` cut into pieces of at most so many terminal columns (2 at least), after a space where there is one.

    The pieces together are the line, with every space and character of it.
    """
    pieces = []
    start = width = 0
    blank: int | None = None  # where a piece could end
    for place, character in enumerate(line):
        width += character_width(character)
        if width > columns:
            end = blank or place
            pieces.append(line[start:end])
            start, blank, width = end, None, display_width(line[end : place + 1])
        if character == " ":
            blank = place + 1
    return [*pieces, line[start:]]


def _drives_terminal(character: str) -> bool:
    return character in _BIDIRECTIONAL or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def _visible(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
