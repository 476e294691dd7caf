"""Choose the reading of a source by its beginning: the keys of texts, pairs, chats or labels, or lines as documents."""

from collections.abc import Iterable, Mapping
from itertools import islice, pairwise
from typing import Any

from gpt_cli.config.section import ConfigValues
from gpt_cli.corpus.readers import ReaderOptions
from gpt_cli.corpus.records import Record, is_chat, parse_json_line
from gpt_cli.corpus.sources import find_files
from gpt_cli.errors import UserError

# The names that public data sets use, the likeliest first.
_CHATS = ("messages", "conversations", "conversation")
_PROMPTS = ("instruction", "prompt", "question", "query", "input")
_CONTEXTS = ("input", "context")
_COMPLETIONS = ("completion", "output", "response", "answer")
_TEXTS = ("text", "content", "document", "body", "story", "article")
_LABELS = ("label", "class", "category", "sentiment", "target", "rating", "intent", "topic")

_COMPARED_CHARACTERS = 1 << 20  # of a plain text
_FEWEST_LINES = 50
_LONGEST_MEAN, _LONGEST_LINE = 80, 300  # characters of a line
_NARROWEST_PAGE = 40  # characters
_COMPARED = 100  # records, some of which may lack a context

_OF_FORMAT = {
    "text": {"data.text_key"},
    "pairs": {"data.prompt_key", "data.completion_key"},
    "chat": {"data.messages_key"},
    "labelled": {"data.label_key"},
}


def first_record(sources: Iterable[str], options: ReaderOptions) -> Record | None:
    """The first record of `sources`, with a context of its prompt that it leaves out and others soon after it have.

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
    """The keys of a config that read records such as `record`, those at their defaults left out.

    What is `requested` decides on the format, and stays. Empty where no key is known to hold a text.
    """
    values = {name: value for name, value in record.values.items() if _can_be_named(name)}
    asked = requested.get("data.format", "labelled" if requested.get("task.kind") == "classes" else None)
    if asked is None:
        asked = next((form for form, keys in _OF_FORMAT.items() if keys & requested.keys()), None)
    if asked is None:
        has_text = isinstance(values.get("text"), str) and not _is_instruction(values)
        forms = ("chat",) if has_text else ("chat", "pairs", "text")
        return next((keys for form in forms if (keys := _KEYS_OF[form](values))), {})
    found = _KEYS_OF[asked](values)
    if asked == "pairs" and _OF_FORMAT["pairs"] & requested.keys():
        found = {"data.format": "pairs"}  # a record cannot show the one that is not asked for
    format_keys = {} if asked == "text" else {"data.format": asked}
    return {key: value for key, value in found.items() if key not in requested} | format_keys


def _can_be_named(key: str) -> bool:
    """True for a key that a config can hold."""
    return key != "" and not any("\ud800" <= character < "\ue000" for character in key)


def _is_instruction(values: Mapping[str, Any]) -> bool:
    """True for a record as in Alpaca and Dolly, which may have the pair as one text besides."""
    return "instruction" in values and any(name in values for name in _COMPLETIONS)


def _chat_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    names = [*_CHATS, *(name for name in values if name not in _CHATS)]
    key = next((name for name in names if _holds_chat(values.get(name))), None)
    return {} if key is None else {"data.format": "chat", "data.messages_key": key}


def _holds_chat(value: Any) -> bool:
    """True for a list of messages, or its JSON, as in the column of a table."""
    if isinstance(value, str) and value.startswith("[{"):
        try:
            value = parse_json_line(value, "")
        except UserError:
            return False
    return is_chat(value)


def _pair_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    texts = [name for name, value in values.items() if isinstance(value, str | None)]
    prompt = next((name for name in _PROMPTS if name in texts), None)
    completion = next((name for name in _COMPLETIONS if name in texts), None)
    if prompt is None or completion is None:
        return {}
    context = next((name for name in _CONTEXTS if name in texts and name != prompt), None)
    return {
        "data.format": "pairs",
        "data.prompt_key": prompt if context is None else [prompt, context],
        "data.completion_key": completion,
    }


def _text_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    texts = [name for name, value in values.items() if isinstance(value, str) and name not in _LABELS]
    key = next((name for name in _TEXTS if name in texts), None)
    if key is None and _TEXTS[0] not in values:
        sentences = texts if len(texts) == 1 else [name for name in texts if len(values[name].split()) > 1]
        key = sentences[0] if len(sentences) == 1 else None
    return {} if key is None else {"data.text_key": key}


def _labelled_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    label = next((name for name in _LABELS if name in values), None)
    others = {name: value for name, value in values.items() if name != label}
    return _text_keys(others) | ({} if label is None else {"data.label_key": label})


_KEYS_OF = {"chat": _chat_keys, "pairs": _pair_keys, "text": _text_keys, "labelled": _labelled_keys}


def describe_keys(keys: ConfigValues) -> str:
    """A sentence on the keys by which records are read, and on the key that forces another reading."""
    match keys.get("data.format", "text"):
        case "chat":
            read = f"under '{keys.get('data.messages_key', _CHATS[0])}' (data.messages_key)"
        case "pairs":
            prompt, completion = keys.get("data.prompt_key", "prompt"), keys.get("data.completion_key", "completion")
            prompt = prompt if isinstance(prompt, str) else " and ".join(prompt)
            read = f"prompts under {prompt} (data.prompt_key), completions under {completion} (data.completion_key)"
        case "labelled":
            text, label = keys.get("data.text_key", "text"), keys.get("data.label_key", "label")
            is_usual = (text, label) == ("text", "label")
            return "" if is_usual else f"They are read by data.text_key={text} and data.label_key={label}."
        case _:
            return f"Its texts are under '{keys.get('data.text_key', 'text')}'; data.text_key=KEY reads others."
    return f"They are {read}; data.text_key=KEY reads a text instead."


def propose_lines(text: str) -> str:
    """A sentence that proposes to read each line as a document, where those of `text` are short and alike; else empty.

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
