"""Parameters and FLOPs of a model, before any of it is allocated."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gpt_cli.config import ModelConfig
from gpt_cli.model.gpt import GPT

_FIRST = "blocks.0."


def parameter_table(config: ModelConfig, vocab_size: int) -> list[tuple[str, tuple[int, ...], int]]:
    """(name, shape, elements) of each parameter; a tied head is listed once, as the embedding."""
    model = build_on_meta(config.model_copy(update={"n_layer": 1}), vocab_size)  # blocks have the same parameters
    table = [(name, tuple(p.shape), p.numel()) for name, p in model.named_parameters()]
    block = [row for row in table if row[0].startswith(_FIRST)]
    first = table.index(block[0])
    blocks = [
        (f"blocks.{layer}.{name.removeprefix(_FIRST)}", shape, elements)
        for layer in range(config.n_layer)
        for name, shape, elements in block
    ]
    return table[:first] + blocks + table[first + len(block) :]


def num_parameters(config: ModelConfig, vocab_size: int) -> int:
    """All parameters, embeddings included."""
    return sum(n for _, _, n in parameter_table(config, vocab_size))


def build_on_meta(config: ModelConfig, vocab_size: int, build: Callable[[ModelConfig, int], GPT] = GPT) -> GPT:
    """The model that `build` returns, without storage: its parameters have names and shapes, and no values.

    Tables of positions are left out, and nothing is drawn: to compute on the device meta loads torch's compiler, which
    takes half a second.
    """
    if config.position != "learned":  # the others have tables but no parameters
        config = config.model_copy(update={"position": "none", "previous_token_init": False})
    with torch.device("meta"), _NoNormal():
        return build(config, vocab_size)


class _NoNormal(TorchFunctionMode):
    """No normal numbers are drawn."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        return keywords["tensor"] if func is nn.init.normal_ else func(*args, **keywords)


def flops_per_token(config: ModelConfig, vocab_size: int) -> int:
    """Floating-point operations to train on one token, at full context.

    6 per weight that multiplies (forward 2, backward 4) + 12 n_layer n_embd T for attention scores and their
    use (Chowdhery et al., 2022, appendix B); T is the window where there is one.
    """
    embedding = config.context_length * config.n_embd if config.position == "learned" else 0
    if not config.tie_embeddings:  # a lookup multiplies nothing; a tied embedding does, as the head
        embedding += vocab_size * config.n_embd
    span = config.context_length if config.window is None else min(config.window, config.context_length)
    attention = 12 * config.n_layer * config.n_embd * span
    return 6 * (num_parameters(config, vocab_size) - embedding) + attention


def is_hidden_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """True if a parameter is a matrix between hidden layers: neither embedding, nor head, nor vector."""
    return len(shape) == 2 and name.startswith("blocks.")


def hidden_parameters(config: ModelConfig, vocab_size: int) -> int:
    """The weights of all hidden matrices, as Kaplan et al. (2020) count a model's size."""
    return sum(n for name, shape, n in parameter_table(config, vocab_size) if is_hidden_matrix(name, shape))
