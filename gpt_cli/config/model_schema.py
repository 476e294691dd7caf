"""The section `model` of the schema."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, Strict

from gpt_cli.config.section import (
    SET,
    Conditions,
    ConfigSection,
    Count,
    Factor,
    Needs,
    Positive,
    Probability,
)
from gpt_cli.literals import INT32_MAX

_FOR_PREVIOUS_TOKENS = (
    ("position", "rope"),
    ("qk_norm", True),
    ("norm_position", "pre"),
    ("causal", True),
    ("tie_embeddings", False),
)


class ModelConfig(ConfigSection):
    """The shape of the decoder-only transformer. `vocab_size` comes from the tokenizer."""

    n_layer: Annotated[int, Field(ge=1, le=10_000)] = 4
    """Transformer blocks."""
    n_head: Count = 4
    """Query heads per block."""
    n_kv_head: Count | None = None
    """Key and value heads, shared by groups of query heads (Ainslie et al., 2023). null: n_head."""
    n_embd: Annotated[int, Field(ge=1, le=10_000_000)] = 128
    """Width of the residual stream; a multiple of n_head."""
    context_length: Annotated[int, Field(ge=2, le=INT32_MAX)] = 128
    """The most tokens the model sees at once."""
    position: Literal["learned", "sinusoidal", "rope", "alibi", "none"] = "rope"
    """Learned embeddings (GPT-2), sinusoids (Vaswani et al., 2017), rotary (Su et al., 2021), scores that fall with the
    distance (ALiBi, Press et al., 2022; by torch alone), or nothing."""
    rope_theta: Annotated[float, Field(ge=1e-3, le=1e30)] = 10_000.0
    """Base of the rotary frequencies."""
    rope_scaling: Annotated[tuple[Factor, Factor, Factor, Count], Strict(False)] | None = None
    """Llama 3.1's lower rotary frequencies for a context longer than it was first trained with: factor,
    low_freq_factor, high_freq_factor, original_max_position_embeddings of its config.json. null: none."""
    rope_rounding: Literal["reciprocal", "power"] = "reciprocal"
    """Formula of the rotary frequencies in fp32: 1 / theta ** (2i / D), bit for bit as in Transformers, or
    theta ** -(2i / D), as in runs made before this key."""
    norm: Literal["layernorm", "rmsnorm"] = "rmsnorm"
    """Ba et al. (2016), or without mean and shift (Zhang and Sennrich, 2019)."""
    norm_position: Literal["pre", "post"] = "pre"
    """Normalise the input of each sublayer (GPT-2), or the sum after it (Vaswani et al., 2017)."""
    norm_eps: Positive = 1e-5
    """Added to the variance before the square root."""
    norm_gain: bool = True
    """A learned gain in each norm, those of queries and keys included. Without it they must be rmsnorm."""
    embedding_norm: bool = False
    """Normalise what enters the first block, too."""
    mlp: Literal["relu", "gelu", "swiglu", "relu2"] = "swiglu"
    """Activation; swiglu is gated (Shazeer, 2020), relu2 is the square of relu (So et al., 2021)."""
    mlp_ratio: Annotated[float, Field(gt=0.0, le=1000.0)] | None = None
    """Hidden width of the MLP over n_embd. null: 4, or 8/3 for swiglu, which has a third matrix."""
    qk_norm: bool = True
    """RMS-normalise queries and keys per head before attention (Henry et al., 2020)."""
    head_gate: bool = False
    """Scale what each head returns by a gate of its input, 2 sigmoid(W x) (Qiu et al., 2025; by torch alone)."""
    bias: bool = False
    """Biases in linear layers and LayerNorms."""
    tie_embeddings: bool = False
    """Use the token embedding as the output head (Press and Wolf, 2017)."""
    logit_softcap: Factor | None = None
    """Squash logits into (-c, c) with c * tanh(logits / c) (Gemma 2). null: off."""
    causal: bool = True
    """False: a token sees those after it, too, as in encoders; for task.kind classes (by torch alone)."""
    window: Count | None = None
    """Tokens each query may look back on, itself included (Beltagy et al., 2020). null: all."""
    dropout: Probability = 0.0
    """On embeddings and on what each sublayer adds to the residual stream."""
    attention_dropout: Probability = 0.0
    """On attention weights."""
    init_std: Annotated[float, Field(gt=0.0, le=100.0)] | None = None
    """Standard deviation of the initial weights; output projections get it over sqrt(2 * n_layer) (GPT-2). null: 0.02,
    of matrices times sqrt(128 / n_embd), so that what comes out of them does not grow with the width."""
    zero_init: bool = True
    """Start output projections at zero, so that every block begins as the identity."""
    previous_token_init: bool | None = False
    """Start heads of the first two blocks as previous-token heads, which training otherwise has to find first. Needs
    position rope, qk_norm, norm_position pre, causal, an untied head and a head width of 8 or more. null: where the
    model has all that."""

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    @property
    def kv_heads(self) -> int:
        """Key and value heads, with null resolved."""
        return self.n_head if self.n_kv_head is None else self.n_kv_head

    @property
    def has_previous_token_init(self) -> bool:
        """`previous_token_init`, with null resolved."""
        if self.previous_token_init is not None:
            return self.previous_token_init
        return self.head_dim >= 8 and not self.model_copy(update={"previous_token_init": True}).unmet_needs()

    @property
    def mlp_hidden(self) -> int:
        """Hidden width of the MLP. A fraction is rounded up to a multiple of 8, which kernels like."""
        ratio = self.mlp_ratio if self.mlp_ratio is not None else 8 / 3 if self.mlp == "swiglu" else 4.0
        return -int(-ratio * self.n_embd // 8) * 8

    needs: ClassVar[Needs] = (
        ("norm", "layernorm", "norm_gain", True),
        ("window", SET, "causal", True),
        ("position", "alibi", "causal", True),
        *(("previous_token_init", True, key, value) for key, value in _FOR_PREVIOUS_TOKENS),
    )
    conditions: ClassVar[Conditions] = (
        (lambda m: m.n_embd % m.n_head == 0, "{} must be a multiple of {}", "n_embd n_head"),
        (lambda m: m.n_head % m.kv_heads == 0, "{} must be a multiple of {}", "n_head n_kv_head"),
        (
            lambda m: m.position != "rope" or m.head_dim % 2 == 0,
            "rope needs an even head width, {} / {}",
            "n_embd n_head position",
        ),
        (
            lambda m: m.head_dim >= 8 or not m.previous_token_init,
            "{} needs a head width of 8 or more, {} / {}",
            "previous_token_init n_embd n_head",
        ),
        (lambda m: m.position != "sinusoidal" or m.n_embd % 2 == 0, "{} needs an even {}", "position n_embd"),
        (
            lambda m: m.rope_scaling is None or m.rope_scaling[1] < m.rope_scaling[2],
            "the low_freq_factor of {}, its second number, must be less than its high_freq_factor",
            "rope_scaling",
        ),
    )
