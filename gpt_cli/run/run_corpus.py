"""The text that a run was trained on, made again and verified."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

from gpt_cli.config import Config
from gpt_cli.corpus.prepare import Corpus, prepare_corpus
from gpt_cli.corpus.scan import StageProgress
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.run.directory import run_of


class HasConfig(Protocol):
    """A checkpoint, loaded or not."""

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> Config: ...

    @property
    def state(self) -> dict[str, Any]: ...


def load_run_corpus(
    trained: HasConfig, *, note: Notify, progress: StageProgress | None = None, with_test: bool = False, instead: str
) -> Corpus:
    """The text of a run in its splits, as it was when the training began. `instead` is another way out, for hints.

    Raises RequestError for a run that has no text or whose text is gone or has changed.
    """
    if "text_sha256" not in trained.state:
        raise RequestError(f"{trained.path} was imported, so it has no text of its own", hint=instead)
    data = trained.config.data
    try:
        corpus = prepare_corpus(data, trained.config.tokenizer, note=note, progress=progress, with_test=with_test)
    except UserError as error:
        _suggest_restoring(error, instead)
        raise
    if corpus.fingerprint != trained.state["text_sha256"]:
        raise RequestError(
            f"the text {data.source} has changed: it is not the one this run was trained on",
            hint=f"restore the text, or {instead}",
        )
    return corpus


@contextmanager
def suggest_restoring_text(config: Config) -> Iterator[None]:
    """Have an error of reading the text of `config` propose to restore it where a run has begun on it."""
    try:
        yield
    except UserError as error:
        if (run := run_of(config)) is not None:
            further = f"gpt train TEXT train.init_from={quote(str(run))}"
            _suggest_restoring(error, f"train its model further on another: {further}")
        raise


def _suggest_restoring(error: UserError, instead: str) -> None:
    if error.hint is None or error.hint.startswith("did you mean"):  # another text would not do
        error.hint = f"restore the text, or {instead}"
