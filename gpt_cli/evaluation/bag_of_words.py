"""A bag-of-words baseline for text classification.

Shapes: E texts, W words, K classes.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

_WORD = re.compile(r"\w+|[^\w\s]")
_STEPS = 100


@dataclass(frozen=True, eq=False)
class BagOfWords:
    """Multinomial logistic regression on tf-idf of lower-case words: (1 + log count) * idf, rows of length 1.

    The loss is the sum over texts plus half the squared norm of the weights, minimised by L-BFGS, as in scikit-learn's
    `TfidfVectorizer(sublinear_tf=True)` and `LogisticRegression(C=1)`.
    """

    words: dict[str, int]
    idf: Tensor
    """(W,)"""
    weight: Tensor
    """(W, K)"""
    bias: Tensor
    """(K,)"""

    @classmethod
    def train(cls, texts: Sequence[str], classes: Sequence[int], n_classes: int) -> "BagOfWords":
        """Fit the regression to `texts` with these classes."""
        document_counts = Counter(word for text in texts for word in set(words_of(text)))
        words = {word: number for number, word in enumerate(sorted(document_counts))}
        idf = torch.tensor([math.log((1 + len(texts)) / (1 + document_counts[word])) + 1 for word in words])
        features, targets = _features(texts, words, idf), torch.tensor(classes)
        weight = torch.zeros(len(words), n_classes, requires_grad=True)
        bias = torch.zeros(n_classes, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight, bias], max_iter=_STEPS, line_search_fn="strong_wolfe")

        def closure() -> float:
            optimizer.zero_grad()
            logits = torch.sparse.mm(features, weight) + bias
            loss = F.cross_entropy(logits, targets, reduction="sum") + 0.5 * weight.square().sum()
            loss.backward()
            return loss.item()

        optimizer.step(closure)
        return cls(words, idf, weight.detach(), bias.detach())

    def classify(self, texts: Sequence[str]) -> list[int]:
        """The class of each text."""
        logits = torch.sparse.mm(_features(texts, self.words, self.idf), self.weight) + self.bias
        classes: list[int] = logits.argmax(1).tolist()
        return classes


def words_of(text: str) -> list[str]:
    """The words and punctuation marks of a text, in lower case."""
    return _WORD.findall(text.lower())


def _features(texts: Sequence[str], words: dict[str, int], idf: Tensor) -> Tensor:
    """(E, W) sparse tf-idf rows; unknown words are ignored."""
    rows, columns, values = [], [], []
    for number, text in enumerate(texts):
        counts = Counter(words[word] for word in words_of(text) if word in words)
        indices = list(counts)
        weights = torch.tensor([1 + math.log(counts[word]) for word in indices]) * idf[indices]
        rows += [number] * len(indices)
        columns += indices
        values.append(weights / weights.norm().clamp_min(1e-12))
    index = torch.tensor([rows, columns], dtype=torch.long)
    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # torch 2.11 warns where this is not said
        return torch.sparse_coo_tensor(
            index, torch.cat(values) if values else torch.zeros(0), (len(texts), len(words))
        ).coalesce()
