"""`GPT_CPU`: compile and compute as on a processor that has less, to measure what such a machine would do.

    x86-64-v3   AVX2 and FMA        x86-64-v4   AVX-512 without bf16        native   all that there is

Importing this imports no torch.
"""

import os
import platform
from pathlib import Path
from typing import NamedTuple

from gpt_cli.errors import RequestError

VARIABLE, NATIVE = "GPT_CPU", "native"


class CPULevel(NamedTuple):
    """A microarchitecture level of the x86-64 psABI."""

    name: str
    flags: frozenset[str]
    """Linux's names of the required CPU flags."""
    compiler_options: tuple[str, ...]
    libraries: dict[str, str]
    """Environment variables by which torch and what it brings keep to the level."""


_V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS = {
    level.name: level
    for level in (
        CPULevel(
            "x86-64-v3",
            _V3,
            ("-march=x86-64-v3",),
            {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
        ),
        CPULevel(
            "x86-64-v4",
            _V4,
            ("-march=x86-64-v4", "-mprefer-vector-width=512"),
            {"ATEN_CPU_CAPABILITY": "avx512", "MKL_ENABLE_INSTRUCTIONS": "AVX512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
        ),
    )
}


def chosen_level() -> CPULevel | None:
    """The level that `GPT_CPU` names; None for the processor as it is.

    Raises RequestError for a name that is none, and for a level that this machine does not have.
    """
    name = os.environ.get(VARIABLE) or NATIVE
    if name == NATIVE:
        return None
    if name not in LEVELS:
        raise RequestError(
            f"{VARIABLE} must be {', '.join(LEVELS)} or {NATIVE}, not {name!r}", hint=f"{VARIABLE}={next(iter(LEVELS))}"
        )
    level, here = LEVELS[name], native_flags()
    if platform.machine() not in ("x86_64", "AMD64"):
        raise RequestError(f"{VARIABLE} is {name}, but this is {platform.machine()}", hint=f"{VARIABLE}={NATIVE}")
    if here and (missing := sorted(level.flags - here)):
        raise RequestError(
            f"{VARIABLE} is {name}, but this processor has no {', '.join(missing)}", hint=f"{VARIABLE}={NATIVE}"
        )
    return level


def restrict_libraries() -> None:
    """Have torch, which is not imported yet, keep to the level of `GPT_CPU`. Raises RequestError."""
    if (level := chosen_level()) is not None:
        os.environ.update(level.libraries)


def processor_flags() -> frozenset[str]:
    """The flags of the processor as Linux calls them, or those of the level; empty if unknown. Raises RequestError."""
    level = chosen_level()
    return native_flags() if level is None else level.flags


def native_flags() -> frozenset[str]:
    """The processor's flags as Linux calls them; empty if unknown."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return frozenset()
    lines = [line for line in first.splitlines() if line.startswith(("flags", "Features"))]
    return frozenset(word for line in lines for word in line.split())
