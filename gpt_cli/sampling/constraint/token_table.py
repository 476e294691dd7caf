"""For each state, the tokens of a vocabulary after which a match is still reachable.

Shapes: V tokens, Q states of the pattern, D nodes of the UTF-8 decoder, C classes of characters.
A `State` is a pair: the state of the pattern, and the node inside a character.
"""

import heapq
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpt_cli.sampling.constraint.dfa import DFA, Numbers
from gpt_cli.sampling.constraint.utf8 import INVALID, Utf8DFA, make_utf8_dfa
from gpt_cli.tokenizer import Tokenizer

UNREACHABLE = np.iinfo(np.int64).max // 4  # tokens to a match where there is none
_CACHE_LIMIT = 2**25  # numbers in the cached tables

State = tuple[int, int]


@dataclass(frozen=True)
class Transitions:
    """Transitions of all tokens from one state."""

    states_after: Numbers
    """(V,): state * D + node after the token."""
    distances: Numbers
    """(V,): an upper bound on the tokens from there to a match; UNREACHABLE if the token is not allowed."""


class TokenTable:
    """The transitions of all tokens from each state of a pattern, computed when a text reaches it.

    Tokens in `never` are excluded. Distances count tokens of one character or one byte only: all vocabularies here have
    these, so from a state that is not UNREACHABLE there always is a way.
    """

    def __init__(self, dfa: DFA, tokenizer: Tokenizer, never: Collection[int]) -> None:
        self._dfa = dfa
        self._decoder: Utf8DFA = make_utf8_dfa(dfa.classes)
        pieces = [b"" if t in never else tokenizer.token_bytes(t) for t in range(tokenizer.vocab_size)]
        self._lengths = np.array([len(piece) for piece in pieces])
        self._offsets = self._lengths.cumsum() - self._lengths
        self._bytes = np.frombuffer(b"".join(pieces), dtype=np.uint8)
        self._costs = self._costs_of_classes(pieces)
        self._distances = self._distances_of_states()
        self._cache: OrderedDict[State, Transitions] = OrderedDict()

    @property
    def start(self) -> State:
        return 0, self._decoder.root

    def state(self, number: int) -> State:
        """The state of a number of `Transitions.states_after`."""
        return divmod(number, len(self._decoder))

    def matches(self, state: State) -> bool:
        """True if the text up to here is a match."""
        return bool(state[1] == self._decoder.root and self._dfa.accepts[state[0]])

    def distance(self, state: State) -> int:
        """An upper bound on the tokens to a match; UNREACHABLE if there is none."""
        return int(self._distances[state[0]] if state[1] == self._decoder.root else self._inside(state[0])[state[1]])

    def walk(self, state: State, data: bytes) -> State:
        """The state after some bytes; one without a way to a match if there is none."""
        number, node = state
        for byte in data:
            step = int(self._decoder.table[node, byte])
            if step == INVALID:
                return len(self._dfa.next) - 1, self._decoder.root  # the dead one
            node = step if step > INVALID else self._decoder.root
            number = number if step > INVALID else int(self._dfa.next[number, -2 - step])
        return number, node

    def transitions(self, state: State) -> Transitions:
        """Transitions of all tokens from `state`."""
        if state in self._cache:
            self._cache.move_to_end(state)
        else:
            self._cache[state] = self._follow(state)
            while len(self._cache) * 2 * len(self._lengths) > _CACHE_LIMIT and len(self._cache) > 1:
                self._cache.popitem(last=False)
        return self._cache[state]

    def _follow(self, state: State) -> Transitions:
        """Walk all tokens at once, a byte at a time, dropping those that cannot match."""
        states_after = np.zeros(len(self._lengths), dtype=np.int64)
        distances = np.full(len(self._lengths), UNREACHABLE)
        tokens = np.flatnonzero(self._lengths)
        states, nodes = (np.full(len(tokens), start) for start in state)
        n_read = 0
        while len(tokens):
            step = self._decoder.table[nodes, self._bytes[self._offsets[tokens] + n_read]]
            is_complete = step < INVALID
            states = np.where(is_complete, self._dfa.next[states, np.where(is_complete, -2 - step, 0)], states)
            nodes = np.where(is_complete, self._decoder.root, step)
            n_read += 1
            possible = (step != INVALID) & (self._distances[states] < UNREACHABLE)
            ended = possible & (self._lengths[tokens] == n_read)
            states_after[tokens[ended]] = states[ended] * len(self._decoder) + nodes[ended]
            distances[tokens[ended]] = self._distances_at(states[ended], nodes[ended])
            is_running = possible & ~ended
            tokens, states, nodes = tokens[is_running], states[is_running], nodes[is_running]
        return Transitions(states_after, distances)

    def _distances_at(self, states: Numbers, nodes: Numbers) -> Numbers:
        distances = self._distances[states]
        for state in np.unique(states[nodes != self._decoder.root]):
            inside = (states == state) & (nodes != self._decoder.root)
            distances[inside] = self._inside(int(state))[nodes[inside]]
        return distances

    def _inside(self, state: int) -> Numbers:
        """(D,): the tokens to a match from inside a character that begins in `state`."""
        distances: Numbers = (self._costs + self._distances[self._dfa.next[state]]).min(axis=1)
        return distances.clip(max=UNREACHABLE)

    def _costs_of_classes(self, pieces: list[bytes]) -> Numbers:
        """(D, C): the tokens that write a character of a class: one from the root if it is a token, else its bytes."""
        decoder = self._decoder
        single = np.zeros(256, dtype=bool)
        single[[piece[0] for piece in pieces if len(piece) == 1]] = True
        costs = np.full((len(decoder), len(self._dfa.classes)), UNREACHABLE)
        for node, row in enumerate(decoder.table):  # children come first
            for step in np.unique(row[single & (row != INVALID)]):
                if step < INVALID:
                    costs[node, -2 - step] = 1
                else:
                    costs[node] = np.minimum(costs[node], 1 + costs[step])
        for piece in pieces:
            if piece and (character := _one_character(piece)) is not None:
                costs[decoder.root, self._dfa.classes.of(ord(character))] = 1
        return costs.clip(max=UNREACHABLE)

    def _distances_of_states(self) -> Numbers:
        """(Q + 1,): the fewest tokens from each state to a match (Dijkstra, 1959)."""
        cost = self._costs[self._decoder.root]
        predecessors: list[list[tuple[int, int]]] = [[] for _ in self._dfa.next]
        for class_ in np.flatnonzero(cost < UNREACHABLE):
            for state, target in enumerate(self._dfa.next[:, class_].tolist()):
                predecessors[target].append((state, int(cost[class_])))
        distances = np.full(len(self._dfa.next), UNREACHABLE)
        queue = [(0, int(state)) for state in np.flatnonzero(self._dfa.accepts)]
        while queue:
            distance, state = heapq.heappop(queue)
            if distance < distances[state]:
                distances[state] = distance
                for predecessor, step in predecessors[state]:
                    heapq.heappush(queue, (distance + step, predecessor))
        return distances


def _one_character(piece: bytes) -> str | None:
    if len(piece) > 4:
        return None
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return None
    return text if len(text) == 1 else None


Mask = npt.NDArray[np.bool_]
