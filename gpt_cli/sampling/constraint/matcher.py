"""Match a text against a pattern token by token, and mask the tokens that cannot follow. Without torch.

Shapes: V vocabulary.

Tokens after which the text cannot become a match (within the remaining tokens) are excluded, and the distribution over
the others is renormalised. Where the text already is a match, nothing is excluded: a token that does not continue the
match ends the text before it. So the text ends as often as the model would continue with something else, and the
vocabulary needs no end-of-text token.
"""

from collections.abc import Collection

from gpt_cli.errors import RequestError
from gpt_cli.sampling.constraint.dfa import to_dfa
from gpt_cli.sampling.constraint.nfa import build_nfa
from gpt_cli.sampling.constraint.token_table import UNREACHABLE, Mask, State, TokenTable
from gpt_cli.tokenizer import Tokenizer


class Matcher:
    """The state of one text in a pattern."""

    def __init__(self, table: TokenTable, budget: int) -> None:
        self._table = table
        self._state: State = table.start
        self._budget = budget
        self.finished = False
        """True if the text has ended: no token can continue the match, or the last token did not."""
        self.rejected_last = False
        """True if the text ended before its last token, which is not part of it."""

    def mask(self) -> Mask | None:
        """(V,): the tokens that may follow. None: any, since those that do not continue the match end the text."""
        if self.finished or self._table.matches(self._state):
            return None
        return self._allowed()

    def accept(self, token: int) -> None:
        """Go on with `token`, which `mask` allows."""
        if self.finished:
            return
        transitions = self._table.transitions(self._state)
        is_allowed = bool(transitions.distances[token] < self._budget)
        self._go_on(self._table.state(int(transitions.states_after[token])) if is_allowed else None)

    def admits(self, data: bytes) -> bool:
        """True if a token whose bytes end with `data`, the first of the text, may open it: see heal.py."""
        return not data or self._table.matches(self._state) or self._after(data) is not None

    def begin(self, data: bytes) -> None:
        """Advance by such a token; empty: it is no part of the text."""
        if data:
            self._go_on(self._after(data))

    def _after(self, data: bytes) -> State | None:
        state = self._table.walk(self._state, data)
        return state if self._table.distance(state) < self._budget else None

    def _go_on(self, state: State | None) -> None:
        """Go on from `state` after another token; None: it does not continue a match."""
        if state is None:
            self.finished = self.rejected_last = True
            return
        self._state, self._budget = state, self._budget - 1
        if self._table.matches(self._state):
            self.finished = not self._allowed().any()

    def _allowed(self) -> Mask:
        """(V,): the tokens after which a match can be reached within the budget."""
        allowed: Mask = self._table.transitions(self._state).distances < self._budget
        return allowed


class CompiledPattern:
    """A regular expression compiled for one vocabulary and a number of tokens.

    `regex` has the meaning of `re.fullmatch`. `never` are tokens to exclude besides special ones. Raises RequestError
    for a pattern with unsupported parts, and for one that cannot be matched with this vocabulary or in
    `max_new_tokens`; `asked` names in them what is asked for.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        regex: str,
        max_new_tokens: int,
        *,
        never: Collection[int] = (),
        asked: str = "text that matches the pattern",
    ) -> None:
        self._table = TokenTable(to_dfa(build_nfa(regex)), tokenizer, never)
        self._budget = max_new_tokens
        distance = self._table.distance(self._table.start)
        if distance >= UNREACHABLE:
            raise RequestError(f"the vocabulary cannot write any {asked}")
        if distance > max_new_tokens:
            raise RequestError(
                f"a {asked} may take {distance} tokens; max_new_tokens is {max_new_tokens}",
                hint=f"--max-new-tokens {distance}, or more",
            )

    def matcher(self) -> Matcher:
        return Matcher(self._table, self._budget)
