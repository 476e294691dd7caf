"""Beam search: the likeliest texts instead of random ones.

Shapes: K beams, V vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt_cli.model.gpt import GPT
from gpt_cli.sampling.generate import SequenceBatch
from gpt_cli.sampling.logits_processors import LogitsProcessor
from gpt_cli.sampling.sampling_params import SamplingParams

Ends = Callable[[Sequence[int]], bool]
"""True if a text is complete with the last of these tokens."""


@dataclass(frozen=True)
class Hypothesis:
    """A candidate text."""

    tokens: tuple[int, ...] = ()
    total: float = 0.0
    """The sum of the log-probabilities of its tokens, in nats, after the processors."""
    log_probs: tuple[float, ...] = ()
    """Log-probability of each token under the model itself."""

    def score(self, length_penalty: float) -> float:
        """The log-probability over length to the power of `length_penalty` (Wu et al., 2016, section 7)."""
        return self.total / math.pow(len(self.tokens), length_penalty)


@torch.inference_mode()
def beam_search(
    model: GPT, prompt: Sequence[int], sampling: SamplingParams, processors: Sequence[LogitsProcessor], ends: Ends
) -> list[Hypothesis]:
    """The best `sampling.beams` texts (K), best first; fewer if there are fewer.

    At each step all continuations of the live texts are sorted by their totals. In this order, complete ones are set
    aside and the first K others stay live. The search ends after `max_new_tokens`, or once no live text can beat the K
    best complete ones at any length. `processors` are for one sequence. Temperature and filters are ignored.
    """
    assert sampling.beams is not None
    width, penalty = sampling.beams, sampling.length_penalty
    beams = SequenceBatch(model, [prompt])
    live, complete = [Hypothesis()], list[Hypothesis]()
    for _ in range(sampling.max_new_tokens):
        logits = beams.next_logits().float()
        raw = logits.log_softmax(dim=-1).cpu()  # (K, V)
        for processor in processors:
            logits = processor.apply(logits)
        next_live, parents = list[Hypothesis](), list[int]()
        for parent, token, log_prob in _best_first(live, logits.log_softmax(dim=-1).cpu(), width):
            parent_text = live[parent]
            model_log_prob = float(raw[parent, token])
            text = Hypothesis(
                (*parent_text.tokens, token), parent_text.total + log_prob, (*parent_text.log_probs, model_log_prob)
            )
            if ends(text.tokens):
                complete.append(text)
            else:
                next_live.append(text)
                parents.append(parent)
                if len(next_live) == width:
                    break
        complete = sorted(complete, key=lambda text: -text.score(penalty))[:width]
        live = next_live
        if not live or (len(complete) == width and not _can_win(live, complete[-1], sampling)):
            live = []
            break
        beams.reorder(parents)
        tokens = [text.tokens[-1] for text in live]
        beams.append(torch.tensor(tokens, device=logits.device))
        for processor in processors:
            processor.reorder(parents)
            processor.accept(tokens)
    finished = complete + [text for text in live if text.tokens]
    return sorted(finished, key=lambda text: -text.score(penalty))[:width]


def _best_first(live: Sequence[Hypothesis], log_probs: Tensor, width: int) -> Iterator[tuple[int, int, float]]:
    """(row, token, log-probability) of all possible continuations, by falling totals, sorted lazily.

    `log_probs` are on the CPU: MPS has no fp64, in which they are summed.
    """
    previous_totals = torch.tensor([text.total for text in live], dtype=torch.float64)
    totals = (previous_totals[:, None] + log_probs).flatten()
    n_read, limit = 0, 2 * width
    while n_read < len(totals):
        limit = min(limit, len(totals))
        best = totals.topk(limit)
        for total, index in zip(best.values[n_read:].tolist(), best.indices[n_read:].tolist(), strict=True):
            if total == -math.inf:
                return
            row, token = divmod(index, log_probs.shape[1])
            yield row, token, float(log_probs[row, token])
        n_read, limit = limit, 8 * limit


def _can_win(live: Sequence[Hypothesis], worst: Hypothesis, sampling: SamplingParams) -> bool:
    """True if a live text can still score higher than `worst`: its total only falls, its length is within bounds."""
    penalty = sampling.length_penalty
    best_total = max(text.total for text in live)
    shortest, longest = len(live[0].tokens) + 1, sampling.max_new_tokens
    return any(best_total / n**penalty > worst.score(penalty) for n in (shortest, longest) if n <= longest)
