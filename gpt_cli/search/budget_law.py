"""The law by which `train.budget` ranks runs: the loss of a character model by its size, text, context and steps.

    loss = 1.03 + 12.6 / N^0.34 + 21.6 / D^0.3 + 1.6 / sqrt(T) + 12 / steps

in nats per token: N parameters without embeddings and head (as Kaplan et al., 2020, count them; the exponent of
Hoffmann et al., 2022, approach 3), D tokens trained on, a repeated one counting for less each time (Muennighoff et al.,
2023, equation 5), T context, of which what is beyond 128 counts the less the fewer different tokens there are. Its
constants come from five runs of the default recipe on tiny Shakespeare (0.8 to 3.2 million parameters, 1 to 2 % of them
embeddings and head, 0.2 to 4.9 million tokens), so on another text it ranks rather than predicts; how much the context
counts is from seven texts of 0.1 to 10 MB (docs/recipes.md).
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class BudgetLaw:
    """The constants of the law."""

    irreducible: float = 1.03
    size: float = 12.6
    size_exponent: float = 0.34
    tokens: float = 21.6
    tokens_exponent: float = 0.3
    context: float = 1.6
    steps: float = 12.0
    short_context: int = 128
    long_context_tokens: int = 200_000
    """Different tokens with which half of what a longer context could bring is learned."""
    repeat_decay: float = 15.4
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
