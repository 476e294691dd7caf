"""One run, examined: are its files whole, do they belong together, is its model sound, where would it go on."""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from shlex import quote

from gpt_cli.config import load_config
from gpt_cli.cpu.common.kernel import no_build_cache
from gpt_cli.errors import Notify, UserError
from gpt_cli.files.kinds import is_checkpoint
from gpt_cli.model.sequence_classifier import SequenceClassifier
from gpt_cli.run.checkpoint import (
    CONFIG,
    TOKENIZER,
    Checkpoint,
    checkpoint_step,
    list_checkpoints,
    load,
)
from gpt_cli.run.directory import describe_data
from gpt_cli.run.lifecycle import why_over
from gpt_cli.run.load_model import build_verified
from gpt_cli.run.log import METRICS, last_logged_step, read_events, read_metrics, read_samples
from gpt_cli.run.resume import refuse_edited_config
from gpt_cli.run.run_corpus import prepare_run_corpus
from gpt_cli.run.run_files import DATA, RUN, is_imported, read_fingerprint, read_json_object, tokenizer_file
from gpt_cli.run.tensors import require_finite
from gpt_cli.selftest.check import Check, attempt
from gpt_cli.selftest.compiled import check_kernels, check_store
from gpt_cli.selftest.model import check_cache, check_causality, check_padding
from gpt_cli.terminal.words import plural
from gpt_cli.tokenizer import load_tokenizer


def examine(path: Path, note: Notify) -> Iterator[Check]:
    """Yield what is found about the run, or the checkpoint, at `path`. Changes nothing."""
    if is_checkpoint(path):
        yield from _examine_checkpoints([path])
        return
    paths = list_checkpoints(path)
    intact = yield from _examine_checkpoints(paths)
    yield _passes("files", lambda: _describe_files(path))
    yield _passes("logs", lambda: _describe_logs(path))
    yield _passes("tokenizer", lambda: _describe_tokenizer(path, intact))
    yield _passes("data", lambda: _describe_data(path, note))
    yield _passes("resume", lambda: _describe_resume(path, paths, intact))
    yield check_store()
    with no_build_cache():
        yield from check_kernels()


def _examine_checkpoints(paths: list[Path]) -> Generator[Check, None, list[Checkpoint]]:
    """Each checkpoint, newest first; the model of the newest intact one. Returns those that are intact."""
    intact: list[Checkpoint] = []
    for path in paths:

        def describe(path: Path = path) -> str:
            checkpoint = load(path)
            require_finite(checkpoint.model_tensors, "weight")
            require_finite(checkpoint.optimizer_tensors(), "optimizer state")
            intact.append(checkpoint)
            return f"checksums match, all numbers finite, weights sha256 {checkpoint.weights_sha256[:16]}"

        check = _passes(path.name, describe)
        if path.is_dir():  # else a trainer removed it meanwhile, having saved newer ones
            yield check
    if intact:
        try:
            model = build_verified(intact[0]).eval()
        except UserError as error:
            yield Check("model", False, error.message)
        else:
            if isinstance(model, SequenceClassifier):
                yield check_padding(model)
            else:
                yield check_causality(model)
                yield check_cache(model)
    return intact


def _passes(name: str, describe: Callable[[], str]) -> Check:
    """The check that passes with what `describe` says, or fails with its UserError."""
    return attempt(name, lambda: Check(name, True, describe()))


def _describe_files(path: Path) -> str:
    for name in (RUN, DATA):
        read_json_object(path / name)
    load_config(path / CONFIG)
    load_tokenizer(path / TOKENIZER)
    return f"{RUN}, {DATA}, {CONFIG} and {TOKENIZER} can be read"


def _describe_logs(path: Path) -> str:
    damaged: list[str] = []
    metrics, samples, events = (read(path, damaged.append) for read in (read_metrics, read_samples, read_events))
    if damaged:
        more = f"; so are {len(damaged) - 1:,} more" if damaged[1:] else ""
        raise UserError(damaged[0] + more)
    steps = [line["step"] for line in metrics if "loss" in line]
    if steps != sorted(set(steps)):
        raise UserError("metrics.jsonl tells a step twice or out of order")
    newest = next(iter(list_checkpoints(path)), None)
    last = max((line["step"] for line in metrics if "val_loss" in line), default=0)
    if newest is not None and not is_imported(path):
        if checkpoint_step(newest) > 0 and not metrics:
            size = (path / METRICS).stat().st_size if (path / METRICS).exists() else None
            raise UserError(
                f"{METRICS} {'is missing' if size is None else 'has no whole line' if size else 'is empty'}"
            )
        if checkpoint_step(newest) == load_config(path / CONFIG).train.steps > last:  # else it may have been killed
            raise UserError(f"{METRICS} ends at step {last:,}, before the last one: lines of it are lost")
    return f"{plural(len(metrics), 'line')} of metrics, {len(samples):,} samples, {len(events):,} events"


def _describe_tokenizer(path: Path, intact: list[Checkpoint]) -> str:
    digest = load_tokenizer(path / TOKENIZER).digest
    for checkpoint in intact:
        if checkpoint.tokenizer.digest != digest:
            raise UserError(f"{checkpoint.path.name} was trained with another tokenizer than {path / TOKENIZER}")
    return digest[:16] + (", the same in every intact checkpoint" if intact else "")


def _describe_data(path: Path, note: Notify) -> str:
    if is_imported(path):
        return "none: the model was imported"
    config = load_config(path / CONFIG)
    corpus = prepare_run_corpus(config, cache=False, note=note)
    if corpus.fingerprint != read_fingerprint(path):
        raise UserError("the text has changed since the run began: it could not be resumed")
    there, here = read_json_object(path / DATA), describe_data(corpus)
    if (there.get("fingerprint"), there.get("splits")) != (here["fingerprint"], here["splits"]):
        raise UserError(f"{DATA} does not describe the text that the run was trained on")
    if corpus.tokenizer.digest != load_tokenizer(tokenizer_file(path)).digest:
        raise UserError("the text gives another tokenizer than the run has: it could not be resumed")
    return f"{corpus.fingerprint[:16]}, the text that the run was trained on"


def _describe_resume(path: Path, paths: list[Path], intact: list[Checkpoint]) -> str:
    config = load_config(path / CONFIG)
    steps = config.train.steps
    if not paths:
        if lost := last_logged_step(path):
            raise UserError(f"there is no checkpoint: the training of {plural(lost, 'step')} is lost")
        return f"no checkpoint yet: would start from step 0 of {steps:,}"
    if not intact:
        raise UserError("no checkpoint is intact: the run cannot go on")
    if is_imported(path):
        init_from = f"train.init_from={quote(str(path))}"
        if config.task.kind == "classes":
            return f"nothing to resume; a config with labelled texts and {init_from} trains it further"
        return f"nothing to resume; gpt train TEXT {init_from} trains it further"
    newest = max(intact, key=lambda checkpoint: checkpoint.step)
    step = newest.step
    refuse_edited_config(path, config)
    if step >= steps:
        return f"all {steps:,} steps are done"
    over = why_over(read_events(path), step)
    return f"would resume from step {step:,} of {steps:,}" if over is None else f"ended at step {step:,}: {over}"
