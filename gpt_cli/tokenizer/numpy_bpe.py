"""BPE merges for many short words at once, with NumPy: a round applies to every word its first merge.

Shapes: N ids of all words that are not finished, side by side; W those words.
"""

import numpy as np
import numpy.typing as npt

from gpt_cli.tokenizer.bpe_vocabulary import Vocabulary

_Array = npt.NDArray[np.int64]


class NumpyBPE:
    """The merges of a vocabulary, which must not take whole words as they are (`ignore_merges`)."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        merges = np.array(vocabulary.merges, dtype=np.int64).reshape(-1, 3)
        ids = {token: i for i, token in enumerate(vocabulary.tokens) if i not in vocabulary.special}
        self._byte_ids = np.array([ids[bytes([byte])] for byte in range(256)], dtype=np.int64)
        self._n_ids = len(vocabulary.tokens)
        self._never = len(merges)  # the rank of a pair that is not merged
        keys = merges[:, 0] * self._n_ids + merges[:, 1]
        order = keys.argsort()
        self._keys = np.append(keys[order], np.iinfo(np.int64).max)  # so that every search ends at a key
        self._ranks = np.append(order, self._never)
        self._merged = merges[:, 2]

    def encode(self, words: list[bytes]) -> tuple[_Array, _Array]:
        """The ids of the words (none is empty) one after the other, and (len(words),) how many each has."""
        sizes = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
        ids = self._byte_ids[np.frombuffer(b"".join(words), dtype=np.uint8)]  # (N,)
        word = np.repeat(np.arange(len(words)), sizes)  # (N,) that an id belongs to
        rank = np.full(len(ids), self._never)  # (N,) of the pair that an id makes with the next one
        self._rank(np.arange(len(ids) - 1), ids, word, rank)
        done = [(word[:0], ids[:0])]
        while len(ids):
            starts = np.flatnonzero(np.diff(word, prepend=-1))  # (W,)
            first = np.minimum.reduceat(rank, starts)  # (W,) the merge that was learned first
            first = np.repeat(first, np.diff(starts, append=len(ids)))  # (N,)
            unfinished = first < self._never
            done.append((word[~unfinished], ids[~unfinished]))
            ids, word, rank, first = (array[unfinished] for array in (ids, word, rank, first))
            at = _without_overlaps(np.flatnonzero(rank == first))
            ids[at] = self._merged[rank[at]]
            stays = np.ones(len(ids), dtype=bool)
            stays[at + 1] = False
            ids, word, rank = ids[stays], word[stays], rank[stays]
            at -= np.arange(len(at))  # where the merged ids are now: one place to the left for each before them
            self._rank(np.concatenate([at, at[at > 0] - 1]), ids, word, rank)
        all_words, all_ids = (np.concatenate(arrays) for arrays in zip(*done, strict=True))
        return all_ids[all_words.argsort(kind="stable")], np.bincount(all_words, minlength=len(words))

    def _rank(self, at: _Array, ids: _Array, word: _Array, rank: _Array) -> None:
        """Set the ranks of the pairs that begin `at` these places, from the ids that are there now."""
        rank[at] = self._never
        at = at[at < len(ids) - 1]
        at = at[word[at] == word[at + 1]]
        keys = ids[at] * self._n_ids + ids[at + 1]
        found = self._keys.searchsorted(keys)
        rank[at] = np.where(self._keys[found] == keys, self._ranks[found], self._never)


def _without_overlaps(at: _Array) -> _Array:
    """Every other one, from the left, of neighbouring places, which a run of one id gives."""
    runs = np.flatnonzero(np.diff(at, prepend=-2) > 1)
    offsets = np.arange(len(at)) - np.repeat(runs, np.diff(runs, append=len(at)))
    every_other: _Array = at[offsets % 2 == 0]
    return every_other
