"""The texts that come with every Python, so that the first run needs no file and no network."""

import hashlib
import importlib
import io
import sysconfig
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from gpt_cli.errors import UserError

KEYWORDS = (
    *("assert", "class", "def", "del", "except", "for", "from", "if", "import"),
    *("raise", "return", "while", "with", "yield"),
)
"""The labels of `python_keywords`. Nothing in a line tells `elif` from `if`, so it is left out."""
_MOST = 2000  # lines of a keyword
_SHORTEST = 4  # characters after it
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
_NO_CODE = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENCODING}


def python_docs() -> str:
    """Return the language reference of this Python: about 465,000 characters of English.

    Raises UserError where it is not installed.
    """
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise UserError(
            "this Python was installed without its documentation topics, so there is no builtin:python-docs",
            choices=["corpus:tiny-shakespeare"],
        ) from error
    return "\n".join(topics[name] for name in sorted(topics))


def python_keywords() -> Iterator[tuple[str, str]]:
    """Yield (text, label) for lines of this Python's standard library: a line without the keyword it begins with.

    `for name in names:` becomes ("name in names:", "for"). Of each keyword come the 2000 different lines with the
    lowest hashes, by these, so a version of Python always has the same ones. Raises UserError where the library is not
    installed as source.
    """
    lines = _library_lines()
    if any(not lines[keyword] for keyword in KEYWORDS):
        raise UserError("this Python was installed without the source of its library, builtin:python-keywords")
    for keyword in KEYWORDS:
        for text in lines[keyword]:
            yield text, keyword


@cache
def _library_lines() -> dict[str, list[str]]:
    """The lines of each keyword. They are kept, as a command reads its corpus several times."""
    library = Path(sysconfig.get_paths()["stdlib"])
    found: dict[str, set[str]] = defaultdict(set)
    for path in library.rglob("*.py"):
        if _NOT_LIBRARY.isdisjoint(path.relative_to(library).parts):
            try:
                statements = list(_statements(path.read_text(encoding="utf-8")))
            except (OSError, SyntaxError, UnicodeDecodeError, tokenize.TokenError):
                continue  # a test of bad syntax, or a dangling link
            for keyword, rest in statements:
                if len(rest) >= _SHORTEST:
                    found[keyword].add(rest)
    return {
        keyword: sorted(found[keyword], key=lambda text: hashlib.sha256(text.encode()).digest())[:_MOST]
        for keyword in KEYWORDS
    }


def _statements(source: str) -> Iterator[tuple[str, str]]:
    """Yield (keyword, rest of the first line) for each statement that begins with one."""
    begins = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if begins and token.type == tokenize.NAME and token.string in KEYWORDS:
            yield token.string, token.line[token.end[1] :].strip()
        begins = token.type in _NO_CODE and (begins or token.type == tokenize.NEWLINE)
