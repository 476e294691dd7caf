"""`gpt tokenize --compare`: tokenizers side by side on one text."""

from collections.abc import Sequence
from pathlib import Path

from gpt_cli.choices import Pattern
from gpt_cli.cli.output import note, print_json
from gpt_cli.cli.progress import progress_bar


def compare(
    corpus: Sequence[str],
    names: str,
    *,
    pattern: Pattern | None,
    val_fraction: float,
    model: str | None,
    picture: Path | None,
    json: bool,
) -> None:
    """Print the table, and draw it into `picture` if there is one. Keeps no tokens."""
    from gpt_cli.corpus.blocks import sample_text
    from gpt_cli.corpus.compare import measure_tokenizers, parse_candidates
    from gpt_cli.corpus.sources import read_documents
    from gpt_cli.report.compare import columns, draw_comparison, read_model, render_comparison
    from gpt_cli.report.picture import check_output

    candidates, shape = parse_candidates(names, pattern), read_model(model)
    if picture is not None:
        check_output(picture, hint="gpt tokenize CORPUS --compare char,byte -o compare.png")
    sample = sample_text(read_documents(corpus, note=note), val_fraction)
    used = len(sample.train) + len(sample.val)
    with progress_bar("comparing", " tokenizers") as progress:
        compared = columns(measure_tokenizers(candidates, sample, progress), shape)
    if json:
        text = {"characters": sample.characters, "measured_on": used}
        print_json({**text, "model": shape.model_dump(), "tokenizers": [column.to_json() for column in compared]})
    else:
        print(render_comparison(compared, shape))
    if not sample.whole:
        note(f"measured on a sample of {used:,} of the {sample.characters:,} characters")
    if picture is not None:
        draw_comparison(compared, shape, picture)
        note(f"wrote {picture}")
