"""Open a run in each of the processes that train it together: process 0 writes it, the others read it."""

from pathlib import Path

from gpt_cli.config import Config
from gpt_cli.corpus.prepare import Corpus
from gpt_cli.distributed.world import World
from gpt_cli.run.directory import RunDirectory, package_versions
from gpt_cli.run.lifecycle import RunLifecycle
from gpt_cli.run.log import RunLog


def open_run(config: Config, corpus: Corpus, world: World) -> RunDirectory:
    """Open the run of `config` for training, by process 0 and then by the others.

    Raises what that raises, and UserError if processes have different texts, tokenizers or installations.
    """
    versions = {f"version of {package}": str(version) for package, version in package_versions().items()}
    world.compare({"text": corpus.fingerprint, "tokenizer": corpus.tokenizer.digest, **versions})
    with world.main_first():
        return RunDirectory.open_for_training(config, corpus) if world.is_main else FollowedRun(config)


class FollowedRun(RunDirectory):
    """The directory of a run that another process writes: nothing is recorded or written here."""

    def __init__(self, config: Config) -> None:
        assert config.run_dir is not None
        self.path, self.config, self._is_made = Path(config.run_dir), config, False
        self.log = _NoLog()
        self.lifecycle = RunLifecycle(self.path, self.log, config.train.steps)

    def begin(self, step: int, device: str) -> None:
        """Leave the record to process 0."""

    def close(self) -> None:
        """Close nothing: nothing is open."""


def _do_nothing(*_: object, **__: object) -> None:
    pass


class _NoLog(RunLog):
    """A log of nothing."""

    __init__ = metrics = sample = event = truncate = sync = close = _do_nothing
