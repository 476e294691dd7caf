"""Constrain a text to choices, a regular expression, a JSON schema or a grammar, by llguidance. Without torch.

Before each token the tokens that cannot continue a match are excluded, and the distribution over the others is
renormalised. Where the text already is a match, nothing is excluded: a token that does not continue it ends the text
before it. So the text ends as often as the model would continue with something else, and the vocabulary needs no
end-of-text token.

Shapes: V vocabulary, W = ceil(V / 32) words of a mask: bit t % 32 of word t // 32 is set if token t may follow.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from gpt_cli.cpu.decode.numpy_sampler import Masks
from gpt_cli.errors import RequestError
from gpt_cli.sampling.grammar_limits import PARSER_LIMITS, check_limits, read_json
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

_T = TypeVar("_T")
_ALL = np.uint32(0xFFFFFFFF)  # a word of a mask that excludes nothing
_KEPT = 32  # compiled grammars of a vocabulary
_JSON_SPACE = r" |\r?\n[ \t]{0,20}"  # where JSON may have white space: unbounded, a small model writes nothing else
_STACK = 128 * 2**20  # bytes: llguidance recurses, by $ref from schema to schema, up to 32 MB deep within the limits
_NO_FORCING = (
    '\n%llguidance {"no_forcing": true}\n'  # the model chooses how text is split into tokens, as without a mask
)


class Constraint:
    """A compiled constraint on texts in one vocabulary."""

    def __init__(self, start: "LLMatcher", vocab_size: int, never: Collection[int]) -> None:
        self._start, self._vocab_size = start, vocab_size
        self._possible = np.full(_mask_words(vocab_size), _ALL, np.uint32)
        for token in never:
            self._possible[token // 32] &= ~np.uint32(1 << token % 32)
        if vocab_size % 32:
            self._possible[-1] &= np.uint32((1 << vocab_size % 32) - 1)
        self._first = self.matcher()

    def matcher(self) -> "Matcher":
        """The state of a new text."""
        return Matcher(self._start.deep_copy(), self._vocab_size, self._possible)

    def masks(self, n_text: int) -> Masks:
        """(n_text, W): masks to be written by `write_masks`."""
        return np.full((n_text, len(self._possible)), _ALL, np.uint32)

    def admits(self, new_bytes: bytes) -> bool:
        """True if the first token of a text may be one that adds `new_bytes` to the prompt."""
        return self._first.admits(new_bytes)

    def process(self, tokens: Sequence[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """(V,) -> (V,): unchanged. With `admits`, the rules that heal.py follows."""
        return logits


class Matcher:
    """The state of one text under a constraint."""

    def __init__(self, state: "LLMatcher", vocab_size: int, possible: Masks) -> None:
        self._state, self._vocab_size, self._possible = state, vocab_size, possible
        self._buffer = np.zeros(_mask_words(vocab_size + len(_BYTES) + 1), np.uint32)
        self._address, self._n_byte = self._buffer.ctypes.data, self._buffer.nbytes
        self.finished = False
        """True if the text has ended: nothing can continue the match, or the last token did not."""
        self.rejected_last = False
        """True if the text ended before its last token, which is not part of it."""
        self.stuck = False
        """True if no token of the vocabulary can follow, although the text is not a match."""

    @property
    def matches(self) -> bool:
        """True if the text up to here is a match."""
        return not self.stuck and bool(self._state.is_accepting())

    def mask(self) -> Masks | None:
        """(W,): the tokens that may follow. None: any, since one that does not continue the match ends the text."""
        if self.finished or self.matches:
            return None
        self._state.unsafe_compute_mask_ptr(self._address, self._n_byte)
        mask = self._buffer[: len(self._possible)] & self._possible
        self.stuck = self._state.is_error() or not mask.any()
        return None if self.stuck else mask

    def accept(self, token: int) -> None:
        """Advance by `token`, which `mask` allows."""
        if not self.finished:
            self._advance([token])

    def admits(self, data: bytes) -> bool:
        """True if a token whose bytes end with `data`, the first of the text, may open it: see heal.py."""
        return not data or self.matches or self._state.validate_tokens(self._byte_tokens(data)) == len(data)

    def begin(self, data: bytes) -> None:
        """Advance by such a token; empty: it is no part of the text."""
        if data:
            self._advance(self._byte_tokens(data))

    def _byte_tokens(self, data: bytes) -> list[int]:
        return [self._vocab_size + byte for byte in data]

    def _advance(self, tokens: list[int]) -> None:
        if self.matches and self._state.validate_tokens(tokens) < len(tokens):
            self.finished = self.rejected_last = True
        elif self._state.consume_tokens(tokens):
            self.finished = self._state.is_stopped()
        else:  # beyond a limit, or after a dead end
            self.finished = self.rejected_last = self.stuck = True


def compile_constraint(
    tokenizer: Tokenizer, sampling: SamplingParams, never: Collection[int] = ()
) -> Constraint | None:
    """The constraint of these parameters, None if they have none; `never` are tokens to exclude besides special ones.

    Raises RequestError for what llguidance cannot read, for what is too large, and where the vocabulary cannot write a
    match.
    """
    if sampling.constraint is None:
        return None
    name, source = sampling.constraint
    with _LOCK:
        if (vocabulary := _VOCABULARIES.get(tokenizer)) is None:
            vocabulary = _VOCABULARIES[tokenizer] = _Vocabulary(tokenizer)
        constraint = Constraint(vocabulary.compile(name, source), tokenizer.vocab_size, never)
    first = constraint.matcher()
    first.mask()
    if first.stuck:
        raise RequestError(f"{name}: the vocabulary cannot write any text that matches")
    return constraint


class _TokenTable:
    """A vocabulary as llguidance reads it, with the attributes that it asks for.

    Its tokens are those of the tokenizer, then one for each byte, in which the first bytes of a text are given, then
    one that ends a text, which is never sampled.
    """

    bos_token_id = None
    is_tokenizer_wrapper = True

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.tokens = [*pieces, *_BYTES, b"<end>"]
        self.eos_token_id = len(self.tokens) - 1
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: str | bytes) -> list[int]:
        """No tokens: text is tokenized to force it, and nothing is forced here."""
        return []


class _Vocabulary:
    """A tokenizer, and the latest grammars that were compiled for it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        from llguidance import LLTokenizer  # noqa: PLC0415 - only constrained texts need it

        special = tokenizer.end_ids | {tokenizer.unk_id}
        pieces = [b"" if token in special else tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self._tokenizer = LLTokenizer(_TokenTable(pieces))  # type: ignore[arg-type]
        self._characters = _character_class(pieces)
        self._compiled = OrderedDict[tuple[str, str], "LLMatcher"]()

    def compile(self, name: str, source: str) -> "LLMatcher":
        """The state of an empty text. Raises RequestError."""
        key = name, source
        if key not in self._compiled:
            self._compiled[key] = self._compile(name, source)
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(key)
        return self._compiled[key]

    def _compile(self, name: str, source: str) -> "LLMatcher":
        from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415

        check_limits(name, source)
        limits = LLParserLimits(**PARSER_LIMITS)
        lark = self._lark(name, source)
        grammar = LLMatcher.grammar_from_lark(lark + _NO_FORCING)
        matcher = _with_large_stack(lambda: LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits))
        if matcher.is_error():
            alone = lark
            if name != "grammar":  # as a schema, whose error quotes no frame of ours
                alone = LLMatcher.grammar_from_json_schema(
                    source if name == "json_schema" else json.dumps({"pattern": source})
                )
            message = _with_large_stack(lambda: LLMatcher.validate_grammar(alone, limits=limits))
            raise RequestError(f"{name}: {_one_line(message or matcher.get_error())}")
        return matcher

    def _lark(self, name: str, source: str) -> str:
        """The grammar in llguidance's variant of Lark."""
        from llguidance import regex_to_lark  # noqa: PLC0415

        if name == "grammar":
            return source
        if name == "json_schema":
            return f"start: {json_rule(source)}"
        writable = "" if self._characters is None else f" & /{self._characters}*/"  # so that nothing is a dead end
        return f"start: TEXT\nTEXT: /(?:{regex_to_lark(source, '')})/{writable}"


