"""Train from Python, and sample what was trained: the config is the one that `gpt train` reads.

python examples/train.py TEXT RUN [section.key=value ...]
"""

import sys

import gpt_cli
from gpt_cli.config import parse_config
from gpt_cli.errors import UserError
from gpt_cli.training.console import Console
from gpt_cli.training.loop import train

if len(sys.argv) < 3:
    sys.exit(__doc__)
text, run_dir, *overrides = sys.argv[1:]

CONFIG = """
model: {n_layer: 2, n_embd: 64, context_length: 64}
train: {steps: 200}
eval: {every: 100}
sample: {every: null}
"""
changes = [f"data.source={text}", f"run_dir={run_dir}", *overrides]
try:
    config = parse_config(CONFIG, "examples/train.py", changes)  # the name is for errors
    summary = train(config, Console(print))  # goes on where it stopped, if it did
except UserError as error:
    sys.exit(error.render())
print(f"{summary.parameters:,} parameters, {summary.bpb:.3f} bits per byte after {summary.steps} steps")
print(gpt_cli.load(run_dir).generate("", max_new_tokens=100, seed=1))
