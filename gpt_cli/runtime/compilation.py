"""True if a run on a GPU is compiled: decided before its first step, from its config and the device alone.

Nothing is measured, so that the same config on the same device computes the same bits again.
"""

from typing import Literal

import torch

from gpt_cli.runtime.peak import peak_flops

CompileOption = Literal["auto", "reduce-overhead"] | bool
"""Values of `runtime.compile`."""

# Estimates, to be replaced by measurements: a cold compile of forward and backward pass takes about a minute, and
# saves about a quarter of the time of eager steps.
COMPILE_SECONDS, SAVING = 60.0, 0.25
_EAGER_MFU = 0.25  # of the peak, for steps large enough to be bound by arithmetic
_LAUNCH_SECONDS = 3e-4  # per layer and micro-batch, forward and backward: about 60 kernels


def compile_mode(asked: CompileOption, device: torch.device, eager_seconds: float) -> str | None:
    """The mode for torch.compile, or None for eager: as asked; for auto, where compiling saves more than it costs.

    `eager_seconds`: what all steps of the run would take eagerly, see `estimate_eager_seconds`. On a CPU auto is eager,
    for a compiled step was no faster there.
    """
    if asked == "auto":
        asked = device.type == "cuda" and SAVING * eager_seconds > COMPILE_SECONDS
    return asked if isinstance(asked, str) else "default" if asked else None


def estimate_eager_seconds(device: torch.device, n_layer: int, flops: float, forwards: int) -> float:
    """Seconds of eager training on a GPU: the longer of its arithmetic (`flops`) and its kernel launches.

    `forwards`: micro-batches of the whole run.
    """
    if device.type != "cuda":
        return 0.0
    return max(flops / (_EAGER_MFU * peak_flops(device)), forwards * n_layer * _LAUNCH_SECONDS)
