"""Order and noise as pure functions of integers: what makes data order and resume exact without saved state.

Integer arithmetic and hashing only, so the streams are the same on every machine and version
(neither NumPy nor torch promises that for its generators).
"""

import hashlib
from functools import lru_cache

_ROUNDS = 6


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2**63) for the tuple `parts`; unlike `seed + rank`, different tuples do not collide."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def feistel_permute(index: int, n: int, key: int) -> int:
    """The image of `index` under the permutation of range(n) named by `key`: random access in O(1) memory.

    A balanced Feistel network (Luby and Rackoff, 1988) over the smallest even number of bits that holds n,
    with cycle-walking (Black and Rogaway, 2002) back into range(n). Expected walks: below 4.
    """
    if not 0 <= index < n:
        raise IndexError(f"index {index} is outside range({n})")
    half, keys = half_bits(n), round_keys(key)
    while True:
        index = _feistel(index, half, keys)
        if index < n:
            return index


def half_bits(n: int) -> int:
    """Bits of each half of the Feistel network that permutes range(n)."""
    return max(1, ((n - 1).bit_length() + 1) // 2)


def windows_per_epoch(tokens: int, context_length: int) -> int:
    """The number of windows of `context_length` in every epoch over this many tokens, whatever its phase."""
    return max(1, (tokens - context_length) // context_length)


def training_offset(index: int, tokens: int, context_length: int, seed: int) -> int:
    """The offset of window `index` of a training run in the text; epochs follow one another.

    An epoch visits each of its non-overlapping windows exactly once, in an order and from a phase of its own.
    The text has more tokens than a window, which needs one more for its last target.
    """
    epoch, place = divmod(index, windows_per_epoch(tokens, context_length))
    windows, phase, key = epoch_shuffle(epoch, tokens, context_length, seed)
    return phase + feistel_permute(place, windows, key) * context_length


@lru_cache(maxsize=64)
def epoch_shuffle(epoch: int, tokens: int, context_length: int, seed: int) -> tuple[int, int, int]:
    """An epoch: how many windows it has, where the first of the text starts, and the key of their order."""
    windows = windows_per_epoch(tokens, context_length)
    spare = tokens - windows * context_length  # at least 1, for the last target
    phase = derive_seed(seed, "phase", epoch) % min(spare, context_length)
    return windows, phase, derive_seed(seed, "order", epoch)


@lru_cache(maxsize=64)
def round_keys(key: int) -> tuple[int, ...]:
    """The keys of the rounds of the Feistel network that `key` names, each in [0, 2**63)."""
    return tuple(derive_seed("feistel-v1", key, round_) for round_ in range(_ROUNDS))


def _feistel(value: int, half: int, keys: tuple[int, ...]) -> int:
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return left << half | right


def _mix(value: int) -> int:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): every input bit reaches every output bit."""
    value &= 0xFFFFFFFFFFFFFFFF
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return value ^ value >> 31
