"""The template of pairs and chats, as far as it is strings: what stands around prompts and completions.

    pairs   PROMPT prompt_end COMPLETION completion_end
    chat    user prompt_end CONTENT completion_end assistant prompt_end CONTENT completion_end ...

What a model continues is `sample.prefix` + prompt + `sample.suffix`, up to `sample.stop`: these keys are that template
unless a config says otherwise, so that all that writes with a run keeps to it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel

from gpt_cli.config.section import given_values
from gpt_cli.errors import RequestError

if TYPE_CHECKING:
    from gpt_cli.config.schema import DataConfig
    from gpt_cli.config.yaml_subset import ParsedYaml

ROLES = ("system", "user", "assistant")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_ESCAPED = frozenset('"\\\n\r\t\b\f')


@dataclass(frozen=True)
class TurnTemplate:
    """The template of a conversation with a model that learned pairs or chats."""

    format: str
    prompt_end: str
    completion_end: str

    @classmethod
    def of(cls, data: "DataConfig") -> Self | None:
        """That of a run's `data`; None where it learned text."""
        return None if data.format in ("text", "labelled") else cls(data.format, data.prompt_end, data.completion_end)

    @classmethod
    def from_jinja(cls, source: str) -> Self | None:
        """The template of which `source` is the `to_jinja`; None for any other."""
        try:  # older exports escape all control characters
            source = _STRING.sub(lambda match: _jinja_string(json.loads(match[0], strict=False)), source)
        except ValueError:  # Jinja has escapes that JSON lacks
            return None
        for kind, refused in product(("pairs", "chat"), (None, "", "'")):
            rest = source if refused is None else source.replace(_guard(kind, refused), "")
            strings = (json.loads(string, strict=False) for string in _STRING.findall(rest))
            ends = [string for string in strings if string != ROLES[-1]][:2]
            if len(ends) == 2 and all(ends) and (template := cls(kind, *ends)).to_jinja(refused) == source:
                return template
        return None

    @property
    def is_chat(self) -> bool:
        """True if it learned turns that follow each other; else each prompt stands alone."""
        return self.format == "chat"

    @property
    def marks(self) -> tuple[str, str]:
        return self.prompt_end, self.completion_end

    def message(self, role: str, text: str) -> str:
        """A message of a chat."""
        return f"{role}{self.prompt_end}{text}{self.completion_end}"

    @property
    def answer_start(self) -> str:
        """The text of a chat after which the model answers."""
        return f"{ROLES[-1]}{self.prompt_end}"

    def to_jinja(self, refused: str | None = None) -> str:
        """The chat template of Transformers: it makes of messages the text that the model continues, or learns.

        It raises an exception for answers that begin with `refused`.
        """
        begin, end, answer = map(_jinja_string, (self.prompt_end, self.completion_end, ROLES[-1]))
        guard = "" if refused is None else _guard(self.format, refused)
        if not self.is_chat:
            pair = f"{{{{ messages[-2]['content'] + {begin} + messages[-1]['content'] + {end} }}}}"
            prompt = f"{{{{ messages[-1]['content'] + {begin} }}}}"
            return f"{guard}{{% if messages[-1]['role'] == {answer} %}}{pair}{{% else %}}{prompt}{{% endif %}}"
        message = f"{{{{ m['role'] + {begin} + m['content'] + {end} }}}}"
        next_answer = f"{{% if add_generation_prompt %}}{{{{ {answer} + {begin} }}}}{{% endif %}}"
        return f"{{% for m in messages %}}{guard}{message}{{% endfor %}}{next_answer}"


def _guard(form: str, refused: str) -> str:
    """The part of a chat template that refuses an answer."""
    message = "m" if form == "chat" else "messages[-1]"
    begins = f"{message}['content'].startswith({_jinja_string(refused)})"
    problem = _jinja_string("after its prompt this answer would not be encoded as the model learned it")
    is_answer = f"{message}['role'] == {_jinja_string(ROLES[-1])}"
    return f"{{% if {is_answer} and {begins} %}}{{{{ raise_exception({problem}) }}}}{{% endif %}}"


