"""The choice of the engine that trains: the C engine where it can compute, else torch (`TrainingState.initialize`)."""

from collections.abc import Sequence

import torch

from gpt_cli.capabilities import NATIVE_TRAINER
from gpt_cli.config import ModelConfig, RuntimeConfig
from gpt_cli.cpu.common.kernel import KernelUnavailable, WrongKernel
from gpt_cli.cpu.train.native_engine import NativeEngine
from gpt_cli.cpu.train.train_bindings import NativeLibrary
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.model.gpt import GPT
from gpt_cli.model.sequence_classifier import SequenceClassifier
from gpt_cli.runtime.device import Runtime
from gpt_cli.training.native_gradcheck import check_native_gradients

TIMES_SLOWER = "2 to 3"  # see docs/reliability.md, "Without compiled code"


def build_native_engine(
    model: GPT, config: RuntimeConfig, runtime: Runtime, note: Notify = lambda _: None, *, options: Sequence[str] = ()
) -> NativeEngine | None:
    """The C engine for `model`, or None where torch computes; `note` gets the reason unless torch was requested.

    `options`: those of the training, besides the model's, that it does not know.

    If `runtime.engine: native` is impossible, raises RequestError where no machine could, UserError where this one
    cannot.
    """
    if config.engine == "torch" or (
        config.engine == "auto" and (runtime.device.type != "cpu" or config.compile is True)
    ):
        return None
    if config.engine == "native" and config.compile not in ("auto", False):
        raise RequestError("runtime.compile is for torch: runtime.engine is native", hint="runtime.compile=auto")
    hint = "runtime.engine=auto"
    reason = f"it computes on a CPU, not on {runtime.device.type}" if runtime.device.type != "cpu" else None
    if reason is None and isinstance(model, SequenceClassifier):
        reason = "it does not know task.kind: classes"
    if reason is None and (option := NATIVE_TRAINER.refusal(model.config)) is not None:
        reason = f"it does not know {option}"
    if reason is None and options:
        reason = f"it does not know {options[0]}"
    if reason is not None:
        if config.engine == "native":
            raise RequestError(f"runtime.engine: native is not available here: {reason}", hint=hint)
        note(_slower(reason))
        return None
    try:
        native = NativeEngine(model, proven_library(model.config, runtime, note), runtime.threads)
    except KernelUnavailable as error:
        if config.engine == "native":
            raise UserError(f"runtime.engine: native is not available here: {error}", hint=hint) from error
        note(_slower(str(error)))
        return None
    # Torch only makes passes over the parameters: waking threads for these costs more than it saves, and threads that
    # wait for work take the processor from ours.
    torch.set_num_threads(1)
    return native


def proven_library(config: ModelConfig, runtime: Runtime, note: Notify) -> NativeLibrary:
    """The compiled code, checked against torch on a tiny batch, and compiled once more if it is wrong.

    Raises KernelUnavailable.
    """
    library = NativeLibrary.load(runtime.matmul_dtype, note)
    if (difference := check_native_gradients(library, config, runtime.threads)) is None:
        return library
    note(f"the compiled training code is wrong: {difference}; compiling it again")
    library = NativeLibrary.load(runtime.matmul_dtype, note, anew=True)
    if (difference := check_native_gradients(library, config, runtime.threads)) is None:
        return library
    raise WrongKernel(f"what the C compiler makes of it is wrong: {difference}")


def _slower(reason: str) -> str:
    return f"computing by torch, about {TIMES_SLOWER} times slower than by compiled code: {reason}"
