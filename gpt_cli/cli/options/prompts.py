"""The prompts of `gpt sample`: from the command line, a file or standard input; one text, or one a line."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpt_cli.cli.output import refuse_several
from gpt_cli.corpus.small_file import as_request_error, file_name, json_objects, numbered_lines, read_small_file
from gpt_cli.corpus.stored_file import inner_suffix
from gpt_cli.errors import RequestError

PromptsFormat = Literal["auto", "lines", "jsonl"]


@dataclass(frozen=True)
class Prompt:
    """A text to continue, its place in a file for errors, and the key `id` of its JSON line."""

    text: str
    where: str | None = None
    id: Any = None


def read_prompts(
    prompt: str | None,
    prompt_file: Path | None = None,
    prompts: Path | None = None,
    prompts_format: PromptsFormat = "auto",
) -> list[Prompt] | None:
    """The prompts that the command line names; None where it names none.

    Raises RequestError for two sources at once, and for what is not there, a table, not UTF-8, or not JSON lines.
    """
    sources = {"--prompt": prompt, "--prompt-file": prompt_file, "--prompts": prompts}
    refuse_several({name: source is not None for name, source in sources.items()})
    if prompts is not None:
        return _read_lines(prompts, prompts_format)
    file = Path("-") if prompt == "-" else prompt_file
    if file is not None:
        return [Prompt(read_small_file(file))]
    return None if prompt is None else [Prompt(prompt)]


def _read_lines(path: Path, format_: PromptsFormat) -> list[Prompt]:
    """A prompt for each line: the line itself, or the key `prompt` of the JSON object that it is."""
    name, suffix = file_name(path), inner_suffix(path)
    if format_ == "auto" and suffix in (".csv", ".parquet") and path.is_file():
        raise RequestError(f"{name} is a table: prompts are lines of text, or of JSON with the key prompt")
    text = read_small_file(path)
    if format_ == "lines" or (format_ == "auto" and suffix != ".jsonl"):
        parsed = [Prompt(line, where) for where, line in numbered_lines(text, name)]
    else:
        with as_request_error():
            parsed = [Prompt(line["prompt"], where, line.get("id")) for where, line in json_objects(text, name)]
    if not parsed or text == "\n":
        raise RequestError("there are no prompts", where=name)
    for prompt in parsed:
        try:
            json.dumps(prompt.id, allow_nan=False)  # Python reads NaN and 1e999
        except ValueError:
            raise RequestError("the id is not finite, which JSON lacks", where=prompt.where) from None
    return parsed
