"""Match a text against a pattern token by token, and mask the tokens that cannot follow. Without torch.

Shapes: V vocabulary.

Tokens after which the text cannot become a match (within the remaining tokens) are excluded, and the distribution over
the others is renormalised. Where the text already is a match, nothing is excluded: a token that does not continue the
match ends the text before it. So the text ends as often as the model would continue with something else, and the
vocabulary needs no end-of-text token.
"""

import re
from collections.abc import Collection, Sequence

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

    def __init__(self, table: TokenTable, budget: int | None, ends: bool, special: Sequence[int]) -> None:
        self._table, self._special = table, special
        self._state: State = table.start
        self._budget = budget
        self._ends = ends
        self.finished = False
        """True if the text has ended: no token can continue the match, or the last token did not."""
        self.rejected_last = False
        """True if the text ended before its last token, which is not part of it."""

    def mask(self) -> Mask | None:
        """(V,): the tokens that may follow. None: any, since those that do not continue the match end the text."""
        if self.finished or (self._ends and self._table.matches(self._state)):
            return None
        return self._allowed()

    def accept(self, token: int) -> None:
        """Go on with `token`, which `mask` allows."""
        if self.finished:
            return
        transitions = self._table.transitions(self._state)
        budget = None if self._budget is None else self._budget - 1
        distance = int(transitions.distances[token])
        if distance >= UNREACHABLE or (budget is not None and distance > budget):
            self.finished = self.rejected_last = self._ends
            return
        self._state, self._budget = self._table.state(int(transitions.states_after[token])), budget
        if self._ends and self._table.matches(self._state):
            self.finished = not self._allowed().any()

    def _allowed(self) -> Mask:
        """(V,): the tokens after which a match can be reached within the budget."""
        distances = self._table.transitions(self._state).distances
        allowed: Mask = (
            distances < UNREACHABLE if self._budget is None else distances <= min(self._budget - 1, UNREACHABLE - 1)
        )
        allowed[self._special] = self._table.matches(self._state)  # not within a character
        return allowed


class CompiledPattern:
    """A constraint compiled for one vocabulary: a regular expression, a number of tokens, an alphabet.

    `regex` has the meaning of `re.fullmatch`; None: any text, which then does not end by itself. `never` are tokens to
    exclude besides special ones. Raises RequestError for a pattern with unsupported parts, and for one that cannot be
    matched with this vocabulary or in `max_new_tokens`; `asked` names in them what is asked for.
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
        asked: str = "text that matches the pattern",
    ) -> None:
        nfa = build_nfa("(?s:.*)" if regex is None else regex)
        self._table = TokenTable(to_dfa(nfa, alphabet_of(allow, forbid)), tokenizer, never)
        self._ends = regex is not None
        self._budget = max_new_tokens if self._ends else None
        # Special tokens write nothing, and end a text that there is only an alphabet for, but not as in a regex.
        self._special = [t for t in range(tokenizer.vocab_size) if not self._ends and not tokenizer.token_bytes(t)]
        limits = [name for name, value in (("forbid", forbid), ("allow", allow)) if value is not None]
        if limits and self._ends and self._table.distance(self._table.start) >= UNREACHABLE:
            unlimited = TokenTable(to_dfa(nfa, _EVERYTHING), tokenizer, never)
            if unlimited.distance(unlimited.start) < UNREACHABLE:
                raise RequestError(
                    f"with {' and '.join(limits)} the vocabulary cannot write any {asked}",
                    hint=f"leave out {' and '.join(f'--{name}' for name in limits)}",
                )
        self._check_satisfiable(asked)

    def matcher(self) -> Matcher:
        return Matcher(self._table, self._budget, self._ends, self._special)

    def _check_satisfiable(self, asked: str) -> None:
        distance = self._table.distance(self._table.start)
        if self._budget is None:
            if not (self._table.transitions(self._table.start).distances < UNREACHABLE).any():
                raise RequestError("forbid and allow leave no character of the vocabulary that may be written")
        elif distance >= UNREACHABLE:
            raise RequestError(f"the vocabulary cannot write any {asked}")
        elif distance > self._budget:
            raise RequestError(
                f"a {asked} may take {distance} tokens; max_new_tokens is {self._budget}",
                hint=f"--max-new-tokens {distance}, or more",
            )
