"""A generator or scorer from the options of a verb; `TextGenerator` chooses its engine.

Torch is imported only where it is that engine.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpt_cli.cli.options.shared_options import DtypeOption, EngineOption
from gpt_cli.cli.output import note
from gpt_cli.evaluation.logprob_scorer import LogprobScorer, NativeScorer
from gpt_cli.literals import Device
from gpt_cli.run.checkpoint import Checkpoint
from gpt_cli.run.open_checkpoint import build_torch_model
from gpt_cli.sampling import SamplingParams, TextStream
from gpt_cli.sampling.text_generator import TextGenerator

if TYPE_CHECKING:
    from gpt_cli.model.gpt import GPT

# Multiply-adds of a pass from which more than one of torch's threads pay. They meet at each operation, and soon sleep
# where they have to wait (see `main`): with two, one text takes longer at 0.8M and 10M parameters, and 64 texts half as
# long again at 0.8M; at 10M these take a sixth less.
WORTH_THREADS = 2**28


def generate_texts(
    saved: Checkpoint,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    n: int,
    batch_size: int,
    device: Device,
    engine: EngineOption,
    weights: DtypeOption,
) -> tuple[str, Iterator[list[TextStream]]]:
    """The engine's name, and `n` continuations of each prompt that are written while they are read.

    Raises RequestError where the native engine is asked for and does not support the request.
    """
    is_plain = saved.config.data.format == "text"
    rows = sampling.beams or min(n * len(prompts), max(n, batch_size))
    if rows > 1:  # a long prompt of several texts is most of the work
        rows = max(rows, rows * max(map(len, prompts)) // max(1, sampling.max_new_tokens))
    generator = open_generator(saved, device, engine, weights, rows=rows)
    return generator.generate(prompts, sampling, n, batch_size, plain_text=is_plain)


def open_generator(
    saved: Checkpoint, device: Device, engine: EngineOption, weights: DtypeOption, *, rows: int | None
) -> TextGenerator:
    """The model, ready to write text after text: about this many `rows`, tokens, in a pass (None: many)."""

    def build() -> "GPT":
        import torch

        model = build_torch_model(saved, device)
        if rows is not None and rows * sum(weight.numel() for weight in model.parameters()) < WORTH_THREADS:
            torch.set_num_threads(1)
        return model

    return TextGenerator(saved, build, device=device, engine=engine, weights=weights, note=note)


def open_scorer(saved: Checkpoint, device: Device, engine: EngineOption, weights: DtypeOption) -> LogprobScorer:
    """The model, ready to compute log-probabilities with the engine that would write. Raises as `generate_texts`."""
    generator = open_generator(saved, device, engine, weights, rows=None)
    if generator.uses_native_decoder() and generator.decoder is not None:
        return NativeScorer(generator.decoder)
    from gpt_cli.evaluation.torch_scorer import TorchScorer

    return TorchScorer(generator.model)
