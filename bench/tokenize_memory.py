"""The memory of `gpt tokenize` on a text that is much larger than it, and its speed with one process and with more.

    python bench/tokenize_memory.py                        500 MB, char and bpe 4096, one process a core
    python bench/tokenize_memory.py --mb 50 --processes 1
    python bench/tokenize_memory.py --tokenizer FILE       an imported tokenizer instead, such as GPT-2's encoder.json
    python bench/tokenize_memory.py --scaling --mb 200     one process against one a core, each with a ready tokenizer

The text is English from the interpreter's own documentation in which one word in twenty is a number or a made-up word,
so that it has ever more different words, as real text has; a hundredth of the lines hold characters outside Latin-1.
It is made in a temporary directory, which is removed at the end. A record goes to bench/out/tokenize_memory.json.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BOUND_MB, BOUND_MB_A_PROCESS = 600, 100
KINDS = {
    "char": ["--kind", "char"],
    "bpe 4096": ["--kind", "bpe", "--vocab-size", "4096"],
}
SCALED = {"char": KINDS["char"], "byte": ["--kind", "byte"], "bpe 4096": KINDS["bpe 4096"]}


def write_text(path: Path, size: int) -> int:
    """Write a text of at least `size` bytes; return how many it has."""
    from pydoc_data.topics import topics

    words = " ".join(topics[name] for name in sorted(topics)).split(" ")
    order = random.Random(1337)
    written = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        while written < size:
            chosen = [
                word if order.random() > 0.05 else f"{order.getrandbits(order.choice((10, 16, 24, 32))):x}"
                for word in words
            ]
            line = " ".join(chosen) + ("\nΓειά σου, 世界 🙂\n" if order.random() < 0.3 else "\n")
            file.write(line)
            written += len(line.encode())
    return path.stat().st_size


def peaks(process: "subprocess.Popen[str]") -> dict[int, int]:
    """Peak RSS in kB of `process` and each of its children, by process id, watched until it ends."""
    peaks_by_pid: dict[int, int] = {}
    while process.poll() is None:
        for pid in [process.pid, *_children(process.pid)]:
            peaks_by_pid[pid] = max(peaks_by_pid.get(pid, 0), _peak_rss(pid))
        time.sleep(0.05)
    return peaks_by_pid


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return [int(c) for t in tasks for c in Path(f"/proc/{pid}/task/{t}/children").read_text().split()]
    except OSError:  # it has just ended
        return []


def _peak_rss(pid: int) -> int:
    """VmHWM: the kernel's own record, so nothing between two looks is missed."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)


def measure(text: Path, size: int, kind: str, options: list[str], processes: int, out: Path) -> dict[str, Any]:
    """Run `gpt tokenize` on a text; its peak memory by process, and its speed."""
    command = [sys.executable, "-m", "gpt_cli", "tokenize", str(text), *options, "--out", str(out), "--json"]
    with tempfile.TemporaryFile("w+") as stdout:  # not a pipe, which a long list of unused ids would fill
        start = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--processes", str(processes)],
            stdout=stdout,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        peaks_by_pid = peaks(process)
        seconds = time.perf_counter() - start
        if process.returncode:
            sys.exit(f"gpt tokenize failed with exit code {process.returncode}")
        stdout.seek(0)
        result = json.load(stdout)
    workers = [kb / 1024 for pid, kb in peaks_by_pid.items() if pid != process.pid]
    total = sum(peaks_by_pid.values()) / 1024
    bound = BOUND_MB + BOUND_MB_A_PROCESS * processes
    return {
        "kind": kind,
        "vocab_size": result["vocab_size"],
        "processes": processes,
        "bytes": size,
        "tokens": result["splits"]["all"]["tokens"],
        "seconds": round(seconds, 2),
        "mb_per_second": round(size / 1e6 / seconds, 1),
        "peak_rss_mb": {"main": round(peaks_by_pid[process.pid] / 1024), "workers": [round(mb) for mb in workers]},
        "peak_rss_mb_all": round(total),
        "bound_mb": bound,
        "within_bound": total < bound,
    }


def measure_memory(text: Path, size: int, kinds: dict[str, list[str]], processes: int) -> list[dict[str, Any]]:
    """A line for each kind, and its figures."""
    results = []
    for kind, options in kinds.items():
        result = measure(text, size, kind, options, processes, text.with_name("store"))
        results.append(result)
        rss = result["peak_rss_mb"]
        print(
            f"{kind:9} {size / 1e6:.0f} MB in {result['seconds']} s: {result['mb_per_second']} MB/s;"
            f" peak RSS {rss['main']} MB, workers {rss['workers']}, in all {result['peak_rss_mb_all']}"
            f" of {result['bound_mb']} MB: {'within' if result['within_bound'] else 'OVER'} the bound",
            flush=True,
        )
    return results


def measure_scaling(text: Path, size: int, kinds: dict[str, list[str]], processes: int) -> list[dict[str, Any]]:
    """The same by turns with one process and with more; the vocabulary is learned before the clock starts."""
    results = []
    for kind, options in kinds.items():
        ready = text.with_name(f"ready-{kind.replace(' ', '')}")
        start = text.with_name("start.txt")
        with text.open("rb") as whole:
            start.write_bytes(whole.read(20_000_000).decode(errors="ignore").encode())
        measure(start, 0, kind, options, processes, ready)
        tokenizer_option = ["--tokenizer", str(ready / "tokenizer.json")]
        runs = [measure(text, size, kind, tokenizer_option, n, text.with_name("store")) for n in (1, processes) * 2]
        best = {n: min(run["seconds"] for run in runs if run["processes"] == n) for n in (1, processes)}
        results.append({"kind": kind, "bytes": size, "seconds": best, "ratio": round(best[1] / best[processes], 2)})
        print(
            f"{kind:9} {size / 1e6:.0f} MB: 1 process {best[1]} s ({size / 1e6 / best[1]:.1f} MB/s),"
            f" {processes} processes {best[processes]} s ({size / 1e6 / best[processes]:.1f} MB/s):"
            f" {best[1] / best[processes]:.2f} times",
            flush=True,
        )
    return results


def main() -> None:
    """Measure, print a line for each kind, and keep the record."""
    parser = argparse.ArgumentParser(description="Peak memory and speed of gpt tokenize.")
    parser.add_argument("--mb", type=int, default=500, help="size of the text (default: 500)")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="default: one a core")
    parser.add_argument("--tokenizer", metavar="FILE", help="measure with this one alone")
    parser.add_argument("--scaling", action="store_true", help="compare with one process")
    arguments = parser.parse_args()
    kinds = (
        {"imported": ["--tokenizer", arguments.tokenizer]}
        if arguments.tokenizer
        else SCALED
        if arguments.scaling
        else KINDS
    )
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as directory:
        text = Path(directory, "text.txt")
        size = write_text(text, arguments.mb * 1_000_000)
        if arguments.scaling:
            results = measure_scaling(text, size, kinds, arguments.processes)
        else:
            results = measure_memory(text, size, kinds, arguments.processes)
    record = {"machine": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version()}
    out = ROOT / "bench" / "out"
    out.mkdir(parents=True, exist_ok=True)
    name = "tokenize_scaling.json" if arguments.scaling else "tokenize_memory.json"
    (out / name).write_text(json.dumps({**record, "results": results}, indent=1) + "\n")
    sys.exit(not all(result.get("within_bound", True) for result in results))


if __name__ == "__main__":
    main()
