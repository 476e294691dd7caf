"""Check and measure training on a GPU, in one command of at most 8 minutes: `python -m bench.gpu --text FILE`.

In order: gradients against fp32 on the CPU; GPT-2 124M's training tokens/s, where its step goes, and its update as
written and compiled; the ways to compute a step of a character model, measured: attention, loss and gradients, update,
the whole step as one CUDA graph; its sampling; GPT-2 124M decoding one text in bf16: step by step, by replays of a CUDA
graph, and by replays of a compiled step; tiny Shakespeare (FILE) trained to nanoGPT's published 1.4697. A record
goes to bench/out/gpu.json; exit code 1 where there is no CUDA device, or the gradients are wrong. `--cpu-smoke` goes
the same way at a tiny size on the CPU.

No figure of a GPU has been measured with it yet.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpt_cli.bench.measure import bench, render_bench
from gpt_cli.config import Config, parse_config
from gpt_cli.model.gpt import GPT
from gpt_cli.runtime.device import Runtime, open_runtime, wait_for
from gpt_cli.sampling.generate import generate
from gpt_cli.sampling.replayed import CHUNK, Replayed, can_record
from gpt_cli.sampling.settings import Sampling
from gpt_cli.training.batches import Batches
from gpt_cli.training.quickest import measure_update, take_quickest
from gpt_cli.training.state import TrainingState
from gpt_cli.training.update import COMPILER

ROOT = Path(__file__).resolve().parents[1]
TOKENS_PER_SECOND_AIM, SECONDS_TO_LOSS_AIM, LOSS = 600_000, 10.0, 1.4697
DECODED_PER_SECOND_AIM = 8_000
MOST_ERROR = {"fp32": 1e-3, "bf16": 0.05, "fp16": 0.05}  # of a gradient, relative to its norm
GPT2 = (
    *("tokenizer.kind=bpe", "tokenizer.vocab_size=50257", "model.n_layer=12", "model.n_head=12", "model.n_embd=768"),
    *("model.context_length=1024", "model.position=learned", "model.norm=layernorm", "model.mlp=gelu"),
    *("model.qk_norm=false", "model.tie_embeddings=true", "optim.name=adamw", "optim.lr=6e-4", "runtime.compile=true"),
    *("runtime.deterministic=false", "runtime.measure=true"),
)
CHARACTERS = (
    *("model.n_layer=6", "model.n_head=6", "model.n_embd=384", "model.context_length=256", "model.dropout=0.2"),
    *("train.batch_size=64", "train.steps=1500", "eval.every=50", "sample.every=null", "checkpoint.every=null"),
)
TINY = ("model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.context_length=32")


@dataclass(frozen=True)
class Size:
    """What is measured: the whole, or as much as tries the way."""

    device: str
    gpt2: Sequence[str]
    batches: Sequence[int]
    seconds: float
    characters: Sequence[str]
    new_tokens: int
    samples: Sequence[int]
    compiler: str
    decoded: tuple[int, int]  # tokens of the prompt, tokens that are written


WHOLE = Size("cuda", GPT2, (16, 32, 64), 10.0, CHARACTERS, 512, (1, 256), COMPILER, (520, 480))
SMOKE = Size(
    "cpu",
    ("tokenizer.kind=bpe", "tokenizer.vocab_size=300", *TINY),
    (2, 4),
    0.2,
    (*TINY, "train.batch_size=4", "train.steps=6", "eval.every=3", "sample.every=null"),
    16,
    (1, 2),
    "eager",
    (4, 40),
)


def gradient_error(device: str) -> dict[str, Any]:
    """The largest relative error of a parameter's gradient on `device` against fp32 on the CPU, all else equal."""
    overrides = ["model.zero_init=false", "model.n_embd=64", "model.context_length=64", "train.batch_size=4"]
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randint(300, (2, 4, 64), generator=generator)
    found: list[dict[str, torch.Tensor]] = []
    precision = ""
    for runtime_overrides in (["runtime.device=cpu", "runtime.precision=fp32"], [f"runtime.device={device}"]):
        config = parse_config("", "bench", [*overrides, *runtime_overrides])
        runtime = open_runtime(config.runtime)
        state = TrainingState.fresh(config, 300, runtime, print)
        with runtime.autocast():
            loss = state.loss(inputs.to(runtime.device), targets.to(runtime.device))
        loss.backward()
        gradients = {n: p.grad.float().cpu() for n, p in state.model.named_parameters() if p.grad is not None}
        found.append({"loss": loss.detach().float().cpu(), **gradients})
        precision = runtime.precision
    exact, here = found
    errors = {name: float((here[name] - exact[name]).norm() / exact[name].norm()) for name in exact}
    worst = max(errors, key=errors.__getitem__)
    right = exact.keys() == here.keys() and errors[worst] <= MOST_ERROR[precision]
    return {"precision": precision, "worst": worst, "relative_error": errors[worst], "right": right}


