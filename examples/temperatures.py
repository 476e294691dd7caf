"""One prompt at several temperatures, with one seed: what daring does.

python examples/temperatures.py [RUN] [PROMPT]
"""

import sys

import gpt_cli
from gpt_cli.errors import UserError

name = sys.argv[1] if len(sys.argv) > 1 else None  # None: the newest run
prompt = sys.argv[2] if len(sys.argv) > 2 else ""

try:
    run = gpt_cli.load(name)
    for temperature in (0.3, 0.6, 0.9, 1.2):
        print(f"--- temperature {temperature}")
        print(prompt, end="")
        for piece in run.generate(prompt, temperature=temperature, max_new_tokens=120, seed=1):
            print(piece, end="", flush=True)
        print()
except UserError as error:  # no such run, or a prompt that it cannot read
    sys.exit(error.render())
