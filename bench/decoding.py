"""Measure text generation on this CPU: tokens/s of each engine and format, start-up, bits per character.

    python -m bench.decoding [--yardstick FILE TEXT] [--only PART]
    python -m bench.decoding --only bits --run RUN --text FILE

Two untrained models, of 0.8M parameters with a context of 64 and of 10.65M with one of 256, generate with torch, NumPy
and the native engine in each format, beside transformers' generate() if it is installed and beside a yardstick's
`FILE TEXT --sample 500`, which prints `sample_tokens_per_s`. Figures are medians of --rounds, in which ways take turns.

- small, medium: one text of the small and of the larger model
- batch: 64 texts over one, by model, engine, threads and length
- start: seconds of whole processes
- bits: bits per token of a trained run in each format, on the last tenth of a text
"""

import argparse
import importlib.util
import math
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.common import gpt, in_turn, make_run, medians, printed, run, show, write_record
from gpt_cli.cores import usable_cores
from gpt_cli.cpu.decode.decoder import Decoder, NativeDecoder
from gpt_cli.cpu.decode.numpy_decoder import NumpyDecoder
from gpt_cli.cpu.decode.numpy_sampler import TokenChoice
from gpt_cli.cpu.decode.weight_formats import FORMATS
from gpt_cli.cpu.decode.weights import Weights, read_weights
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import Checkpoint
from gpt_cli.run.open_checkpoint import build_torch_model, open_checkpoint
from gpt_cli.sampling.generate import generate
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.terminal.table import render_table

SMALL = {"context_length": 64}
GPT2_LAYOUT = {"position": "learned", "norm": "layernorm", "mlp": "gelu", "qk_norm": False, "tie_embeddings": True}
MEDIUM = {"n_layer": 6, "n_head": 6, "n_embd": 384, "context_length": 256, **GPT2_LAYOUT}
Figures = dict[str, float]
Ways = dict[str, Callable[[], float]]


def small(options: Namespace) -> Figures:
    """Measure one text of 500 tokens by the small model."""
    ways = one_text(SMALL, 500, options.threads)
    if options.yardstick:
        command = [sys.executable, *options.yardstick, "--sample", "500"]
        ways = {"yardstick, no cache": lambda: printed(command)["sample_tokens_per_s"], **ways}
    return show("0.8M, context 64, 500 tokens", "tokens/s", race(ways, options))


def medium(options: Namespace) -> Figures:
    """Measure one text of 240 tokens by the larger model."""
    ways = one_text(MEDIUM, 240, options.threads)
    if importlib.util.find_spec("transformers"):
        ways = {"transformers generate()": huggingface(240), **ways}
    return show("10.65M, context 256, 240 tokens", "tokens/s", race(ways, options))


def batch(options: Namespace) -> Figures:
    """Measure 64 texts over one: short texts have few keys to read."""
    figures, rows = {}, []
    for name, shape, lengths in (("0.8M", SMALL, (60, 300)), ("10.65M", MEDIUM, (60, 120, 240))):
        model, weights = load(shape)
        for way, threads, n_token in product(("torch", *FORMATS), sorted({1, options.threads}), lengths):
            torch.set_num_threads(threads)
            if way == "torch":
                speed = partial(by_torch, model, n_token=n_token)
            else:
                decoder = NativeDecoder(weights, format=way, threads=threads)
                speed = partial(by_decoder, decoder, n_token=n_token)
            speeds = race({"1": partial(speed, n=1), "64": partial(speed, n=64)}, options)
            label = f"{name} {way}, {threads} thread{'s'[: threads > 1]}, {n_token} tokens"
            figures |= {f"{label}, {n}": figure for n, figure in speeds.items()}
            rows.append((label, f"{speeds['1']:,.0f}", f"{speeds['64']:,.0f}", f"{speeds['64'] / speeds['1']:.1f}"))
    torch.set_num_threads(1)
    print(f"\n{render_table(rows, header=('tokens/s of all', '1 text', '64 texts', 'ratio'), right=(1, 2, 3))}")
    return figures


def start(options: Namespace) -> Figures:
    """Measure the seconds of whole processes."""
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        sample = gpt("sample", "--run", str(make_run(Path(folder, "run"), **SMALL)), "--prompt", "A", "--seed", "1")
        commands = {
            "import torch": [sys.executable, "-c", "import torch"],
            "gpt sample, 1 token": [*sample, "--max-new-tokens", "1"],
            "gpt sample, 1 token, by torch": [*sample, "--max-new-tokens", "1", "--engine", "torch"],
            "gpt sample, 20,000 tokens": [*sample, "--max-new-tokens", "20000"],
        }
        ways: Ways = {name: lambda command=command: run(command)[1] for name, command in commands.items()}
        return show("whole processes", "seconds", race(ways, options))


