"""The result of a sweep: every combination of values with its losses, and how it compares with the best."""

import statistics
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gpt_cli.config import comment, dump_config
from gpt_cli.files import replace_file
from gpt_cli.search.sweep.axes import overrides_of, to_json
from gpt_cli.search.sweep.differences import METHOD, ONE_SEED, ONE_SEED_YET, Difference, compare
from gpt_cli.search.sweep.outcomes import Outcome
from gpt_cli.search.sweep.search_source import SearchSource
from gpt_cli.search.sweep.sweep import Runs
from gpt_cli.terminal.words import plural

Measure = Literal["val_loss", "bpb"]
BEST = "best.yaml"
_FRESH = "The runs of the search chose which settings to compare, so that only runs with other seeds compare them."


@dataclass(frozen=True)
class Setting:
    """A combination of values, and the losses of its runs."""

    number: int
    values: dict[str, str]
    losses: dict[int, float]
    """{seed: loss} of the finished runs; of a search, of those with fresh seeds."""
    searched: float | None
    """The loss of the search's own run."""
    failed: list[str]
    """The reasons why runs have no loss."""
    difference: Difference | None = None
    """The difference to the best; None for the best, and where nothing can be compared."""

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.losses.values()) if self.losses else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds."""
        return statistics.stdev(self.losses.values()) if len(self.losses) > 1 else None

    @property
    def text(self) -> str:
        return " ".join(overrides_of(self.values)) or "the config as it is"

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self), "mean": self.mean, "spread": self.spread,
            "difference": None if self.difference is None else self.difference.to_json(),
        }  # fmt: skip


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep; `settings` begin with the best, those without a loss come last."""

    home: str
    measure: Measure
    settings: list[Setting]
    axes: list[dict[str, Any]]
    method: str
    runs: int
    """Planned runs."""
    ended: int
    left: str | None
    """The reason why some runs were not started."""

    @property
    def best(self) -> Setting | None:
        return self.settings[0] if self.settings and self.settings[0].losses else None

    @property
    def alike(self) -> list[Setting]:
        """Settings that do not differ significantly from the best."""
        differences = [(setting, setting.difference) for setting in self.settings[1:]]
        return [setting for setting, difference in differences if difference and difference.is_told_apart is False]

    @property
    def verdict(self) -> str:
        """A sentence on how sure the first place is."""
        if self.best is None:
            return "no run has ended with a loss"
        differences = [setting.difference for setting in self.settings[1:] if setting.difference is not None]
        if not differences:
            return "there is nothing to compare it with"
        if all(difference.is_told_apart is None for difference in differences):
            return "with so few seeds nothing is known about which differences another seed would make, too"
        if not self.alike:
            return "seeds would not make any of the differences to it"
        others = "another one is" if len(self.alike) == 1 else f"{len(self.alike)} others are"
        return f"{others} not told apart from it: seeds may make such differences"

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            **asdict(self), "settings": [setting.to_json() for setting in self.settings], "verdict": self.verdict,
        }  # fmt: skip


