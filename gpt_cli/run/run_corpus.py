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
from gpt_cli.run.run_files import read_fingerprint, run_of, tokenizer_file
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
    """Return the text of a run in its splits, as it was when training began.

    Raises RequestError for a run that has no text, whose text is gone or has changed, or that lacks the test split.
    """
    if (fingerprint := trained.state.get("text_sha256")) is None:
        raise RequestError(f"{trained.path} was imported, so it has no text of its own", kind="no text")
    config, options = trained.config, {"note": note, "progress": progress, "with_test": with_test}
    try:
        corpus = _prepare(config, trained.path / TOKENIZER, fingerprint, **options)
    except UserError as error:
        _only_that_text(error)
        error.kind = error.kind or "no text"
        raise
    if corpus.fingerprint != fingerprint:
        texts = " or ".join([*config.data.sources, *config.data.val_sources])
        raise RequestError(f"the text {texts} has changed: it is not the one this run was trained on", kind="no text")
    return corpus


def prepare_run_corpus(
    config: Config, *, cache: bool = True, note: Notify, progress: StageProgress | None = None
) -> Corpus:
    """Return the text that `config` trains on; if it resumes a run on the same text, in the tokens of that run."""
    if (run := run_of(config)) is None:
        return prepare_corpus(config.data, config.tokenizer, cache=cache, note=note, progress=progress)
    options = {"cache": cache, "note": note, "progress": progress}
    return _prepare(config, tokenizer_file(run), read_fingerprint(run), **options)


def _prepare(config: Config, tokenizer: Path, fingerprint: str, **options: Any) -> Corpus:
    """Return the text of `config`, in the tokens of the file `tokenizer` if the text has the `fingerprint`.

    Another version of `gpt` may have learned another BPE from a sample of the text, and tokenizer.file may have been
    replaced since the run began.
    """
    own = config.tokenizer.model_copy(update={"file": str(tokenizer)})
    if config.tokenizer.file is not None and tokenizer.is_file():
        return prepare_corpus(config.data, own, **options)
    corpus = prepare_corpus(config.data, config.tokenizer, **options)
    is_learned = config.tokenizer.kind == "bpe" and config.tokenizer.file is None
    if not is_learned or corpus.fingerprint != fingerprint or not tokenizer.is_file():
        return corpus
    is_same = load_tokenizer(tokenizer).digest == corpus.tokenizer.digest
    return corpus if is_same else prepare_corpus(config.data, own, **options)


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
