"""The choice of `train.budget`: the run with the lowest expected loss of those that end in time.

It is a pure function of the measurements: of the candidates, that whose loss `budget_law.py` expects to be lowest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpt_cli.errors import RequestError
from gpt_cli.search.budget_law import BUDGET_LAW
from gpt_cli.search.recurrence import NOTHING_RECURS, Recurrence
from gpt_cli.search.regularization import LARGE_STEP, regularization
from gpt_cli.terminal.words import plural
from gpt_cli.training.schedule_clock import OVERRUN

SHAPE = ("model.n_layer", "model.n_head", "model.n_embd")
CHOSEN = (
    *(*SHAPE, "model.context_length", "model.dropout"),
    *("train.batch_size", "train.steps", "train.max_minutes"),
    *("optim.weight_decay", "schedule.warmup_steps", "schedule.decay_fraction"),
    *("eval.every", "checkpoint.every", "sample.every"),
)
"""The keys that a budget decides, unless they are set."""

LADDER = (
    ((2, 2, 64), 64, 12),
    ((2, 2, 64), 128, 16),
    ((4, 4, 128), 64, 12),
    ((4, 4, 128), 128, 16),
    ((4, 4, 128), 256, 16),
    ((4, 4, 192), 512, 4),
    ((4, 4, 192), 1024, 2),
    ((6, 4, 192), 512, 4),
    ((6, 4, 192), 1024, 2),
    ((6, 4, 256), 512, 4),
    ((6, 4, 256), 1024, 2),
    ((12, 4, 256), 512, 4),
    ((12, 4, 256), 1024, 2),
    ((12, 6, 384), 512, 8),
    ((8, 8, 512), 512, 32),
    ((12, 12, 768), 1024, 32),
)
"""The candidates, for budgets from a second to hours: (n_layer, n_head, n_embd), context, batch of characters.

