"""The compiled code of this machine: is what the cache holds whole, and does it compute what the references compute."""

import os
from collections.abc import Callable, Iterator

import torch

from gpt_cli.config import ModelConfig
from gpt_cli.cpu.common.build_store import DamagedLibraryError, Store
from gpt_cli.cpu.common.kernel import COMPILING, KernelUnavailable, WrongKernel, store_path
from gpt_cli.cpu.common.trust import UntrustedError
from gpt_cli.cpu.decode.decoder import NativeDecoder
from gpt_cli.cpu.decode.weight_formats import FORMATS
from gpt_cli.cpu.decode.weights import read_weights
from gpt_cli.cpu.train.build_settings import has_bf16_products
from gpt_cli.errors import UserError
from gpt_cli.model.gpt import GPT
from gpt_cli.run.arrays import unpack_arrays
from gpt_cli.run.tensors import pack_tensors
from gpt_cli.runtime.device import Runtime
from gpt_cli.selftest.check import Check
from gpt_cli.training.select_engine import proven_library

Describe = Callable[[list[str]], str]
"""Called with a function for messages; returns a figure, or raises KernelUnavailable."""
_MODEL = ModelConfig(n_layer=2, n_embd=64, n_head=2, context_length=32, zero_init=False)


def check_store() -> Check:
    """Every library that the cache holds is the one that was compiled, and nobody else could have written it."""
    name = "compiled cache"
    try:
        path = store_path()
        if not os.path.lexists(path):
            return Check(name, True, "nothing has been compiled yet")
        with Store(path) as store:
            names = store.names()
            for library in names:
                store.read(library)
    except (DamagedLibraryError, UntrustedError, UserError) as error:
        return Check(name, False, str(error))
    except OSError as error:
        return Check(name, False, f"cannot use {path}: {error.strerror}")
    libraries = "1 library has" if len(names) == 1 else f"{len(names)} libraries have"
    return Check(name, True, f"{libraries} the SHA-256 recorded at compilation")


def check_kernels() -> Iterator[Check]:
    """The decoder's logits and the training code's gradients, against their references."""
    yield _check("compiled decoder", _describe_decoder)
    yield _check("compiled training", _describe_training)


def _check(name: str, describe: Describe) -> Check:
    notes: list[str] = []
    try:
        figure = describe(notes)
    except WrongKernel as error:
        return Check(name, False, str(error))
    except KernelUnavailable as error:  # not a fault, but slower
        return Check(name, True, f"none here: {error}")
    wrong = [note for note in notes if not note.startswith(COMPILING)]
    return Check(name, not wrong, "; ".join(wrong) or figure)


def _describe_decoder(notes: list[str]) -> str:
    model = _model()
    weights = read_weights(_MODEL, model.head.out_features, unpack_arrays(pack_tensors(model.state_dict()), "model"))
    for format in FORMATS:
        NativeDecoder(weights, format=format, note=notes.append)
    return f"logits of {', '.join(FORMATS)} are those of the reference"


def _describe_training(notes: list[str]) -> str:
    precision = "bf16" if has_bf16_products() else "fp32"
    proven_library(_MODEL, Runtime(torch.device("cpu"), precision, 2), notes.append)
    return f"loss and gradient in {precision} are those of torch"


def _model() -> GPT:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return GPT(_MODEL, 37)
