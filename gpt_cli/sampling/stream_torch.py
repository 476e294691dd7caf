"""Text generation in torch, as streams of text."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from functools import partial

from gpt_cli.errors import RequestError
from gpt_cli.literals import INT32_MAX
from gpt_cli.model.gpt import GPT
from gpt_cli.sampling.beam import Hypothesis, beam_search
from gpt_cli.sampling.generate import generate, next_logits
from gpt_cli.sampling.graphed_decode import GraphedDecoder
from gpt_cli.sampling.heal import PromptHealer, make_healer
from gpt_cli.sampling.logits_processors import ProcessorFactory
from gpt_cli.sampling.prompt import Opening
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.sampling.text_stream import StartedBatch, TextStream, in_batches, stream_batch
from gpt_cli.tokenizer import Tokenizer


def stream_batches(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    n: int = 1,
    batch_size: int | None = None,
    decoder: GraphedDecoder | None = None,
    *,
    plain_text: bool = False,
) -> Iterator[list[TextStream]]:
    """`n` continuations of each prompt, prompt by prompt, about `batch_size` texts (None: all) at once.

    A text depends on neither the other prompts nor `n`, `batch_size` and `decoder`, which is faster on a GPU, except
    that equal prompts are drawn independently: with k equal ones before it, a prompt has the samples from k * n. The
    unknown token is never generated. Raises RequestError, at once, for settings that the vocabulary cannot meet.
    """
    factory = ProcessorFactory(tokenizer, sampling)
    healer = make_healer(tokenizer, sampling, partial(next_logits, model), factory) if plain_text else None
    if sampling.beams is not None and n > sampling.beams:
        raise RequestError(f"{sampling.beams} beams cannot give {n} texts", hint="raise beams, or lower -n")
    if sampling.beams is not None:
        return _search_texts(model, tokenizer, factory, prompts, sampling, n, healer)

    def start(openings: Sequence[Opening], samples: Sequence[int], running: Set[int]) -> StartedBatch:
        processors, matchers = factory.for_batch(openings, model.head.weight.device)
        log_probs = [opening.new_log_probs for opening in openings] if sampling.log_probs else []
        begun = [opening.tokens for opening in openings]
        steps = generate(model, begun, sampling, processors, samples, decoder, log_probs)
        return StartedBatch(matchers, log_probs or [None] * len(openings), ([tokens] for tokens in steps))

    sample = partial(stream_batch, tokenizer, sampling, start, healer)
    return in_batches(prompts, n, batch_size or n * len(prompts), sample)


def _search_texts(
    model: GPT,
    tokenizer: Tokenizer,
    factory: ProcessorFactory,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    n: int,
    healer: PromptHealer | None,
) -> Iterator[list[TextStream]]:
    """Texts by beam search, the best first; each prompt is searched when its first text is read."""
    endless = replace(sampling, max_new_tokens=INT32_MAX)  # the search has the limit

    def write(text: TextStream, hypothesis: Hypothesis) -> TextStream:
        opening = hypothesis.opening
        text.begin(opening, log_probs=list(hypothesis.log_probs) if sampling.log_probs else None)
        for token in hypothesis.tokens[len(opening.new_tokens) :]:
            text.push(token)
        return text

    def ends(hypothesis: Hypothesis) -> bool:
        if hypothesis.tokens[-1] in tokenizer.end_ids or not sampling.stop:
            return hypothesis.tokens[-1] in tokenizer.end_ids
        return write(new_text(hypothesis.opening.tokens), hypothesis).finish_reason is not None

    def new_text(prompt: Sequence[int], steps: Iterator[bool] | None = None) -> TextStream:
        return TextStream(tokenizer, endless, prompt, steps)

    def search(prompt: Sequence[int], texts: list[TextStream]) -> Iterator[bool]:
        openings = [Opening(prompt)] if healer is None else healer.search(prompt, sampling.beams or 1)
        processors, _ = factory.for_batch(openings, model.head.weight.device)
        hypotheses = beam_search(model, openings, sampling, processors, ends)
        for text, hypothesis in zip(texts, hypotheses, strict=False):  # there may be fewer hypotheses
            write(text, hypothesis)
        for text in texts:
            text.finish("length")
        yield True

    for prompt in prompts:
        texts: list[TextStream] = []
        shared = search(prompt, texts)
        texts += [new_text(prompt, shared) for _ in range(n)]
        yield texts
