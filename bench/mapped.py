"""Training on a token store that stays on the disk, beside the same ids in memory.

    python -m bench.mapped                                    a store of 2 GB, a model of 0.9 million parameters
    python -m bench.mapped --tokens 100000000 --steps 50

Reads the windows of steps and trains on them, by turns from the disk and from memory, in one process. Of every step the
time from its windows to its update is taken, and the median of all; --steps counts those of each way. The store was
just written, so the system holds it in memory as far as there is room, as it does once it was read.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from gpt_cli.config import parse_config
from gpt_cli.corpus.store import SHARD_TOKENS, SplitSpec, SplitStats, TokenStore, new_store
from gpt_cli.runtime.device import setup_runtime
from gpt_cli.terminal.table import render_table
from gpt_cli.tokenizer import ByteTokenizer
from gpt_cli.training.batches import Batches
from gpt_cli.training.device_tokens import DeviceTokens
from gpt_cli.training.state import TrainingState
from gpt_cli.training.step import train_step

CONFIG = "model: {n_layer: 4, n_embd: 128, n_head: 4, context_length: 256}\nruntime: {device: cpu}\n"
WARM_UP = 3


def write_store(path: Path, tokens: int) -> TokenStore:
    """A store of so many random bytes."""
    random = np.random.default_rng(0)
    with new_store(path, ByteTokenizer()) as writer:
        for start in range(0, tokens, SHARD_TOKENS):
            writer.append("train", random.integers(0, 256, min(SHARD_TOKENS, tokens - start), dtype=np.uint16))
        writer.append("val", np.zeros(1000, dtype=np.uint16))
        sizes = {"train": tokens, "val": 1000}
        facts = {split: SplitStats(n, n, n, 1, np.zeros(1, dtype=np.int64)) for split, n in sizes.items()}  # type: ignore[misc]
        writer.finish(facts, fingerprint="", division=SplitSpec("characters", 0.1, 0.0))  # type: ignore[arg-type]
    return TokenStore.open(path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.mapped", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=10**9)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    config = parse_config(
        CONFIG, "bench", [] if arguments.threads is None else [f"runtime.threads={arguments.threads}"]
    )
    runtime = setup_runtime(config.runtime)
    state = TrainingState.initialize(config, 256, runtime, print)
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        store = write_store(Path(folder, "store"), arguments.tokens)
        ways = {"disk": store.mapped("train"), "memory": store.tokens("train")}
        batches = {way: Batches.of(config, DeviceTokens(ids, runtime.device)) for way, ids in ways.items()}
        reading: dict[str, list[float]] = {way: [] for way in ways}
        whole: dict[str, list[float]] = {way: [] for way in ways}
        for step in range(arguments.steps + WARM_UP):
            for way in ways if step % 2 else reversed(ways):
                start = time.perf_counter()
                windows = batches[way].at(step + (way == "disk") * arguments.steps)
                reading[way].append(time.perf_counter() - start)
                train_step(state, windows, config, step, 1.0, runtime)
                whole[way].append(time.perf_counter() - start)
    step_s = {way: statistics.median(times[WARM_UP:]) for way, times in whole.items()}
    rows = [
        (
            way,
            f"{1e6 * statistics.median(reading[way][WARM_UP:]):,.0f}",
            f"{1e3 * step_s[way]:,.1f}",
            f"{batches[way].tokens_per_step / step_s[way]:,.0f}",
            f"{100 * step_s['memory'] / step_s[way]:.1f} %",
        )
        for way in ways
    ]
    print(render_table(rows, header=("ids from", "us to read", "ms a step", "tokens/s", "of memory's")))
    per_step = batches["disk"].tokens_per_step
    print(f"\n{2 * arguments.tokens / 1e9:.1f} GB, {per_step:,} tokens a step, threads: {runtime.threads}")


if __name__ == "__main__":
    main()
