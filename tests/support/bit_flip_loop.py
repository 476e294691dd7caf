"""Flip a bit in the training kernel's code, its sum made right, and train.

    python -m tests.support.bit_flip_loop TIMES
    python -m tests.support.bit_flip_loop TIMES 0xb13f:7      that bit of that byte, each time in a new process

Prints how often a step was the same as by sound code, the flip was told, the process died or hung, or, what must not
be, the step was silently another one, as JSON. Each flip is tried in a fork, with a cache of its own.
"""

import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
from collections import Counter

import torch

from gpt_cli.config import ModelConfig, RuntimeConfig
from gpt_cli.cpu.common import kernel
from gpt_cli.cpu.common.build_store import Store
from gpt_cli.cpu.common.compiler import Compiler
from gpt_cli.cpu.train.build_settings import KERNELS
from gpt_cli.model.gpt import GPT
from gpt_cli.runtime.device import Runtime
from gpt_cli.training.select_engine import build_native_engine
from tests.support.kernel_faults import plant

CONFIG = ModelConfig(n_layer=2, n_embd=64, n_head=2, context_length=64, zero_init=False)
RUNTIME = Runtime(torch.device("cpu"), "fp32", 1)
SECONDS = 30
VERDICTS = ("the same", "told", "silently another")


def code_of(library: bytes) -> tuple[int, int]:
    """Where the executable segment of an ELF file of 64 bits begins and ends."""
    at, size, n = struct.unpack_from("<Q", library, 32)[0], *struct.unpack_from("<HH", library, 54)
    for i in range(n):
        kind, flags, offset, _, _, length = struct.unpack_from("<IIQQQQ", library, at + i * size)
        if kind == 1 and flags & 1:
            return offset, offset + length
    raise ValueError("there is no code in it")


def step() -> tuple[float, torch.Tensor, list[str]]:
    """The loss and the gradient of a batch, and what was told."""
    notes: list[str] = []
    torch.manual_seed(0)
    model = GPT(CONFIG, 50)
    tokens = torch.randint(0, 50, (4, 65))
    native = build_native_engine(model, RuntimeConfig(), RUNTIME, notes.append)
    notes = [note for note in notes if not note.startswith("compiling")]
    if native is None:
        return 0.0, torch.zeros(0), notes
    loss = native.loss_and_gradients(tokens[:, :-1], tokens[:, 1:], 1 / 256)
    return loss, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]), notes


def verdict(library: bytes, bit: int, sound: tuple[float, torch.Tensor]) -> int:
    """Which of VERDICTS comes of a flipped bit."""
    plant(KERNELS[False], library[: bit // 8] + bytes([library[bit // 8] ^ 1 << bit % 8]) + library[bit // 8 + 1 :])
    kernel._jobs.clear()
    loss, gradient, notes = step()
    if notes:
        return 1
    close = abs(loss - sound[0]) <= 1e-3 * abs(sound[0]) and (gradient - sound[1]).norm() <= 1e-2 * sound[1].norm()
    return 0 if close else 2


def main(times: int, at: int | None) -> Counter[str]:
    """Verdicts on `times` bits, one after another, or on the bit `at` so many times."""
    torch.set_num_threads(1)
    kernel.load(KERNELS[False], print)
    with Store(kernel.store_path()) as store:
        library = store.read(f"network-{kernel.key_of(KERNELS[False], Compiler.find())}")
    assert library is not None
    sound = step()
    assert not sound[2], sound[2]
    start, end = code_of(library)
    dice, actual = random.Random(11), Counter[str]()
    for _ in range(times):
        bit = dice.randrange(8 * start, 8 * end) if at is None else at
        child = os.fork()
        if child == 0:
            signal.alarm(SECONDS)
            os.dup2(2, 1)  # what code that is called wrongly says
            os._exit(verdict(library, bit, sound[:2]))
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        actual[VERDICTS[code] if 0 <= code < len(VERDICTS) else "died"] += 1
    return actual


def main_in_processes(times: int, at: str) -> Counter[str]:
    """Verdicts of so many processes on one flip: each has its stack and memory elsewhere."""
    actual = Counter[str]()
    for _ in range(times):
        command = [sys.executable, "-m", "tests.support.bit_flip_loop", "1", at]
        actual.update(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))
    return actual


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GPT_CACHE"] = folder  # none is to be left where a run would load it
        times, where = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
        byte, _, bit = (where or "0:0").partition(":")
        if where is not None and times > 1:
            counts = main_in_processes(times, where)
        else:
            counts = main(times, None if where is None else 8 * int(byte, 0) + int(bit))
        print(json.dumps(counts))
