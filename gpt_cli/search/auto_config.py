"""A config fitted to a text and a machine, with the reasons in sentences.

The text decides the tokenizer and the splits (`text_statistics.py`, `tokenizer_choice.py`); its tokens and the machine
decide the model; the tokens and the model decide the steps; the steps decide dropout and cadence.
"""

import math
from collections.abc import Sequence
from typing import Any

from gpt_cli.config.recipes import RECIPES
from gpt_cli.config.schema import Config, OptimConfig
from gpt_cli.config.section import ConfigValues
from gpt_cli.corpus.scan import StageProgress
from gpt_cli.errors import RequestError
from gpt_cli.runtime.processor import physical_cores
from gpt_cli.search.regularization import LARGE_STEP, regularization
from gpt_cli.search.source_format import measure_in_its_format
from gpt_cli.search.text_statistics import TextStatistics
from gpt_cli.terminal.progress import stage_progress
from gpt_cli.terminal.words import plural

_EPOCHS, _EPOCHS_OF_LARGE_STEPS = 20, 9.8  # of training from random weights
_TUNING_EPOCHS = 3  # of training a trained model further
_MANY_EPOCHS = 3  # after which a text is memorised
_FEW_EPOCHS = 10
_CONTEXT_LENGTH = 128  # on a CPU, and at least this on a GPU, unless the validation text is short
_ENCODER = {"model.causal": False, "task.pooling": "mean"}  # configs/classify.yaml
_RATE_OF_FEW_EPOCHS = 0.014
"""Of Muon, as measured with the models for CPUs; a text that is read often wants 0.02 (docs/recipes.md)."""
_RATE_OF_LARGE_STEPS = 0.015  # configs/shakespeare_gpu.yaml
_USUAL_EXAMPLE, _LONGEST_EXAMPLE = 1024, 8192
"""Tokens of the longest example with room, where most are shorter, and at all; data.too_long is for longer ones."""


def fit_config(
    requested: ConfigValues,
    *,
    run_dir: str,
    has_gpu: bool,
    cores: int,
    base: ConfigValues | None = None,
    progress: StageProgress | None = None,
) -> tuple[Config, list[str]]:
    """(a config for a text and a machine with this many cores, the reasons in sentences).

    The config is fitted to the `requested` values (`data.source` at least), and the sentences describe the run with
    them, but it does not hold them: the caller applies them, and can report with its place a value that contradicts
    another. `base` are the values that a trained model brings along which is trained further.

    Raises what reading and `TokenStore.open` raise, and RequestError for standard input and for a source that is empty.
    """
    fixed = {**(base or {}), **requested}
    if fixed.get("tokenizer.vocab_size") is None:  # which is to be chosen
        fixed.pop("tokenizer.vocab_size", None)
    sources = [requested["data.source"]] if isinstance(requested["data.source"], str) else requested["data.source"]
    _check_sources(sources)
    text, of_format = measure_in_its_format(sources, requested, fixed, has_gpu=has_gpu, progress=progress)
    if base is not None and of_format.get("data.format") not in ("pairs", "chat"):  # which have no template
        base = {key: value for key, value in base.items() if not key.startswith("data.")}
    model = _choose_model(text, has_gpu, fixed)
    chosen = {**text.values, **of_format, "run_dir": run_dir, "data.source": requested["data.source"], **model}
    classifies = of_format.get("task.kind") == "classes"
    if classifies and base is None:
        chosen |= _ENCODER

    plan = {**chosen, **fixed}
    tokens_per_row, training_tokens = plan["model.context_length"], text.training_tokens
    if text.examples is not None:  # each in a row of its own
        too_long = fixed.get("data.too_long") or ("cut" if classifies else "drop")
        read = text.examples.read(plan["model.context_length"], cut=too_long == "cut")
        training_tokens = sum(read)
        tokens_per_row = training_tokens / len(read)
    tokens_per_step = max(1, round(plan["train.batch_size"] * tokens_per_row))
    has_large_steps = tokens_per_step >= LARGE_STEP
    epoch_limit = (_EPOCHS_OF_LARGE_STEPS if has_large_steps else _EPOCHS) if base is None else _TUNING_EPOCHS
    step_limit = 3000 if has_gpu else 300 * min(max(cores, 2), 8)
    chosen["train.steps"] = min(max(100, math.ceil(epoch_limit * training_tokens / tokens_per_step)), step_limit)
    steps = fixed.get("train.steps", chosen["train.steps"])
    epochs = steps * plan["train.batch_size"] * tokens_per_row / max(1.0, training_tokens)
    chosen |= _choose_cadence(steps, tokens_per_step, text.validation_tokens)
    if classifies:
        chosen["sample.every"] = None
    if base is None and "recipe" not in fixed:
        chosen["model.previous_token_init"] = None
        if "optim.name" not in fixed and (has_large_steps or epochs <= _FEW_EPOCHS):
            chosen["optim.lr"] = _RATE_OF_LARGE_STEPS if has_large_steps else _RATE_OF_FEW_EPOCHS
    by_muon = "recipe" not in fixed and fixed.get("optim.name", "muon") == "muon"
    rate = fixed.get("optim.lr", chosen.get("optim.lr"))
    lr = float(rate) if isinstance(rate, int | float) else OptimConfig().peak_lr
    chosen |= regularization(
        *(epochs, tokens_per_step, training_tokens, lr),
        chooses_decay=base is None and by_muon,
        is_text=text.examples is None,
    )

    machine = "a GPU" if has_gpu else f"{cores} CPU cores"
    sentences = _explain({**chosen, **fixed}, requested, text, machine, epochs, has_base=base is not None)
    return _to_config({**chosen, **(base or {})}), sentences


