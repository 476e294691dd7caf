"""The C decoder (or NumPy's) of a model on a CPU, and the settings that it supports.

Importing this imports no torch.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal

import numpy.typing as npt

from gpt_cli.config import ModelConfig
from gpt_cli.cpu.common.kernel import KernelUnavailable
from gpt_cli.cpu.decode.decoder import Decoder, NativeDecoder
from gpt_cli.cpu.decode.numpy_decoder import NumpyDecoder
from gpt_cli.cpu.decode.numpy_sampler import TokenChoice
from gpt_cli.cpu.decode.weight_formats import WeightDtype
from gpt_cli.cpu.decode.weights import WeightMismatch, read_weights
from gpt_cli.errors import Notify
from gpt_cli.sampling.sampling_params import CONSTRAINTS, SamplingParams
from gpt_cli.tokenizer import Tokenizer

EngineChoice = Literal["auto", "native", "torch"]
ENGINES: tuple[EngineChoice, ...] = ("auto", "native", "torch")
COVERED = frozenset({"max_new_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop", "heal", *CONSTRAINTS})
TIMES_SLOWER = "3 to 10"  # fp32 by two threads; see the tables of docs/sampling_speed.md
_CACHE_BYTES = 2**30  # of keys and values


def unsupported_settings(sampling: SamplingParams) -> list[str]:
    """The settings, other than their defaults, that only the torch engine supports."""
    defaults = SamplingParams()
    names = [field.name for field in fields(sampling) if field.name not in COVERED]
    return [name for name in names if getattr(sampling, name) != getattr(defaults, name)]


def native_token_choice(sampling: SamplingParams, tokenizer: Tokenizer) -> TokenChoice:
    """The sampling parameters that the kernel applies by itself."""
    return TokenChoice(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        banned_tokens=() if tokenizer.unk_id is None else (tokenizer.unk_id,),
        end_tokens=tuple(sorted(tokenizer.end_ids)),
    )


def open_decoder(
    config: ModelConfig,
    vocab_size: int,
    arrays: Mapping[str, npt.NDArray[Any]],
    *,
    weights: WeightDtype = "fp32",
    threads: int = 1,
    note: Notify = lambda _: None,
) -> Decoder | None:
    """A decoder for the model in `arrays`; None if they do not fit `config` (loading them in torch gives the error).

    Without a kernel it is NumPy's, in fp32, and `note` gets the reason.
    """
    try:
        model_weights = read_weights(config, vocab_size, arrays)
    except WeightMismatch:
        return None
    try:
        return NativeDecoder(model_weights, format=weights, threads=threads, note=note)
    except KernelUnavailable as error:
        note(f"decoding in NumPy, {TIMES_SLOWER} times slower than by compiled code, which cannot be used: {error}")
        return NumpyDecoder(model_weights)


def max_batch(config: ModelConfig) -> int:
    """The number of texts whose keys and values fit in a gigabyte, at least one."""
    per_text = 8 * config.n_layer * config.kv_heads * config.head_dim * config.context_length
    return max(1, _CACHE_BYTES // per_text)
