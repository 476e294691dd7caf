"""`gpt selftest` and `gpt doctor`: they pass on what is sound, and each planted fault turns them red."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpt_cli.config import load_config
from gpt_cli.model.gpt import GPT
from gpt_cli.model.layers import Attention
from gpt_cli.run import checkpoint
from gpt_cli.run.checkpoint import list_checkpoints
from gpt_cli.run.tensors import pack_tensors
from gpt_cli.selftest import machine
from gpt_cli.selftest.check import Check
from gpt_cli.selftest.doctor import examine
from gpt_cli.selftest.model import check_cache, check_causality
from gpt_cli.training.state import TrainingState
from tests.support.command import ROOT
from tests.support.sums import rewrite
from tests.support.tiny_run import TEXT, make_config, run
from tests.support.waiting import HANG

pytestmark = pytest.mark.robust


def test_a_quick_selftest_passes_here_and_leaves_nothing(gpt, tmp_path):
    cache = Path(os.environ["GPT_CACHE"])
    before = sorted(cache.rglob("*"))
    outcome = gpt("selftest", "--quick", "--json")
    assert outcome.rc == 0, outcome.stdout + outcome.stderr
    result = json.loads(outcome.stdout)
    assert result["passed"]
    assert [check["name"] for check in result["checks"]] == [
        "compiled cache", "compiled decoder", "compiled training",
        "disk speed", "save and load", "damage is noticed", "determinism", "resume", "causality", "cached = uncached",
        "kill it any time",
    ]  # fmt: skip
    assert re.match("4 kills, [1-4] inside a save", result["checks"][-1]["figure"])  # one is made sure of
    assert list(tmp_path.rglob("*")) == []
    assert sorted(cache.rglob("*")) == before


def test_a_place_that_cannot_be_written_is_one_clear_error(gpt, tmp_path):
    outcome = gpt("selftest", "--quick", "--dir", "nowhere")
    assert outcome.rc == 2
    assert outcome.stderr == "error: there is no directory nowhere\n"


def test_a_selftest_that_is_terminated_leaves_nothing(tmp_path, monkeypatch, capsys):
    from gpt_cli.cli.main import main

    monkeypatch.setattr(machine, "check_kernels", lambda: [os.kill(os.getpid(), signal.SIGTERM)])
    assert main(["selftest", "--quick", "--dir", str(tmp_path)]) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_a_failed_check_is_in_the_table_and_in_the_exit_code(monkeypatch, capsys):
    from gpt_cli.cli.main import main

    checks = [Check("disk speed", True, "9 MB/s"), Check("resume", False, "0 of 6")]
    monkeypatch.setattr(machine, "run_selftest", lambda *_, **__: iter(checks))
    assert main(["selftest"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "check       result  detail",
        "disk speed  ok      9 MB/s",
        "resume      FAILED  0 of 6",
    ]


@pytest.fixture
def small(tmp_path):
    return make_config(tmp_path, "schedule.kind=constant", "checkpoint.every=4")


def test_a_resume_that_forgets_the_optimizer_is_found(tmp_path, monkeypatch, small):
    assert machine.check_resume(tmp_path, small, [5]).passed
    shutil.rmtree(tmp_path / "stop-5")
    monkeypatch.setattr(
        TrainingState, "load", lambda self, saved: self.model.load_state_dict(saved.model_tensors) and None
    )
    assert not machine.check_resume(tmp_path, small, [5]).passed


def test_training_that_does_not_repeat_is_found(tmp_path, monkeypatch, small):
    monkeypatch.setattr(torch, "manual_seed", lambda seed: torch.default_generator.seed())
    assert not machine.check_determinism(tmp_path, small).passed


def test_sums_that_are_not_looked_at_are_found(tmp_path, monkeypatch):
    assert machine.check_flips(tmp_path / "sound", 50, seed=0).passed
    monkeypatch.setattr("gpt_cli.files.atomic_dir._verified", lambda path, sha256, **_: path.read_bytes())
    assert not machine.check_flips(tmp_path / "blind", 50, seed=0).passed


def test_a_model_that_looks_ahead_or_whose_cache_is_wrong_is_found(tmp_path, monkeypatch):
    torch.manual_seed(0)
    config = make_config(tmp_path, "model.zero_init=false", "model.init_std=0.5").model
    model = GPT(config, 20).eval()
    assert check_causality(model).passed
    assert check_cache(model).passed
    forward = Attention.forward
    monkeypatch.setattr(Attention, "forward", lambda self, x, cache: forward(self, x.flip(1), cache).flip(1))
    assert not check_causality(model).passed
    monkeypatch.setattr(Attention, "forward", lambda self, x, cache: forward(self, x, None))
    assert not check_cache(model).passed


# The doctor


@pytest.fixture
def trained(tmp_path) -> Path:
    run(make_config(tmp_path))
    return tmp_path / "run"


def findings(path: Path) -> dict[str, str]:
    return {check.name: check.figure for check in examine(path, print) if not check.passed}


def test_a_sound_run_has_no_findings_and_is_not_changed(trained, gpt_here):
    def contents():
        return {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}

    before = contents()
    outcome = gpt_here("doctor", trained)
    assert outcome.rc == 0, outcome.stdout + outcome.stderr
    assert "all 12 steps are done" in outcome.stdout
    assert contents() == before
    assert findings(list_checkpoints(trained)[0]) == {}


def test_a_flipped_bit_is_found_and_what_would_be_resumed_is_told(trained, gpt_here):
    newest = list_checkpoints(trained)[0]
    data = bytearray((newest / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (newest / "model.safetensors").write_bytes(data)
    outcome = gpt_here("doctor", trained)
    assert outcome.rc == 1
    assert outcome.stdout.count("FAILED") == 1
    assert "model.safetensors does not match" in " ".join(outcome.stdout.partition("FAILED")[2].split())
    assert "would resume from step 8 of 12" in outcome.stdout


def test_numbers_that_are_not_finite_are_found_though_the_sums_are_right(trained):
    newest = list_checkpoints(trained)[0]
    tensors = checkpoint.load(newest).model_tensors
    tensors["head.weight"][0, 0] = torch.nan
    rewrite(newest, "model.safetensors", pack_tensors(tensors))
    assert "weight head.weight has 1 values" in findings(trained)[newest.name]


def test_tensors_of_another_model_are_found(trained):
    newest = list_checkpoints(trained)[0]
    rewrite(newest, "model.safetensors", pack_tensors({"head.weight": torch.zeros(2)}))
    assert "does not fit" in findings(trained)["model"]


def test_another_text_and_another_tokenizer_are_found(trained, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT + "More, with a Z.\n")
    assert "the text has changed" in findings(trained)["data"]
    (tmp_path / "text.txt").unlink()
    assert "does not exist" in findings(trained)["data"]
    (trained / "tokenizer.json").write_text((trained / "tokenizer.json").read_text().replace("w", "W"))
    assert "another tokenizer" in findings(trained)["tokenizer"]


def test_metrics_that_tell_a_step_twice_are_found(trained):
    lines = (trained / "metrics.jsonl").read_text().splitlines(keepends=True)
    (trained / "metrics.jsonl").write_text("".join([*lines, lines[-2]]))
    assert "twice" in findings(trained)["logs"]


@pytest.mark.parametrize("state", ["missing", "empty"])
def test_metrics_that_are_gone_are_found(trained, state):
    (trained / "metrics.jsonl").unlink()
    if state == "empty":
        (trained / "metrics.jsonl").touch()
    assert f"metrics.jsonl is {state}" in findings(trained)["logs"]


def test_metrics_of_a_complete_run_that_were_cut_are_found(trained):
    lines = (trained / "metrics.jsonl").read_text().splitlines(keepends=True)
    (trained / "metrics.jsonl").write_text("".join(lines[:-1]) + lines[-1][:5])
    assert "before the last one" in findings(trained)["logs"]


def test_a_record_that_is_no_object_is_found(trained):
    (trained / "run.json").write_text("[]")
    assert "run.json is damaged" in findings(trained)["files"]


def test_a_run_without_an_intact_checkpoint_cannot_go_on(trained):
    for path in list_checkpoints(trained):
        (path / "state.json").unlink()
    assert "cannot go on" in findings(trained)["resume"]


def test_a_disk_that_takes_nothing_is_named_with_the_file(tmp_path):
    command = f"ulimit -f 0; exec {sys.executable} -m gpt_cli selftest --quick --dir {tmp_path}"
    completed = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=HANG, check=False
    )
    assert completed.returncode == 1
    assert re.search(r"^error: .*/gpt-selftest-\w+/text.txt", completed.stderr, flags=re.MULTILINE), completed.stderr
    assert not list(tmp_path.iterdir())


def test_a_config_of_another_model_than_the_checkpoint_is_found_where_it_is_resumed(trained):
    config = trained / "config.yaml"
    width = load_config(config).model.n_embd
    config.write_text(config.read_text().replace(f"n_embd: {width}", f"n_embd: {2 * width}"))
    there = f"model.n_embd: {width} in the checkpoint of step 12, {2 * width} here"
    assert there in findings(trained)["resume"]