def fit_to_this_machine(
    requested: ConfigValues, run_dir: str, base: ConfigValues | None = None
) -> tuple[Config, list[str]]:
    """Return `fit_config` for the processor and the GPU that are here."""
    import torch  # noqa: PLC0415 - a second, which `fit_config` alone does without

    has_gpu, cores = torch.cuda.is_available(), physical_cores()
    with stage_progress() as progress:
        return fit_config(requested, run_dir=run_dir, has_gpu=has_gpu, cores=cores, base=base, progress=progress)


def _check_sources(sources: Sequence[str]) -> None:
    for source in sources:
        if any("\ud800" <= character < "\ue000" for character in source):
            hint = "rename it: a config holds UTF-8 alone"
            raise RequestError(f"the TEXT '{source}' is no name of a file that a config can hold", hint=hint)
        if source == "-":
            raise RequestError(
                "a config cannot be fitted to standard input, which is read once"
                if len(sources) == 1
                else "standard input is read once, and cannot be one of several texts",
                hint="`gpt train -` keeps it in a file and fits a config to that"
                if len(sources) == 1
                else "keep it in a file first, and name that: cat > input.txt",
            )


def _choose_model(text: TextStatistics, has_gpu: bool, fixed: ConfigValues) -> dict[str, Any]:
    if text.tokens < 50_000:
        n_layer, n_head, n_embd, batch_size = 2, 2, 64, 16
    elif not has_gpu:
        n_layer, n_head, n_embd, batch_size = 4, 4, 128, 16
    elif text.tokens < 5_000_000:
        n_layer, n_head, n_embd, batch_size = 6, 6, 384, 16  # configs/shakespeare_gpu.yaml
    else:
        n_layer, n_head, n_embd, batch_size = 12, 12, 768, 64
    n_head, n_embd = fixed.get("model.n_head", n_head), fixed.get("model.n_embd", n_embd)
    if "model.n_embd" in fixed and "model.n_head" not in fixed:
        multiple = 2 if _position(fixed) == "rope" else 1  # of head_dim
        n_head = next((n for n in range(n_head, 0, -1) if n_embd % (multiple * n) == 0), 1)
    n_embd = -(-n_embd // (2 * n_head)) * 2 * n_head  # valid with any position; that asked for is applied by the caller
    longest = (512 if n_layer == 6 else 256) if has_gpu else _CONTEXT_LENGTH
    context_length = fitting_context(text.validation_tokens, longest)
    if (examples := text.examples) is not None:
        limit = min(max(_USUAL_EXAMPLE, 2 * _power_of_two(examples.mean)), _LONGEST_EXAMPLE)
        context_length = min(max(16, _power_of_two(examples.longest)), limit)
        rows = batch_size * longest / min(examples.mean, fixed.get("model.context_length", context_length))
        batch_size = min(max(1, round(2 ** round(math.log2(rows)))), 128 if has_gpu else 64)
        while batch_size > max(1, len(examples.training) // 2):  # a step of all examples learns them by heart
            batch_size //= 2
    return {
        "model.n_layer": n_layer,
        "model.n_head": n_head,
        "model.n_embd": n_embd,
        "train.batch_size": batch_size,
        "model.context_length": context_length,
    }


def _power_of_two(tokens: float) -> int:
    """The smallest power of two that is `tokens` or more."""
    return int(1 << (math.ceil(tokens) - 1).bit_length())


def _position(fixed: ConfigValues) -> str:
    """model.position: as asked, the recipe's, or the default."""
    recipe = fixed.get("recipe")
    by_recipe: str = RECIPES[recipe]["model"].get("position", "rope") if recipe is not None else "rope"
    return str(fixed.get("model.position", by_recipe))


def fitting_context(validation_tokens: float, context_length: int) -> int:
    """`context_length`, halved until it fits several times into the validation split."""
    while context_length > 2 and context_length * 4 > validation_tokens:
        context_length //= 2
    return context_length


def _choose_cadence(steps: int, tokens_per_step: int, validation_tokens: float) -> dict[str, Any]:
    # A token costs a quarter as much to evaluate as to train on: all evaluations together take about 3 % of the run.
    evaluations = 0.12 * steps * tokens_per_step / max(1.0, validation_tokens)
    every = max(1, min(10, steps), math.ceil(steps / min(max(2.0, evaluations), 8.0)))
    return {
        "schedule.warmup_steps": min(20, steps // 10),
        "eval.every": every,
        "checkpoint.every": every,
        "sample.every": every,
    }


def _explain(
    plan: ConfigValues, requested: ConfigValues, text: TextStatistics, machine: str, epochs: float, *, has_base: bool
) -> list[str]:
    """Return a sentence each on the tokenizer, the splits, carriage returns (if there are any), the model (unless it is
    that of a base), the steps and dropout.
    """
    sentences = [text.tokenizer_reason, text.split_reason]
    if text.has_carriage_returns:
        sentences.append("It has carriage returns, which the model learns to write: save it with line feeds (LF).")
    if not has_base:
        n_layer = plan["model.n_layer"]
        model = f"{plural(n_layer, 'layer')} of width {plan['model.n_embd']}"
        is_requested = bool(requested.keys() & {"model.n_layer", "model.n_embd"})
        reason = ", as asked." if is_requested else f" suit {text.tokens:,.0f} tokens and {machine}."
        sentences.append(model + reason)
    if not has_base and plan.get("task.kind") == "classes" and not requested.keys() & _ENCODER.keys():
        sentences.append(
            "It reads a text both ways and classifies the mean (model.causal=false, task.pooling=mean); an export to"
            " Transformers needs true and last."
        )
    context_length = plan["model.context_length"]
    is_fitted = not has_base and text.examples is None and "model.context_length" not in requested
    if is_fitted and requested.get("data.val_source") is not None and context_length < _CONTEXT_LENGTH:
        sentences.append("Its context is short, since the validation text is.")
    sentences.append(_explain_steps(plan["train.steps"], context_length, epochs, text))
    dropout = plan["model.dropout"]
    if "model.dropout" in requested:
        sentences.append(f"Dropout {dropout}, as asked.")
    elif dropout:
        sentences.append(f"Dropout {dropout} keeps it from memorising the text.")
    elif epochs > _MANY_EPOCHS and plan.get("optim.weight_decay"):
        sentences.append(
            f"No dropout: a weight decay of {plan['optim.weight_decay']} keeps it from memorising the text."
        )
    else:
        sentences.append("No dropout: read so few times, the text is not memorised.")
    return sentences


def _explain_steps(steps: int, context_length: int, epochs: float, text: TextStatistics) -> str:
    of_text = text.examples is None
    tokens, length = plural(context_length, "token"), f"in {plural(steps, 'step')}"
    sees = f"It sees {tokens} at once and" if of_text else f"It reads up to {tokens} of each, and"
    if epochs >= 0.995:
        return f"{sees} {'its training text' if of_text else 'all of them'} {epochs:,.1f} times, {length}."
    share = f"{'' if text.is_exact else 'about '}{100 * epochs:.2g}%"
    steps_of_epoch = math.ceil(steps / max(epochs, 1e-9))
    everything = "it" if of_text else "them"
    advice = f": train.steps={steps_of_epoch} reads all of {everything} once." if text.is_exact and steps else "."
    return f"{sees} {share} of {'its training text' if of_text else 'them'}, {length}{advice}"


def _to_config(values: ConfigValues) -> Config:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[name] = value
    return Config.model_validate(nested)
