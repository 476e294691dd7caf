"""A training that stands still in the middle until it is let go on."""

# `gpt` that stands still before update 20 until whoever opened `gate` for writing closes it.
GATED = """
import sys
from gpt_cli.cli.main import main
from gpt_cli.training import loop
step = loop.train_step
def gated(*arguments):
    if arguments[3] == 20:
        open("gate").read()
    return step(*arguments)
loop.train_step = gated
sys.exit(main())
"""
