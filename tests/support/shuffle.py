"""`pytest --shuffle SEED`: files in another order, and the tests of each file too. The same seed, the same order.

Whole files are moved, so that what a file sets up for all its tests is still set up once. A plugin that did this would
be a dependency for ten lines, and would seed more than was asked for.
"""

import random
from collections import defaultdict
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in an order that SEED decides")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (seed := config.getoption("shuffle")) is None:
        return
    dice = random.Random(seed)
    files: dict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.path].append(item)
    order = sorted(files)
    dice.shuffle(order)
    for path in order:
        dice.shuffle(files[path])
    items[:] = [item for path in order for item in files[path]]
