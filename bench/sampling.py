"""Tokens/s of text written on this CPU: `python -m bench.sampling [--yardstick FILE TEXT] [--run RUN --text FILE]
[--draft RUN] [--only SECTION]`.

Untrained models of two shapes, 0.8M parameters with a context of 64 and 10.65M with one of 256, written by torch and
by the native engine in each of its formats, beside transformers' generate() where that is installed and beside a
yardstick's `FILE TEXT --sample 500`. Ways take turns, so that what else the machine does meets all of them; medians
of --rounds. With --run, what the formats cost in bits per character on a text, int4 among them, which is not offered,
and what drafts win (--draft: a smaller run among them). Prints tables, and writes bench/out/sampling.json.
"""

import argparse
import importlib.util
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpt_cli.config import Config, ModelConfig
from gpt_cli.cpu.decode.decoder import Decoder, DraftOptions, NativeDecoder
from gpt_cli.cpu.decode.numpy_decoder import NumpyDecoder
from gpt_cli.cpu.decode.numpy_sampler import TokenChoice
from gpt_cli.cpu.decode.weight_formats import FORMATS
from gpt_cli.cpu.decode.weights import Weights, read_weights
from gpt_cli.model.gpt import GPT
from gpt_cli.run.arrays import unpack_arrays
from gpt_cli.run.checkpoint import save
from gpt_cli.run.draft import open_draft
from gpt_cli.run.open_checkpoint import open_checkpoint
from gpt_cli.run.tensors import pack_tensors
from gpt_cli.sampling.generate import generate
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.terminal.table import render_table
from gpt_cli.tokenizer import CharTokenizer

OUT = Path(__file__).parent / "out" / "sampling.json"
VOCAB_SIZE = 65
SMALL = ModelConfig(context_length=64)
MEDIUM = ModelConfig(
    n_layer=6, n_head=6, n_embd=384, context_length=256, position="learned", norm="layernorm", mlp="gelu",
    qk_norm=False, tie_embeddings=True,
)  # fmt: skip
Ways = dict[str, Callable[[], float]]  # each measures itself once: tokens/s, or seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--yardstick", nargs=2, metavar=("FILE", "TEXT"), help="another sampler, and its text")
    parser.add_argument("--run", type=Path, help="a trained run whose bits per character are compared")
    parser.add_argument("--text", type=Path, help="the text for that; its last tenth is scored")
    parser.add_argument("--draft", type=Path, help="a smaller run that guesses for it")
    parser.add_argument("--only", action="append", help="a section: small medium batch many flat start bits draft")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    torch.set_num_threads(1)  # what `gpt sample` sets for one text
    record: dict[str, Any] = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "threads": options.threads,
        "load": os.getloadavg(),
    }
    sections = {
        "small": lambda: measure_small(options),
        "medium": lambda: measure_medium(options),
        "batch": lambda: measure_batch(options),
        "many": lambda: measure_many(options),
        "flat": lambda: measure_flat(options),
        "start": lambda: measure_start(options),
    }
    if options.run and options.text:
        sections["bits"] = lambda: measure_bits(options.run, options.text)
        sections["draft"] = lambda: measure_drafts(options)
    for name, section in sections.items():
        if not options.only or name in options.only:
            record[name] = section()
    if not options.only:
        record["aims"] = judge(record)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"\nrecord: {OUT}")


def measure_small(options: argparse.Namespace) -> dict[str, float]:
    model = build(SMALL)
    ways = engines(model, 500, options.threads)
    if options.yardstick and Path(options.yardstick[0]).is_file():
        ways = {"yardstick, no cache": lambda: yardstick(*options.yardstick), **ways}
    return show("0.8M, context 64, 500 tokens", "tokens/s", race(ways, options.rounds))


def measure_medium(options: argparse.Namespace) -> dict[str, float]:
    ways = engines(build(MEDIUM), 240, options.threads)
    if importlib.util.find_spec("transformers"):
        ways = {"transformers generate()": huggingface(240), **ways}
    return show("10.65M, context 256, 240 tokens", "tokens/s", race(ways, options.rounds))


def measure_batch(options: argparse.Namespace) -> dict[str, float]:
    model = build(SMALL)
    decoders = native(model, options.threads)
    ways: Ways = {"torch, 1 text": lambda: by_torch(model, 1, 100), "torch, 64 texts": lambda: by_torch(model, 64, 100)}
    for name, decoder in decoders.items():
        for n in (1, 64) if name != "NumPy" else ():
            ways[f"{name}, {n} text{'s'[: n > 1]}"] = lambda decoder=decoder, n=n: by_decoder(decoder, n, 300)
    return show("0.8M, texts at once", "tokens/s of all", race(ways, options.rounds))


