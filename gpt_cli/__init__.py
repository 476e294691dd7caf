"""Train, sample and study GPT language models, from the command line and from Python.

    import gpt_cli

    run = gpt_cli.load("runs/quickstart")
    for piece in run.generate("The ", temperature=0.8, seed=1):
        print(piece, end="", flush=True)

Importing this imports neither torch nor numpy: they come with the first name that needs them.
"""
# ruff: noqa: PLC0415 - for the sake of the promise above

import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpt_cli.model.gpt import GPT
    from gpt_cli.sampling import Sampler, Sampling, TextStream
    from gpt_cli.sampling.generate import generate

__version__ = "0.1.0"
__all__ = ["GPT", "Sampler", "Sampling", "TextStream", "__version__", "generate", "load"]

_HOMES = {
    "GPT": "gpt_cli.model.gpt",
    "Sampler": "gpt_cli.sampling",
    "Sampling": "gpt_cli.sampling",
    "TextStream": "gpt_cli.sampling",
    "generate": "gpt_cli.sampling.generate",
}


def load(run: str | Path | None = None, *, device: str = "auto") -> "Sampler":
    """The model of a run directory or a checkpoint, ready to write; of the newest run under `runs/` if None.

    `device` is auto (cuda, then mps, then cpu) or one of these. Settings that a call leaves out come from the run's
    config. A damaged checkpoint is warned about and passed over for the one before. Raises RequestError when there
    is no such run or device, and UserError when it cannot be read.
    """
    from gpt_cli.run.directory import find_run, sample_defaults
    from gpt_cli.run.load import load_model
    from gpt_cli.runtime.device import choose_device
    from gpt_cli.sampling import Sampler, Sampling

    def warn(text: str) -> None:
        warnings.warn(text, stacklevel=2)

    path = find_run(None if run is None else Path(run))
    loaded = load_model(path, choose_device(device), warn)
    defaults = sample_defaults(path) or loaded.config.sample
    sampling = Sampling.from_config(defaults, loaded.config.seed)
    return Sampler(loaded.model, loaded.tokenizer, sampling, defaults.prefix, defaults.suffix)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
