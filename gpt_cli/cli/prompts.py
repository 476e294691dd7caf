"""The prompts of `gpt sample`: from the command line, a file or standard input; one text, or one a line."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gpt_cli.errors import RequestError
from gpt_cli.files import read_file

PromptsFormat = Literal["auto", "lines", "jsonl"]

_LIMIT = 1 << 26  # bytes of a file


@dataclass(frozen=True)
class Prompt:
    """A text to continue. `where` is its place in a file, for errors; `id` what a JSON line calls it."""

    text: str
    where: str | None = None
    id: Any = None

    def wrapped(self, prefix: str, suffix: str) -> "Prompt":
        return replace(self, text=prefix + self.text + suffix)


def read_prompts(
    prompt: str | None, prompt_file: Path | None, prompts: Path | None, prompts_format: PromptsFormat
) -> list[Prompt] | None:
    """The prompts that the command line names; None where it names none.

    Raises RequestError for two sources at once, and for what is not there, not UTF-8, or not JSON lines.
    """
    sources = {"--prompt": prompt, "--prompt-file": prompt_file, "--prompts": prompts}
    given = [name for name, source in sources.items() if source is not None]
    if len(given) > 1:
        raise RequestError(f"give {given[0]} or {given[1]}, not both")
    if prompts is not None:
        return _read_many(prompts, prompts_format)
    if prompt_file is not None:
        return [Prompt(_read(prompt_file))]
    if prompt == "-":
        return [Prompt(_read(Path("-")))]
    return None if prompt is None else [Prompt(prompt)]


def _read(path: Path) -> str:
    """The text of a file, to its last newline, or of standard input."""
    if str(path) == "-":
        if sys.stdin is None:
            raise RequestError("standard input is closed")
        return _decode(sys.stdin.buffer.read(), "standard input")
    if not path.exists():
        raise RequestError(f"there is no file {path}")
    return _decode(read_file(path, _LIMIT), str(path))


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise RequestError(
            f"the prompt is not UTF-8 text: byte 0x{byte:02x} at offset {error.start}", where=name
        ) from None


def _read_many(path: Path, format_: PromptsFormat) -> list[Prompt]:
    """A prompt for each line: the line itself, or the key `prompt` of the JSON object that it is."""
    name = "standard input" if str(path) == "-" else str(path)
    lines = _read(path).removesuffix("\n").split("\n")
    places = [(line.removesuffix("\r"), f"{name}:{number}") for number, line in enumerate(lines, start=1)]
    if format_ == "jsonl" or (format_ == "auto" and path.suffix == ".jsonl"):
        found = [_from_json(line, where) for line, where in places if line.strip()]
    else:
        found = [Prompt(line, where) for line, where in places]
    if not found or lines == [""]:
        raise RequestError("there are no prompts", where=name)
    return found


def _from_json(line: str, where: str) -> Prompt:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"not a line of JSON: {error}", where=where) from None
    if not isinstance(value, dict) or not isinstance(value.get("prompt"), str):
        raise RequestError("a JSON object with the key prompt, a text, is expected", where=where)
    return Prompt(value["prompt"], where, value.get("id"))
