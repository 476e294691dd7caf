"""The parts of a block: norms, attention and the MLP, each chosen by the config when it is built.

Shapes: B batch, T tokens, C n_embd, H query heads, Hkv key/value heads, D head_dim, F mlp_hidden.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpt_cli.config import ModelConfig
from gpt_cli.model.attention import alibi_slopes, causal_attention
from gpt_cli.model.kv_cache import KVCache
from gpt_cli.model.position import NoRotary, Rotary, rotary_frequencies


class Attention(nn.Module):
    """Causal self-attention with grouped queries."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        self.heads = (config.n_head, config.kv_heads, config.kv_heads)  # of queries, keys and values
        self.window = config.window
        self.slopes: Tensor | None
        slopes = alibi_slopes(config.n_head) if config.position == "alibi" else None
        self.register_buffer("slopes", slopes, persistent=False)
        self.dropout = config.attention_dropout
        self.qkv = nn.Linear(config.n_embd, sum(self.heads) * self.head_dim, bias=config.bias)
        self.out = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.q_norm, self.k_norm = (
            RMSNorm(self.head_dim, config.norm_eps, config.norm_gain) if config.qk_norm else nn.Identity()
            for _ in range(2)
        )
        self.head_gate = nn.Linear(config.n_embd, config.n_head, bias=False) if config.head_gate else None
        rope = config.position == "rope"
        self.rotary = Rotary(config.context_length, rotary_frequencies(config)) if rope else NoRotary()

    def forward(self, x: Tensor, cache: KVCache | None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        batch, n_token, _ = x.shape
        heads = self.qkv(x).view(batch, n_token, -1, self.head_dim).transpose(1, 2)  # (B, H + 2 Hkv, T, D)
        q, k, v = heads.split(self.heads, dim=1)
        start = 0 if cache is None else cache.start
        q, k = self.rotary(self.q_norm(q), start), self.rotary(self.k_norm(k), start)
        if cache is None:
            dropout = self.dropout if self.training else 0.0
            y = causal_attention(q, k, v, window=self.window, slopes=self.slopes, dropout=dropout)  # (B, H, T, D)
        else:
            y = cache.attend(self.layer, q, k, v, window=self.window, slopes=self.slopes)
        y = y.transpose(1, 2)  # (B, T, H, D)
        if self.head_gate is not None:
            y = y * (2 * torch.sigmoid(self.head_gate(x)))[..., None]
        return self.out(y.reshape(batch, n_token, -1))


class MLP(nn.Module):
    """Widen, activate, narrow."""

    def __init__(self, config: ModelConfig, activation: nn.Module) -> None:
        super().__init__()
        self.up = nn.Linear(config.n_embd, config.mlp_hidden, bias=config.bias)
        self.activation = activation
        self.down = nn.Linear(config.mlp_hidden, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        return self.down(self.activation(self.up(x)))


class GatedMLP(nn.Module):
    """SwiGLU: one widened half gates the other (Shazeer, 2020, equation 6)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.n_embd, 2 * config.mlp_hidden, bias=config.bias)
        self.down = nn.Linear(config.mlp_hidden, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class SquaredReLU(nn.Module):
    """relu(x)^2 (So et al., 2021)."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same shape."""
        return F.relu(x).square()


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) times a gain (Zhang and Sennrich, 2019, equation 4), which is learned, or stays 1."""

    weight: Tensor

    def __init__(self, width: int, eps: float, has_gain: bool = True) -> None:
        super().__init__()
        if has_gain:
            self.weight = nn.Parameter(torch.ones(width))
        else:
            self.register_buffer("weight", torch.ones(width), persistent=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same shape, in the precision of the gain: under autocast fp32, whatever `x` is."""
        return F.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.eps)


class SoftCap(nn.Module):
    """Squash into (-cap, cap), nearly linear around 0 (Gemma Team, 2024, section 2)."""

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same shape."""
        return self.cap * torch.tanh(x / self.cap)


def make_norm(config: ModelConfig) -> nn.Module:
    """The norm over the residual stream that the config names."""
    if config.norm == "rmsnorm":
        return RMSNorm(config.n_embd, config.norm_eps, config.norm_gain)
    return nn.LayerNorm(config.n_embd, eps=config.norm_eps, bias=config.bias)


def make_mlp(config: ModelConfig) -> nn.Module:
    """The MLP that the config names. GELU is the tanh approximation, as in GPT-2."""
    match config.mlp:
        case "swiglu":
            return GatedMLP(config)
        case "relu":
            return MLP(config, nn.ReLU())
        case "gelu":
            return MLP(config, nn.GELU(approximate="tanh"))
        case "relu2":
            return MLP(config, SquaredReLU())
