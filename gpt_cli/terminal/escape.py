"""Untrusted text on a terminal: escaped control characters, display width, wrapped lines."""

import unicodedata

WIDTH = 80
"""Columns of the narrowest usual terminal."""

# Format characters (Cf) that reorder or hide text; joiners stay, because emoji and many scripts need them.
_BIDIRECTIONAL = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def escape_control_chars(text: str, keep: str = "") -> str:
    """`text` with every character that controls a terminal escaped (ESC becomes `\\x1b`).

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
    """Terminal columns of a character that is no control character."""
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def wrap_line(line: str, columns: int) -> list[str]:
    """Cut `line` into pieces of at most `columns` terminal columns (2 at least), after a space if there is one.

    The pieces, concatenated, are the line.
    """
    pieces = []
    start = width = 0
    break_index: int | None = None  # after the last space
    for index, character in enumerate(line):
        width += character_width(character)
        if width > columns:
            end = break_index or index
            pieces.append(line[start:end])
            start, break_index, width = end, None, display_width(line[end : index + 1])
        if character == " ":
            break_index = index + 1
    return [*pieces, line[start:]]


def _drives_terminal(character: str) -> bool:
    return character in _BIDIRECTIONAL or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def _visible(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
