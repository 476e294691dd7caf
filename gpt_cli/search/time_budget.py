"""`train.budget`: measure models of several sizes on this machine, and choose the run that ends in time.

`budget_choice.py` has the choice, which is a pure function of the measurements.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gpt_cli.config import Config, dump_config, load_config, parse_config
from gpt_cli.config.dump import to_yaml_scalar
from gpt_cli.config.keys import dotted_keys, get_key
from gpt_cli.config.load import merge_layers, read_config_file
from gpt_cli.config.section import parse_duration
from gpt_cli.corpus.prepare import Corpus, prepare_corpus
from gpt_cli.cpu.common.kernel import COMPILING
from gpt_cli.errors import Notify, RequestError
from gpt_cli.files.kinds import CONFIG
from gpt_cli.literals import SUBWORD_KINDS
from gpt_cli.model.sizing import hidden_parameters
from gpt_cli.run.run_files import run_of
from gpt_cli.runtime.device import Runtime, setup_runtime
from gpt_cli.runtime.oom import is_out_of_memory
from gpt_cli.search.auto_config import fitting_context
from gpt_cli.search.budget_choice import (
    CHOSEN,
    GPU_LADDER,
    LADDER,
    SHAPE,
    BudgetCandidate,
    BudgetChoice,
    best_choice,
    chosen_values,
    explain_choice,
    most_steps,
    predict_choice,
)
from gpt_cli.search.recurrence import NOTHING_RECURS, Recurrence, measure_recurrence
from gpt_cli.search.run_budget import LENGTHS, refuse_another_length
from gpt_cli.search.text_difficulty import PROBE_SHARE, measure_difficulty
from gpt_cli.search.timing import time_steps
from gpt_cli.training.example_batches import open_batches
from gpt_cli.training.state import TrainingState

_MEASURED_STEPS = 3


class BudgetedRun(NamedTuple):
    """The config that a budget chose, and the validation loss that is expected of it, if the law predicts it."""

    config: Config
    expected_loss: float | None = None


def config_for_budget(
    config: Config, seconds: float, corpus: Corpus, written: frozenset[str], note: Notify
) -> BudgetedRun:
    """`config` with the keys of CHOSEN (but those `written` by the user) set for a run that ends in `seconds` from now.

    Measuring takes about a tenth of the time. Raises RequestError where nothing can be learned in that time.
    """
    started = time.perf_counter()
    runtime = setup_runtime(config.runtime)
    notes: list[str] = []

    def listen(message: str) -> None:
        notes.append(message)
        note(message)

    note(f"measuring how fast models of several sizes train here, for up to {max(1, round(seconds / 10)):,} s")
    has_own = config.train.init_from is not None or config.recipe is not None or config.optim.name != "muon"
    stops_early = config.train.patience is not None or config.train.until_loss is not None
    recurrence = recurrence_of(config, corpus)
    predict = partial(
        predict_choice,
        train_tokens=len(corpus.train),
        val_tokens=min(len(corpus.val), config.eval.max_tokens or len(corpus.val)),
        is_evaluated=stops_early,
        eval_every=config.eval.every if "eval.every" in written else None,
        recurrence=recurrence,
    )
    measured = measure_candidates(config, seconds, corpus, runtime, written, predict, listen)
    difficulty = None
    if not has_own and config.data.format == "text" and corpus.tokenizer.kind not in SUBWORD_KINDS:
        difficulty = measure_difficulty(config, PROBE_SHARE * seconds, corpus, runtime, recurrence)
    left = seconds - (time.perf_counter() - started)
    predictions = [(one, predict(one, left, difficulty=difficulty or 1.0)) for one in measured]
    try:
        choice = best_choice(predictions, left)
    except RequestError as error:
        if any(text.startswith(COMPILING) for text in notes):
            error.hint = f"start it again: this time it also compiled its C code, once on a machine; or {error.hint}"
        raise
    note("\n".join(explain_choice(choice, predictions, left, is_predicted=difficulty is not None)))
    if choice.steps >= most_steps(choice.candidate, len(corpus.train)):
        note("stopping early: more passes over this text would overfit")
    chosen = chosen_values(
        *(choice, left, len(corpus.train), config.optim.peak_lr),
        is_default=not has_own,
        is_text=config.data.format == "text",
    )
    values = {key: value for key, value in chosen.items() if key not in written}
    return BudgetedRun(with_values(config, values), None if difficulty is None else choice.loss)


def recurrence_of(config: Config, corpus: Corpus) -> Recurrence:
    """The recurrence in the training split of a text; examples are read one at a time."""
    if config.data.format != "text":
        return NOTHING_RECURS
    return measure_recurrence(corpus.train, is_subword=corpus.tokenizer.kind in SUBWORD_KINDS)


def measure_candidates(
    config: Config,
    seconds: float,
    corpus: Corpus,
    runtime: Runtime,
    written: frozenset[str],
    predict: Callable[[BudgetCandidate, float], BudgetChoice | None],
    note: Notify,
) -> list[BudgetCandidate]:
    """Time the rungs of the ladder, until a tenth of the `seconds` is over or the last ones are clearly worse."""
    candidates = _open_candidates(config, written, len(corpus.val), runtime.device.type)
    if runtime.device.type != "cpu":  # the first step on a GPU loads its libraries, which takes seconds
        time_candidate(with_values(config, candidates[0]), corpus, runtime, note)
    started = time.perf_counter()
    measured: list[BudgetCandidate] = []
    for values in candidates:
        try:
            measured.append(time_candidate(with_values(config, values), corpus, runtime, note))
        except (MemoryError, RuntimeError) as error:
            if not measured or not is_out_of_memory(error):
                raise
            break
        choices = [predict(one, seconds) for one in measured]
        losses = [math.inf if choice is None else choice.loss for choice in choices]
        are_worse = len(losses) > 2 and min(losses[-2:]) > min(losses) + 0.05
        if time.perf_counter() - started > seconds / 10 or are_worse:
            break  # those after take as long or longer; one alone may have been disturbed
    return measured


def time_candidate(config: Config, corpus: Corpus, runtime: Runtime, note: Notify) -> BudgetCandidate:
    """The median time of a few training steps of `config`, the first excluded: it also allocates."""
    eager = config.runtime.model_copy(update={"compile": False})  # compiling each candidate would take all of the time
    config = config.model_copy(update={"runtime": eager})
    state = TrainingState.initialize(config, corpus.tokenizer.vocab_size, runtime, note)
    batches = open_batches(config, corpus, runtime.device, lambda _: None)
    times = [time_steps(state, batches, config, runtime, [step]) for step in range(1 + _MEASURED_STEPS)]
    model = config.model
    return BudgetCandidate(
        (model.n_layer, model.n_head, model.n_embd),
        model.context_length,
        config.train.batch_size,
        hidden_parameters(model, corpus.tokenizer.vocab_size),
        statistics.median(times[1:]),
        batches.tokens_per_step,
    )


def with_values(config: Config, values: dict[str, Any]) -> Config:
    """`config` with other values under some dotted keys, checked like a file."""
    return parse_config(
        dump_config(config), "train.budget", [f"{key}={to_yaml_scalar(v)}" for key, v in values.items()]
    )


def choose_for_budget(
    config: Config, file: Path | None, overrides: Sequence[str], started: float, note: Notify, *, together: bool
) -> BudgetedRun:
    """`config`, from `file` (None: fitted to a text) under `overrides`, made to end `train.budget` after `started`.

    `started` is by `time.perf_counter`. Raises RequestError where another length is asked for, too, the time is too
    short, or several processes are to train it `together`.
    """
    assert config.run_dir is not None
    budget, run_dir = config.train.budget, config.run_dir
    assert budget is not None
    fixed = dotted_keys(merge_layers("", "the overrides", overrides).values)
    if "train.budget" in fixed or run_of(config) is None:
        refuse_another_length({key: get_key(config, key) for key in fixed})
    elif asked := [key for key in LENGTHS if key in fixed and get_key(config, key) is not None]:
        raise RequestError(f"{asked[0]} of {run_dir} was chosen for train.budget={budget}", kind="another run")
    if file is not None:
        fixed |= dotted_keys(merge_layers(read_config_file(file), str(file), ()).values)
    fixed -= {*LENGTHS}  # the time decides them
    if config.train.init_from is not None:  # the run whose weights are taken decides on the model
        fixed |= {*SHAPE, "model.context_length"}
    if file is None and config.data.format != "text":  # the longest example decides on the context
        fixed |= {"model.context_length"}
    if (written := Path(run_dir, CONFIG)).is_file():
        run = load_config(written)
        if run.train.budget not in (None, budget):
            raise RequestError(f"{run_dir} was planned for train.budget={run.train.budget}", kind="another run")
        return BudgetedRun(choice_of_run(config, run, fixed) if run.train.budget == budget else config)
    if together:
        raise RequestError("train.budget is chosen for one process: several take train.max_minutes instead")
    corpus = prepare_corpus(config.data, config.tokenizer, note=note)
    seconds = (parse_duration(budget) or 0) - (time.perf_counter() - started)
    return config_for_budget(config, seconds, corpus, fixed, note)


def choice_of_run(config: Config, run: Config, written: frozenset[str]) -> Config:
    """`config` with the values that a budget chose when `run` was started."""
    return with_values(config, {key: get_key(run, key) for key in CHOSEN if key not in written})


def _open_candidates(
    config: Config, written: frozenset[str], val_tokens: int, device_type: str
) -> list[dict[str, Any]]:
    """The rungs of the device's ladder as {key: value}, without keys that are set."""
    candidates: list[dict[str, Any]] = []
    for shape, context_length, batch_size in LADDER if device_type == "cpu" else GPU_LADDER:
        values: dict[str, Any] = {}
        if not written & set(SHAPE):
            values |= dict(zip(SHAPE, shape, strict=True))
        if "model.context_length" not in written:
            values["model.context_length"] = fitting_context(val_tokens, context_length)
        if "train.batch_size" not in written:
            part = config.train.micro_batch_size or 1  # of which a batch is a multiple
            batch_size //= 2 if config.tokenizer.kind in SUBWORD_KINDS else 1
            values["train.batch_size"] = -(-batch_size // part) * part
        if values not in candidates:
            candidates.append(values)
    return candidates
