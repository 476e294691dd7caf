"""Make the second set of kept runs, the kinds that the first lacks: `python tests/formats/make_2.py`, in a checkout.

The set was written by commit bd5638bd (version 0.2.0), in a checkout at /gpt because run.json records the directory.
It is never made again. tests/run/test_kept_runs.py evaluates, samples and resumes each run, and compares the results
with `expected.json`.
"""

import io
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import gpt_cli
from gpt_cli.cli.main import main
from tests.formats.make import last_val_loss

FOLDER = Path(__file__).parent / "2"
VERSION = "0.2.0"
FURTHER = 10  # steps that a run is resumed for
STEPS_ANEW = 20  # steps of a new run on the kept token store
TOKENS = 30
WORDS = "one two three four five six seven eight nine ten"
BASE = """\
data: {source: text.txt}
model: {n_layer: 1, n_head: 1, n_embd: 8, context_length: 16, mlp_ratio: 1, tie_embeddings: true}
optim: {name: muon, lr: 0.02, adamw_lr: 0.02}
train: {steps: 600, batch_size: 8}
schedule: {kind: constant, warmup_steps: 5}
eval: {every: null}
checkpoint: {every: null, keep: 1}
sample: {every: null}
log: {every: 1000}
runtime: {device: cpu, precision: fp32, threads: 1}
"""
PAIRS = ("data.format=pairs", "data.source=pairs.jsonl", "data.val_fraction=0.2", "train.steps=40")
ONE_T = "eight nine ten.\none t"
# name -> (overrides of BASE, prompt)
RUNS: dict[str, tuple[tuple[str, ...], str]] = {
    "bpe": (("tokenizer.kind=bpe", "tokenizer.vocab_size=270", "train.steps=150", "optim.name=adamw"), ONE_T),
    "pairs": (PAIRS, "abd"),
    "chat": (
        (
            "data.format=chat",
            "data.source=chat.jsonl",
            "data.val_fraction=0.2",
            "model.context_length=48",
            "train.steps=300",
            "optim.name=adamw",
        ),
        "d",
    ),
    "ema": (("optim.ema=0.9",), ONE_T),
    "lora": (
        ("data.source=other.txt", "train.init_from=ema", "lora.rank=4", "lora.targets=[qkv, out, up, down]"),
        "three two one.\nten n",
    ),
    "post-norm": (("model.norm_position=post",), ONE_T),
    "sharded": (("parallel.shard=optimizer",), ONE_T),
    "stored": (("data.source=store", "optim.name=adamw"), ONE_T),
    "packed": ((*PAIRS, "data.packing=true"), "abd"),
    "typical": (("sample.typical_p=0.9", "optim.name=adamw"), ONE_T),
}
CLASSES = ("task.kind=classes", "data.source=labelled.jsonl", "data.val_fraction=0.2", "train.steps=30")
TO_CLASSIFY = "abd"
ONE_FILE = "one.safetensors"
PLAIN = ("ema/config.yaml", "optim.ema=null")
SWEEP = ("sweep", *PLAIN, "optim.lr=0.01,0.02", "train.steps=20", "--seeds", "2", "--out", "sweep")
LADDER = ("optim.lr=0.005", "optim.adamw_lr=0.005", "schedule.kind=linear", "model.n_embd=28", "train.batch_size=32")
SCALE = ("scale", *PLAIN, *LADDER, "--budget", "40s", "--out", "scale")
# Locks name the machine. `gpt` writes reports and pictures again, and `gpt scale` reads no weights of finished runs:
# state.json is all that is kept of their checkpoints.
NOT_KEPT = ("**/lock", "sweep/*.html", "sweep/*.png", "scale/*.png", "scale/*/checkpoints/*/[!s]*")


def write_texts() -> None:
    """Write what the runs learn from to the current directory."""
    Path("text.txt").write_text(f"{WORDS}.\n" * 30)
    Path("other.txt").write_text(f"{' '.join(reversed(WORDS.split()))}.\n" * 30)
    words = ["".join(letters) for letters in itertools.product("abcd", repeat=3)]
    chats = list(itertools.product("abcdefgh", repeat=2))[::3]
    _write_lines("pairs.jsonl", ({"prompt": word, "completion": word[-1] * 3} for word in words))
    _write_lines("chat.jsonl", ({"messages": [*_turn(first), *_turn(second)]} for first, second in chats))
    _write_lines("labelled.jsonl", ({"text": word, "label": _label(word)} for word in words))


