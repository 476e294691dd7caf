"""Whatever keys of the config are typed after a text: they are refused in words, or trained with and kept."""

import shutil
import typing
from pathlib import Path
from types import UnionType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpt_cli.config import load_config
from gpt_cli.config.keys import fields, get_key
from gpt_cli.config.load import parse_overrides
from tests.support.command import Run
from tests.support.tiny_run import TEXT

TINY = {
    "train.steps": "2",
    "train.batch_size": "4",
    "model.n_layer": "1",
    "model.n_embd": "16",
    "model.context_length": "16",
    "runtime.threads": "1",
}
FIXED = {"data.source", "run_dir", "runtime.compile", "runtime.device", "train.budget", "train.init_from"}
"""Not drawn: what the test chooses, what compiles for minutes, and what needs another run."""
REWRITTEN = {"data.too_long", "data.text_key", "optim.lr", "task.labels", "tokenizer.vocab_size", "tokenizer.file"}
"""Keys of which a run keeps what they come to: a rate for `auto`, or nothing where they have no effect."""


def texts_of(annotation: Any) -> list[str]:
    """Values as they are typed, of all the types that `annotation` allows."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return texts_of(arguments[0])
    if origin in (typing.Union, UnionType):
        return [text for argument in arguments for text in texts_of(argument)]
    if origin is typing.Literal:
        return [str(argument) for argument in arguments]
    numbers = ["0.0", "0.001", "0.1", "0.5", "0.9", "1.0", "1.5", "2.0"]
    simple = {
        bool: ["true", "false"],
        int: ["1", "2", "3", "7", "16", "33", "64"],
        float: numbers,
        type(None): ["null"],
    }
    return simple.get(origin or annotation, ["the", "[a]", "[0.9, 0.95]", "[1]"])


def overrides() -> st.SearchStrategy[dict[str, str]]:
    """A few keys with values of their types."""
    drawn = {key: texts_of(field.annotation) for key, field in fields().items() if key not in FIXED}
    one = st.sampled_from(sorted(drawn)).flatmap(lambda key: st.tuples(st.just(key), st.sampled_from(drawn[key])))
    return st.lists(one, min_size=1, max_size=4).map(dict)


@pytest.mark.robust
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(typed=overrides())
def test_keys_after_a_text_are_refused_or_trained_with_and_kept(
    gpt_here: Run, tmp_path: Path, typed: dict[str, str]
) -> None:
    (tmp_path / "book.txt").write_text(TEXT)
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    keys = [f"{key}={value}" for key, value in (TINY | typed).items()]
    outcome = gpt_here("train", "book.txt", *keys)
    assert outcome.rc in (0, 1, 2), outcome.stderr
    if outcome.rc:
        assert "error: " in outcome.stderr
        assert not (tmp_path / "runs").exists()
        return
    written = load_config(tmp_path / "runs/book/config.yaml")
    for key, value in parse_overrides(keys).items():
        kept = get_key(written, key)
        assert key in REWRITTEN or (list(kept) if isinstance(kept, tuple) else kept) == value
    again = gpt_here("train", "runs/book")
    assert again.rc == 0, again.stderr
    assert "already" in again.stderr
