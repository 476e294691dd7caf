"""Plots that explain parts of a config, computed by the code that trains and samples.

Shapes: T queries, S keys, C n_embd, D head_dim.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal, cast

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from gpt_cli.config import Config
from gpt_cli.model.attention import causal_mask
from gpt_cli.model.layers import SquaredReLU
from gpt_cli.model.position import Rotary, rotary_frequencies, sinusoids
from gpt_cli.report.figure_io import COLOURS, write_picture
from gpt_cli.sampling.filters import filter_logits
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.shuffle import derive_seed
from gpt_cli.training.muon import POLAR_EXPRESS, newton_schulz
from gpt_cli.training.schedule import lr_multiplier

FigureName = Literal["scaling", "mask", "positions", "activations", "muon", "schedule", "filters"]

_HEATMAP = "viridis"
_SMALL = 16  # tokens of a mask
_KEYS = 64  # keys for each query of `scaling`
_QUERIES = 200  # random queries of `scaling`, of which the mean is drawn
_MAX_POSITIONS = 128  # positions, and channels
_KINDS = ("constant", "linear", "cosine", "wsd")
_CHOICES = 12  # tokens of `filters`


def draw_part(part: FigureName, config: Config, output: Path) -> None:
    """Draw `part` of `config` into `output`, whose suffix (.png, .svg, .pdf) is its format."""
    draw: dict[FigureName, Callable[[Config], Figure]] = {
        "scaling": scaling,
        "mask": mask,
        "positions": positions,
        "activations": activations,
        "muon": muon,
        "schedule": schedule,
        "filters": filters,
    }
    write_picture(output, draw[part](config))


def scaling(config: Config) -> Figure:
    """Plot the largest attention weight among random keys, with and without dividing by sqrt(D)."""
    widths = sorted({2**power for power in range(1, 10)} | {config.model.head_dim})
    figure, (scores, weights) = _figure(2)
    for divided, colour in ((False, COLOURS[1]), (True, COLOURS[0])):
        spread, largest = zip(*(_attend(width, divided) for width in widths), strict=True)
        name = "divided by the root of the width" if divided else "as they are"
        scores.plot(widths, spread, "o-", color=colour, label=name)
        weights.plot(widths, largest, "o-", color=colour, label=name)
    scores.set(title="scores of random queries and keys", ylabel="standard deviation", yscale="log")
    weights.set(title=f"the largest of {_KEYS} attention weights", ylabel="weight, mean", ylim=(0, 1))
    for axes in (scores, weights):
        axes.set(xlabel="width of a head", xscale="log")
        axes.set_xticks(widths, [str(width) for width in widths])
        axes.minorticks_off()
        axes.axvline(config.model.head_dim, color="#999999", linewidth=1, linestyle=":")
    scores.legend(frameon=False)
    return figure


def _attend(width: int, divided: bool) -> tuple[float, float]:
    """(standard deviation of the scores, mean of the largest weight) of random normal queries and keys."""
    generator = torch.Generator().manual_seed(derive_seed("scaling", width))
    q, k = (torch.randn(_QUERIES, n, width, generator=generator) for n in (1, _KEYS))
    scores = q @ k.mT / (math.sqrt(width) if divided else 1.0)  # (_TRIES, 1, _KEYS)
    return scores.std().item(), scores.softmax(dim=-1).amax(dim=-1).mean().item()


def mask(config: Config) -> Figure:
    """Plot the causal mask: in training, with a window, and with a KV cache."""
    window = config.model.window or _SMALL // 4
    panels = (
        ("training (white: seen)", _SMALL, None),
        (f"a window of {window}", _SMALL, window),
        ("with a cache: the last 3 queries", 3, config.model.window),
    )
    figure, all_axes = _figure(3)
    for axes, (title, n_query, visible_window) in zip(all_axes, panels, strict=True):
        visible = causal_mask(n_query, _SMALL, visible_window, torch.device("cpu"))  # (T, S)
        axes.imshow((~visible).numpy(), cmap="Greys", vmin=0, vmax=1.4, aspect="equal")
        axes.set(title=title, xlabel="key", ylabel="query")
        axes.set_xticks(range(0, _SMALL, 5))
        every = 5 if n_query > 5 else 1
        axes.set_yticks(range(0, n_query, every), [str(_SMALL - n_query + row) for row in range(0, n_query, every)])
        axes.set_xticks([i - 0.5 for i in range(_SMALL)], minor=True)
        axes.set_yticks([i - 0.5 for i in range(n_query)], minor=True)
        axes.grid(which="minor", color="#cccccc", linewidth=0.5)
        axes.tick_params(which="minor", length=0)
    return figure


def positions(config: Config) -> Figure:
    """Plot sinusoidal and rotary positions: the tables, and the scores of pairs of positions by distance."""
    model = config.model
    length = min(model.context_length, _MAX_POSITIONS)
    table = sinusoids(length, model.n_embd + model.n_embd % 2)  # (T, C)
    width = model.head_dim + model.head_dim % 2
    even_width = model.model_copy(update={"n_embd": width, "n_head": 1, "n_kv_head": None})
    rotary = Rotary(length, rotary_frequencies(even_width))
    middle = length // 2
    distances = torch.arange(length) - middle

    figure, all_axes = _figure(2, rows=2)
    top, bottom = all_axes[:2], all_axes[2:]
    _heatmap(figure, top[0], table[:, :_MAX_POSITIONS], "sinusoids: what is added", "channel")
    cosines = table @ table[middle] / (table.shape[1] / 2)
    top[1].plot(distances.numpy(), cosines.numpy(), color=COLOURS[0])
    top[1].set(title=f"sinusoids: position {middle} and the others", ylabel="cosine of the angle")
    _heatmap(figure, bottom[0], rotary.cos, "rope: cosine of each pair's angle", "pair of channels")
    ones = torch.ones(1, 1, length, width)
    rotated = rotary(ones, 0)[0, 0]  # (T, D)
    for query, colour, style in ((length - 1, COLOURS[1], "-"), (middle, COLOURS[0], "--")):
        scores = rotated[: query + 1] @ rotated[query] / width
        distance = query - torch.arange(query + 1)
        bottom[1].plot(distance.numpy(), scores.numpy(), style, color=colour, label=f"query at {query}")
    bottom[1].set(title="rope: the score of equal vectors", ylabel="score, of 1", xlabel="tokens back")
    bottom[1].legend(frameon=False)
    top[1].set(xlabel="distance")
    return figure


def activations(config: Config) -> Figure:
    """Plot the activation functions; of swiglu, the gate of an input of 1."""
    x = torch.linspace(-3, 3, 301)
    curves = {
        "relu": F.relu(x),
        "gelu": F.gelu(x, approximate="tanh"),
        "relu2": SquaredReLU()(x),
        "swiglu": F.silu(x),
    }
    figure, (axes,) = _figure(1)
    for (name, y), colour in zip(curves.items(), COLOURS, strict=False):
        name_shown = "swiglu: the gate" if name == "swiglu" else name
        axes.plot(
            x.numpy(), y.numpy(), color=colour, linewidth=2.5 if name == config.model.mlp else 1.2, label=name_shown
        )
    axes.set(title="activations of the MLP", xlabel="in", ylabel="out", ylim=(-0.5, 4))
    axes.legend(frameon=False)
    return figure


def muon(config: Config) -> Figure:
    """Plot the singular values of an update after each step of Muon's Newton-Schulz iteration."""
    generator = torch.Generator().manual_seed(derive_seed("muon"))
    n = config.model.n_embd
    basis = [torch.linalg.qr(torch.randn(n, n, generator=generator)).Q for _ in range(2)]
    update = basis[0] * torch.logspace(0, -3, n) @ basis[1].mT  # singular values over three decades
    x = update / (torch.linalg.matrix_norm(update) * 1.02)
    figure, (axes,) = _figure(1)
    values = [torch.linalg.svdvals(x).numpy()]
    for a, b, c in POLAR_EXPRESS[:-1]:  # the iteration of `newton_schulz_batched`, stopped on its way
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
        values.append(torch.linalg.svdvals(x).numpy())
    values.append(torch.linalg.svdvals(newton_schulz(update[None])[0]).numpy())
    for step, singular in enumerate(values):
        shade = str(0.75 - 0.15 * step) if 0 < step < len(values) - 1 else COLOURS[1] if step == 0 else COLOURS[0]
        name = {0: "the gradient's", len(values) - 1: f"after {step} steps"}.get(step)
        axes.plot(range(1, n + 1), singular, color=shade, label=name)
    axes.set(title="singular values of an update", xlabel="which, the largest first", yscale="log", ylabel="value")
    axes.legend(frameon=False)
    return figure