def measure_many(options: argparse.Namespace) -> dict[str, float]:
    """64 texts over one, of either model, by format, threads and length: a short text has few keys to read."""
    figures: dict[str, float] = {}
    rows = []

    def compare(label: str, one: Callable[[], float], many: Callable[[], float]) -> None:
        speeds = race({"1": one, "64": many}, options.rounds)
        figures.update({f"{label}, {n}": figure for n, figure in speeds.items()})
        rows.append((label, f"{speeds['1']:,.0f}", f"{speeds['64']:,.0f}", f"{speeds['64'] / speeds['1']:.1f}"))

    for name, config, lengths in (("0.8M", SMALL, (60, 300)), ("10.65M", MEDIUM, (60, 120, 240))):
        model = build(config)
        weights = weights_of(model)
        for way, threads, size in product(("torch", *FORMATS), sorted({1, options.threads}), lengths):
            label = f"{name} {way}, {threads} thread{'s'[: threads > 1]}, {size} tokens"
            if way == "torch":
                torch.set_num_threads(threads)
                one, many = (partial(by_torch, model, n, size) for n in (1, 64))
            else:
                decoder = NativeDecoder(weights, format=way, threads=threads)
                one, many = (partial(by_decoder, decoder, n, size) for n in (1, 64))
            compare(label, one, many)
        torch.set_num_threads(1)
    print(f"\n{render_table(rows, header=('tokens/s of all', '1 text', '64 texts', 'ratio'))}", flush=True)
    return figures


def measure_flat(options: argparse.Namespace) -> dict[str, float]:
    """Tokens/s of stretches of 512 tokens, far within and far past what the model sees."""
    decoder = NativeDecoder(weights_of(build(SMALL)), threads=options.threads)
    writing = decoder.start([[1]], [1], TokenChoice(0.8))
    writing.decode(64)
    stretches: list[float] = []
    for _ in range(40):
        started = time.perf_counter()
        writing.decode(512)
        stretches.append(512 / (time.perf_counter() - started))
    ends = {"tokens 64 to 5,184": stretches[:10], "tokens 15,424 to 20,544": stretches[-10:]}
    return show(
        "past the context, 0.8M fp32", "tokens/s", {name: statistics.median(part) for name, part in ends.items()}
    )


def measure_start(options: argparse.Namespace) -> dict[str, float]:
    """Seconds of whole processes."""
    with tempfile.TemporaryDirectory() as folder:
        config = Config(model=SMALL)
        tokenizer = CharTokenizer("".join(map(chr, range(32, 32 + VOCAB_SIZE))))
        path = save(Path(folder), 1, build(SMALL).state_dict(), {}, {}, config, tokenizer)
        sample = [sys.executable, "-m", "gpt_cli", "sample", "--run", str(path), "--prompt", "A", "--seed", "1"]
        first = [*sample, "--max-new-tokens", "1"]
        # Modules are compiled once, as for every user, also where Python has been told not to keep what it compiles.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

        def seconds(*command: str) -> Callable[[], float]:
            def measure() -> float:
                started = time.perf_counter()
                subprocess.run(command, check=True, capture_output=True, env=environment)
                return time.perf_counter() - started

            return measure

        ways = {
            "import torch": seconds(sys.executable, "-c", "import torch"),
            "gpt sample, 1 token": seconds(*first),
            "gpt sample, 1 token, by torch": seconds(*first, "--engine", "torch"),
            "gpt sample, 20,000 tokens": seconds(*sample, "--max-new-tokens", "20000"),
        }
        return show("whole processes", "seconds", race(ways, options.rounds))


