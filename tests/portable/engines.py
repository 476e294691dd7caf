"""Drivers of the C engines that need no Python: compiled for any processor, run here or by qemu, and what they say."""

import ctypes
import os
import platform
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpt_cli.cpu.common.c_model import MODEL_FIELDS
from gpt_cli.cpu.common.kernel import SOURCE
from gpt_cli.cpu.decode import bindings as decoder
from gpt_cli.cpu.decode.weight_formats import WeightDtype
from gpt_cli.cpu.decode.weights import LayerWeights, Weights
from gpt_cli.cpu.train import build_settings, native_engine
from gpt_cli.cpu.train.train_bindings import Backend, NativeLibrary
from gpt_cli.model.gpt import GPT
from gpt_cli.runtime.cpu_level import processor_flags
from gpt_cli.training.muon import POLAR_EXPRESS

HERE = Path(__file__).parent
STRICT = (
    *("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"),  # no vector is passed to what others compiled
    *("-O2", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
)
DRIVERS = {
    "decode": (HERE / "decode_driver.c", f"-I{SOURCE.parent}", "-pthread"),
    "train": (
        HERE / "train_driver.c", build_settings.SOURCES[1], f"-I{build_settings.SOURCES[0].parent}", "-pthread",
        "-fopenmp-simd", "-ftree-vectorize",
    ),
}  # fmt: skip
TIMEOUT = 540.0
_LEVELS = {
    "x86-64": frozenset[str](),
    "x86-64-v3": frozenset({"avx2", "fma", "bmi2", "f16c", "movbe"}),
    "x86-64-v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
}
_ARMS = {  # by the processor that qemu shows
    "armv8-a": "cortex-a57",
    "armv8.2-a+dotprod": "neoverse-n1",
    "armv8.6-a": "max",
}


@dataclass(frozen=True)
class Target:
    """A processor, who compiles for it, and who runs what was made."""

    compiler: str
    options: tuple[str, ...]
    runner: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()  # what this processor must have, where there is no runner
    multiplies_bf16: bool = False
    also: tuple[str, ...] = ()  # commands that come with what the compiler needs

    def require(self) -> None:
        """Skip where the compiler, the runner, or what is needed of this processor is absent."""
        for tool in (self.compiler, *self.also, *self.runner[:1]):
            if not shutil.which(tool):
                pytest.skip(f"there is no {tool}")
        if not self.runner and platform.machine() not in ("x86_64", "AMD64"):
            pytest.skip("this is no x86-64 processor")
        if missing := self.needs - processor_flags():
            pytest.skip(f"this processor has no {sorted(missing)[0]}")


TARGETS = {
    **{
        f"{compiler} {level}": Target(compiler, (f"-march={level}",), needs=needs)
        for compiler in ("gcc", "clang")
        for level, needs in _LEVELS.items()
    },
    **{
        f"{compiler} {march}": Target(
            compiler,
            (*options, "-static", f"-march={march}"),
            ("qemu-aarch64", "-cpu", cpu),
            multiplies_bf16=march == "armv8.6-a",
            also=("aarch64-linux-gnu-gcc",),
        )
        for compiler, options in (("aarch64-linux-gnu-gcc", ()), ("clang", ("--target=aarch64-linux-gnu",)))
        for march, cpu in _ARMS.items()
    },
}


def build(target: Target, driver: str, folder: Path, *options: str) -> list[str]:
    """Compile a driver with its engine, without a warning; the command that runs it."""
    executable = folder / f"{driver}_driver"
    source, *other_arguments = DRIVERS[driver]
    command = [target.compiler, *STRICT, *target.options, *options, "-o", executable, source, *other_arguments, "-lm"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    assert completed.returncode == 0, completed.stderr[:4000]
    assert completed.stderr == ""
    return [*target.runner, str(executable)]


def blocks(*arrays: "np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None") -> bytes:
    """As blocks.h reads them."""
    buffers = [b"" if array is None else np.ascontiguousarray(array).tobytes() for array in arrays]
    return b"".join(struct.pack("<q", len(buffer)) + buffer for buffer in buffers)


def answers(command: list[str], stdin: bytes, **environment: str) -> list[bytes]:
    """The blocks that a driver gives; it must end well, and complain of nothing."""
    completed = subprocess.run(
        command, input=stdin, capture_output=True, check=False, timeout=TIMEOUT, env={**os.environ, **environment}
    )
    output = completed.stderr.decode(errors="replace")
    assert completed.returncode == 0, (completed.returncode, output[:4000])
    assert output == ""
    return list(_split(completed.stdout))


def _split(data: bytes) -> Iterator[bytes]:
    while data:
        (size,) = struct.unpack("<q", data[:8])
        yield data[8 : 8 + size]
        data = data[8 + size :]


def int32(*numbers: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.int32]]":
    """Whole numbers of C."""
    return np.array(numbers, np.int32)


@dataclass(frozen=True)
class Texts:
    """Prompts of texts that are written together, all by the sampler of the driver."""

    prompts: list[list[int]]
    steps: int

    def blocks(self) -> bytes:
        """As the driver reads them; text i has the seed i."""
        lengths = [len(prompt) for prompt in self.prompts]
        ids = [token for prompt in self.prompts for token in prompt]
        seeds = np.arange(len(lengths), dtype=np.uint32)
        return blocks(int32(len(lengths), self.steps), int32(*ids), int32(*lengths), seeds)


def decode_input(
    weights: Weights, format: WeightDtype, threads: int, scored: list[int], texts: tuple[Texts, Texts, Texts]
) -> bytes:
    """A model, tokens to score, and three batches of texts to write."""
    net, _ = decoder.to_c_structs(weights, format, threads, use_amx=True)
    integers, floats = _model_fields(net)
    settings = int32(*(getattr(net, name) for name in decoder._SETTINGS))
    tables = [getattr(weights, name) for name in decoder._POINTERS]
    layers = [getattr(layer, field.name) for layer in weights.layers for field in fields(LayerWeights)]
    model = blocks(integers, floats, settings, *tables, *layers)
    return model + blocks(int32(len(scored)), int32(*scored)) + b"".join(batch.blocks() for batch in texts)


def train_input(
    model: GPT,
    dtype: torch.dtype,
    threads: int,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    matrices: list[torch.Tensor],
) -> tuple[bytes, dict[str, int]]:
    """A model, a batch and matrices to orthogonalise; and where the gradient of each parameter begins."""
    native = native_engine.NativeEngine(model, NativeLibrary(ctypes.CDLL(None), Backend(), dtype), threads)
    net, slots = native._net, native._slots
    integers, floats = _model_fields(net)
    floats = np.append(floats, np.float32(net.dropout))
    rotary = next((module for module in model.modules() if isinstance(module, native_engine.Rotary)), None)
    fixed = None if isinstance(model.embedding.positions, torch.nn.Parameter) else model.embedding.positions
    batch, length = inputs.shape
    sizes = [len(slots), net.n_parameters, native._matrices.numel(), batch, length, 2, threads, len(matrices)]
    data = blocks(
        integers, floats, _array(fixed), *(_array(rotary and getattr(rotary, name)) for name in ("cos", "sin")),
        np.array(sizes, np.int64), np.array(list(native._starts), np.int64),
        np.array(list(native._packed_offsets), np.int64),
        np.array([1 / inputs.numel()], np.float32), *(_array(slot) for slot in slots), _array(inputs), _array(targets),
        np.array(POLAR_EXPRESS, np.float32), int32(len(POLAR_EXPRESS)),
    )  # fmt: skip
    for matrix in matrices:
        data += blocks(int32(*matrix.shape), _array(matrix))
    return data, {name: native._offsets[id(parameter)] for name, parameter in model.named_parameters()}


def _model_fields(
    net: Any,
) -> "tuple[np.ndarray[tuple[int, ...], np.dtype[np.int32]], np.ndarray[Any, np.dtype[np.float32]]]":
    """The integers and the floats of `MODEL_FIELDS`."""
    integers = [getattr(net, name) for name, kind in MODEL_FIELDS if kind is ctypes.c_int32]
    floats = [getattr(net, name) for name, kind in MODEL_FIELDS if kind is ctypes.c_float]
    return int32(*integers), np.array(floats, np.float32)


def _array(tensor: torch.Tensor | None) -> "np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None":
    return None if tensor is None else tensor.detach().contiguous().numpy()