def schedule(config: Config) -> Figure:
    """Plot the learning rate of each kind of schedule; that of the config is bold."""
    figure, (axes,) = _figure(1)
    steps = config.train.steps
    for kind, colour in zip(_KINDS, COLOURS, strict=False):
        schedule_config = config.schedule.model_copy(update={"kind": kind})
        rates = [lr_multiplier(step, steps, schedule_config) for step in range(steps)]
        axes.plot(range(steps), rates, color=colour, linewidth=2.8 if kind == config.schedule.kind else 1.2, label=kind)
    axes.set(title="learning rate, as a multiple of its peak", xlabel="step", ylim=(0, 1.05))
    axes.legend(frameon=False)
    return figure


def filters(config: Config) -> Figure:
    """Plot a distribution over twelve tokens under temperature, top-k, top-p and min-p."""
    logits = -1.1 * torch.arange(1, _CHOICES + 1).float().log()[None]  # Zipf's law, as for words
    sample = config.sample
    panels = {
        "temperature 1": SamplingParams(temperature=1.0),
        "temperature 0.5": SamplingParams(temperature=0.5),
        "temperature 1.5": SamplingParams(temperature=1.5),
        f"top_k {sample.top_k or 4}": SamplingParams(temperature=1.0, top_k=sample.top_k or 4),
        f"top_p {sample.top_p or 0.8:g}": SamplingParams(temperature=1.0, top_p=sample.top_p or 0.8),
        f"min_p {sample.min_p or 0.25:g}": SamplingParams(temperature=1.0, min_p=sample.min_p or 0.25),
    }
    figure, all_axes = _figure(3, rows=2)
    for axes, (name, sampling) in zip(all_axes, panels.items(), strict=True):
        probabilities = filter_logits(logits, sampling).softmax(dim=-1)[0].numpy()
        axes.bar(range(1, _CHOICES + 1), logits.softmax(dim=-1)[0].numpy(), color="#dddddd")
        axes.bar(range(1, _CHOICES + 1), probabilities, width=0.5, color=COLOURS[0])
        axes.set(title=name, ylim=(0, 0.7), xticks=(1, 4, 8, 12), ylabel="probability" if axes in all_axes[::3] else "")
    return figure


def _heatmap(figure: Figure, axes: Axes, values: Tensor, title: str, across: str) -> None:
    image = axes.imshow(values.numpy(), cmap=_HEATMAP, vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    axes.set(title=title, xlabel=across, ylabel="position")
    figure.colorbar(image, ax=axes, ticks=(-1, 0, 1))


def _figure(columns: int, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of panels, each 4 inches wide; a single one is 6."""
    width = 4.0 * columns if columns > 1 else 6.0
    figure = Figure(figsize=(width, 3.0 * rows + 0.2), dpi=100, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, cast(list[Axes], list(panels.flat))
