"""Baselines: n-gram models and compressors, fitted to the training text, measured on the validation text."""

import lzma
import math
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpt_cli.analysis.ngrams import KneserNey
from gpt_cli.tokenizer.base import encode_text

ORDERS = {1: "unigram", 2: "bigram", 3: "3-gram", 5: "5-gram", 8: "8-gram"}

_COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "zlib": lambda data: zlib.compress(data, 9),
    "xz": lambda data: lzma.compress(data, preset=6),
}


@dataclass(frozen=True)
class Baseline:
    name: str
    bits_per_character: float
    bits_per_byte: float
    nats_per_character: float
    """The equivalent loss of a character model."""


def measure_baselines(train: str, val: str, alphabet: npt.NDArray[np.int64]) -> list[Baseline]:
    """N-gram models and compressors. Both texts consist of the (V,) code points in `alphabet`, and are not empty.

    The bits of a compressor are those that the validation text adds when it is compressed after the training text.
    """
    size = len(encode_text(val))
    bits = {
        "uniform": len(val) * math.log2(len(alphabet)),
        **_ngram_bits(_positions(train, alphabet), _positions(val, alphabet), len(alphabet)),
        **_compressed_bits(encode_text(train), encode_text(val)),
    }
    return [Baseline(name, b / len(val), b / size, b / len(val) * math.log(2)) for name, b in bits.items()]


def _ngram_bits(train: npt.NDArray[np.int64], val: npt.NDArray[np.int64], vocab_size: int) -> dict[str, float]:
    probabilities = KneserNey.learn(train, vocab_size, max(ORDERS)).probabilities(val, list(ORDERS))
    return {ORDERS[order]: max(0.0, -float(np.log2(values).sum())) for order, values in probabilities.items()}


def _compressed_bits(train: bytes, val: bytes) -> dict[str, float]:
    """The bits that `val` adds to `train` when compressed. Compressors release the GIL, so two run in parallel."""
    bits: dict[str, float] = {}
    with ThreadPoolExecutor(2) as threads:
        for name, compress in _COMPRESSORS.items():
            train_size, total_size = map(len, threads.map(compress, (train, train + val)))
            bits[name] = 8.0 * max(0, total_size - train_size)
    return bits


def _positions(text: str, alphabet: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """(N,) index of each character of `text` in the alphabet."""
    return np.searchsorted(alphabet, np.frombuffer(encode_text(text, "utf-32-le"), dtype="<u4"))
