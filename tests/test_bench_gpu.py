"""`python -m bench.gpu` goes its whole way on a CPU, and says so where there is no GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "bench.gpu", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)


def test_the_whole_way_at_a_tiny_size(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("It was the best of times, it was the worst of times.\n" * 100)
    done = run("--cpu-smoke", "--text", str(text), "--out", str(tmp_path / "gpu.json"))
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert record["gradients"]["right"]
    assert record["gpt2_124m"]["tokens_per_second"] > 0
    assert record["gpt2_124m_update_ms"].keys() == {"eager", "compiled"}
    assert all(milliseconds > 0 for milliseconds in record["gpt2_124m_update_ms"].values())
    assert all(rate > 0 for rate in record["sampling_tokens_per_second"].values())
    decoded = record["decoding_tokens_per_second"]
    assert decoded.pop("plain") > 0
    assert set(decoded.values()) == {"CUDA graphs are for CUDA"}
    assert "the aim on an H200 is 8,000" in done.stdout
    assert record["tiny_shakespeare"]["steps"] == 6
    assert record["tiny_shakespeare"]["reached"] is False
    assert record["device"] == "cpu, a trial"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so(tmp_path):
    done = run("--text", "text.txt")
    assert done.returncode == 1
    assert done.stderr.startswith("there is no CUDA device here")
