"""The engine of `gpt sample`: torch is imported only where it is what writes."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from gpt_cli.choices import Device
from gpt_cli.cli.output import note

if TYPE_CHECKING:
    from gpt_cli.model.gpt import GPT
    from gpt_cli.run.checkpoint import Checkpoint
    from gpt_cli.sampling import Sampling, TextStream


def begin_texts(
    saved: "Checkpoint",
    prompts: Sequence[Sequence[int]],
    sampling: "Sampling",
    n: int,
    batch_size: int,
    device: Device,
    engine: Literal["auto", "native", "torch"],
    weights: Literal["fp32", "bf16", "int8"],
) -> tuple[str, "Iterator[list[TextStream]]"]:
    """The engine's name, and `n` continuations of each prompt that are written while they are read.

    Raises RequestError where the native engine is asked for and cannot write what is asked.
    """
    from gpt_cli.sampling.writer import Writer

    def build() -> "GPT":
        import torch

        from gpt_cli.run.load import build_model
        from gpt_cli.runtime.device import choose_device

        model = build_model(saved, choose_device(device)).model
        if n * len(prompts) == 1:
            # One sequence is matrices times vectors, which wait for memory: measured at 0.8M, 10M and 124M parameters,
            # a second thread adds nothing on a free machine and makes it crawl on a busy one.
            torch.set_num_threads(1)
        return model

    writer = Writer(
        saved.config.model,
        saved.tokenizer,
        saved.model_arrays,
        build,
        device=device,
        engine=engine,
        weights=weights,
        note=note,
    )
    return writer.begin(prompts, sampling, n, batch_size)
