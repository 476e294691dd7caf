"""Sums of gradients whose bits do not depend on how many processes compute them.

The micro-batches of a step are the leaves of a tree that depends on their number alone: an even number of leaves is
split into halves, an odd one is added from left to right. A process has consecutive leaves. It adds up the subtrees
within them; then each process receives a slice of all subtrees (all-to-all), adds them in the order of the tree, and
sends its slice of the sum to all (all-gather). If leaves and processes are powers of two, each process has one subtree,
and the traffic is that of a ring's reduce-scatter and all-gather.

Shapes: P elements of all gradients together, S = ceil(P / processes) of a slice, N subtrees of all processes.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from gpt_cli.distributed.shard import Parts
from gpt_cli.distributed.world import World

Range = tuple[int, int]
"""Leaves of the tree: the first, and the one after the last."""
Gradients = list[Tensor]
RangeSum = Callable[[Range, bool], Gradients | None]
"""(range, keep) -> the sum over it if it is known or can be computed, else None; with `keep`, in memory of its own."""


def partial_sums(world: World, leaves: int, sum_of: RangeSum) -> list[Gradients]:
    """The sums over the subtrees, of a tree of this many `leaves`, that lie within this process's leaves."""
    within = contiguous_micro_batches(world, leaves, world.rank)
    return [tree_sum(subtree, sum_of, keep=True) for subtree in subtrees((0, leaves), within)]


def combine(world: World, leaves: int, sums: list[Gradients]) -> Gradients:
    """The sum over all `leaves`, from the `partial_sums` of all processes; `sums` is emptied."""
    if world.size == 1:
        return sums.pop()
    shapes = [gradient.shape for gradient in sums[0]]
    numels = [shape.numel() for shape in shapes]
    total = _sum_of_slice(world, leaves, sums, [-(-sum(numels) // world.size)] * world.size)
    whole = [torch.empty_like(total) for _ in range(world.size)]
    with world.exchanging():
        dist.all_gather(whole, total)
    pieces = torch.cat(whole)[: sum(numels)].split(numels)
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def combine_parts(world: World, leaves: int, sums: list[Gradients], parts: Sequence[Parts]) -> list[Tensor | None]:
    """The same sum, but only this process's part of each gradient; None where it owns no part."""
    shapes = [gradient.shape for gradient in sums[0]]
    by_owner = sorted(((i, part) for i, of_one in enumerate(parts) for part in of_one), key=lambda pair: pair[1].owner)
    sizes = [sum(part.numel for _, part in by_owner if part.owner == rank) for rank in range(world.size)]
    for row in sums:
        row[:] = [part.of(row[i].contiguous()) for i, part in by_owner]
    total = _sum_of_slice(world, leaves, sums, sizes)
    rank_parts = [(i, part) for i, part in by_owner if part.owner == world.rank]
    result: list[Tensor | None] = [None] * len(shapes)
    for (i, part), piece in zip(rank_parts, total.split([part.numel for _, part in rank_parts]), strict=True):
        result[i] = piece.view(part.shape_in(shapes[i]))
    return result


def _sum_of_slice(world: World, leaves: int, sums: list[Gradients], sizes: Sequence[int]) -> Tensor:
    """The sum over all `leaves` of this process's slice (S,); `sizes` are those of all processes' slices."""
    tree, size = (0, leaves), sizes[world.rank]
    subtrees_of = [list(subtrees(tree, contiguous_micro_batches(world, leaves, rank))) for rank in range(world.size)]
    sent = _slices(sums, sizes)
    sums.clear()
    received = sent.new_empty(sum(map(len, subtrees_of)) * size)
    with world.exchanging():
        n_own = len(subtrees_of[world.rank])
        dist.all_to_all_single(
            received, sent, [len(parts) * size for parts in subtrees_of], [n_own * length for length in sizes]
        )
    parts = [part for parts in subtrees_of for part in parts]
    rows = dict(zip(parts, received.view(len(parts), size), strict=True))  # N of (S,)
    return tree_sum(tree, lambda part, _: [rows[part]] if part in rows else None)[0]


def contiguous_micro_batches(world: World, leaves: int, rank: int) -> Range:
    """The micro-batches that process `rank` computes, equally many for each."""
    share = leaves // world.size
    return rank * share, (rank + 1) * share


def tree_sum(tree: Range, sum_of: RangeSum, *, keep: bool = False) -> Gradients:
    """The sum over `tree`, in its order; the sums in memory are at most as many as its depth."""
    if (total := sum_of(tree, keep)) is not None:
        return total
    first, *rest = children(tree)
    total = tree_sum(first, sum_of, keep=True)
    for part in rest:
        torch._foreach_add_(total, tree_sum(part, sum_of))
    return total


def children(tree: Range) -> list[Range]:
    """The children of `tree`, from left to right."""
    first, end = tree
    if (end - first) % 2:
        return [(leaf, leaf + 1) for leaf in range(first, end)]
    middle = (first + end) // 2
    return [(first, middle), (middle, end)]


def subtrees(tree: Range, within: Range) -> Iterator[Range]:
    """The largest subtrees of `tree` that lie in `within`, from left to right."""
    if within[0] <= tree[0] and tree[1] <= within[1]:
        yield tree
    elif tree[0] < within[1] and within[0] < tree[1]:
        for child in children(tree):
            yield from subtrees(child, within)


def _slices(sums: list[Gradients], sizes: Sequence[int]) -> Tensor:
    """The slices (S,) of each sum, concatenated by process."""
    flat = sums[0][0].new_zeros(len(sums), sum(sizes))
    for row, gradients in zip(flat, sums, strict=True):
        filled = sum(gradient.numel() for gradient in gradients)
        torch.cat([gradient.reshape(-1) for gradient in gradients], out=row[:filled])
    if len(sums) == 1:
        return flat.view(-1)
    return torch.cat([part.reshape(-1) for part in flat.split(list(sizes), dim=1)])
