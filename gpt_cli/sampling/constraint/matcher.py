"""Match a text against a pattern token by token, and mask the tokens that cannot follow. Without torch.

Shapes: V vocabulary.

The model's distribution is left as it is but for the tokens after which the text cannot become a match any more (in the
tokens that are left): these are excluded, and the rest is renormalised. Where the text already is a match, nothing is
excluded: any token that does not continue the match ends the text before it. So the text ends as often as the
model would go on with something else, and a vocabulary needs no token for the end.
"""

import re
from collections.abc import Collection

from gpt_cli.errors import RequestError
from gpt_cli.sampling.constraint.dfa import to_dfa
from gpt_cli.sampling.constraint.nfa import Ranges, build_nfa, characters_of
from gpt_cli.sampling.constraint.token_table import UNREACHABLE, Mask, State, TokenTable
from gpt_cli.tokenizer import Tokenizer

_EVERYTHING: Ranges = ((0, 0x10FFFF),)


def alphabet_of(allow: str | None, forbid: str | None) -> Ranges:
    """The characters of `allow` (None: all) that are not in `forbid`."""
    inside = "" if allow is None else f"(?=[{_class(allow)}])"
    outside = "" if not forbid else f"(?![{_class(forbid)}])"
    return characters_of(f"{inside}{outside}.", re.DOTALL) if inside or outside else _EVERYTHING


def _class(characters: str) -> str:
    return "".join(f"\\U{ord(character):08x}" for character in characters)


class Matcher:
    """The state of one text in a pattern."""

    def __init__(self, table: TokenTable, budget: int | None, ends: bool) -> None:
        self._table = table
        self._place: State = table.start
        self._budget = budget
        self._ends = ends
        self.finished = False
        """True if the text has ended: as a match that nothing continues, or before a token that did not."""
        self.rejected_last = False
        """True if it ended before its last token, which does not belong to it."""

    def mask(self) -> Mask | None:
        """(V,): which tokens may follow. None: any, since those that do not continue the match end the text."""
        if self.finished or (self._ends and self._table.matches(self._place)):
            return None
        return self._fits()

    def append(self, token: int) -> None:
        """Go on with `token`, which `mask` lets through."""
        if self.finished:
            return
        following = self._table.following(self._place)
        left = None if self._budget is None else self._budget - 1
        distance = int(following.distances[token])
        if distance >= UNREACHABLE or (left is not None and distance > left):
            self.finished = self.rejected_last = self._ends
            return
        self._place, self._budget = self._table.place(int(following.places[token])), left
        if self._ends and self._table.matches(self._place):
            self.finished = not self._fits().any()

    def _fits(self) -> Mask:
        """(V,): after which tokens a match can be reached with the tokens that are left."""
        distances = self._table.following(self._place).distances
        fits: Mask = (
            distances < UNREACHABLE if self._budget is None else distances <= min(self._budget - 1, UNREACHABLE - 1)
        )
        return fits


class CompiledPattern:
    """A constraint compiled for one vocabulary: a regular expression, a number of tokens, an alphabet.

    `regex` is read as `re.fullmatch` reads it; None: any text, which then does not end by itself. `never` are tokens
    that are not written, besides special ones. Raises RequestError for a pattern that cannot be followed, or that the
    vocabulary or `max_new_tokens` cannot meet.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        regex: str | None,
        max_new_tokens: int,
        *,
        allow: str | None = None,
        forbid: str | None = None,
        never: Collection[int] = (),
    ) -> None:
        nfa = build_nfa("(?s:.*)" if regex is None else regex)
        self._table = TokenTable(to_dfa(nfa, alphabet_of(allow, forbid)), tokenizer, never)
        self._ends = regex is not None
        self._budget = max_new_tokens if self._ends else None
        self.exempt = [t for t in range(tokenizer.vocab_size) if not self._ends and not tokenizer.token_bytes(t)]
        """Special tokens, which write nothing: a pattern ends before them, a mere choice of characters does not."""
        self._check_satisfiable()

    def matcher(self) -> Matcher:
        return Matcher(self._table, self._budget, self._ends)

    def _check_satisfiable(self) -> None:
        needed = self._table.distance(self._table.start)
        if self._budget is None:
            if not (self._table.following(self._table.start).distances < UNREACHABLE).any():
                raise RequestError("forbid and allow leave no character of the vocabulary that may be written")
        elif needed >= UNREACHABLE:
            raise RequestError("the vocabulary cannot write any text that matches the pattern")
        elif needed > self._budget:
            raise RequestError(
                f"a text that matches the pattern may take {needed} tokens; max_new_tokens is {self._budget}",
                hint="raise max_new_tokens",
            )
