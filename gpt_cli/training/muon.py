"""Muon: orthogonalised momentum, for the matrices between hidden layers.

Jordan et al. (2024), "Muon: an optimizer for hidden layers in neural networks". Matrices of one shape are
orthogonalised together, as one batch: at small sizes the number of operations costs more than their arithmetic.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gpt_cli.distributed.shard import Shard, Zeros, zeros_of

# The five steps of Polar Express (Amsel et al., 2025, "The Polar Express", table of coefficients for bf16),
# each X <- a X + b (X X^T) X + c (X X^T)^2 X.
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


NewtonSchulz = Callable[[Sequence[Tensor], Sequence[float]], list[Tensor]]
"""(r, c) matrices, a scale for each -> as many of the same shapes, orthogonalised and times their scales."""

FusedUpdate = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor], Sequence[float], float, float], None]
"""(r, c) parameters, gradients, momentum buffers, a scale for each, the momentum, and what weight decay leaves of a
parameter: the update of `Muon.step` in one call, with its roundings. Gradients are overwritten."""


class Muon:
    """Nesterov momentum, orthogonalised, with decoupled weight decay.

    `row_splits` has the rows of the matrices that a parameter stacks (the q, k and v of a fused projection): each is
    orthogonalised by itself, so that a fused projection learns like separate ones.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        row_splits: Mapping[str, Sequence[int]],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        orthogonalise: NewtonSchulz,
        fused: FusedUpdate | None = None,
        zeros: Zeros = zeros_of,
        row_shard: Shard | None = None,
    ) -> None:
        """`fused`, if given, computes the updates; it knows no `found_inf`.

        `row_shard`, if given, shards parameters by rows: one matrix at a time is gathered, and orthogonalised by every
        process.
        """
        self.parameters = dict(parameters)
        self.row_splits = {name: tuple(rows) for name, rows in row_splits.items()}
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.orthogonalise, self.fused, self.row_shard = orthogonalise, fused, row_shard
        self.buffers = {name: zeros(name, p) for name, p in parameters.items()}

    @torch.no_grad()
    def step(self, lr_multiplier: float, found_inf: Tensor | None = None) -> None:
        """Update every parameter from its gradient, which is overwritten; see `AdamW.step`."""
        names = [name for name, p in self.parameters.items() if p.grad is not None]
        if not names:
            return
        parameters = [self.parameters[name] for name in names]
        gradients = [p.grad for p in parameters if p.grad is not None]
        buffers = [self.buffers[name] for name in names]
        lr = self.lr * lr_multiplier
        decay = lr * self.weight_decay
        if self.fused is not None and found_inf is None:
            targets, matrices = self._split(names, parameters), self._split(names, gradients)
            scales = _scales(matrices, lr)
            self.fused(targets, matrices, self._split(names, buffers), scales, self.momentum, 1.0 - decay)
            return
        if found_inf is not None:  # lerp of the momentum with itself changes nothing
            for gradient, buffer in zip(gradients, buffers, strict=True):
                gradient.copy_(torch.where(found_inf > 0, buffer, gradient))
        torch._foreach_lerp_(buffers, gradients, 1.0 - self.momentum)
        torch._foreach_lerp_(gradients, buffers, self.momentum)  # Nesterov's look-ahead, in place
        if self.weight_decay:
            torch._foreach_mul_(parameters, 1.0 - (decay if found_inf is None else decay * (1.0 - found_inf)))
        if self.row_shard is None:
            torch._foreach_add_(self._split(names, parameters), self._directions(names, gradients, lr, found_inf))
            return
        for name, parameter, gradient in zip(names, parameters, gradients, strict=True):
            whole = self._directions([name], [self.row_shard.gather(name, gradient)], lr, found_inf)
            parameter += self.row_shard.local_part(name, parameter, torch.cat(whole))

    def _directions(
        self, names: Sequence[str], gradients: Sequence[Tensor], lr: float, found_inf: Tensor | None
    ) -> list[Tensor]:
        """The update of each matrix."""
        matrices = self._split(names, gradients)
        directions = self.orthogonalise(matrices, _scales(matrices, lr))
        if found_inf is not None:
            torch._foreach_mul_(directions, 1.0 - found_inf)
        return directions

    def _split(self, names: Sequence[str], tensors: Sequence[Tensor]) -> list[Tensor]:
        """The matrices that each of `tensors`, in the shape of the parameter of that name, stacks."""
        return [
            piece
            for name, tensor in zip(names, tensors, strict=True)
            for piece in (tensor.split(self.row_splits[name]) if name in self.row_splits else (tensor,))
        ]


def _scales(matrices: Sequence[Tensor], lr: float) -> list[float]:
    """Factors of the updates, such that the output changes equally for all shapes."""
    return [-lr * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5 for matrix in matrices]


def newton_schulz_batched(matrices: Sequence[Tensor], scales: Sequence[float], dtype: torch.dtype) -> list[Tensor]:
    """Each matrix orthogonalised in `dtype`, batched by shape, times its scale; returned in its own dtype."""
    directions = list(matrices)
    for indices in _by_shape(matrices).values():
        batch = newton_schulz(torch.stack([matrices[i] for i in indices]), dtype).to(matrices[0].dtype)
        for i, direction in zip(indices, batch, strict=True):
            directions[i] = direction * scales[i]
    return directions


def newton_schulz(matrices: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """(n, r, c) -> (n, r, c): U S V^T -> about U V^T, all singular values near 1.

    Newton-Schulz iterations with the coefficients of Polar Express, in `dtype` (None: that of `matrices`). A zero
    matrix stays zero.
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices  # the smaller Gram matrix is the cheaper one
    # The Frobenius norm bounds the largest singular value; 2 % of slack for rounding in bf16.
    # Rounded only once they are normalised: gradients of 1e-5 are next to nothing in fp16.
    x = (x / (torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True) * 1.02 + 1e-6)).to(dtype or matrices.dtype)
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def _by_shape(matrices: Sequence[Tensor]) -> dict[torch.Size, list[int]]:
    indices: dict[torch.Size, list[int]] = defaultdict(list)
    for i, matrix in enumerate(matrices):
        indices[matrix.shape].append(i)
    return indices
