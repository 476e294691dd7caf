"""Characters that the vocabulary lacks, in texts given to a verb: left out, or `<unk>` to the model, with a note."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpt_cli.cli.output import list_characters, note

if TYPE_CHECKING:
    from gpt_cli.tokenizer import Tokenizer


def without_unknown(
    tokenizer: "Tokenizer", texts: Sequence[str], *, skip: bool, source: str = "", form: str = "{}"
) -> list[str]:
    """`texts`, without unknown characters if `skip`. Otherwise as they are: `<unk>`, or an error when encoded.

    The note of what was left out names the `source` and is put into `form`.
    """
    missing = tokenizer.unknown_characters("".join(dict.fromkeys("".join(texts))))
    if not missing or not (skip or tokenizer.unk_id is not None):
        return list(texts)
    if not skip:
        note(form.format(f"the model sees <unk> for what its vocabulary lacks: {list_characters(missing)}"))
        return list(texts)
    left_out = f"left out of the {source}" if source else "left out"
    note(form.format(f"{left_out}, since the vocabulary lacks it: {list_characters(missing)}"))
    table = dict.fromkeys(map(ord, missing))
    return [text.translate(table) for text in texts]
