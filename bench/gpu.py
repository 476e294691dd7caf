"""Check and measure this GPU in one command of at most ten minutes: `python -m bench.gpu --text FILE`.

In this order: the tests that need a GPU; GPT-2 124M's training (compiled and eager, deterministic or not): tokens/s,
MFU, peak memory, where a step's time goes; its decoding; the 10.65M character model on tiny Shakespeare (FILE) trained
to nanoGPT's published 1.4697 and to its end; its decoding; how long a cold start takes.

Each part is a process of its own with a time limit. A figure is printed and appended to `--out` (JSON lines) the moment
it is there, the summary beside it is written anew after each part; a part that fails or takes too long is told, and the
next one runs. Exit code 1 if one did. `--only PART` (a prefix, repeatable) leaves out the others; `--quick` goes the
same way at a tiny size, for any device.

What it measured is in docs/howto/gpu.md.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOSS = 1.4697
AIMS = {  # on one H200: figure -> part, what is aimed at
    "tokens_per_second": ("gpt2 compiled", 600_000),
    "seconds_to_loss": ("shakespeare", 10),
    "graph_1": ("gpt2 decode", 8_000),
}
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}
"""FLOP/s of dense bf16 products with fp32 sums, as published."""
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
    work: Path
    """A folder that lasts as long as the command; compilers keep what they made there, so that the first is cold."""
    save: Callable[..., None]
    """Prints and saves figures by name."""

    def overrides(self, *changes: str) -> list[str]:
        """Changes to a config: the device, the size if quick, and `changes`."""
        return [f"runtime.device={self.device}", *changes, *(QUICK if self.quick else ())]

    def seconds(self, whole: float) -> float:
        """The time to measure for."""
        return 0.2 if self.quick else whole

    def gpt(self, *arguments: str) -> list[str]:
        """The command line of a verb of `gpt`, which need not be installed."""
        return [sys.executable, "-m", "gpt_cli", *arguments]


def tests(setup: Setup) -> None:
    """`pytest -m gpu`: its lines as they come; what it ended with, and which tests failed."""
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


def gpt2_config(setup: Setup, *changes: str) -> Any:
    """configs/gpt2_124m.yaml with random tokens; micro-batches that fill a GPU, four of them a step."""
    from gpt_cli.config import parse_config

    text = (ROOT / "configs" / "gpt2_124m.yaml").read_text()
    sizes = ("train.batch_size=256", "train.micro_batch_size=64")
    changes = (*changes, "tokenizer.vocab_size=300") if setup.quick else changes
    return parse_config(text, "gpt2_124m.yaml", setup.overrides(*sizes, *changes))


def gpt2_training(setup: Setup, compile_: bool, deterministic: bool) -> None:
    """Training speed of GPT-2 124M, compiled or eager."""
    import torch

    from gpt_cli.bench.measure import bench, render_bench

    flags = (f"runtime.compile={str(compile_).lower()}", f"runtime.deterministic={str(deterministic).lower()}")
    figures = bench(gpt2_config(setup, *flags), partial(print, flush=True), setup.seconds(8.0))
    print(render_bench(figures), flush=True)
    setup.save(tokens_per_second=round(figures.tokens_per_second), first_step_seconds=figures.first_step_seconds)
    name = torch.cuda.get_device_name() if setup.device == "cuda" else ""
    for device, peak in PEAKS.items():
        if device in name:
            setup.save(mfu=figures.flops_per_second / peak, peak_flops=peak)
    setup.save(share_of_measured_ceiling=figures.utilisation, matmul_ceiling=figures.matmul_ceiling)
    setup.save(peak_memory_bytes=figures.peak_memory_bytes, seconds_by_part=figures.seconds_by_part)


def gpt2_profile(setup: Setup) -> None:
    """The operators and kernels of two compiled training steps, by the time they take on the device."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from gpt_cli.bench.measure import random_batches
    from gpt_cli.runtime.device import setup_runtime, synchronize
    from gpt_cli.training.state import TrainingState
    from gpt_cli.training.step import train_step

    on_gpu = setup.device == "cuda"
    config = gpt2_config(setup, f"runtime.compile={str(on_gpu).lower()}", "runtime.engine=torch")
    runtime = setup_runtime(config.runtime)
    vocab_size = config.tokenizer.vocab_size
    batches = random_batches(config, vocab_size, runtime)
    state = TrainingState.initialize(config, vocab_size, runtime, partial(print, flush=True))
    for step in range(5):
        if step == 3:
            synchronize(runtime.device)
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
            profiler = profile(activities=activities)
            profiler.start()
        train_step(state, batches.at(step), config, step, 1.0, runtime)
    synchronize(runtime.device)
    profiler.stop()
    order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    table = profiler.key_averages().table(sort_by=order, row_limit=25, max_name_column_width=60)
    setup.save(device=str(torch.device(runtime.device)), table=table)


