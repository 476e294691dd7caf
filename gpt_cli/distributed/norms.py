"""Norms of gradients whose bits do not depend on who has which part: those of large ones are norms of norms of pieces.

A kernel adds up a tensor from end to end, so the norm of a gradient whose parts are in several processes would have
other bits than that of the whole. A gradient of more than `CUT_FROM` elements has pieces, at multiples of `PIECE`
whichever process has them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

PIECE = 2**18
CUT_FROM = 2**20


def n_pieces(numel: int) -> int:
    """The number of pieces of a gradient of so many elements."""
    return 1 if numel <= CUT_FROM else -(-numel // PIECE)


def piece_norms(part: Tensor) -> Tensor:
    """The (n,) norm of each piece of `part`, elements of a gradient from the beginning of a piece on."""
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
