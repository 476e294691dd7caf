"""The network with a head for classes: from a whole text to the logits of its labels.

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
"""In the place of a token after the end of a text."""


class SequenceClassifier(GPT):
    """The blocks of a GPT under a linear head: tokens in, logits of the classes of each text out.

    A text's logits do not depend on what fills it up, nor on the texts beside it.
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
        """(B, T), each text followed by PADDING -> (B, K). There is nothing to cache."""
        assert cache is None
        real = tokens >= 0  # (B, T)
        if not self.config.causal:
            cache = BidirectionalAttention(real, self.config.attention_dropout if self.training else 0.0)
        x = self.features(tokens.clamp_min(0), cache)  # (B, T, C)
        return self.head(self.pool(x, real))

    def pool(self, x: Tensor, real: Tensor) -> Tensor:
        """(B, T, C), (B, T) -> (B, C): the last that is real, or the mean of those that are."""
        lengths = real.sum(1, keepdim=True)  # (B, 1)
        if self.mean:
            return (x.float() * real[..., None]).sum(1) / lengths
        return x.gather(1, (lengths - 1)[..., None].expand(-1, -1, x.shape[-1])).squeeze(1)


def freeze_all_but_head(model: GPT) -> None:
    """Leave the head alone to be trained."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == HEAD)


def make_model(config: Config, vocab_size: int) -> GPT:
    """The model of the task of `config`, with its first weights."""
    if config.task.kind == "classes":
        return SequenceClassifier(config.model, vocab_size, config.task)
    return GPT(config.model, vocab_size)
