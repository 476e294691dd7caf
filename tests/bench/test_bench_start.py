"""`python -m bench.start` times two kinds of processes and says which of its bounds they keep."""

import os
import subprocess
import sys

import pytest

from tests.support.command import ROOT
from tests.support.waiting import HANG

pytestmark = pytest.mark.robust


@pytest.mark.parametrize(("most", "exit_code"), [("1000", 0), pytest.param("0.001", 1, marks=pytest.mark.slow)])
def test_a_start_and_an_import_are_two_rows_and_the_bound_is_the_exit_code(tmp_path, most, exit_code):
    text, config = tmp_path / "text.txt", tmp_path / "tiny.yaml"
    text.write_text("It was the best of times, it was the worst of times.\n" * 20)
    config.write_text(f"""
data: {{source: {text}}}
model: {{n_layer: 1, n_head: 2, n_embd: 16, context_length: 16}}
train: {{steps: 2, batch_size: 2}}
sample: {{every: null}}
runtime: {{device: cpu, threads: 1, engine: torch}}
""")
    command = [sys.executable, "-m", "bench.start", "--rounds", "1", "--most", most, "--config", str(config)]
    completed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANG, env=os.environ
    )
    assert completed.returncode == exit_code, completed.stderr
    header, start, bare = completed.stdout.splitlines()
    assert header.split()[:2] == ["what", "seconds"]
    assert start.startswith("gpt train, to its first step ")
    assert bare.startswith("import torch ")
    seconds, ratio = map(float, start.split()[-2:])
    imported, baseline_ratio = map(float, bare.split()[-2:])
    assert min(seconds, imported) > 0.05
    assert baseline_ratio == 1.0
    assert ratio == pytest.approx(seconds / imported, rel=0.1)
