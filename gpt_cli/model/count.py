"""How large a model is and what a step of it costs, before any of it is allocated."""

import torch

from gpt_cli.config import Config, ModelConfig
from gpt_cli.model.chunked_loss import logits_per_piece
from gpt_cli.model.gpt import GPT


def parameter_table(config: ModelConfig, vocab_size: int) -> list[tuple[str, tuple[int, ...], int]]:
    """(name, shape, elements) of each parameter; a tied head is listed once, as the embedding it is."""
    model = build_on_meta(config, vocab_size)
    return [(name, tuple(p.shape), p.numel()) for name, p in model.named_parameters()]


def total_parameters(config: ModelConfig, vocab_size: int) -> int:
    """All parameters, embeddings included."""
    return sum(n for _, _, n in parameter_table(config, vocab_size))


def build_on_meta(config: ModelConfig, vocab_size: int) -> GPT:
    """The model with shapes but no storage."""
    with torch.device("meta"):
        return GPT(config, vocab_size)


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
    return 6 * (total_parameters(config, vocab_size) - embedding) + attention


def memory_bytes(config: Config, vocab_size: int) -> dict[str, int]:
    """An estimate of the memory training takes, by what it is for, in bytes (fp32)."""
    model, parameters = config.model, total_parameters(config.model, vocab_size)
    matrices = sum(n for name, shape, n in parameter_table(model, vocab_size) if is_hidden_matrix(name, shape))
    moments = 2 * parameters - (matrices if config.optim.name == "muon" else 0)
    if config.optim.ema is not None:
        moments += parameters
    tokens = config.train.sequences_per_forward * model.context_length
    # What autograd keeps per token and layer: the inputs of norms and matrices, q, k, v and their rotations,
    # and the hidden layer before and after its activation; then the logits, their softmax and its gradient.
    layer = 10 * model.n_embd + 3 * model.mlp_hidden
    kept = model.n_layer * layer + 2 * model.n_embd
    if config.train.activation_checkpointing:  # the inputs of all layers, and one layer at a time
        kept = model.n_layer * model.n_embd + layer + 2 * model.n_embd
    whole, piece = (
        tokens * vocab_size,
        logits_per_piece(torch.device("cuda" if config.runtime.device == "cuda" else "cpu")),
    )
    logits = 3 * min(whole, max(piece, vocab_size))
    return {
        "weights": 4 * parameters,
        "gradients": 4 * parameters,
        "optimizer": 4 * moments,
        "activations": 4 * (tokens * kept + logits),
    }


def is_hidden_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a parameter is a matrix between hidden layers: neither embedding, nor head, nor vector."""
    return len(shape) == 2 and name.startswith("blocks.")
