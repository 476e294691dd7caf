"""The functions of numbers in C (gpt_cli/cpu/decode/simd.h) against NumPy's in double precision."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpt_cli.cpu.common.kernel import SOURCE, Kernel, KernelUnavailable, find_compiler, load_kernel, no_build_cache

CODE = """
#include "{header}"
#define EACH(NAME, WHAT)                                              \\
    void NAME(const float *from, float *to, int n) {{                   \\
        for (int i = 0; i < n; i += LANES) {{                            \\
            vec x = *(const vec_u *)(from + i);                       \\
            *(vec_u *)(to + i) = WHAT;                                \\
        }}                                                             \\
    }}
EACH(of_exponential, exponential(x))
EACH(of_sigmoid, sigmoid(x))
EACH(of_gelu, activate(GELU, x, x))
"""
N = 1 << 16

Function = Callable[[np.ndarray], np.ndarray]


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Function]:
    try:
        find_compiler()
    except KernelUnavailable as error:
        pytest.skip(str(error))
    source = tmp_path_factory.mktemp("numbers") / "functions.c"
    source.write_text(CODE.format(header=Path(SOURCE).with_name("simd.h")))
    with no_build_cache():
        library = load_kernel(Kernel((source,)))  # where there is a compiler, what it does not take is a fault
    pointer = ctypes.POINTER(ctypes.c_float)

    def of(name: str) -> Function:
        def apply(x: np.ndarray) -> np.ndarray:
            y = np.empty_like(x)
            library[f"of_{name}"](x.ctypes.data_as(pointer), y.ctypes.data_as(pointer), len(x))
            return y.astype(np.float64)

        return apply

    return {name: of(name) for name in ("exponential", "sigmoid", "gelu")}


def _between(low: float, high: float) -> np.ndarray:
    return np.linspace(low, high, N, dtype=np.float32)


@pytest.mark.parametrize(("low", "tolerance"), [(-1, 3e-7), (-20, 1.2e-6), (-87, 6e-6)])
def test_an_exponential_is_off_by_little_and_by_nothing_at_zero(
    low: float, tolerance: float, functions: dict[str, Function]
) -> None:
    x = _between(low, 0)
    y = functions["exponential"](x)
    np.testing.assert_allclose(y, np.exp(x.astype(np.float64)), rtol=tolerance)
    assert y[-1] == 1


def test_an_exponential_of_anything_is_finite_and_positive(functions: dict[str, Function]) -> None:
    y = functions["exponential"](np.resize(np.float32([-np.inf, -1e30, -200, 200, 1e30, np.inf]), 16))
    assert (y > 0).all()
    assert np.isfinite(y).all()


def test_sigmoid_and_gelu_are_off_by_a_few_roundings(functions: dict[str, Function]) -> None:
    x = _between(-12, 12)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(functions["sigmoid"](x), 1 / (1 + np.exp(-wide)), rtol=0, atol=2e-7)
    gelu = wide / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    assert (np.abs(functions["gelu"](x) - gelu) <= 3e-7 * np.maximum(1, np.abs(wide))).all()
