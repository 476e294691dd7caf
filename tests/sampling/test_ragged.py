"""Unequal prompts in one batch: each is continued as it would be alone, for every option of the model."""

import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gpt_cli.model.attention import ragged_attention, reference_attention
from gpt_cli.model.gpt import GPT
from gpt_cli.sampling import SamplingParams, stream_batches
from gpt_cli.sampling.generate import SequenceBatch, generate
from gpt_cli.sampling.text_stream import in_batches
from gpt_cli.tokenizer import ByteTokenizer
from tests.support.tiny_gpt import CONTEXT, OPTIONS, PROMPTS, VOCAB_SIZE, make_model, reference_logits


@settings(max_examples=40)
@given(OPTIONS, PROMPTS, st.integers(0, 2**30))
def test_cached_logits_of_unequal_prompts_equal_those_of_each_alone_uncached(
    options: dict[str, Any], prompts: list[list[int]], seed: int
) -> None:
    """Past the context too, and with sequences that die and divide on the way, as beams do."""
    try:
        model = make_model(**options)
    except ValidationError:
        reject()  # options that exclude each other
    generator = torch.Generator().manual_seed(seed)
    context = model.config.context_length
    # The window of a long prompt begins anew: that is what sampling sees of it.
    sequences = [prompt[-context:] for prompt in prompts]
    with torch.inference_mode():
        rows = SequenceBatch(model, prompts)
        for step in range(10):
            logits = rows.next_logits()
            for row, sequence in zip(logits, sequences, strict=True):
                torch.testing.assert_close(row, reference_logits(model, [sequence])[0], rtol=2e-4, atol=2e-4)
            if step in (3, 6):
                picked = torch.randint(len(sequences), (len(sequences) + step % 2,), generator=generator).tolist()
                rows.reorder(picked)
                sequences = [sequences[row] for row in picked]
            tokens = torch.randint(VOCAB_SIZE, (len(sequences),), generator=generator)
            rows.append(tokens)
            sequences = [[*s, t] for s, t in zip(sequences, tokens.tolist(), strict=True)]


def alone(model: GPT, prompt: Sequence[int], sampling: SamplingParams, sample: int) -> list[int]:
    return [tokens[0] for tokens in generate(model, [prompt], sampling, samples=[sample])]


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope", "none"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_prompt_of_a_batch_gives_the_tokens_it_gives_alone(position: str, temperature: float) -> None:
    model = make_model(position=position, window=5)
    prompts = [[1], [2, 3, 4], [5] * CONTEXT, list(range(12)), [1], [6, 7]]
    sampling = SamplingParams(temperature=temperature, top_p=0.95, seed=5, max_new_tokens=3 * CONTEXT)
    samples = [0, 1, 0, 2, 0, 7]
    together = zip(*generate(model, prompts, sampling, samples=samples), strict=True)
    assert [list(row) for row in together] == [
        alone(model, prompt, sampling, sample) for prompt, sample in zip(prompts, samples, strict=True)
    ]


def test_a_text_depends_on_neither_the_batch_size_nor_the_other_prompts_nor_their_order() -> None:
    model, tokenizer = make_model(256, init_std=0.1), ByteTokenizer()
    prompts = [list(text.encode()) for text in ("a", "bcd", "efghijklm", "no", "a")]
    sampling = SamplingParams(temperature=1.0, max_new_tokens=15, seed=3)

    def texts(order: Sequence[int], **how: Any) -> list[list[list[int]]]:
        batches = stream_batches(model, tokenizer, [prompts[i] for i in order], sampling, **how)
        written = [[(text.text(), text.tokens)[1] for text in samples] for samples in batches]
        return [written[list(order).index(i)] for i in range(len(order))]

    expected = texts(range(5), n=2)
    assert expected[0] + expected[4] == texts([0], n=4)[0]
    assert texts(range(5), n=2, batch_size=1) == texts(range(5), n=2, batch_size=3) == expected
    assert texts([3, 1, 0, 4, 2], n=2, batch_size=4) == expected
    assert [samples[:1] for samples in expected[:4]] == texts(range(4), n=1)


def test_equal_prompts_are_prefilled_once_and_a_prefill_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    shapes: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
    list(generate(model, [[1, 2], [3], [1, 2], [3]], SamplingParams(max_new_tokens=3)))
    assert shapes == [(2, 2), (4, 1), (4, 1)]
    shapes.clear()
    monkeypatch.setattr(sys.modules[SequenceBatch.__module__], "PREFILL_NUMBERS", 2 * 5 * VOCAB_SIZE)
    list(generate(model, [[1] * 5, [2], [3] * 4, [4], [5]], SamplingParams(max_new_tokens=1)))
    assert shapes == [(2, 1), (2, 4), (1, 5)]  # two at once, of similar lengths


def test_past_the_context_a_token_of_an_unequal_batch_costs_the_same_however_long_the_text() -> None:
    model = make_model(context_length=16)
    computed: list[int] = []
    model.register_forward_pre_hook(lambda _, inputs: computed.append(inputs[0].numel()))
    list(generate(model, [[1], [1, 2, 3, 4], [5] * 16], SamplingParams(max_new_tokens=400)))
    assert sum(computed) < 3 * 3 * 400
    assert sum(computed[-100:]) <= sum(computed[100:200]) * 1.2


def test_what_a_sequence_keeps_does_not_grow_with_its_text() -> None:
    model = make_model(context_length=16)
    rows = SequenceBatch(model, [[1], [2, 3]])
    with torch.inference_mode():
        for _ in range(200):
            rows.next_logits()
            rows.append(torch.tensor([1, 2]))
    assert rows._tokens.shape[1] + sum(t.shape[1] for t in rows._appended) <= 2 * 16
    assert rows.cache.keys.shape[3] == 16


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.sampled_from([1, 2]), st.sampled_from([None, 1, 3]))
def test_ragged_attention_is_the_reference_of_each_sequence_and_sees_nothing_past_its_end(
    starts: list[int], n_query: int, window: int | None
) -> None:
    generator = torch.Generator().manual_seed(sum(starts))
    q, k, v = (
        torch.randn(len(starts), heads, n, 8, generator=generator) for heads, n in ((4, n_query), (2, 9), (2, 9))
    )
    y = ragged_attention(q, k, v, torch.tensor(starts), window=window)
    for row, start in enumerate(starts):
        end = start + n_query
        rows = slice(row, row + 1)
        expected = reference_attention(q[rows], k[rows, :, :end], v[rows, :, :end], window=window)
        torch.testing.assert_close(y[rows], expected)


@given(prompts=st.integers(1, 5), n=st.integers(1, 9), limit=st.integers(1, 12))
def test_a_batch_has_at_most_its_limit_of_texts_and_each_prompt_all_of_its_own(prompts: int, n: int, limit: int):
    sizes = []

    def sample(rows, samples):
        sizes.append(len(rows))
        return [*zip((row[0] for row in rows), samples, strict=True)]

    by_prompt = list(in_batches([[prompt] for prompt in range(prompts)], n, limit, sample))
    assert by_prompt == [[(prompt, number) for number in range(n)] for prompt in range(prompts)]
    assert max(sizes) <= limit
    assert len(sizes) <= -(-prompts // max(1, limit // n)) * -(-n // limit)
