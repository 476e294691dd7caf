"""`gpt train` in several processes: launched here by --devices, or by torchrun."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gpt_cli.cli.output import note
from gpt_cli.cli.process import gc_paused
from gpt_cli.cli.train_output import print_summary
from gpt_cli.config import Config
from gpt_cli.errors import ExitCode, RequestError, UserError


def launch_training(devices: str, arguments: Sequence[str], config: Path | None, *, json: bool) -> int:
    """Run `gpt train` with these arguments in a process for each of `devices`; returns the exit code."""
    with gc_paused():
        from gpt_cli.distributed.launch import device_count, launch

    file = [] if config is None else ["--config", str(config)]
    return launch(device_count(devices), ["train", *arguments, *file, *(["--json"] if json else [])])


def refuse_batch_of(config: Config, processes: int) -> None:
    """Raise RequestError if this many `processes` cannot share the batches of `config`."""
    from gpt_cli.distributed.world import World
    from gpt_cli.training.batches import micro_batch_size, refuse_batch

    world = World(size=processes)
    refuse_batch(config, micro_batch_size(config, world), world)


def train_together(choose: Callable[[], Config], *, json: bool) -> int:
    """Train, as one of the processes that torchrun started, what process 0 was asked to `choose`."""
    with gc_paused():
        from gpt_cli.distributed.world import LAUNCHER, LostProcessError, joined
        from gpt_cli.training.console import Console, SilentConsole
        from gpt_cli.training.loop import train

    with joined() as world:
        try:
            config = world.broadcast(choose() if world.is_main else None)
            assert config is not None
            world.answer_within(config.parallel.timeout_minutes)
            summary = train(config, Console(note) if world.is_main else SilentConsole())
            if world.is_main:
                print_summary(summary, json=json)
            return summary.exit_code
        except UserError as error:
            if isinstance(error, LostProcessError) and LAUNCHER in os.environ:
                world.wait_for_who_failed()
                raise SystemExit(ExitCode.LOST) from error  # the launcher knows which one, and how it ended
            if not world.fails_first():
                world.wait_for_who_failed()  # whoever ends first has the launcher end the others
                raise SystemExit(error.exit_code) from error  # another process tells the reason
            if not (world.is_main or isinstance(error, RequestError | LostProcessError)):
                error.message = f"process {world.rank}: {error.message}"
            raise
