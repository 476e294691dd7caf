"""`python -m bench.proof` times the checks of compiled code in new processes, and says which keep their bounds."""

import os
import subprocess
import sys

import pytest

from bench.proof import BOUNDS
from gpt_cli.config import RuntimeConfig
from gpt_cli.cpu.common.kernel import KernelUnavailable
from gpt_cli.cpu.train.train_bindings import NativeLibrary
from gpt_cli.runtime.device import setup_runtime
from tests.support.command import ROOT
from tests.support.waiting import HANG

pytestmark = pytest.mark.robust


def test_each_check_is_a_row_and_the_exit_code_is_whether_all_keep_their_bounds() -> None:
    try:
        NativeLibrary.load(setup_runtime(RuntimeConfig(device="cpu")).matmul_dtype)
    except KernelUnavailable as error:
        pytest.skip(f"there is no compiled code here: {error}")
    command = [sys.executable, "-m", "bench.proof", "--rounds", "2", "runtime.threads=1"]
    completed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANG, env=os.environ
    )
    assert completed.stderr == ""
    header, *rows = completed.stdout.splitlines()
    assert header.split() == ["check", "least", "ms", "median", "ms", "at", "most"]
    within_bound = []
    for (name, bound), row in zip(BOUNDS.items(), rows, strict=True):
        assert row.startswith(name)
        minimum, median, *printed_bound = map(float, row.removeprefix(name).split())
        assert 0 < minimum <= median
        assert printed_bound == ([] if bound is None else [bound])
        within_bound.append(bound is None or minimum < bound)
    assert completed.returncode == (not all(within_bound))
