"""Train each `NAME.yaml` that is named, one after the other, as one of the processes that torchrun started.

python -m torch.distributed.run --standalone --nproc-per-node 2 tests/together.py a.yaml b.yaml
"""

import sys
from pathlib import Path

from gpt_cli.config import load_config
from gpt_cli.parallel.world import joined
from gpt_cli.training.console import Console, SilentConsole
from gpt_cli.training.loop import train

with joined() as world:
    for file in sys.argv[1:]:
        train(load_config(Path(file), []), Console(print) if world.is_main else SilentConsole())
