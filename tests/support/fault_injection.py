"""Trainings that are disturbed, and what is left of them to compare."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpt_cli.run.log import read_metrics
from tests.support.command import subprocess_env
from tests.support.tiny_run import TEXT

CONFIG = """
data: {{source: text.txt}}
tokenizer: {tokenizer}
model: {{n_layer: 1, n_head: 2, n_embd: 16, context_length: 16, dropout: {dropout}}}
optim: {optim}
schedule: {{kind: constant, warmup_steps: 2}}
train: {{batch_size: 6, micro_batch_size: {micro_batch_size}}}
eval: {{every: 4}}
checkpoint: {{every: 4, keep: 2}}
sample: {{every: 8, max_new_tokens: 5}}
log: {{every: 1}}
runtime: {{device: cpu, threads: 1, precision: {precision}, compile: {compile}}}
"""
DEFAULTS = {
    "tokenizer": "{kind: char}", "dropout": 0.1, "optim": "{name: muon}", "micro_batch_size": 2, "precision": "fp32",
    "compile": "false",
}  # fmt: skip


def disturbed(folder: Path, script: str, *arguments: int, **choices: Any) -> dict[str, Any]:
    """Train in `folder` as `script` disturbs it, and undisturbed; how that went."""
    (folder / "text.txt").write_text(TEXT)
    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", f"tests.support.{script}", *map(str, arguments)],
        input=CONFIG.format(**{**DEFAULTS, **choices}),
        cwd=folder,
        env=subprocess_env(OMP_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    log = (folder / "trainers.log").read_text()
    assert completed.returncode == 0, completed.stderr + log[-3000:]
    assert "error:" not in log
    assert "damaged" not in log
    result: dict[str, Any] = json.loads(completed.stdout)
    return result


def remains(run: Path) -> dict[str, str]:
    """sha256 of the weights and optimizers that are kept, and of the metrics and samples without the time."""
    metrics = [{key: value for key, value in line.items() if key != "time"} for line in read_metrics(run)]
    texts = {"metrics": json.dumps(metrics).encode(), "samples": (run / "samples.jsonl").read_bytes()}
    for path in sorted((run / "checkpoints").iterdir()):
        for name in ("model.safetensors", "optimizer.safetensors"):
            texts[f"{path.name}/{name}"] = (path / name).read_bytes()
    return {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
