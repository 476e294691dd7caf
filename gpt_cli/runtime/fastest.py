"""Of several ways to compute the same, the fastest here: measured, and taken only if it computes the same."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Candidate = Callable[[], Sequence[Tensor]]
"""Computes once; gives what it computed, such as a loss and its gradients."""

_WARM_UPS = 3  # the first call compiles, the second records what later ones replay
_ROUNDS, _CALLS = 5, 2  # the calls of a round are queued one behind the other, as the steps of a run are
_MARGIN = 0.03  # what is faster by less than this is a tie, and of a tie the first, the plainest, is taken
_SMALL = 1e-3  # of the largest tensor: below this size, a difference is compared with the largest


@dataclass(frozen=True)
class Fastest:
    """What a measurement found."""

    name: str  # the one to take
    seconds: dict[str, float]  # one call of each candidate that works and agrees with the first
    dropped: dict[str, str]  # name -> why it was left out

    def describe(self) -> str:
        """The figures in a line, the one taken first, then the others from the fastest on."""
        others = sorted((s, name) for name, s in self.seconds.items() if name != self.name)
        figures = [f"{name} {1e3 * s:.2f} ms" for s, name in [(self.seconds[self.name], self.name), *others]]
        return "; ".join([", ".join(figures), *(f"not {name}: {why}" for name, why in self.dropped.items())])


def fastest(
    candidates: Mapping[str, Candidate],
    wait: Callable[[], None],
    tolerance: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Fastest:
    """The fastest of `candidates` by name, among the first of them and those that compute what it does.

    The first is the plain one: what it raises goes to the caller, any other that raises is dropped. Two results agree
    when each tensor differs by at most `tolerance` of its norm. `wait` returns when the device has done all it was
    asked; `clock` gives seconds. The time of a candidate is the median over rounds in which all take turns, so that
    a clock rate that changes meets every one of them.
    """
    plain, *others = candidates
    expected = _warmed_up(candidates[plain])
    dropped: dict[str, str] = {}
    for name in others:
        try:
            error = difference(_warmed_up(candidates[name]), expected)
        except Exception as reason:  # a compiler's and a driver's errors have no base in common
            dropped[name] = _first_line(reason)
            continue
        if not error <= tolerance:  # NaN, too
            dropped[name] = f"it differs by {100 * error:.2g} %"
    times: dict[str, list[float]] = {name: [] for name in candidates if name not in dropped}
    for _ in range(_ROUNDS):
        for name in list(times):
            try:
                times[name].append(seconds_per_call(candidates[name], wait, clock))
            except Exception as reason:
                if name == plain:
                    raise
                del times[name]
                dropped[name] = _first_line(reason)
    seconds = {name: sorted(taken)[_ROUNDS // 2] for name, taken in times.items()}
    best = min(seconds.values())
    chosen = next(name for name, s in seconds.items() if s <= best * (1.0 + _MARGIN))
    return Fastest(chosen, seconds, dropped)


def seconds_per_call(
    candidate: Candidate, wait: Callable[[], None], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds that one call of `candidate` takes when the next is queued behind it; see `fastest`."""
    wait()
    started = clock()
    for _ in range(_CALLS):
        candidate()
    wait()
    return (clock() - started) / _CALLS


@torch.no_grad()
def difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest relative difference of two tensors that belong together: the norm of it over that of the expected.

    Tensors that are next to nothing beside the largest are compared with that, for they may be rounding alone. Where
    shapes or the number of tensors differ, or something is not a number, it is infinite.
    """
    if [t.shape for t in found] != [t.shape for t in expected]:
        return float("inf")
    norms = torch.stack([torch.linalg.vector_norm(t.detach().float()) for t in expected])
    errors = [torch.linalg.vector_norm(f.float() - e.float()) for f, e in zip(found, expected, strict=True)]
    relative = torch.stack(errors) / norms.clamp(min=_SMALL * float(norms.max()))
    worst = float(relative.nan_to_num(nan=float("inf"), posinf=float("inf")).max())
    return 0.0 if float(norms.max()) == 0.0 and float(torch.stack(errors).max()) == 0.0 else worst


def _warmed_up(candidate: Candidate) -> Sequence[Tensor]:
    """What the candidate computes once it has compiled and recorded all that it wants to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a kernel that does not know a shape warns of each reason, then raises
        for _ in range(_WARM_UPS - 1):
            candidate()
        return candidate()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
