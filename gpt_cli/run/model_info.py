"""Parameters, FLOPs per token and memory of a config or a run."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from gpt_cli.config import Config, load_config
from gpt_cli.config.keys import replace_keys
from gpt_cli.corpus.labelled import sort_labels
from gpt_cli.corpus.prepare import learn_tokenizer, prepare_corpus
from gpt_cli.errors import Notify
from gpt_cli.files.kinds import is_checkpoint
from gpt_cli.model.memory_estimate import estimate_memory
from gpt_cli.model.sizing import flops_per_token, parameter_table
from gpt_cli.run.checkpoint import CONFIG, TOKENIZER, Checkpoint, load, load_newest
from gpt_cli.runtime.device import planned_device
from gpt_cli.terminal.progress import stage_progress
from gpt_cli.tokenizer import load_tokenizer

_Row = tuple[str, tuple[int, ...], int]  # name, shape and elements of a parameter


@dataclass(frozen=True)
class Parameters:
    """Tensors of one name and shape; those of the blocks, equal in every block, are taken together."""

    name: str
    shape: tuple[int, ...]
    tensors: int
    parameters: int


@dataclass(frozen=True)
class Info:
    """The figures of one model. `step` and what follows describe the newest checkpoint, where there is one."""

    path: str
    tokenizer: str
    vocab_size: int
    context_length: int
    batch_size: int
    tokens_per_step: int
    parameters: int
    parameter_table: list[Parameters]
    flops_per_token: int
    memory_bytes: dict[str, int]
    step: int | None = None
    val_loss: float | None = None
    weights_sha256: str | None = None
    checkpoint: str | None = None


def info_of_config(path: Path, overrides: list[str], note: Notify) -> Info:
    """The figures of the model that training the config file `path` would make.

    The text is read only where the vocabulary or the classes depend on it. Raises what `load_config`,
    `learn_tokenizer` and `prepare_corpus` raise.
    """
    config = load_config(path, overrides)
    if config.task.kind == "classes" and config.task.labels is None:
        with stage_progress() as progress:
            corpus = prepare_corpus(config.data, config.tokenizer, note=note, progress=progress)
        labels = sort_labels(text.label for text in corpus.labelled["train"].source)
        return describe(path, replace_keys(config, {"task.labels": labels}), corpus.tokenizer.vocab_size)
    return describe(path, config, vocab_size_of(config, note))


def info_of_run(path: Path, note: Notify) -> Info:
    """The figures of a run and its newest intact checkpoint, or of the checkpoint directory `path`.

    Raises UserError where the run is damaged.
    """
    checkpoint = load(path) if is_checkpoint(path) else load_newest(path, note)
    if checkpoint is None:
        return describe(path, load_config(path / CONFIG), load_tokenizer(path / TOKENIZER).vocab_size)
    return describe(path, checkpoint.config, checkpoint.tokenizer.vocab_size, checkpoint)


def describe(path: Path, config: Config, vocab_size: int, checkpoint: Checkpoint | None = None) -> Info:
    """The figures of a config whose vocabulary has `vocab_size` ids, and of a checkpoint if there is one."""
    table = _parameter_table(config, vocab_size)
    info = Info(
        path=str(path),
        tokenizer=config.tokenizer.kind,
        vocab_size=vocab_size,
        context_length=config.model.context_length,
        batch_size=config.train.batch_size,
        tokens_per_step=config.train.batch_size * config.model.context_length,
        parameters=sum(elements for _, _, elements in table),
        parameter_table=_by_block(table),
        flops_per_token=flops_per_token(config.model, vocab_size),
        memory_bytes=estimate_memory(config, vocab_size, *planned_device(config.runtime)),
    )
    if checkpoint is None:
        return info
    digest, place = checkpoint.weights_sha256, str(checkpoint.path)
    return replace(info, step=checkpoint.step, val_loss=checkpoint.val_loss, weights_sha256=digest, checkpoint=place)


def num_parameters_of_task(config: Config, vocab_size: int) -> int:
    """All parameters of the model of `config`, those of the head of its task included."""
    return sum(elements for _, _, elements in _parameter_table(config, vocab_size))


def _parameter_table(config: Config, vocab_size: int) -> list[_Row]:
    """`parameter_table` with the head of the task; of classes that the data will tell there is none yet."""
    table = parameter_table(config.model, vocab_size)
    if config.task.kind == "language":
        return table
    trunk = [row for row in table if row[0] != "head.weight"]
    n_labels, n_embd = len(config.task.labels or ()), config.model.n_embd
    return [*trunk, ("head.weight", (n_labels, n_embd), n_labels * n_embd)] if n_labels else trunk


def _by_block(table: list[_Row]) -> list[Parameters]:
    """`blocks.0.mlp.down.weight`, `blocks.1.mlp.down.weight` ... as one `blocks.*.mlp.down.weight`."""
    groups: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for name, shape, elements in table:
        groups.setdefault((re.sub(r"^blocks\.\d+\.", "blocks.*.", name), shape), []).append(elements)
    return [Parameters(name, shape, len(sizes), sum(sizes)) for (name, shape), sizes in groups.items()]


def vocab_size_of(config: Config, note: Notify) -> int:
    """The size of the vocabulary; the text is read only where it decides that. Raises as `prepare_corpus` does."""
    if config.tokenizer.file is not None:
        return load_tokenizer(Path(config.tokenizer.file), config.tokenizer.pattern).vocab_size
    if config.tokenizer.vocab_size is not None:  # what learning a BPE gives, or it fails
        return config.tokenizer.vocab_size
    with stage_progress() as progress:
        return learn_tokenizer(config.data, config.tokenizer, note=note, progress=progress).vocab_size
