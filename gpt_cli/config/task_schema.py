"""The section `task` of the schema, and what a task asks of the other sections."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field

from gpt_cli.config.section import ConfigSection, Name, Positive, given_values

if TYPE_CHECKING:
    from gpt_cli.config.schema import Config


class TaskConfig(ConfigSection):
    """Prediction of the model: the next token, or a class of the whole text."""

    kind: Literal["language", "classes"] = "language"
    """language: the next token. classes: the label of a text, by a linear head over its tokens; texts and labels are
    read as `data.text_key` and `data.label_key` say."""
    labels: Annotated[list[Name], Field(min_length=2)] | None = None
    """Names of the classes in their order. null: those in the data, sorted; the run keeps them."""
    pooling: Literal["last", "mean"] = "last"
    """Input of the head: the features of the last token, or their mean over all tokens."""
    class_weights: Literal["balanced"] | Annotated[list[Positive], Field(min_length=2)] | None = None
    """Factor of each class in the loss of training. balanced: examples over classes times examples of the class; the
    run keeps the numbers. null: none."""
    trains: Literal["all", "head"] = "all"
    """head: only the head is trained, on the features of train.init_from as they are."""

    @property
    def predicted(self) -> Literal["token", "text"]:
        """That of which there is one loss each."""
        return "text" if self.kind == "classes" else "token"


def task_sections(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` of a config, sections by name, with what classes make of the keys of other sections left open."""
    if given_values(values.get("task")).get("kind") != "classes":
        return dict(values)
    filled = dict(values)
    for section, defaults in (("data", {"format": "labelled"}), ("sample", {"every": None})):
        if isinstance(values.get(section, {}), Mapping | BaseModel):  # anything else is reported for what it is
            filled[section] = defaults | dict(given_values(values.get(section)))
    return filled


def task_problem(config: "Config") -> str | None:
    """The first of what does not go together with the task of `config`, or None."""
    task, classes = config.task, config.task.kind == "classes"
    if not classes:
        if config.data.format == "labelled":
            return "data.format labelled needs task.kind classes"
        if not config.model.causal:
            return "model.causal false needs task.kind classes: the next token must not be seen"
        changed = [key for key, value in task if value != type(task).model_fields[key].default]
        if not changed:
            return None
        default = type(task).model_fields[changed[0]].default
        return f"task.{changed[0]} needs task.kind classes, or to be {'null' if default is None else default}"
    weights = len(task.class_weights) if isinstance(task.class_weights, list) else 0
    n_labels = len(task.labels or ())
    refused = {
        f"task.kind classes: it needs data.format=labelled, not {config.data.format}": config.data.format != "labelled",
        "sample.every must be null for task.kind classes: nothing is written": config.sample.every is not None,
        "train.budget is for task.kind language": config.train.budget is not None,
        "eval.max_tokens is for task.kind language": config.eval.max_tokens is not None,
        "task.trains head needs train.init_from, whose features it reads": task.trains == "head"
        and config.train.init_from is None,
        "task.trains head leaves no matrix to lora.rank": task.trains == "head" and config.lora.rank is not None,
        "task.trains head leaves little optimizer state: parallel.shard must be none": task.trains == "head"
        and config.parallel.shard != "none",
        "task.labels names a label twice": task.labels is not None and len(set(task.labels)) < len(task.labels),
        "task.class_weights in numbers needs task.labels, in whose order they are": weights > 0 and task.labels is None,
        f"task.class_weights has {weights} numbers, one for each of {n_labels} labels is needed": weights > 0
        and task.labels is not None
        and weights != n_labels,
    }
    return next((problem for problem, is_so in refused.items() if is_so), None)
