"""Two hosts, two network namespaces joined by a cable, train what one process trains; the cable may be cut."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpt_cli.config import dump_config
from gpt_cli.files import read_sums
from gpt_cli.run.checkpoint import list_checkpoints
from tests.support.tiny_run import make_config, run, timeless, weights
from tests.support.torchrun import SHARDED, SMALL, worker_env
from tests.support.waiting import HANG, wait_until

ADDRESSES = ("10.77.0.1", "10.77.0.2")
EVERY = ("checkpoint.every=2", "eval.every=2", "schedule.kind=constant", *SHARDED)


@dataclass(frozen=True)
class Hosts:
    """The names of two network namespaces, in each of which `cable` leads to the other."""

    names: tuple[str, str]

    def run(self, host: int, *command: str) -> None:
        ip("netns", "exec", self.names[host], *command)

    def start(self, host: int, config: Path) -> "subprocess.Popen[str]":
        """`torchrun --nnodes=2 ... -m gpt_cli train` on one of them."""
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
        torchrun += [f"--node-rank={host}", f"--master-addr={ADDRESSES[0]}", "--master-port=29400"]
        torchrun += ["--log-dir", str(config.parent / f"logs{host}")]
        command = [*torchrun, "-m", "gpt_cli", "train", "--config", str(config)]
        return subprocess.Popen(
            [IP, "netns", "exec", self.names[host], *command],
            env=worker_env(GLOO_SOCKET_IFNAME="cable"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


IP = shutil.which("ip") or ""


def ip(*arguments: str) -> None:
    completed = subprocess.run([IP, *arguments], capture_output=True, text=True, check=False)
    if completed.returncode:
        raise OSError(completed.stderr.strip())


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Two hosts; skips where they cannot be had."""
    if not IP:
        pytest.skip("there is no `ip` (iproute2)")
    names = (f"gpt-a{os.getpid()}", f"gpt-b{os.getpid()}")
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
            actual = Hosts(names)
            for host, address in enumerate(ADDRESSES):
                actual.run(host, IP, "address", "add", f"{address}/24", "dev", "cable")
                for link in ("cable", "lo"):
                    actual.run(host, IP, "link", "set", link, "up")
        except OSError as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        yield actual
    finally:
        for name in names:
            with suppress(OSError):
                ip("netns", "delete", name)


def errors(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("error:")]


@pytest.mark.robust
def test_two_hosts_train_what_one_process_trains(tmp_path: Path, hosts: Hosts) -> None:
    (tmp_path / "run.yaml").write_text(dump_config(make_config(tmp_path, *SMALL, *EVERY)))
    processes = [hosts.start(host, tmp_path / "run.yaml") for host in (0, 1)]
    messages = [process.communicate(timeout=HANG)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], messages
    alone = run(make_config(tmp_path, *SMALL, *EVERY, name="alone"))
    sums = read_sums(list_checkpoints(tmp_path / "run")[0])
    assert {key: sums[key] for key in weights(alone)} == weights(alone)
    assert timeless(str(tmp_path / "run")) == timeless(alone.run_dir)


@pytest.mark.slow
@pytest.mark.robust
def test_a_host_that_vanishes_ends_the_other_with_one_error_and_the_run_goes_on(
    tmp_path: Path, hosts: Hosts, record_property: Callable[[str, object], None]
) -> None:
    endless = ("train.steps=1000000", "parallel.timeout_minutes=1", *EVERY)
    (tmp_path / "run.yaml").write_text(dump_config(make_config(tmp_path, *SMALL, *endless)))
    processes = [hosts.start(host, tmp_path / "run.yaml") for host in (0, 1)]
    try:
        wait_until(lambda: len(list_checkpoints(tmp_path / "run")) > 1, processes[0])
        hosts.run(1, IP, "link", "set", "cable", "down")
        record_property("faults", 1)
        messages = [process.communicate(timeout=HANG)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    print(*messages, sep="\n")
    for rank, text in enumerate(messages):
        assert len(errors(text)) == 1, text
        assert "lost another of the 2 processes" in errors(text)[0], rank
    assert all(process.returncode for process in processes)
    saved = int(list_checkpoints(tmp_path / "run")[0].name.partition("-")[2])
    steps = (f"train.steps={saved + 4}", *EVERY)
    resumed = run(make_config(tmp_path, *SMALL, *steps))
    assert weights(resumed) == weights(run(make_config(tmp_path, *SMALL, *steps, name="alone")))
