"""Options of `gpt sample` and `gpt chat` as settings: what was given, in the words of `Sampling`."""

from typing import TYPE_CHECKING, Any

from gpt_cli.errors import RequestError
from gpt_cli.terminal.escape import escape_control_chars

if TYPE_CHECKING:
    from gpt_cli.sampling import SamplingOptions


def given_options(**options: Any) -> "SamplingOptions":
    """The options that were given (not None). What switches a filter off, 0 or no characters, becomes None."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in ("top_k", "min_p", "no_repeat_ngram", "beams", "forbid", "allow"):
        if name in given:
            given[name] = given[name] or None
    return given  # type: ignore[return-value]


def parse_bias(text: str) -> tuple[str | int, float]:
    """`TOKEN=X`, where TOKEN is a text, or # and an id."""
    token, equals, number = text.rpartition("=")
    try:
        if not token or not equals:
            raise ValueError
        is_id = token.startswith("#") and token[1:].isdecimal()
        return (int(token[1:]) if is_id else token), float(number)
    except ValueError:
        raise RequestError(
            f"--logit-bias must be TOKEN=NUMBER, not '{escape_control_chars(text)}'", hint="such as --logit-bias e=-2"
        ) from None
