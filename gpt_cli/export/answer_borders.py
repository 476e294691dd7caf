r"""Chat templates for programs that render a conversation and encode it as a whole.

A run encodes an answer with its `completion_end` apart from what it answers. For characters and bytes that makes no
difference. A BPE joins text across the border, by a merge or because its pattern splits the start of an answer
differently after a mark: `\x02'tis` into `\x02'` and `tis`, but `'tis` alone into `'t` and `is`. A tokenizer.json can
split off the answers before its pattern does; for other files the template refuses the answers that could differ.
"""

import json
import re
from typing import Any

from gpt_cli.corpus.turn_template import ROLES, TurnTemplate, control_characters
from gpt_cli.errors import RequestError
from gpt_cli.tokenizer import BPETokenizer, ByteTokenizer, CharTokenizer, ForeignTokenizer, Tokenizer


def inexact_answers(template: TurnTemplate, tokenizer: Tokenizer) -> str | None:
    """The beginning of the answers that may have other ids in the whole text: "" if any may, None if none may."""
    if isinstance(tokenizer, CharTokenizer | ByteTokenizer):
        return None
    bpe = _bpe(tokenizer)
    if bpe is None or bpe.vocabulary.ignore_merges:
        return ""
    pattern, special = bpe.vocabulary.pattern, bpe.vocabulary.special
    tokens = [token for i, token in enumerate(bpe.vocabulary.tokens) if i not in special]
    # A line break separates what is around it wherever the pattern splits, unless tokens join it with what follows or,
    # in gpt2, where white space before a word is split in another way than at the end of a text, with what precedes.
    heads = (token[:-1] if pattern == "gpt4" else token for token in tokens if len(token) > 1)
    has_lone_breaks = pattern != "o200k" and not any({*head} & {*b"\r\n"} for head in heads)
    # GPT-2's pattern ends a run of symbols where a letter, a digit or a space follows.
    begin_breaks, end_breaks = (mark.endswith("\n") and has_lone_breaks for mark in template.marks)
    begin_symbol, end_symbol = (pattern == "gpt2" and _is_symbol(mark[-1]) for mark in template.marks)
    if template.is_chat and not (end_breaks or end_symbol):  # the name of a role follows
        return ""
    if begin_breaks:
        return None
    joins = any(_spans(token, template.prompt_end.encode()) for token in tokens)
    return "'" if begin_symbol and not joins else ""


def _bpe(tokenizer: Tokenizer) -> BPETokenizer | None:
    """The BPE of ours that encodes messages; None if there is none."""
    if isinstance(tokenizer, ForeignTokenizer):
        return tokenizer.core
    return tokenizer if isinstance(tokenizer, BPETokenizer) else None


def _begin(tokenizer: Tokenizer) -> str:
    """The start of a chat template: the tokens with which each text begins.

    Raises RequestError if no text is encoded to them.
    """
    begin = tokenizer.decode(tokenizer.begin_ids)
    if isinstance(tokenizer, ForeignTokenizer) and begin and tokenizer.split_special:
        raise RequestError(f"chats begin with {begin}, and the tokenizer splits the texts of special tokens")
    return f"{{{{ {json.dumps(begin)} }}}}" if begin else ""


def _is_symbol(character: str) -> bool:
    """True for a symbol of ASCII with which no contraction such as 's begins."""
    return character.isascii() and not (character.isalnum() or character.isspace() or character == "'")


def _spans(token: bytes, mark: bytes) -> bool:
    """True if a token can begin in a text that ends with `mark`, and end in an answer that does not begin with '."""
    splits = ((token[:i], token[i:]) for i in range(1, len(token)))
    return any((mark.endswith(head) or head.endswith(mark)) and tail[:1] != b"'" for head, tail in splits)


def guarded_jinja(template: TurnTemplate, tokenizer: Tokenizer) -> str:
    """The chat template, which refuses the answers whose ids may differ.

    Raises RequestError if these are all answers of a chat: nothing could be asked after the first.
    """
    inexact = inexact_answers(template, tokenizer)
    if inexact == "" and template.is_chat:
        raise RequestError(
            f"data.prompt_end {template.prompt_end!r} and data.completion_end {template.completion_end!r} do not always"
            " separate tokens: where a chat is encoded as a whole, this tokenizer joins them with text after them",
            hint="train with the default marks or with tokenizer.kind=byte"
            if _answer_pattern(template) is None
            else "export it for Transformers: --to hf",
        )
    return _begin(tokenizer) + template.to_jinja(inexact)


def learned_template(source: str, tokenizer: Tokenizer) -> TurnTemplate | None:
    """The template of which `guarded_jinja` is `source`; None for any other."""
    return TurnTemplate.from_jinja(source.removeprefix(_begin(tokenizer)))


def with_chat_template(tokenizer_json: str, tokenizer: Tokenizer, template: TurnTemplate) -> tuple[str, str]:
    """The tokenizer.json of `tokenizer`, which splits off the answers if necessary, and the chat template beside it.

    Raises RequestError as `guarded_jinja`.
    """
    pattern = _answer_pattern(template)
    if pattern is None or _bpe(tokenizer) is None or inexact_answers(template, tokenizer) is None:
        return tokenizer_json, guarded_jinja(template, tokenizer)
    file = json.loads(tokenizer_json)
    file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [_split(pattern), *_steps(file)]}
    return json.dumps(file, ensure_ascii=False, indent=2), _begin(tokenizer) + template.to_jinja()


def without_answers(file: dict[str, Any], template: TurnTemplate) -> dict[str, Any]:
    """A parsed tokenizer.json as it was before `with_chat_template`."""
    pattern, steps = _answer_pattern(template), _steps(file)
    if pattern is None or len(steps) < 2 or steps[0] != _split(pattern):
        return file
    whole = steps[1] if len(steps) == 2 else {"type": "Sequence", "pretokenizers": steps[1:]}
    return {**file, "pre_tokenizer": whole}


def _answer_pattern(template: TurnTemplate) -> str | None:
    """The regular expression of the answers in a rendered text.

    None unless both marks can be found: by control characters of their own, which no message has.
    """
    begin, end = map(re.escape, template.marks)
    of_begin, of_end = map(control_characters, template.marks)
    if not template.is_chat:
        return rf"(?<={begin})[\s\S]+" if of_begin else None
    if of_begin <= of_end or of_end <= of_begin:
        return None
    return rf"(?<={ROLES[-1]}{begin})(?:{end}|(?:(?!{end})[\s\S])+(?:{end})?)"


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _steps(file: dict[str, Any]) -> list[Any]:
    """The pre-tokenizers of a tokenizer.json, in their order."""
    match file.get("pre_tokenizer"):
        case {"type": "Sequence", "pretokenizers": list(steps)}:
            return steps
        case step:
            return [step]
