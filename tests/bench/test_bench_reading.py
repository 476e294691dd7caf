"""`python -m bench.reading` says what memory gives at all, by the amount and by how far ahead it is asked for."""

import sys
from pathlib import Path

import pytest

from bench.reading import compile_reader, read_rates


@pytest.mark.skipif(sys.platform != "linux", reason="large pages are asked for as Linux has it")
@pytest.mark.usefixtures("compiled")
def test_every_way_of_asking_has_a_rate_of_its_own(tmp_path: Path) -> None:
    rates = read_rates(compile_reader(tmp_path), megabytes=1, threads=2)
    assert list(rates) == [0, 8 << 10, 32 << 10, 128 << 10]
    assert all(
        0 < rate < 2000 for rate in rates.values()
    )  # no memory is as fast; a loop that reads nothing makes 20,000
