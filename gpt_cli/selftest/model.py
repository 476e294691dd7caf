"""Properties that every trained model must have: it does not look ahead, and its cache changes nothing.

Shapes: T tokens, V vocabulary.
"""

import torch
from torch import Tensor

from gpt_cli.capabilities import KV_CACHE
from gpt_cli.model.gpt import GPT
from gpt_cli.model.kv_cache import KVCache
from gpt_cli.model.sequence_classifier import PADDING, SequenceClassifier
from gpt_cli.runtime.device import exact_products
from gpt_cli.selftest.check import Check

_MAX_DIFFERENCE = 1e-3  # of logits: kernels for one token and for many round differently


@torch.inference_mode()
def check_causality(model: GPT) -> Check:
    """Changing the last token changes no logit of an earlier position, not by one bit."""
    tokens = _tokens(model)
    changed = tokens.clone()
    changed[0, -1] = (tokens[0, -1] + 1) % model.head.out_features
    before, after = model(tokens)[0], model(changed)[0]  # (T, V) each
    if not bool(before.isfinite().all() and after.isfinite().all()):
        return Check("causality", False, "the logits are not finite")
    if not torch.equal(before[:-1], after[:-1]):
        return Check("causality", False, "an earlier position saw a later token")
    if torch.equal(before[-1], after[-1]):
        return Check("causality", False, "the last position does not see its own token")
    return Check("causality", True, f"{len(before) - 1} positions before a changed token stay the same")


@torch.inference_mode()
def check_cache(model: GPT) -> Check:
    """Decoding token by token with a cache gives the logits of one pass over all of them."""
    if (reason := KV_CACHE.refusal(model.config)) is not None:
        return Check("cached = uncached", True, f"nothing is cached: {KV_CACHE.name} does not know {reason}")
    tokens = _tokens(model)
    cache = KVCache(model.config, 1, device=tokens.device, dtype=model.head.weight.dtype)
    with exact_products():
        one_by_one = torch.cat([model(tokens[:, i : i + 1], cache) for i in range(tokens.shape[1])], dim=1)
        difference = float((one_by_one - model(tokens)).abs().max())
    return Check("cached = uncached", difference <= _MAX_DIFFERENCE, f"logits differ by at most {difference:.1e}")


@torch.inference_mode()
def check_padding(model: SequenceClassifier) -> Check:
    """Padding after a text changes none of its logits."""
    tokens = _tokens(model)
    half = tokens[:, : (tokens.shape[1] + 1) // 2]
    filled = torch.cat([half, torch.full_like(tokens[:, half.shape[1] :], PADDING)], dim=1)
    with exact_products():
        difference = float((model(filled) - model(half)).abs().max())
    return Check("padded = alone", difference <= _MAX_DIFFERENCE, f"logits differ by at most {difference:.1e}")


def _tokens(model: GPT) -> Tensor:
    """(1, T) ids that fill the context, but for very long ones."""
    length, device = min(model.config.context_length, 256), model.head.weight.device
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.head.out_features, (1, length), generator=generator).to(device)
