"""One step as process 0 of so many that only seem to be there.

    python -m tests.support.fake_process_group N CONFIG KEY=VALUE...

Torch's fake process group answers each exchange at once with what was in memory. Prints, as JSON, the bytes of the
weights and of the optimizer that are kept, and those that a step sends.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from gpt_cli.config import load_config
from gpt_cli.distributed.world import World
from gpt_cli.runtime.device import Runtime
from gpt_cli.training.state import TrainingState
from gpt_cli.training.step import train_step

SENT = {"bytes": 0}
_gather, _gather_one, _exchange = dist.all_gather, dist.all_gather_single, dist.all_to_all_single


def gather_one(output, own, *args, **kwargs):
    SENT["bytes"] += own.nbytes * (dist.get_world_size() - 1)
    return _gather_one(output, own, *args, **kwargs)


def gather(output, own, *args, **kwargs):
    SENT["bytes"] += own.nbytes * (dist.get_world_size() - 1)
    return _gather(output, own, *args, **kwargs)


def exchange(output, input, output_sizes=None, sizes=None, **kwargs):
    n = dist.get_world_size()
    SENT["bytes"] += input.nbytes - (input.nbytes // n if sizes is None else input.itemsize * sizes[0])
    output.zero_()
    return _exchange(output, input, output_sizes, sizes, **kwargs)


if __name__ == "__main__":
    size, file, overrides, vocabulary = int(sys.argv[1]), sys.argv[2], sys.argv[3:], 100
    config = load_config(Path(file), overrides)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    dist.all_gather, dist.all_gather_single, dist.all_to_all_single = gather, gather_one, exchange
    runtime = Runtime(torch.device("cpu"), "fp32", 1, World(0, size))
    state = TrainingState.initialize(config, vocabulary, runtime, print)
    SENT["bytes"] = 0
    rows = config.train.batch_size // size
    tokens = torch.zeros(rows, config.model.context_length, dtype=torch.int64)
    batches = [(micro_batch, micro_batch) for micro_batch in tokens.split(config.train.sequences_per_forward)]
    train_step(state, batches, config, 0, 1.0, runtime)
    optimizer = [t for key, t in state.optimizer.state_tensors().items() if "/" in key and not t.is_meta]
    print(
        json.dumps(
            {
                "weights": sum(t.nbytes for t in state.shard.stored.values()),
                "optimizer": sum(t.nbytes for t in optimizer),
                "sent": SENT["bytes"],
            }
        )
    )
