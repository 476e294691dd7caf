"""The Python API of text generation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

from gpt_cli.corpus.turn_template import refuse_marks
from gpt_cli.errors import RequestError
from gpt_cli.sampling.prompt import encode_prompt
from gpt_cli.sampling.sampling_params import SamplingOptions, SamplingParams, random_seed, with_learned_end
from gpt_cli.sampling.text_generator import TextGenerator
from gpt_cli.sampling.text_stream import TextStream
from gpt_cli.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gpt_cli.model.gpt import GPT


@dataclass(frozen=True)
class Sampler:
    """A model with its tokenizer and default sampling parameters."""

    source: "GPT | TextGenerator"
    """A model in torch, or a saved one, which chooses its engine."""
    tokenizer: Tokenizer
    defaults: SamplingParams
    prefix: str = ""
    """Put before each prompt."""
    suffix: str = ""
    """Put after each prompt."""
    learned_end: str = ""
    """Ends a text besides the stop strings that a call gives."""
    plain_text: bool = True
    """False: a prompt is encoded apart from what follows, as in training on pairs and chats, and not healed."""

    @property
    def model(self) -> "GPT":
        """The model in torch. Imports torch."""
        return self.source.model if isinstance(self.source, TextGenerator) else self.source

    def generate(self, prompt: str, *, parse_special: bool = False, **options: Unpack[SamplingOptions]) -> TextStream:
        """Continue `prompt`: iterating gives the text piece by piece, `str()` the whole of it.

        Options are the fields of `SamplingParams`; without a `seed` each call draws one. With `parse_special` the
        prompt may name special tokens, such as <|endoftext|>. Raises
        RequestError for an option outside its range and for characters that the vocabulary lacks.
        """
        if "n" in options:
            raise RequestError("generate returns one text", hint="generate_batch(prompt, n) returns n of them")
        return self.generate_batch(prompt, 1, parse_special=parse_special, **options)[0]

    def generate_batch(
        self, prompt: str, n: int, *, parse_special: bool = False, **options: Unpack[SamplingOptions]
    ) -> list[TextStream]:
        """Continue `prompt` in `n` ways, in one batch; text i is the same whatever `n` is."""
        return next(self.generate_many([prompt], n, parse_special=parse_special, **options))

    def generate_many(
        self,
        prompts: Sequence[str],
        n: int = 1,
        *,
        batch_size: int = 64,
        parse_special: bool = False,
        **options: Unpack[SamplingOptions],
    ) -> Iterator[list[TextStream]]:
        """Continue each prompt in `n` ways, about `batch_size` texts at once; yields `n` texts for each, in order.

        A text equals that of `generate` with the same seed: it does not depend on the other prompts, except that equal
        ones are drawn independently: k times the same prompt gives the texts of `generate_batch(prompt, k * n)`. Raises
        RequestError at once, as `generate` does, and TypeError for prompts that are no texts.
        """
        if isinstance(prompts, str):
            raise TypeError("generate_many takes a list of prompts")
        for prompt in prompts:
            if not isinstance(prompt, str):
                raise TypeError(f"a prompt is a str, not {type(prompt).__name__}")
        if not isinstance(n, int):
            raise RequestError(f"n must be a whole number, not {n!r}")
        if n < 1:
            raise RequestError(f"n must be at least 1, not {n}")
        options = with_learned_end(options, self.learned_end)
        sampling = replace(self.defaults, seed=random_seed()).replace(options)
        for prompt in prompts:
            refuse_marks(prompt, self.prefix, self.suffix)
        texts = (self.prefix + prompt + self.suffix for prompt in prompts)
        tokens = [encode_prompt(self.tokenizer, text, parse_special=parse_special) for text in texts]
        if isinstance(self.source, TextGenerator):
            return self.source.generate(tokens, sampling, n, batch_size, plain_text=self.plain_text)[1]

        from gpt_cli.sampling.stream_torch import stream_batches  # noqa: PLC0415 - it imports torch

        plain_text = self.plain_text
        return stream_batches(self.source, self.tokenizer, tokens, sampling, n, batch_size, plain_text=plain_text)
