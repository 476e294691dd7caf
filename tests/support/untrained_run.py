"""A checkpoint of a model that was not trained."""

from pathlib import Path

import torch

from gpt_cli.config import Config, ModelConfig, SampleConfig
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import save
from gpt_cli.tokenizer import Tokenizer

CONTEXT = 16


def make_checkpoint(directory: Path, tokenizer: Tokenizer, step: int = 3) -> Path:
    """A checkpoint of an untrained model, which writes any token."""
    config = Config(
        model=ModelConfig(n_layer=1, n_head=2, n_embd=16, context_length=CONTEXT),
        sample=SampleConfig(prompt="ab", max_new_tokens=24, temperature=1.0),
    )
    torch.manual_seed(0)
    model = GPT(config.model, tokenizer.vocab_size)
    return save(directory, step, model.state_dict(), {}, {}, config, tokenizer)
