"""The initial weights of a new run that starts from another run (`train.init_from`)."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from gpt_cli.config import Config, ModelConfig, to_yaml_scalar
from gpt_cli.errors import Notify, RequestError
from gpt_cli.files.kinds import is_checkpoint
from gpt_cli.model.gpt import GPT
from gpt_cli.model.sequence_classifier import HEAD, SequenceClassifier
from gpt_cli.run.checkpoint import Checkpoint, list_checkpoints, load, load_newest
from gpt_cli.run.find_run import find_run
from gpt_cli.run.load_model import load_weights
from gpt_cli.run.open_checkpoint import no_checkpoint
from gpt_cli.run.tensors import check_tensors, tensor_specs
from gpt_cli.terminal.escape import escape_control_chars, shorten
from gpt_cli.tokenizer import Tokenizer

FREE = frozenset({"dropout", "attention_dropout", "init_std", "zero_init", "previous_token_init"})
"""Options that may differ: they change training, not the computation of the model."""
FREE_FOR_CLASSES = frozenset({"causal", "logit_softcap", "tie_embeddings"})
"""Options that may differ, too, where classes are learned: none of the blocks' parameters depends on them."""
_RESOLVED = {"n_kv_head": "kv_heads", "mlp_ratio": "mlp_hidden"}  # properties with the value of a key that is null


def initial_checkpoint(config: Config, tokenizer: Tokenizer, note: Notify) -> Checkpoint | None:
    """The checkpoint that `train.init_from` names; None without it, and for a run that has checkpoints of its own.

    Raises RequestError when there is none, or its model or its tokenizer is another one.
    """
    if config.train.init_from is None or (config.run_dir and list_checkpoints(Path(config.run_dir))):
        return None
    path, base = open_base(Path(config.train.init_from), note)
    refuse_classifier(path, base, config.task.kind)
    free = FREE if config.task.kind == "language" else FREE | FREE_FOR_CLASSES
    if differing := [key for key in ModelConfig.model_fields if key not in free and _differs(key, config, base)]:
        base_values, values = base.config.model.model_dump(), config.model.model_dump()
        lines = [
            f"\n  model.{key}: {to_yaml_scalar(base_values[key])} there, {to_yaml_scalar(values[key])} here"
            for key in differing
            if base_values[key] != values[key]  # a derived value differs only where its key does
        ]
        raise RequestError(
            f"train.init_from: {path} is another model{''.join(lines)}",
            hint=f"a text takes its model from there: gpt train TEXT train.init_from={quote(str(path))}",
        )
    if base.tokenizer.digest != tokenizer.digest:
        raise RequestError(
            f"train.init_from: {path} has another tokenizer: its ids mean something else",
            hint=f"tokenizer.kind={base.tokenizer.kind} tokenizer.file={quote(str(base.path / 'tokenizer.json'))}",
        )
    if base.config.task.kind == "classes":
        there, here = base.config.task, config.task
        if _row_of_label(here.labels or [], there.labels or []) is None:
            labels = shorten(escape_control_chars(", ".join(there.labels or [])), 80)
            note(f"the head is new: the labels are others than those of {path}, {labels}")
        elif there.pooling != here.pooling:
            note(f"the head of {path} has learned task.pooling={there.pooling}, not {here.pooling}")
    return base


def load_initial(model: GPT, initial: Checkpoint) -> None:
    """Copy the weights of `initial` into `model`; into a classifier with other labels all but the head.

    The same labels in another order take their rows of the head along. Raises UserError, before any is copied, if the
    weights do not fit.
    """
    labels = initial.config.task.labels
    if not isinstance(model, SequenceClassifier) or model.labels == labels:
        load_weights(model, initial)
        return
    rows = _row_of_label(model.labels, labels or [])
    tensors = dict(initial.model_tensors)
    specs = tensor_specs(model.state_dict())
    if rows is None:
        tensors.pop(HEAD, None)
        check_tensors(tensors, {name: spec for name, spec in specs.items() if name != HEAD})
        model.load_state_dict({**tensors, HEAD: model.head.weight.detach()})
    else:
        check_tensors(tensors, specs)
        model.load_state_dict({**tensors, HEAD: tensors[HEAD][rows]})


def _row_of_label(labels: Sequence[str], rows: Sequence[str]) -> list[int] | None:
    """The row of each of `labels` in a head whose rows are of the labels `rows`; None if these are others."""
    return [rows.index(label) for label in labels] if sorted(labels) == sorted(rows) else None


def refuse_classifier(path: Path, base: Checkpoint, task: str) -> None:
    """Raise RequestError if `base`, the checkpoint at `path`, classifies texts and the `task` is language."""
    if (base.config.task.kind, task) == ("classes", "language"):
        raise RequestError(
            f"train.init_from: {path} classifies texts: it has no head that predicts tokens",
            hint="train it further with task.kind=classes, or begin with another run",
        )


def open_base(source: Path, note: Notify) -> tuple[Path, Checkpoint]:
    """The run or checkpoint that `source` names, and its (newest) checkpoint. Raises RequestError for none."""
    try:
        path = find_run(source)
    except RequestError as error:
        is_path = source.exists() or (len(source.parts) > 1 and source.parent.exists())
        if not is_path and not error.choices:  # perhaps of a hub
            error.kind, error.path = "foreign model", str(source)
        raise
    base = load(path) if is_checkpoint(path) else load_newest(path, note)
    if base is None:
        raise no_checkpoint(path)
    return path, base


def _differs(key: str, config: Config, base: Checkpoint) -> bool:
    """True if the models differ in `key`; null equals the value that it stands for."""
    attribute = _RESOLVED.get(key, key)
    return bool(getattr(config.model, attribute) != getattr(base.config.model, attribute))
