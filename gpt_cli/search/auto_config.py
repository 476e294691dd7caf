"""A config that suits a text and a machine, with the reasons in words."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from gpt_cli.config.schema import Config, DataConfig
from gpt_cli.corpus.corpus_text import CorpusText
from gpt_cli.corpus.scan import StageProgress
from gpt_cli.corpus.sources import find_path
from gpt_cli.corpus.store import TokenStore, is_store
from gpt_cli.corpus.vocab_size import choose_vocab_size
from gpt_cli.errors import RequestError
from gpt_cli.literals import TokenizerKind
from gpt_cli.tokenizer import load_tokenizer

_LARGEST_ALPHABET = 512  # more characters than this are better spelled in bytes or learned pieces
_PIECES_FROM = 20_000_000  # characters, from which on a GPU learns more from pieces of words
_FEWEST_PIECES = 2_048  # learned tokens that are worth it, where one per byte would do
_VALIDATION = 1_000_000  # characters that are enough to measure on
_BYTES_PER_TOKEN = (
    *((256, 1.0), (300, 1.4), (384, 1.9), (512, 2.3), (1_024, 2.8)),
    *((4_096, 3.6), (16_384, 4.2), (50_257, 4.5)),
)
"""Bytes per token of a BPE of so many ids, on English."""
_ENCODED = 200_000  # characters that tell how many tokens of a ready tokenizer a text has
_EPOCHS = 20  # of a text that a model learns from scratch; a trained one needs fewer
_TUNING_EPOCHS = 3

_READING = ("source", "weights", "encoding", "text_key", "val_source")  # keys of data that say what is read, and how

ConfigValues = Mapping[str, Any]
"""Dotted keys of the config and their values."""


@dataclass(frozen=True)
class _TextFacts:
    """Statistics of a text from which a config is chosen."""

    tokens: float
    """Known, or about; of both splits."""
    training_tokens: float
    validation_tokens: float
    chosen: ConfigValues
    """Values that the text decides: keys of data, tokenizer and sample."""
    spelling: str
    """A sentence on how it becomes tokens."""
    division: str
    """A sentence on what is held out."""
    counted: bool = True
    """True if the tokens are counted, not estimated."""


@dataclass(frozen=True)
class _ModelSize:
    n_layer: int
    n_head: int
    n_embd: int
    batch_size: int


def fit_config(
    given: ConfigValues,
    *,
    run_dir: str,
    has_gpu: bool,
    cores: int,
    base: ConfigValues | None = None,
    progress: StageProgress | None = None,
) -> tuple[Config, list[str]]:
    """A sensible config for a text and a machine with so many cores, and why it is like that, in sentences.

    `given` is what somebody asked for, `data.source` at least: the rest is fitted to it, and the sentences tell of the
    run that it makes, but it is for the caller to lay over the config (a value may be at odds with another, which has
    to be told with its place). `base` is what a trained model brings along that is trained further.

    Raises what reading and `TokenStore.open` raise, and RequestError for standard input and for a source that is empty.
    """
    fixed = {**(base or {}), **given}
    sources = [given["data.source"]] if isinstance(given["data.source"], str) else given["data.source"]
    for source in sources:
        if any("\ud800" <= character < "\ue000" for character in source):
            hint = "rename it: a config holds UTF-8 alone"
            raise RequestError(f"the TEXT '{source}' is no name of a file that a config can hold", hint=hint)
        if not source:
            raise RequestError("the TEXT is empty, which names no file")
        if source == "-":
            raise RequestError(
                "a config cannot be fitted to standard input, which is read once",
                hint="`gpt train -` keeps it in a file and fits a config to that",
            )
    form = fixed.get("data.format", "text")
    if form not in ("text", "labelled"):
        raise RequestError(
            f"a config is fitted to text, not to {form}",
            hint=_hint_at_config(fixed, f"data.format={form}", sources[0]),
        )
    if form == "labelled" or fixed.get("task.kind", "language") != "language":
        raise RequestError(
            "a config is fitted to text, not to classes",
            hint=_hint_at_config(fixed, "task.kind=classes data.format=labelled sample.every=null", sources[0]),
        )
    path = find_path(sources[0])
    data = DataConfig(**{key: given[f"data.{key}"] for key in _READING if f"data.{key}" in given})
    is_tokens = len(sources) == 1 and is_store(path)
    text = _scan_store(path) if is_tokens else _scan_text(data, fixed, has_gpu, progress)

    shape = _fit_shape(text.tokens, has_gpu, fixed)
    chosen: dict[str, Any] = {**text.chosen, "run_dir": run_dir, "data.source": given["data.source"]}
    chosen |= {"model.n_layer": shape.n_layer, "model.n_head": shape.n_head, "model.n_embd": shape.n_embd}
    chosen["train.batch_size"] = shape.batch_size
    chosen["model.context_length"] = _fit_context(text.validation_tokens, 256 if has_gpu else 128)

    plan = {**chosen, **fixed}
    tokens_per_step = plan["train.batch_size"] * plan["model.context_length"]
    most_steps = 3000 if has_gpu else 300 * min(max(cores, 2), 8)
    passes = _EPOCHS if base is None else _TUNING_EPOCHS
    chosen["train.steps"] = min(max(100, math.ceil(passes * text.training_tokens / tokens_per_step)), most_steps)
    steps = fixed.get("train.steps", chosen["train.steps"])
    epochs = steps * tokens_per_step / max(1.0, text.training_tokens)
    chosen["model.dropout"] = 0.2 if epochs > 10 else 0.1 if epochs > 3 else 0.0
    chosen["schedule.warmup_steps"] = min(20, steps // 10)
    if base is None:
        chosen["optim.weight_decay"] = 0.2 if epochs > 10 else 0.1
    # An evaluation goes through a token four times as fast as training: together they take some 3 % of the run.
    evaluations = 0.12 * steps * tokens_per_step / max(1.0, text.validation_tokens)
    every = max(1, min(10, steps), math.ceil(steps / min(max(2.0, evaluations), 8.0)))
    chosen |= {"eval.every": every, "checkpoint.every": every, "sample.every": every}

    machine = "a GPU" if has_gpu else f"{cores} CPU cores"
    sentences = _explain({**chosen, **fixed}, given, text, machine, epochs)
    if base is not None:
        del sentences[2]  # the shape is that of the base
    return _config({**chosen, **(base or {})}), sentences


def _explain(plan: ConfigValues, given: ConfigValues, text: _TextFacts, machine: str, epochs: float) -> list[str]:
    steps, context, dropout = plan["train.steps"], plan["model.context_length"], plan["model.dropout"]
    layers = f"{plan['model.n_layer']} layer{'s' * (plan['model.n_layer'] != 1)} of width {plan['model.n_embd']}"
    asked = given.keys() & {"model.n_layer", "model.n_embd"}
    length = f"in {steps:,} step{'s' * (steps != 1)}"
    shape = f"{layers}, as asked." if asked else f"{layers} suit {text.tokens:,.0f} tokens and {machine}."
    reading = f"It sees {context} tokens at once and its training text {epochs:.1f} times, {length}."
    if epochs < 0.995:
        share = f"{'' if text.counted else 'about '}{100 * epochs:.2g}%"
        enough = f": train.steps={math.ceil(steps / max(epochs, 1e-9))} reads all of it once." if text.counted else "."
        reading = f"It sees {context} tokens at once and {share} of its training text, {length}{enough}"
    if "model.dropout" in given:
        regular = f"Dropout {dropout}, as asked."
    elif dropout:
        regular = f"Dropout {dropout} keeps it from memorising the text."
    else:
        regular = "No dropout: the text is long enough not to be memorised."
    return [text.spelling, text.division, shape, reading, regular]


def _config(chosen: ConfigValues) -> Config:
    nested: dict[str, Any] = {}
    for key, value in chosen.items():
        section, _, name = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[name] = value
    return Config.model_validate(nested)


def _scan_store(path: Path) -> _TextFacts:
    store = TokenStore.open(path)
    tokens = sum(facts.tokens for facts in store.facts.values())
    kind = store.tokenizer.kind
    prompt = store.tokenizer.decode([0]) if store.tokenizer.unknown_characters("\n") else "\n"
    chosen = {
        "tokenizer.kind": kind,
        "tokenizer.vocab_size": store.tokenizer.vocab_size if kind == "bpe" else None,
        "data.val_fraction": store.division.val_fraction,
        "sample.prompt": prompt,
    }
    return _TextFacts(
        tokens=tokens,
        training_tokens=store.facts["train"].tokens,
        validation_tokens=store.facts["val"].tokens,
        chosen=chosen,
        spelling=f"{path} has {tokens:,} {kind} tokens.",
        division=_division(store.division.val_fraction, store.division.split),
    )


def _division(fraction: float, split: str) -> str:
    if split == "characters":
        return f"The last {100 * fraction:.3g}% of it is held out for validation."
    return f"About {100 * fraction:.3g}% of its {split} are held out for validation."


def _scan_text(data: DataConfig, fixed: ConfigValues, has_gpu: bool, progress: StageProgress | None) -> _TextFacts:
    # What is left out of the text is said when it is read for training.
    characters = size = validating = done = 0
    alphabet: set[str] = set()
    start: list[str] = []  # enough of the text to count words in
    between = 0  # newlines that keep documents apart
    unended = False
    text = CorpusText.find(data, lambda _: None)
    for number, member in enumerate(text.members):
        for block in text.blocks(number):
            said = block.text
            done += len(block.data)
            if progress is not None:
                progress("reading", done, text.size)
            alphabet.update(said)
            follows, unended = unended, block.ends and not said.endswith("\n")
            if member.validates:
                validating += len(said)
                continue
            between += follows
            if characters < 10 * _VALIDATION:
                start.append(said)
            characters += len(said) * member.weight
            size += len(block.data) * member.weight
    if between and fixed.get("tokenizer.kind") != "bpe" and fixed.get("tokenizer.file") is None:
        characters, size = characters + between, size + between
        alphabet.add("\n")
    tokenizer, spelling = _fit_tokenizer("\n".join(start), characters, len(alphabet), has_gpu, fixed)
    kind = fixed.get("tokenizer.kind", tokenizer["tokenizer.kind"])
    tokens: float = size if kind == "byte" else characters
    if kind == "bpe":
        tokens = size / _bytes_per_token("\n".join(start)[:_ENCODED], {**tokenizer, **fixed})
    per_character = tokens / max(1, characters)
    val_fraction = 0.1 if characters <= 10 * _VALIDATION else round(_VALIDATION / characters, 4)
    held_out = fixed.get("data.val_fraction", val_fraction)
    chosen = {**tokenizer, "data.val_fraction": val_fraction}
    chosen["sample.prompt"] = "\n" if "\n" in alphabet else start[0][0]
    if data.val_source is not None:
        held_out = 0.0
        del chosen["data.val_fraction"]
    validation = tokens * held_out if data.val_source is None else validating * per_character
    if "\r" in alphabet:
        spelling += " Its lines end in a carriage return, too, which it learns to write (sed 's/\\r$//' removes them)."
    return _TextFacts(
        tokens=tokens,
        training_tokens=tokens * (1 - held_out - fixed.get("data.test_fraction", 0.0)),
        validation_tokens=validation,
        chosen=chosen,
        spelling=spelling,
        division=_division(held_out, fixed.get("data.split", data.split))
        if data.val_source is None
        else f"{validating:,} characters of another text are its validation.",
        counted=kind != "bpe",
    )


def _bytes_per_token(start: str, plan: ConfigValues) -> float:
    """An estimate for a BPE: measured on `start` if it exists already, else its usual figure."""
    file = plan.get("tokenizer.file")
    if file is not None and Path(file).exists():
        ready = load_tokenizer(Path(file), plan.get("tokenizer.pattern"))
        return max(1.0, len(start.encode()) / max(1, len(ready.encode(start))))
    ids, figures = zip(*_BYTES_PER_TOKEN, strict=True)
    return float(np.interp(plan["tokenizer.vocab_size"], ids, figures))


def _fit_tokenizer(
    start: str, characters: int, alphabet: int, has_gpu: bool, fixed: ConfigValues
) -> tuple[dict[str, Any], str]:
    """The kind and the size of a vocabulary, and a sentence on them; what is `fixed` decides with them."""
    facts = f"the text has {characters:,} characters, {alphabet:,} distinct ones"
    file = fixed.get("tokenizer.file")
    if file is not None and Path(file).exists():
        ready = load_tokenizer(Path(file), fixed.get("tokenizer.pattern"))
        return {"tokenizer.kind": ready.kind}, f"The {ready.vocab_size:,} {ready.kind} tokens of {file}: {facts}."
    vocab_size = choose_vocab_size(start[: characters * 9 // 10], characters)
    few, worth_pieces = alphabet <= _LARGEST_ALPHABET, characters >= 1_000_000 and vocab_size >= _FEWEST_PIECES
    kind: TokenizerKind = "char" if few else "byte"
    if worth_pieces and (not few or (has_gpu and characters >= _PIECES_FROM)):
        kind = "bpe"
    kind = fixed.get("tokenizer.kind", kind)
    if kind != "bpe":
        return {"tokenizer.kind": kind}, f"One token per {'byte' if kind == 'byte' else 'character'}: {facts}."
    chosen = {"tokenizer.kind": kind, "tokenizer.vocab_size": fixed.get("tokenizer.vocab_size") or vocab_size}
    longer = "" if "tokenizer.vocab_size" in fixed else "; a longer one would get more"
    return chosen, f"BPE with {chosen['tokenizer.vocab_size']:,} tokens: {facts}{longer}."


def _hint_at_config(fixed: ConfigValues, keys: str, source: str) -> str:
    """A command that trains on what no config is fitted to."""
    ending = f"{keys} data.source={quote(source)}"
    if "train.init_from" not in fixed:
        return f"gpt config init -o my.yaml, then gpt train my.yaml {ending}"
    base = quote(str(fixed["train.init_from"]))
    run_dir = quote(f"runs/{Path(source).stem}-from-{Path(str(fixed['train.init_from'])).name}")
    return (
        f"gpt train {base}/config.yaml tokenizer.file={base}/tokenizer.json train.init_from={base}"
        f" run_dir={run_dir} {ending}"
    )


def _fit_shape(tokens: float, has_gpu: bool, fixed: ConfigValues) -> _ModelSize:
    if tokens < 50_000:
        shape = _ModelSize(n_layer=2, n_head=2, n_embd=64, batch_size=16)
    elif not has_gpu:
        shape = _ModelSize(n_layer=4, n_head=4, n_embd=128, batch_size=16)
    elif tokens < 5_000_000:
        shape = _ModelSize(n_layer=6, n_head=6, n_embd=384, batch_size=64)
    else:
        shape = _ModelSize(n_layer=12, n_head=12, n_embd=768, batch_size=64)
    heads: int = fixed.get("model.n_head", shape.n_head)
    width: int = fixed.get("model.n_embd", shape.n_embd)
    if "model.n_embd" not in fixed:  # heads have an even width, for rotary positions
        width = -(-width // (2 * heads)) * 2 * heads
    elif "model.n_head" not in fixed:
        heads = next((n for n in range(heads, 0, -1) if width % (2 * n) == 0), 1)
    return _ModelSize(shape.n_layer, heads, width, shape.batch_size)


def _fit_context(validation_tokens: float, longest: int) -> int:
    """The largest power of two up to `longest` that fits several times into the validation split."""
    context_length = longest
    while context_length > 2 and context_length * 4 > validation_tokens:
        context_length //= 2
    return context_length
