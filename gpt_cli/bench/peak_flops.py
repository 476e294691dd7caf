"""Peak matrix-product throughput of a device, by which its utilisation is measured."""

import time

import torch

from gpt_cli.runtime.device import Runtime, synchronize, torch_threads

MATRIX_SIZES = {"cpu": (512, 1024, 2048)}
_GPU_SIZES = (4096, 8192, 16384)
_REPEATS = 4


def peak_matmul_flops(runtime: Runtime, seconds: float) -> float:
    """FLOP/s of the fastest square matrix product in the precision of `runtime`, measured for about so long.

    The products are torch's own, on as many threads as `runtime` has (the C engine leaves torch with one); of several
    sizes the best counts, and of each size the fastest repetition: a ceiling, not a mean.
    """
    device, best = runtime.device, 0.0
    sizes = MATRIX_SIZES.get(device.type, _GPU_SIZES)
    with torch_threads(runtime.threads):
        for size in sizes:
            a, b = (torch.randn(size, size, device=device).to(runtime.matmul_dtype) for _ in range(2))
            a @ b  # the first also allocates and chooses a kernel
            synchronize(device)
            started, n_done = time.perf_counter(), 0
            while n_done < 2 or time.perf_counter() - started < seconds / len(sizes):
                before = time.perf_counter()
                for _ in range(_REPEATS):
                    a @ b
                synchronize(device)
                best = max(best, _REPEATS * 2.0 * size**3 / (time.perf_counter() - before))
                n_done += 1
    return best
