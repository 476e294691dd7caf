"""`train.init_from` with a text: what the trained model brings along, so that nothing of it need be written down."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt_cli.cli.output import note
from gpt_cli.errors import RequestError

if TYPE_CHECKING:
    from gpt_cli.config.section import ConfigValues

_GENTLER = 0.1  # of the rates of a model that starts from nothing: large steps forget what was learned


@dataclass(frozen=True)
class Base:
    """Dotted keys and their values that a trained model decides, and what is to be said of them."""

    values: dict[str, Any]
    sentences: list[str]

    def refuse_another_model(self, overrides: "ConfigValues") -> None:
        """Raise RequestError where another shape is asked for, into which the weights do not fit."""
        from gpt_cli.config import to_yaml_scalar
        from gpt_cli.config.recipes import RECIPES
        from gpt_cli.training.init_from import FREE

        recipe = overrides.get("recipe")
        of_recipe = {f"model.{key}": value for key, value in RECIPES[recipe]["model"].items()} if recipe else {}
        for key, value in {**of_recipe, **overrides}.items():
            if not key.startswith("model.") or key.removeprefix("model.") in FREE:
                continue
            if None not in (value, self.values[key]) and value != self.values[key]:  # null: what others make it
                path, there = self.values["train.init_from"], to_yaml_scalar(self.values[key])
                asked = key if key in overrides else "recipe"
                raise RequestError(
                    f"{asked}={to_yaml_scalar(overrides[asked])} asks for another model than {path}, where"
                    f" {'it' if asked == key else key} is {there}",
                    hint=f"leave {asked} out: train.init_from={path} brings its own",
                )

    def refuse_another_tokenizer(self, overrides: "ConfigValues") -> None:
        """Raise RequestError where something else is asked for: its ids would mean something else to the model."""
        if "tokenizer.file" in overrides:
            return  # which is compared, id by id
        for key, value in overrides.items():
            if key.startswith("tokenizer.") and self.values.get(key) != value:
                path = self.values["train.init_from"]
                raise RequestError(
                    f"{key}={value} asks for another tokenizer than the one that {path} was trained with",
                    hint=f"leave {key} out: train.init_from={path} brings its own",
                )


def inherit(path: Path, overrides: "ConfigValues") -> Base:
    """Model, tokenizer, optimizer and gentler rates of the run or checkpoint `path`.

    Of rates that `overrides` set nothing is said. Raises RequestError where there is none, and what loading a
    checkpoint raises.
    """
    from gpt_cli.config.schema import rate_keys
    from gpt_cli.files.kinds import is_checkpoint
    from gpt_cli.run.run_files import is_imported
    from gpt_cli.training.init_from import open_base, refuse_classifier

    run, checkpoint = open_base(path, note)
    refuse_classifier(run, checkpoint, overrides.get("task.kind", "language"))
    base = checkpoint.config
    values: dict[str, Any] = {f"model.{key}": value for key, value in base.model.model_dump().items()}
    del values["model.dropout"]  # it depends on the text
    values |= {f"optim.{key}": value for key, value in base.optim.model_dump().items()}
    values |= {"tokenizer.kind": checkpoint.tokenizer.kind, "tokenizer.file": str(checkpoint.path / "tokenizer.json")}
    values |= {"tokenizer.allow_special": base.tokenizer.allow_special, "train.init_from": str(path)}
    if checkpoint.tokenizer.unk_id is not None:
        values["tokenizer.unknown"] = "token"
    if base.data.format in ("pairs", "chat"):  # the template as it was learned
        values |= {"data.prompt_end": base.data.prompt_end, "data.completion_end": base.data.completion_end}
    if base.task.kind == "classes":
        values["task.pooling"] = base.task.pooling
    if not is_checkpoint(run):  # checkpoints come and go
        values["tokenizer.file"] = str(run / "tokenizer.json")
    tuned = base.train.init_from is not None  # with rates that are gentle already
    rates = {key: float(f"{values[key] * (1 if tuned else _GENTLER):.3g}") for key in ("optim.lr", "optim.adamw_lr")}
    values |= rates
    sentences = [
        f"It starts from {run}, step {checkpoint.step:,}: the same model and the same {checkpoint.tokenizer.kind}"
        f" tokenizer of {checkpoint.tokenizer.vocab_size:,} ids."
    ]
    is_partial = overrides.get("lora.rank") is not None or overrides.get("task.trains") == "head"
    effective = rate_keys(overrides.get("optim.name", base.optim.name), updates_matrices=not is_partial)
    if open_keys := [key for key in effective if overrides.get(key) is None]:
        settings = " ".join(f"{key}={rates[key]:g}" for key in open_keys)
        rates_are, those = ("Its rates are", "those") if len(open_keys) > 1 else ("Its other rate is", "that")
        rates_are = "Its rate is" if len(effective) == 1 else rates_are
        imported = is_imported(run.parent.parent if is_checkpoint(run) else run)  # whose rates are not known
        of_base = f"the default{'s' * (those == 'those')}" if imported else f"{those} there"
        share = "as there" if tuned else f"a tenth of {of_base}"
        sentences.append(f"{rates_are} {share}, so that it keeps what it knows: {settings}.")
    return Base(values, sentences)
