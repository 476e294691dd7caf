"""Training beside the yardstick's, in one run: time to a loss, loss in equal time, tokens a second, memory, overheads.

    python -m bench.training --against PATH --text FILE             all of it, half an hour on 2 cores
    python -m bench.training --against PATH --text FILE --only to-loss
    python -m bench.training --against PATH --text FILE --cpu x86-64-v3 x86-64-v4 native

PATH is a plain training script that takes `TEXT [--steps N]`, trains 0.8M parameters on characters and prints one
line of JSON with `seconds` and `val_loss`; and `TEXT --throughput B T L D`, which prints `tokens_per_s`. What is timed
of `gpt train` is the whole process from the shell, with cold caches: starting, tokenizing, compiling, evaluating,
saving. Of the yardstick it is its own clock of its steps, which leaves its evaluation out.

`--cpu` has a row of time to loss and of steps for each level, to which `gpt` (GPT_CPU) and the yardstick's torch, MKL
and oneDNN are restricted alike; the share is of the best matrix product measured at that level (`gpt bench`). With
`--only` that part alone is measured at each level.

A record goes to bench/out/training.json; exit code 1 where a figure is below what is asked of it.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from bench import memory, start
from bench.memory import CLASSIC
from gpt_cli.runtime.cpu_level import LEVELS, NATIVE, VARIABLE, native_flags
from gpt_cli.terminal.table import render_table

ROOT = Path(__file__).resolve().parents[1]
YARDSTICK_STEPS = 2000
TARGET_LOSS = 1.90
SECONDS = 10.0  # to measure steps for
NANOGPT_LOSS = 1.4697  # of its recipe for an A100, 10.65M parameters
PARTS = ["to-loss", "equal-time", "laptop", "speed", "memory", "overheads"]
ASKED = {"amx_bf16": (12.0, 4.5), "avx512_bf16": (10.0, 3.0)}  # of time to loss and of the large step, by instructions
ASKED_OF_AVX = (6.0, 2.0)
SHAPES = {"0.8M, 12 x 64": ((12, 64, 4, 128), 2.0), "10.65M, 64 x 256": ((64, 256, 6, 384), 3.2)}  # and what is asked


def printed(command: Sequence[str], cwd: str) -> tuple[dict[str, Any], float]:
    """The JSON object that `command` prints last, and the seconds that it took as a process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GPT_CACHE": str(Path(cwd, "cache"))}
    started = time.perf_counter()
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return figures, seconds


def trained(config: str, text: Path, *overrides: str) -> tuple[float, float]:
    """The validation loss of a shipped config, and the seconds of the whole process with cold caches."""
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as directory:
        file, source = str(ROOT / "configs" / f"{config}.yaml"), f"data.source={text}"
        command = [sys.executable, "-m", "gpt_cli", "train", "--config", file, source, "--json", *overrides]
        summary, seconds = printed(command, directory)
        return summary["val_loss"], seconds


def time_to_loss(against: Path, text: Path, rounds: int) -> dict[str, Any]:
    """The factor by which `shakespeare_cpu` is done sooner, its loss below the target, than the yardstick's steps."""
    yardstick, losses, seconds = [], [], []
    for _ in range(rounds):
        figures, _ = printed([sys.executable, str(against), str(text), "--steps", str(YARDSTICK_STEPS)], str(ROOT))
        yardstick.append((figures["seconds"], figures["val_loss"]))
        loss, took = trained("shakespeare_cpu", text)
        losses.append(loss)
        seconds.append(took)
    reached = statistics.median(y for y, _ in yardstick)
    return {
        "yardstick_seconds": reached,
        "yardstick_val_loss": yardstick[0][1],
        "val_loss": max(losses),
        "seconds": statistics.median(seconds),
        "ratio": statistics.median(y / s for (y, _), s in zip(yardstick, seconds, strict=True)),
    }


def loss_in_equal_time(against: Path, text: Path, rounds: int) -> dict[str, Any]:
    """The loss of `shakespeare_minute`, and whether its whole process takes longer than the yardstick's steps."""
    yardstick, losses, seconds = [], [], []
    for _ in range(rounds):
        figures, _ = printed([sys.executable, str(against), str(text), "--steps", str(YARDSTICK_STEPS)], str(ROOT))
        yardstick.append(figures["seconds"])
        loss, took = trained("shakespeare_minute", text)
        losses.append(loss)
        seconds.append(took)
    return {
        "yardstick_seconds": statistics.median(yardstick),
        "val_loss": max(losses),
        "seconds": statistics.median(seconds),
        "share_of_time": statistics.median(s / y for y, s in zip(yardstick, seconds, strict=True)),
    }


