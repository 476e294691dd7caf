"""The promises of `gpt`, tried out on this machine and this disk."""

import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from gpt_cli.config import Config, parse_config
from gpt_cli.errors import Notify, UserError
from gpt_cli.files import DamagedError, make_directory, write_file
from gpt_cli.run import checkpoint
from gpt_cli.run.load_model import load_model
from gpt_cli.selftest.check import Check, attempt
from gpt_cli.selftest.compiled import check_kernels, check_store
from gpt_cli.selftest.kills import check_kills, run_quietly, with_steps
from gpt_cli.selftest.model import check_cache, check_causality
from gpt_cli.selftest.processes import check_processes
from gpt_cli.tokenizer import ByteTokenizer

_TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom.\n" * 40
_CONFIG = """
data: {{source: {text}}}
model: {{n_layer: 2, n_head: 2, n_embd: 32, context_length: 32, dropout: 0.1}}
schedule: {{kind: constant, warmup_steps: 2}}
train: {{batch_size: 4, micro_batch_size: 2}}
eval: {{every: 4}}
checkpoint: {{every: 4}}
sample: {{every: null}}
log: {{every: 1}}
runtime: {{device: cpu, threads: 1, compile: false}}
"""
_STEPS = 20


def run_selftest(parent: Path, *, quick: bool, seed: int, note: Notify) -> Iterator[Check]:
    """Try every promise in a temporary directory under `parent`, which is removed, and yield what was found.

    Training is done on the CPU, in processes of its own where it is killed.
    """
    yield check_store()
    with _workplace(parent) as folder:
        write_file(folder / "text.txt", _TEXT.encode())
        config = parse_config(_CONFIG.format(text=folder / "text.txt"), "selftest", ())
        note("compiled code: against its references")
        yield from check_kernels()
        note("disk: writing, saving, flipping bits")
        yield attempt("disk speed", lambda: check_disk(folder, 16_000_000 if quick else 128_000_000))
        yield attempt("save and load", lambda: check_save_and_load(folder, 4_000_000 if quick else 32_000_000))
        yield attempt("damage is noticed", lambda: check_flips(folder, 200 if quick else 2000, seed))
        note("training: twice, and in parts")
        yield attempt("determinism", lambda: check_determinism(folder, config))
        yield attempt("resume", lambda: check_resume(folder, config, [7] if quick else [1, 4, 7, 10, 13, 19]))
        model = load_model(folder / "one", torch.device("cpu"), note).model
        yield check_causality(model)
        yield check_cache(model)
        if not quick:
            note("training: by two processes")
            yield attempt("processes", lambda: check_processes(folder, config))
        kills = 4 if quick else 20
        note(f"training: killed {kills} times")
        yield attempt("kill it any time", lambda: check_kills(folder, config, kills, seed))


def check_disk(folder: Path, size: int) -> Check:
    """Measure how fast `size` bytes are written and flushed to disk."""
    data = os.urandom(1_000_000) * (size // 1_000_000)
    started = time.perf_counter()
    write_file(folder / "speed", data)
    seconds = time.perf_counter() - started
    (folder / "speed").unlink()
    started = time.perf_counter()
    for number in range(20):
        write_file(folder / f"flush-{number}", b"x")
    flush = (time.perf_counter() - started) / 20
    figure = f"{size / 1e6 / seconds:,.0f} MB/s written and flushed; a flush takes {1000 * flush:.1f} ms"
    return Check("disk speed", True, figure)


def check_save_and_load(folder: Path, numbers: int) -> Check:
    """A checkpoint of `numbers` random numbers comes back with every bit."""
    tensors = {"model": torch.rand(numbers // 4), "moment": torch.rand(3 * (numbers // 4))}
    started = time.perf_counter()
    path = _save(folder / "large", tensors)
    saved = time.perf_counter()
    loaded = checkpoint.load(path).model_tensors
    done = time.perf_counter()
    same = loaded.keys() == tensors.keys() and all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    shutil.rmtree(folder / "large")
    figure = f"{4 * numbers / 1e6:,.0f} MB saved in {saved - started:.2f} s, loaded in {done - saved:.2f} s"
    return Check("save and load", same, figure)


def check_flips(folder: Path, flips: int, seed: int) -> Check:
    """Each of `flips` flipped bits anywhere in a checkpoint is noticed before it is used."""
    dice, n_detected = random.Random(seed), 0
    path = _save(folder / "flipped", {"weight": torch.rand(1000)})
    files = sorted(path.iterdir())
    for _ in range(flips):
        file = dice.choice(files)
        whole = file.read_bytes()
        bit = dice.randrange(8 * len(whole))
        file.write_bytes(whole[: bit // 8] + bytes([whole[bit // 8] ^ 1 << bit % 8]) + whole[bit // 8 + 1 :])
        try:
            checkpoint.load(path)
        except DamagedError:
            n_detected += 1
        except UserError:  # it was used, and only then made no sense
            pass
        file.write_bytes(whole)
    checkpoint.load(path)
    return Check("damage is noticed", n_detected == flips, f"{n_detected:,} of {flips:,} flipped bits found")


def check_determinism(folder: Path, config: Config) -> Check:
    """Training twice gives the same bits."""
    one, two = (run_quietly(with_steps(config, folder / name, _STEPS)) for name in ("one", "two"))
    figure = f"{_STEPS} steps twice: weights sha256 {one.weights_sha256[:16]}"
    return Check("determinism", one.weights_sha256 == two.weights_sha256, figure)


def check_resume(folder: Path, config: Config, stops: list[int]) -> Check:
    """Training stopped at a step and resumed gives the bits of the run that was not, which is in `one`."""
    whole = run_quietly(with_steps(config, folder / "one", _STEPS)).weights_sha256
    resumed = []
    for stop in stops:
        run_quietly(with_steps(config, folder / f"stop-{stop}", stop))
        resumed.append(run_quietly(with_steps(config, folder / f"stop-{stop}", _STEPS)).weights_sha256)
    same = resumed.count(whole)
    return Check("resume", same == len(stops), f"{same} of {len(stops)} resumed runs end with the same bits")


def _save(run_dir: Path, tensors: dict[str, torch.Tensor]) -> Path:
    make_directory(run_dir)
    return checkpoint.save(run_dir, 1, tensors, tensors, {}, Config(run_dir=str(run_dir)), ByteTokenizer())


@contextmanager
def _workplace(parent: Path) -> Iterator[Path]:
    """A temporary directory under `parent`, in which the cache is, too."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="gpt-selftest-", dir=parent)).absolute()
    except OSError as error:
        raise UserError(f"cannot work in {parent}: {error.strerror}", hint="name another place with --dir") from error
    cache = os.environ.get("GPT_CACHE")
    os.environ["GPT_CACHE"] = str(folder / "cache")
    try:
        yield folder
    finally:
        if cache is None:
            del os.environ["GPT_CACHE"]
        else:
            os.environ["GPT_CACHE"] = cache
        shutil.rmtree(folder, ignore_errors=True)
