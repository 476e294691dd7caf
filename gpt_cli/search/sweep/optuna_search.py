"""Optuna's sampler and pruner, created anew for each call, so that the result is a function of the arguments."""

from collections.abc import Mapping, Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from gpt_cli.search.sweep.axes import Axis, ValueList, ValueRange
from gpt_cli.search.sweep.outcomes import Outcome

Trial = tuple[Mapping[str, str], Outcome]
_RANDOM_TRIALS = 5  # drawn at random before the sampler models anything
_PERCENTILE = 75.0  # a run is pruned only above this percentile: a high learning rate is behind until it decays
_STATES = {"done": TrialState.COMPLETE, "pruned": TrialState.PRUNED}


def propose(axes: Sequence[Axis], history: Sequence[Trial], seed: int) -> dict[str, str]:
    """Values for the next run after those of `history` (tree-structured Parzen estimator, Bergstra et al., 2011)."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=_RANDOM_TRIALS))
    study.add_trials([_frozen(axes, trial) for trial in history])
    drawn = study.ask(_distributions(axes)).params
    return {
        axis.key: axis.written(drawn[axis.key]) if isinstance(axis, ValueRange) else drawn[axis.key] for axis in axes
    }


def pruned_at(axes: Sequence[Axis], trial: Trial, history: Sequence[Trial], steps: int) -> int | None:
    """The first step in the second half of `steps` at which `trial` has a higher loss than 75 % of `history` had.

    None if there is none. The last step does not count.
    """
    eligible = [(step, loss) for step, loss in trial[1].evaluations if steps // 2 <= step < steps]
    if not eligible or len(history) < _RANDOM_TRIALS:
        return None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.PercentilePruner(_PERCENTILE, n_startup_trials=_RANDOM_TRIALS, n_min_trials=3)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), pruner=pruner)
    study.add_trials([_frozen(axes, past) for past in history])
    pending = study.ask(_distributions(axes))
    for step, loss in trial[1].evaluations:
        pending.report(loss, step)
        if (step, loss) in eligible and pending.should_prune():
            return step
    return None


def _distributions(axes: Sequence[Axis]) -> dict[str, BaseDistribution]:
    return {axis.key: _distribution(axis) for axis in axes}


def _distribution(axis: Axis) -> BaseDistribution:
    if isinstance(axis, ValueList):
        return CategoricalDistribution(list(axis.values))
    if axis.whole:
        return IntDistribution(round(axis.low), round(axis.high), log=axis.log)
    return FloatDistribution(axis.low, axis.high, log=axis.log)


def _frozen(axes: Sequence[Axis], trial: Trial) -> FrozenTrial:
    point, outcome = trial
    params: dict[str, object] = {}
    for axis in axes:
        text = point[axis.key]
        if isinstance(axis, ValueList):
            params[axis.key] = text
        else:
            value = min(max(float(text), axis.low), axis.high)  # it was rounded
            params[axis.key] = round(value) if axis.whole else value
    state = _STATES.get(outcome.state, TrialState.FAIL)
    return optuna.create_trial(
        params=params,
        distributions=_distributions(axes),
        state=state,
        value=outcome.val_loss if state is TrialState.COMPLETE else None,
        intermediate_values=dict(outcome.evaluations),
    )
