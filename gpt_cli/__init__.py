"""Train, sample and study GPT language models, from the command line and from Python.

    import gpt_cli

    run = gpt_cli.load("runs/quickstart")
    for piece in run.generate("The ", temperature=0.8, seed=1):
        print(piece, end="", flush=True)

Importing this imports neither torch nor numpy: they come with the first name that needs them.
"""
# ruff: noqa: PLC0415 - for the sake of the promise above

import warnings
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from gpt_cli.cpu.decode.weight_formats import WeightDtype
    from gpt_cli.evaluation.text_classifier import TextClassifier
    from gpt_cli.literals import Device
    from gpt_cli.model.gpt import GPT
    from gpt_cli.sampling import Sampler, SamplingParams, TextStream
    from gpt_cli.sampling.generate import generate
    from gpt_cli.sampling.native_decoder import EngineChoice

__version__ = "0.3.0.dev0"
__all__ = [
    "GPT",
    "Sampler",
    "SamplingParams",
    "TextClassifier",
    "TextStream",
    "__version__",
    "generate",
    "load",
    "load_classifier",
]

_LAZY_IMPORTS = {
    "GPT": "gpt_cli.model.gpt",
    "Sampler": "gpt_cli.sampling",
    "SamplingParams": "gpt_cli.sampling",
    "TextClassifier": "gpt_cli.evaluation.text_classifier",
    "TextStream": "gpt_cli.sampling",
    "generate": "gpt_cli.sampling.generate",
}
_ALIASES = {"Sampling": "SamplingParams"}  # until 0.1

P = ParamSpec("P")
R = TypeVar("R")


def _accept_removed(function: Callable[P, R]) -> Callable[P, R]:
    """`accept_removed`, which is imported when the function is called."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        from gpt_cli.config.removed import accept_removed

        return accept_removed("draft")(function)(*args, **kwargs)

    return call


@_accept_removed
def load(
    run: str | Path | None = None,
    *,
    device: "Device" = "auto",
    engine: "EngineChoice" = "auto",
    weights: "WeightDtype" = "fp32",
) -> "Sampler":
    """The model of a run directory or a checkpoint, ready to write; of the newest run under `runs/` if None.

    `RUN@STEP` is the checkpoint of a step, and `RUN@best` the one with the lowest validation loss.

    Text is that of `gpt sample` with the same seed, by the engine that it would choose: `engine` is native (compiled
    code on a CPU, without torch), torch, or auto (native where it can write what is asked); `weights` (fp32, bf16 or
    int8) is how native keeps the matrices (on cuda torch does, too, in bf16). `device` is auto (cuda, then mps, then
    cpu) or one of these. Settings that a call leaves out come from the run's config. A damaged checkpoint is warned
    about and passed over for the one before. Raises RequestError when there is no such run or device, or the choices
    exclude each other, and UserError when it cannot be read.
    """
    import logging

    from gpt_cli.cpu.common.kernel import COMPILING
    from gpt_cli.run.find_run import find_run
    from gpt_cli.run.open_checkpoint import build_torch_model, open_checkpoint
    from gpt_cli.sampling import Sampler, SamplingParams
    from gpt_cli.sampling.text_generator import TextGenerator

    def warn(text: str) -> None:
        if text.startswith(COMPILING):
            logging.getLogger(__name__).info(text)
        else:
            warnings.warn(text, stacklevel=2)

    path = find_run(run)
    saved = open_checkpoint(path, warn)
    defaults = saved.config.sample
    generator = TextGenerator(
        saved,
        partial(build_torch_model, saved, device),
        device=device,
        engine=engine,
        weights=weights,
        note=warn,
    )
    generator.warm_up()
    sampling = SamplingParams.from_config(defaults, saved.config.seed)
    data = saved.config.data
    plain_text, end = data.format == "text", data.learned_end
    return Sampler(generator, saved.tokenizer, sampling, defaults.prefix, defaults.suffix, end, plain_text)


def load_classifier(run: str | Path | None = None, *, device: "Device" = "auto") -> "TextClassifier":
    """The classifier of a run trained with task.kind classes, or of a checkpoint; `classify` takes a list of texts.

        run = gpt_cli.load_classifier("runs/classify")
        run.classify(["Return the sum of the items."])[0].label

    The rest as for `load`, which loads runs that predict tokens; each refuses the other's with a RequestError.
    """
    from gpt_cli.evaluation.text_classifier import TextClassifier
    from gpt_cli.run.find_run import find_run
    from gpt_cli.run.open_checkpoint import open_checkpoint

    def warn(text: str) -> None:
        warnings.warn(text, stacklevel=3)

    path = find_run(run)
    return TextClassifier.of(open_checkpoint(path, warn, "classes"), device, warn)


def __dir__() -> list[str]:
    return list(__all__)


def __getattr__(name: str) -> Any:
    name = _ALIASES.get(name, name)
    if name not in _LAZY_IMPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY_IMPORTS[name]), name)