def decoding(setup: Setup, name: str) -> None:
    """Tokens/s behind half a context, by random weights: by how a step is launched and how many texts there are."""
    from gpt_cli.config import parse_config
    from gpt_cli.model.gpt import GPT
    from gpt_cli.runtime.cuda_graph import graphs_available
    from gpt_cli.runtime.device import setup_runtime
    from gpt_cli.sampling.graphed_decode import GraphedDecoder

    config = parse_config((ROOT / "configs" / name).read_text(), name, setup.overrides())
    runtime = setup_runtime(config.runtime)
    model = GPT(config.model, config.tokenizer.vocab_size or 65).to(runtime.device, runtime.matmul_dtype).eval()
    graph, compiled = GraphedDecoder(fail), GraphedDecoder(fail, compiling=True)
    ways = [
        ("eager", None, 1),
        ("graph", graph, 1),
        ("compiled_graph", compiled, 1),
        ("eager", None, 64),
        ("graph", graph, 64),
    ]
    for way, decoder, texts in ways:
        if decoder is None or graphs_available(runtime.device):
            setup.save(**{f"{way}_{texts}": round(decode_rate(model, decoder, texts))})


def decode_rate(model: Any, decoder: Any, texts: int) -> float:
    """Tokens/s of the second half of texts that begin in the middle of the context, so that one step is captured."""
    from gpt_cli.sampling.generate import generate
    from gpt_cli.sampling.graphed_decode import CHUNK
    from gpt_cli.sampling.sampling_params import SamplingParams

    half = model.config.context_length // 2
    length = half - half % CHUNK
    first = length // 2 - length // 2 % CHUNK + 2  # the first that is read of a chunk: the next chunk is on its way
    last = length - (0 if decoder is None else CHUNK - 1)
    sampling = SamplingParams(temperature=0.8, seed=1, max_new_tokens=length)
    prompt, started = [token % 50 for token in range(half)], 0.0
    for written, _ in enumerate(generate(model, [prompt] * texts, sampling, decoder=decoder), start=1):
        if written == first:
            started = time.perf_counter()
    return texts * (last - first) / (time.perf_counter() - started)


def fail(note: str) -> None:
    """For a note that must not come."""
    raise RuntimeError(note)


def shakespeare(setup: Setup) -> None:
    """configs/shakespeare_gpu.yaml, trained to its end: seconds of training to LOSS after compiling; the last loss."""
    run = setup.work / "shakespeare"
    steps = ("train.steps=6", "eval.every=3") if setup.quick else ("eval.every=50", "log.every=10")
    changes = setup.overrides(f"data.source={setup.text}", f"run_dir={run}", "sample.every=null", *steps)
    command = setup.gpt("train", "--config", str(ROOT / "configs" / "shakespeare_gpu.yaml"), *changes, "--json")
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    setup.save(process_seconds=time.perf_counter() - started)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first = next(line["time"] for line in lines if "loss" in line)
    reached = [line["time"] - first for line in lines if line.get("val_loss", LOSS + 1) <= LOSS]
    setup.save(seconds_to_first_loss=first, seconds_to_loss=reached[0] if reached else None)
    summary = json.loads(done.stdout)
    setup.save(**{name: summary[name] for name in ("steps", "val_loss", "best_val_loss", "train_seconds")})


