"""Processor facts from the operating system."""

import os
import platform
from pathlib import Path

from gpt_cli.cores import usable_cores
from gpt_cli.runtime.cpu_level import chosen_level, native_flags


def physical_cores() -> int:
    """Cores this process may use, hyper-threads counted once where Linux says which share a core."""
    path = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return len({_read(path.format(core)) or core for core in usable_cores()})


def processor_name() -> str:
    """The processor's model name if the operating system has it, else its architecture; and what it is used as."""
    level = chosen_level()
    if level is None:
        return _model_name()
    whole = level.libraries.items() <= os.environ.items()  # else torch computes as the processor can
    return f"{_model_name()} as {level.name}{'' if whole else ', but for torch'}"


def _model_name() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def has_arm_bf16() -> bool:
    """True if Linux says that this ARM processor multiplies bf16."""
    return "bf16" in native_flags()


def default_threads() -> int:
    """Threads to compute with on a CPU: OMP_NUM_THREADS where it is set, else one for each physical core."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else physical_cores()


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