def on_a_laptop(text: Path, rounds: int) -> dict[str, Any]:
    """The loss of `shakespeare_laptop`, and the time of its whole process."""
    runs = [trained("shakespeare_laptop", text) for _ in range(rounds)]
    return {"val_loss": max(loss for loss, _ in runs), "seconds": statistics.median(took for _, took in runs)}


def settings_of(shape: tuple[int, int, int, int], text: Path) -> list[str]:
    """The overrides for (batch, context, layers, width) in the classic layout."""
    batch, context, layers, width = shape
    return [
        *(f"data.source={text}", f"model.n_layer={layers}", f"model.n_head={max(1, width // 64)}", *CLASSIC),
        *(f"model.n_embd={width}", f"model.context_length={context}", f"train.batch_size={batch}"),
    ]


def share_of_peak(shape: tuple[int, int, int, int], text: Path) -> float:
    """The multiplications of a step, of those that the best matrix product does in that time."""
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as directory:
        command = [sys.executable, "-m", "gpt_cli", "bench", "--json", "--seconds", str(SECONDS)]
        figures, _ = printed([*command, *settings_of(shape, text)], directory)
        return float(figures["utilisation"])


def throughput(against: Path, text: Path, rounds: int) -> dict[str, Any]:
    """Tokens a second at equal shapes and the classic layout, beside the yardstick's."""
    results = {}
    for name, (shape_of, asked) in SHAPES.items():
        batch, context, layers, width = shape_of
        ratios, ours, theirs = [], [], []
        settings = settings_of(shape_of, text)
        shape = [str(size) for size in (batch, context, layers, width)]
        for _ in range(rounds):
            figures, _ = printed([sys.executable, str(against), str(text), "--throughput", *shape], str(ROOT))
            theirs.append(figures["tokens_per_s"])
            with tempfile.TemporaryDirectory(prefix="gpt-bench-") as directory:
                Path(directory, "bench.yaml").write_text("run_dir: run\n")
                command = [sys.executable, "-m", "gpt_cli", "train", "--config", "bench.yaml", "--dry-run", "--json"]
                plan, _ = printed([*command, *settings], directory)
            ours.append(batch * context / plan["seconds_per_step"])
            ratios.append(ours[-1] / theirs[-1])
        ratio = statistics.median(ratios)
        results[name] = {"tokens_per_s": ours, "yardstick": theirs, "ratio": ratio, "asked": asked}
    return results


def by_level(levels: Sequence[str], against: Path, text: Path, rounds: int, record: dict[str, Any]) -> bool:
    """Print a row of time to loss and of steps for each level; whether all figures are what is asked for."""
    rows, holds = [], True
    for level in levels:
        with restricted(level):
            figures = {
                "to-loss": time_to_loss(against, text, rounds),
                "speed": throughput(against, text, rounds),
                "share": {name: share_of_peak(shape, text) for name, (shape, _) in SHAPES.items()},
            }
        record[level] = figures
        (small, large), asked = figures["speed"].values(), asked_of(level)
        ratio = figures["to-loss"]["ratio"]
        holds = holds and ratio >= asked[0] and large["ratio"] >= asked[1]
        shares = [f"{share:.0%}" for share in figures["share"].values()]
        rows.append(
            (level, f"{ratio:.1f}", f"{asked[0]:g}", f"{small['ratio']:.2f}", shares[0],
             f"{large['ratio']:.2f}", f"{asked[1]:g}", shares[1])
        )  # fmt: skip
    header = ("level", "to loss", "asked", *(part for name in SHAPES for part in (name, "asked", "of peak")))
    header = (*header[:4], *header[5:])  # of the small step nothing is asked
    print(render_table(rows, header=header, right=range(1, len(header))))
    return holds


def asked_of(level: str) -> tuple[float, float]:
    """The factors by which the loss is reached sooner and the large step is faster."""
    flags = native_flags() if level == NATIVE else LEVELS[level].flags
    return next((asked for flag, asked in ASKED.items() if flag in flags), ASKED_OF_AVX)


@contextmanager
def restricted(level: str) -> Iterator[None]:
    """Meanwhile, processes that are started keep to `level`."""
    before = dict(os.environ)
    os.environ.update({VARIABLE: level} | (LEVELS[level].libraries if level in LEVELS else {}))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Row(NamedTuple):
    """A line of the table."""

    what: str
    figure: str
    asked: str
    holds: bool


