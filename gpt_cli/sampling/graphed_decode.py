"""Decoding on a GPU: one decode step captured as a CUDA graph over a static KV cache.

A decode step of a small model is hundreds of kernels of a few microseconds, each of which takes the CPU as long to
launch. The captured function takes the latest tokens, their positions and their noise, and writes to the cache.

Shapes: B sequences, S keys, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpt_cli.capabilities import KV_CACHE, RAGGED_CACHE, STATIC_CACHE
from gpt_cli.errors import Notify, first_line
from gpt_cli.model.gpt import GPT
from gpt_cli.model.kv_cache import KVCache
from gpt_cli.model.static_cache import StaticCache
from gpt_cli.runtime.async_copy import AsyncHostCopy
from gpt_cli.runtime.cuda_graph import TensorFunction, capture_graph
from gpt_cli.sampling.logits_processors import LogitBias, LogitsProcessor, choose_tokens
from gpt_cli.sampling.sampling_params import SamplingParams

if TYPE_CHECKING:
    from gpt_cli.sampling.generate import SequenceBatch

CHUNK = 8
"""Steps whose tokens are read together; up to two chunks are discarded when a text ends."""

FEWEST_STEPS = 32  # a capture costs a few steps
FEWEST_KEYS = 128

_CAPTURABLE = (LogitBias,)  # processors whose `apply` does not depend on earlier tokens

Capture = Callable[[TensorFunction, Sequence[Tensor]], TensorFunction]
"""A function and example inputs -> the same function, faster."""


class GraphedDecoder:
    """Captures decode steps for `generate`; a failure is reported to `note` once, and not retried.

    With `compiling`, the step is compiled (one graph, static shapes) before it is captured: fewer kernels, but a wait
    for the compiler at each bucket of keys, which pays off for a server, not for a single text.
    """

    def __init__(self, note: Notify, *, compiling: bool = False, capture: Capture = capture_graph) -> None:
        self._note, self._compiling, self._capture, self._works = note, compiling, capture, True

    def supports(self, model: GPT, sampling: SamplingParams, processors: Sequence[LogitsProcessor]) -> bool:
        """True if the texts can be decoded without reading each token on the host, and are long enough."""
        is_known = all(cache.refusal(model.config) is None for cache in (KV_CACHE, RAGGED_CACHE, STATIC_CACHE))
        is_long = sampling.max_new_tokens >= FEWEST_STEPS
        return (
            self._works and is_known and is_long and all(isinstance(processor, _CAPTURABLE) for processor in processors)
        )

    def begin(
        self, model: GPT, rows: "SequenceBatch", sampling: SamplingParams, processors: Sequence[LogitsProcessor]
    ) -> Callable[[Tensor | None], Sequence[Tensor] | None]:
        """A function that decodes a step of `rows`: (B, V) noise -> the result of `choose_tokens`.

        It returns None, with nothing changed, if capture, compilation or replay failed.
        """
        graphs: dict[int, TensorFunction] = {}
        cache = rows.cache
        assert cache is not None, "see `supports`"

        def decode(noise: Tensor | None) -> Sequence[Tensor] | None:
            if not self._works:
                return None
            filled, max_length = cache.length, cache.keys.shape[3]
            n_key = length_bucket(filled, max_length)
            start = cache.start
            if isinstance(start, int):
                start = torch.full_like(rows.latest[:, 0], start)
            inputs = (rows.latest, start) if noise is None else (rows.latest, start, noise)
            try:
                if n_key not in graphs:
                    step = decode_step(model, cache, n_key, sampling, processors)
                    if self._compiling:
                        step = torch.compile(step, fullgraph=True, dynamic=False)
                    graphs[n_key] = self._capture(step, inputs)
                chosen = graphs[n_key](*inputs)
            except Exception as error:  # those of compilers and drivers have no common base class
                self._works = False
                self._note(f"decoding by CUDA graphs does not work here ({first_line(error)}); going on without")
                return None
            cache.advance(1)
            return chosen

        return decode


def decode_step(
    model: GPT, cache: KVCache, n_key: int, sampling: SamplingParams, processors: Sequence[LogitsProcessor]
) -> TensorFunction:
    """(B, 1) tokens, (B,) their positions below `n_key`, (B, V) noise (none if greedy) -> result of `choose_tokens`.

    It writes keys and values to the memory of `cache`, changes nothing else, and does not sync.
    """
    layers = list(zip(cache.keys, cache.values, strict=True))  # (B, Hkv, S, D) each

    def decode_one_token(tokens: Tensor, start: Tensor, noise: Tensor | None = None) -> Sequence[Tensor]:
        logits = model(tokens, StaticCache(layers, start, n_key))[:, -1]
        return choose_tokens(logits, noise, sampling, processors)

    return decode_one_token


def length_bucket(filled: int, max_length: int) -> int:
    """The number of keys that attention reads for a token at position `filled`: a power of two, at most `max_length`.

    A context of n positions takes at most log2(n / 128) + 2 captures.
    """
    return min(max_length, max(FEWEST_KEYS, 1 << filled.bit_length()))


def read_late(steps: Iterable[Sequence[Tensor]]) -> Iterator[list[list[Any]]]:
    """Each step's tensors as lists: the first at once, then in chunks, each read while the next is computed."""
    steps, pending = iter(steps), list[AsyncHostCopy]()
    for first in islice(steps, 1):
        yield [tensor.tolist() for tensor in first]
    while chunk := list(islice(steps, CHUNK)):
        copies = [AsyncHostCopy(torch.stack(tensors)) for tensors in zip(*chunk, strict=True)]
        yield from _read(pending)
        pending = copies
    yield from _read(pending)


def _read(pending: list[AsyncHostCopy]) -> Iterator[list[list[Any]]]:
    return (list(step) for step in zip(*(copy.read() for copy in pending), strict=True))
