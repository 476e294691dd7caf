"""Examples as tokens.

Shapes: E examples, N tokens of all of them together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpt_cli.corpus.divide import EncodedTexts, encode_member
from gpt_cli.corpus.examples.training_example import TrainingExample
from gpt_cli.corpus.store import to_token_dtype
from gpt_cli.tokenizer import Tokenizer

PROMPT, COMPLETION, COMPLETION_END = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Examples(EncodedTexts):
    """The encoded examples of a split, concatenated."""

    kinds: npt.NDArray[np.uint8]
    """(N,) PROMPT, COMPLETION, or COMPLETION_END for the last token of a completion."""
    end_text: str
    """The template's text that ends each completion."""

    def last_turn(self, example: int) -> tuple[list[int], list[int]]:
        """(ids before the last completion of an example, ids of that completion)."""
        start, stop = self.starts[example : example + 2].tolist()
        ids, kinds = self.tokens[start:stop].tolist(), self.kinds[start:stop]
        boundary = int(np.flatnonzero(kinds == PROMPT)[-1]) + 1
        return ids[:boundary], ids[boundary:]


def encode_examples(tokenizer: Tokenizer, examples: Sequence[TrainingExample], completion_end: str) -> Examples:
    """Encode examples. A prompt and its completion are encoded separately, as in generation.

    Raises as `Tokenizer.encode` does; UnknownCharacters with the location of the example.
    """
    ids = [np.zeros(0, dtype=np.uint32)]
    kinds = [np.zeros(0, dtype=np.uint8)]
    starts = [0]
    begin = np.array(tokenizer.begin_ids, dtype=np.uint32)
    for example in examples:
        ids.append(begin)
        kinds.append(np.full(len(begin), PROMPT, dtype=np.uint8))
        size = starts[-1] + len(begin)
        for prompt, completion in example.turns:
            for text, kind in ((prompt, PROMPT), (completion, COMPLETION)):
                encode = tokenizer.encode if size == starts[-1] + len(begin) else tokenizer.encode_part
                ids.append(encode_member(encode, text, example.where))
                kinds.append(np.full(len(ids[-1]), kind, dtype=np.uint8))
                size += len(ids[-1])
            kinds[-1][-1] = COMPLETION_END
        starts.append(size)
    tokens = to_token_dtype(np.concatenate(ids), tokenizer.vocab_size)
    return Examples(tokens, np.array(starts, dtype=np.int64), np.concatenate(kinds), completion_end)
