"""Training by two processes ends with the bits of training by one."""

import subprocess
import sys
from pathlib import Path

from gpt_cli.config import Config, dump_config
from gpt_cli.errors import UserError
from gpt_cli.files import read_sums
from gpt_cli.run.checkpoint import MODEL, list_checkpoints
from gpt_cli.selftest.check import Check
from gpt_cli.selftest.kills import environment, run_quietly, with_steps

_STEPS = 10


def check_processes(folder: Path, config: Config) -> Check:
    """Train `config` for a few steps by one process and by two that `--devices 2` starts."""
    file = folder / "together.yaml"
    file.write_text(dump_config(with_steps(config, folder / "together", _STEPS)))
    command = [sys.executable, "-m", "gpt_cli", "train", "--config", str(file), "--devices", "2"]
    done = subprocess.run(
        command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UserError(f"two processes did not train: {done.stderr.strip()[-500:]}")
    alone = run_quietly(with_steps(config, folder / "alone", _STEPS)).weights_sha256
    together = read_sums(list_checkpoints(folder / "together")[0])[MODEL]
    return Check("processes", alone == together, f"{_STEPS} steps by one and by two: weights sha256 {alone[:16]}")
