"""A model that writes: text in, text out, for Python."""

from dataclasses import dataclass, replace
from typing import Unpack

from gpt_cli.model.gpt import GPT
from gpt_cli.sampling.prompt import encode_prompt
from gpt_cli.sampling.settings import Sampling, SamplingOptions, fresh_seed
from gpt_cli.sampling.stream import TextStream
from gpt_cli.sampling.text import stream_texts
from gpt_cli.tokenizer import Tokenizer


@dataclass(frozen=True)
class Sampler:
    """A model with its tokenizer, and how it writes unless asked otherwise."""

    model: GPT
    tokenizer: Tokenizer
    defaults: Sampling

    def generate(self, prompt: str, **options: Unpack[SamplingOptions]) -> TextStream:
        """Continue `prompt`: iterating gives the text piece by piece, `str()` the whole of it.

        Options are the fields of `Sampling`; without a `seed` each call writes something else. Raises
        RequestError for an option outside its range and for characters that the vocabulary lacks.
        """
        return self.generate_batch(prompt, 1, **options)[0]

    def generate_batch(self, prompt: str, n: int, **options: Unpack[SamplingOptions]) -> list[TextStream]:
        """Continue `prompt` in `n` ways, in one batch; text i is the same whatever `n` is."""
        sampling = replace(self.defaults, seed=fresh_seed()).changed(options)
        return stream_texts(self.model, self.tokenizer, encode_prompt(self.tokenizer, prompt), sampling, n)
