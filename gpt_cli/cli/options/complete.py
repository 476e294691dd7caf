"""Shell completion of config keys and values, of corpora, and of checkpoints. Typer drops what does not begin so."""

import os
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path

_BREAKS = ("=", "@")  # at which bash divides words


def complete_in_bash(complete: Callable[[], int]) -> int:
    """Have `complete` answer with whole words, of which bash gets what it puts in: the part from the @, or after the =.

    It asks with RUN, @ and STEP as three words, of which it replaces the last two; with KEY, = and VALUE the last one.
    """
    words = os.environ["COMP_WORDS"].split("\n")[: int(os.environ["COMP_CWORD"]) + 1]
    whole, mark = words[:1], ""
    for before, word in pairwise(words):
        mark = next((one for one in (word, before) if one in _BREAKS), "") if word else ""
        if mark:
            whole[-1] += word
        else:
            whole.append(word)
    os.environ.update(COMP_WORDS="\n".join(whole), COMP_CWORD=f"{len(whole) - 1}")
    with redirect_stdout(StringIO()) as answer:
        code = complete()
    for line in filter(None, answer.getvalue().splitlines()):
        print(mark.removeprefix("=") + line.rpartition(mark)[2] if mark else line)
    return code


def complete_change(incomplete: str) -> list[tuple[str, str]]:
    """(`section.key=`, its meaning) of each key, or after `=` the words that the key accepts.

    Nothing for an empty word, so that a shell offers files.
    """
    from gpt_cli.config.keys import accepted_types, description, fields, schema_of

    key, is_given, _ = incomplete.partition("=")
    if is_given and key in fields():
        words = accepted_types(schema_of(key))
        return [(f"{key}={word}", "") for word in words if " " not in word and word != "text"]
    offered = fields().items() if incomplete else ()
    return [(f"{name}=", description(field).partition(". ")[0]) for name, field in offered]


def complete_checkpoint(incomplete: str) -> list[str]:
    """RUN@best and each RUN@STEP that begin so; nothing without an @, so that a shell offers files."""
    from gpt_cli.files.kinds import BEST
    from gpt_cli.run.checkpoint import checkpoint_step, list_checkpoints

    run, at, _ = incomplete.rpartition("@")
    saved = list_checkpoints(Path(run)) if at else []
    names = [f"{run}@{which}" for which in (*([BEST] if saved else []), *map(checkpoint_step, saved))]
    return [name for name in names if name.startswith(incomplete)]


def complete_corpus(incomplete: str) -> list[str]:
    """The names of the known corpora."""
    from gpt_cli.corpus.registry import CORPORA

    return [corpus.name for corpus in CORPORA]
