"""`gpt tokenize --compare`: tokenizers side by side on one text."""

from pathlib import Path
from typing import TYPE_CHECKING

from gpt_cli.cli.output import note, print_json
from gpt_cli.literals import Pattern

if TYPE_CHECKING:
    from gpt_cli.config import DataConfig


def compare_tokenizers(
    data: "DataConfig",
    names: str,
    *,
    pattern: Pattern | None,
    model: str | None,
    picture: Path | None,
    json: bool,
) -> None:
    """Print the table, and draw it into `picture` if there is one. Keeps no tokens, and looks at no test split."""
    from gpt_cli.analysis.compare_tokenizers import measure_tokenizers, parse_candidates
    from gpt_cli.analysis.split_text import SplitText
    from gpt_cli.analysis.text_sample import sample_text
    from gpt_cli.report.figure_io import check_output
    from gpt_cli.report.tokenizer_table import columns, draw_comparison, read_model, render_comparison
    from gpt_cli.terminal.progress import progress_bar, stage_progress

    candidates, shape = parse_candidates(names, pattern), read_model(model)
    if picture is not None:
        check_output(picture, hint="gpt tokenize CORPUS --compare char,byte -o compare.png")
    with stage_progress() as reading:
        sample = sample_text(SplitText.find(data, note, reading), reading)
    used = len(sample.train) + len(sample.val)
    with progress_bar("comparing", " tokenizers") as progress:
        compared = columns(measure_tokenizers(candidates, sample, progress), shape)
    if json:
        text = {"characters": sample.characters, "measured_on": used}
        print_json({**text, "model": shape.model_dump(), "tokenizers": [column.to_json() for column in compared]})
    else:
        print(render_comparison(compared, shape))
    if data.test_fraction:
        note("what is kept for the test was not looked at")
    if not sample.whole:
        note(f"measured on a sample of {used:,} of the {sample.characters:,} characters")
    if picture is not None:
        draw_comparison(compared, shape, picture)
        note(f"wrote {picture}")
