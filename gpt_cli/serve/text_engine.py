"""The engine that generates the sequences of one model in a batch: its interface, and the one on the compiled kernel.

A sequence depends on its prompt, its sampling parameters and its sample index only, never on the rest of the batch.
`torch_text_engine.py` has the engine on torch.

Shapes: T tokens, V vocabulary.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from gpt_cli.cpu.decode.decoder import NativeDecoder
from gpt_cli.cpu.decode.seats import ContinuousBatch, Seat
from gpt_cli.sampling.constraint import Constraint, write_masks
from gpt_cli.sampling.native_decoder import native_token_choice, unsupported_settings
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.shuffle import derive_seed
from gpt_cli.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gpt_cli.sampling.constraint import Matcher
    from gpt_cli.serve.text_sequence import TextSequence
    from gpt_cli.serve.token_sampling import TokenSampler

Logits = npt.NDArray[np.float32]
NewTokens = list[tuple[int, Logits | None]]
"""The tokens that a sequence got in one call of `step`, each with its (V,) logits if the request wants them."""


class SlotHandle(Protocol):
    """The slot of a sequence in an engine's batch. The slot is free again when its handle is garbage-collected."""

    matcher: "Matcher | None"
    single_step: bool
    """True if `step` must be called with one step at a time."""


class TextEngine(Protocol):
    """Generates the sequences of one model."""

    name: str

    def needs_processors(self, sampling: SamplingParams) -> bool:
        """True if the rules of a request with these parameters must be logits processors."""

    def join(self, sequence: "TextSequence") -> SlotHandle:
        """Add a sequence to the batch. It leaves the batch when the handle is dropped."""

    def step(self, slots: Sequence[Any], steps: int, prompt_tokens: int) -> list[NewTokens]:
        """Run up to `steps` steps, each prefilling about `prompt_tokens` tokens. Returns the new tokens of each slot.

        A slot whose prompt is not prefilled yet gets none.
        """

    def next_logits(self, prompts: Sequence[Sequence[int]]) -> Logits:
        """B prompts -> (B, V): the logits of the token after each; of a long one the last `context_length` count."""

    def prompt_logits(self, tokens: Sequence[int]) -> Logits:
        """(T,) tokens, at most a context -> (T, V): the logits of the token after each."""


class _NativeSlot:
    def __init__(self, seat: Seat, sampler: "TokenSampler | None", matcher: "Matcher | None") -> None:
        self.seat, self.sampler, self.matcher = seat, sampler, matcher
        self.single_step = seat.keeps_logits or matcher is not None


class NativeTextEngine:
    """Generates with the compiled kernel, which decodes all slots of a step together."""

    name = "native"

    def __init__(self, decoder: NativeDecoder, tokenizer: Tokenizer) -> None:
        self._decoder, self._batch, self._tokenizer = decoder, ContinuousBatch(decoder), tokenizer

    def needs_processors(self, sampling: SamplingParams) -> bool:
        return bool(unsupported_settings(sampling))

    def join(self, sequence: "TextSequence") -> _NativeSlot:
        request, sampling = sequence.request, sequence.request.sampling
        sampler, mask, matcher = None, None, None
        if isinstance(request.rules, Constraint):
            mask, matcher = request.rules.masks(1)[0], request.rules.matcher()
        elif request.rules is not None:
            import torch  # noqa: PLC0415 - only logits processors need it

            from gpt_cli.serve.token_sampling import TokenSampler  # noqa: PLC0415

            sampler = TokenSampler(sequence, self._tokenizer.vocab_size, torch.device("cpu"))
            matcher = sampler.matcher
        seat = Seat(
            self._batch,
            sequence.opening.tokens,
            derive_seed(sampling.seed, "sample", sequence.sample),
            native_token_choice(sampling, self._tokenizer),
            keep_logits=request.n_top is not None,
            caller_samples=sampler is not None,
            mask=mask,
            max_new_tokens=sampling.max_new_tokens,
        )
        return _NativeSlot(seat, sampler, matcher)

    def step(self, slots: Sequence[_NativeSlot], steps: int, prompt_tokens: int) -> list[NewTokens]:
        masked = {slot: slot.seat.mask for slot in slots if slot.seat.mask is not None}
        write_masks(masked.values(), [slot.matcher for slot in masked])
        batch_tokens = self._batch.step([slot.seat for slot in slots], steps, prompt_tokens)
        return [
            [self._sampled(slot, token) for token in tokens] for slot, tokens in zip(slots, batch_tokens, strict=True)
        ]

    def next_logits(self, prompts: Sequence[Sequence[int]]) -> Logits:
        return self._decoder.next_logits(prompts)

    def prompt_logits(self, tokens: Sequence[int]) -> Logits:
        return self._decoder.score(tokens)

    def _sampled(self, slot: _NativeSlot, token: int | None) -> tuple[int, Logits | None]:
        """The token, sampled here where the kernel left that to the caller (None), with its logits."""
        logits = slot.seat.logits() if slot.seat.keeps_logits else None
        if token is None:
            import torch  # noqa: PLC0415

            assert slot.sampler is not None
            assert logits is not None
            token = slot.sampler.sample(torch.from_numpy(logits.copy())[None])
            slot.seat.accept(token)
        return token, logits
