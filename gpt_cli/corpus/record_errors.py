"""The errors of a record that has no text where one is read: their hints name what it has."""

import json
import re
from collections.abc import Iterable
from shlex import quote

from gpt_cli.config.dump import join_overrides
from gpt_cli.errors import UserError

_NO_TEXT = re.compile(  # names of columns that are hardly texts
    r"|.*id|index|idx|no|nr|row.*|unnamed.*|(.*[_ ])?(number|label|class|date|time|timestamp|url|link)s?", re.IGNORECASE
)
_SENTENCE = 5  # words
_PROMPTS = ("prompt", "instruction", "question", "input", "query")
_COMPLETIONS = ("completion", "output", "answer", "response", "target")


class OtherFormatError(UserError):
    """A record is a chat where a text is read. The hint suggests to read it as one, and how to make it a text."""

    def __init__(self, message: str, messages_key: str, *, where: str) -> None:
        super().__init__(message, where=where)
        named = {} if messages_key == "messages" else {"data.messages_key": messages_key}
        self.examples: dict[str, str] = {"data.format": "chat", **named}
        """The keys of a config that read the record as an example; none where it is not one."""
        self.as_text = (
            f"make each a text: jq -c '{{text: ([.{messages_key}[].content] | join(\"\\n\"))}}' CHATS > TEXTS.jsonl"
        )
        keys = join_overrides(self.examples)
        self.hint = f"gpt train FILE trains on the answers ({keys}); else {self.as_text}"

    def blame_line(self, key: str) -> None:
        """Have the hint suggest nothing else: the lines before this one have a text under `key`."""
        self.examples = {}
        self.hint = _blame_line(key)


class MissingKeyError(UserError):
    """A record has no text, or no label, under the key that was asked for. The hint lists the keys there are."""

    def __init__(
        self,
        message: str,
        kind: str,
        key: str,
        candidates: Iterable[str],
        available: Iterable[str],
        where: str | None,
        value: str | None = None,
    ) -> None:
        """`kind`: "keys" or "columns". The hint suggests the candidate called like `key`, or the first.

        `value`: what there is in place of a text, as it is to be named.
        """
        super().__init__(message if value is None else f"{message}: it is {value}", where=where)
        self.kind, self.key, self.available, self.is_settled = kind, key, list(available), False
        self.value = value
        candidates = sorted(candidates, key=lambda name: name.strip().casefold() != key.strip().casefold())
        self.candidates, self.candidate = candidates, next(iter(candidates), "")
        name = quote(self.candidate)
        joining = self.how_to_join_prompts()
        pairs = f", or {join_overrides(self.as_pairs())} for both" if self.pairs and joining is None else ""
        of_pairs = "" if joining is None else f"; {joining}"
        self.advise(f"choose one: --text-key {name} (data.text_key={name}{pairs}){of_pairs}")

    @property
    def _prompts(self) -> list[str]:
        """The keys of a prompt in two parts, an instruction and what it is about; empty if it has one part."""
        names = {name.strip().casefold(): name for name in reversed(self.available)}
        return [names["instruction"], names["input"]] if {"instruction", "input"} <= names.keys() else []

    def how_to_join_prompts(self) -> str | None:
        """A hint for pairs whose prompts are in two parts; None for others."""
        if not self._prompts or self.pairs is None:
            return None
        parts = ", ".join(f".[{json.dumps(name)}]" for name in self._prompts)
        prompt = f'([{parts}] | map(select(. != null and . != "")) | join("\\n"))'
        program = f"{{prompt: {prompt}, completion: .[{json.dumps(self.pairs[1])}]}}"
        return f"for pairs, make one prompt of {' and '.join(self._prompts)}: jq -c '{program}' FILE > PAIRS.jsonl"

    @property
    def pairs(self) -> tuple[str, str] | None:
        """The keys of a prompt and of its completion, as they are called in datasets; None if one is missing."""
        names = {name.strip().casefold(): name for name in reversed(self.available)}
        prompt, completion = (next((names[n] for n in known if n in names), None) for known in (_PROMPTS, _COMPLETIONS))
        return None if prompt is None or completion is None else (prompt, completion)

    def as_pairs(self) -> dict[str, str]:
        """The keys of a config that read the record as a pair; none where it is not one."""
        names = zip(("prompt", "completion"), self.pairs or (), strict=False)
        keys = {f"data.{default}_key": name for default, name in names if name != default}
        return {"data.format": "pairs", **keys} if self.pairs else {}

    @property
    def examples(self) -> dict[str, str]:
        """The keys of a config that read the record as an example: `as_pairs`, where no other key is meant by it."""
        is_plain = self.pairs == ("prompt", "completion") and not self.is_settled
        return self.as_pairs() if is_plain else {}

    def suggest(self, option: str, *, unlike: str | None) -> None:
        """Have the hint suggest `option`, which ends in "=", for the key.

        `unlike`: a key that is known to be of something else, and is suggested only if there is no other.
        """
        self.candidate = min(self.candidates, key=lambda name: name == unlike, default="")
        if self.value is not None and self.candidate in ("", unlike) and not self.is_settled:
            advice = {"null": "leave such lines out", "a list": "write one of its items alone"}
            self.hint = advice.get(self.value, "write it as a text, in quotation marks")
        else:
            self.advise(f"choose one: {option}{'KEY' if self.candidate == unlike else quote(self.candidate)}")

    def blame_line(self, key: str) -> None:
        """Have the hint suggest no other key, now or later: the lines before this one have `key`."""
        self.is_settled = True
        self.hint = _blame_line(key)

    def blame_file(self, key: str) -> None:
        """Have the hint suggest no other key, now or later: the files before this one have `key`."""
        self.is_settled = True
        self.hint = f"the files before it have '{key}', and one key is read of all: rename this one's, or leave it out"

    def advise(self, advice: str) -> None:
        """Have the hint list the keys there are, followed by `advice` if there is a candidate."""
        listed = ", ".join(self.available[:10])[:200]
        if self.is_settled:
            return
        if not self.available:
            self.hint = None
        elif not self.candidate:
            self.hint = f"none of its {self.kind} holds one: {listed}"
        else:
            self.hint = f"its {self.kind} are: {listed}; {advice}{self._advise_header()}"

    def _advise_header(self) -> str:
        """The advice to name the columns of a table, where a name is as long as a sentence and may be a record."""
        if self.kind != "columns" or max(len(name.split()) for name in self.available) < _SENTENCE:
            return ""
        longest = max(self.available, key=len)
        others = iter(["label", *(f"column{index}" for index in range(2, len(self.available)))])
        names = ",".join("text" if name is longest else next(others) for name in self.available)
        return f"; if these are no names but its first record, put names above it: (echo {names}; cat FILE) > NAMED.csv"


def how_to_make_chats(prompt_key: str, completion_key: str) -> str:
    """The hint for pairs beside chats."""
    turns = zip(("user", "assistant"), (prompt_key, completion_key), strict=True)
    messages = ", ".join(f'{{role: "{role}", content: .{json.dumps(key)}}}' for role, key in turns)
    program = f"{{messages: [{messages}]}}"
    return f"all of them are chats, or pairs; a pair becomes a chat by jq -c '{program}' PAIRS > MORE.jsonl"


def is_no_text(name: str) -> bool:
    """True for the name of a key or column that hardly holds text."""
    return _NO_TEXT.fullmatch(name.strip()) is not None


def _blame_line(key: str) -> str:
    return f"the lines before it have '{key}': mend this line, or leave it out"
