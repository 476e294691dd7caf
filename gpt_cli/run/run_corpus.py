"""Rebuild and verify the text that a run was trained on."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from gpt_cli.config import Config
from gpt_cli.config.dump import to_yaml_scalar
from gpt_cli.config.paths import missing_texts
from gpt_cli.corpus.prepare import Corpus, prepare_corpus
from gpt_cli.corpus.scan import StageProgress
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.run.checkpoint import TOKENIZER
from gpt_cli.run.run_files import DATA, read_fingerprint, run_of
from gpt_cli.tokenizer import load_tokenizer


class HasConfig(Protocol):
    """A checkpoint, loaded or not."""

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> Config: ...

    @property
    def state(self) -> dict[str, Any]: ...


def load_run_corpus(
    trained: HasConfig, *, note: Notify, progress: StageProgress | None = None, with_test: bool = False
) -> Corpus:
    """The text of a run in its splits, as it was when the training began.

    Raises RequestError for a run that has no text, whose text is gone or has changed, or that lacks the test split.
    """
    if "text_sha256" not in trained.state:
        raise RequestError(f"{trained.path} was imported, so it has no text of its own", kind="no text")
    data = trained.config.data
    try:
        corpus = _prepare(
            trained.config, trained.path / TOKENIZER, trained.state["text_sha256"],
            note=note, progress=progress, with_test=with_test,
        )  # fmt: skip
    except UserError as error:
        _only_that_text(error)
        error.kind = error.kind or "no text"
        raise
    if corpus.fingerprint != trained.state["text_sha256"]:
        raise RequestError(
            f"the text {' or '.join([*data.sources, *data.val_sources])} has changed: it is not the one this run was"
            " trained on",
            kind="no text",
        )
    return corpus


def prepare_run_corpus(
    config: Config, *, cache: bool = True, note: Notify, progress: StageProgress | None = None
) -> Corpus:
    """The text that `config` trains on; if it resumes a run on the same text, in the tokens of that run."""
    if (run := run_of(config)) is None or not (run / DATA).is_file():
        return prepare_corpus(config.data, config.tokenizer, cache=cache, note=note, progress=progress)
    return _prepare(config, run / TOKENIZER, read_fingerprint(run / DATA), cache=cache, note=note, progress=progress)


def _prepare(config: Config, tokenizer: Path, fingerprint: str, **options: Any) -> Corpus:
    """The text of `config`, in the tokens of the file `tokenizer` if the text has the `fingerprint`.

    Another version of `gpt` may have learned another BPE from a sample of the text, and tokenizer.file may have been
    replaced since the run began.
    """
    if config.tokenizer.file is not None and tokenizer.is_file():
        own = config.tokenizer.model_copy(update={"file": str(tokenizer)})
        return prepare_corpus(config.data, own, **options)
    corpus = prepare_corpus(config.data, config.tokenizer, **options)
    is_learned = config.tokenizer.kind == "bpe" and config.tokenizer.file is None
    if not is_learned or corpus.fingerprint != fingerprint or not tokenizer.is_file():
        return corpus
    if load_tokenizer(tokenizer).digest == corpus.tokenizer.digest:
        return corpus
    return prepare_corpus(config.data, config.tokenizer.model_copy(update={"file": str(tokenizer)}), **options)


@contextmanager
def restoring_text(config: Config) -> Iterator[None]:
    """Have an error of reading the text of `config` name the keys of what is gone, where a run has begun on it."""
    try:
        yield
    except UserError as error:
        if run_of(config) is not None:
            _only_that_text(error)
            moved = missing_texts(config)
            if moved and error.kind is None:
                error.kind, error.keys = "set", tuple(moved)
                error.choices = tuple(to_yaml_scalar(value) for value in moved.values())
        raise


def _only_that_text(error: UserError) -> None:
    """Have `error` suggest no other text: the run is of this one."""
    if error.kind is None:
        error.choices = ()
