"""The prompts of `gpt sample`: from the command line, a file or standard input; one text, or one a line."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gpt_cli.cli.output import note, refuse_several
from gpt_cli.errors import RequestError

PromptsFormat = Literal["auto", "lines", "jsonl"]


@dataclass(frozen=True)
class Prompt:
    """A text to continue. `where` is its place in a file, for errors; `id` what a JSON line calls it."""

    text: str
    where: str | None = None
    id: Any = None

    def wrapped(self, prefix: str, suffix: str) -> "Prompt":
        """The whole of what is continued. Raises RequestError for a text that imitates `prefix` or `suffix`."""
        from gpt_cli.corpus.turn_template import refuse_marks

        try:
            refuse_marks(self.text, prefix, suffix)
        except RequestError as error:
            error.where = self.where
            raise
        return replace(self, text=prefix + self.text + suffix)


def read_prompts(
    prompt: str | None, prompt_file: Path | None, prompts: Path | None, prompts_format: PromptsFormat
) -> list[Prompt] | None:
    """The prompts that the command line names; None where it names none.

    Raises RequestError for two sources at once, and for what is not there, a table, not UTF-8, or not JSON lines.
    """
    sources = {"--prompt": prompt, "--prompt-file": prompt_file, "--prompts": prompts}
    refuse_several({name: source is not None for name, source in sources.items()})
    if prompts is None and prompts_format != "auto":
        raise RequestError("--prompts-format is of --prompts, which is not given", hint="--prompts FILE")
    from gpt_cli.corpus.small_file import read_small_file

    if prompts is not None:
        return _read_many(prompts, prompts_format)
    if prompt_file is not None:
        return [Prompt(read_small_file(prompt_file))]
    if prompt == "-":
        return [Prompt(read_small_file(Path("-")))]
    return None if prompt is None else [Prompt(prompt)]


def _read_many(path: Path, format_: PromptsFormat) -> list[Prompt]:
    """A prompt for each line: the line itself, or the key `prompt` of the JSON object that it is."""
    from gpt_cli.corpus.small_file import as_request_error, file_name, json_objects, numbered_lines, read_small_file
    from gpt_cli.corpus.stored_file import inner_suffix

    name, is_jsonl = file_name(path), inner_suffix(path) == ".jsonl"
    if format_ == "auto" and inner_suffix(path) in (".csv", ".parquet") and path.is_file():
        raise RequestError(
            f"{name} is a table, and prompts are lines of text, or of JSON with the key prompt",
            hint="write them one to a line; --prompts-format lines takes the lines of a .csv as they are",
        )
    text = read_small_file(path)
    if format_ == "jsonl" or (format_ == "auto" and is_jsonl):
        with as_request_error():
            objects = list(json_objects(text, name))
        if unread := list(dict.fromkeys(key for _, value in objects for key in value if key not in ("prompt", "id"))):
            others = " or others" if len(unread) > 3 else ""
            note(f"of a line, prompt and id are read, and nothing else: not {', '.join(unread[:3])}{others}")
        parsed = [Prompt(value["prompt"], where, _checked_id(value.get("id"), where)) for where, value in objects]
    else:
        parsed = [Prompt(line, where) for where, line in numbered_lines(text, name)]
    if not parsed or text == "\n":
        raise RequestError("there are no prompts", where=name)
    return parsed


def _checked_id(value: Any, where: str) -> Any:
    """`value`. Raises RequestError if it cannot be written as JSON again: Python reads NaN and 1e999."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise RequestError("the id has a number that is not finite, which JSON lacks", where=where) from None
    return value
