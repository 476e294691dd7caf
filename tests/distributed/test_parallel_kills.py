"""Kill any of the processes that train together, or what launched them: nothing that was saved is lost."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest

from gpt_cli.files import list_directory
from gpt_cli.run.checkpoint import list_checkpoints
from gpt_cli.run.log import read_events, read_metrics
from tests.support.tiny_run import make_config, run, timeless, weights
from tests.support.torchrun import SMALL, start, workers
from tests.support.waiting import HANG, wait_until

KILLS = 20
EVERY = ("checkpoint.every=2", "eval.every=2", "log.every=1", "schedule.kind=constant")


def state(pid: int) -> str:
    """R, S, T (stopped) or Z (ended), as in /proc; Z where there is nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def ranked_pids(launcher: "Popen[str]") -> list[int]:
    """The two processes, the one of rank 0 first; [] before they are there."""
    actual = {}
    for pid in workers(launcher):
        facts = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        actual.update({int(fact[5:]): pid for fact in facts if fact.startswith(b"RANK=")})
    return [actual[rank] for rank in sorted(actual)] if len(actual) == 2 else []


def held_in_save(saver: int, run_dir: Path, before: set[str]) -> bool:
    """True if process `saver` stands still in the middle of a save."""
    if unfinished(run_dir) <= before:
        return False
    os.kill(saver, signal.SIGSTOP)
    wait_until(lambda: state(saver) in "TZ")
    if not unfinished(run_dir) <= before:
        return True
    os.kill(saver, signal.SIGCONT)
    return False


def unfinished(run_dir: Path) -> set[str]:
    return {name for name in list_directory(run_dir / "checkpoints") if name.startswith(".tmp-")}


def starts(run_dir: Path) -> int:
    return sum(event["event"] == "started" for event in read_events(run_dir))


def kill_one(folder: Path, moment: str, victim: int, steps: int, shard: str) -> str:
    """Train until `moment`, kill rank `victim` (2: the launcher), wait for all to end; what was said."""
    run_dir = folder / "run"
    before, leftover, lines = starts(run_dir), unfinished(run_dir), len(read_metrics(run_dir))
    process = start(folder, *EVERY, f"parallel.shard={shard}")
    wait_until(lambda: ranked_pids(process), process)
    ranks = ranked_pids(process)
    if moment != "start":
        wait_until(lambda: starts(run_dir) > before, process)
        lines = len(read_metrics(run_dir))
    if moment == "save":
        wait_until(lambda: held_in_save(ranks[0], run_dir, leftover), process)
    elif moment == "step":
        wait_until(lambda: len(read_metrics(run_dir)) >= lines + steps, process)
    os.kill([*ranks, process.pid][victim], signal.SIGKILL)
    if moment == "save" and victim != 0:
        os.kill(ranks[0], signal.SIGCONT)
    _, stderr = process.communicate(timeout=HANG)
    wait_until(lambda: all(state(pid) == "Z" for pid in ranks))
    return stderr


@pytest.mark.slow
@pytest.mark.robust
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are found in /proc")
def test_processes_killed_20_times_end_with_the_bits_of_one_that_was_left_alone(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    dice = random.Random(7)
    record_property("faults", KILLS)
    moments = ["save"] * 7 + ["start"] * 3 + ["step"] * (KILLS - 10)
    dice.shuffle(moments)
    steps = [0]
    for kill, moment in enumerate(moments):
        output = kill_one(tmp_path, moment, kill % 3, dice.randrange(12), dice.choice(["none", "optimizer"]))
        errors = [line for line in output.splitlines() if line.startswith("error:")]
        assert len(errors) <= 1, output
        assert "Traceback" not in output
        assert "damaged" not in output
        steps += [int(path.name.partition("-")[2]) for path in list_checkpoints(tmp_path / "run")[:1]]
        assert steps[-1] >= max(steps), "a saved step was lost"
    assert steps[-1] > 0
    steps_in_all = (f"train.steps={steps[-1] + 4}", *EVERY)
    resumed = run(make_config(tmp_path, *SMALL, *steps_in_all))
    alone = run(make_config(tmp_path, *SMALL, *steps_in_all, name="alone"))
    assert weights(resumed) == weights(alone)
    assert timeless(resumed.run_dir) == timeless(alone.run_dir)
