"""Bits per byte of runs over time, side by side, from their metrics.jsonl alone: a run's files need no `gpt`.

python examples/curves.py RUN [RUN ...]
"""

import json
import sys
from pathlib import Path

if len(sys.argv) < 2:
    sys.exit(__doc__)

curves = {}
for run in map(Path, sys.argv[1:]):
    try:
        text = (run / "metrics.jsonl").read_text()
    except OSError as error:
        sys.exit(f"{run} is not a run: {error}")
    lines = map(json.loads, text.splitlines())
    curves[run.name] = [(line["step"], line["time"], line["bpb"]) for line in lines if "bpb" in line]

for name, curve in curves.items():
    if not curve:
        print(f"{name} has no bits per byte")
        continue
    highest = max(bpb for _, _, bpb in curve)
    print(name)
    for step, seconds, bpb in curve:
        print(f"  step {step:>6}  {seconds:>7.1f} s  {bpb:.3f}  {'#' * round(40 * bpb / highest)}")
