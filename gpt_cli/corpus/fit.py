"""A config that suits a text and a machine, with the reasons in words."""

import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

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
from gpt_cli.corpus.sources import find_path
from gpt_cli.corpus.store import TokenStore, is_store
from gpt_cli.corpus.survey import Progress
from gpt_cli.corpus.text import Text
from gpt_cli.errors import RequestError

_LARGEST_ALPHABET = 512  # more characters than this are better spelled in bytes or learned pieces
_PIECES_FROM = 20_000_000  # characters, from which on a GPU learns more from pieces of words
_VALIDATION = 1_000_000  # characters that are enough to measure on


@dataclass(frozen=True)
class _Text:
    """What a config depends on."""

    tokens: float
    """Known, or about."""
    training_tokens: float
    """Those of the training split."""
    tokenizer: TokenizerConfig
    val_fraction: float
    prompt: str
    spelling: str
    """A sentence on how it becomes tokens."""


@dataclass(frozen=True)
class _Shape:
    n_layer: int
    n_head: int
    n_embd: int
    batch_size: int


def fit_config(
    source: str, *, run_dir: str, has_gpu: bool, cores: int, progress: Progress | None = None
) -> tuple[Config, list[str]]:
    """A sensible config for a text and a machine with so many cores, and why it is like that, in sentences.

    Raises what reading and `TokenStore.open` raise, and RequestError for standard input and for a source that is empty.
    """
    if not source or any("\ud800" <= character < "\ue000" for character in source):
        raise RequestError(f"the TEXT '{source}' is no name of a file that a config can hold")
    if source == "-":
        raise RequestError("a config cannot be fitted to standard input, which is read once", hint="save it in a file")
    path = find_path(source)
    text = _look_at_store(path) if is_store(path) else _look_at_text(source, has_gpu, progress)
    shape = _fit_shape(text.tokens, has_gpu)
    context_length = _fit_context(text.tokens * text.val_fraction, 256 if has_gpu else 128)
    tokens_per_step = shape.batch_size * context_length
    most_steps = 3000 if has_gpu else 300 * min(max(cores, 2), 8)
    steps = min(max(100, math.ceil(20 * text.training_tokens / tokens_per_step)), most_steps)
    epochs = steps * tokens_per_step / text.training_tokens
    dropout = 0.2 if epochs > 10 else 0.1 if epochs > 3 else 0.0
    # An evaluation goes through a token four times as fast as training: together they take some 3 % of the run.
    evaluations = 0.12 * steps * tokens_per_step / max(1.0, text.tokens * text.val_fraction)
    every = max(10, math.ceil(steps / min(max(2.0, evaluations), 8.0)))
    config = Config(
        run_dir=run_dir,
        data=DataConfig(source=source, val_fraction=text.val_fraction),
        tokenizer=text.tokenizer,
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
        sample=SampleConfig(every=every, prompt=text.prompt),
    )
    machine = "a GPU" if has_gpu else f"{cores} CPU cores"
    return config, [
        text.spelling,
        f"The last {100 * text.val_fraction:.3g}% of it validates.",
        f"{shape.n_layer} layers of width {shape.n_embd} suit {text.tokens:,.0f} tokens and {machine}.",
        f"It sees {context_length} tokens at once and its training text {epochs:.1f} times, in {steps:,} steps.",
        f"Dropout {dropout} keeps it from learning the text by heart."
        if dropout
        else "No dropout: the text is long enough not to be learned by heart.",
    ]


def _look_at_store(path: Path) -> _Text:
    store = TokenStore.open(path)
    tokens = sum(facts.tokens for facts in store.facts.values())
    kind = store.tokenizer.kind
    vocab_size = store.tokenizer.vocab_size if kind == "bpe" else None
    config = TokenizerConfig.model_validate({"kind": kind, "vocab_size": vocab_size})
    prompt = store.tokenizer.decode([0]) if store.tokenizer.unknown_characters("\n") else "\n"
    return _Text(
        tokens=tokens,
        training_tokens=store.facts["train"].tokens,
        tokenizer=config,
        val_fraction=store.division.val_fraction,
        prompt=prompt,
        spelling=f"{path} has {tokens:,} {kind} tokens.",
    )


def _look_at_text(source: str, has_gpu: bool, progress: Progress | None) -> _Text:
    # What is left out of the text is said when it is read for training.
    characters = size = 0
    alphabet: set[str] = set()
    start: list[str] = []  # enough of the text to count words in
    text = Text.find(DataConfig(source=source), lambda _: None)
    for number in range(len(text.members)):
        for block in text.blocks(number):
            said = block.text
            if characters < 10 * _VALIDATION:
                start.append(said)
            characters += len(said)
            size += len(block.data)
            alphabet.update(said)
            if progress is not None:
                progress("reading", size, text.size)
    config, spelling = _fit_tokenizer("\n".join(start), characters, len(alphabet), has_gpu)
    tokens = size / 4 if config.kind == "bpe" else size if config.kind == "byte" else characters
    val_fraction = 0.1 if characters <= 10 * _VALIDATION else round(_VALIDATION / characters, 4)
    return _Text(
        tokens=tokens,
        training_tokens=tokens * (1 - val_fraction),
        tokenizer=config,
        val_fraction=val_fraction,
        prompt="\n" if "\n" in alphabet else start[0][0],
        spelling=spelling,
    )


def _fit_tokenizer(start: str, characters: int, alphabet: int, has_gpu: bool) -> tuple[TokenizerConfig, str]:
    facts = f"the text has {characters:,} characters, {alphabet:,} distinct ones"
    few = alphabet <= _LARGEST_ALPHABET
    if not few or (has_gpu and characters >= _PIECES_FROM):
        words = _count_words(start[: min(characters * 9 // 10, 10 * _VALIDATION)])
        for vocab_size, least in ((16384, 100_000_000), (8192, 20_000_000), (2048, 1_000_000)):
            if characters >= least and words >= vocab_size:
                return TokenizerConfig(kind="bpe", vocab_size=vocab_size), f"BPE with {vocab_size:,} tokens: {facts}."
    if few:
        return TokenizerConfig(kind="char"), f"One token per character: {facts}."
    return TokenizerConfig(kind="byte"), f"One token per byte: {facts}."


def _count_words(text: str) -> int:
    """Distinct words of two letters or more that occur twice or more: each is a merge that BPE can learn."""
    return sum(count > 1 for count in Counter(re.findall(r"[^\W\d_]{2,}", text)).values())


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
