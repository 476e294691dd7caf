"""A model on the machine it will compute on."""

from gpt_cli.model.gpt import GPT
from gpt_cli.model.linear import Linear
from gpt_cli.runtime.device import Runtime


def place(model: GPT, runtime: Runtime) -> GPT:
    """Move `model`, in place, to the device and the precision of `runtime`; its tensors keep names and types."""
    bf16_products = runtime.device.type == "cpu" and runtime.precision == "bf16"
    for module in model.modules():
        if isinstance(module, Linear):
            module.bf16_products = bf16_products
    return model.to(runtime.device)
