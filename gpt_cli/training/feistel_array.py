"""The permutations of `gpt_cli/shuffle.py`, of many indices at once."""

import numpy as np
import numpy.typing as npt

from gpt_cli.shuffle import half_bits, round_keys


def permute_array(indices: npt.NDArray[np.int64], n: int, key: int) -> npt.NDArray[np.int64]:
    """Return the image of each of `indices`, all in range(n), under `feistel_permute`."""
    half, mask = half_bits(n), np.uint64((1 << half_bits(n)) - 1)
    images = indices.astype(np.uint64)
    walking = np.arange(len(images))
    while len(walking):
        left, right = images[walking] >> np.uint64(half), images[walking] & mask
        for round_key in round_keys(key):
            left, right = right, left ^ (_mix(right ^ np.uint64(round_key)) & mask)
        images[walking] = left << np.uint64(half) | right
        walking = walking[images[walking] >= n]
    return images.astype(np.int64)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)  # modulo 2**64
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
