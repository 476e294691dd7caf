"""Measure training beside a yardstick: time to a loss, loss in equal time, tokens/s, memory, overheads.

    python -m bench.training --against PATH --text FILE                    everything, half an hour on 2 cores
    python -m bench.training --against PATH --text FILE --only to-loss
    python -m bench.training --against PATH --text FILE --cpu x86-64-v3 x86-64-v4 native
    python -m bench.training --only start --only share [--config FILE] [section.key=value ...]
    python -m bench.training --only tokenizing --text FILE

PATH is a plain training script. `PATH TEXT [--steps N]` trains 0.8M parameters on characters and prints a line of JSON
with `seconds` and `val_loss`; `PATH TEXT --throughput B T L D` prints `tokens_per_s`. `gpt train` is timed as a whole
process with cold caches, the yardstick by its own clock, which counts only its steps.

- memory: peak memory of whole processes at the same shape, also with the options that save memory
- start: seconds from the shell to the first step, with warm caches, beside a bare `import torch`
- share: the share of a run that is not training steps, on the disk of the current folder
- tokenizing: MB/s of the BPE encoder beside Hugging Face's, and of `gpt tokenize`; FILE should be large

`--cpu` restricts `gpt` (GPT_CPU) and the yardstick's torch, MKL and oneDNN to each of these levels in turn, and
measures to-loss and speed, or the parts of --only. Exit code 1 if a figure misses its target.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.common import ROOT, environment, gpt, in_turn, medians, printed, run, show, write_record
from gpt_cli.cores import usable_cores
from gpt_cli.runtime.cpu_level import LEVELS, NATIVE, VARIABLE, native_flags
from gpt_cli.terminal.table import render_table

STEPS, TARGET_LOSS = 2000, 1.90  # of the yardstick
MAX_IMPORTS, MAX_SHARE = 1.5, 5.0  # of a start, and in percent of a run
ASKED = {"amx_bf16": (12.0, 2.0, 4.5), "avx512_bf16": (10.0, 2.0, 3.0)}  # ratios of time to loss and of tokens/s
ASKED_OF_AVX = (6.0, 1.0, 2.0)
SHAPES = {"0.8M, 12 x 64": (12, 64, 4, 128), "10.65M, 64 x 256": (64, 256, 6, 384)}
CLASSIC = (
    *("model.position=learned", "model.norm=layernorm", "model.mlp=gelu", "model.qk_norm=false"),
    *("model.tie_embeddings=true", "model.zero_init=false", "optim.name=adamw", "optim.lr=0.001"),
)
FEW_STEPS = ("train.steps=4", "eval.every=null", "checkpoint.every=null", "sample.every=null", "runtime.device=cpu")
TO_FIRST_STEP = """
import os, sys, time
from contextlib import contextmanager
from gpt_cli.cli.main import main
from gpt_cli.cli.verbs import train

@contextmanager
def gc_paused_but_for_the_step(gc_paused=train.gc_paused):
    with gc_paused():
        yield
    from gpt_cli.training import loop
    loop.train_step = lambda *_: (print(time.time(), flush=True), os._exit(0))

