"""Texts from a model's weights, many tokens a call: by the compiled kernel, or by NumPy.

Shapes: T tokens, V vocabulary, B texts written together.
"""

import ctypes
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gpt_cli.cpu.common.kernel import WrongKernel
from gpt_cli.cpu.decode import numpy_gpt
from gpt_cli.cpu.decode.bindings import Handle, Sampling, address, load_library, to_c_structs
from gpt_cli.cpu.decode.numpy_sampler import TokenChoice
from gpt_cli.cpu.decode.quantize import WeightDtype, fake_quantize
from gpt_cli.cpu.decode.weights import Array, Weights
from gpt_cli.errors import Notify

_CHUNK_SECONDS = 0.01
_PROBE = 7  # tokens that are compared when a model is opened
_TOLERANCE = {"fp32": 1e-3, "bf16": 3e-2, "int8": 1e-2}
"""Tolerance relative to the largest logit, for sums in two orders and numbers rounded the other way. A wrong network
differs by far more."""


@dataclass(frozen=True)
class DraftOptions:
    """Options of speculative decoding: several tokens of one text by a pass over the weights.

    They do not change the text: a drafted token is accepted only where it is the one that is sampled without.
    """

    model: "NativeDecoder | None" = None
    """A smaller model with the same vocabulary. None: n-grams, of the prompt, of what is written, and of `text`."""
    text: Sequence[int] = ()
    """Tokens of a text that is like what will be written, such as what the model learned from."""
    length: int | None = None
    """Guesses that a pass looks at, where there are so many. None: as many as pay, by how often they were right."""


class Decoder(Protocol):
    """A model that writes."""

    engine: str
    weights: Weights

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        choice: TokenChoice,
        draft: DraftOptions | None = None,
    ) -> "DecodeSession":
        """Begin a text for each prompt (not empty; of a long one the last `context_length` tokens are seen).

        A `draft` makes a single text faster; the texts of a batch, which share the weights already, are not drafted.
        """

    def score(self, tokens: Sequence[int]) -> Array:
        """(T,) tokens, at most a context -> (T, V): the logits of what follows each."""


class DecodeSession(Protocol):
    """Texts that are being written."""

    def decode(self, steps: int) -> list[list[int]]:
        """Up to `steps` lists of the next token of each text; fewer once all texts have ended."""

    def stop(self, text: int) -> None:
        """Text number `text` has ended: what is written for it from now on means nothing."""


