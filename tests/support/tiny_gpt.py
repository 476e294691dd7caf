"""A small GPT, its options as strategies of hypothesis, and what it says without a cache."""

from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

import torch
from hypothesis import strategies as st
from torch import Tensor

from gpt_cli.config import ModelConfig
from gpt_cli.model.gpt import GPT
from gpt_cli.sampling.generate import context_start

VOCAB_SIZE = 13
CONTEXT = 7


def make_model(vocab_size: int = VOCAB_SIZE, **options: Any) -> GPT:
    """A small model whose every part matters: nothing starts at zero, and weights are large."""
    shape = {"n_layer": 2, "n_head": 4, "n_embd": 16, "context_length": CONTEXT}
    torch.manual_seed(0)
    config = ModelConfig(**{**shape, "zero_init": False, "init_std": 0.3, **options})
    return GPT(config, vocab_size).eval()


@torch.inference_mode()
def reference_logits(model: GPT, sequences: Sequence[Sequence[int]]) -> Tensor:
    """(B, V): the definition of what follows sequences of one length, computed without a cache."""
    start = context_start(len(sequences[0]), model.config.context_length)
    logits: Tensor = model(torch.tensor([sequence[start:] for sequence in sequences]))[:, -1]
    return logits


PROMPTS = st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=2 * CONTEXT), min_size=1, max_size=5)
GIVEN: dict[str, Any] = {
    "n_kv_head": st.sampled_from([None, 1, 2]),
    "window": st.sampled_from([None, 1, 3, 100]),
    "logit_softcap": st.sampled_from([None, 2.0]),
    "context_length": st.sampled_from([2, 3, CONTEXT]),
    "causal": st.just(True),  # no cache knows another (tests/model/test_capabilities.py)
    "zero_init": st.just(False),  # or attention would do nothing
}


def values_of(annotation: Any) -> st.SearchStrategy[Any] | None:
    """All values of a switch or a choice by name; None for numbers."""
    if annotation is bool:
        return st.booleans()
    return st.sampled_from(get_args(annotation)) if get_origin(annotation) is Literal else None


SWITCHES = {name: values_of(field.annotation) for name, field in ModelConfig.model_fields.items()}
# Every option by name is tried, those too that are yet to come.
OPTIONS = st.fixed_dictionaries({name: value for name, value in {**SWITCHES, **GIVEN}.items() if value is not None})