train.gc_paused = gc_paused_but_for_the_step
main(sys.argv[1:])
"""
Record = dict[str, Any]


class Row(NamedTuple):
    """A figure and its target."""

    what: str
    figure: str
    asked: str
    holds: bool


def time_to_loss(options: Namespace, record: Record) -> list[Row]:
    """Time `shakespeare_cpu`, which ends below the target loss."""
    f = record["to-loss"] = train_beside(options, "shakespeare_cpu")
    figure, least = f"{f['ratio']:.1f}x ({f['seconds']:.1f} s to {f['val_loss']:.4f})", asked()[0]
    holds = f["ratio"] >= least and f["val_loss"] <= TARGET_LOSS
    return [Row(f"sooner at loss {TARGET_LOSS}", figure, f"{least:g}x", holds)]


def loss_in_equal_time(options: Namespace, record: Record) -> list[Row]:
    """Return the loss of `shakespeare_minute`, which takes no longer than the yardstick."""
    f = record["equal-time"] = train_beside(options, "shakespeare_minute")
    figure = f"{f['val_loss']:.4f} ({f['seconds']:.1f} s of {f['yardstick_seconds']:.1f})"
    return [Row("loss in the yardstick's time", figure, "1.56, aim 1.48", f["val_loss"] <= 1.56 and f["ratio"] >= 1)]


def train_beside(options: Namespace, config: str) -> dict[str, float]:
    """Train a shipped config and the yardstick in turn: losses, seconds, and the ratio of the seconds."""
    file, source = str(ROOT / "configs" / f"{config}.yaml"), f"data.source={options.text}"
    commands = yardstick(options, "--steps", str(STEPS)), gpt("train", "--config", file, source, "--json")
    ways = {"theirs": lambda: printed(commands[0]), "ours": lambda: in_new_folder(commands[1])}
    theirs, ours = in_turn(ways, options.rounds).values()
    ratios = [y["seconds"] / g["process_seconds"] for y, g in zip(theirs, ours, strict=True)]
    return {
        "yardstick_seconds": statistics.median(run["seconds"] for run in theirs),
        "yardstick_val_loss": theirs[0]["val_loss"],
        "seconds": statistics.median(run["process_seconds"] for run in ours),
        "val_loss": max(run["val_loss"] for run in ours),
        "ratio": statistics.median(ratios),
    }


def yardstick(options: Namespace, *arguments: str) -> list[str]:
    """Return a command line of the yardstick."""
    return [sys.executable, str(options.against), str(options.text), *arguments]


def in_new_folder(command: Sequence[str], measure: Callable[..., Any] = printed) -> Any:
    """Run a command in a folder of its own, with cold caches and an almost empty `bench.yaml`."""
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        Path(folder, "bench.yaml").write_text("run_dir: run\n")
        return measure(command, folder, environment(GPT_CACHE=f"{folder}/cache"))


def shaped(shape: Sequence[int], text: Path, *settings: str) -> list[str]:
    """Return the overrides for (batch, context, layers, width) and `settings`."""
    batch, context, layers, width = shape
    return [
        *(f"data.source={text}", f"model.n_layer={layers}", f"model.n_head={max(1, width // 64)}"),
        *(f"model.n_embd={width}", f"model.context_length={context}", f"train.batch_size={batch}", *settings),
    ]


def throughput(options: Namespace, record: Record) -> list[Row]:
    """Measure tokens/s at equal shapes in the classic layout, and their share of the best matrix product here."""
    rows, record = [], record.setdefault("speed", {})
    for (name, shape), least in zip(SHAPES.items(), asked()[1:], strict=True):
        settings = shaped(shape, options.text, *CLASSIC)
        dry_run = gpt("train", "--config", "bench.yaml", "--dry-run", "--json", *settings)
        theirs, ours = [], []
        for _ in range(options.rounds):
            theirs.append(printed(yardstick(options, "--throughput", *map(str, shape)))["tokens_per_s"])
            ours.append(shape[0] * shape[1] / in_new_folder(dry_run)["seconds_per_step"])
        ratio = statistics.median(g / y for y, g in zip(theirs, ours, strict=True))
        of_peak = in_new_folder(gpt("bench", "--json", "--seconds", "10", *settings))["utilisation"]
        record[name] = {"tokens_per_s": ours, "yardstick": theirs, "ratio": ratio, "of_peak": of_peak}
        figure = f"{ratio:.2f}x ({of_peak:.0%} of peak)"
        rows.append(Row(f"tokens/s at {name}", figure, f"{least:g}x", ratio >= least))
    return rows


def asked() -> tuple[float, float, float]:
    """Return the ratios to the yardstick that are asked of a processor of this level."""
    level = LEVELS.get(os.environ.get(VARIABLE, NATIVE))
    flags = native_flags() if level is None else level.flags
    return next((ratios for flag, ratios in ASKED.items() if flag in flags), ASKED_OF_AVX)


def memory(options: Namespace, record: Record) -> list[Row]:
    """Measure peak memory at equal shapes."""
    rows, record = [], record.setdefault("memory", {})
    for name, shape in SHAPES.items():
        settings_by_way = {
            "classic layout, fp32": (*CLASSIC, "runtime.precision=fp32"),
            "classic layout": CLASSIC,
            "default recipe": (),
            "default recipe, a quarter of the batch at a time": (f"train.micro_batch_size={shape[0] // 4}",),
            "default recipe, activations computed twice": ("train.activation_checkpointing=true",),
        }
        commands = {"yardstick": yardstick(options, "--throughput", *map(str, shape))}
        for way, settings in settings_by_way.items():
            overrides = shaped(shape, options.text, *FEW_STEPS, *settings)
            commands[way] = gpt("train", "--config", "bench.yaml", *overrides)
        ways = {way: lambda command=command: in_new_folder(command, peak_mb) for way, command in commands.items()}
        peaks = record[name] = show(f"peak memory, {name}", "MiB", medians(in_turn(ways, options.rounds)))
        ratios = {way: peaks[way] / peaks["yardstick"] for way in ("classic layout, fp32", "classic layout")}
        rows += [Row(f"memory at {name}, {way}", f"{ratio:.2f}x", "1x", ratio <= 1) for way, ratio in ratios.items()]
    return rows


def peak_mb(command: Sequence[str], cwd: str, env: dict[str, str]) -> float:
    """Run a command; return the most memory that it held, in MiB, as the kernel recorded it."""
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.DEVNULL, stderr=stderr)
        _, status, usage = os.wait4(process.pid, 0)
        if code := os.waitstatus_to_exitcode(status):
            stderr.seek(0)
            sys.exit(f"{' '.join(command)} failed with exit code {code}:\n{stderr.read().decode()[-2000:]}")
    return usage.ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)


def start(options: Namespace, record: Record) -> list[Row]:
    """Time the start of a run beside a bare `import torch`."""
    ways: dict[str, Callable[[], float]] = {
        "import torch": lambda: run([sys.executable, "-c", "import torch"])[1],
        "gpt train, to its first step": lambda: start_seconds(["--config", str(options.config), *options.overrides]),
    }
    record["start"] = show("start", "seconds", medians(in_turn(ways, options.rounds, warm_up=True)))
    torch, ours = record["start"].values()
    most = options.most or MAX_IMPORTS
    return [Row("start, in imports of torch", f"{ours / torch:.2f}x", f"{most:g}x", ours / torch < most)]


def start_seconds(arguments: Sequence[str]) -> float:
    """Return the seconds from the shell to the first step of a new run."""
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        started = time.time()
        out, _ = run([sys.executable, "-c", TO_FIRST_STEP, "train", *arguments, f"run_dir={folder}/run"])
        return float(out.split()[-1]) - started


def share(options: Namespace, record: Record) -> list[Row]:
    """Train, and time everything that is not a training step."""
    from gpt_cli.config import load_config
    from gpt_cli.run import checkpoint
    from gpt_cli.training import loop
    from gpt_cli.training.console import Console
    from gpt_cli.training.metrics_logger import MetricsLogger

    seconds: dict[str, list[float]] = {}

    def time_calls(name: str, owner: Any, function: str) -> None:
        times, original = seconds.setdefault(name, []), getattr(owner, function)

        def call(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            result = original(*arguments, **named)
            times.append(time.perf_counter() - started)
            return result

        setattr(owner, function, call)

    time_calls("evaluating", loop, "evaluate_task")
    time_calls("sampling", loop, "sample_text")
    time_calls("saving", checkpoint, "save")
    time_calls("saving: removing old checkpoints", checkpoint, "prune")
    time_calls("saving: flushing logs", MetricsLogger, "flush")
    for function in ("step", "evaluation", "sample"):
        time_calls("logging", MetricsLogger, function)
    with tempfile.TemporaryDirectory(prefix="share-", dir=Path()) as folder:
        config = load_config(options.config, [*options.overrides, f"run_dir={folder}/run"])
        summary = loop.train(config, Console(lambda _: None))
        size = sum(file.stat().st_size for file in Path(summary.checkpoint).iterdir()) / 1e6
    total = summary.train_seconds + sum(seconds[name][-1] for name in ("saving", "saving: removing old checkpoints"))
    percent = {name: 100 * sum(times) / total for name, times in seconds.items()}  # the summary is as the last save
    rows = [(name, str(len(seconds[name])), f"{sum(seconds[name]):.2f}", f"{percent[name]:.2f}") for name in seconds]
    print(f"\n{render_table(rows, header=('beside the steps', 'times', 'seconds', '%'), right=(1, 2, 3))}")
    print(f"of {total:.1f} s and {summary.steps:,} steps; a checkpoint has {size:.1f} MB")
    record["share"] = {"percent": percent, "seconds": total}
    together, most = sum(percent.values()), options.most or MAX_SHARE
    return [Row("share of a run beside its steps", f"{together:.1f} %", f"{most:g} %", together < most)]


def tokenizing(options: Namespace, record: Record) -> list[Row]:
    """Measure the encoders on one core, compare their ids, and measure whole `gpt tokenize` processes."""
    os.environ["RAYON_NUM_THREADS"] = "1"  # before the library starts its threads
    from tokenizers import Tokenizer as HuggingFace

    from gpt_cli.config.schema import TokenizerConfig
    from gpt_cli.tokenizer import train_tokenizer

    text = options.text.read_text(encoding="utf-8")
    megabytes = len(text.encode()) / 1e6
    ours = train_tokenizer([text], TokenizerConfig(kind="bpe", vocab_size=4096))

    def encode(work: Callable[[], Any]) -> float:
        started = time.process_time()
        work()
        return megabytes / (time.process_time() - started)

    def command(processes: int) -> float:
        with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
            tokens = ("--tokenizer", str(file), "--out", f"{folder}/tokens", "--processes", str(processes))
            return megabytes / run(gpt("tokenize", str(options.text), *tokens))[1]

    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        ours.save(file := Path(folder, "tokenizer.json"))
        theirs, cores = HuggingFace.from_file(str(file)), len(usable_cores())
        ways = {
            "tokenizers": lambda: encode(lambda: theirs.encode(text, add_special_tokens=False)),
            "gpt": lambda: encode(lambda: ours.encode(text)),
            "gpt tokenize, 1 process": lambda: command(1),
            f"gpt tokenize, {cores} processes": lambda: command(cores),
        }
        figures = medians(in_turn(ways, options.rounds))
    record["tokenizing"] = show(f"BPE of 4,096 ids, {megabytes:.1f} MB", "MB/s", figures)
    same = ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False).ids
    return [Row("ids", "those of tokenizers" if same else "others", "those of tokenizers", same)]


PARTS: dict[str, Callable[[Namespace, Record], list[Row]]] = {
    **{"to-loss": time_to_loss, "equal-time": loss_in_equal_time, "speed": throughput},
    **{"memory": memory, "start": start, "share": share, "tokenizing": tokenizing},
}


@contextmanager
def restricted(level: str | None) -> Iterator[None]:
    """Restrict the processes that are started to `level`."""
    before = dict(os.environ)
    if level is not None:
        os.environ.update({VARIABLE: level} | (LEVELS[level].libraries if level in LEVELS else {}))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def main() -> None:
    """Measure what is asked for, print tables, write bench/out/training.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="PATH", help="the yardstick")
    parser.add_argument("--text", type=Path, metavar="FILE", help="tiny Shakespeare")
    parser.add_argument("--only", action="append", choices=PARTS, help="one of the parts; repeatable")
    parser.add_argument("--cpu", nargs="+", choices=[*LEVELS, NATIVE], help="a row for each of these levels")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, of which the median counts (default: 3)")
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "quickstart.yaml", metavar="YAML")
    parser.add_argument("--most", type=float, help="another bound for `--only start` or `--only share`")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    options = parser.parse_args()
    chosen = options.only or (["to-loss", "speed"] if options.cpu else PARTS)
    parts = [part for part in PARTS if part in chosen]  # this process imports torch in the last ones
    if options.text is None and not {*parts} <= {"start", "share"}:
        parser.error("give --text FILE")
    if options.against is None and not {*parts} <= {"start", "share", "tokenizing"}:
        parser.error("give --against PATH")
    if options.cpu and {"share", "tokenizing"} & {*parts}:
        parser.error("share and tokenizing run in this process, which --cpu does not restrict")
    options.against, options.text = (path and path.resolve() for path in (options.against, options.text))
    record: Record = {"rounds": options.rounds}
    rows: list[tuple[str, Row]] = []
    for level in options.cpu or [None]:
        figures = record.setdefault(level, {}) if level else record
        with restricted(level):
            rows += [(level or "here", row) for part in parts for row in PARTS[part](options, figures)]
    cells = [(level, *row[:3], "yes" if row.holds else "no") for level, row in rows]
    print(f"\n{render_table(cells, header=('', 'what', 'figure', 'asked', 'reached'))}")
    write_record("training", options.only, record)
    sys.exit(not all(row.holds for _, row in rows))


if __name__ == "__main__":
    main()
