"""Constraints of people who mean harm: each is refused or compiled, at a bounded price, and ends no process."""

import json
import subprocess
import sys

import pytest

from tests.support.command import ROOT, subprocess_env

SECONDS = 10  # of processor time
MEGABYTES = 300


@pytest.mark.robust
def test_a_hostile_constraint_is_refused_or_compiled_in_bounded_time_and_memory() -> None:
    command = [sys.executable, "-m", "tests.support.hostile_grammars", str(SECONDS)]
    completed = subprocess.run(command, cwd=ROOT, env=subprocess_env(), capture_output=True, text=True, check=True)
    outcomes = json.loads(completed.stdout)
    failed = {name: one for name, one in outcomes.items() if one["rc"] not in (0, 1) or one["peak"] > MEGABYTES}
    assert not failed
    assert sum(one["rc"] == 0 for one in outcomes.values()) >= 40
