"""Text from a model: its tokens, as streams of text."""

from collections.abc import Iterator, Sequence

from gpt_cli.model.gpt import GPT
from gpt_cli.sampling.generate import generate
from gpt_cli.sampling.settings import Sampling
from gpt_cli.sampling.stream import TextStream
from gpt_cli.tokenizer import Tokenizer


def stream_texts(
    model: GPT, tokenizer: Tokenizer, prompt: Sequence[int], sampling: Sampling, n: int = 1
) -> list[TextStream]:
    """`n` continuations of `prompt` (at least one token), written as one batch while they are being read.

    The token for unknown characters is never written.
    """
    never = () if tokenizer.unknown is None else (tokenizer.unknown,)

    def steps() -> Iterator[bool]:
        for tokens in generate(model, [prompt] * n, sampling, never):
            for text, token in zip(texts, tokens, strict=True):
                text.push(token)
            yield True
            if all(text.finish_reason is not None for text in texts):
                return
        for text in texts:
            text.finish("length")

    shared = steps()
    texts = [TextStream(tokenizer, sampling.stop, shared) for _ in range(n)]
    return texts
