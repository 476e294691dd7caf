"""The texts of one model: joined, stepped and left at any token. Here: by the compiled kernel.

With both a text is a function of its prompt, its settings and its number, whoever is written beside it.
`torch_texts.py` has the engine that torch is.

Shapes: T tokens, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from gpt_cli.cpu.decode.decoder import NativeDecoder
from gpt_cli.cpu.decode.numpy_sampler import TokenChoice
from gpt_cli.cpu.decode.seats import ContinuousBatch, Seat
from gpt_cli.sampling.native_stream import unsupported_settings
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.shuffle import derive_seed
from gpt_cli.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gpt_cli.sampling.constraint import Matcher
    from gpt_cli.sampling.logits_processors import ProcessorFactory
    from gpt_cli.serve.token_sampling import Penalties, TokenSampler

Logits = npt.NDArray[np.float32]
NewTokens = list[tuple[int, Logits | None]]


@dataclass(frozen=True, eq=False)
class SequenceRequest:
    """A text to write: sample number `sample` of a prompt. `shown`: its logits are wanted, too."""

    prompt: Sequence[int]
    sampling: SamplingParams
    sample: int = 0
    shown: bool = False
    penalties: "Penalties | None" = None
    book: "ProcessorFactory | None" = field(default=None, repr=False)


class SlotHandle(Protocol):
    """A text's handle in an engine."""

    matcher: "Matcher | None"
    single: bool
    """True if it takes one step at a time."""


class TextEngine(Protocol):
    """The texts of one model."""

    name: str

    def needs_processors(self, sampling: SamplingParams) -> bool:
        """True if a text with these settings needs a `book`."""

    def join(self, request: SequenceRequest) -> SlotHandle:
        """Begin to write it. Leaving is forgetting the place."""

    def step(self, places: Sequence[Any], steps: int, prompt_tokens: int) -> list[NewTokens]:
        """The next tokens of each text with their logits, no more than it may have; none while its prompt is being
        read."""

    def read(self, tokens: Sequence[int]) -> Logits:
        """(T,) tokens, at most a context -> (T, V): the logits of what follows each."""


class _NativeSlot:
    def __init__(self, seat: Seat, chooser: "TokenSampler | None") -> None:
        self.seat, self.chooser, self.single = seat, chooser, seat.keeps_logits
        self.matcher = None if chooser is None else chooser.matcher


class NativeTextEngine:
    """By the compiled kernel, all texts of a step together."""

    name = "native"

    def __init__(self, decoder: NativeDecoder, tokenizer: Tokenizer) -> None:
        self._decoder, self._batch, self._tokenizer = decoder, ContinuousBatch(decoder), tokenizer

    def needs_processors(self, sampling: SamplingParams) -> bool:
        return bool(unsupported_settings(sampling))

    def join(self, request: SequenceRequest) -> _NativeSlot:
        choice = native_token_choice(request.sampling, self._tokenizer)
        chooser = None
        if request.book is not None:
            import torch  # noqa: PLC0415 - only where rules are asked for

            chooser = _chooser(request, self._tokenizer.vocab_size, torch.device("cpu"))
        seed = derive_seed(request.sampling.seed, "sample", request.sample)
        max_new_tokens = request.sampling.max_new_tokens
        seat = Seat(
            self._batch,
            request.prompt,
            seed,
            choice,
            keep_logits=request.shown,
            caller_samples=chooser is not None,
            max_new_tokens=max_new_tokens,
        )
        return _NativeSlot(seat, chooser)

    def step(self, places: Sequence[_NativeSlot], steps: int, prompt_tokens: int) -> list[NewTokens]:
        found = self._batch.step([place.seat for place in places], steps, prompt_tokens)
        return [[self._taken(place, token) for token in tokens] for place, tokens in zip(places, found, strict=True)]

    def read(self, tokens: Sequence[int]) -> Logits:
        return self._decoder.score(tokens)

    def _taken(self, place: _NativeSlot, token: int | None) -> tuple[int, Logits | None]:
        logits = place.seat.logits() if place.seat.keeps_logits else None
        if token is None:
            import torch  # noqa: PLC0415

            assert place.chooser is not None
            assert logits is not None
            token = place.chooser.choose(torch.from_numpy(logits.copy())[None])
            place.seat.accept(token)
        return token, logits


def native_token_choice(sampling: SamplingParams, tokenizer: Tokenizer) -> TokenChoice:
    """The filters that the kernel knows."""
    return TokenChoice(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        never=() if tokenizer.unk_id is None else (tokenizer.unk_id,),
        end_of_text=tokenizer.eot_id,
    )


def _chooser(request: SequenceRequest, vocab_size: int, device: "object") -> "TokenSampler":
    from gpt_cli.serve.token_sampling import Penalties, TokenSampler  # noqa: PLC0415 - it imports torch

    assert request.book is not None
    penalties = request.penalties or Penalties()
    return TokenSampler(request.book, request.sampling, penalties, request.prompt, request.sample, vocab_size, device)  # type: ignore[arg-type]