def bits(options: Namespace) -> Figures:
    """Measure bits per token of the last tenth of a text, in windows of a context."""
    saved = open_checkpoint(options.run, print)
    text = options.text.read_text(encoding="utf-8")
    tokens = saved.tokenizer.encode(text[len(text) * 9 // 10 :]).astype(np.int64)
    context = saved.config.model.context_length
    figures = {}
    for name in FORMATS:
        decoder, nats = NativeDecoder(weights_of(saved), format=name), []
        for first in range(0, len(tokens) - context, context):
            window = tokens[first : first + context + 1]
            logits = decoder.score(window[:-1].tolist()).astype(np.float64)
            logits -= logits.max(axis=1, keepdims=True)
            nats.append(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(context), window[1:]])
        figures[name] = float(np.mean(nats)) / math.log(2)
    rows = [(name, f"{figure:.5f}", f"{figure - figures['fp32']:+.5f}") for name, figure in figures.items()]
    print(f"\n{render_table(rows, header=('weights', 'bits per token', 'loss'), right=(1, 2))}")
    return figures


def load(shape: dict[str, Any]) -> tuple[GPT, Weights]:
    """Return an untrained model for torch and its weights for the other engines."""
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        saved = open_checkpoint(make_run(Path(folder, "run"), **shape), print)
        return build_torch_model(saved, "cpu"), weights_of(saved)


def weights_of(saved: Checkpoint) -> Weights:
    """Return the weights of a checkpoint."""
    return read_weights(saved.config.model, saved.tokenizer.vocab_size, saved.model_arrays)


def one_text(shape: dict[str, Any], n_token: int, threads: int) -> Ways:
    """Return the ways to generate one text."""
    model, weights = load(shape)
    decoders: dict[str, Decoder] = {"NumPy": NumpyDecoder(weights)}
    decoders |= {f"native {name}, 1 thread": NativeDecoder(weights, format=name) for name in FORMATS}
    decoders |= {f"native {name}": NativeDecoder(weights, format=name, threads=threads) for name in FORMATS}
    ways: Ways = {name: partial(by_decoder, decoder, 1, n_token) for name, decoder in decoders.items()}
    return {"torch": partial(by_torch, model, 1, min(n_token, 240)), **ways}


def by_torch(model: GPT, n: int, n_token: int) -> float:
    """Return tokens/s of `n` texts."""
    started = time.perf_counter()
    for _ in generate(model, [[1]] * n, SamplingParams(max_new_tokens=n_token, seed=1)):
        pass
    return n * n_token / (time.perf_counter() - started)


def by_decoder(decoder: Decoder, n: int, n_token: int) -> float:
    """Return tokens/s of `n` texts, without their first tokens."""
    n_token = min(n_token, 100) if decoder.engine == "numpy" else n_token
    writing = decoder.start([[1]] * n, list(range(n)), TokenChoice(0.8))
    writing.decode(1)
    started, done = time.perf_counter(), 0
    while done < n_token:
        done += len(writing.decode(min(48, n_token - done)))
    return n * n_token / (time.perf_counter() - started)


def huggingface(n_token: int) -> Callable[[], float]:
    """Return the measurement of transformers with a model of the larger size."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=65, n_positions=256, n_embd=384, n_layer=6, n_head=6)).eval()
    prompt = torch.ones(1, 1, dtype=torch.long)
    settings = {"do_sample": True, "temperature": 0.8, "top_k": 0, "use_cache": True, "pad_token_id": 0}
    length = {"max_new_tokens": n_token, "min_new_tokens": n_token, "eos_token_id": None}

    def measure() -> float:
        started = time.perf_counter()
        with torch.inference_mode():
            model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings, **length)
        return n_token / (time.perf_counter() - started)

    return measure


def race(ways: Ways, options: Namespace) -> Figures:
    """Return the median of each way, after a round that does not count."""
    return medians(in_turn(ways, options.rounds, warm_up=True))


PARTS = {"small": small, "medium": medium, "batch": batch, "start": start, "bits": bits}


def main() -> None:
    """Measure what is asked for, print tables, write bench/out/decoding.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yardstick", nargs=2, metavar=("FILE", "TEXT"), help="another sampler, and its text")
    parser.add_argument("--run", type=Path, help="a trained run, for `bits`")
    parser.add_argument("--text", type=Path, help="the text for `bits`")
    parser.add_argument("--only", action="append", choices=PARTS, help="one of the parts; repeatable")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(usable_cores()))
    options = parser.parse_args()
    torch.set_num_threads(1)  # what `gpt sample` sets for one text
    has_run = options.run is not None and options.text is not None
    if "bits" in (options.only or ()) and not has_run:
        parser.error("bits needs --run RUN and --text FILE")
    parts = options.only or [part for part in PARTS if part != "bits" or has_run]
    record: dict[str, Any] = {part: PARTS[part](options) for part in parts}
    write_record("decoding", options.only, {"rounds": options.rounds, "threads": options.threads, **record})


if __name__ == "__main__":
    main()