def rows_of(part: str, against: Path, text: Path, rounds: int, record: dict[str, Any]) -> list[Row]:
    """Measure a part, keep it in `record`, and tell it."""
    match part:
        case "to-loss":
            figures = record[part] = time_to_loss(against, text, rounds)
            figure = f"{figures['ratio']:.1f}x ({figures['seconds']:.1f} s to {figures['val_loss']:.4f})"
            holds = figures["ratio"] >= 5 and figures["val_loss"] <= TARGET_LOSS
            return [Row(f"sooner at loss {TARGET_LOSS} than the yardstick", figure, "5x, aim 10x", holds)]
        case "equal-time":
            figures = record[part] = loss_in_equal_time(against, text, rounds)
            figure = f"{figures['val_loss']:.4f} ({figures['seconds']:.1f} s of {figures['yardstick_seconds']:.1f})"
            holds = figures["val_loss"] <= 1.56 and figures["share_of_time"] <= 1.0
            return [Row("loss in the yardstick's time", figure, "1.56, aim 1.48", holds)]
        case "laptop":
            figures = record[part] = on_a_laptop(text, rounds)
            figure = f"{figures['val_loss']:.4f} ({figures['seconds']:.0f} s)"
            holds = figures["val_loss"] <= 1.38 and figures["seconds"] <= 600
            return [Row(f"below nanoGPT's {NANOGPT_LOSS} in ten minutes", figure, "1.38, aim 1.37", holds)]
        case "speed":
            shapes = record[part] = throughput(against, text, rounds)
            return [
                Row(f"tokens/s at {shape}", f"{f['ratio']:.2f}x", f"{f['asked']}x", f["ratio"] >= f["asked"])
                for shape, f in shapes.items()
            ]
        case "memory":
            peaks = record[part] = [memory.compare(against, text, shape, 1) for shape in memory.SHAPES]
            ratios = [(" x ".join(map(str, p["shape"])), p["ratio_to_yardstick"]["classic"]) for p in peaks]
            return [Row(f"peak memory at {shape}", f"{ratio:.2f}x", "1x", ratio <= 1) for shape, ratio in ratios]
        case _:
            config = ROOT / "configs" / "quickstart.yaml"
            imports = start.compare_start(["--config", str(config)], rounds)
            share = start.measure_share(config, [])
            record[part] = {"imports_of_torch": imports, "share": share}
            return [
                Row("start beside an import of torch", f"{imports:.2f}x", "1.5x", imports < start.MAX_IMPORTS),
                Row("time of a run that is not its steps", f"{share:.1%}", "5%", share < start.MAX_SHARE),
            ]


def keep(record: dict[str, Any]) -> None:
    """Write the record down."""
    out = ROOT / "bench" / "out"
    out.mkdir(parents=True, exist_ok=True)
    (out / "training.json").write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    """Measure what is asked for, print a table, keep the record."""
    parser = argparse.ArgumentParser(description="Training beside a yardstick, in one run.")
    parser.add_argument("--against", type=Path, required=True, metavar="PATH", help="the yardstick")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="tiny Shakespeare")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--cpu", nargs="+", choices=[*LEVELS, NATIVE], help="a row for each of these levels")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, of which the median counts (default: 3)")
    arguments = parser.parse_args()
    against, text, rounds = arguments.against.resolve(), arguments.text.resolve(), arguments.rounds
    parts = [arguments.only] if arguments.only else PARTS
    record: dict[str, Any] = {"machine": platform.platform(), "cores": os.cpu_count(), "rounds": rounds}
    if arguments.cpu and not arguments.only:
        holds = by_level(arguments.cpu, against, text, rounds, record)
        keep(record)
        sys.exit(not holds)
    rows: list[Row] = []
    for level in arguments.cpu or [None]:
        figures = record if level is None else record.setdefault(level, {})
        with restricted(level) if level else nullcontext():
            level_rows = [row for part in parts for row in rows_of(part, against, text, rounds, figures)]
        rows += [row._replace(what=f"{level}: {row.what}") if level else row for row in level_rows]
    for row in rows:
        print(f"{row.what:55} {row.figure:28} {row.asked:18} {'holds' if row.holds else 'falls short'}")
    keep(record)
    sys.exit(not all(row.holds for row in rows))


if __name__ == "__main__":
    main()
