"""The machine as a run sees it: device, precision, threads, determinism and compilation, chosen once.

Nothing is probed before `setup_runtime` is called, and CUDA is not touched unless it is chosen.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from gpt_cli.config import RuntimeConfig
from gpt_cli.distributed.world import ALONE, World, world_of_environment
from gpt_cli.errors import RequestError
from gpt_cli.runtime.cpu_level import chosen_level
from gpt_cli.runtime.processor import default_threads, has_arm_bf16, physical_cores
from gpt_cli.terminal.words import plural

_deterministic_settings: Any = torch.utils.deterministic


@dataclass(frozen=True)
class Runtime:
    """Device, precision and threads of a run."""

    device: torch.device
    precision: str  # fp32, bf16 or fp16: of the matrix products
    threads: int
    world: World = ALONE
    deterministic: bool | None = None
    """True if torch is restricted to algorithms that repeat bit for bit; None: it is left as it is."""

    @property
    def matmul_dtype(self) -> torch.dtype:
        """The type of matrix products; sums are fp32."""
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self.precision]

    def autocast(self) -> AbstractContextManager[None]:
        """Autocast of forward passes to the chosen precision; weights and reductions stay fp32."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, self.matmul_dtype)

    @property
    def name(self) -> str:
        """The name of the device: a GPU's model, or the kind of device."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type

    def apply(self) -> None:
        """Set torch's process-wide switches for it."""
        torch.set_num_threads(self.threads)
        torch.set_flush_denormal(True)
        # For the products that autocast leaves in fp32, Muon's among them: "medium" multiplies in bf16 on a CPU and
        # adds in fp32; "high" is TF32 on a GPU.
        torch.set_float32_matmul_precision(
            "highest" if self.precision == "fp32" else "medium" if self.device.type == "cpu" else "high"
        )
        if self.deterministic is not None:
            set_deterministic(self.deterministic)

    def describe(self) -> str:
        threads = f", {plural(self.threads, 'thread')}" if self.device.type == "cpu" else ""
        if threads and self.threads > (cores := physical_cores()):
            threads += f" (more than the {plural(cores, 'core')} there are: slower)"
        processes = f", {self.world.size} processes" if self.world.size > 1 else ""
        return f"{self.name}, {self.precision}{threads}{processes}"


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Set the number of torch's threads for the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def restoring_settings() -> Iterator[None]:
    """Undo at the end of the block, or of the function it decorates, what `Runtime.apply` sets for the process.

    The settings are those of the process: two threads that are in such blocks at once undo each other's.
    """
    products, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    deterministic, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fills = _deterministic_settings.fill_uninitialized_memory
    flushes = float("1e-310") * 1.0 == 0.0  # torch cannot be asked
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushes)
        if deterministic != torch.are_deterministic_algorithms_enabled():
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
        _deterministic_settings.fill_uninitialized_memory = fills


@contextmanager
def exact_products() -> Iterator[None]:
    """Compute products of fp32 in fp32 for the block, whatever a training in this process has set."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def setup_runtime(config: RuntimeConfig) -> Runtime:
    """Choose what `config` leaves to be chosen, and set torch's process-wide switches accordingly.

    Raises RequestError for a device or a precision that this machine does not have.
    """
    device = choose_device(config.device)
    precision = _choose_precision(config.precision, device)
    world = world_of_environment()
    threads = max(1, default_threads() // world.local_size) if config.threads is None else config.threads
    deterministic = None
    # Eager CPU kernels repeat bit for bit as they are, and asking for it loads a compiler, which takes a second.
    if device.type != "cpu" or config.compile not in ("auto", False):
        deterministic = device.type == "cpu" if config.deterministic == "auto" else config.deterministic
    runtime = Runtime(device, precision, threads, world, deterministic)
    runtime.apply()
    return runtime


def has_fast_bf16(device: torch.device) -> bool:
    """True if bf16 matrix products beat fp32 ones: AVX512-BF16, AMX or ARM's BF16 on a CPU, Ampere or later on CUDA.

    Of ARM it is what the instructions promise: none was measured.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu":
        if chosen_level() is not None:
            return False  # no level has bf16 products
        amd64 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return bool(amd64 or has_arm_bf16())
    return False  # mps: fp32 until measured


def choose_device(name: str) -> torch.device:
    """The device of that name; auto takes cuda, then mps, then cpu. Raises RequestError if it is absent."""
    available: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
        "cpu": lambda: True,
    }
    if name == "auto":
        name = next(device for device, present in available.items() if present())
    if name not in available:
        raise RequestError(f"the device must be auto, cpu, cuda or mps, not {name!r}")
    if not available[name]():
        raise RequestError(
            f"runtime.device is {name}, but this machine has no {name} device that torch can use",
            kind="set",
            keys=["runtime.device"],
            choices=["auto"],
        )
    if name == "cuda":  # read at the first product of the process, which may be of a text before a run
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return torch.device(name)


def planned_device(config: RuntimeConfig) -> tuple[torch.device, torch.dtype]:
    """The device and the type of matrix products that a run would have here, or on a machine that has the device.

    `auto` precision counts as fp32 on a CPU, whose C engine keeps less than either.
    """
    device = choose_device("auto") if config.device == "auto" else torch.device(config.device)
    bf16 = config.precision == "auto" and device.type == "cuda"
    return device, Runtime(device, "bf16" if bf16 else config.precision.replace("auto", "fp32"), threads=1).matmul_dtype


def device_memory(device: torch.device) -> float:
    """Bytes of memory that `device` has; of a CPU, whose memory the ids are in already, infinity."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    if device.type == "mps":
        return float(torch.mps.recommended_max_memory())
    return math.inf


def synchronize(device: torch.device) -> None:
    """Return when the device has done all that it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def set_deterministic(deterministic: bool) -> None:
    """Restrict torch to algorithms that repeat bit for bit, or lift the restriction."""
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.benchmark = not deterministic
    # Filling fresh memory finds bugs in kernels; it does not make a correct one more repeatable.
    _deterministic_settings.fill_uninitialized_memory = False


def _choose_precision(name: str, device: torch.device) -> str:
    if name == "auto":
        return "bf16" if has_fast_bf16(device) else "fp32"
    if name == "fp16" and device.type == "cpu":
        raise RequestError("runtime.precision fp16 needs a GPU", hint="runtime.precision=auto")
    if name == "bf16" and not has_fast_bf16(device):
        raise RequestError(
            f"runtime.precision is bf16, but this {device.type} has no bf16 instructions",
            hint="runtime.precision=auto",
        )
    return name
