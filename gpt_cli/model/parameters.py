"""The table of parameters and shapes that the C engines, Muon and the exports use.

Imports no torch. Shapes: C n_embd, H query heads, Hkv key/value heads, D head_dim, F mlp_hidden, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gpt_cli.config import ModelConfig

BLOCK_SLOTS = (
    *("norm1", "norm1_bias", "qkv", "qkv_bias", "q_norm", "k_norm", "out", "out_bias"),
    *("norm2", "norm2_bias", "up", "up_bias", "down", "down_bias"),
)
NETWORK_SLOTS = ("tokens", "positions", "norm", "norm_bias", "head")
"""Slots of the C engines, in the order of cpu/common/parameters.h; a model need not fill them all."""


@dataclass(frozen=True)
class Parameter:
    """A tensor of `GPT.state_dict()`; `rows` has the rows of each matrix that it stacks."""

    name: str
    shape: tuple[int, ...]
    rows: tuple[int, ...] = ()


def qkv_rows(config: ModelConfig) -> tuple[int, int, int]:
    """Rows of queries, keys and values in `attention.qkv`: H D, Hkv D, Hkv D."""
    return config.n_head * config.head_dim, config.kv_heads * config.head_dim, config.kv_heads * config.head_dim


def gate_up_rows(config: ModelConfig) -> tuple[int, int]:
    """Rows of the gate and of the up projection in `mlp.gate_up`: F, F."""
    return config.mlp_hidden, config.mlp_hidden


def block_parameters(config: ModelConfig, layer: int) -> dict[str, Parameter]:
    """The parameters of a block, by slot."""
    width, hidden, block = config.n_embd, config.mlp_hidden, f"blocks.{layer}."
    qkv, gate_up = qkv_rows(config), gate_up_rows(config)
    table = _norm(config, "norm1", f"{block}norm1")
    table |= _linear(config, "qkv", f"{block}attention.qkv", sum(qkv), width, qkv)
    if config.qk_norm and config.norm_gain:
        for slot in ("q_norm", "k_norm"):
            table[slot] = Parameter(f"{block}attention.{slot}.weight", (config.head_dim,))
    if config.head_gate:
        table["head_gate"] = Parameter(f"{block}attention.head_gate.weight", (config.n_head, width))
    table |= _linear(config, "out", f"{block}attention.out", width, width)
    table |= _norm(config, "norm2", f"{block}norm2")
    if config.mlp == "swiglu":
        table |= _linear(config, "up", f"{block}mlp.gate_up", sum(gate_up), width, gate_up)
    else:
        table |= _linear(config, "up", f"{block}mlp.up", hidden, width)
    return table | _linear(config, "down", f"{block}mlp.down", width, hidden)


def network_parameters(config: ModelConfig, vocab_size: int) -> dict[str, Parameter]:
    """The parameters outside the blocks, by slot, including the head even if it is tied."""
    table = {"tokens": Parameter("embedding.tokens.weight", (vocab_size, config.n_embd))}
    if config.position == "learned":
        table["positions"] = Parameter("embedding.positions", (config.context_length, config.n_embd))
    if config.embedding_norm:
        table |= _norm(config, "embedding_norm", "embedding.norm")
    if config.norm_position == "pre":
        table |= _norm(config, "norm", "norm")
    return table | {"head": Parameter("head.weight", (vocab_size, config.n_embd))}


def parameters(config: ModelConfig, vocab_size: int) -> Iterator[Parameter]:
    """All parameters of `GPT(config, vocab_size)`."""
    yield from network_parameters(config, vocab_size).values()
    for layer in range(config.n_layer):
        yield from block_parameters(config, layer).values()


def _linear(
    config: ModelConfig, slot: str, module: str, outputs: int, inputs: int, rows: tuple[int, ...] = ()
) -> dict[str, Parameter]:
    table = {slot: Parameter(f"{module}.weight", (outputs, inputs), rows)}
    return table | {f"{slot}_bias": Parameter(f"{module}.bias", (outputs,))} if config.bias else table


def _norm(config: ModelConfig, slot: str, module: str) -> dict[str, Parameter]:
    table = {slot: Parameter(f"{module}.weight", (config.n_embd,))} if config.norm_gain else {}
    has_bias = config.bias and config.norm == "layernorm"
    return table | {f"{slot}_bias": Parameter(f"{module}.bias", (config.n_embd,))} if has_bias else table
