"""`python -m bench.training --only start` times two kinds of processes, and its bound is the exit code."""

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
    options = ["--only", "start", "--rounds", "1", "--most", most, "--config", str(config)]
    completed = subprocess.run(
        [sys.executable, "-m", "bench.training", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG,
        env=os.environ,
    )
    assert completed.returncode == exit_code, completed.stderr
    header, bare, start, verdicts, verdict = [line for line in completed.stdout.splitlines() if line][:5]
    assert header.split() == ["start", "seconds", "ratio"]
    assert start.startswith("gpt train, to its first step ")
    assert bare.startswith("import torch ")
    seconds, ratio = map(float, start.split()[-2:])
    imported, baseline_ratio = map(float, bare.split()[-2:])
    assert min(seconds, imported) > 0.05
    assert baseline_ratio == 1.0
    assert ratio == pytest.approx(seconds / imported, rel=0.1)
    assert verdicts.split() == ["what", "figure", "asked", "reached"]
    assert verdict.split()[-3:] == [f"{ratio:.2f}x", f"{float(most):g}x", "no" if exit_code else "yes"]
