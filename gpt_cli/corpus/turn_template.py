"""The template of pairs and chats: what stands around prompts and completions.

    pairs   PROMPT prompt_end COMPLETION completion_end
    chat    user prompt_end CONTENT completion_end assistant prompt_end CONTENT completion_end ...

What a model continues is `sample.prefix` + prompt + `sample.suffix`, up to `sample.stop`; `gpt_cli.config.derived`
derives these from it.
"""

import json
import re
from dataclasses import dataclass
from itertools import product
from typing import Self

from gpt_cli.config import DataConfig
from gpt_cli.config.derived import ROLES as ROLES
from gpt_cli.errors import RequestError

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_ESCAPED = frozenset('"\\\n\r\t\b\f')


@dataclass(frozen=True)
class TurnTemplate:
    """The template of a conversation with a model that learned pairs or chats."""

    format: str
    prompt_end: str
    completion_end: str

    @classmethod
    def of(cls, data: DataConfig) -> Self | None:
        """Return the template of a run's `data`; None where it learned text."""
        return None if data.format in ("text", "labelled") else cls(data.format, data.prompt_end, data.completion_end)

    @classmethod
    def from_jinja(cls, source: str) -> Self | None:
        """Return the template of which `source` is the `to_jinja`; None for any other."""
        try:  # older exports escape all control characters
            source = _STRING.sub(lambda match: _jinja_string(json.loads(match[0], strict=False)), source)
        except ValueError:  # Jinja has escapes that JSON lacks
            return None
        for form, refused in product(("pairs", "chat"), (None, "", "'")):
            rest = source.replace(_guard(form, refused), "") if refused is not None else source
            strings = (json.loads(string, strict=False) for string in _STRING.findall(rest))
            ends = [string for string in strings if string != ROLES[-1]][:2]
            if len(ends) == 2 and all(ends) and (template := cls(form, *ends)).to_jinja(refused) == source:
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
        """Return a message of a chat."""
        return f"{role}{self.prompt_end}{text}{self.completion_end}"

    @property
    def answer_start(self) -> str:
        """The text of a chat after which the model answers."""
        return f"{ROLES[-1]}{self.prompt_end}"

    def to_jinja(self, refused: str | None = None) -> str:
        """Return the chat template of Transformers: messages become the text that the model continues, or learns.

        It raises an exception for answers that begin with `refused`.
        """
        begin, end, answer = map(_jinja_string, (*self.marks, ROLES[-1]))
        guard = "" if refused is None else _guard(self.format, refused)
        if self.is_chat:
            message = f"{{{{ m['role'] + {begin} + m['content'] + {end} }}}}"
            next_answer = f"{{% if add_generation_prompt %}}{{{{ {answer} + {begin} }}}}{{% endif %}}"
            return f"{{% for m in messages %}}{guard}{message}{{% endfor %}}{next_answer}"
        pair = f"{{{{ messages[-2]['content'] + {begin} + messages[-1]['content'] + {end} }}}}"
        prompt = f"{{{{ messages[-1]['content'] + {begin} }}}}"
        return f"{guard}{{% if messages[-1]['role'] == {answer} %}}{pair}{{% else %}}{prompt}{{% endif %}}"


def _guard(form: str, refused: str) -> str:
    """Return the part of a chat template that refuses an answer."""
    message = "m" if form == "chat" else "messages[-1]"
    begins = f"{message}['content'].startswith({_jinja_string(refused)})"
    problem = _jinja_string("after its prompt this answer would not be encoded as the model learned it")
    is_answer = f"{message}['role'] == {_jinja_string(ROLES[-1])}"
    return f"{{% if {is_answer} and {begins} %}}{{{{ raise_exception({problem}) }}}}{{% endif %}}"


def _jinja_string(text: str) -> str:
    """Return the literal of `text`, with no other escapes than llama.cpp's Jinja knows: it has no \\u0002."""
    return "".join(('"', *(json.dumps(char)[1:-1] if char in _ESCAPED else char for char in text), '"'))


def control_characters(*marks: str) -> set[str]:
    """Return the control characters of `marks` but white space: a text has them only to imitate a template."""
    return {character for character in "".join(marks) if not character.isprintable() and not character.isspace()}


def refuse_marks(text: str, prefix: str, suffix: str) -> None:
    """Raise RequestError if `text`, that of a turn between `prefix` and `suffix`, has a control character of these.

    With it a user could end the own turn and write another's.
    """
    if found := sorted(control_characters(prefix, suffix) & set(text)):
        raise RequestError(f"the text has {found[0]!r}, which only the template of the run has")
