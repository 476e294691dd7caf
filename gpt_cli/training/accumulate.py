"""The gradient of a step: the sum over the micro-batches of all processes."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpt_cli.distributed.reduce import Range, combine, combine_parts, contiguous_micro_batches, partial_sums
from gpt_cli.distributed.world import World
from gpt_cli.runtime.device import Runtime
from gpt_cli.runtime.oom import is_out_of_memory, oom_as_user_error
from gpt_cli.shuffle import derive_seed
from gpt_cli.training.batches import MicroBatches
from gpt_cli.training.evaluate import IGNORED

if TYPE_CHECKING:
    from gpt_cli.training.state import TrainingState


def accumulate_gradients(
    state: "TrainingState",
    micro_batches: MicroBatches,
    seed: int,
    step: int,
    runtime: Runtime,
    *,
    has_ignored_targets: bool = False,
) -> Tensor:
    """Set `grad` of each parameter that this process updates to the gradient of the mean loss over all micro-batches.

    Returns that loss, a scalar on the device. Neither depends on the number of processes: the noise of a micro-batch is
    a function of its number among all of them, and sums have a fixed order: micro-batches are the leaves of a tree
    (`distributed/reduce.py`). Where weights are sharded, torch adds up the gradients, in an order of its own.
    `has_ignored_targets`: some targets may be IGNORED; the mean is over the others of the step. Out of memory in one
    process raises in all.
    """
    world, n = runtime.world, len(micro_batches) * runtime.world.size
    first, end = contiguous_micro_batches(world, n, world.rank)
    losses = torch.zeros(n, device=runtime.device)
    loss_normalizer: int | Tensor = count_targets(micro_batches, world) if has_ignored_targets else n
    trained = [parameter for parameter in state.parameters if parameter.requires_grad]

    def forward_backward(leaf: int) -> None:
        inputs, targets = micro_batches[leaf - first]
        noise = derive_seed(seed, "noise", step, leaf)
        losses[leaf] = state.engine.forward_backward(inputs, targets, loss_normalizer, noise)

    def leaf_gradients(leaf: Range, keep: bool) -> list[Tensor] | None:
        if leaf[1] - leaf[0] > 1:
            return None
        forward_backward(leaf[0])
        gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
        state.optimizer.zero_grad()
        overwritten = keep and len(micro_batches) > 1 and state.engine.reuses_gradients
        return [gradient.clone() for gradient in gradients] if overwritten else gradients

    if state.shard.is_full:
        with oom_as_user_error(
            "computing a micro-batch", "give a smaller train.micro_batch_size; nothing saved is lost"
        ):
            for leaf in range(first, end):  # the backward pass adds to the sums of all processes
                forward_backward(leaf)
    else:
        oom_error: Exception | None = None
        try:
            sums = partial_sums(world, n, leaf_gradients)
        except (MemoryError, RuntimeError) as error:
            if world.size == 1 or not is_out_of_memory(error):
                raise
            oom_error = error
        if world.any(oom_error is not None):
            raise oom_error or MemoryError("out of memory in another process")
        if state.shard.parts is None:
            for parameter, gradient in zip(trained, combine(world, n, sums), strict=True):
                parameter.grad = gradient
        else:
            state.shard.set_gradients(combine_parts(world, n, sums, list(state.shard.parts.values())))
    loss = torch.zeros((), device=runtime.device)
    for part in world.all_reduce_disjoint(losses).unbind():
        loss += part
    return loss


def count_targets(micro_batches: MicroBatches, world: World) -> Tensor:
    """The number of targets of a step in all processes that are not IGNORED, a scalar on the device, without a sync."""
    count = torch.stack([(targets != IGNORED).sum() for _, targets in micro_batches]).sum()
    counts = count.new_zeros(world.size)
    counts[world.rank] = count
    return world.all_reduce_disjoint(counts).sum()
