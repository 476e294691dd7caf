"""What a model has to beat: counting and compressing, learned on the training text, measured on the validation text."""

import lzma
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpt_cli.corpus.inspection.ngrams import KneserNey
from gpt_cli.tokenizer.base import encoded

ORDERS = {1: "unigram", 2: "bigram", 3: "3-gram", 5: "5-gram", 8: "8-gram"}

_COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "zlib": lambda data: zlib.compress(data, 9),
    "xz": lambda data: lzma.compress(data, preset=6),
}


@dataclass(frozen=True)
class Baseline:
    """How many bits a method needs for the validation text."""

    name: str
    bits_per_character: float
    bits_per_byte: float
    nats_per_character: float
    """The loss that a model of characters would show."""


def measure_baselines(train: str, val: str, alphabet: npt.NDArray[np.int64]) -> list[Baseline]:
    """N-gram models and compressors. Both texts consist of the (V,) code points in `alphabet`, and are not empty.

    A compressor's figure is what the validation text adds to the training text when both are compressed as one.
    """
    size = len(encoded(val))
    found: list[Baseline] = []

    def add(name: str, bits: float) -> None:
        per_character = bits / len(val)
        found.append(Baseline(name, per_character, bits / size, per_character * math.log(2)))

    add("equal chances", len(val) * math.log2(len(alphabet)))
    model = KneserNey.learn(_positions(train, alphabet), len(alphabet), max(ORDERS))
    for order, probabilities in model.probabilities(_positions(val, alphabet), list(ORDERS)).items():
        add(ORDERS[order], -float(np.log2(probabilities).sum()))
    for name, compress in _COMPRESSORS.items():
        alone = len(compress(encoded(train)))
        add(name, max(0.0, 8.0 * (len(compress(encoded(train) + encoded(val))) - alone)))
    return found


def _positions(text: str, alphabet: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """(N,) where each character of `text` stands in the alphabet."""
    return np.searchsorted(alphabet, np.frombuffer(encoded(text, "utf-32-le"), dtype="<u4"))
