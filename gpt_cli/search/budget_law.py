"""The law by which `train.budget` ranks runs: the loss of a model by its size, text, context and steps.

    loss = (1.196 + 104 / N^0.57 + 95.9 / D^0.44 + 9.5 / min(T, 512) + 0.086 T / steps)
           * exp(-4.55 R / ((1 + 2.1e6 / D) (1 + 3.4e5 / N)))

in nats per character: N parameters without embeddings and head (as Kaplan et al., 2020, count them), D tokens trained
on, a repeated one counting for less each time (Muennighoff et al., 2023, equation 5), and R the share of the text that
repeats what stood within the context of T tokens (`recurrence.py`): that is learned late, and better by larger models.
The form is that of Hoffmann et al. (2022, approach 3). The constants are those of tiny Shakespeare, fitted together
with a factor for each other text to runs of a second to twenty minutes on texts of 0.1 to 10 MB (docs/recipes.md). The
factor of any text is measured: `text_difficulty.py`.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class BudgetLaw:
    """The constants of the law."""

    irreducible: float = 1.196
    size: float = 103.5
    size_exponent: float = 0.570
    tokens: float = 95.9
    tokens_exponent: float = 0.4419
    context: float = 9.46
    longest_context: int = 512
    steps: float = 0.0855
    recurrence: float = 4.55
    recurrence_tokens: float = 2.12e6
    recurrence_size: float = 3.36e5
    """Tokens and parameters with which half of what recurs is learned."""
    repeat_decay: float = 1.62
    """R*, the decay constant of the worth of repeated tokens (Muennighoff et al., 2023)."""

    def expected_loss(
        self, parameters: int, context_length: int, steps: int, tokens: int, unique: int, recurring: float
    ) -> float:
        """The loss in nats per token after training on `tokens`, of which `unique` are in the text.

        `recurring` is the share of them that repeats what stood within the context.
        """
        repeats = max(0.0, tokens / unique - 1.0)
        from_repeats = unique * self.repeat_decay * (1.0 - math.exp(-repeats / self.repeat_decay))
        effective_tokens = min(tokens, unique) + from_repeats
        of_size = self.size / math.pow(parameters, self.size_exponent)
        of_tokens = self.tokens / math.pow(effective_tokens, self.tokens_exponent)
        of_context = self.context / min(context_length, self.longest_context)
        of_steps = self.steps * context_length / max(1, steps)
        unlearned = (1.0 + self.recurrence_tokens / effective_tokens) * (1.0 + self.recurrence_size / parameters)
        of_all = self.irreducible + of_size + of_tokens + of_context + of_steps
        return of_all * math.exp(-self.recurrence * recurring / unlearned)


BUDGET_LAW = BudgetLaw()
