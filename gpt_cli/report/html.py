"""Render self-contained pages: styles, drawings and the script are inline.

All text passes Jinja's autoescape, and characters that reorder or hide text are made visible, so output of a model, a
config or a file name is never markup. The content security policy forbids all requests, and all scripts but the one
with its hash.
"""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from gpt_cli.errors import RequestError
from gpt_cli.files import replace_file
from gpt_cli.files.locations import require_writable
from gpt_cli.terminal.escape import escape_control_chars

_TEMPLATES = Path(__file__).parent / "templates"


def render_page(template: str, script: str | None, **content: Any) -> str:
    """Render the file `template` with `content`; the file `script`, if any, is its only script."""
    source = "" if script is None else (_TEMPLATES / script).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return (
        _environment()
        .get_template(template)
        .render(
            script=Markup(source),  # ours
            style=Markup(stylesheet()),  # ours
            policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'",
            **content,
        )
    )


def stylesheet() -> str:
    return (_TEMPLATES / "style.css").read_text(encoding="utf-8")


def check_page(output: Path) -> None:
    """Raise RequestError now, not after the work, if a page cannot be written to `output`."""
    if output.suffix.lower() not in (".html", ".htm"):
        named = [str(output.with_suffix(".html"))] if output.name else []
        raise RequestError(f"a page is written as .html, not as {output}", choices=named)
    require_writable(output)


def write_page(output: Path, page: str) -> None:
    """Write the page to `output`, atomically."""
    replace_file(output, page.encode("utf-8"))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = _prose
    environment.filters["count"] = lambda value: f"{value:,}"
    return environment


def _visible(value: Any) -> Any:
    """Text with control characters escaped; other values and our own Markup unchanged."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return escape_control_chars(value, keep="\n\t")
    return value


def _prose(text: str) -> Markup:
    """Text in which `words in backquotes` are code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(_visible(text)))))
