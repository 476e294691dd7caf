"""Choose the reading of a source by its beginning: the keys of texts, pairs, chats or labels, or lines as documents."""

from collections.abc import Iterable, Mapping
from itertools import islice, pairwise
from typing import Any

from gpt_cli.config import to_yaml_scalar
from gpt_cli.config.schema import DataConfig
from gpt_cli.config.section import ConfigValues
from gpt_cli.corpus.json_records import parse_json_line
from gpt_cli.corpus.readers import ReaderOptions
from gpt_cli.corpus.records import Record, is_chat
from gpt_cli.corpus.sources import find_files
from gpt_cli.errors import UserError

# The names that public data sets use, the likeliest first.
_CHATS = ("messages", "conversations", "conversation")
_PROMPTS = ("instruction", "prompt", "question", "query", "input")
_CONTEXTS = ("input", "context")
_COMPLETIONS = ("completion", "output", "response", "answer")
_TEXTS = ("text", "content", "document", "body", "story", "article")
_LABELS = ("label", "class", "category", "sentiment", "target", "rating", "intent", "topic")

_KEYS_OF = {
    "text": ("data.text_key",),
    "pairs": ("data.prompt_key", "data.completion_key"),
    "chat": ("data.messages_key",),
    "labelled": ("data.text_key", "data.label_key"),
}
"""The keys of each format; the first format that has a key is meant by it."""
_COMPARED = 100  # records, some of which may lack a context
_COMPARED_CHARACTERS = 1 << 20  # of a plain text
_FEWEST_LINES = 50
_LONGEST_MEAN, _LONGEST_LINE = 80, 300  # characters of a line
_NARROWEST_PAGE = 40  # characters


def first_record(sources: Iterable[str], options: ReaderOptions) -> Record | None:
    """Return the first record of `sources`, with a context that it leaves out and others soon after it have.

    None if all of the files are plain text. Raises as reading does.
    """
    for source in sources:
        for file in find_files(source, options, lambda _: None):
            if file.records is None:
                continue
            records = islice(file.records((), lambda _: None), _COMPARED)
            if (first := next(records, None)) is not None:
                contexts = {key for record in records for key in _CONTEXTS if key in record.values}
                return Record(first.where, {**dict.fromkeys(contexts, ""), **first.values})
    return None


def choose_keys(record: Record, requested: ConfigValues) -> dict[str, Any]:
    """Return the keys of a config that read records such as `record`, those at their defaults left out.

    The format follows from what is `requested`, which stays. Empty where no key is known to hold a text.
    """
    values = {name: value for name, value in record.values.items() if _can_be_named(name)}
    asked = requested.get("data.format", "labelled" if requested.get("task.kind") == "classes" else None)
    if asked is None:
        asked = next((form for form, keys in _KEYS_OF.items() if requested.keys() & {*keys}), None)
    if asked is None:
        is_instruction = "instruction" in values and _first(_COMPLETIONS, values)  # Alpaca has a text of both, too
        forms = ("chat",) if isinstance(values.get("text"), str) and not is_instruction else ("chat", "pairs", "text")
        return next((keys for form in forms if (keys := _find_keys(form, values))), {})
    found = _find_keys(asked, values)
    if asked == "pairs" and requested.keys() & {*_KEYS_OF["pairs"]}:
        found = {}  # a record cannot show the one that is not asked for
    format_keys = {} if asked == "text" else {"data.format": asked}
    return {key: value for key, value in found.items() if key not in requested} | format_keys


def _can_be_named(key: str) -> bool:
    """True for a key that a config can hold."""
    return key != "" and not any("\ud800" <= character < "\ue000" for character in key)


def _first(names: Iterable[str], among: Iterable[str]) -> str | None:
    return next((name for name in names if name in among), None)


def _find_keys(form: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that read a record in a format; empty if it has none."""
    match form:
        case "chat":
            names = [*_CHATS, *(name for name in values if name not in _CHATS)]
            key = next((name for name in names if _holds_chat(values.get(name))), None)
            return {} if key is None else {"data.format": "chat", "data.messages_key": key}
        case "pairs":
            texts = [name for name, value in values.items() if isinstance(value, str | None)]
            prompt, completion = _first(_PROMPTS, texts), _first(_COMPLETIONS, texts)
            if prompt is None or completion is None:
                return {}
            context = _first((name for name in _CONTEXTS if name != prompt), texts)
            prompts = prompt if context is None else [prompt, context]
            return {"data.format": "pairs", "data.prompt_key": prompts, "data.completion_key": completion}
        case "labelled":
            label = _first(_LABELS, values)
            keys = _find_keys("text", {name: value for name, value in values.items() if name != label})
            return keys if label is None else {**keys, "data.label_key": label}
    texts = [name for name, value in values.items() if isinstance(value, str) and name not in _LABELS]
    key = _first(_TEXTS, texts)
    if key is None and _TEXTS[0] not in values:
        sentences = texts if len(texts) == 1 else [name for name in texts if len(values[name].split()) > 1]
        key = sentences[0] if len(sentences) == 1 else None
    return {} if key is None else {"data.text_key": key}


def _holds_chat(value: Any) -> bool:
    """True for a list of messages, or its JSON, as in the column of a table."""
    if isinstance(value, str) and value.startswith("[{"):
        try:
            value = parse_json_line(value, "")
        except UserError:
            return False
    return is_chat(value)


def describe_keys(keys: ConfigValues) -> str:
    """Return a sentence on the keys by which records are read, and on the key that forces another reading."""
    form = keys.get("data.format", "text")
    usual = {key: getattr(DataConfig(), key.removeprefix("data.")) for key in _KEYS_OF[form]}
    chosen = {key: keys.get(key, value) for key, value in usual.items()}
    if form == "labelled" and chosen == usual:
        return ""
    shown = [f"{key}={to_yaml_scalar(value)}" for key, value in chosen.items()]
    others = {"labelled": "", "text": "; data.text_key=KEY reads others"}
    return f"Records are read by {' '.join(shown)}{others.get(form, '; data.text_key=KEY reads a text instead')}."


def propose_lines(text: str) -> str:
    """Return a sentence that proposes to read each line as a document, where lines are short and alike; else empty.

    Those of verse and source code are not, which has blank or indented ones, nor those of paragraphs that are broken
    at one width.
    """
    lines = text[:_COMPARED_CHARACTERS].split("\n")[:-1]
    lengths = sorted(map(len, lines))
    if len(lines) < _FEWEST_LINES or sum(lengths) > _LONGEST_MEAN * len(lines) or lengths[-1] > _LONGEST_LINE:
        return ""
    width = lengths[-1]
    is_broken = width >= _NARROWEST_PAGE and sum(length > 0.85 * width for length in lengths) > len(lines) / 2
    irregular = sum(not line.strip() or line[0].isspace() for line in lines)
    if is_broken or irregular > len(lines) / 1000:
        return ""
    is_sorted = all(first <= second for first, second in pairwise(map(str.casefold, lines)))
    of_order = " They are sorted, so the end that is held out is unlike the rest." if is_sorted else ""
    return f"Its lines are short and alike: if each is a text of its own, data.documents=lines.{of_order}"
