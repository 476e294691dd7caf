"""Decide whether a run on a GPU is compiled: before its first step, from its config and the device alone.

Nothing is measured, so that the same config on the same device computes the same bits again.
"""

from typing import Literal

import torch

from gpt_cli.runtime.cuda_graph import graphs_available
from gpt_cli.runtime.peak import peak_flops

CompileOption = Literal["auto", "reduce-overhead"] | bool
"""Values of `runtime.compile`."""

# Measured on an H100 (docs/howto/gpu.md): a cold compile took 17 s at 6 layers and 30 s at 12, and saved 65 % of an
# eager step that waits for kernel launches, 40 % of one bound by arithmetic.
COMPILE_SECONDS, SAVING = 25.0, 0.4
_EAGER_MFU = 0.25  # of the peak, for steps large enough to be bound by arithmetic
_LAUNCH_SECONDS = 2.8e-3  # per layer and micro-batch, forward and backward: about 100 kernels


def compile_mode(option: CompileOption, device: torch.device, eager_seconds: float) -> str | None:
    """The mode for torch.compile, or None for eager: as asked; for auto, where compiling saves more than it costs.

    `eager_seconds`: what all steps of the run would take eagerly, see `estimate_eager_seconds`. Auto compiles for CUDA
    graphs where there are any: a small model's step was 2.5 times as fast by them, a large one's as fast as without. On
    a CPU auto is eager, for a compiled step was no faster there.
    """
    if option == "auto":
        if device.type != "cuda" or SAVING * eager_seconds <= COMPILE_SECONDS:
            return None
        return "reduce-overhead" if graphs_available(device) else "default"
    return option if isinstance(option, str) else "default" if option else None


def estimate_eager_seconds(device: torch.device, n_layer: int, flops: float, forwards: int) -> float:
    """Seconds of eager training on a GPU: the longer of its arithmetic (`flops`) and its kernel launches.

    `forwards`: micro-batches of the whole run.
    """
    if device.type != "cuda":
        return 0.0
    return max(flops / (_EAGER_MFU * peak_flops(device)), forwards * n_layer * _LAUNCH_SECONDS)
