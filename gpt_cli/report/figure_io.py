"""Write figures to files: format, colours, and escaping of untrusted text."""

import io
import warnings
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpt_cli.errors import RequestError
from gpt_cli.files import replace_file
from gpt_cli.files.locations import require_writable
from gpt_cli.terminal.escape import escape_control_chars

# Okabe and Ito (2008): distinguishable by people with any colour vision. Without yellow, too pale for a thin line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

_SUFFIXES = (".png", ".svg", ".pdf")


def check_output(output: Path) -> None:
    """Raise RequestError now if a picture cannot be written to `output`: not after the work."""
    if output.suffix.lower() not in _SUFFIXES:
        named = [str(output.with_suffix(_SUFFIXES[0]))] if output.name else []
        raise RequestError(f"a picture is written as {', '.join(_SUFFIXES)}, not as {output}", choices=named)
    require_writable(output)


def new_axes(width: float, height: float) -> tuple[Figure, Axes]:
    """A new figure of this width and height in inches, and the axes that fill it."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    return figure, figure.add_subplot()


def write_picture(output: Path, figure: Figure) -> None:
    """Write `figure` in the format that the suffix of `output` names; equal figures give equal bytes.

    A PDF embeds TrueType fonts: many publishers refuse matplotlib's default.
    """
    picture = io.BytesIO()
    format_ = output.suffix.lower()[1:]
    dates = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with mpl.rc_context({"svg.hashsalt": "gpt", "pdf.fonttype": 42}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script that the font lacks
        warnings.filterwarnings("ignore", message="constrained_layout not applied")  # a small picture: texts overlap
        figure.savefig(picture, format=format_, metadata=dates[format_])
    replace_file(output, picture.getvalue())


def label(text: str) -> str:
    """`text` with control characters and mathtext escaped."""
    return escape_control_chars(text).replace("$", r"\$")  # a dollar would begin a formula


def add_grid(axes: Axes) -> None:
    """A faint grid behind the curves, and no frame above and to the right."""
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
