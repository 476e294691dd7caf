"""All substrings of a short text, to find in a long one in a single pass: its suffix automaton.

Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985). A state stands for substrings that
end at the same places; the suffix link of a state leads to their longest suffix that ends at more of them.
"""


class SuffixAutomaton:
    """The substrings of `text`, and which of them were met in what was read. About 500 bytes for each character."""

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
        self._met = [0] * len(self._next)
        """The longest substring of each state that was met; 0: none."""

    def read(self, text: str) -> None:
        """Meet every substring that `text` has in common with the automaton's: some steps a character at most."""
        following, link, longest, met = self._next, self._link, self._length, self._met
        state = length = 0
        for character in text:
            while state and character not in following[state]:
                state = link[state]
                length = longest[state]
            if character in following[state]:
                state = following[state][character]
                length += 1
                if length > met[state]:
                    met[state] = length

    def matches(self) -> list[int]:
        """For each end in the automaton's text, the length of the longest substring ending there that was met."""
        order = sorted(range(1, len(self._link)), key=self._length.__getitem__)
        met = list(self._met)
        for state in reversed(order):  # what was met has all its suffixes
            parent = self._link[state]
            if met[state] and parent:
                met[parent] = self._length[parent]
        for state in order:  # where none of a state was met, its shorter suffixes are asked
            met[state] = met[state] or met[self._link[state]]
        return [met[state] for state in self._prefixes]

    def _extend(self, last: int, character: str) -> int:
        """The state of the text so far with one more character."""
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

    def _add(self, following: dict[str, int], length: int) -> int:
        self._next.append(following)
        self._link.append(-1)
        self._length.append(length)
        return len(self._link) - 1
