"""Texts that join and leave a running batch at any token, by the compiled kernel.

Shapes: V vocabulary.
"""

import ctypes
from collections.abc import Sequence

import numpy as np

from gpt_cli.cpu.decode.bindings import Handle, address
from gpt_cli.cpu.decode.decoder import NativeDecoder, settings_of
from gpt_cli.cpu.decode.numpy_sampler import TokenChoice
from gpt_cli.cpu.decode.weights import Array

_FREE, _SHOWN, _LEFT = 0, 1, 2  # as seats.h has them
_NOT_YET, _YOURS = -1, -2
_ENDLESS = 2**31 - 1


class Seat:
    """One text. `shown`: whether its logits are kept for `logits`. `left`: the caller chooses from them, by `put`.
    `longest`: it ends after so many tokens.
    """

    def __init__(
        self,
        desk: "Desk",
        prompt: Sequence[int],
        seed: int,
        choice: TokenChoice,
        *,
        shown: bool = False,
        left: bool = False,
        longest: int = _ENDLESS,
    ) -> None:
        decoder = desk.decoder
        ids = np.asarray(prompt[-decoder.weights.config.context_length :], np.int32)
        settings, never = settings_of(choice)
        self._library, self._vocab_size = decoder._library, decoder.weights.vocab_size
        self.shown, self.left = shown or left, left
        pointer = self._library.gpt_join(
            decoder._model.pointer,
            address(ids),
            len(ids),
            seed & 0xFFFFFFFF,
            ctypes.byref(settings),
            -1 if choice.end_of_text is None else choice.end_of_text,
            _LEFT if left else _SHOWN if shown else _FREE,
            min(longest, _ENDLESS),
        )
        del never  # the seat has a copy
        self._desk = desk  # whose model it points into
        self.handle = Handle(pointer, self._library.gpt_leave)

    def logits(self) -> Array:
        """(V,): what the latest token was chosen from, or the next one is to be. A copy."""
        pointer = self._library.gpt_shown(self.handle.pointer)
        shown = np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (self._vocab_size,))
        return np.array(shown)

    def put(self, token: int) -> None:
        """The token that the caller has chosen."""
        self._library.gpt_put(self.handle.pointer, token)


class Desk:
    """A decode session that texts join and leave: any of them, in any order, at each step."""

    def __init__(self, decoder: NativeDecoder) -> None:
        self.decoder = decoder
        library = decoder._library
        self._handle = Handle(library.gpt_open_desk(decoder._model.pointer), library.gpt_close_desk)

    def step(self, seats: Sequence[Seat], steps: int, prompt_tokens: int) -> list[list[int | None]]:
        """The tokens of each seat for up to `steps` steps: the text goes on with them, or None: it is to be `put`.

        Fewer, or none, where a text ended, or its prompt is still being read: of prompts about so many tokens a step.
        """
        assert steps == 1 or not any(seat.left for seat in seats)
        pointers = (ctypes.c_void_p * len(seats))(*(seat.handle.pointer.value for seat in seats))
        tokens = np.empty((steps, len(seats)), np.int32)
        self.decoder._library.gpt_round(
            self._handle.pointer, pointers, len(seats), steps, max(1, prompt_tokens), address(tokens)
        )
        columns: list[list[int]] = tokens.T.tolist()
        return [[None if t == _YOURS else t for t in column if t != _NOT_YET] for column in columns]