def _jinja_string(text: str) -> str:
    """The literal of `text`, with no other escapes than llama.cpp's Jinja knows: it has no \\u0002."""
    return "".join(('"', *(json.dumps(char)[1:-1] if char in _ESCAPED else char for char in text), '"'))


def control_characters(*marks: str) -> set[str]:
    """The control characters of `marks` that are not white space: no text has them, unless it imitates a template."""
    return {character for character in "".join(marks) if not character.isprintable() and not character.isspace()}


def refuse_marks(text: str, prefix: str, suffix: str) -> None:
    """Raise RequestError if `text`, that of a turn between `prefix` and `suffix`, has a control character of these.

    With it a user could end the own turn and write another's.
    """
    if found := sorted(control_characters(prefix, suffix) & set(text)):
        raise RequestError(f"the text has {found[0]!r}, which only the template of the run has", hint="leave it out")


def sample_section(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` of a config, sections by name, with the template of its `data` for what `sample` does not say.

    A sample of lines is one line.
    """
    data, sample = given_values(values.get("data", {})), given_values(values.get("sample", {}))
    is_lines = (data.get("format", "text"), data.get("documents")) == ("text", "lines")
    if is_lines and isinstance(values.get("sample", {}), Mapping | BaseModel):
        return {**values, "sample": {**sample, "stop": sample.get("stop") or ["\n"]}}
    prompt_end, completion_end = data.get("prompt_end", "\x02"), data.get("completion_end", "\x03")
    if data.get("format") not in ("pairs", "chat") or not (
        isinstance(prompt_end, str) and isinstance(completion_end, str) and prompt_end and completion_end
    ):
        return dict(values)  # whatever is wrong is reported for what it is
    if "sample" in values and not isinstance(values["sample"], Mapping | BaseModel):
        return dict(values)
    template = turn(data["format"], prompt_end, completion_end)
    values_set = {key: value for key, value in sample.items() if value or key not in template}
    return {**values, "sample": {**template, **values_set}}


def forget_format(document: "ParsedYaml", written: Mapping[str, Any]) -> "ParsedYaml":
    """`document`, overrides over the values that a run has `written`, without what follows from its data.format.

    A run writes its template out in `sample`; where an override changes what it is made of, it is made anew. Another
    format also has defaults of its own for data.split and data.too_long. What is overridden stays.
    """
    overridden = {path for path, location in document.locations.items() if location.line is None}
    data, sample = written.get("data"), written.get("sample")
    if not (isinstance(data, Mapping) and isinstance(sample, Mapping)):
        return document
    if overridden.isdisjoint({("data", key) for key in ("format", "documents", "prompt_end", "completion_end")}):
        return document
    template = sample_section({"data": data}).get("sample", {})
    stale = {key for key, value in template.items() if sample.get(key) == value and ("sample", key) not in overridden}
    kept = {key: value for key, value in document.values["sample"].items() if key not in stale}
    now = document.values["data"]
    if any(now.get(key) != data.get(key) for key in ("format", "documents")):
        now = {key: now[key] for key in now if key not in ("split", "too_long") or ("data", key) in overridden}
    return replace(document, values=document.values | {"sample": kept, "data": now})


def turn(form: str, prompt_end: str, completion_end: str) -> dict[str, Any]:
    """`prefix` and `suffix` of what a user says, and the `stop` of the answer."""
    if form == "chat":
        suffix = f"{completion_end}{ROLES[-1]}{prompt_end}"
        return {"prefix": f"{ROLES[1]}{prompt_end}", "suffix": suffix, "stop": [completion_end]}
    return {"prefix": "", "suffix": prompt_end, "stop": [completion_end]}
