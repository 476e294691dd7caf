"""`gpt attention --ascii`: where a model looks, for a terminal of 80 columns."""

from collections.abc import Sequence

from gpt_cli.evaluation.attention_capture import LayerAttention
from gpt_cli.evaluation.attention_heads import KINDS, Head
from gpt_cli.report.heatmap import RAMP, WeightMatrix, ascii_rows
from gpt_cli.terminal.table import fold, render_table, terminal_columns, truncate

_ACROSS = 4  # heads beside each other
_SMALL = 18  # columns of one of them
_SMALL_ROWS = 9  # half as many: a character is twice as high as wide
_PIECE = 10  # columns of a token beside a large map
_TOP = 3  # keys that are named for each query, if they have
_TOLD = 0.1  # of its attention

WeightsOf = dict[tuple[int, int], WeightMatrix]  # (layer, head) -> (T, T)


def weights_of(layers: Sequence[LayerAttention], heads: Sequence[Head]) -> WeightsOf:
    of_layer = {layer.layer: layer.weights().numpy() for layer in layers}
    return {(head.layer, head.head): of_layer[head.layer][head.head] for head in heads}


def render_heads(weights: WeightsOf, heads: Sequence[Head], pieces: Sequence[str]) -> str:
    """All of the chosen heads small, with their scores; a single one large, with its tokens."""
    if len(heads) == 1:
        (head,) = heads
        return "\n\n".join([_table(heads), _large(weights[head.layer, head.head], pieces), _legend()])
    across = max(1, min(_ACROSS, (terminal_columns() + 2) // (_SMALL + 2)))
    rows = [heads[start : start + across] for start in range(0, len(heads), across)]
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
    titles = [f"{head.layer}.{head.head} {'/'.join(head.marks)}"[:_SMALL] for head in heads]
    maps = [ascii_rows(weights[head.layer, head.head], _SMALL, _SMALL_ROWS) for head in heads]
    lines = [titles, *zip(*maps, strict=True)]
    return "\n".join("  ".join(part.ljust(_SMALL) for part in line).rstrip() for line in lines)


def _large(weights: WeightMatrix, pieces: Sequence[str]) -> str:
    """A row for each query: its token, its weights as far as there is room, and the keys it looks at most, each with
    how far back it is."""
    names = [truncate(ascii(piece), _PIECE) for piece in pieces]
    width = max(map(len, names))
    room = min(len(pieces), terminal_columns() - width - 2)
    lines = []
    for query, name in enumerate(names):
        row = ascii_rows(weights[query : query + 1], room, 1)[0]
        line = f"{name:>{width}}  {row}"
        best = sorted(range(query + 1), key=lambda key: -weights[query, key])[:_TOP]
        for key in best:
            told = f"  {names[key]} {key - query or 'self'} {weights[query, key]:.2f}"
            if weights[query, key] < _TOLD or len(line) + len(told) > terminal_columns():
                break
            line += told
        lines.append(line.rstrip())
    return "\n".join(lines)


def _legend() -> str:
    shades = "   ".join(f"{RAMP[tenth]} {tenth / 10:.1f}" for tenth in range(1, 10))
    said = "A line is a query, a column a key; a cell shows the largest of its weights."
    return "\n".join(line for text in (said, shades) for line in fold(text.split(" "), terminal_columns()))
