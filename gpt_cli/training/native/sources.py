"""Which C sources are compiled, and how: known before torch is imported, so that the compiler can work meanwhile."""

from pathlib import Path

from gpt_cli.native.kernel import load_ahead, processor_flags

_HERE = Path(__file__).parent
SOURCES = (_HERE / "network.c", _HERE / "muon.c")
OPTIONS = {False: ("-fopenmp-simd",), True: ("-fopenmp-simd", "-DBF16")}
"""By whether products read bf16."""


def compile_ahead(*, samples: bool) -> None:
    """Begin to compile what a run on this processor will most likely ask for; `samples`: also what writes them."""
    if bf16 := "amx_bf16" in processor_flags():
        load_ahead(*SOURCES, options=OPTIONS[bf16])
        if samples:
            load_ahead()
