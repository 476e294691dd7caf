"""A CUDA graph in Python, for a CPU: operations recorded with the tensors they worked on, and replayed on them.

Like a graph it does again what was done, where it was done. A number that was no tensor, a tensor that lies
elsewhere at the next step, a choice that was made in Python: whatever changes from step to step without the operations
knowing is as it was when they were recorded.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """Records what is computed within."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        self.operations.append((function, args, kwargs or {}, results))
        return results

    def replay(self):
        with torch._C._AutoDispatchBelowAutograd():  # where they were recorded
            for function, args, kwargs, results in self.operations:
                again = tree_leaves(function(*args, **kwargs))
                for before, now in zip(tree_leaves(results), again, strict=True):
                    if isinstance(before, torch.Tensor) and before.data_ptr() != now.data_ptr():
                        before.copy_(now)


def recorder(tensors):
    """For `whole_step.record`: records without changing any of `tensors()`, as if nothing had been computed."""

    def record(compute):
        held = list(tensors())
        before = [t.detach().clone() for t in held]
        with Tape() as tape:
            results = compute()
        with torch.no_grad():
            for tensor, was in zip(held, before, strict=True):
                tensor.copy_(was)

        def replay():
            tape.replay()
            return results

        return replay

    return record