def stream_tokens(writing: DecodeSession, length: int) -> Iterator[list[list[int]]]:
    """`length` steps in chunks: of one token at first, so that it comes at once, then of what takes some 10 ms, so
    that text streams, Ctrl-C is heard, and what Python does between the chunks is lost in them.
    """
    done, size = 0, 1
    while done < length:
        size = min(size, length - done)
        started = time.perf_counter()
        written = writing.decode(size)
        seconds = time.perf_counter() - started
        if written:
            yield written
        done += size
        if len(written) < size:
            return
        size = min(2 * size, 256) if seconds < _CHUNK_SECONDS else max(1, size // 2)


class NativeDecoder:
    """By the compiled kernel. `threads` share the work; `format` is how it keeps the matrices.

    Many rows at once go through int8 weights in AMX's tiles where there are any, unless `use_amx` says no: same sums.

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
        self._keep = to_c_structs(weights, format, threads, use_amx)  # what the kernel points into
        self._open(load_library(note))
        if not self._is_right():
            note("the compiled decoder is wrong: its logits differ from those of the reference; compiling it again")
            self._open(load_library(note, anew=True))
            if not self._is_right():
                raise WrongKernel("its logits differ from those of the reference")

    def _open(self, library: ctypes.CDLL) -> None:
        net, layers = self._keep
        self._library = library
        self._model = Handle(library.gpt_open(ctypes.byref(net), layers), library.gpt_close)

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        choice: TokenChoice,
        draft: DraftOptions | None = None,
    ) -> "NativeSession":
        writing = NativeSession(self, prompts, seeds, choice)
        if draft is not None and len(prompts) == 1:
            writing.draft(draft, prompts[0])
        return writing

    def score(self, tokens: Sequence[int]) -> Array:
        logits = np.empty((len(tokens), self.weights.vocab_size), np.float32)
        session = self.start([tokens[:1]], [0], TokenChoice(temperature=0.0))
        ids = np.asarray(tokens, np.int32)
        self._library.gpt_score(session.handle.pointer, address(ids), len(tokens), address(logits))
        return logits

    def _is_right(self) -> bool:
        """True if the logits of a probe are those of the reference, on these very weights."""
        vocab_size, length = self.weights.vocab_size, min(_PROBE, self.weights.config.context_length)
        probe = [(i * i * 31 + 7) % vocab_size for i in range(length)]
        expected, found = numpy_gpt.forward(self._kept_weights(), probe), self.score(probe)
        allowed = _TOLERANCE[self.format] * max(1.0, float(np.abs(expected).max()))
        return bool(np.abs(expected - found).max() <= allowed)  # not when something is not a number

    def _kept_weights(self) -> Weights:
        """The weights as the kernel keeps them: rounded to their format."""
        return self.weights if self.format == "fp32" else fake_quantize(self.weights, self.format)


class NativeSession:
    def __init__(
        self, decoder: NativeDecoder, prompts: Sequence[Sequence[int]], seeds: Sequence[int], choice: TokenChoice
    ) -> None:
        context = decoder.weights.config.context_length
        windows = [prompt[-context:] for prompt in prompts]
        ids = np.concatenate([np.asarray(window, np.int32) for window in windows])
        lengths = np.array([len(window) for window in windows], np.int32)
        self._decoder = decoder
        self._library = decoder._library
        self._batch = len(prompts)
        self._end_of_text = -1 if choice.end_of_text is None else choice.end_of_text
        settings, banned_tokens = settings_of(choice)
        low = np.array([seed & 0xFFFFFFFF for seed in seeds], np.uint32)
        pointer = self._library.gpt_begin(
            decoder._model.pointer, self._batch, address(ids), address(lengths), address(low), ctypes.byref(settings)
        )
        del banned_tokens  # the session has a copy
        self.handle = Handle(pointer, self._library.gpt_end)
        self._drafts: NativeSession | None = None  # of the smaller model

    def draft(self, draft: DraftOptions, prompt: Sequence[int]) -> None:
        """Guess from now on; nothing has been written yet. Raises MemoryError."""
        known = np.zeros(0, np.int32)
        if draft.model is None:
            known = np.concatenate([np.asarray(draft.text, np.int32), np.asarray(prompt, np.int32)])
        elif draft.model.weights.vocab_size != self._decoder.weights.vocab_size:
            raise ValueError("the model that guesses has another vocabulary")
        else:
            self._drafts = draft.model.start([prompt], [0], TokenChoice(temperature=0.0))
        draft_session = None if self._drafts is None else self._drafts.handle.pointer
        if not self._library.gpt_draft(
            self.handle.pointer, draft_session, address(known), len(known), draft.length or 0
        ):
            raise MemoryError

    def draft_stats(self) -> tuple[int, int, int]:
        """With a draft: forward passes, drafted tokens, accepted tokens."""
        numbers = np.zeros(3, np.int64)
        self._library.gpt_draft_stats(self.handle.pointer, address(numbers))
        passes, drafted, accepted = numbers.tolist()
        return passes, drafted, accepted

    def decode(self, steps: int) -> list[list[int]]:
        return self._decode(steps, None)

    def stop(self, text: int) -> None:
        self._library.gpt_stop(self.handle.pointer, text)

    def decode_with_logits(self, steps: int) -> tuple[list[list[int]], Array]:
        """Also the (steps, B, V) logits that the tokens were chosen from."""
        logits = np.empty((steps, self._batch, self._decoder.weights.vocab_size), np.float32)
        return self._decode(steps, logits), logits

    def _decode(self, steps: int, logits: Array | None) -> list[list[int]]:
        tokens = np.empty((steps, self._batch), np.int32)
        made = self._library.gpt_write(
            self.handle.pointer,
            steps,
            self._end_of_text,
            address(tokens),
            None if logits is None else address(logits),
        )
        written: list[list[int]] = tokens[:made].tolist()
        return written


def settings_of(choice: TokenChoice) -> tuple[Sampling, Array]:
    """`choice` as the kernel takes it, and what it points into."""
    banned_tokens = np.array(choice.banned_tokens, np.int32)
    settings = Sampling(
        temperature=0.0 if choice.greedy else choice.temperature,
        top_k=choice.top_k or 0,
        top_p=choice.top_p or 0.0,
        log_min_p=0.0 if choice.min_p is None else float(np.log(choice.min_p)),
        use_min_p=choice.min_p is not None,
        n_banned=len(banned_tokens),
        banned_tokens=address(banned_tokens),
    )
    return settings, banned_tokens
