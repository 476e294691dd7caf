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
from gpt_cli.training.optim import state_bytes, state_owners, state_parts, updated_by_muon


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
        owners = state_owners(shapes, config.optim, devices)
        memory["full"], bytes_sent_full = _share_of_all(config, shapes, owners, devices, leaves // devices, whole)
    bytes_sent = round(other_share * gradient_bytes * (partial_sums + 1))
    return DeviceShare(devices, None, sequences, rows, sequences // rows, memory, bytes_sent, bytes_sent_full)


def _share_of_all(
    config: Config,
    shapes: dict[str, tuple[int, ...]],
    owners: dict[str, int],
    devices: int,
    micro_batches: int,
    whole: dict[str, int],
) -> tuple[dict[str, int], int]:
    """(memory, bytes sent) where weights are sharded (`distributed/fsdp.py`)."""
    matrices = {name: shape for name, shape in shapes.items() if len(shape) > 1}
    sizes = {name: 4 * math.prod(shape) for name, shape in shapes.items()}
    rows = {name: 4 * -(-shape[0] // devices) * math.prod(shape[1:]) for name, shape in matrices.items()}
    vectors = sum(sizes.values()) - sum(sizes[name] for name in matrices)
    by_muon = updated_by_muon(shapes, config.optim)
    stored = sum(rows.values()) + vectors
    state = 2 * vectors + 2 * sum(rows[name] for name in matrices if name not in by_muon)
    owned = [sum(sizes[n] for n in by_muon if owners[n] == rank) for rank in range(devices)]
    normed = [sum(sizes[n] for n in matrices if n not in by_muon and owners[n] == rank) for rank in range(devices)]
    root = {name for name in matrices if not name.startswith("blocks.")}
    block = sum(devices * rows[name] for name in matrices if name.startswith("blocks.0."))
    gathered = sum(devices * rows[name] for name in root)
    # The root, a block and the next one, and the gradient of the largest group, three times while it is reduced.
    computing = gathered + 2 * block + 3 * max(gathered, block)
    passes = 3 * (devices - 1) * sum(rows.values())  # gathered in both passes, and summed
    updates = max(
        sum((2 if n in by_muon else 1) * rows[n] for n in matrices if owners[n] != rank)
        + sum(sizes[n] - rows[n] for n in by_muon if owners[n] == rank)
        for rank in {0, devices - 1}
    )
    memory = {
        "weights": stored,
        "gradients": stored,
        "optimizer": state + max(owned) + (stored if config.optim.ema is not None else 0),
        "activations": whole["activations"] + computing,
        "exchange": max(4 * max(owned), 2 * max(normed)),
    }
    vectors_sent = vectors * (devices - 1) // devices * (micro_batches + 1)
    return memory, micro_batches * passes + updates + vectors_sent
