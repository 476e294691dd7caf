"""`gpt attention`: attention maps as a self-contained HTML page.

The maps and scores need no script; with it the page shows each weight, and its query and key by dimension.

Shapes: T tokens, H query heads, D head_dim.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt_cli.errors import RequestError
from gpt_cli.evaluation.attention_capture import LayerAttention
from gpt_cli.evaluation.attention_heads import KINDS, THRESHOLD, Head
from gpt_cli.report.attention_text import weights_of
from gpt_cli.report.heatmap import data_url, png
from gpt_cli.report.html import render_page, write_page
from gpt_cli.terminal.escape import escape_control_chars

_COLOUR = (42, 147, 209)  # the style sheet's --c5 in light mode: visible on white and on black
MAX_BYTES = 16_000_000  # bytes of numbers in a page
_EXPLANATIONS = {
    "previous": "previous-token: to the token before",
    "first": "first-token, a sink: to the first token",
    "induction": "induction: to what followed earlier occurrences of the same token",
}


@dataclass(frozen=True)
class AttentionReport:
    """A forward pass, and the heads that are shown."""

    run: str
    step: int
    pieces: list[str]
    """The text of each token."""
    left_out: int
    """Tokens before these that did not fit into the context."""
    layers: Sequence[LayerAttention]
    heads: Sequence[Head]


def write_attention(report: AttentionReport, output: Path) -> None:
    """Write the page. Raises RequestError if its data exceed MAX_BYTES."""
    size = _size(report)
    if size > MAX_BYTES:
        raise RequestError(
            f"the page would hold {size / 1e6:,.0f} MB of numbers, more than the {MAX_BYTES / 1e6:,.0f} MB that it may",
            hint="show fewer with --layer, --head or --max-tokens",
        )
    write_page(output, render_attention(report))


def render_attention(report: AttentionReport) -> str:
    weights = weights_of(report.layers, report.heads)
    cells = {
        (head.layer, head.head): {
            "picture": data_url(png(weights[head.layer, head.head], _COLOUR)),
            "marks": head.marks,
            "scores": [head.scores[kind] for kind in KINDS],
        }
        for head in report.heads
    }
    return render_page(
        "attention.html",
        "attention.js",
        looked=report,
        cells=cells,
        rows=sorted({layer for layer, _ in cells}),
        columns=sorted({head for _, head in cells}),
        kinds=KINDS,
        explained=_EXPLANATIONS,
        mark=THRESHOLD,
        data=_data(report),
    )


def _size(report: AttentionReport) -> int:
    n_token = len(report.pieces)
    width = report.layers[0].q.shape[-1]
    return 4 * len(report.heads) * (n_token * (n_token + 1) // 2 + 2 * n_token * width)


def _data(report: AttentionReport) -> dict[str, Any]:
    """Data for the page's script: fp32 arrays in base64, little-endian."""
    weights = weights_of(report.layers, report.heads)
    by_layer = {layer.layer: layer for layer in report.layers}
    lower_triangle = np.tril_indices(len(report.pieces))
    heads = []
    for head in report.heads:
        layer = by_layer[head.layer]
        heads.append(
            {
                "name": f"{head.layer}.{head.head}",
                "weights": _base64(weights[head.layer, head.head][lower_triangle]),  # row by row, keys up to the query
                "q": _base64(layer.q[head.head].numpy()),
                "k": _base64(layer.k[head.head // layer.group].numpy()),
            }
        )
    pieces = [escape_control_chars(piece) for piece in report.pieces]
    return {"pieces": pieces, "width": report.layers[0].q.shape[-1], "heads": heads}


def _base64(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode()
