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
from torch.utils._python_dispatch import TorchDispatchMode

from gpt_cli.config import load_config
from gpt_cli.distributed.world import World
from gpt_cli.runtime.device import Runtime
from gpt_cli.training.state import TrainingState
from gpt_cli.training.step import train_step

# Operation -> the argument as large as what each of the others is sent.
SENT = {"c10d::_allgather_base_": 1, "c10d::_reduce_scatter_base_": 0, "_c10d_functional::all_gather_into_tensor": 0}


class BytesSent(TorchDispatchMode):
    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if (index := SENT.get(func._schema.name)) is not None:
            self.total += (dist.get_world_size() - 1) * args[index].nbytes
        return func(*args, **(kwargs or {}))


if __name__ == "__main__":
    size, file, overrides, vocabulary = int(sys.argv[1]), sys.argv[2], sys.argv[3:], 100
    config = load_config(Path(file), overrides)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    runtime = Runtime(torch.device("cpu"), "fp32", 1, World(0, size))
    state = TrainingState.initialize(config, vocabulary, runtime, print)
    rows = config.train.batch_size // size
    tokens = torch.zeros(rows, config.model.context_length, dtype=torch.int64)
    batches = [(micro_batch, micro_batch) for micro_batch in tokens.split(config.train.sequences_per_forward)]
    with BytesSent() as sent:
        train_step(state, batches, config, 0, 1.0, runtime)
    optimizer = [t for key, t in state.optimizer.state_tensors().items() if "/" in key]
    print(
        json.dumps(
            {
                "weights": sum(t.nbytes for t in state.shard.stored.values()),
                "optimizer": sum(t.nbytes for t in optimizer),
                "sent": sent.total,
            }
        )
    )
