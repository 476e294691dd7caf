"""Errors as the user reads them, and text that must not drive a terminal."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.errors import ExitCode, RequestError, UserError
from gpt_cli.terminal.escape import escape_control_chars

anything = st.text(st.characters(), max_size=50)  # lone surrogates included
harmless = st.text(st.characters(categories=["L", "N", "P", "S", "M"], include_characters=" "), max_size=50)


def drives_terminal(text: str) -> bool:
    bidirectional = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    return any(
        unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"}
        or unicodedata.bidirectional(c) in bidirectional
        or c in "\u200e\u200f\u061c"
        for c in text
    )


@given(anything)
def test_escaped_text_cannot_drive_a_terminal(text: str) -> None:
    assert not drives_terminal(escape_control_chars(text))


@given(anything)
def test_escaped_text_can_always_be_printed_in_utf8(text: str) -> None:
    escape_control_chars(text).encode()


@given(harmless)
def test_harmless_text_is_left_as_it_is(text: str) -> None:
    assert escape_control_chars(text) == text


@given(anything)
def test_escaping_twice_is_escaping_once(text: str) -> None:
    assert escape_control_chars(escape_control_chars(text)) == escape_control_chars(text)


@given(anything)
def test_only_what_is_asked_for_is_kept(text: str) -> None:
    escaped = escape_control_chars(text, keep="\n\t")
    assert not drives_terminal(escaped.replace("\n", "").replace("\t", ""))
    assert (escaped.count("\n"), escaped.count("\t")) == (text.count("\n"), text.count("\t"))


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("\x1b]0;pwned\x07", "\\x1b]0;pwned\\x07"),
        ("a\rb\x08c\x7f", "a\\rb\\x08c\\x7f"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
        ("\u2028", "\\u2028"),
        ("👩‍👩‍👧 naïve 日本語", "👩‍👩‍👧 naïve 日本語"),
    ],
)
def test_what_is_escaped_can_be_read(text: str, escaped: str) -> None:
    assert escape_control_chars(text) == escaped


@given(message=anything, where=st.none() | anything, hint=st.none() | anything)
def test_an_error_is_one_error_one_place_and_one_hint(message: str, where: str | None, hint: str | None) -> None:
    rendered = UserError(message, where=where, hint=hint).render()
    lines = rendered.split("\n")
    assert lines[0].startswith("error: ")
    assert len(lines) == 1 + message.count("\n") + (where is not None) + (hint is not None)
    assert not drives_terminal(rendered.replace("\n", ""))


def test_failed_work_and_wrong_requests_have_their_own_exit_codes() -> None:
    assert UserError("").exit_code == ExitCode.FAILED == 1
    assert RequestError("").exit_code == ExitCode.USAGE == 2