def training_speed(size: Size) -> dict[str, Any]:
    """`gpt bench` of the GPT-2 shape at a few batch sizes; the quickest one whole."""
    best = None
    for batch_size in size.batches:
        overrides = [*size.gpt2, f"train.batch_size={batch_size}", f"runtime.device={size.device}"]
        try:
            figures = bench(parse_config("", "bench", overrides), print, size.seconds)
        except torch.OutOfMemoryError:
            break
        if best is None or figures.tokens_per_second > best.tokens_per_second:
            best = figures
    assert best is not None, "the smallest batch does not fit"
    print(render_bench(best))
    return best.to_json()


def update_speed(size: Size) -> dict[str, Any]:
    """Milliseconds of an update (clipping, optimizer) of the GPT-2 shape: as written, and compiled; or why not."""
    config = parse_config("", "bench", [*size.gpt2, f"runtime.device={size.device}", "runtime.engine=torch"])
    runtime = open_runtime(config.runtime)
    state = TrainingState.fresh(config, config.tokenizer.vocab_size, runtime, print)
    found = measure_update(state, config, runtime, size.compiler)
    print(f"update: {found.describe()}", flush=True)
    return {launch: 1e3 * seconds for launch, seconds in found.seconds.items()} | found.dropped


def ways(size: Size) -> list[str]:
    """What a long run of the character model would measure and choose: attention's kernels, the launch of a step."""
    overrides = [*size.characters, "train.steps=1000000", "runtime.deterministic=false", "runtime.measure=true"]
    config = parse_config("", "bench", [*overrides, f"runtime.device={size.device}"])
    runtime = open_runtime(config.runtime)
    tokens = torch.randint(65, (100_000,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    lines: list[str] = []
    state = TrainingState.fresh(config, 65, runtime, lines.append)
    take_quickest(state, Batches.of(config, tokens.to(runtime.device)), config, 0, runtime, lines.append)
    print("\n".join(lines), flush=True)
    return lines


def sampling_speed(size: Size) -> dict[str, float]:
    """Tokens/s of decoding with the character model's shape, by number of samples."""
    config = parse_config("", "bench", [*size.characters, f"runtime.device={size.device}"])
    runtime = open_runtime(config.runtime)
    return {str(n): _decode(config, runtime, n, size.new_tokens) for n in size.samples}


def _decode(config: Config, runtime: Runtime, samples: int, new_tokens: int) -> float:
    model = TrainingState.fresh(config, 65, runtime, print).model.eval()
    sampling = Sampling(temperature=0.8, top_k=None, top_p=None, min_p=None, seed=1, max_new_tokens=new_tokens)
    for _ in range(2):  # the first time also allocates
        wait_for(runtime.device)
        started = time.perf_counter()
        for _tokens in generate(model, [[0]] * samples, sampling):
            pass
        wait_for(runtime.device)
    return samples * new_tokens / (time.perf_counter() - started)


def decode_speed(size: Size) -> dict[str, float | str]:
    """Tokens/s of the GPT-2 shape decoding one text in bf16, by how its steps are launched; or why they are not.

    All tokens see between 512 and 1,024 others, so that one step is recorded and, in the end, compiled.
    """
    config = parse_config("", "bench", [*size.gpt2, f"runtime.device={size.device}"])
    runtime = open_runtime(config.runtime)
    model = GPT(config.model, config.tokenizer.vocab_size).to(runtime.device).bfloat16().eval()
    n_prompt, n_written = size.decoded
    prompt = [token % 50 for token in range(n_prompt)]
    sampling = Sampling(temperature=0.8, top_k=None, top_p=None, min_p=None, seed=1, max_new_tokens=n_written)
    found: dict[str, float | str] = {}
    for name in ("plain", "recorded", "compiled and recorded"):
        why: list[str] = []
        replayed = None if name == "plain" else Replayed(why.append, compiling=name != "recorded")
        if replayed is not None and not can_record(runtime.device):
            found[name] = "CUDA graphs are for CUDA"
            continue
        seconds = min(_seconds_per_token(model, prompt, sampling, replayed) for _ in range(3))
        found[name] = why[0] if why else 1.0 / seconds
    return found


def _seconds_per_token(model: GPT, prompt: list[int], sampling: Sampling, replayed: Replayed | None) -> float:
    """Of the second half of a text, behind all that is recorded; up to a chunk of it was under way before."""
    half = sampling.max_new_tokens // 2
    for written, _tokens in enumerate(generate(model, [prompt], sampling, replayed=replayed), start=1):
        if written == half:
            started = time.perf_counter()
    return (time.perf_counter() - started) / (half if replayed is None else half - CHUNK)


def time_to_loss(size: Size, text: Path) -> dict[str, Any]:
    """A whole `gpt train` of the character model until LOSS: seconds of training, and of the process."""
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as directory:
        Path(directory, "bench.yaml").write_text("run_dir: run\n")
        overrides = [*size.characters, f"data.source={text}", f"train.until_loss={LOSS}"]
        command = [sys.executable, "-m", "gpt_cli", "train", "--config", "bench.yaml", *overrides]
        started = time.perf_counter()
        done = subprocess.run(
            [*command, f"runtime.device={size.device}", "--json"],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"gpt train failed with exit code {done.returncode}")
        summary = json.loads(done.stdout)
    kept = ("steps", "best_val_loss", "train_seconds", "tokens_per_second", "parameters", "stopped")
    reached = summary["best_val_loss"] <= LOSS
    return {name: summary[name] for name in kept} | {
        "process_seconds": time.perf_counter() - started,
        "reached": reached,
    }


def main() -> None:
    """Measure, print, and keep the record."""
    parser = argparse.ArgumentParser(description="Check and measure training on a GPU.")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="tiny Shakespeare")
    parser.add_argument("--cpu-smoke", action="store_true", help="the same at a tiny size on the CPU")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "gpu.json", metavar="FILE")
    arguments = parser.parse_args()
    if not arguments.cpu_smoke and not torch.cuda.is_available():
        sys.exit("there is no CUDA device here; --cpu-smoke tries this command at a tiny size on the CPU")
    size, started = SMOKE if arguments.cpu_smoke else WHOLE, time.perf_counter()
    record: dict[str, Any] = {
        "device": "cpu, a trial" if arguments.cpu_smoke else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "gradients": gradient_error(size.device),
    }
    print(f"gradients: {record['gradients']}", flush=True)
    record["gpt2_124m"] = training_speed(size)
    record["gpt2_124m_update_ms"] = update_speed(size)
    record["ways"] = ways(size)
    record["sampling_tokens_per_second"] = sampling_speed(size)
    record["decoding_tokens_per_second"] = decode_speed(size)
    record["tiny_shakespeare"] = time_to_loss(size, arguments.text.resolve())
    record["seconds"] = round(time.perf_counter() - started, 1)
    speed, learned = record["gpt2_124m"]["tokens_per_second"], record["tiny_shakespeare"]
    print(f"GPT-2 124M: {speed:,.0f} tokens/s; the aim on an H200 is {TOKENS_PER_SECOND_AIM:,}")
    print(f"sampling: {record['sampling_tokens_per_second']} tokens/s by number of samples")
    decoded = {way: s if isinstance(s, str) else round(s) for way, s in record["decoding_tokens_per_second"].items()}
    print(f"decode 124M, batch 1, bf16: {decoded} tokens/s; the aim on an H200 is {DECODED_PER_SECOND_AIM:,}")
    print(f"to {LOSS}: {learned}; the aim on an H200 is {SECONDS_TO_LOSS_AIM:g} s of training")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(not record["gradients"]["right"])


if __name__ == "__main__":
    main()
