"""Peak memory of training beside the yardstick's, at equal shapes: whole processes, the kernel's own record.

    python -m bench.memory --against PATH --text FILE              the two shapes of the classic recipe
    python -m bench.memory --against PATH --text FILE --shape 12 64 4 128
    python -m bench.memory --text FILE --saving                    what the options that save memory save

PATH is a plain training script that takes `TEXT --throughput B T L D` (sequences, context, layers, width) and trains a
few steps of GPT-2's layout with AdamW in fp32. `gpt train` does the same work at the same shape: the same layout in
fp32; in the precision that it chooses by itself; and in its default recipe. That it also tokenizes, evaluates and saves
counts, too. A record goes to bench/out/memory.json; exit code 1 where the classic layout takes more than PATH.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHAPES = [(12, 64, 4, 128), (64, 256, 6, 384)]
CLASSIC = [
    *("model.position=learned", "model.norm=layernorm", "model.mlp=gelu", "model.qk_norm=false"),
    *("model.tie_embeddings=true", "model.zero_init=false", "optim.name=adamw", "optim.lr=0.001"),
]
WAYS = {"classic fp32": [*CLASSIC, "runtime.precision=fp32"], "classic": CLASSIC, "default recipe": []}
SAVING = {
    "as it is": [],
    "micro-batches of a quarter": ["quarter"],
    "activations computed twice": ["train.activation_checkpointing=true"],
}
STEPS = 4


def peak_mb(command: Sequence[str], cwd: str) -> float:
    """Run `command` to its end; the most memory it held, in MiB."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GPT_CACHE": str(Path(cwd, "cache"))}
    process = subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    stderr = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        sys.exit(f"{' '.join(command)} failed with exit code {code}:\n{stderr[-2000:]}")
    return usage.ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)


def training_mb(text: Path, shape: tuple[int, ...], overrides: Sequence[str]) -> float:
    """Peak memory of `gpt train` from a cold cache at a shape (B, T, L, C)."""
    batch, context, layers, width = shape
    quarter = [f"train.micro_batch_size={batch // 4}"] if "quarter" in overrides else []
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as directory:
        Path(directory, "bench.yaml").write_text("run_dir: run\n")
        settings = [
            *(f"data.source={text}", f"model.n_layer={layers}", f"model.n_head={max(1, width // 64)}"),
            *(f"model.n_embd={width}", f"model.context_length={context}", f"train.batch_size={batch}"),
            *(f"train.steps={STEPS}", "eval.every=null", "checkpoint.every=null", "sample.every=null"),
            *("runtime.device=cpu", *quarter, *(o for o in overrides if "=" in o)),
        ]
        return peak_mb([sys.executable, "-m", "gpt_cli", "train", "--config", "bench.yaml", *settings], directory)


def compare(against: Path, text: Path, shape: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Medians of `rounds` runs of each way, in turn, and their ratios to the yardstick."""
    command = [sys.executable, str(against), str(text), "--throughput", *map(str, shape)]
    peaks_by_way: dict[str, list[float]] = {"yardstick": [], **{way: [] for way in WAYS}}
    for _ in range(rounds):
        peaks_by_way["yardstick"].append(peak_mb(command, str(ROOT)))
        for way, overrides in WAYS.items():
            peaks_by_way[way].append(training_mb(text, shape, overrides))
    peaks = {way: round(statistics.median(values), 1) for way, values in peaks_by_way.items()}
    ratios = {way: round(peaks[way] / peaks["yardstick"], 3) for way in WAYS}
    return {"shape": shape, "peak_mb": peaks, "ratio_to_yardstick": ratios}


def main() -> None:
    """Measure, print a line for each way, and keep the record."""
    parser = argparse.ArgumentParser(description="Peak memory of training, whole processes.")
    parser.add_argument("--against", type=Path, metavar="PATH", help="the yardstick")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE")
    parser.add_argument("--shape", type=int, nargs=4, action="append", metavar=("B", "T", "L", "C"))
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, of which the median counts (default: 3)")
    parser.add_argument("--saving", action="store_true", help="measure what the options that save memory save")
    arguments = parser.parse_args()
    if arguments.against is None and not arguments.saving:
        parser.error("give --against PATH, or --saving")
    shapes, text = [tuple(s) for s in arguments.shape or SHAPES], arguments.text.resolve()
    record: dict[str, Any] = {"machine": platform.platform(), "python": platform.python_version(), "results": []}
    for shape in shapes:
        name = " x ".join(map(str, shape))
        if arguments.against is not None:
            result = compare(arguments.against.resolve(), text, shape, arguments.rounds)
            for way, mb in result["peak_mb"].items():
                ratio = result["ratio_to_yardstick"].get(way)
                print(f"{name:18} {way:28} {mb:8.1f} MiB" + ("" if ratio is None else f"  {ratio:.2f}x"), flush=True)
            record["results"].append(result)
        if arguments.saving:
            peaks = {way: round(training_mb(text, shape, overrides), 1) for way, overrides in SAVING.items()}
            for way, mb in peaks.items():
                print(f"{name:18} {way:28} {mb:8.1f} MiB", flush=True)
            record["results"].append({"shape": shape, "saving_peak_mb": peaks})
    out = ROOT / "bench" / "out"
    out.mkdir(parents=True, exist_ok=True)
    (out / "memory.json").write_text(json.dumps(record, indent=1) + "\n")
    compared = [r["ratio_to_yardstick"] for r in record["results"] if "ratio_to_yardstick" in r]
    sys.exit(any(ratios[way] > 1 for ratios in compared for way in ("classic fp32", "classic")))


if __name__ == "__main__":
    main()
