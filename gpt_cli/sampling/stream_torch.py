"""Text generation in torch, as streams of text."""

from collections.abc import Iterator, Sequence
from functools import partial

from gpt_cli.errors import RequestError
from gpt_cli.model.gpt import GPT
from gpt_cli.sampling.beam import beam_search
from gpt_cli.sampling.generate import generate
from gpt_cli.sampling.graphed_decode import GraphedDecoder
from gpt_cli.sampling.logits_processors import ProcessorFactory
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.sampling.text_stream import StopMatcher, TextStream, in_batches
from gpt_cli.tokenizer import StreamDecoder, Tokenizer


def stream_texts(
    model: GPT, tokenizer: Tokenizer, prompt: Sequence[int], sampling: SamplingParams, n: int = 1
) -> list[TextStream]:
    """`n` continuations of `prompt` (at least one token), generated as one batch while they are being read."""
    return next(stream_batches(model, tokenizer, [prompt], sampling, n))


def stream_batches(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    n: int = 1,
    batch_size: int | None = None,
    decoder: GraphedDecoder | None = None,
) -> Iterator[list[TextStream]]:
    """`n` continuations of each prompt, prompt by prompt, about `batch_size` texts (None: all) at once.

    A text depends on neither the other prompts nor `n`, `batch_size` and `decoder`, which is faster on a GPU, except
    that equal prompts are drawn independently: with k equal ones before it, a prompt has the samples from k * n. The
    unknown token is never generated. Raises RequestError, at once, for settings that the vocabulary cannot meet.
    """
    factory = ProcessorFactory(tokenizer, sampling)
    if sampling.beams is not None and n > sampling.beams:
        raise RequestError(f"{sampling.beams} beams cannot give {n} texts", hint="raise beams, or lower -n")
    limit = batch_size or n * len(prompts)
    if sampling.beams is not None:
        size = max(1, limit // n)
        batches = [prompts[first : first + size] for first in range(0, len(prompts), size)]
        return (texts for batch in batches for texts in _search_texts(model, tokenizer, factory, batch, sampling, n))

    def sample(rows: Sequence[Sequence[int]], samples: Sequence[int]) -> list[TextStream]:
        return _sample_texts(model, tokenizer, factory, rows, samples, sampling, decoder)

    return in_batches(prompts, n, limit, sample)


def _sample_texts(
    model: GPT,
    tokenizer: Tokenizer,
    factory: ProcessorFactory,
    rows: Sequence[Sequence[int]],
    samples: Sequence[int],
    sampling: SamplingParams,
    decoder: GraphedDecoder | None,
) -> list[TextStream]:
    """Texts that continue `rows`, as one batch; samples[i] numbers row i among the samples of its prompt."""
    batch = factory.for_batch(rows, model.head.weight.device)

    def steps() -> Iterator[bool]:
        for tokens in generate(model, rows, sampling, batch.processors, samples, decoder):
            for text, token in zip(texts, tokens, strict=True):
                text.push(token)
            yield True
            if all(text.finish_reason is not None for text in texts):
                return
        for text in texts:
            text.finish("length")

    shared = steps()
    texts = [
        TextStream(
            tokenizer,
            sampling.stop,
            shared,
            prompt=rows[row],
            min_new_tokens=sampling.min_new_tokens,
            matcher=None if batch.matchers is None else batch.matchers[row],
            log_probs=None if batch.recorder is None else batch.recorder.log_probs[row],
        )
        for row in range(len(rows))
    ]
    return texts


def _search_texts(
    model: GPT,
    tokenizer: Tokenizer,
    factory: ProcessorFactory,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    n: int,
) -> Iterator[list[TextStream]]:
    """Texts by beam search, the best first; each prompt is searched when its first text is read."""

    def ends(prompt: Sequence[int], tokens: Sequence[int]) -> bool:
        if tokens[-1] in tokenizer.end_ids:
            return True
        least = sampling.min_new_tokens
        if not sampling.stop or len(tokens) <= least:
            return False
        decoder, matcher = StreamDecoder(tokenizer, prompt), StopMatcher(sampling.stop)
        matcher.push(decoder.extend(tokens[:least]), counts=False)
        matcher.push(decoder.extend(tokens[least:]))
        return matcher.found

    def search(prompt: Sequence[int], texts: list[TextStream], log_probs: list[list[float]]) -> Iterator[bool]:
        processors = factory.for_batch([prompt], model.head.weight.device).processors
        hypotheses = beam_search(model, prompt, sampling, processors, partial(ends, prompt))
        for text, recorded, hypothesis in zip(
            texts, log_probs, hypotheses, strict=False
        ):  # there may be fewer hypotheses
            recorded.extend(hypothesis.log_probs)
            for token in hypothesis.tokens:
                text.push(token)
        for text in texts:
            text.finish("length")
        yield True

    for prompt in prompts:
        texts: list[TextStream] = []
        log_probs: list[list[float]] = [[] for _ in range(n)]
        shared = search(prompt, texts, log_probs)
        recorded_log_probs = log_probs if sampling.log_probs else [None] * n
        min_new_tokens = sampling.min_new_tokens
        texts += [
            TextStream(tokenizer, sampling.stop, shared, prompt=prompt, min_new_tokens=min_new_tokens, log_probs=k)
            for k in recorded_log_probs
        ]
        yield texts