def measure_bits(run: Path, text: Path) -> dict[str, float]:
    """Bits per character of the last tenth of a text, in windows of a context, by format."""
    saved = open_checkpoint(run, print)
    whole = text.read_text(encoding="utf-8")
    tokens = saved.tokenizer.encode(whole[len(whole) * 9 // 10 :])
    weights = read_weights(saved.config.model, saved.tokenizer.vocab_size, saved.model_arrays)
    context = saved.config.model.context_length
    bits: dict[str, float] = {}
    decoders = {name: NativeDecoder(weights, format=name) for name in FORMATS}
    for size in (32, 128):
        decoders[f"int4, groups of {size}"] = NativeDecoder(int4(weights, size))
    for name, decoder in decoders.items():
        nats, n = 0.0, 0
        for start in range(0, len(tokens) - context, context):
            window = tokens[start : start + context + 1].astype(np.int64)
            logits = decoder.score(window[:-1].tolist()).astype(np.float64)
            logits -= logits.max(axis=1, keepdims=True)
            nats -= float((logits[np.arange(context), window[1:]] - np.log(np.exp(logits).sum(axis=1))).sum())
            n += context
        bits[name] = nats / n / math.log(2)
    rows = [(name, f"{b:.5f}", f"{b - bits['fp32']:+.5f}") for name, b in bits.items()]
    print(f"\n{render_table(rows, header=('weights', 'bits per token', 'loss'))}")
    return bits


def int4(weights: Weights, size: int) -> Weights:
    """The weights as int4 would keep them: `size` inputs of an output share a scale, which is fp16."""

    def rounded(matrix: Any) -> Any:
        padded = np.pad(matrix, ((0, 0), (0, -matrix.shape[1] % size)))
        groups = padded.reshape(len(matrix), -1, size)
        scale = (np.abs(groups).max(axis=-1, keepdims=True) / 7).astype(np.float16).astype(np.float32)
        whole = np.rint(np.divide(groups, scale, out=np.zeros_like(groups), where=scale > 0)).clip(-8, 7)
        return np.ascontiguousarray((whole * scale).reshape(padded.shape)[:, : matrix.shape[1]])

    names = ("qkv", "out", "up", "down")
    layers = tuple(
        replace(layer, **{name: rounded(getattr(layer, name)) for name in names}) for layer in weights.layers
    )
    return replace(weights, layers=layers, head=rounded(weights.head))


def measure_drafts(options: argparse.Namespace) -> dict[str, float]:
    """Tokens/s of one text of a trained run, by what guesses for it; each writes the same text."""
    saved = open_checkpoint(options.run, print)
    weights = read_weights(saved.config.model, saved.tokenizer.vocab_size, saved.model_arrays)
    whole = options.text.read_text(encoding="utf-8")
    known = saved.tokenizer.encode(whole[: len(whole) * 9 // 10]).tolist()
    prompt = saved.tokenizer.encode("ROMEO:\n").tolist()
    drafts: dict[str, DraftOptions | None] = {
        "no draft": None,
        "ngram": DraftOptions(),
        "the training text": DraftOptions(text=known),
    }
    if options.draft:
        drafts["a smaller run"] = open_draft(options.draft, saved.tokenizer, print)
    figures: dict[str, float] = {}
    for format, temperature in product(FORMATS, (0.8, 0.0)):
        decoder = NativeDecoder(weights, format=format, threads=options.threads)
        texts: dict[str, list[list[int]]] = {}

        def write(name: str, decoder: NativeDecoder = decoder, temperature: float = temperature) -> float:
            writing = decoder.start([prompt], [1], TokenChoice(temperature), drafts[name])
            writing.decode(16)
            started = time.perf_counter()
            texts[name] = writing.decode(600)  # noqa: B023 - called before the loop goes on
            return 600 / (time.perf_counter() - started)

        ways: Ways = {name: lambda name=name, write=write: write(name) for name in drafts}
        speeds = race(ways, options.rounds)
        assert all(text == texts["no draft"] for text in texts.values())
        title = f"{sum(array.size for array in saved.model_arrays.values()):,} parameters, {format}"
        show(f"{title}, temperature {temperature}", "tokens/s", speeds)
        figures |= {f"{format}, temperature {temperature}, {name}": figure for name, figure in speeds.items()}
    return figures


def judge(record: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Each aim beside what was reached, in times."""
    small, medium, batch, start = (record[name] for name in ("small", "medium", "batch", "start"))
    near, far = record["flat"].values()
    threads = f"{record['threads']} thread{'s'[: record['threads'] > 1]}"
    aims: dict[str, tuple[float, float]] = {
        "0.8M fp32, of 40,000 tokens/s": (small["native fp32"] / 40_000, 1),
        "64 texts over torch's one": (batch["native fp32, 64 texts"] / batch["torch, 1 text"], 15),
        "64 texts over the kernel's one": (batch["native fp32, 64 texts"] / batch["native fp32, 1 text"], 15),
        "10.65M, 64 texts over the kernel's one, bf16": (
            record["many"][f"10.65M bf16, {threads}, 240 tokens, 64"]
            / record["many"][f"10.65M bf16, {threads}, 240 tokens, 1"],
            15,
        ),
        "64 texts over the kernel's one, a thread": (
            batch["native fp32, 64 texts"] / batch["native fp32, 1 thread, 1 text"],
            15,
        ),
        "0.8M int8, one thread, of 40,000 tokens/s": (small["native int8, 1 thread"] / 40_000, 1),
        "import torch over the first token": (start["import torch"] / start["gpt sample, 1 token"], 1 / 1.3),
        "far past the context over near": (far / near, 0.95),
    }
    if "yardstick, no cache" in small:
        aims["0.8M fp32 over the yardstick"] = (small["native fp32"] / small["yardstick, no cache"], 10)
    if "transformers generate()" in medium:
        theirs = medium["transformers generate()"]
        aims["10.65M fp32 over transformers"] = (medium["native fp32"] / theirs, 3)
        aims["10.65M bf16 over transformers"] = (medium["native bf16"] / theirs, 5)
    rows = [
        (name, f"{ratio:.2f}", f"{aim:.2f}", "yes" if ratio >= aim else "no") for name, (ratio, aim) in aims.items()
    ]
    print(f"\n{render_table(rows, header=('aim', 'times', 'asked', 'reached'))}")
    return {name: {"times": times, "asked": asked} for name, (times, asked) in aims.items()}


def engines(model: GPT, n_token: int, threads: int) -> Ways:
    """One text, written in each way."""
    ways: Ways = {"torch": lambda: by_torch(model, 1, min(n_token, 240))}
    for name, decoder in native(model, threads).items():
        ways[name] = lambda decoder=decoder: by_decoder(decoder, 1, n_token)
    return ways


def native(model: GPT, threads: int) -> dict[str, Decoder]:
    weights = weights_of(model)
    decoders: dict[str, Decoder] = {"NumPy": NumpyDecoder(weights)}
    decoders |= {f"native {name}, 1 thread": NativeDecoder(weights, format=name) for name in FORMATS}
    return decoders | {f"native {name}": NativeDecoder(weights, format=name, threads=threads) for name in FORMATS}


def by_torch(model: GPT, n: int, n_token: int) -> float:
    started = time.perf_counter()
    for _ in generate(model, [[1]] * n, SamplingParams(max_new_tokens=n_token, seed=1)):
        pass
    return n * n_token / (time.perf_counter() - started)


def by_decoder(decoder: Decoder, n: int, n_token: int) -> float:
    if decoder.engine == "numpy":
        n_token = min(n_token, 100)
    writing = decoder.start([[1]] * n, list(range(n)), TokenChoice(0.8))
    writing.decode(1)
    started = time.perf_counter()
    done = 0
    while done < n_token:
        done += len(writing.decode(min(48, n_token - done)))
    return n * n_token / (time.perf_counter() - started)


def huggingface(n_token: int) -> Callable[[], float]:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = GPT2Config(vocab_size=VOCAB_SIZE, n_positions=256, n_embd=384, n_layer=6, n_head=6)
    theirs = GPT2LMHeadModel(shape).eval()
    settings = {"do_sample": True, "temperature": 0.8, "top_k": 0, "use_cache": True, "pad_token_id": 0}

    def measure() -> float:
        prompt = torch.ones(1, 1, dtype=torch.long)
        started = time.perf_counter()
        with torch.inference_mode():
            theirs.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=n_token, min_new_tokens=n_token,
                eos_token_id=None, **settings,
            )  # fmt: skip
        return n_token / (time.perf_counter() - started)

    return measure


def yardstick(file: str, text: str) -> float:
    done = subprocess.run([sys.executable, file, text, "--sample", "500"], check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["sample_tokens_per_s"])


def build(config: ModelConfig) -> GPT:
    torch.manual_seed(0)
    return GPT(config.model_copy(update={"zero_init": False}), VOCAB_SIZE).eval()


def weights_of(model: GPT) -> Any:
    return read_weights(model.config, VOCAB_SIZE, unpack_arrays(pack_tensors(model.state_dict()), "model"))


def race(ways: Ways, rounds: int) -> dict[str, float]:
    """The median of each way, by turns, after a round that does not count."""
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds + 1):
        for name, measure in ways.items():
            time.sleep(0.1)  # until the threads of the way before, which wait spinning, are asleep
            figure = measure()
            if round_:
                speeds[name].append(figure)
    return {name: statistics.median(figures) for name, figures in speeds.items()}


def show(title: str, unit: str, figures: dict[str, float]) -> dict[str, float]:
    first = next(iter(figures.values()))
    rows = [
        (name, f"{value:,.2f}" if value < 100 else f"{value:,.0f}", f"{value / first:.2f}")
        for name, value in figures.items()
    ]
    print(f"\n{render_table(rows, header=(title, unit, 'ratio'))}", flush=True)
    return figures


if __name__ == "__main__":
    main()
