"""The share of each device in training a model: batch, memory, bytes sent."""

import math
from dataclasses import dataclass

from gpt_cli.config import Config
from gpt_cli.config.keys import replace_keys
from gpt_cli.distributed.reduce import contiguous_micro_batches, subtrees
from gpt_cli.distributed.world import World
from gpt_cli.model.memory_estimate import estimate_memory
from gpt_cli.model.sizing import parameter_table
from gpt_cli.runtime.device import planned_device
from gpt_cli.training.batches import batch_refusal, micro_batch_size
from gpt_cli.training.optim import state_bytes, state_parts, updated_by_muon


@dataclass(frozen=True)
class DeviceShare:
    """The share of each of `devices`; memory and traffic are those of the device with the most.

    `refused` is the reason if training refuses this many devices, else None.
    """

    devices: int
    refused: str | None
    sequences: int
    micro_batch_size: int
    micro_batches: int
    memory_bytes: dict[str, dict[str, int]]
    """parallel.shard -> {use: bytes}; `exchange` and `activations` are never allocated at the same time."""
    bytes_sent: int
    """Bytes that each sends in a step, where `parallel.shard` is none or optimizer."""
    bytes_sent_full: int = 0
    """The same where `parallel.shard` is full."""

    @property
    def totals(self) -> dict[str, int]:
        """parallel.shard -> peak bytes."""
        return {
            shard: size["weights"] + size["optimizer"] + size["gradients"] + max(size["activations"], size["exchange"])
            for shard, size in self.memory_bytes.items()
        }


def device_share(config: Config, vocab_size: int, devices: int) -> DeviceShare:
    """The share of one of this many `devices`."""
    world = World(0, devices)
    rows = micro_batch_size(config, world)
    if refusal := batch_refusal(config.train.batch_size, rows, devices, config.train.micro_batch_size):
        return DeviceShare(devices, refusal[0], 0, rows, 0, {}, 0)
    sequences = config.train.batch_size // devices
    one_device = replace_keys(config, {"train.batch_size": sequences, "train.micro_batch_size": rows})
    whole = estimate_memory(one_device, vocab_size, *planned_device(config.runtime))
    leaves = config.train.batch_size // rows
    partial_sums = max(
        len(list(subtrees((0, leaves), contiguous_micro_batches(world, leaves, rank)))) for rank in range(devices)
    )
    shapes = {name: shape for name, shape, _ in parameter_table(config.model, vocab_size)}
    gradient_bytes = whole["gradients"]
    exchange = 2 * partial_sums * gradient_bytes if devices > 1 else 0
    memory = {"none": {**whole, "exchange": exchange}}
    if config.lora.rank is None:
        optimizer_bytes, parts = [0] * devices, state_parts(shapes, config.optim, devices)
        for name, size in state_bytes(shapes, config.optim).items():
            for part in parts[name]:
                optimizer_bytes[part.owner] += size * part.numel // math.prod(shapes[name])
        ema_bytes = gradient_bytes if config.optim.ema is not None else 0
        memory["optimizer"] = {**memory["none"], "optimizer": max(optimizer_bytes) + ema_bytes}
    other_share, bytes_sent_full = (devices - 1) / devices, 0
    if config.lora.rank is None and config.task.kind == "language" and devices > 1:
        memory["full"], bytes_sent_full = _share_of_all(config, shapes, devices, leaves // devices, whole)
    bytes_sent = round(other_share * gradient_bytes * (partial_sums + 1))
    return DeviceShare(devices, None, sequences, rows, sequences // rows, memory, bytes_sent, bytes_sent_full)


def _share_of_all(
    config: Config, shapes: dict[str, tuple[int, ...]], devices: int, micro_batches: int, whole: dict[str, int]
) -> tuple[dict[str, int], int]:
    """(memory, bytes sent) where weights are sharded (`distributed/fsdp.py`)."""
    rows = {name: 4 * -(-shape[0] // devices) * math.prod(shape[1:]) for name, shape in shapes.items()}
    by_muon = updated_by_muon(shapes, config.optim)
    stored = sum(rows.values())
    in_blocks = sum(size for name, size in rows.items() if name.startswith("blocks."))
    root, block = devices * (stored - in_blocks), devices * in_blocks // config.model.n_layer
    ema = stored if config.optim.ema is not None else 0
    memory = {
        "weights": stored,
        "gradients": stored,
        "optimizer": sum((1 if name in by_muon else 2) * size for name, size in rows.items()) + ema,
        # The root, a block and the next one, and the gradient of the larger, twice while it is reduced.
        "activations": whole["activations"] + root + 2 * block + 2 * max(root, block),
        # A matrix while it is orthogonalised.
        "exchange": 4 * max((devices * rows[name] for name in by_muon), default=0),
    }
    # Weights are gathered in both passes and gradients summed; Muon gathers its matrices once more.
    return memory, (devices - 1) * (3 * micro_batches * stored + sum(rows[name] for name in by_muon))
