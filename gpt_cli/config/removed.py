"""Settings that earlier versions had: for each what to use instead, and the value at which it is ignored.

A removed setting at its off value is dropped silently: the config.yaml of every older run has all keys of its time.
Any other value is one error, from a config, the command line, Python and the server alike.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from gpt_cli.config.yaml_reader import ConfigError, ParsedYaml, resolve_scalar
from gpt_cli.errors import RequestError

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Removed:
    """A removed setting under each of its names.

    A name is a config key (`section.key`), a command line (`gpt VERB --option`), a line of the chat
    (`gpt chat /name`), or else a keyword of the Python API and field of the server's requests.
    """

    names: tuple[str, ...]
    instead: str
    """The replacement, which ends the sentence of the error."""
    off: tuple[Any, ...] = ()
    """The values that asked for nothing."""
    last: str = "0.2.0"
    """The last version that had it."""

    def is_off(self, value: Any) -> bool:
        """Return True if `value` asks for nothing."""
        return any(value == off and isinstance(value, bool) is isinstance(off, bool) for off in self.off)

    def sentence(self, name: str) -> str:
        """The error for a use of `name`."""
        return f"{name} was removed after version {self.last}: {self.instead}"


def _sampling(name: str, instead: str, *off: Any, others: tuple[str, ...] = ()) -> Removed:
    """A sampling setting: a key of the section `sample`, an option of `gpt sample`, a keyword and a field."""
    option = f"gpt sample --{name.replace('_', '-')}"
    return Removed((f"sample.{name}", option, name, *others), instead, (None, *off))


_CHAT_SETTINGS = ("top-p", "min-p", "repetition-penalty", "no-repeat-ngram", "max-new-tokens", "beams")
_LABELS = "train a classifier (task.kind=classes) and use gpt classify"
TABLE = (
    Removed(("runtime.measure",), "remove the key", ("auto",), last="0.1.0"),
    _sampling(
        "penalty_alpha",
        "use sampling, or beam search (beams)",
        0,
        others=("gpt chat --penalty-alpha", "gpt chat /penalty-alpha"),
    ),
    _sampling("typical_p", "use top_p or min_p", 1, others=("gpt chat /typical-p",)),
    _sampling("forbid", "use logit_bias (-inf for a token), or regex", ""),
    _sampling("allow", "use regex", ""),
    Removed(tuple(f"gpt chat /{setting}" for setting in _CHAT_SETTINGS), "set it with the option of gpt chat"),
    Removed(("gpt chat /temperature",), "use /temp"),
    Removed(("gpt score --labels", "gpt score --label-key"), _LABELS),
    Removed(("gpt score --prefix", "gpt score --suffix", "gpt score --after"), _LABELS, ("",)),
    Removed(("gpt score --normalise",), _LABELS, ("none",)),
    Removed(("gpt score --format",), _LABELS, ("auto",)),
    Removed(
        ("gpt export --to checkpoint",),
        "copy the run directory or one of its checkpoint directories, or export with --to hf",
    ),
    Removed(("gpt data peek",), "gpt data inspect TEXT --window 0"),
    Removed(("gpt tokenize --compare",), "tokenize the text with each tokenizer, and compare the bytes per token"),
    Removed(("gpt tokenize --model-config",), "gpt info CONFIG shows the parameters of a model"),
    Removed(
        ("gpt sample --draft", "gpt chat --draft", "draft"), "leave it out; the text is the same without it", (None,)
    ),
    Removed(("data.packing",), "remove the key; rows of examples of similar length need little padding", (False,)),
)
REMOVED: Mapping[str, Removed] = {name: row for row in TABLE for name in row.names}
"""The row of each name."""
SAMPLING = frozenset(name for name in REMOVED if f"sample.{name}" in REMOVED)
"""The keywords of removed sampling settings."""


def is_removed(name: str) -> bool:
    """Return True if an earlier version had a setting of this name."""
    return name in REMOVED


def removed_use(name: str, value: Any) -> str | None:
    """The error for a removed setting that asks for something; None at its off value, and for any other name."""
    row = REMOVED.get(name)
    return None if row is None or row.is_off(value) else row.sentence(name)


def without_removed(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """`values` of keywords without the removed `names`. Raises RequestError for one that asks for something."""
    for name in frozenset(names) & values.keys():
        if (problem := removed_use(name, values[name])) is not None:
            raise RequestError(problem)
    return {name: value for name, value in values.items() if name not in names}


def accept_removed(*names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have a function treat the removed keywords `names` as `without_removed` does."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(*args, **without_removed(kwargs, frozenset(names)))

        return call

    return decorate


def without_removed_options(command: str, arguments: Sequence[str]) -> list[str]:
    """The `arguments` of `gpt VERB` without removed options. Raises RequestError for one that asks for something."""
    kept, rest = [], deque(arguments)
    while rest and rest[0] != "--":
        word = rest.popleft()
        option, equals, value = word.partition("=")
        value = value if equals or not rest else rest[0]
        name = next((name for name in (f"{command} {option} {value}", f"{command} {option}") if name in REMOVED), None)
        if name is None:
            kept.append(word)
            continue
        is_given, row = equals or rest, REMOVED[name]
        if not is_given or not (row.is_off(value) or row.is_off(resolve_scalar(value))):
            raise RequestError(row.sentence(name))
        if not equals:
            rest.popleft()
    return [*kept, *rest]


def removed_uses(document: ParsedYaml) -> Iterator[ConfigError]:
    """A problem for each removed key of `document` whose value asks for something."""
    for path in _removed_paths(document):
        if (problem := removed_use(".".join(path), document.value(path))) is not None:
            yield ConfigError(problem, document.location(path), path=path)


def without_removed_keys(document: ParsedYaml, *, of_run: bool = False) -> ParsedYaml:
    """`document` without removed keys; those that ask for something become problems.

    A run that used one stays readable: in the config `of_run` only an override is a problem.
    """
    problems = tuple(problem for problem in removed_uses(document) if not (of_run and problem.place.line))
    gone = set(_removed_paths(document))
    values = {
        section: {key: value for key, value in keys.items() if (section, key) not in gone}
        if isinstance(keys, Mapping)
        else keys
        for section, keys in document.values.items()
    }
    locations = {path: place for path, place in document.locations.items() if path[:2] not in gone}
    return replace(document, values=values, locations=locations, problems=(*document.problems, *problems))


def _removed_paths(document: ParsedYaml) -> list[tuple[str, str]]:
    sections = [(name, keys) for name, keys in document.values.items() if isinstance(keys, Mapping)]
    return [(name, key) for name, keys in sections for key in keys if is_removed(f"{name}.{key}")]