def json_rule(source: str) -> str:
    """The right side of a rule of llguidance's Lark: JSON that the schema `source` allows. Raises RequestError."""
    schema = read_json("json_schema", source)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise RequestError("json_schema: not a JSON object")
    _add_format_patterns(schema)
    return "%json " + json.dumps(schema | {"x-guidance": {"whitespace_pattern": _JSON_SPACE}})


def _add_format_patterns(schema: dict[str, Any]) -> None:
    """Intersect formats of dates and times, of which llguidance allows too many, with a pattern of their own."""
    stack: list[Any] = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if isinstance(node.get("format"), str) and node["format"] in _FORMAT_PATTERNS:
                node.setdefault("pattern", _FORMAT_PATTERNS[node["format"]])
            stack += [value for key, value in node.items() if key not in ("enum", "const", "default", "examples")]
        elif isinstance(node, list):
            stack += node


def _character_class(pieces: Sequence[bytes]) -> str | None:
    """The characters that the vocabulary can write, as in a regular expression; None: any, since it has all bytes."""
    if set(_BYTES) <= set(pieces):
        return None
    characters = set("".join(piece.decode(errors="ignore") for piece in pieces))
    return "[" + "".join(f"\\x{{{ord(character):x}}}" for character in sorted(characters)) + "]"


def _with_large_stack(function: Callable[[], _T]) -> _T:
    """Call `function` in a thread with a stack for the deepest grammar within the limits."""
    before = threading.stack_size(_STACK)
    try:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(function).result()
    finally:
        threading.stack_size(before)


def _one_line(message: str) -> str:
    """llguidance's message; of a drawing with a mark under the place, what is wrong there and its column."""
    lines = message.splitlines()
    mark = next((line for line in lines[1:] if line.strip() and not line.strip(" ^")), None)
    if mark is None or not lines[-1].startswith("error: "):
        return lines[0]
    return f"{lines[-1].removeprefix('error: ')}, at character {mark.index('^') - 3}"


def write_masks(masks: Iterable[Masks] | None, matchers: Iterable[Matcher | None]) -> None:
    """Write into the (W,) mask of each text what may follow: of one without a matcher all tokens."""
    for row, matcher in zip(masks, matchers, strict=True) if masks is not None else ():
        mask = None if matcher is None else matcher.mask()
        row[:] = _ALL if mask is None else mask


def _mask_words(vocab_size: int) -> int:
    """W: the words of a mask over `vocab_size` tokens."""
    return -(-vocab_size // 32)


_DATE = (
    r"(\d{4}-(0[13-9]|1[0-2])-\d\d|\d{4}-02-([01]\d|2[0-8])"
    r"|(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"  # of leap years
)
_TIME = r"\d\d:\d\d:[0-5].*"  # without leap seconds, which no parser of Python takes
_FORMAT_PATTERNS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}[Tt]{_TIME}$"}
_BYTES = [bytes([byte]) for byte in range(256)]
_VOCABULARIES = WeakKeyDictionary[Tokenizer, _Vocabulary]()
_LOCK = threading.Lock()
