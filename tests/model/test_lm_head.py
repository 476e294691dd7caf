"""A head that multiplies at a padded width is the head: its padding reaches no loss, no logit, no state."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpt_cli.config import ModelConfig
from gpt_cli.model import chunked_loss as pieces
from gpt_cli.model import lm_head
from gpt_cli.model.chunked_loss import chunked_loss
from gpt_cli.model.gpt import GPT
from gpt_cli.training.torch_engine import token_loss

VOCAB = 131


class WidthsOfProducts(TorchDispatchMode):
    """Collects the sizes of all matrix products that read or write something as wide as the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default):
            self.seen |= {n for a in args if isinstance(a, Tensor) for n in a.shape if n >= VOCAB}
        return func(*args, **(kwargs or {}))


def build(**options: object) -> GPT:
    torch.manual_seed(3)
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 16, "context_length": 64, "zero_init": False}
    return GPT(ModelConfig(**{**shape, **options}), VOCAB).double()


def batch() -> tuple[Tensor, Tensor]:
    inputs, targets = torch.randint(VOCAB, (2, 3, 64), generator=torch.Generator().manual_seed(0))
    return inputs, targets


def pad_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr(lm_head, "is_padded", lambda weight: len(weight) % lm_head.TILE > 0)


def results(model: GPT, loss: Callable[..., Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    value = loss(model, *batch())
    value.backward()
    return {"loss": value.detach(), **{name: p.grad for name, p in model.named_parameters()}}


@pytest.mark.parametrize("loss", [token_loss, chunked_loss])
@pytest.mark.parametrize("options", [{}, {"tie_embeddings": True}, {"logit_softcap": 2.0}])
def test_a_padded_head_gives_the_same_loss_and_gradients(monkeypatch, loss, options):
    monkeypatch.setattr(pieces, "MAX_CPU_LOGITS", 100_000 if loss is token_loss else 50 * VOCAB)
    model = build(**options)
    exact = results(model, loss)
    pad_everywhere(monkeypatch)
    with WidthsOfProducts() as products:
        padded = results(model, loss)
    assert products.seen == {192, 256}  # tokens and padded ids, in all three products of the head
    assert padded.keys() == exact.keys()
    for name, value in padded.items():
        torch.testing.assert_close(value, exact[name], atol=1e-6, rtol=1e-6, msg=name)


def test_logits_are_of_the_true_vocabulary_however_the_head_multiplies(monkeypatch):
    model = build()
    exact = model(batch()[0])
    pad_everywhere(monkeypatch)
    assert model(batch()[0]).shape == (3, 64, VOCAB)
    torch.testing.assert_close(model(batch()[0]), exact)


def test_a_few_tokens_are_multiplied_as_they_are(monkeypatch):
    pad_everywhere(monkeypatch)
    model = build()
    with WidthsOfProducts() as products:
        model(batch()[0][:1])  # 64 of them
    assert products.seen == {VOCAB}


def test_nothing_is_padded_on_a_cpu_or_where_nothing_is_to_pad():
    meta = torch.device("meta")
    assert not lm_head.is_padded(torch.empty(131, 2))
    assert lm_head.pad_vocabulary(torch.empty(256, 2, device=meta)).shape == (256, 2)


@pytest.mark.system
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # how torch looks into one
@pytest.mark.parametrize("loss", [token_loss, chunked_loss])
def test_a_padded_head_compiles_as_one_graph(monkeypatch, loss):
    monkeypatch.setattr(pieces, "MAX_CPU_LOGITS", 100_000 if loss is token_loss else 50 * VOCAB)
    pad_everywhere(monkeypatch)
    model = build()
    exact = results(model, loss)
    torch._dynamo.reset()
    compiled = results(model, torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=False))
    for name, value in compiled.items():
        torch.testing.assert_close(value, exact[name], msg=name)
