"""The rate at which this machine's cores read memory again and again: the bound of a decoder that writes many texts.

    python -m bench.reading                        10, 20, 40, 80 and 160 MB for each thread, by one thread and by all
    python -m bench.reading --megabytes 40 --threads 2

A step of many texts reads all weights and all keys and values once. docs/sampling_speed.md says how near it comes.
"""

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

from gpt_cli.cpu.common.kernel import find_compiler
from gpt_cli.terminal.table import render_table

SOURCE = Path(__file__).with_suffix(".c")
MAX_THREADS = 64  # as reading.c has it


def compile_reader(folder: Path) -> Path:
    """The program, made in `folder`. Raises KernelUnavailable without a compiler."""
    program = folder / "reading"
    command = [find_compiler(), "-O2", "-march=native", "-o", str(program), str(SOURCE), "-lpthread"]
    subprocess.run(command, check=True)
    return program


def read_rates(program: Path, megabytes: int, threads: int) -> dict[int, float]:
    """GB/s of each of `threads` threads that read `megabytes` MB of their own, by the bytes that they ask ahead."""
    command = [program, str(megabytes), str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    return {int(ahead): float(rate) for ahead, rate in (line.split() for line in done.stdout.splitlines())}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, action="append", help="for each thread")
    parser.add_argument("--threads", type=int, action="append")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        program = compile_reader(Path(folder))
        rows = []
        for threads in options.threads or sorted({1, min(len(os.sched_getaffinity(0)), MAX_THREADS)}):
            for megabytes in options.megabytes or (10, 20, 40, 80, 160):
                rates = read_rates(program, megabytes, threads)
                rows.append((threads, f"{megabytes} MB", *(f"{rate:.1f}" for rate in rates.values())))
    header = ("threads", "of each", "GB/s, not asked for", "8 KB ahead", "32 KB ahead", "128 KB ahead")
    print(render_table(rows, header=header))


if __name__ == "__main__":
    main()
