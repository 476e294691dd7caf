"""Peak rate of a GPU's matrix products, from its architecture."""

import torch

# Dense 16-bit products with fp32 sums, FLOPs per clock and multiprocessor, by compute capability (NVIDIA's architecture
# white papers). Of 8.6, 8.9 and 12.0 those of GeForce cards; data-centre cards of these capabilities do twice that.
_FLOPS_PER_CLOCK = {
    (7, 0): 1024,
    (7, 5): 1024,
    (8, 0): 2048,
    (8, 6): 512,
    (8, 9): 512,
    (9, 0): 4096,
    (10, 0): 8192,
    (12, 0): 512,
}


def peak_flops(device: torch.device) -> float:
    """FLOP/s of 16-bit matrix products on a CUDA device at its highest clock; 989e12 for an H100 or H200 SXM."""
    properties = torch.cuda.get_device_properties(device)
    per_clock = _FLOPS_PER_CLOCK.get((properties.major, properties.minor), 512)
    return float(per_clock * properties.multi_processor_count * properties.clock_rate * 1000)
