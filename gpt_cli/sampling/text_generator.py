"""Generate text from a saved model with an engine that supports the request: C or NumPy on a CPU, else torch.

Torch is imported only if it is the engine.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

from gpt_cli.capabilities import NATIVE_DECODER
from gpt_cli.config import Config
from gpt_cli.cores import usable_cores
from gpt_cli.cpu.decode.decoder import Decoder, stream_tokens
from gpt_cli.cpu.decode.weight_formats import FORMATS, WeightDtype
from gpt_cli.errors import Notify, RequestError
from gpt_cli.literals import Device
from gpt_cli.sampling.constraint import compile_constraint, write_masks
from gpt_cli.sampling.heal import make_healer
from gpt_cli.sampling.native_decoder import (
    ENGINES,
    EngineChoice,
    max_batch,
    native_token_choice,
    open_decoder,
    unsupported_settings,
)
from gpt_cli.sampling.prompt import Opening
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.sampling.text_stream import StartedBatch, TextStream, in_batches, stream_batch
from gpt_cli.shuffle import derive_seed
from gpt_cli.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gpt_cli.model.gpt import GPT
    from gpt_cli.sampling.graphed_decode import GraphedDecoder

_SMALL = 30_000_000  # parameters up to which a CPU generates one text faster than a GPU


class SavedModel(Protocol):
    """A model that was saved, such as a checkpoint, with its weights on the CPU."""

    @property
    def config(self) -> Config: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def model_arrays(self) -> Mapping[str, npt.NDArray[Any]]: ...


class TextGenerator:
    """A `saved` model that writes text; `build` makes it in torch, on `device`.

    `engine` is native (a decoder without torch, for CPUs: C, or NumPy where there is no compiler), torch, or auto:
    native where it supports the request. `weights` is the format of matrices in the native engine (bf16 also in torch
    on CUDA). `note` is called when NumPy replaces compiled code, and when CUDA graphs do not work. Raises RequestError
    for options that exclude each other, and what `build` raises.
    """

    def __init__(
        self,
        saved: SavedModel,
        build: Callable[[], "GPT"],
        *,
        device: Device = "auto",
        engine: EngineChoice = "auto",
        weights: WeightDtype = "fp32",
        note: Notify = lambda _: None,
    ) -> None:
        self.tokenizer = saved.tokenizer
        self._config, self._arrays, self._build = saved.config.model, saved.model_arrays, build
        self._device, self._engine, self._weight_dtype, self._note = device, engine, weights, note
        for name, value, choices in (("engine", engine, ENGINES), ("weights", weights, FORMATS)):
            if value not in choices:
                raise RequestError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        self._torch_bf16 = weights == "bf16" and device == "cuda"  # torch converts the weights to bf16
        if engine == "torch" and weights != "fp32" and not self._torch_bf16:
            raise RequestError(
                f"weights in {weights} are for the native engine", hint="auto lets it be chosen: --engine auto"
            )
        self._check_engine(self._torch_only_feature())

    def warm_up(self) -> None:
        """Build the engine of default settings. Raises what loading the weights raises."""
        _ = self.decoder if self.uses_native_decoder() else self.model

    @cached_property
    def model(self) -> "GPT":
        """The model in torch, in eval mode."""
        model = self._build()
        return model.bfloat16() if self._torch_bf16 else model

    @cached_property
    def decoder(self) -> Decoder | None:
        """The native decoder. None: the weights do not fit the config, so that `build` fails."""
        decoder = open_decoder(
            self._config,
            self.tokenizer.vocab_size,
            self._arrays,
            weights=self._weight_dtype,
            threads=_threads(),
            note=self._note,
        )
        if decoder is None:
            _ = self.model  # raises the error
        return decoder

    def require(self, sampling: SamplingParams) -> None:
        """Raise RequestError if the requested engine does not support `sampling`, or no text can be as it says."""
        self._check_engine(self._torch_only_feature(sampling))
        compile_constraint(self.tokenizer, sampling)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams,
        n: int = 1,
        batch_size: int = 64,
        *,
        plain_text: bool = False,
    ) -> tuple[str, Iterator[list[TextStream]]]:
        """(the engine's name, `n` continuations of each prompt), about `batch_size` texts at once, generated while
        they are read.

        With `plain_text` the prompts are texts that may end anywhere: `sampling.heal` counts.

        A text depends on neither the other prompts nor `n` nor `batch_size`, except that equal prompts are drawn
        independently: with k equal ones before it, a prompt has the samples from k * n. Raises RequestError if the
        requested engine does not support `sampling`.
        """
        self.require(sampling)
        if self.uses_native_decoder(sampling) and (decoder := self.decoder) is not None:
            texts = stream_native(decoder, self.tokenizer, prompts, sampling, n, batch_size, plain_text=plain_text)
            return decoder.engine, texts

        from gpt_cli.sampling.stream_torch import stream_batches  # noqa: PLC0415 - it imports torch

        settings = (sampling, n, batch_size, self._graphed_decoder)
        return "torch", stream_batches(self.model, self.tokenizer, prompts, *settings, plain_text=plain_text)

    @cached_property
    def _graphed_decoder(self) -> "GraphedDecoder | None":
        """The CUDA-graph decoder, shared by all texts; None if the device has none."""
        from gpt_cli.runtime.cuda_graph import graphs_available  # noqa: PLC0415 - they import torch
        from gpt_cli.sampling.graphed_decode import GraphedDecoder  # noqa: PLC0415

        return GraphedDecoder(self._note) if graphs_available(self.model.head.weight.device) else None

    def uses_native_decoder(self, sampling: SamplingParams | None = None) -> bool:
        """True if the native engine is chosen, False: torch. C or NumPy is decided by `open_decoder`."""
        return self._engine != "torch" and self._torch_only_feature(sampling) is None

    def _check_engine(self, reason: str | None) -> None:
        """Raise RequestError if the options require the native engine, and `reason` excludes it."""
        requirements = {
            "the native engine does": self._engine == "native",
            f"weights in {self._weight_dtype} do": self._weight_dtype != "fp32" and not self._torch_bf16,
        }
        requirement = next((subject for subject, is_set in requirements.items() if is_set), None)
        if reason is not None and requirement is not None:
            raise RequestError(f"{requirement} not go with {reason}", hint="leave one of them out")

    def _torch_only_feature(self, sampling: SamplingParams | None = None) -> str | None:
        """The first requested feature that only torch supports, or None."""
        if sampling is not None and (settings := unsupported_settings(sampling)):
            return "log-probabilities, which --jsonl has" if settings == ["log_probs"] else settings[0]
        if (reason := NATIVE_DECODER.refusal(self._config)) is not None:
            return reason
        if self._device not in ("auto", "cpu"):
            return f"the device {self._device}"
        if self._device == "auto" and self._parameters > _SMALL and os.path.exists("/dev/nvidiactl"):
            return "a GPU for a model of this size"
        return None

    @cached_property
    def _parameters(self) -> int:
        return sum(array.size for array in self._arrays.values())


def stream_native(
    decoder: Decoder,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    n: int = 1,
    batch_size: int | None = None,
    *,
    plain_text: bool = False,
) -> Iterator[list[TextStream]]:
    """The texts of `stream_batches` on a CPU, except where two tokens are equally likely up to rounding."""
    assert not unsupported_settings(sampling)
    choice, constraint = native_token_choice(sampling, tokenizer), compile_constraint(tokenizer, sampling)
    healer = make_healer(tokenizer, sampling, decoder.next_logits, constraint) if plain_text else None

    def start(openings: Sequence[Opening], samples: Sequence[int], running: Set[int]) -> StartedBatch:
        matchers = [None if constraint is None else constraint.matcher() for _ in openings]

        def chunks() -> Iterator[Sequence[Sequence[int]]]:
            seeds = [derive_seed(sampling.seed, "sample", i) for i in samples]
            masks = None if constraint is None else constraint.masks(len(openings))
            session = decoder.start([opening.tokens for opening in openings], seeds, choice, masks)

            def skip_ended() -> None:
                for row in set(range(len(openings))) - running:
                    session.stop(row)
                write_masks(masks, [matcher if row in running else None for row, matcher in enumerate(matchers)])

            skip_ended()
            for chunk in stream_tokens(session, sampling.max_new_tokens, single=constraint is not None):
                yield chunk
                skip_ended()

        return StartedBatch(matchers, [None] * len(openings), chunks())

    largest = max_batch(decoder.weights.config)
    sample = partial(stream_batch, tokenizer, sampling, start, healer)
    return in_batches(prompts, n, min(batch_size or largest, largest), sample)


def _threads() -> int:
    """One thread for each core that this process may use, at most 8."""
    return min(len(usable_cores()), 8)
