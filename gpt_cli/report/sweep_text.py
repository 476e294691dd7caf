"""The result of a sweep as a table."""

from gpt_cli.search.sweep.axes import overrides_of
from gpt_cli.search.sweep.sweep_result import Setting, SweepResult
from gpt_cli.terminal.table import render_table
from gpt_cli.terminal.words import plural

UNITS = {"val_loss": "val loss", "bpb": "bits per byte"}


def render_sweep(result: SweepResult) -> str:
    """A row for each setting, the best first, followed by failures, the verdict and the method."""
    is_search = any("low" in axis for axis in result.axes)
    header = ["setting", *(["searched"] if is_search else []), UNITS[result.measure], "±", "worse by", "95 %"]
    rows = [_row(setting, is_best=setting is result.best, is_search=is_search) for setting in result.settings]
    right = range(1, len(header))
    lines = [render_table(rows, header=header, right=right)]
    lines += [
        f"{setting.text}: {problem}" for setting in result.settings for problem in setting.failed if "failed" in problem
    ]
    lines += ["", _verdict(result)]
    if len(result.settings) > 1 and result.best is not None:
        lines.append(result.method)
    return "\n".join(lines)


def interval(setting: Setting) -> str:
    """The 95 % interval of the difference; with `=` if it includes zero; `?` if it is unknown."""
    difference = setting.difference
    if difference is None:
        return ""
    if difference.low is None or difference.high is None:
        return "?"
    return f"{difference.low:+.4f} {difference.high:+.4f}" + ("" if difference.is_told_apart else " =")


def _row(setting: Setting, *, is_best: bool, is_search: bool) -> list[object]:
    mean, spread, difference = setting.mean, setting.spread, setting.difference
    name = " ".join(overrides_of(setting.values)) or "the config as it is"
    searched = "" if setting.searched is None else f"{setting.searched:.4f}"
    if setting.failed and mean is None:
        searched = (
            f"{searched} {'failed' if any('failed' in problem for problem in setting.failed) else 'given up'}".strip()
        )
    loss = "" if mean is None else f"{mean:.4f}"
    if mean is None and not is_search:
        loss = "failed" if setting.failed else "not run"
    return [
        name, *([searched] if is_search else []), loss, "" if spread is None else f"{spread:.4f}",
        "best" if is_best else "" if difference is None else f"{difference.mean:+.4f}", interval(setting),
    ]  # fmt: skip


def _verdict(result: SweepResult) -> str:
    if result.best is None:
        return "No run has ended with a loss."
    seeds = plural(len(result.best.losses), "seed")
    if len(result.settings) == 1:
        return f"{seeds} of one setting: ± is how far seeds alone move the loss."
    return f"Best: {result.best.text} ({seeds}); {result.verdict}."
