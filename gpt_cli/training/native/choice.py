"""Whether a model is trained by compiled code."""

import torch

from gpt_cli.config import RuntimeConfig
from gpt_cli.errors import RequestError
from gpt_cli.model.gpt import GPT
from gpt_cli.native.kernel import NoKernel
from gpt_cli.runtime.device import Runtime
from gpt_cli.training.native.library import NativeLibrary
from gpt_cli.training.native.network import NativeNetwork, what_prevents


def native_network(model: GPT, config: RuntimeConfig, runtime: Runtime) -> NativeNetwork | None:
    """`model` in compiled code, or None where torch is to compute it.

    Raises RequestError when `runtime.engine: native` asks for what there is not.
    """
    if config.engine == "torch" or (
        config.engine == "auto" and (runtime.device.type != "cpu" or config.compile is True)
    ):
        return None
    reason = f"it computes on a CPU, not on {runtime.device.type}" if runtime.device.type != "cpu" else None
    reason = reason or what_prevents(model.config)
    if reason is None:
        try:
            native = NativeNetwork(model, NativeLibrary.load(runtime.matmul_dtype), runtime.threads)
            # What is left to torch are passes over the parameters: waking threads for these costs more than it saves,
            # and those that wait for the next one take the processor away from ours.
            torch.set_num_threads(1)
            return native
        except NoKernel as error:
            reason = str(error)
    if config.engine == "native":
        raise RequestError(f"runtime.engine: native cannot be had here: {reason}", hint="set runtime.engine=auto")
    return None
