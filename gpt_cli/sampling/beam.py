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
from gpt_cli.sampling.prompt import Opening
from gpt_cli.sampling.sampling_params import SamplingParams


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """A candidate text."""

    opening: Opening
    tokens: tuple[int, ...] = ()
    total: float = 0.0
    """The sum of the log-probabilities of its tokens, in nats, after the processors."""
    log_probs: tuple[float, ...] = ()
    """Log-probability of each token under the model itself."""

    def score(self, length_penalty: float) -> float:
        """The log-probability over length to the power of `length_penalty` (Wu et al., 2016, section 7)."""
        return self.total / math.pow(len(self.tokens), length_penalty)

    def append(self, token: int, log_prob: float, model_log_prob: float) -> "Hypothesis":
        tokens, log_probs = (*self.tokens, token), (*self.log_probs, model_log_prob)
        return Hypothesis(self.opening, tokens, self.total + log_prob, log_probs)


Ends = Callable[[Hypothesis], bool]
"""True if a text is complete with its last token."""


@torch.inference_mode()
def beam_search(
    model: GPT, openings: Sequence[Opening], sampling: SamplingParams, processors: Sequence[LogitsProcessor], ends: Ends
) -> list[Hypothesis]:
    """The best `sampling.beams` texts (K) that begin with one of at most K `openings`, best first; fewer if there are
    fewer.

    At each step all continuations of the live texts are sorted by their totals. In this order, complete ones are set
    aside and the first K others stay live. The search ends after `max_new_tokens`, or once no live text can beat the K
    best complete ones at any length. `processors` are those of the openings. Temperature and filters are ignored.
    """
    assert sampling.beams is not None
    width, penalty, longest = sampling.beams, sampling.length_penalty, sampling.max_new_tokens
    begun = [Hypothesis(o, tuple(o.new_tokens), o.total, tuple(o.new_log_probs)) for o in openings]
    complete = [text for text in begun if text.tokens and (len(text.tokens) == longest or ends(text))]
    live = [(row, text) for row, text in enumerate(begun) if text not in complete]
    beams = SequenceBatch(model, [text.opening.tokens for _, text in live]) if live else None
    for step in range(longest):
        if beams is None or not live or (len(complete) == width and not _can_win(live, complete[-1], sampling)):
            break
        parents, texts = [row for row, _ in live], [text for _, text in live]
        for processor in processors:
            processor.reorder(parents)
        if step:
            tokens = [text.tokens[-1] for text in texts]
            beams.reorder(parents)
            beams.append(torch.tensor(tokens, device=beams.device))
            for processor in processors:
                processor.accept(tokens)
        logits = beams.next_logits().float()
        raw = logits.log_softmax(dim=-1).cpu()  # (K, V)
        for processor in processors:
            logits = processor.apply(logits)
        live = []
        for parent, token, log_prob in _best_first(texts, logits.log_softmax(dim=-1).cpu(), width):
            text = texts[parent].append(token, log_prob, float(raw[parent, token]))
            if ends(text):
                complete.append(text)
            else:
                live.append((parent, text))
                if len(live) == width:
                    break
        complete += [text for _, text in live if len(text.tokens) == longest]
        complete = sorted(complete, key=lambda text: -text.score(penalty))[:width]
        live = [(parent, text) for parent, text in live if len(text.tokens) < longest]
    return sorted(complete, key=lambda text: -text.score(penalty))[:width]


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


def _can_win(live: Sequence[tuple[int, Hypothesis]], worst: Hypothesis, sampling: SamplingParams) -> bool:
    """True if a live text can still score higher than `worst`: its total only falls, its length is within bounds."""
    penalty = sampling.length_penalty
    best_total = max(text.total for _, text in live)
    shortest, longest = min(len(text.tokens) for _, text in live) + 1, sampling.max_new_tokens
    return any(best_total / n**penalty > worst.score(penalty) for n in (shortest, longest) if n <= longest)