def collect(
    runs: Runs, outcomes: Mapping[str, Outcome], search: SearchSource | None, total: int, left: str | None
) -> SweepResult:
    """The result so far."""
    learns = runs.base.tokenizer.kind == "bpe" and runs.base.tokenizer.file is None  # its tokens from the text
    varied = ("tokenizer.", "data.") if learns else ("tokenizer.",)
    varies_tokens = any(axis.key.startswith(varied) for axis in runs.request.axes)
    measure: Measure = "bpb" if varies_tokens and runs.base.task.kind == "language" else "val_loss"
    losses = runs.losses(outcomes, measure)
    seed = runs.base.seed
    searched: dict[int, float | None] = dict.fromkeys(losses)
    if search is not None:
        trials = {runs.of_name[name][0]: outcome for name, outcome in outcomes.items() if runs.of_name[name][1] == seed}
        searched = {number: outcome.val_loss for number, outcome in trials.items()}
        fresh = {number: {s: v for s, v in by_seed.items() if s != seed} for number, by_seed in losses.items()}
        if any(fresh.values()):
            losses = fresh
    losses = _of_whole_rounds(losses, {runs.of_name[name] for name in outcomes})
    settings = [
        Setting(number, runs.points[number], by_seed, searched.get(number), _problems(runs, outcomes, number))
        for number, by_seed in losses.items()
    ]
    most_seeds = max((len(setting.losses) for setting in settings), default=0)
    settings.sort(key=lambda setting: (len(setting.losses) < most_seeds, _order(setting), setting.number))
    differences = compare([setting.losses for setting in settings], 0) if settings and settings[0].losses else []
    ranked = [
        replace(setting, difference=difference)
        for setting, difference in zip(settings, differences or [None] * len(settings), strict=True)
    ]
    ranked.sort(key=_order)
    complete = (setting for setting in ranked if setting.losses and len(setting.losses) == most_seeds)
    best = next((setting for setting in complete if setting.difference is None), None)
    if best is not None:  # a setting with fewer seeds may have a lower mean
        ranked.remove(best)
        ranked.insert(0, best)
    one_seed = ONE_SEED if runs.request.seeds < 2 else ONE_SEED_YET
    if most_seeds == 0:
        one_seed = "No run has ended yet."
    method = one_seed if most_seeds < 2 else METHOD + (f" {_FRESH}" if search is not None else "")
    axes = [to_json(axis) for axis in runs.request.axes]
    return SweepResult(str(runs.request.home), measure, ranked, axes, method, total, len(outcomes), left)


def _of_whole_rounds(
    losses: Mapping[int, dict[int, float]], ended: Set[tuple[int, int]]
) -> dict[int, dict[int, float]]:
    """`losses` without those of seeds with which not yet every setting's run has `ended`, if others are left.

    Some seeds are easier than others, so a sweep that was cut short compares what all settings were trained with.
    """
    compared = [number for number, by_seed in losses.items() if by_seed]
    seeds = {seed for by_seed in losses.values() for seed in by_seed}
    whole = {seed for seed in seeds if all((number, seed) in ended for number in compared)} or seeds
    return {number: {s: loss for s, loss in by_seed.items() if s in whole} for number, by_seed in losses.items()}


def _order(setting: Setting) -> tuple[bool, float, float, int]:
    mean = setting.mean
    return (mean is None, mean or 0.0, setting.searched if setting.searched is not None else 1e9, setting.number)


def _problems(runs: Runs, outcomes: Mapping[str, Outcome], number: int) -> list[str]:
    problems = []
    for name, outcome in outcomes.items():
        if runs.of_name[name][0] == number and outcome.state == "failed":
            problems.append(f"seed {runs.of_name[name][1]} failed: {outcome.error}")
        elif runs.of_name[name][0] == number and outcome.state == "pruned":
            problems.append(f"given up at step {outcome.steps:,}")
    return problems


def write_best(result: SweepResult, runs: Runs) -> Path | None:
    """Write the config of the best setting, ready to train; returns its path, or None where no run has a loss."""
    if result.best is None:
        return None
    run_dir = f"runs/{runs.request.home.name}-best"
    config = runs.request.config_of(runs.points[result.best.number]).model_copy(update={"run_dir": run_dir})
    path = runs.request.home / BEST
    lines = comment(_provenance(result, result.best, config.task.predicted))
    replace_file(path, ("\n".join(lines) + "\n" + dump_config(config, full=False)).encode())
    return path


def _provenance(result: SweepResult, best: Setting, predicted: str) -> Sequence[str]:
    unit = "bits per byte" if result.measure == "bpb" else f"nats per {predicted}"
    spread = "" if best.spread is None else f" ± {best.spread:.4f}"
    return [
        f"The best of {len(result.settings)} settings of a sweep: {best.text}.",
        f"Validation loss {best.mean:.4f}{spread} {unit}, {plural(len(best.losses), 'seed')}; {result.verdict}.",
    ]
