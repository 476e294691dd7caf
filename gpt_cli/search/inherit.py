"""`train.init_from` with a text: what the trained model brings along, so that nothing of it need be written down."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt_cli.config import to_yaml_scalar
from gpt_cli.config.recipes import RECIPES
from gpt_cli.config.schema import rate_keys
from gpt_cli.config.section import ConfigValues
from gpt_cli.errors import Notify, RequestError
from gpt_cli.files.kinds import is_checkpoint
from gpt_cli.run.checkpoint import Checkpoint
from gpt_cli.run.run_files import is_imported
from gpt_cli.training.init_from import FREE, open_base, refuse_classifier

_GENTLER = 0.1  # of the rates of a model that starts from nothing: large steps forget what was learned


@dataclass(frozen=True)
class Base:
    """Keys and their values that a trained model decides, and sentences on them for the user."""

    values: dict[str, Any]
    sentences: list[str]


def inherit(path: Path, requested: ConfigValues, note: Notify) -> Base:
    """Return the model, tokenizer, optimizer and gentler rates of the run or checkpoint `path`.

    Raises RequestError where there is none, and where another model or another tokenizer is `requested`, into which its
    weights do not fit, and what loading a checkpoint raises.
    """
    run, checkpoint = open_base(path, note)
    refuse_classifier(run, checkpoint, requested.get("task.kind", "language"))
    values, base = _values(path, run, checkpoint), checkpoint.config
    _refuse_another(values, requested)
    tuned = base.train.init_from is not None  # with rates that are gentle already
    rates = {key: float(f"{values[key] * (1 if tuned else _GENTLER):.3g}") for key in ("optim.lr", "optim.adamw_lr")}
    tokenizer = checkpoint.tokenizer
    sentences = [
        f"It starts from {run}, step {checkpoint.step:,}: the same model and the same {tokenizer.kind}"
        f" tokenizer of {tokenizer.vocab_size:,} ids."
    ]
    is_partial = requested.get("lora.rank") is not None or requested.get("task.trains") == "head"
    effective = rate_keys(requested.get("optim.name", base.optim.name), updates_matrices=not is_partial)
    if settings := " ".join(f"{key}={rates[key]:g}" for key in effective if requested.get(key) is None):
        imported = is_imported(run.parent.parent if is_checkpoint(run) else run)  # whose rates are not known
        share = "as there" if tuned else f"a tenth of {'the defaults' if imported else 'those there'}"
        sentences.append(f"Its learning rates are {share}, so that it keeps what it knows: {settings}.")
    return Base(values | rates, sentences)


def _values(path: Path, run: Path, checkpoint: Checkpoint) -> dict[str, Any]:
    base, tokenizer = checkpoint.config, checkpoint.tokenizer
    values = {f"model.{key}": value for key, value in base.model.model_dump().items() if key != "dropout"}
    values |= {f"optim.{key}": value for key, value in base.optim.model_dump().items()}
    folder = checkpoint.path if is_checkpoint(run) else run  # checkpoints come and go
    values |= {"tokenizer.kind": tokenizer.kind, "tokenizer.file": str(folder / "tokenizer.json")}
    values |= {"tokenizer.allow_special": base.tokenizer.allow_special, "train.init_from": str(path)}
    if tokenizer.unk_id is not None:
        values["tokenizer.unknown"] = "token"
    if base.data.format in ("pairs", "chat"):  # the template as it was learned
        values |= {"data.prompt_end": base.data.prompt_end, "data.completion_end": base.data.completion_end}
    if base.task.kind == "classes":
        values["task.pooling"] = base.task.pooling
    return values


def _refuse_another(values: dict[str, Any], requested: ConfigValues) -> None:
    """Raise RequestError for a key that asks for another shape or tokenizer than `values`."""
    recipe = requested.get("recipe")
    of_recipe = {f"model.{key}": value for key, value in RECIPES[recipe]["model"].items()} if recipe else {}
    for key, value in {**of_recipe, **requested}.items():
        section, _, name = key.partition(".")
        there = values.get(key)
        if section == "model":  # null: what others make it
            differs = name not in FREE and None not in (value, there) and value != there
        else:  # a tokenizer.file is compared, id by id
            differs = section == "tokenizer" and "tokenizer.file" not in requested and value != there
        if differs:
            asked = f"{key}={to_yaml_scalar(value)}" if key in requested else f"recipe={recipe}, which sets {key},"
            path = values["train.init_from"]
            raise RequestError(
                f"{asked} asks for another {section} than {path}, where it is {to_yaml_scalar(there)}: leave it out",
                keys=[key],
            )
