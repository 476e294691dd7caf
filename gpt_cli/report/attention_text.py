"""`gpt attention --ascii`: attention maps for a terminal of 80 columns."""

from collections.abc import Sequence

from gpt_cli.evaluation.attention_capture import LayerAttention
from gpt_cli.evaluation.attention_heads import KINDS, Head
from gpt_cli.report.heatmap import RAMP, WeightMatrix, ascii_rows
from gpt_cli.terminal.table import render_table

_ACROSS = 4  # maps side by side
_COLUMNS = 80  # of a large map with its tokens
_SMALL_COLUMNS = 18  # of a small map
_SMALL_ROWS = 9  # of a small map: a character is twice as high as wide
_MAX_PIECE = 10  # columns of a token beside a large map
_MAX_KEYS = 3  # keys listed for each query
_MIN_WEIGHT = 0.1  # of a listed key

WeightsOf = dict[tuple[int, int], WeightMatrix]  # (layer, head) -> (T, T)


def weights_of(layers: Sequence[LayerAttention], heads: Sequence[Head]) -> WeightsOf:
    by_layer = {layer.layer: layer.weights().numpy() for layer in layers}
    return {(head.layer, head.head): by_layer[head.layer][head.head] for head in heads}


def render_heads(weights: WeightsOf, heads: Sequence[Head], pieces: Sequence[str]) -> str:
    """The scores and small maps of several heads; of a single one a large map with its tokens."""
    if len(heads) == 1:
        (head,) = heads
        return "\n\n".join([_table(heads), _large(weights[head.layer, head.head], pieces), _legend()])
    rows = [heads[start : start + _ACROSS] for start in range(0, len(heads), _ACROSS)]
    return "\n\n".join([_table(heads), *(_small(weights, row) for row in rows), _legend()])


def _table(heads: Sequence[Head]) -> str:
    rows = [
        (f"{head.layer}.{head.head}", *(_score(head.scores[kind]) for kind in KINDS), ", ".join(head.marks))
        for head in heads
    ]
    return render_table(rows, header=("head", *KINDS, "is"), right=(1, 2, 3))


def _score(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"


def _small(weights: WeightsOf, heads: Sequence[Head]) -> str:
    titles = [f"{head.layer}.{head.head} {'/'.join(head.marks)}"[:_SMALL_COLUMNS] for head in heads]
    maps = [ascii_rows(weights[head.layer, head.head], _SMALL_COLUMNS, _SMALL_ROWS) for head in heads]
    lines = [titles, *zip(*maps, strict=True)]
    return "\n".join("  ".join(part.ljust(_SMALL_COLUMNS) for part in line).rstrip() for line in lines)


def _large(weights: WeightMatrix, pieces: Sequence[str]) -> str:
    """A row for each query: its token, its weights, and its largest keys with their distances, as far as they fit."""
    names = [ascii(piece)[:_MAX_PIECE] for piece in pieces]
    width = max(map(len, names))
    columns = min(len(pieces), _COLUMNS - width - 2)
    lines = []
    for query, name in enumerate(names):
        row = ascii_rows(weights[query : query + 1], columns, 1)[0]
        line = f"{name:>{width}}  {row}"
        top_keys = sorted(range(query + 1), key=lambda key: -weights[query, key])[:_MAX_KEYS]
        for key in top_keys:
            entry = f"  {names[key]} {key - query or 'self'} {weights[query, key]:.2f}"
            if weights[query, key] < _MIN_WEIGHT or len(line) + len(entry) > _COLUMNS:
                break
            line += entry
        lines.append(line.rstrip())
    return "\n".join(lines)


def _legend() -> str:
    shades = "   ".join(f"{RAMP[tenth]} {tenth / 10:.1f}" for tenth in range(1, 10))
    return f"A line is a query, a column a key; a cell shows the largest of its weights.\n{shades}"
