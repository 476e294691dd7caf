"""Classifiers in Transformers: the layouts of language models with a head named `score`, and the names of labels.

Transformers' classifiers apply a linear head without a bias to the last token of a text, as ours do with
`task.pooling: last`; other poolings have no architecture there.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from gpt_cli.config import Config, ModelConfig, TaskConfig
from gpt_cli.errors import RequestError, UserError
from gpt_cli.export.architectures import ARCEE, GPT2, LLAMA, MISTRAL, OPT, QWEN3, STABLELM, STARCODER2
from gpt_cli.export.layout import Layout, choose_layout
from gpt_cli.export.names import TensorName
from gpt_cli.model.sequence_classifier import make_model
from gpt_cli.model.sizing import build_on_meta

SUFFIX = "ForSequenceClassification"
_CLASSIFIER_LAYOUTS = (GPT2, LLAMA, QWEN3, MISTRAL, ARCEE, STARCODER2, STABLELM, OPT)


def as_classifier(layout: Layout) -> Layout:
    """The architecture of classifiers over the blocks of `layout`."""
    names = tuple(TensorName("head", ("score",)) if entry.ours == "head" else entry for entry in layout.names)
    stem = layout.architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    return replace(layout, architecture=stem + SUFFIX, names=names)


LAYOUTS_OF_CLASSES = tuple(map(as_classifier, _CLASSIFIER_LAYOUTS))


def choose_class_layout(config: Config) -> tuple[Layout, ModelConfig]:
    """The first layout that represents the classifier exactly, and the model config for it.

    Raises RequestError, naming the option that prevents it, if there is none.
    """
    if config.task.pooling != "last":
        causal = config.model.causal
        raise RequestError(
            f"no architecture there is this classifier exactly: task.pooling is {config.task.pooling}"
            + ("" if causal else ", model.causal is false"),
            hint="train with task.pooling=last" + ("" if causal else " model.causal=true"),
        )
    model = as_class_model(config.model)
    return choose_layout(model, LAYOUTS_OF_CLASSES), model


def as_class_model(model: ModelConfig) -> ModelConfig:
    """`model` with the options of token logits at their defaults: a classifier has no such logits."""
    return model.model_copy(update={"logit_softcap": None, "tie_embeddings": False})


def label_config(labels: list[str]) -> dict[str, Any]:
    """The keys of config.json that name the labels."""
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        "problem_type": "single_label_classification",
    }


def is_classifier(file: Mapping[str, Any]) -> bool:
    """True if a config.json is of a classifier."""
    architectures = file.get("architectures")
    return isinstance(architectures, list) and any(
        isinstance(name, str) and name.endswith(SUFFIX) for name in architectures
    )


def read_labels(file: dict[str, Any], location: str) -> TaskConfig:
    """The task of a parsed config.json; removes the keys of labels from `file`. Raises UserError for another task."""
    names, kind = file.pop("id2label", None), file.pop("problem_type", None)
    file.pop("label2id", None)
    file.pop("num_labels", None)
    if kind not in (None, "single_label_classification"):
        raise UserError(f"problem_type is {kind!r:.80}, not single_label_classification", where=location)
    if not isinstance(names, dict) or sorted(names) != sorted(map(str, range(len(names)))):
        raise UserError("its id2label does not name the labels from 0 on", where=location)
    labels = [names[str(number)] for number in range(len(names))]
    if not all(isinstance(label, str) and label for label in labels) or len(set(labels)) < max(2, len(labels)):
        raise UserError("its id2label does not name two different labels or more", where=location)
    return TaskConfig(kind="classes", labels=labels)


def class_shapes(model: ModelConfig, task: TaskConfig, vocab_size: int) -> dict[str, Tensor]:
    """The tensors of the classifier, on the meta device."""
    classifier = build_on_meta(model, vocab_size, lambda model, size: make_model(Config(task=task, model=model), size))
    return dict(classifier.state_dict())
