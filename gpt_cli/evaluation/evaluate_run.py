"""The exact loss of a finished run, on its own validation split or on any other text."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gpt_cli.corpus.encode import encode_stream
from gpt_cli.corpus.examples import Examples
from gpt_cli.corpus.prepare import Corpus
from gpt_cli.corpus.readers import ReaderOptions
from gpt_cli.corpus.sources import find_files
from gpt_cli.corpus.tokens import MappedTokens, Tokens, to_token_dtype
from gpt_cli.errors import Notify
from gpt_cli.evaluation.given_examples import UnknownDropper
from gpt_cli.literals import Device
from gpt_cli.run.load_model import LoadedRun, load_model
from gpt_cli.run.run_corpus import load_run_corpus
from gpt_cli.runtime.device import choose_device, restoring_settings, setup_runtime
from gpt_cli.terminal.progress import stage_progress, working
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.training.evaluate import EvalDataset, EvalMetrics, EvaluationText, evaluate
from gpt_cli.training.example_batches import EvaluationExamples, open_evaluation
from gpt_cli.training.example_rows import ExampleRows
from gpt_cli.training.grad_scaler import GradScaler
from gpt_cli.training.labelled_rows import LabelledRows
from gpt_cli.training.select_engine import build_native_engine
from gpt_cli.training.torch_engine import TorchEngine

_CHUNK = 1 << 20  # tokens that are searched for <unk> at once


@dataclass(frozen=True)
class EvalResult:
    """The evaluation of one checkpoint on one text."""

    checkpoint: str
    step: int
    text: str
    evaluation: EvalMetrics

    def figures(self) -> dict[str, Any]:
        """The metrics by name, for `--json`; loss in nats per token."""
        e = self.evaluation
        return {
            "checkpoint": self.checkpoint,
            "step": self.step,
            "text": self.text,
            "loss": e.loss,
            "perplexity": e.perplexity,
            "bpc": e.bpc,
            "bpb": e.bpb,
            "tokens": e.tokens,
            "characters": e.characters,
            "bytes": e.bytes,
        }


@restoring_settings()
def evaluate_run(
    run: Path,
    text: str | None,
    device: Device,
    *,
    split: Literal["val", "test"] = "val",
    skip_unknown: bool,
    note: Notify,
    options: ReaderOptions | None = None,
    examples: Examples | None = None,
) -> EvalResult:
    """Evaluate the newest checkpoint of `run`, or the checkpoint `run`, on `text` or a split of its own text.

    `options`: for reading the files of `text`. `examples`: the examples in `text`, if it holds pairs or chats.

    Raises RequestError if the run has no test split, or its text is gone or has changed, and UnknownCharacters, unless
    `skip_unknown`, for characters that are not in the vocabulary.
    """
    loaded = load_model(run, choose_device(device), note)
    machine = setup_runtime(loaded.config.runtime.model_copy(update={"device": device}))
    dataset: EvalDataset
    if text is None:
        corpus = _corpus(loaded, split, note)
        if (ids := corpus.val if split == "val" else corpus.test) is not None and not corpus.examples:
            _note_unknown(ids, loaded.tokenizer, note)
        opened = open_evaluation(loaded.config, corpus, machine.device, note)
        assert not isinstance(opened, LabelledRows), "see classify_run"
        dataset = opened
    elif examples is not None:
        rows = ExampleRows.of(loaded.config, examples, "given", note)
        dataset = EvaluationExamples.of(rows, loaded.tokenizer, machine.device)
    else:
        tokens = _encode(text, options or ReaderOptions(), loaded, skip_unknown, note)
        dataset = EvaluationText.of(tokens, loaded.tokenizer, machine.device)
    model = loaded.model.to(machine.device)
    engine = build_native_engine(model, loaded.config.runtime, machine, note) or TorchEngine(
        model, machine, GradScaler(False, machine.device), note
    )
    with working("evaluating"):
        evaluation = evaluate(model, engine, dataset)
    name = {"val": "validation split", "test": "test split"}[split] if text is None else text
    return EvalResult(str(loaded.path), loaded.step, name, evaluation)


def _corpus(loaded: LoadedRun, split: Literal["val", "test"], note: Notify) -> Corpus:
    with stage_progress() as progress:
        return load_run_corpus(loaded, note=note, progress=progress, with_test=split == "test")


def _encode(
    source: str, options: ReaderOptions, loaded: LoadedRun, skip_unknown: bool, note: Notify
) -> np.ndarray[Any, Any]:
    """The ids of all documents of `source`, with what training puts between them; each is read in blocks.

    That is the token that ends a text, or for a tokenizer without one a newline where the document has none at its end
    (nothing, if the vocabulary lacks it).
    """
    tokenizer = loaded.tokenizer
    drop = UnknownDropper(tokenizer, note)
    newline = "" if tokenizer.eot_id is not None or tokenizer.unknown_characters("\n") else "\n"
    eot = [] if tokenizer.eot_id is None else [to_token_dtype(np.array([tokenizer.eot_id]), tokenizer.vocab_size)]
    documents = (parts for file in find_files(source, options, note) for _, parts in file.read(note))
    following = next(documents, None)
    arrays = []
    while (document := following) is not None:

        def pieces(document: Iterable[bytes] = document) -> Iterator[str]:
            nonlocal following
            ends_line = True
            for text in map(bytes.decode, document):
                if kept := drop(text) if skip_unknown else text:
                    ends_line = kept.endswith("\n")
                    yield kept
            following = next(documents, None)
            if following is not None and not ends_line:
                yield newline

        arrays.append(encode_stream(tokenizer, pieces(), allow_special=loaded.config.tokenizer.allow_special))
        arrays += eot if following is not None else []
    ids = np.concatenate(arrays or [encode_stream(tokenizer, ())])
    drop.report()
    _note_unknown(ids, tokenizer, note)
    return ids


def _note_unknown(ids: Tokens | MappedTokens, tokenizer: Tokenizer, note: Notify) -> None:
    if tokenizer.unk_id is None:
        return
    chunks = (ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK))
    if unknown := sum(int((chunk == tokenizer.unk_id).sum()) for chunk in chunks):
        note(
            f"{unknown:,} of {len(ids):,} characters are <unk> to the model: bpc and bpb have their loss, and divide it"
            " among the others"
        )