def start(setup: Setup) -> None:
    """Seconds from the shell to the first training step, and to the first token of `gpt sample`."""
    from bench.start import start_seconds

    config = str(ROOT / "configs" / "shakespeare_char.yaml")
    changes = setup.overrides(
        f"data.source={setup.text}", "eval.every=null", "sample.every=null", "checkpoint.every=null"
    )
    environment = {**os.environ, "PYTHONPATH": search_path()}
    setup.save(seconds_to_first_step=start_seconds(["--config", config, *changes], environment))
    run = setup.work / "start"
    trained = setup.gpt("train", "--config", config, *changes, f"run_dir={run}", "train.steps=1", "--json")
    subprocess.run(trained, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    command = setup.gpt("sample", "--run", str(run), "--device", setup.device, "--prompt", "R", "--seed", "1")
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(2)  # the prompt, which comes first, is a character
        setup.save(seconds_to_first_token=time.perf_counter() - began)
        process.stdout.read()
    if process.returncode:
        raise RuntimeError(f"gpt sample ended with exit code {process.returncode}")


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


def search_path() -> str:
    """PYTHONPATH of the processes that are started: this checkout before what it is here."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def append(out: Path, part: str, figures: dict[str, Any]) -> None:
    """Print figures of a part, and save them: a line each, safe from whatever happens next."""
    with out.open("a") as file:
        for name, value in figures.items():
            file.write(json.dumps({"part": part, "figure": name, "value": value}) + "\n")
            cell = f"{value:,.4g}" if isinstance(value, float) else value
            print(f"{part}: {name} = {cell}", flush=True)
        file.flush()
        os.fsync(file.fileno())


def run_part(
    part: str, command: list[str], limit: float, out: Path, environment: Mapping[str, str] = os.environ
) -> bool:
    """Run a part in a process of its own, ended with its children after `limit` seconds; whether all went well."""
    print(f"\n--- {part} (at most {limit:.0f} s)", flush=True)
    started, reason = time.perf_counter(), ""
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        if code := process.wait(limit):
            reason = f"exit code {code}"
    except subprocess.TimeoutExpired:
        reason = f"took more than {limit:.0f} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children, too
        process.wait()
    if reason:
        append(out, part, {"failed": reason})
    append(out, part, {"seconds": round(time.perf_counter() - started, 1)})
    return not reason


def summary(out: Path) -> str:
    """All figures so far, part by part, those with an aim beside it."""
    lines = [json.loads(line) for line in out.read_text().splitlines()]

    def rows() -> Iterator[str]:
        part = None
        for line in lines:
            if line["part"] != part:
                part = line["part"]
                yield f"\n{part}"
            name, value = line["figure"], line["value"]
            aim = f"   (aim on an H200: {AIMS[name][1]:,})" if AIMS.get(name, ("",))[0] == part else ""
            cell = f"{value:,.6g}" if isinstance(value, float | int) else str(value)
            yield f"  {name}: {cell}{aim}"

    return "\n".join(rows()).strip() + "\n"


def main() -> None:
    """Run the parts, or (`--part`, in a process of its own) one of them."""
    parser = argparse.ArgumentParser(description="Check and measure a GPU in at most ten minutes.")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="tiny Shakespeare")
    parser.add_argument("--only", action="append", default=[], metavar="PART", help=f"one of: {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "gpu.jsonl", metavar="FILE")
    parser.add_argument("--device", default="cuda", help="[default: cuda]")
    parser.add_argument("--quick", action="store_true", help="every part at a tiny size, to try the command")
    parser.add_argument("--limit", type=float, default=585.0, metavar="SECONDS", help="for all parts [default: 585]")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    text, out = arguments.text.resolve(), arguments.out.resolve()
    if arguments.part is not None:
        save = lambda **figures: append(out, arguments.part, figures)  # noqa: E731
        PARTS[arguments.part][0](Setup(arguments.device, arguments.quick, text, arguments.work, save))
        return

    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no CUDA device here; --device cpu --quick tries this command at a tiny size")
    if not text.is_file():
        sys.exit(f"there is no text {text}")
    parts = [part for part in PARTS if not arguments.only or any(part.startswith(only) for only in arguments.only)]
    deadline = time.perf_counter() + arguments.limit
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("")
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else arguments.device
    append(out, "machine", {"device": device, "torch": torch.__version__, "quick": arguments.quick})
    went_well = True
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as work:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{work}/inductor", "PYTHONPATH": search_path()}
        environment |= {"TORCH_COMPILE_DISABLE": "1"} if arguments.quick else {}
        command = [
            sys.executable,
            "-m",
            "bench.gpu",
            "--text",
            str(text),
            "--out",
            str(out),
            "--device",
            arguments.device,
        ]
        command += ["--work", work, *["--quick"] * arguments.quick, "--part"]
        for part in parts:
            left = deadline - time.perf_counter()
            if left < 5.0:
                append(out, part, {"failed": "no time was left"})
                went_well = False
                continue
            went_well &= run_part(part, [*command, part], min(PARTS[part][1], left), out, environment)
            out.with_suffix(".txt").write_text(summary(out))
    print(f"\n{summary(out)}\nsaved in {out} and {out.with_suffix('.txt')}")
    sys.exit(not went_well)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends the part that runs, too
    main()
