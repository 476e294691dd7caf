"""A classifier in Transformers has the logits that it has here, and comes back as it was."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt_cli.cli.main import main
from gpt_cli.config import Config, TaskConfig
from gpt_cli.errors import RequestError, UserError
from gpt_cli.export.class_layouts import LAYOUTS_OF_CLASSES, choose_class_layout, read_labels
from gpt_cli.export.huggingface import export_huggingface
from gpt_cli.export.import_hf import import_huggingface
from gpt_cli.model.sequence_classifier import SequenceClassifier
from gpt_cli.run.load_model import LoadedRun, load_model
from gpt_cli.tokenizer import ByteTokenizer, Tokenizer
from tests.support.export_models import TOKENIZERS

transformers = pytest.importorskip("transformers")

BYTES = ByteTokenizer()
LABELS = ["no", "yes", 'a "third" é']
SIZES: dict[str, Any] = {"n_layer": 2, "n_head": 4, "n_embd": 32, "context_length": 16}
LLAMA = {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu", "qk_norm": False}
MODELS: dict[str, dict[str, Any]] = {
    "GPT2ForSequenceClassification": {
        "position": "learned", "norm": "layernorm", "mlp": "gelu", "qk_norm": False, "bias": True,
        "tie_embeddings": True,
    },
    "LlamaForSequenceClassification": {**LLAMA, "n_kv_head": 2},
    "Qwen3ForSequenceClassification": {**LLAMA, "qk_norm": True, "n_kv_head": 2, "logit_softcap": 15.0},
    "MistralForSequenceClassification": {**LLAMA, "window": 4},
    "ArceeForSequenceClassification": {**LLAMA, "mlp": "relu2"},
    "Starcoder2ForSequenceClassification": {**LLAMA, "norm": "layernorm", "mlp": "gelu", "bias": True},
    "StableLmForSequenceClassification": {**LLAMA, "norm": "layernorm"},
    "OPTForSequenceClassification": {
        "position": "learned", "norm": "layernorm", "norm_position": "post", "mlp": "relu", "qk_norm": False,
        "bias": True,
    },
}  # fmt: skip


def run_of(tokenizer: Tokenizer = BYTES, **model: Any) -> LoadedRun:
    task = TaskConfig(kind="classes", labels=LABELS)
    config = Config.model_validate({"task": task, "model": {**SIZES, **model}})
    torch.manual_seed(0)
    network = SequenceClassifier(config.model, tokenizer.vocab_size, task).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return LoadedRun(network, tokenizer, config, step=1, path=Path("run"), weights_sha256="0" * 64, state={})


def test_every_layout_that_has_classifiers_is_tried():
    assert {layout.architecture for layout in LAYOUTS_OF_CLASSES} == set(MODELS)


@pytest.mark.parametrize("architecture", MODELS)
def test_transformers_computes_the_same_logits(architecture, tmp_path):
    run = run_of(**MODELS[architecture])
    assert export_huggingface(run, tmp_path / "out").architecture == architecture
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert type(theirs).__name__ == architecture
    assert theirs.config.id2label == dict(enumerate(LABELS))
    for length in (1, 7, 16):
        tokens = torch.randint(0, 256, (1, length))
        with torch.no_grad():
            torch.testing.assert_close(theirs(tokens).logits, run.model(tokens), rtol=1e-5, atol=1e-5)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "pipeline_tag: text-classification" in card
    assert "AutoModelForSequenceClassification" in card


@pytest.mark.parametrize("architecture", MODELS)
def test_transformers_pads_a_batch_of_texts_without_changing_their_logits(architecture, tmp_path):
    run = run_of(TOKENIZERS["bpe"], **MODELS[architecture])
    export_huggingface(run, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    texts = ["quick", "The lazy dogs", "fox"]
    with torch.no_grad():
        logits = theirs(**tokenizer(texts, padding=True, return_tensors="pt")).logits
        for text, row in zip(texts, logits, strict=True):
            tokens = torch.tensor([run.tokenizer.encode(text).tolist()])
            torch.testing.assert_close(row[None], run.model(tokens), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", [*MODELS][:3])
def test_what_was_exported_comes_back_with_its_labels_and_every_bit_and_classifies(architecture, tmp_path, capsys):
    run = run_of(**MODELS[architecture])
    export_huggingface(run, tmp_path / "out")
    assert import_huggingface(str(tmp_path / "out"), tmp_path / "run").architecture == architecture
    back = load_model(tmp_path / "run", torch.device("cpu"), print, "classes")
    assert back.config.task.labels == LABELS
    tokens = torch.randint(0, 256, (3, 9))
    with torch.no_grad():
        assert back.model(tokens).equal(run.model(tokens))
    assert main(["classify", "--run", str(tmp_path / "run"), "some text", "--jsonl"]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert actual["label"] in LABELS


@pytest.mark.parametrize(
    ("task", "model", "message"),
    [
        ({"pooling": "mean"}, LLAMA, r"task\.pooling is mean"),
        ({}, {**LLAMA, "causal": False}, r"model\.causal is false"),
        ({}, {**LLAMA, "norm_position": "post"}, r"model\.norm_position is post"),
    ],
)
def test_a_classifier_without_an_architecture_is_refused_by_what_prevents_it(task, model, message):
    task = TaskConfig(kind="classes", labels=LABELS, **task)
    config = Config.model_validate({"task": task, "model": {**SIZES, **model}})
    with pytest.raises(RequestError, match=message):
        choose_class_layout(config)


@pytest.mark.parametrize(
    "file",
    [
        {"id2label": {"0": "a"}},
        {"id2label": {"0": "a", "2": "b"}},
        {"id2label": {"0": "a", "1": "a"}},
        {"id2label": {"0": "a", "1": 3}},
        {"id2label": ["a", "b"]},
        {},
        {"id2label": {"0": "a", "1": "b"}, "problem_type": "regression"},
    ],
)
def test_a_config_json_that_names_no_labels_is_refused(file):
    with pytest.raises(UserError):
        read_labels(file, "config.json")