A step of the middle ones has 2,048 tokens: of prose in contexts of 512, of code, which repeats itself, of 1,024.
A token of a BPE is two to four characters, so its batches have half as many: better on two of three texts, and 0.02
bits per byte worse on the third (docs/recipes.md).
"""
GPU_LADDER = (
    ((4, 4, 128), 256, 16),
    ((4, 4, 256), 256, 16),
    ((6, 6, 384), 256, 16),
    ((6, 6, 384), 512, 16),
    ((6, 6, 384), 512, 32),
    ((8, 8, 512), 512, 16),
    ((8, 8, 512), 512, 32),
    ((12, 12, 768), 1024, 32),
)
"""The same for a GPU, where the smallest of these take as long: the time that launching their kernels takes."""
MOST_EPOCHS, MOST_EPOCHS_OF_LARGE_STEPS = 24, 10
"""Passes over the text after which a run ends, whatever time is left: more were not measured (docs/recipes.md)."""
_FEWEST_STEPS = 20
_EQUAL = 0.003  # nats: a seventh of the law's error
_SLACK = 0.98  # of the time; a machine that turns out slower has its schedule shortened (`ScheduleClock`)
_EVALUATIONS = 3  # before, amid and after
_EVALUATION_SHARE = 0.05  # of the time, which these may take at most; else the one after alone


@dataclass(frozen=True)
class BudgetCandidate:
    """A possible run, and its measured speed."""

    shape: tuple[int, int, int]  # n_layer, n_head, n_embd
    context_length: int
    batch_size: int
    parameters: int
    """Without embeddings and head."""
    seconds_per_step: float
    tokens_read: int | None = None
    """By a step on average, without padding; None: its batch of whole contexts."""

    @property
    def tokens_per_step(self) -> int:
        return self.tokens_read or self.batch_size * self.context_length


@dataclass(frozen=True)
class BudgetChoice:
    """A candidate, the steps for which there is time, and the expected loss (nats per token)."""

    candidate: BudgetCandidate
    steps: int
    loss: float
    evaluations: int


def predict_choice(
    candidate: BudgetCandidate,
    seconds: float,
    train_tokens: int,
    val_tokens: int,
    *,
    is_evaluated: bool = False,
    eval_every: int | None = None,
    recurrence: Recurrence = NOTHING_RECURS,
    difficulty: float = 1.0,
) -> BudgetChoice | None:
    """The predicted result of `candidate` in `seconds`; None if it cannot train usefully.

    Evaluations are paid from it: a forward pass over the validation split is a third of training on it. `is_evaluated`:
    the run needs those on its way, too. `eval_every`: there is one after this many steps.
    """
    evaluation = val_tokens / candidate.tokens_per_step * candidate.seconds_per_step / 3.0
    are_cheap = _EVALUATIONS * evaluation <= _EVALUATION_SHARE * seconds
    evaluations = _EVALUATIONS if is_evaluated or are_cheap else 1
    seconds_per_step = candidate.seconds_per_step
    if eval_every is not None:
        evaluations = 2  # before and after
        seconds_per_step += evaluation / eval_every
    steps = int((_SLACK * seconds - evaluations * evaluation) / seconds_per_step)
    if steps < _FEWEST_STEPS:
        return None
    steps = min(steps, max(_FEWEST_STEPS, most_steps(candidate, train_tokens)))
    tokens = steps * candidate.tokens_per_step
    context_length, recurring = candidate.context_length, recurrence.within(candidate.context_length)
    loss = BUDGET_LAW.expected_loss(candidate.parameters, context_length, steps, tokens, train_tokens, recurring)
    return BudgetChoice(candidate, steps, difficulty * loss, evaluations)


def most_steps(candidate: BudgetCandidate, train_tokens: int) -> int:
    """The steps in which `candidate` reads the text as often as is worth it."""
    is_large = candidate.tokens_per_step >= LARGE_STEP
    return (MOST_EPOCHS_OF_LARGE_STEPS if is_large else MOST_EPOCHS) * train_tokens // candidate.tokens_per_step


def best_choice(predictions: Sequence[tuple[BudgetCandidate, BudgetChoice | None]], seconds: float) -> BudgetChoice:
    """The choice with the lowest expected loss in so many `seconds`, of equal ones the smallest: it samples faster.

    Raises RequestError where none ends in time.
    """
    possible = [choice for _, choice in predictions if choice is not None]
    if not possible:
        fastest = min(candidate.seconds_per_step for candidate, _ in predictions)
        raise RequestError(
            f"train.budget leaves {max(0.0, seconds):.1f} s for training and evaluating, and the smallest model takes"
            f" {1e3 * fastest:,.0f} ms a step: too few for {_FEWEST_STEPS} steps",
            hint="give it more time: train.budget=10m",
        )
    lowest = min(choice.loss for choice in possible)
    equal = [choice for choice in possible if choice.loss <= lowest + _EQUAL]
    return min(equal, key=lambda choice: (choice.candidate.parameters, choice.loss))


def chosen_values(
    choice: BudgetChoice,
    seconds: float,
    train_tokens: int,
    lr: float,
    *,
    is_default: bool = True,
    is_text: bool = True,
) -> dict[str, Any]:
    """The values by key of `choice` at a peak rate of `lr`.

    Decays of the weights and of the rate are those of the default recipe: unless it `is_default`, they stay.
    """
    candidate, steps = choice.candidate, choice.steps
    epochs = steps * candidate.tokens_per_step / train_tokens
    n_layer, n_head, n_embd = candidate.shape
    return {
        "model.n_layer": n_layer,
        "model.n_head": n_head,
        "model.n_embd": n_embd,
        "model.context_length": candidate.context_length,
        **regularization(
            epochs, candidate.tokens_per_step, train_tokens, lr, chooses_decay=is_default, is_text=is_text
        ),
        **({"schedule.decay_fraction": decay_fraction(epochs)} if is_default else {}),
        "train.batch_size": candidate.batch_size,
        "train.steps": steps,
        "train.max_minutes": round(OVERRUN * seconds / 60.0, 4),
        "schedule.warmup_steps": min(20, steps // 10),
        "eval.every": None if choice.evaluations == 1 else max(1, steps // 2 + 1),
        "checkpoint.every": max(1, steps // 4),
        "sample.every": None,
    }


def decay_fraction(epochs: float) -> float:
    """`schedule.decay_fraction`: a text that is read several times is learned best at a rate that soon falls."""
    return 0.75 if epochs >= 1.0 else 0.5


def explain_choice(
    chosen: BudgetChoice,
    predictions: Sequence[tuple[BudgetCandidate, BudgetChoice | None]],
    seconds: float,
    *,
    is_predicted: bool,
) -> list[str]:
    """Lines that explain the choice: the speed of each candidate, and its expected loss if `is_predicted`.

    The law predicts characters of text; the losses of other tokens and of examples it only ranks.
    """
    outcomes = "with the loss that each would come to" if is_predicted else "the lowest loss is expected at ->"
    lines = [f"{seconds:,.0f} s to train in; measured here, {outcomes}:"]
    for candidate, prediction in predictions:
        outcome = "too slow"
        if prediction is not None:
            loss = f", loss {prediction.loss:.2f}" if is_predicted else ""
            outcome = f"{plural(prediction.steps, 'step')}{loss}"
        mark = "->" if candidate == chosen.candidate else "  "
        n_layer, _, n_embd = candidate.shape
        lines.append(
            f"{mark} {plural(n_layer, 'layer')} of width {n_embd},"
            f" {candidate.batch_size} x {candidate.context_length} tokens:"
            f" {1e3 * candidate.seconds_per_step:,.0f} ms a step, {outcome}"
        )
    return lines
