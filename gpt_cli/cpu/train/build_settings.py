"""The C sources and their compiler flags: known before torch is imported, so that the compiler can work meanwhile."""

from pathlib import Path

from gpt_cli.cpu.common.kernel import DECODER, Kernel, build_in_background
from gpt_cli.runtime.cpu_level import processor_flags

_HERE = Path(__file__).parent
_USUAL = ("-fopenmp-simd", "-O2", "-ftree-vectorize")  # as fast as -O3 here, and compiled in two thirds of the time
_FUNCTIONS = (
    *("pack_weights", "amx_available", "workspace_bytes", "loss_and_gradients", "draw_dropout"),
    *("muon_workspace_bytes", "muon_update"),
)
SOURCES = (_HERE / "network.c", _HERE / "muon.c")
KERNELS = {bf16: Kernel(SOURCES, (*_USUAL, "-DBF16") if bf16 else _USUAL, _FUNCTIONS) for bf16 in (False, True)}
"""By whether products read bf16."""


def has_bf16_products() -> bool:
    """True if this processor multiplies bf16: with AVX512-BF16, faster where it has AMX, or with ARMv8.6's BF16."""
    return not {"avx512_bf16", "bf16"}.isdisjoint(processor_flags())  # as Linux calls them there and there


def build_engine_in_background(*, samples: bool) -> None:
    """Begin to compile what a run on this processor will most likely ask for; `samples`: also what writes them."""
    if has_bf16_products():
        build_in_background(KERNELS[True])
        if samples:
            build_in_background(DECODER)
