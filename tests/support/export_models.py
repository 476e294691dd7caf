"""Small models for each family that an export writes, with tokenizers of every kind."""

from pathlib import Path
from typing import Any

import torch

from gpt_cli.config import Config, DataConfig, ModelConfig, SampleConfig, TokenizerConfig
from gpt_cli.model.gpt import GPT
from gpt_cli.run.load_model import LoadedRun
from gpt_cli.sampling import SamplingParams, encode_prompt, stream_batches
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer, train_tokenizer

TEXT = "The quick brown fox, naïve as ever, jumps over 12 lazy dogs — twice!\n\n" * 20
SMALL = {"n_layer": 2, "n_head": 4, "n_embd": 32, "context_length": 24, "zero_init": False, "init_std": 0.2}
GPT2 = {"position": "learned", "norm": "layernorm", "mlp": "gelu", "qk_norm": False, "bias": True}
LLAMA = {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu", "qk_norm": False}
NANOCHAT = {"mlp": "relu2", "norm_gain": False, "embedding_norm": True, "logit_softcap": 5.0}
LLAMA31 = (8.0, 1.0, 4.0, 8192)
POST = {"norm": "layernorm", "norm_position": "post", "mlp": "relu", "qk_norm": False}
# What each model is in Transformers, the reason for it in its options.
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("GPT2LMHeadModel", {**GPT2, "tie_embeddings": True}),
    ("GPT2LMHeadModel", {**GPT2, "bias": False, "n_kv_head": 2}),
    ("GPT2LMHeadModel", {**GPT2, "position": "sinusoidal", "tie_embeddings": True, "mlp": "relu"}),
    ("GPT2LMHeadModel", {**GPT2, "position": "none", "mlp": "relu2", "window": 24}),
    ("LlamaForCausalLM", LLAMA),
    ("LlamaForCausalLM", {**LLAMA, "n_kv_head": 1, "bias": True, "tie_embeddings": True, "rope_theta": 500.0}),
    ("LlamaForCausalLM", {**LLAMA, "norm_gain": False, "embedding_norm": True, "tie_embeddings": True}),
    ("LlamaForCausalLM", {**LLAMA, "rope_scaling": (8.0, 1.0, 4.0, 12), "rope_theta": 50.0}),
    ("Qwen3ForCausalLM", {}),
    ("Qwen3ForCausalLM", {"rope_scaling": (2.0, 1.0, 4.0, 12)}),
    ("Qwen3ForCausalLM", {"n_kv_head": 2, "window": 5, "norm_gain": False, "norm_eps": 1e-6}),
    ("NanoChatForCausalLM", NANOCHAT),
    ("NanoChatForCausalLM", {**NANOCHAT, "n_kv_head": 2, "logit_softcap": None, "tie_embeddings": True}),
    ("MistralForCausalLM", {**LLAMA, "window": 5, "n_kv_head": 2}),
    ("ArceeForCausalLM", {**LLAMA, "mlp": "relu2", "bias": True}),
    ("ApertusForCausalLM", {"mlp": "gelu", "embedding_norm": True}),
    ("Starcoder2ForCausalLM", {**GPT2, "position": "rope", "window": 7, "n_kv_head": 2}),
    ("Starcoder2ForCausalLM", {**GPT2, "position": "rope", "bias": False}),
    ("StableLmForCausalLM", {"norm": "layernorm", "qk_norm": False, "n_kv_head": 2}),
    ("OPTForCausalLM", {**POST, "position": "sinusoidal", "tie_embeddings": True}),
    ("OPTForCausalLM", {**POST, "position": "learned", "mlp": "gelu", "bias": True, "n_kv_head": 2}),
]
TOKENIZERS: dict[str, Tokenizer] = {
    "char": CharTokenizer("".join(sorted(set(TEXT)))),
    "char with <unk>": CharTokenizer("\nabc <unk>", has_unknown=True),
    "byte": ByteTokenizer(),
    "bpe": train_tokenizer([TEXT], TokenizerConfig(kind="bpe", vocab_size=290)),
    "bpe as gpt4": train_tokenizer([TEXT], TokenizerConfig(kind="bpe", vocab_size=290, pattern="gpt4")),
}


def make_run(
    options: dict[str, Any],
    tokenizer: Tokenizer,
    path: Path = Path("run/checkpoints/x"),
    *,
    data: DataConfig | None = None,
) -> LoadedRun:
    """An untrained model whose norms and biases are not at their beginnings."""
    torch.manual_seed(0)
    sample = SampleConfig(prompt="The")
    config = Config(model=ModelConfig(**{**SMALL, **options}), sample=sample, data=data or DataConfig())
    model = GPT(config.model, tokenizer.vocab_size).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    return LoadedRun(model, tokenizer, config, 3, path, "0" * 64, {"val_loss": 1.5})


def greedy(run: LoadedRun, prompt: str, n: int) -> str:
    tokens = encode_prompt(run.tokenizer, prompt)
    sampling = SamplingParams(max_new_tokens=n, temperature=0.0, seed=0)
    return next(stream_batches(run.model, run.tokenizer, [tokens], sampling))[0].text()


GGUF_MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {**GPT2, "tie_embeddings": True},
    "gpt2 without biases": {**GPT2, "bias": False, "n_kv_head": 2, "position": "sinusoidal"},
    "llama": {**LLAMA, "n_kv_head": 2},
    "llama with biases": {**LLAMA, "bias": True, "tie_embeddings": True, "norm_gain": False},
    "qwen3": {"n_kv_head": 1, "embedding_norm": True},
}
