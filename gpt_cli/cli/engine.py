"""The engine of `gpt sample`: torch is imported only where it is what writes."""

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from gpt_cli.cli.output import note
from gpt_cli.errors import RequestError

if TYPE_CHECKING:
    from gpt_cli.run.checkpoint import Checkpoint
    from gpt_cli.sampling import Sampling, TextStream

_SMALL = 30_000_000  # parameters up to which one text is written faster by a CPU than by a GPU that waits for Python


def begin_texts(
    saved: "Checkpoint",
    prompts: Sequence[Sequence[int]],
    sampling: "Sampling",
    n: int,
    batch_size: int,
    device: Literal["auto", "cpu", "cuda", "mps"],
    engine: Literal["auto", "native", "torch"],
    weights: Literal["fp32", "bf16", "int8"],
) -> tuple[str, "Iterator[list[TextStream]]"]:
    """The engine's name, and `n` continuations of each prompt that are written while they are read.

    Raises RequestError where the native engine is asked for and cannot write what is asked.
    """
    from gpt_cli.sampling.engine import open_decoder, uncovered, write_texts

    reason = _why_torch(saved, device, uncovered(sampling))
    if reason is not None and (engine == "native" or weights != "fp32"):
        asked = "--engine native" if engine == "native" else f"--weights {weights}"
        raise RequestError(f"{asked} does not go with {reason}", hint="leave one of them out")
    if engine == "torch" and weights != "fp32":
        raise RequestError(f"--weights {weights} is for the native engine", hint="leave --engine torch out")
    if reason is None and engine != "torch":
        parameters = sum(array.size for array in saved.model_arrays.values())
        decoder = open_decoder(
            saved.config.model,
            saved.tokenizer.vocab_size,
            saved.model_arrays,
            weights=weights,
            threads=_threads(parameters),
            note=note,
        )
        if decoder is not None:
            return decoder.engine, (write_texts(decoder, saved.tokenizer, [prompt] * n, sampling) for prompt in prompts)

    import torch

    from gpt_cli.run.load import build_model
    from gpt_cli.runtime.device import choose_device
    from gpt_cli.sampling import stream_batches

    model = build_model(saved, choose_device(device)).model
    if n * len(prompts) == 1:
        # One sequence is matrices times vectors, which wait for memory: measured at 0.8M, 10M and 124M parameters, a
        # second thread adds nothing on a free machine and makes it crawl on a busy one.
        torch.set_num_threads(1)
    return "torch", stream_batches(model, saved.tokenizer, prompts, sampling, n, batch_size)


def _why_torch(saved: "Checkpoint", device: str, settings: list[str]) -> str | None:
    """What only torch can do, if that is asked for."""
    if settings:
        return settings[0]
    if not saved.config.model.norm_gain or saved.config.model.embedding_norm:
        return "norms without gains, or one after the embedding"
    if device not in ("auto", "cpu"):
        return f"--device {device}"
    parameters = sum(array.size for array in saved.model_arrays.values())
    if device == "auto" and parameters > _SMALL and os.path.exists("/dev/nvidiactl"):
        return "a GPU for a model of this size"
    return None


def _threads(parameters: int) -> int:
    """One thread for each core; for what is over in microseconds, one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if parameters < 100_000 else min(cores, 8)
