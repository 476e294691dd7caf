"""A training that takes a moment, and what it leaves."""

import os
import signal
from pathlib import Path

import pytest

from gpt_cli.config import Config, parse_config
from gpt_cli.files import read_sums
from gpt_cli.run.log import read_metrics
from gpt_cli.training import loop
from gpt_cli.training.console import Console
from gpt_cli.training.loop import train
from gpt_cli.training.step import train_step
from gpt_cli.training.summary import Summary

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom.\n" * 40


def make_config(tmp_path: Path, *overrides: str, name: str = "run") -> Config:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    base = f"""
run_dir: {tmp_path / name}
data: {{source: {text}}}
model: {{n_layer: 1, n_head: 2, n_embd: 16, context_length: 16}}
schedule: {{warmup_steps: 2}}
train: {{steps: 12, batch_size: 4}}
eval: {{every: 4}}
checkpoint: {{every: 4}}
sample: {{every: 6, max_new_tokens: 20}}
log: {{every: 1}}
runtime: {{device: cpu, threads: 1}}
"""
    return parse_config(base, "test.yaml", overrides)


def run(config: Config) -> Summary:
    return train(config, Console(print))


def weights(summary: Summary) -> dict[str, str]:
    """sha256 of the weights and of the optimizer's state at the end."""
    sums = read_sums(Path(summary.checkpoint))
    return {name: sums[name] for name in ("model.safetensors", "optimizer.safetensors")}


def timeless(run_dir: str) -> list[dict[str, float]]:
    return [{k: v for k, v in line.items() if k != "time"} for line in read_metrics(Path(run_dir))]


def samples(run_dir: str) -> list[str]:
    return (Path(run_dir) / "samples.jsonl").read_text().splitlines()


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int, number: int = signal.SIGTERM) -> None:
    """Deliver a signal while update `step` is computed, once."""
    original = train_step
    sent_signals = []

    def step_with_signal(*arguments, **options):
        if arguments[3] == step and not sent_signals:
            sent_signals.append(True)
            os.kill(os.getpid(), number)
        return original(*arguments, **options)

    monkeypatch.setattr(loop, "train_step", step_with_signal)
