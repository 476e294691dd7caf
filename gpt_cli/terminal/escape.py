"""Untrusted text on a terminal: visible characters and their width."""

import re
from unicodedata import category, east_asian_width

# C0, DEL, C1; soft hyphen; marks, overrides and isolates of direction; line separators; invisible operators, byte order
# marks, annotations and tags; lone surrogates. Format characters that scripts are written with stay: the zero-width
# space and joiners (Khmer, Persian, emoji), and Arabic and Syriac number signs.
_UNSAFE = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff0-\\ufffb"
    "\\ud800-\\udfff\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000e0000-\\U000e007f]"
)


def escape_control_chars(text: str, keep: str = "") -> str:
    """`text` with each character that drives a terminal, reorders or hides text escaped (ESC becomes `\\x1b`).

    Characters in `keep` stay. Samples, names and file contents pass through here before a terminal sees them.
    """
    return _UNSAFE.sub(lambda match: match[0] if match[0] in keep else _visible(match[0]), text)


def _visible(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def display_width(text: str) -> int:
    """Terminal columns of escaped text: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(1 + (east_asian_width(c) in "WF") for c in text if category(c) not in ("Mn", "Me", "Cf"))


def shorten(text: str, columns: int) -> str:
    """`text` cut to at most `columns` terminal columns, with an ellipsis if it was cut."""
    if display_width(text) <= columns:
        return text
    kept = text[: columns - 1]
    while display_width(kept) >= columns:
        kept = kept[:-1]
    return f"{kept}…"