def _turn(letter: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": letter}, {"role": "assistant", "content": letter * 3}]


def _label(word: str) -> str:
    return "early" if sum(letter in "ab" for letter in word) > 1 else "late"


def _write_lines(name: str, records: Iterator[Any]) -> None:
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records))


def gpt(*arguments: str) -> str:
    """Run `gpt` in this process and return what it printed."""
    with redirect_stdout(io.StringIO()) as printed:
        assert main(list(arguments)) == 0, arguments
    return printed.getvalue()


def evaluated(run: str) -> dict[str, Any]:
    """Return the figures that `gpt eval` prints for the run."""
    figures: dict[str, Any] = json.loads(gpt("eval", "--run", run, "--no-completions", "--json", "--device", "cpu"))
    return figures


def greedy(run: str, prompt: str, **options: Any) -> str:
    """Return the text with which the run continues `prompt` greedily."""
    sampler = gpt_cli.load(run, device="cpu", **options)
    return str(sampler.generate(prompt, max_new_tokens=TOKENS, temperature=0.0))


def robust_greedy(run: str, prompt: str) -> str:
    """Return `greedy`, which must not depend on rounding: engines and precisions agree."""
    rounded = [{"engine": "torch"}] if run == "typical" else [{"engine": "torch"}, {"weights": "bf16"}]
    texts = {greedy(run, prompt, **options) for options in [{}, *rounded]}
    assert len(texts) == 1, (run, texts)
    return texts.pop()


def resumed(run: str) -> dict[str, Any]:
    """Return the step FURTHER after the run's last one, and the validation loss of a copy resumed up to it."""
    shutil.copytree(run, "further")
    steps = json.loads(next(Path(run).glob("checkpoints/*/state.json")).read_text())["step"] + FURTHER
    gpt("train", "--config", f"{run}/config.yaml", "run_dir=further", f"train.steps={steps}")
    loss = last_val_loss(Path("further"))
    shutil.rmtree("further")
    return {"steps_further": steps, "loss_further": loss}


def make() -> dict[str, Any]:
    """Make all of the set in the current directory, and return what is expected of it."""
    write_texts()
    Path("base.yaml").write_text(BASE)
    gpt("tokenize", "text.txt", "--out", "store")
    expected: dict[str, Any] = {"runs": {}}
    for name, (overrides, prompt) in RUNS.items():
        devices = ("--devices", "2") if name == "sharded" else ()
        gpt("train", "--config", "base.yaml", f"run_dir={name}", *overrides, *devices)
        expected["runs"][name] = {
            "loss": evaluated(name)["loss"],
            "prompt": prompt,
            "text": robust_greedy(name, prompt),
            **resumed(name),
        }
    gpt("train", "--config", "base.yaml", "run_dir=classes", *CLASSES)
    (verdict,) = gpt_cli.load_classifier("classes", device="cpu").classify([TO_CLASSIFY])
    expected["classes"] = {
        "accuracy": evaluated("classes")["accuracy"],
        "text": TO_CLASSIFY,
        "label": verdict.label,
        "probability": verdict.probabilities[verdict.label],
        **resumed("classes"),
    }
    gpt("export", "ema", "--to", "checkpoint", ONE_FILE)
    gpt("train", "--config", "stored/config.yaml", "run_dir=anew", f"train.steps={STEPS_ANEW}")
    expected["loss_anew"] = last_val_loss(Path("anew"))
    shutil.rmtree("anew")
    settings = json.loads(gpt(*SWEEP, "--json"))["settings"]
    expected["sweep"] = [{"values": setting["values"], "losses": setting["losses"]} for setting in settings]
    points = json.loads(gpt(*SCALE, "--json"))["points"]
    expected["scale"] = {point["name"]: {"loss": point["loss"], "fitted": point["fitted"]} for point in points}
    return expected


if __name__ == "__main__":
    if FOLDER.exists():
        raise FileExistsError(FOLDER)
    assert gpt_cli.__version__ == VERSION, f"version {VERSION} wrote this set"
    FOLDER.mkdir()
    os.chdir(FOLDER)
    expected = make()
    for path in [path for pattern in NOT_KEPT for path in Path().glob(pattern)]:
        path.unlink()
    Path("expected.json").write_text(json.dumps(expected, indent=2) + "\n")
