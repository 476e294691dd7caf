"""Examples and labelled texts of several sources, each dealt out whole to a split."""

import hashlib
from collections.abc import Callable, Iterable
from typing import TypeVar

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.split import SPLITS, Split

T = TypeVar("T")


def divide(
    data: DataConfig,
    read: Callable[[str, "hashlib._Hash"], list[T]],
    assign: Callable[[list[T], float, float], Iterable[int]],
) -> tuple[dict[Split, list[T]], str]:
    """The members of each split, training ones as often as their source's weight, and the fingerprint of all.

    `read` returns the members of a source and updates the hash by them; `assign` returns the index into SPLITS of each,
    for a share that validates and one that tests. `data.val_source` takes the place of the share that validates.
    """
    sources = [data.source] if isinstance(data.source, str) else data.source
    validating = [data.val_source] if isinstance(data.val_source, str) else data.val_source or []
    digest = hashlib.sha256()
    splits: dict[Split, list[T]] = {split: [] for split in SPLITS[: 3 if data.test_fraction else 2]}
    weighted = [
        (member, weight)
        for source, weight in zip(sources, data.weights or [1] * len(sources), strict=True)
        for member in read(source, digest)
    ]
    units = assign([member for member, _ in weighted], 0.0 if validating else data.val_fraction, data.test_fraction)
    for (member, weight), unit in zip(weighted, units, strict=True):
        splits[SPLITS[unit]] += [member] * (weight if SPLITS[unit] == "train" else 1)
    digest.update(b"validation")
    for source in validating:
        splits["val"] += read(source, digest)
    return splits, digest.hexdigest()
