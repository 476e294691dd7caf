"""A suffix automaton: finds the substrings of a short text in a long one in a single pass.

Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985). A state stands for substrings that
end at the same positions; the suffix link of a state leads to their longest suffix that ends at more positions.
"""


class SuffixAutomaton:
    """The substrings of `text`, and which of them occur in the texts read. About 500 bytes for each character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._next: list[dict[str, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        """Length of the longest substring of each state."""
        self._prefixes: list[int] = []  # the state of text[: i + 1]
        last = 0
        for character in text:
            last = self._extend(last, character)
            self._prefixes.append(last)
        self._matched = [0] * len(self._next)
        """Length of the longest substring of each state that was matched; 0: none."""

    def read(self, text: str) -> None:
        """Mark the substrings that `text` shares with the automaton's text, in O(len(text)) steps."""
        transitions, link, longest, matched = self._next, self._link, self._length, self._matched
        state = length = 0
        for character in text:
            while state and character not in transitions[state]:
                state = link[state]
                length = longest[state]
            if character in transitions[state]:
                state = transitions[state][character]
                length += 1
                if length > matched[state]:
                    matched[state] = length

    def matches(self) -> list[int]:
        """The length of the longest matched substring that ends at each index of the automaton's text."""
        order = sorted(range(1, len(self._link)), key=self._length.__getitem__)
        matched = list(self._matched)
        for state in reversed(order):  # the suffixes of a match are matches
            parent = self._link[state]
            if matched[state] and parent:
                matched[parent] = self._length[parent]
        for state in order:  # a state without a match has that of its suffix link
            matched[state] = matched[state] or matched[self._link[state]]
        return [matched[state] for state in self._prefixes]

    def _extend(self, last: int, character: str) -> int:
        """Add one character to the text; returns the state of the whole text."""
        new = self._add({}, self._length[last] + 1)
        state = last
        while state >= 0 and character not in self._next[state]:
            self._next[state][character] = new
            state = self._link[state]
        if state < 0:
            self._link[new] = 0
            return new
        target = self._next[state][character]
        if self._length[target] == self._length[state] + 1:
            self._link[new] = target
            return new
        clone = self._add(dict(self._next[target]), self._length[state] + 1)
        self._link[clone] = self._link[target]
        self._link[new] = self._link[target] = clone
        while state >= 0 and self._next[state].get(character) == target:
            self._next[state][character] = clone
            state = self._link[state]
        return new

    def _add(self, transitions: dict[str, int], length: int) -> int:
        self._next.append(transitions)
        self._link.append(-1)
        self._length.append(length)
        return len(self._link) - 1
