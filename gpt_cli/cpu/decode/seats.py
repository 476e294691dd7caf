"""Continuous batching by the compiled kernel: texts join and leave a running batch at any token.

Shapes: V vocabulary.
"""

import ctypes
from collections.abc import Sequence

import numpy as np

from gpt_cli.cpu.decode.bindings import Handle, address
from gpt_cli.cpu.decode.decoder import NativeDecoder, settings_of
from gpt_cli.cpu.decode.numpy_sampler import Masks, TokenChoice
from gpt_cli.cpu.decode.weights import Array

_LOGITS_DROPPED, _LOGITS_KEPT, _CALLER_SAMPLES = 0, 1, 2  # as seats.h has them
_NO_TOKEN, _NEEDS_SAMPLING = -1, -2
_ENDLESS = 2**31 - 1


class Seat:
    """One text, a slot of llama.cpp's server. `keep_logits`: for `logits()`. `caller_samples`, and `accept`s."""

    def __init__(
        self,
        batch: "ContinuousBatch",
        prompt: Sequence[int],
        seed: int,
        choice: TokenChoice,
        *,
        keep_logits: bool = False,
        caller_samples: bool = False,
        mask: Masks | None = None,
        max_new_tokens: int = _ENDLESS,
    ) -> None:
        decoder = batch.decoder
        ids = np.asarray(prompt[-decoder.weights.config.context_length :], np.int32)
        settings, token_lists = settings_of(choice)
        self._library, self._vocab_size = decoder._library, decoder.weights.vocab_size
        self.keeps_logits, self.caller_samples = keep_logits or caller_samples, caller_samples
        pointer = self._library.gpt_join(
            decoder._model.pointer,
            address(ids),
            len(ids),
            seed & 0xFFFFFFFF,
            ctypes.byref(settings),
            _CALLER_SAMPLES if caller_samples else _LOGITS_KEPT if keep_logits else _LOGITS_DROPPED,
            min(max_new_tokens, _ENDLESS),
        )
        del token_lists  # the seat has a copy
        self._batch = batch  # whose model it points into
        self.handle = Handle(pointer, self._library.gpt_leave)
        self.mask = mask
        """(W,): excludes tokens; the caller may change it before each step, which is one of one token then."""
        if mask is not None:
            self._library.gpt_mask_seat(self.handle.pointer, address(mask))

    def logits(self) -> Array:
        """(V,): the logits from which the latest token was sampled, or the next one is to be. A copy."""
        pointer = self._library.gpt_seat_logits(self.handle.pointer)
        view = np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (self._vocab_size,))
        return np.array(view)

    def accept(self, token: int) -> None:
        """Append the token that the caller has sampled."""
        self._library.gpt_accept(self.handle.pointer, token)


class ContinuousBatch:
    """A decode session that texts join and leave at any step."""

    def __init__(self, decoder: NativeDecoder) -> None:
        self.decoder = decoder
        library = decoder._library
        self._handle = Handle(library.gpt_open_batch(decoder._model.pointer), library.gpt_close_batch)

    def step(self, seats: Sequence[Seat], steps: int, prompt_tokens: int) -> list[list[int | None]]:
        """The tokens of each seat for up to `steps` steps: already appended; None: the caller samples.

        Fewer, or none, where a text ended, or its prompt is still being read: of prompts about this many tokens a step.
        """
        assert steps == 1 or not any(seat.caller_samples or seat.mask is not None for seat in seats)
        pointers = (ctypes.c_void_p * len(seats))(*(seat.handle.pointer.value for seat in seats))
        tokens = np.empty((steps, len(seats)), np.int32)
        self.decoder._library.gpt_step_batch(
            self._handle.pointer, pointers, len(seats), steps, max(1, prompt_tokens), address(tokens)
        )
        columns: list[list[int]] = tokens.T.tolist()
        return [[None if t == _NEEDS_SAMPLING else t for t in column if t != _NO_TOKEN] for column in columns]
