"""The share of one of several devices in training a model: batch, memory, bytes that it sends."""

from dataclasses import dataclass

from gpt_cli.config import Config
from gpt_cli.distributed.reduce import own_leaves, subtrees
from gpt_cli.distributed.world import World
from gpt_cli.model.memory_estimate import estimate_memory
from gpt_cli.model.sizing import parameter_table
from gpt_cli.runtime.device import planned_device
from gpt_cli.training.batches import batch_refusal, micro_batch_size
from gpt_cli.training.optim import state_bytes, state_owners


@dataclass(frozen=True)
class DeviceShare:
    """The share of each of `devices`; of memory and traffic, of the one with the most.

    `refused` is the reason where training would refuse them, and None elsewhere.
    """

    devices: int
    refused: str | None
    sequences: int
    micro_batch_size: int
    micro_batches: int
    memory_bytes: dict[str, dict[str, int]]
    """parallel.shard -> bytes by their use; `exchange` and `activations` are never there together."""
    bytes_sent: int
    """In a step, by each."""

    @property
    def totals(self) -> dict[str, int]:
        """parallel.shard -> bytes at their most."""
        return {
            shard: size["weights"] + size["optimizer"] + size["gradients"] + max(size["activations"], size["exchange"])
            for shard, size in self.memory_bytes.items()
        }


def device_share(config: Config, vocab_size: int, devices: int) -> DeviceShare:
    """The share of one of so many `devices`."""
    world = World(0, devices)
    rows = micro_batch_size(config, world)
    if refused := batch_refusal(config.train.batch_size, rows, devices):
        return DeviceShare(devices, refused[0], 0, rows, 0, {}, 0)
    sequences = config.train.batch_size // devices
    own = config.train.model_copy(update={"batch_size": sequences, "micro_batch_size": rows})
    whole = estimate_memory(config.model_copy(update={"train": own}), vocab_size, *planned_device(config.runtime))
    leaves = config.train.batch_size // rows
    sums = max(len(list(subtrees((0, leaves), own_leaves(world, leaves, rank)))) for rank in range(devices))
    shapes = {name: shape for name, shape, _ in parameter_table(config.model, vocab_size)}
    learned = whole["gradients"]  # bytes
    exchange = 2 * sums * learned if devices > 1 else 0
    memory = {"none": {**whole, "exchange": exchange}}
    if config.lora.rank is None:
        owners = state_owners(shapes, config.optim, devices)
        kept = [0] * devices
        for name, size in state_bytes(shapes, config.optim).items():
            kept[owners[name]] += size
        average = learned if config.optim.ema is not None else 0
        memory["optimizer"] = {**memory["none"], "optimizer": max(kept) + average}
    others = (devices - 1) / devices
    return DeviceShare(devices, None, sequences, rows, sequences // rows, memory, round(others * learned * (sums + 1)))
