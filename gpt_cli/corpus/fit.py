"""A config that suits a text and a machine, with the reasons in words."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpt_cli.config.schema import (
    CheckpointConfig,
    Config,
    DataConfig,
    EvalConfig,
    ModelConfig,
    OptimConfig,
    SampleConfig,
    ScheduleConfig,
    TokenizerConfig,
    TrainConfig,
)
from gpt_cli.corpus.sources import read_documents
from gpt_cli.corpus.store import is_store
from gpt_cli.errors import RequestError

_LARGEST_ALPHABET = 512  # more characters than this are better spelled in bytes or learned pieces
_PIECES_FROM = 20_000_000  # characters, from which on a GPU learns more from pieces of words
_VALIDATION = 1_000_000  # characters that are enough to measure on
_BYTES_PER_TOKEN = {"char": 1.0, "byte": 1.0, "bpe": 4.0}


@dataclass(frozen=True)
class _Shape:
    n_layer: int
    n_head: int
    n_embd: int
    batch_size: int


def fit_config(source: str, *, run_dir: str, has_gpu: bool, cores: int) -> tuple[Config, list[str]]:
    """A sensible config for a text and a machine with so many cores, and why it is like that, in sentences.

    Raises what `read_documents` raises, and RequestError for what cannot be read twice or is tokenized already.
    """
    if source == "-":
        raise RequestError("a config cannot be fitted to standard input, which is read once", hint="save it in a file")
    if is_store(Path(source)):
        raise RequestError(f"{source} is a token store, not text", hint="name it as data.source in a config")
    # What is left out of the text is said when it is read for training.
    text = "\n".join(document.text for document in read_documents(source, note=lambda _: None))
    tokenizer, spelling = _fit_tokenizer(text, has_gpu)
    val_fraction = 0.1 if len(text) <= 10 * _VALIDATION else round(_VALIDATION / len(text), 4)
    tokens = len(text.encode() if tokenizer.kind == "byte" else text) / _BYTES_PER_TOKEN[tokenizer.kind]
    shape = _fit_shape(tokens, has_gpu)
    context_length = _fit_context(tokens * val_fraction, 256 if has_gpu else 128)
    tokens_per_step = shape.batch_size * context_length
    most_steps = 3000 if has_gpu else 300 * min(max(cores, 2), 8)
    steps = min(max(100, math.ceil(20 * tokens / tokens_per_step)), most_steps)
    epochs = steps * tokens_per_step / tokens
    dropout = 0.2 if epochs > 10 else 0.1 if epochs > 3 else 0.0
    every = max(10, steps // 8)
    machine = "a GPU" if has_gpu else f"{cores} CPU cores"
    config = Config(
        run_dir=run_dir,
        data=DataConfig(source=source, val_fraction=val_fraction),
        tokenizer=tokenizer,
        model=ModelConfig(
            n_layer=shape.n_layer,
            n_head=shape.n_head,
            n_embd=shape.n_embd,
            context_length=context_length,
            dropout=dropout,
        ),
        optim=OptimConfig(weight_decay=0.2 if epochs > 10 else 0.1),
        schedule=ScheduleConfig(warmup_steps=min(20, steps // 10)),
        train=TrainConfig(steps=steps, batch_size=shape.batch_size),
        eval=EvalConfig(every=every),
        checkpoint=CheckpointConfig(every=every),
        sample=SampleConfig(every=every, prompt="\n" if "\n" in text else text[0]),
    )
    return config, [
        spelling,
        f"{val_fraction:.2%} of the text validates: {int(len(text) * val_fraction):,} characters.",
        f"{shape.n_layer} layers of width {shape.n_embd} suit {tokens:,.0f} tokens and {machine}.",
        f"It sees {context_length} tokens at once and the whole text {epochs:.1f} times, in {steps:,} steps.",
        f"Dropout {dropout} keeps it from learning the text by heart."
        if dropout
        else "No dropout: the text is long enough not to be learned by heart.",
    ]


def _fit_tokenizer(text: str, has_gpu: bool) -> tuple[TokenizerConfig, str]:
    alphabet = len(set(text))
    facts = f"{len(text):,} characters, {alphabet:,} of them distinct"
    if alphabet <= _LARGEST_ALPHABET and not (has_gpu and len(text) >= _PIECES_FROM):
        return TokenizerConfig(kind="char"), f"One token per character: the text has {facts}."
    for vocab_size, least in ((16384, 100_000_000), (8192, 20_000_000), (2048, 1_000_000)):
        if len(text) >= least and _has_words(text, vocab_size):
            config = TokenizerConfig(kind="bpe", vocab_size=vocab_size)
            return config, f"BPE with {vocab_size:,} tokens: the text has {facts}."
    kind: Literal["char", "byte"] = "char" if alphabet <= _LARGEST_ALPHABET else "byte"
    return TokenizerConfig(kind=kind), f"One token per {kind}, as it suits a text of {facts}."


def _has_words(text: str, number: int) -> bool:
    """Whether so many distinct words of two letters or more occur twice: each is a merge that BPE can learn."""
    once: set[str] = set()
    twice: set[str] = set()
    for match in re.finditer(r"[^\W\d_]{2,}", text):
        (twice if match[0] in once else once).add(match[0])
        if len(twice) == number:
            return True
    return False


def _fit_shape(tokens: float, has_gpu: bool) -> _Shape:
    if tokens < 50_000:
        return _Shape(n_layer=2, n_head=2, n_embd=64, batch_size=16)
    if not has_gpu:
        return _Shape(n_layer=4, n_head=4, n_embd=128, batch_size=16)
    if tokens < 5_000_000:
        return _Shape(n_layer=6, n_head=6, n_embd=384, batch_size=64)
    return _Shape(n_layer=12, n_head=12, n_embd=768, batch_size=64)


def _fit_context(validation_tokens: float, longest: int) -> int:
    """The largest power of two up to `longest` that fits several times into the validation split."""
    context_length = longest
    while context_length > 2 and context_length * 4 > validation_tokens:
        context_length //= 2
    return context_length
