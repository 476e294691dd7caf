"""Every shipped model is one graph to a compiler, forwards and backwards, in training and in evaluation."""

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from gpt_cli.config import ModelConfig, load_config, parse_config
from gpt_cli.config.recipes import RECIPES
from gpt_cli.model.activation_checkpointing import apply_activation_checkpointing
from gpt_cli.model.gpt import GPT
from gpt_cli.training.torch_engine import token_loss
from tests.support.command import ROOT

pytestmark = pytest.mark.system  # torch's compiler
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
CONTEXT, SEQUENCES, HEADS = 48, 4, 4
LARGE = 50_257  # ids, whose loss is taken in pieces


def shipped_layouts() -> dict[ModelConfig, str]:
    """The models of all configs and recipes, at one size: those that differ in more than size, by a name."""
    models = {path.stem: load_config(path).model for path in CONFIGS}
    models |= {recipe: parse_config("", "t", [f"recipe={recipe}"]).model for recipe in RECIPES}
    models["window"] = ModelConfig(window=20, n_head=HEADS, n_kv_head=2, logit_softcap=5.0, attention_dropout=0.1)
    size = {"n_layer": 1, "n_head": HEADS, "n_embd": 16 * HEADS, "context_length": CONTEXT}
    layouts: dict[ModelConfig, str] = {}
    for name, model in models.items():
        grouped = {"n_kv_head": 2 if model.kv_heads < model.n_head else None}
        layouts.setdefault(model.model_copy(update=size | grouped), name)
    return layouts


def gradients(model: GPT, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # how torch looks into one
@pytest.mark.parametrize(
    ("config", "vocab_size", "recomputed"),
    [
        *(pytest.param(config, 90, False, id=name) for config, name in shipped_layouts().items()),
        pytest.param(ModelConfig(n_layer=1, n_embd=64, context_length=CONTEXT), LARGE, False, id="pieces"),
        pytest.param(ModelConfig(n_layer=2, n_embd=64, context_length=CONTEXT), 90, True, id="recomputed"),
    ],
)
def test_a_shipped_model_is_one_graph_and_gives_the_eager_loss_and_gradients(config, vocab_size, recomputed):
    torch.manual_seed(0)
    model = GPT(config, vocab_size)
    if recomputed:
        apply_activation_checkpointing(model)
    inputs, targets = torch.randint(vocab_size, (2, SEQUENCES, CONTEXT))
    torch.compiler.reset()
    counters.clear()
    compiled = torch.compile(token_loss, backend="aot_eager", fullgraph=True, dynamic=False)
    actual, expected = [], []
    for loss, results in ((compiled, actual), (token_loss, expected)):
        torch.manual_seed(1)  # of dropout
        results += gradients(model.train(), loss(model, inputs, targets))
        with torch.no_grad():
            results.append(loss(model.eval(), inputs, targets, "sum"))
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-6)
    assert counters["stats"]["unique_graphs"] == 2  # training and evaluation
    assert not counters["graph_break"]
