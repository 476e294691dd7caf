"""Norms of gradients whose bits do not depend on how they are sharded: a large one is the norm of its pieces' norms.

A kernel adds up a tensor from end to end, so the norm of a sharded gradient would have other bits than that of the
whole. A gradient of more than `CUT_FROM` elements is cut into pieces at multiples of `PIECE`, however it is sharded.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

PIECE = 2**18
CUT_FROM = 2**20


def n_pieces(numel: int) -> int:
    """The number of pieces of a gradient of this many elements."""
    return 1 if numel <= CUT_FROM else -(-numel // PIECE)


def piece_norms(part: Tensor) -> Tensor:
    """The (n,) norm of each piece of `part`, which starts at the beginning of a piece."""
    flat = part.reshape(-1)
    whole = len(flat) // PIECE * PIECE
    norms = torch.linalg.vector_norm(flat[:whole].view(-1, PIECE), dim=1)
    return torch.cat([norms, torch.linalg.vector_norm(flat[whole:]).view(1)]) if whole < len(flat) else norms


def norms_of(gradients: Sequence[Tensor]) -> list[Tensor]:
    """The norm of each gradient."""
    small = [gradient for gradient in gradients if n_pieces(gradient.numel()) == 1]
    norms = iter(torch._foreach_norm(small) if small else ())
    return [
        next(norms) if n_pieces(gradient.numel()) == 1 else torch.linalg.vector_norm(piece_norms(gradient))
        for gradient in gradients
    ]
