"""Train each `NAME.yaml` that is named, one after the other, as one of the processes that torchrun started.

Where there is a `NAME.RANK.yaml`, the process of that rank takes it. ROOM in the environment limits the memory that
each may take, in bytes, beyond that of its imports; PIECE is the most logits that are computed at once; parameters of
more than CUT elements are cut into pieces of as many.

python -m torch.distributed.run --standalone --nproc-per-node 2 -m tests.support.torchrun_worker a.yaml b.yaml
"""

import os
import re
import resource
import sys
from pathlib import Path

from gpt_cli.config import load_config
from gpt_cli.distributed import norms
from gpt_cli.distributed.world import joined
from gpt_cli.model import chunked_loss
from gpt_cli.training.console import Console, SilentConsole
from gpt_cli.training.loop import train

if headroom := os.environ.get("ROOM"):
    match = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match
    limit = 1024 * int(match[1]) + int(headroom)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    print(f"limited to {headroom} bytes more", flush=True)

if max_logits := os.environ.get("PIECE"):
    chunked_loss.MAX_CPU_LOGITS = int(max_logits)

if cut := os.environ.get("CUT"):
    norms.PIECE = norms.CUT_FROM = int(cut)

with joined() as world:
    for file in sys.argv[1:]:
        own = Path(file).with_suffix(f".{world.rank}.yaml")
        train(
            load_config(own if own.exists() else Path(file), []), Console(print) if world.is_main else SilentConsole()
        )
