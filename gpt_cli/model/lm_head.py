"""The language-model head: its product is padded to a width that is fast on tensor cores.

Shapes: N tokens, C n_embd, V vocabulary, V' V or, on a GPU, the next multiple of 128.
"""

from torch import Tensor, nn
from torch.nn import functional as F

TILE = 128
"""The multiple that the sides of a product are padded to."""


class LMHead(nn.Linear):
    """x W^T, (..., C) -> (..., V), as an (N, V') product on a GPU.

    With 50,257 ids, two of the three products of a step have unaligned rows, for which tensor cores only have slow
    kernels (nanoGPT trained a quarter faster with 50,304, Karpathy, 2023). Only the operand of the product is padded:
    the parameter and its gradient have V rows.
    """

    def __init__(self, n_embd: int, vocab_size: int) -> None:
        super().__init__(n_embd, vocab_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., V)."""
        if x.shape[:-1].numel() < TILE:  # as in decoding, where padding would read the weight twice
            return super().forward(x)
        return F.linear(x, pad_vocabulary(self.weight))[..., : self.out_features]


def pad_vocabulary(weight: Tensor) -> Tensor:
    """(V, C) -> (V', C), with rows of zeros after V."""
    return F.pad(weight, (0, 0, 0, -len(weight) % TILE)) if is_padded(weight) else weight


def is_padded(weight: Tensor) -> bool:
    """True if products with the (V, C) `weight` are padded: on a GPU, where V is not a multiple of 128."""
    return weight.device.type == "cuda" and len(weight) % TILE > 0
