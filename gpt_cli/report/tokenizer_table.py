"""Compare tokenizers for a model, in a table and a plot."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpt_cli.analysis.compare_tokenizers import Measured
from gpt_cli.config import ModelConfig, load_config, parse_config
from gpt_cli.errors import UserError
from gpt_cli.model.sizing import parameter_table
from gpt_cli.report.figure_io import COLOURS, label, write_picture
from gpt_cli.terminal.plural import plural
from gpt_cli.terminal.table import fold, render_table, terminal_columns

_HEADER = (
    "tokenizer",
    "ids",
    "unused",
    "tokens",
    "bytes per token",
    "parameters",
    "% in embeddings",
    "context (chars)",
)


@dataclass(frozen=True)
class Column:
    """A tokenizer, and its effect on the size of a model."""

    measured: Measured
    parameters: int
    embedding_parameters: int
    """Parameters of the token embedding and, unless it is tied to it, the output head."""
    context_characters: float
    """Characters that a context holds, by the validation text's characters per token."""

    @property
    def embedding_share(self) -> float:
        """Share of the parameters."""
        return self.embedding_parameters / self.parameters

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        measured: dict[str, Any] = values.pop("measured")
        return {**measured, **values, "embedding_share": self.embedding_share}


def read_model(model: str | None) -> ModelConfig:
    """The model of a config file, or the default one with the width `model`.

    Raises RequestError as `load_config` does.
    """
    if model is None:
        return ModelConfig()
    if model.isdecimal() and model.isascii():
        try:
            return parse_config("", "--model-config", [f"model.n_embd={model}"]).model
        except UserError as error:
            error.where = f"--model-config {model}"
            raise
    return load_config(Path(model)).model


def columns(measured: Sequence[Measured], model: ModelConfig) -> list[Column]:
    return [_column(entry, model) for entry in measured]


def render_comparison(table_columns: Sequence[Column], model: ModelConfig) -> str:
    """The table, and the model it is for."""
    rows = [
        (
            column.measured.name,
            column.measured.vocab_size,
            column.measured.unused_ids,
            column.measured.tokens,
            column.measured.bytes_per_token,
            column.parameters,
            round(100 * column.embedding_share),
            round(column.context_characters),
        )
        for column in table_columns
    ]
    caption = "\n".join(fold(f"for a model of {describe_model(model)}".split(" "), terminal_columns()))
    return f"{render_table(rows, header=_HEADER)}\n\n{caption}"


def describe_model(model: ModelConfig) -> str:
    """`4 layers of width 128 and a context of 128 tokens`."""
    layers = plural(model.n_layer, "layer")
    return f"{layers} of width {model.n_embd:,} and a context of {model.context_length:,} tokens"


def draw_comparison(table_columns: Sequence[Column], model: ModelConfig, output: Path) -> None:
    """Draw the main columns of the table as bars into `output`: .png, .svg or .pdf."""
    figure = Figure(figsize=(8, 1.7 + 0.5 * len(table_columns)), dpi=120, layout="constrained")
    panels = figure.subplots(2, 2, sharey=True)
    names = [label(column.measured.name) for column in table_columns]
    draw = [
        ("bytes per token", [c.measured.bytes_per_token for c in table_columns], "{:.2f}"),
        ("context in characters", [c.context_characters for c in table_columns], "{:,.0f}"),
        ("parameters in embeddings (%)", [100 * c.embedding_share for c in table_columns], "{:.0f}%"),
        (
            "ids that the text never uses (%)",
            [100 * c.measured.unused_ids / c.measured.vocab_size for c in table_columns],
            "",
        ),
    ]
    unused = [f"{c.measured.unused_ids:,} of {c.measured.vocab_size:,}" for c in table_columns]
    for axes, (title, values, form) in zip(panels.flat, draw, strict=True):
        _draw_bars(axes, title, names, values, [form.format(value) for value in values] if form else unused)
    figure.suptitle(f"{describe_model(model)}", fontsize="medium")
    write_picture(output, figure)


def _draw_bars(axes: Axes, title: str, names: list[str], values: list[float], texts: list[str]) -> None:
    bars = axes.barh(range(len(names)), values, color=COLOURS[0], height=0.65)
    axes.bar_label(bars, texts, padding=3, fontsize="small")
    axes.set_yticks(range(len(names)), names)
    axes.set_title(title, fontsize="medium", loc="left")
    axes.set_xlim(0, 1.4 * max(values) or 1.0)
    axes.xaxis.set_visible(False)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    if not axes.yaxis_inverted():
        axes.invert_yaxis()


def _column(measured: Measured, model: ModelConfig) -> Column:
    table = parameter_table(model, measured.vocab_size)
    embedding = sum(n for name, _, n in table if name.startswith(("embedding.tokens.", "head.")))
    context = model.context_length * measured.characters_per_token
    return Column(measured, sum(n for _, _, n in table), embedding, context)
