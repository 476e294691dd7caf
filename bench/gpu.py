"""Check and measure a GPU in at most ten minutes: `python -m bench.gpu --text FILE`.

The parts, in this order: the tests that need a GPU; training of GPT-2 124M, compiled and eager, deterministic or not
(tokens/s, MFU, peak memory, time by kernel), and its decoding; the 10.65M character model on tiny Shakespeare (FILE),
trained to nanoGPT's published 1.4697 and to its end, and its decoding; a cold start.

Each part is a process with a time limit. Each figure is printed and appended to `--out` (JSON lines) at once, and the
summary beside it is rewritten after each part. A part that fails or takes too long is reported, and the next one runs;
exit code 1 if one did. `--only PART` (a prefix, repeatable) leaves out the others; `--quick` runs them at a tiny size,
on any device. docs/howto/gpu.md has the figures.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.common import OUT, ROOT, environment, gpt, printed, run
from bench.training import start_seconds

LOSS = 1.4697
AIMS = {  # on one H200: figure -> part, aim
    "tokens_per_second": ("gpt2 compiled", 600_000),
    "seconds_to_loss": ("shakespeare", 10),
    "graph_1": ("gpt2 decode", 8_000),
}
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}  # FLOP/s of dense bf16
QUICK = (
    *("model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.context_length=64"),
    *("train.batch_size=4", "train.micro_batch_size=2", "schedule.warmup_steps=0"),
)


@dataclass(frozen=True)
class Setup:
    """The arguments of every part."""

    device: str
    quick: bool
    text: Path
    work: Path  # a folder for the whole command; compilers keep their caches there, so the first compilation is cold
    save: Callable[..., None]  # prints and saves figures by name

    def overrides(self, *changes: str) -> list[str]:
        """Return `changes` to a config, those of the device, and those of the size if quick."""
        return [f"runtime.device={self.device}", *changes, *(QUICK if self.quick else ())]

    def config(self, name: str, *changes: str) -> Any:
        """Return a shipped config with `changes`."""
        from gpt_cli.config import parse_config

        return parse_config((ROOT / "configs" / name).read_text(), name, self.overrides(*changes))

    def gpt2(self, *changes: str) -> Any:
        """Return gpt2_124m.yaml with micro-batches that fill a GPU, four of them a step."""
        changes = ("train.batch_size=256", "train.micro_batch_size=64", *changes)
        return self.config("gpt2_124m.yaml", *changes, *["tokenizer.vocab_size=300"] * self.quick)


def tests(setup: Setup) -> None:
    """Run `pytest -m gpu`; print its lines, and save its last line and the tests that failed."""
    options = ["-m", "gpu", "-o", "addopts=", "-p", "no:cacheprovider", "-q", "-rf", "--tb=short", "--durations=10"]
    command = [sys.executable, "-m", "pytest", *options, "tests/training/test_gpu.py"]
    failed, last = list[str](), ""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            failed += re.findall(r"^(?:FAILED|ERROR) (\S+)", line)
            last = line.strip() or last
    setup.save(outcome=last, failed=failed)
    if process.returncode:
        raise RuntimeError(f"pytest ended with exit code {process.returncode}")


def gpt2_training(setup: Setup, compile_: bool, deterministic: bool) -> None:
    """Measure training speed of GPT-2 124M, compiled or eager, on random tokens."""
    import torch

    from gpt_cli.bench.measure import bench, render_bench

    flags = (f"runtime.compile={str(compile_).lower()}", f"runtime.deterministic={str(deterministic).lower()}")
    figures = bench(setup.gpt2(*flags), partial(print, flush=True), 0.2 if setup.quick else 8.0)
    print(render_bench(figures), flush=True)
    setup.save(tokens_per_second=round(figures.tokens_per_second), first_step_seconds=figures.first_step_seconds)
    name = torch.cuda.get_device_name() if setup.device == "cuda" else ""
    for peak in (peak for device, peak in PEAKS.items() if device in name):
        setup.save(mfu=figures.flops_per_second / peak, peak_flops=peak)
    setup.save(share_of_measured_ceiling=figures.utilisation, matmul_ceiling=figures.matmul_ceiling)
    setup.save(peak_memory_bytes=figures.peak_memory_bytes, seconds_by_part=figures.seconds_by_part)


def gpt2_profile(setup: Setup) -> None:
    """Save the operators and kernels of two compiled training steps, by their time on the device."""
    from torch.profiler import ProfilerActivity, profile

    from gpt_cli.bench.measure import random_batches
    from gpt_cli.runtime.device import setup_runtime, synchronize
    from gpt_cli.training.state import TrainingState
    from gpt_cli.training.step import train_step

    on_gpu = setup.device == "cuda"
    config = setup.gpt2(f"runtime.compile={str(on_gpu).lower()}", "runtime.engine=torch")
    runtime, vocab_size = setup_runtime(config.runtime), config.tokenizer.vocab_size
    batches = random_batches(config, vocab_size, runtime)
    state = TrainingState.initialize(config, vocab_size, runtime, partial(print, flush=True))
    profiler = profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu])
    for step in range(5):
        if step == 3:
            synchronize(runtime.device)
            profiler.start()
        train_step(state, batches.at(step), config, step, 1.0, runtime)
    synchronize(runtime.device)
    profiler.stop()
    order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    table = profiler.key_averages().table(sort_by=order, row_limit=25, max_name_column_width=60)
    setup.save(device=str(runtime.device), table=table)


def decoding(setup: Setup, name: str) -> None:
    """Measure tokens/s of an untrained model after half a context, by kind of launch and number of texts."""
    from gpt_cli.model.gpt import GPT
    from gpt_cli.runtime.cuda_graph import graphs_available
    from gpt_cli.runtime.device import setup_runtime
    from gpt_cli.sampling.graphed_decode import GraphedDecoder

    config = setup.config(name)
    runtime = setup_runtime(config.runtime)
    model = GPT(config.model, config.tokenizer.vocab_size or 65).to(runtime.device, runtime.matmul_dtype).eval()
    graph, compiled = (
        GraphedDecoder(sys.exit),
        GraphedDecoder(sys.exit, compiling=True),
    )  # exits with a note
    ways = [("eager", None, 1), ("graph", graph, 1), ("compiled_graph", compiled, 1)]
    for way, decoder, texts in [*ways, ("eager", None, 64), ("graph", graph, 64)]:
        if decoder is None or graphs_available(runtime.device):
            setup.save(**{f"{way}_{texts}": round(decode_rate(model, decoder, texts))})


def decode_rate(model: Any, decoder: Any, texts: int) -> float:
    """Return tokens/s of the second half of texts that begin in the middle of the context, so of one captured step."""
    from gpt_cli.sampling.generate import generate
    from gpt_cli.sampling.graphed_decode import CHUNK
    from gpt_cli.sampling.sampling_params import SamplingParams

    half = model.config.context_length // 2
    length = half - half % CHUNK
    first = length // 2 - length // 2 % CHUNK + 2  # the first of a chunk to be read: the next chunk is on its way
    last = length - (0 if decoder is None else CHUNK - 1)
    sampling = SamplingParams(temperature=0.8, seed=1, max_new_tokens=length)
    prompt, started = [token % 50 for token in range(half)], 0.0
    for written, _ in enumerate(generate(model, [prompt] * texts, sampling, decoder=decoder), start=1):
        if written == first:
            started = time.perf_counter()
    return texts * (last - first) / (time.perf_counter() - started)


def shakespeare(setup: Setup) -> None:
    """Train shakespeare_gpu.yaml: seconds to LOSS after compiling, and the last loss."""
    run_dir = setup.work / "shakespeare"
    steps = ("train.steps=6", "eval.every=3") if setup.quick else ("eval.every=50", "log.every=10")
    changes = setup.overrides(f"data.source={setup.text}", f"run_dir={run_dir}", "sample.every=null", *steps)
    summary = printed(gpt("train", "--config", str(ROOT / "configs" / "shakespeare_gpu.yaml"), *changes, "--json"))
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    first = next(line["time"] for line in lines if "loss" in line)
    reached = [line["time"] - first for line in lines if line.get("val_loss", LOSS + 1) <= LOSS]
    setup.save(seconds_to_first_loss=first, seconds_to_loss=reached[0] if reached else None)
    names = ("process_seconds", "steps", "val_loss", "best_val_loss", "train_seconds")
    setup.save(**{name: summary[name] for name in names})


def start(setup: Setup) -> None:
    """Measure the seconds from the shell to the first training step, and those of a process that samples a token."""
    quiet = ("eval.every=null", "sample.every=null", "checkpoint.every=null")
    changes = setup.overrides(f"data.source={setup.text}", *quiet)
    arguments = ["--config", str(ROOT / "configs" / "shakespeare_char.yaml"), *changes]
    setup.save(seconds_to_first_step=start_seconds(arguments))
    run_dir = str(setup.work / "start")
    run(gpt("train", *arguments, f"run_dir={run_dir}", "train.steps=1"))
    sample = gpt("sample", "--run", run_dir, "--device", setup.device, "--prompt", "R", "--max-new-tokens", "1")
    setup.save(seconds_of_one_token=run(sample)[1])


PARTS: dict[str, tuple[Callable[[Setup], None], float]] = {  # and the seconds that a part may take
    "tests": (tests, 220),
    "gpt2 compiled": (partial(gpt2_training, compile_=True, deterministic=False), 150),
    "gpt2 eager": (partial(gpt2_training, compile_=False, deterministic=False), 60),
    "gpt2 decode": (partial(decoding, name="gpt2_124m.yaml"), 120),
    "shakespeare": (shakespeare, 150),
    "gpt2 profile": (gpt2_profile, 90),
    "shakespeare decode": (partial(decoding, name="shakespeare_char.yaml"), 90),
    "start": (start, 60),
    "gpt2 eager deterministic": (partial(gpt2_training, compile_=False, deterministic=True), 60),
    "gpt2 compiled deterministic": (partial(gpt2_training, compile_=True, deterministic=True), 120),
}


def append(out: Path, part: str, figures: dict[str, Any]) -> None:
    """Print figures of a part, and save each as a line, safe from whatever happens next."""
    with out.open("a") as file:
        for name, value in figures.items():
            file.write(json.dumps({"part": part, "figure": name, "value": value}) + "\n")
            print(f"{part}: {name} = {f'{value:,.4g}' if isinstance(value, float) else value}", flush=True)
        file.flush()
        os.fsync(file.fileno())


def run_part(part: str, command: list[str], limit: float, out: Path, env: Mapping[str, str] = os.environ) -> bool:
    """Run a part as a process, and kill it with its children after `limit` seconds; return whether all went well."""
    print(f"\n--- {part} (at most {limit:.0f} s)", flush=True)
    started, reason = time.perf_counter(), ""
    process = subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True)
    try:
        if code := process.wait(limit):
            reason = f"exit code {code}"
    except subprocess.TimeoutExpired:
        reason = f"took more than {limit:.0f} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children, too
        process.wait()
    failure = {"failed": reason} if reason else {}
    append(out, part, {**failure, "seconds": round(time.perf_counter() - started, 1)})
    return not reason


def summary(out: Path) -> str:
    """Return all figures so far, part by part, with the aims."""
    rows, last = [], None
    for part, name, value in (json.loads(line).values() for line in out.read_text().splitlines()):
        rows += [f"\n{part}"] if part != last else []
        last = part
        aim = f"   (aim on an H200: {AIMS[name][1]:,})" if AIMS.get(name, ("",))[0] == part else ""
        rows.append(f"  {name}: {f'{value:,.6g}' if isinstance(value, float | int) else value}{aim}")
    return "\n".join(rows).strip() + "\n"


def main() -> None:
    """Run the parts, or one of them (`--part`, in its own process)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="tiny Shakespeare")
    parser.add_argument("--only", action="append", default=[], metavar="PART", help=f"one of: {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=OUT / "gpu.jsonl", metavar="FILE")
    parser.add_argument("--device", default="cuda", help="[default: cuda]")
    parser.add_argument("--quick", action="store_true", help="every part at a tiny size, to try the command")
    parser.add_argument("--limit", type=float, default=585.0, metavar="SECONDS", help="for all parts [default: 585]")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    text, out, device = options.text.resolve(), options.out.resolve(), options.device
    if options.part is not None:
        save = lambda **figures: append(out, options.part, figures)  # noqa: E731
        PARTS[options.part][0](Setup(device, options.quick, text, options.work, save))
        return

    import torch

    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no CUDA device here; --device cpu --quick tries this command at a tiny size")
    if not text.is_file():
        sys.exit(f"there is no text {text}")
    parts = [part for part in PARTS if not options.only or any(part.startswith(only) for only in options.only)]
    deadline = time.perf_counter() + options.limit
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("")
    name = torch.cuda.get_device_name() if device == "cuda" else device
    append(out, "machine", {"device": name, "torch": torch.__version__, "quick": options.quick})
    went_well = True
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as work:
        env = environment(TORCHINDUCTOR_CACHE_DIR=f"{work}/inductor")
        env |= {"TORCH_COMPILE_DISABLE": "1"} if options.quick else {}
        command = [sys.executable, "-m", "bench.gpu", "--text", str(text), "--out", str(out), "--device", device]
        command += ["--work", work, *["--quick"] * options.quick, "--part"]
        for part in parts:
            left = deadline - time.perf_counter()
            if left < 5.0:
                append(out, part, {"failed": "no time was left"})
                went_well = False
                continue
            went_well &= run_part(part, [*command, part], min(PARTS[part][1], left), out, env)
            out.with_suffix(".txt").write_text(summary(out))
    print(f"\n{summary(out)}\nsaved in {out} and {out.with_suffix('.txt')}")
    sys.exit(not went_well)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends the part that runs, too
    main()
