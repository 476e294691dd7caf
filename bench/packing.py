"""Examples in padded and in packed rows, on this CPU: `python -m bench.packing --config configs/translate.yaml`.

The first 16 steps of a config of pairs or chats by each engine, forwards and backwards, on one thread: the share of the
rows that is filling, and the tokens of examples in a second of the processor's time. In turn, the best of three rounds.
"""

import argparse
import time
from pathlib import Path

import torch

from gpt_cli.config import Config, load_config
from gpt_cli.corpus.prepare import Corpus, prepare_corpus
from gpt_cli.runtime.device import Runtime, setup_runtime
from gpt_cli.training import example_batches
from gpt_cli.training.accumulate import accumulate_gradients
from gpt_cli.training.batches import MicroBatches
from gpt_cli.training.example_batches import ExampleBatches, open_batches
from gpt_cli.training.state import TrainingState

STEPS, ROUNDS = 16, 3
KINDS = {  # engine, packed, steps whose examples are sorted by length together
    "compiled C, padded, sorted": ("native", False, 16),
    "compiled C, padded, in order": ("native", False, 1),
    "torch, padded, sorted": ("torch", False, 16),
    "torch, packed, in order": ("torch", True, 1),
}


def main() -> None:
    """Print a line for each engine and kind of row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("override", nargs="*")
    arguments = parser.parse_args()
    config = load_config(arguments.config, [*arguments.override, "runtime.threads=1"])
    corpus = prepare_corpus(config.data, config.tokenizer, note=print)
    work = {name: _prepare(config, corpus, *kind) for name, kind in KINDS.items()}
    best = dict.fromkeys(work, float("inf"))
    for _ in range(ROUNDS):
        for name, (state, steps, runtime, _) in work.items():
            started = time.process_time()
            for step, micro_batches in enumerate(steps):
                accumulate_gradients(state, micro_batches, 0, step, runtime, has_ignored_targets=True)
                state.optimizer.zero_grad()
            best[name] = min(best[name], time.process_time() - started)
    for name, (_, steps, runtime, tokens) in work.items():
        cells = sum(inputs.numel() for micro_batches in steps for inputs, _ in micro_batches)
        rate = f"{tokens / best[name]:8,.0f} tokens/s"
        print(f"{name:30} {runtime.precision}  filling {1 - tokens / cells:6.1%}  {rate}")


def _prepare(
    config: Config, corpus: Corpus, engine: str, packing: bool, pool: int
) -> tuple[TrainingState, list[MicroBatches], Runtime, int]:
    chosen = config.model_copy(
        update={
            "data": config.data.model_copy(update={"packing": packing}),
            "runtime": config.runtime.model_copy(update={"engine": engine}),
        }
    )
    runtime = setup_runtime(chosen.runtime)
    state = TrainingState.initialize(chosen, corpus.tokenizer.vocab_size, runtime, print)
    example_batches._POOL = pool
    batches = open_batches(chosen, corpus, torch.device("cpu"), lambda _: None)
    assert isinstance(batches, ExampleBatches)
    tokens = sum(int(batches.rows.widths[batches.indices(step)].sum()) for step in range(STEPS))
    return state, [batches.at(step) for step in range(STEPS)], runtime, tokens


if __name__ == "__main__":
    main()
