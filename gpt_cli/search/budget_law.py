"""The law by which `train.budget` ranks runs: the loss of a model by its size, text, context and steps.

    loss = 1.21 + 122 / N^0.57 + 129 / D^0.46 + 0.74 / sqrt(T) + 2.75 / steps

in nats per character: N parameters without embeddings and head (as Kaplan et al., 2020, count them), D tokens trained
on, a repeated one counting for less each time (Muennighoff et al., 2023, equation 5), T context, of which what is
beyond 128 counts the less the fewer different tokens there are. The form is that of Hoffmann et al. (2022, approach 3).
The constants are those of tiny Shakespeare, fitted together with a factor for each other text to runs of a second to
twenty minutes on texts of 0.1 to 10 MB (docs/recipes.md). The factor of any text is measured: `text_difficulty.py`.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class BudgetLaw:
    """The constants of the law."""

    irreducible: float = 1.208
    size: float = 121.7
    size_exponent: float = 0.57
    tokens: float = 128.5
    tokens_exponent: float = 0.461
    context: float = 0.737
    steps: float = 2.75
    short_context: int = 128
    long_context_tokens: int = 250_000
    """Different tokens with which half of what a longer context could bring is learned."""
    repeat_decay: float = 7.08
    """R*, the decay constant of the worth of repeated tokens (Muennighoff et al., 2023)."""

    def expected_loss(self, parameters: int, context_length: int, steps: int, tokens: int, unique: int) -> float:
        """The loss in nats per token after training on `tokens`, of which `unique` are in the text."""
        repeats = max(0.0, tokens / unique - 1.0)
        from_repeats = unique * self.repeat_decay * (1.0 - math.exp(-repeats / self.repeat_decay))
        effective_tokens = min(tokens, unique) + from_repeats
        of_size = self.size / math.pow(parameters, self.size_exponent)
        of_tokens = self.tokens / math.pow(effective_tokens, self.tokens_exponent)
        learned = 1.0 / (1.0 + (self.long_context_tokens / unique) ** 2)
        shorter = 1.0 / math.sqrt(min(context_length, self.short_context))
        of_context = self.context * (shorter + learned * (1.0 / math.sqrt(context_length) - shorter))
        return self.irreducible + (of_size + of_tokens) + of_context + self.steps / max(1, steps)


BUDGET_LAW = BudgetLaw()
