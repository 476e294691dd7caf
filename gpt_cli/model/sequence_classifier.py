"""The network with a classification head: from a whole text to the logits of its labels.

Shapes: B texts, T tokens of the longest, C n_embd, K classes.
"""

import torch
from torch import Tensor, nn

from gpt_cli.config import Config, ModelConfig, TaskConfig
from gpt_cli.errors import RequestError
from gpt_cli.model.bidirectional import BidirectionalAttention
from gpt_cli.model.gpt import GPT
from gpt_cli.model.kv_cache import KVCache

HEAD = "head.weight"
PADDING = -1
"""Stored in place of a token after the end of a text."""


class SequenceClassifier(GPT):
    """The blocks of a GPT under a linear head: tokens in, logits of the classes of each text out.

    A text's logits depend neither on its padding nor on the other texts of the batch.
    """

    class_weights: Tensor | None

    def __init__(self, config: ModelConfig, vocab_size: int, task: TaskConfig) -> None:
        super().__init__(config, vocab_size)
        if task.labels is None:
            raise RequestError("task.labels is null: the data that would tell them is not read here")
        self.labels = task.labels
        self.mean = task.pooling == "mean"
        self.softcap = nn.Identity()
        head = nn.Linear(config.n_embd, len(task.labels), bias=False)
        nn.init.normal_(head.weight, std=config.init_std or 0.02)
        self.head = head  # type: ignore[assignment]  # of classes, not of tokens
        weights = torch.tensor(task.class_weights) if isinstance(task.class_weights, list) else None
        self.register_buffer("class_weights", weights, persistent=False)

    def forward(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """(B, T), each text followed by PADDING -> (B, K)."""
        assert cache is None
        is_token = tokens >= 0  # (B, T)
        if not self.config.causal:
            cache = BidirectionalAttention(is_token, self.config.attention_dropout if self.training else 0.0)
        x = self.features(tokens.clamp_min(0), cache)  # (B, T, C)
        return self.head(self.pool(x, is_token))

    def pool(self, x: Tensor, is_token: Tensor) -> Tensor:
        """(B, T, C), (B, T) -> (B, C): the features of the last token, or the mean over tokens."""
        lengths = is_token.sum(1, keepdim=True)  # (B, 1)
        if self.mean:
            return (x.float() * is_token[..., None]).sum(1) / lengths
        return x.gather(1, (lengths - 1)[..., None].expand(-1, -1, x.shape[-1])).squeeze(1)


def freeze_all_but_head(model: GPT) -> None:
    """Freeze every parameter but the head."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == HEAD)


def make_model(config: Config, vocab_size: int) -> GPT:
    """The model of the task of `config`, with its first weights."""
    if config.task.kind == "classes":
        return SequenceClassifier(config.model, vocab_size, config.task)
    return GPT(config.model, vocab_size)
