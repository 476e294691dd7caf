"""How far two computations of the same tensors are apart."""

from collections.abc import Sequence

import torch
from torch import Tensor

_SMALL = 1e-3  # of the largest tensor: below this size, a difference is compared with the largest


@torch.no_grad()
def relative_error(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest relative difference of two tensors that belong together: the norm of it over that of the expected.

    Tensors that are next to nothing beside the largest are compared with that, for they may be rounding alone. Where
    shapes or the number of tensors differ, or something is not a number, it is infinite.
    """
    if [t.shape for t in actual] != [t.shape for t in expected]:
        return float("inf")
    norms = torch.stack([torch.linalg.vector_norm(t.detach().float()) for t in expected])
    errors = [torch.linalg.vector_norm(f.float() - e.float()) for f, e in zip(actual, expected, strict=True)]
    relative = torch.stack(errors) / norms.clamp(min=_SMALL * float(norms.max()))
    worst = float(relative.nan_to_num(nan=float("inf"), posinf=float("inf")).max())
    return 0.0 if float(norms.max()) == 0.0 and float(torch.stack(errors).max()) == 0.0 else worst


def assert_equal_with_gradients(actual: Tensor, expected: Tensor, inputs: tuple[Tensor, ...]) -> None:
    """Raise AssertionError unless the tensors, and the gradients of a sum of each by `inputs`, are close."""
    torch.testing.assert_close(actual, expected)
    weights = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype).view_as(expected)
    for a, e in zip(
        torch.autograd.grad((actual * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, e)
