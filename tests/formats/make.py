"""Make the tiny run that shows how a released format looks: `python tests/formats/make.py SET`, in the checkout.

It is made once, when a format is released, and never again: the files beside this one were written by the `gpt` of
their time. test_formats.py loads, evaluates, samples and resumes each of them, and compares with `expected.json`.
SET is the number of a folder that is not there yet; make_2.py made the second, of other kinds of runs.
"""

import json
import os
import shutil
import sys
from pathlib import Path

from gpt_cli.cli.main import main
from gpt_cli.run.checkpoint import FORMAT
from gpt_cli.run.log import read_metrics

HERE = Path(__file__).parent
TEXT = "one two three four five six seven eight nine ten.\n" * 30
CONFIG = """\
run_dir: run
data: {source: text.txt}
model: {n_layer: 1, n_head: 2, n_embd: 16, context_length: 16}
optim: {name: muon, lr: 0.02, ema: 0.9}
train: {steps: 300, batch_size: 8}
schedule: {kind: constant, warmup_steps: 5}
eval: {every: 50}
checkpoint: {every: 50, keep: 1}
sample: {every: null}
log: {every: 25}
runtime: {device: cpu, precision: fp32, threads: 1}
"""
PROMPT, TOKENS, STEPS, FURTHER = "one t", 60, 300, 10


def continuation(run: Path) -> str:
    """What the run writes after PROMPT, always taking the likeliest token."""
    import gpt_cli

    chunks = gpt_cli.load(run, device="cpu").generate(PROMPT, max_new_tokens=TOKENS, temperature=0.0)
    return "".join(chunks)


def last_val_loss(run: Path) -> float:
    """The last validation loss that the run has measured."""
    return [line["val_loss"] for line in read_metrics(run) if "val_loss" in line][-1]


def kept_formats() -> set[int]:
    """The formats of the checkpoints that are kept."""
    return {json.loads(path.read_text())["format"] for path in HERE.glob("*/**/state.json")}


def make(folder: Path) -> None:
    """Train the run in `folder`, and write what it says and how it goes on to expected.json."""
    folder.mkdir()
    os.chdir(folder)
    Path("text.txt").write_text(TEXT)
    Path("config.yaml").write_text(CONFIG)
    assert main(["train", "--config", "config.yaml"]) == 0
    expected = {"format": FORMAT, "val_loss": last_val_loss(Path("run")), "text": continuation(Path("run"))}
    shutil.copytree("run", "further")
    steps = STEPS + FURTHER
    assert main(["train", "--config", "config.yaml", "run_dir=further", f"train.steps={steps}"]) == 0
    expected["val_loss_further"] = last_val_loss(Path("further"))
    shutil.rmtree("further")
    Path("run/lock").unlink()  # it names the machine
    Path("expected.json").write_text(json.dumps(expected, indent=2) + "\n")


if __name__ == "__main__":
    folder = HERE / sys.argv[1]
    if folder.exists():
        raise FileExistsError(folder)
    assert FORMAT not in kept_formats(), f"format {FORMAT} is kept already"
    make(folder)
