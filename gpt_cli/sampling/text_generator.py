"""Generates text from a saved model with the engine that supports the request: C or NumPy on a CPU, else torch.

Torch is imported only where it is the engine.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from gpt_cli.capabilities import NATIVE_DECODER
from gpt_cli.config import ModelConfig
from gpt_cli.cpu.decode.decoder import Decoder, DraftOptions
from gpt_cli.cpu.decode.quantize import FORMATS, WeightDtype
from gpt_cli.errors import Notify, RequestError
from gpt_cli.literals import Device
from gpt_cli.sampling.native_stream import (
    ENGINES,
    EngineChoice,
    max_batch,
    open_decoder,
    stream_native,
    unsupported_settings,
)
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.sampling.text_stream import TextStream
from gpt_cli.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gpt_cli.model.gpt import GPT
    from gpt_cli.sampling.graphed_decode import GraphedDecoder

_SMALL = 30_000_000  # parameters up to which one text is written faster by a CPU than by a GPU that waits for Python


class TextGenerator:
    """A model of which `arrays` are the weights, on the CPU; `build` makes it in torch, where `device` says.

    `engine` is native (compiled code on a CPU), torch, or auto: native where that can write what is asked. `weights`
    is how native keeps the matrices (on CUDA torch does, too, in bf16), and `draft` has it write a single text faster.
    `note` is told when NumPy stands in for compiled code, and where CUDA graphs do not work. Raises RequestError for
    choices that exclude each other, and what `build` raises where the model cannot be used.
    """

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: Tokenizer,
        arrays: Mapping[str, npt.NDArray[Any]],
        build: Callable[[], "GPT"],
        *,
        device: Device = "auto",
        engine: EngineChoice = "auto",
        weights: WeightDtype = "fp32",
        draft: DraftOptions | None = None,
        note: Notify = lambda _: None,
    ) -> None:
        self.tokenizer = tokenizer
        self._config, self._arrays, self._build = config, arrays, build
        self._device, self._engine, self._format, self._draft, self._note = device, engine, weights, draft, note
        for name, value, known in (("engine", engine, ENGINES), ("weights", weights, FORMATS)):
            if value not in known:
                raise RequestError(f"{name} must be one of {', '.join(known)}, not {value!r}")
        self._halves = weights == "bf16" and device == "cuda"  # torch itself keeps the weights in bf16
        if engine == "torch" and ((weights != "fp32" and not self._halves) or draft is not None):
            what = "a draft is" if draft is not None else f"weights in {weights} are"
            raise RequestError(f"{what} for the native engine", hint="--engine auto")
        self._check_engine(self._torch_only_feature())

    def warm_up(self) -> None:
        """Build the engine that will most likely be used. Raises what loading the weights raises."""
        _ = self.decoder if self.writes_natively() else self.model

    @cached_property
    def model(self) -> "GPT":
        """The model in torch, in eval mode."""
        model = self._build()
        return model.bfloat16() if self._halves else model

    @cached_property
    def decoder(self) -> Decoder | None:
        """The model in the native engine. None: the weights are not those of its config, so that `build` fails."""
        found = open_decoder(
            self._config,
            self.tokenizer.vocab_size,
            self._arrays,
            weights=self._format,
            threads=_threads(),
            note=self._note,
        )
        if found is None:
            _ = self.model  # says what is wrong with them
        return found

    def require(self, sampling: SamplingParams) -> None:
        """Raise RequestError where the engine that was chosen cannot write what is asked."""
        self._check_engine(self._torch_only_feature(sampling))

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingParams, n: int = 1, batch_size: int = 64
    ) -> tuple[str, Iterator[list[TextStream]]]:
        """The engine's name, and `n` continuations of each prompt, about `batch_size` texts at once, written while
        they are read.

        A text does not depend on the other prompts, nor on `n` and `batch_size`. Raises RequestError where the engine
        that was chosen cannot write what is asked.
        """
        self.require(sampling)
        if self.writes_natively(sampling) and self.decoder is not None:
            return self.decoder.engine, self._natively(self.decoder, prompts, sampling, n, batch_size)

        from gpt_cli.sampling.stream_torch import stream_batches  # noqa: PLC0415 - it imports torch

        texts = stream_batches(self.model, self.tokenizer, prompts, sampling, n, batch_size, self._graphed_decoder)
        return "torch", texts

    @cached_property
    def _graphed_decoder(self) -> "GraphedDecoder | None":
        """The CUDA-graph decoder, shared by all texts; None if the device has none."""
        from gpt_cli.runtime.cuda_graph import graphs_available  # noqa: PLC0415 - they import torch
        from gpt_cli.sampling.graphed_decode import GraphedDecoder  # noqa: PLC0415

        return GraphedDecoder(self._note) if graphs_available(self.model.head.weight.device) else None

    def _natively(
        self, decoder: Decoder, prompts: Sequence[Sequence[int]], sampling: SamplingParams, n: int, batch_size: int
    ) -> Iterator[list[TextStream]]:
        at_once = max(1, min(batch_size, max_batch(self._config)) // n)
        for first in range(0, len(prompts), at_once):
            rows = [prompt for prompt in prompts[first : first + at_once] for _ in range(n)]
            texts = stream_native(decoder, self.tokenizer, rows, sampling, n, self._draft)
            for start in range(0, len(texts), n):
                yield texts[start : start + n]

    def writes_natively(self, sampling: SamplingParams | None = None) -> bool:
        """True if the native engine is chosen, False: torch. C or NumPy is decided by `open_decoder`."""
        return self._engine != "torch" and self._torch_only_feature(sampling) is None

    def _check_engine(self, reason: str | None) -> None:
        """Raise RequestError where the native engine was insisted on, and there is a `reason` why it cannot write."""
        insisted = {
            "the native engine does": self._engine == "native",
            f"weights in {self._format} do": self._format != "fp32" and not self._halves,
            "a draft does": self._draft is not None,
        }
        asked = next((words for words, is_asked in insisted.items() if is_asked), None)
        if reason is not None and asked is not None:
            raise RequestError(f"{asked} not go with {reason}", hint="leave one of them out")

    def _torch_only_feature(self, sampling: SamplingParams | None = None) -> str | None:
        """The first requested feature that only torch supports, or None."""
        if sampling is not None and (settings := unsupported_settings(sampling)):
            return settings[0]
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


def _threads() -> int:
    """One thread for each core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8)
