"""Decoders without torch: by the compiled kernel, or by NumPy.

Shapes: T tokens, V vocabulary.
"""

import ctypes
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from gpt_cli.cpu.common.kernel import WrongKernel
from gpt_cli.cpu.decode import numpy_gpt
from gpt_cli.cpu.decode.bindings import Handle, Sampling, address, load_library, to_c_structs
from gpt_cli.cpu.decode.numpy_sampler import Masks, TokenChoice
from gpt_cli.cpu.decode.weight_formats import WeightDtype, fake_quantize
from gpt_cli.cpu.decode.weights import Array, Weights
from gpt_cli.errors import Notify

_CHUNK_SECONDS = 0.01
_PROBE = 7  # tokens whose logits are compared with the reference when a model is opened
_TOLERANCE = {"fp32": 1e-3, "bf16": 3e-2, "int8": 1e-2}
"""Tolerance relative to the largest logit, for another summation order and rounding. A wrong network exceeds it by
far."""


class Decoder(Protocol):
    """A model that generates texts."""

    engine: str
    weights: Weights

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        choice: TokenChoice,
        masks: Masks | None = None,
    ) -> "DecodeSession":
        """Begin a text for each prompt (not empty; of a long one the last `context_length` tokens are seen).

        `masks` (B, W), which the caller may change before each step, exclude tokens.
        """

    def next_logits(self, prompts: Sequence[Sequence[int]]) -> Array:
        """B prompts, as `start` takes them -> (B, V): the logits of the token after each."""

    def score(self, tokens: Sequence[int]) -> Array:
        """(T,) tokens, at most a context -> (T, V): the next-token logits of each."""


class DecodeSession(Protocol):
    """A batch of texts that are being generated."""

    def decode(self, steps: int) -> list[list[int]]:
        """Up to `steps` lists of the next token of each text; fewer once all texts have ended."""

    def stop(self, text: int) -> None:
        """End text number `text`; its further tokens are meaningless."""


def stream_tokens(session: DecodeSession, length: int, *, single: bool = False) -> Iterator[list[list[int]]]:
    """Yield `length` steps in chunks: of one token at first, then of about 10 ms each, short enough to stream and to
    handle Ctrl-C, and long enough to hide Python's overhead. `single`: all of one token.
    """
    n_decoded, size = 0, 1
    while n_decoded < length:
        size = 1 if single else min(size, length - n_decoded)
        started = time.perf_counter()
        tokens = session.decode(size)
        seconds = time.perf_counter() - started
        if tokens:
            yield tokens
        n_decoded += size
        if len(tokens) < size:
            return
        size = min(2 * size, 256) if seconds < _CHUNK_SECONDS else max(1, size // 2)


class NativeDecoder:
    """A decoder by the compiled kernel. `threads` share the work; `format` is that of the matrices.

    Products of many rows with int8 weights use AMX tiles if there are any, unless `use_amx` is False: equal sums.

    Raises KernelUnavailable when there is no kernel, or its logits differ from those of the reference on a probe.
    """

    engine = "native"

    def __init__(
        self,
        weights: Weights,
        *,
        format: WeightDtype = "fp32",
        threads: int = 1,
        use_amx: bool = True,
        note: Notify = lambda _: None,
    ) -> None:
        self.weights = weights
        self.format = format
        self._c_structs = to_c_structs(weights, format, threads, use_amx)  # the kernel has pointers into it
        self._open(load_library(note))
        if not self._is_right():
            note("the compiled decoder is wrong: its logits differ from those of the reference; compiling it again")
            self._open(load_library(note, anew=True))
            if not self._is_right():
                raise WrongKernel("its logits differ from those of the reference")

    def _open(self, library: ctypes.CDLL) -> None:
        net, layers = self._c_structs
        self._library = library
        self._model = Handle(library.gpt_open(ctypes.byref(net), layers), library.gpt_close)

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        choice: TokenChoice,
        masks: Masks | None = None,
    ) -> "NativeSession":
        return NativeSession(self, prompts, seeds, choice, masks)

    def next_logits(self, prompts: Sequence[Sequence[int]]) -> Array:
        logits = np.empty((len(prompts), self.weights.vocab_size), np.float32)
        tokens = np.empty((1, len(prompts)), np.int32)
        session = self.start(prompts, [0] * len(prompts), TokenChoice(temperature=0.0))
        self._library.gpt_write(session.handle.pointer, 1, address(tokens), address(logits))
        return logits

    def score(self, tokens: Sequence[int]) -> Array:
        logits = np.empty((len(tokens), self.weights.vocab_size), np.float32)
        session = self.start([tokens[:1]], [0], TokenChoice(temperature=0.0))
        ids = np.asarray(tokens, np.int32)
        self._library.gpt_score(session.handle.pointer, address(ids), len(tokens), address(logits))
        return logits

    def _is_right(self) -> bool:
        """True if the logits of a probe, with these weights, are those of the reference."""
        vocab_size, length = self.weights.vocab_size, min(_PROBE, self.weights.config.context_length)
        probe = [(i * i * 31 + 7) % vocab_size for i in range(length)]
        rounded = self.weights if self.format == "fp32" else fake_quantize(self.weights, self.format)
        expected, logits = numpy_gpt.forward(rounded, probe), self.score(probe)
        tolerance = _TOLERANCE[self.format] * max(1.0, float(np.abs(expected).max()))
        return bool(np.abs(expected - logits).max() <= tolerance)  # False for NaN


class NativeSession:
    def __init__(
        self,
        decoder: NativeDecoder,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        choice: TokenChoice,
        masks: Masks | None,
    ) -> None:
        context = decoder.weights.config.context_length
        windows = [prompt[-context:] for prompt in prompts]
        ids = np.concatenate([np.asarray(window, np.int32) for window in windows])
        lengths = np.array([len(window) for window in windows], np.int32)
        self._decoder = decoder
        self._library = decoder._library
        self._batch = len(prompts)
        settings, token_lists = settings_of(choice)
        low = np.array([seed & 0xFFFFFFFF for seed in seeds], np.uint32)
        pointer = self._library.gpt_begin(
            decoder._model.pointer, self._batch, address(ids), address(lengths), address(low), ctypes.byref(settings)
        )
        del token_lists  # the session has a copy
        self.handle = Handle(pointer, self._library.gpt_end)
        self._masks = masks  # which the session points into
        if masks is not None:
            self._library.gpt_mask(self.handle.pointer, address(masks), masks.shape[1])

    def decode(self, steps: int) -> list[list[int]]:
        tokens = np.empty((steps, self._batch), np.int32)
        n_steps = self._library.gpt_write(self.handle.pointer, steps, address(tokens), None)
        columns: list[list[int]] = tokens[:n_steps].tolist()
        return columns

    def stop(self, text: int) -> None:
        self._library.gpt_stop(self.handle.pointer, text)


def settings_of(choice: TokenChoice) -> tuple[Sampling, Array]:
    """`choice` as a C struct, and the array that it points into."""
    token_lists = np.array([*choice.banned_tokens, *choice.end_tokens], np.int32)
    settings = Sampling(
        temperature=0.0 if choice.greedy else choice.temperature,
        top_k=choice.top_k or 0,
        top_p=choice.top_p or 0.0,
        log_min_p=0.0 if choice.min_p is None else float(np.log(choice.min_p)),
        use_min_p=choice.min_p is not None,
        n_banned=len(choice.banned_tokens),
        n_ends=len(choice.end_tokens),
        token_lists=address(token_lists),
    )
    return settings, token_lists
