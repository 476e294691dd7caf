"""Generation: the cache changes nothing, neither does the batch, and text is cut where it was asked to be."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.config import SampleConfig, TokenizerConfig
from gpt_cli.model.gpt import GPT
from gpt_cli.sampling import (
    Sampler,
    SamplingParams,
    encode_prompt,
    stream_batches,
    stream_torch,
)
from gpt_cli.sampling.generate import SequenceBatch, context_start, generate
from gpt_cli.sampling.text_stream import StopMatcher, TextStream
from gpt_cli.tokenizer import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    UnknownCharacters,
    drop_unknown,
    train_tokenizer,
)
from tests.support.tiny_gpt import CONTEXT, VOCAB_SIZE, make_model, reference_logits


@given(st.integers(2, 40), st.integers(0, 300))
def test_the_window_is_what_is_left_when_the_older_half_goes_each_time_it_is_full(
    context_length: int, position: int
) -> None:
    window: list[int] = []
    for token in range(position):
        if len(window) == context_length:
            window = window[context_length // 2 :]
        window.append(token)
    assert window == list(range(position))[context_start(position, context_length) :]


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope", "alibi", "none"])
@pytest.mark.parametrize("n_kv_head", [None, 2])
@pytest.mark.parametrize("window", [None, 3])
def test_cached_logits_equal_uncached_ones_within_the_context_and_past_it(
    position: str, n_kv_head: int | None, window: int | None
) -> None:
    for norm_position, qk_norm, softcap in product(("pre", "post"), (True, False), (None, 2.0)):
        model = make_model(
            position=position,
            n_kv_head=n_kv_head,
            window=window,
            norm_position=norm_position,
            qk_norm=qk_norm,
            logit_softcap=softcap,
        )
        sequences = [[1, 2, 3], [4, 5, 6]]
        with torch.inference_mode():
            batch = SequenceBatch(model, sequences)
            for step in range(10):
                expected = reference_logits(model, sequences)
                torch.testing.assert_close(batch.next_logits(), expected, rtol=1e-4, atol=1e-4)
                tokens = [(step * 5) % VOCAB_SIZE, (step * 7 + 1) % VOCAB_SIZE]
                batch.append(torch.tensor(tokens))
                sequences = [[*sequence, token] for sequence, token in zip(sequences, tokens, strict=True)]


@pytest.mark.parametrize(
    "options",
    [{"mlp": mlp} for mlp in ("relu", "gelu", "swiglu", "relu2")]
    + [{"norm": "layernorm", "bias": True}, {"tie_embeddings": True}, {"n_kv_head": 1}, {"window": 1}]
    + [{"dropout": 0.5, "attention_dropout": 0.5}, {"context_length": 2}],
    ids=str,
)
def test_greedy_text_is_that_of_the_uncached_definition(options: dict[str, Any]) -> None:
    model = make_model(**options)
    sequence = [1, 2]
    for _ in range(3 * CONTEXT):
        sequence.append(int(reference_logits(model, [sequence]).argmax()))
    steps = generate(model, [[1, 2]], SamplingParams(temperature=0.0, max_new_tokens=3 * CONTEXT))
    assert [tokens[0] for tokens in steps] == sequence[2:]


def rows(model: GPT, prompts: Sequence[Sequence[int]], sampling: SamplingParams) -> list[tuple[int, ...]]:
    return list(zip(*generate(model, prompts, sampling), strict=True))


def test_a_sample_does_not_depend_on_how_many_others_run_beside_it() -> None:
    model = make_model()
    sampling = SamplingParams(temperature=1.0, top_p=0.95, seed=11, max_new_tokens=3 * CONTEXT)
    samples = rows(model, [[1, 2, 3]] * 6, sampling)
    assert rows(model, [[1, 2, 3]], sampling) == samples[:1]
    assert rows(model, [[1, 2, 3]] * 3, sampling) == samples[:3]
    assert len(set(samples)) == 6


def test_different_prompts_in_one_batch_continue_as_each_does_alone() -> None:
    model = make_model()
    sampling = SamplingParams(temperature=0.0, max_new_tokens=2 * CONTEXT)
    prompts = [[1, 2, 3], [4, 5, 6], [1, 2, 3]]
    assert rows(model, prompts, sampling) == [rows(model, [prompt], sampling)[0] for prompt in prompts]


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others() -> None:
    model = make_model()
    first, second, third = (rows(model, [[1]], SamplingParams(seed=seed, max_new_tokens=30)) for seed in (1, 1, 2))
    assert first == second != third


def test_greedy_does_not_depend_on_the_seed() -> None:
    model = make_model()
    settings = [SamplingParams(temperature=0.0, seed=seed, max_new_tokens=30) for seed in (1, 2)]
    assert rows(model, [[1]], settings[0]) == rows(model, [[1]], settings[1])


def test_generation_leaves_the_randomness_of_the_process_alone() -> None:
    model = make_model()
    old_state = torch.get_rng_state()
    list(generate(model, [[1]], SamplingParams(max_new_tokens=5)))
    assert torch.equal(torch.get_rng_state(), old_state)


def test_of_a_prompt_longer_than_the_context_the_last_tokens_are_seen() -> None:
    model = make_model()
    prompt = [token % VOCAB_SIZE for token in range(5 * CONTEXT)]
    sampling = SamplingParams(max_new_tokens=2 * CONTEXT)
    assert rows(model, [prompt], sampling) == rows(model, [prompt[-CONTEXT:]], sampling)


@pytest.mark.parametrize("max_new_tokens", [0, 1, 9])
def test_exactly_max_new_tokens_are_generated(max_new_tokens: int) -> None:
    steps = list(generate(make_model(), [[1], [2]], SamplingParams(max_new_tokens=max_new_tokens)))
    assert [len(tokens) for tokens in steps] == [2] * max_new_tokens


def test_a_prompt_is_prefilled_once_for_all_samples_and_then_each_step_decodes_one_token() -> None:
    model = make_model()
    shapes: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
    list(generate(model, [[1, 2, 3, 4]] * 5, SamplingParams(max_new_tokens=4)))
    assert shapes == [(1, 4), (5, 1), (5, 1), (5, 1)]


def test_past_the_context_a_token_costs_at_most_three_forwards_however_long_the_text() -> None:
    model = make_model(context_length=16)
    n_computed: list[int] = []
    model.register_forward_pre_hook(lambda _, inputs: n_computed.append(inputs[0].shape[1]))
    list(generate(model, [[1]], SamplingParams(max_new_tokens=200)))
    assert sum(n_computed) < 3 * 200
    assert len(n_computed) == 200


PIECES = st.lists(st.text("ab.", max_size=3), max_size=12)
STOPS = st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3)


def reference_cut(text: str, stops: Sequence[str]) -> str:
    """`text` before the first stop string to be complete; of several, the longest."""
    for end in range(len(text) + 1):
        if complete_stops := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, complete_stops))]
    return text


@given(PIECES, STOPS)
def test_text_is_cut_at_the_first_complete_stop_string_wherever_the_pieces_end(
    chunks: list[str], stops: list[str]
) -> None:
    matcher = StopMatcher(stops)
    shown_text = "".join(matcher.push(chunk) for chunk in chunks)
    held_text = matcher.flush()
    text = "".join(chunks)
    assert shown_text + held_text == reference_cut(text, stops)
    assert matcher.found == any(stop in text for stop in stops)
    assert not held_text or any(stop.startswith(held_text) for stop in stops)


def scripted_streams(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, rows_of_tokens: Sequence[Sequence[int]], *stop: str
) -> list[TextStream]:
    """Text streams for a model that generates exactly these tokens."""

    def generate_script(*_: object) -> Iterator[list[int]]:
        yield from map(list, zip(*rows_of_tokens, strict=True))

    monkeypatch.setattr(stream_torch, "generate", generate_script)
    sampling = SamplingParams(stop=stop)
    return next(stream_batches(make_model(), tokenizer, [[0]], sampling, len(rows_of_tokens)))


def test_half_a_character_is_held_back_until_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    (stream,) = scripted_streams(monkeypatch, ByteTokenizer(), [list("aé€😀b".encode())])
    assert list(stream) == ["a", "é", "€", "😀", "b"]
    assert stream.finish_reason == "length"


def test_a_character_that_is_never_completed_is_shown_as_the_replacement_character(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (stream,) = scripted_streams(monkeypatch, ByteTokenizer(), [[*b"a", 0xE2, 0x82]])
    assert str(stream) == "a\ufffd"


def test_a_stop_string_is_found_across_tokens_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    (stream,) = scripted_streams(monkeypatch, ByteTokenizer(), [list("say →END and more".encode())], "→END")
    assert str(stream) == "say "
    assert stream.finish_reason == "stop"
    assert bytes(stream.tokens).decode() == "say →END"


def test_what_only_began_like_a_stop_string_is_shown_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    (stream,) = scripted_streams(monkeypatch, ByteTokenizer(), [list(b"the EN")], "END")
    assert list(stream) == ["t", "h", "e", " ", "EN"]
    assert stream.finish_reason == "length"


def test_a_text_ends_with_the_end_of_text_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = train_tokenizer(["a bc"], TokenizerConfig(kind="bpe", vocab_size=257))
    assert tokenizer.eot_id is not None
    a, b, c = (int(tokenizer.encode(character)[0]) for character in "abc")
    streams = scripted_streams(monkeypatch, tokenizer, [[a, tokenizer.eot_id, c], [b, b, b]])
    assert [str(stream) for stream in streams] == ["a", "bbb"]
    assert [stream.finish_reason for stream in streams] == ["end_of_text", "length"]
    assert streams[0].tokens == [a, tokenizer.eot_id]


def test_the_token_for_unknown_characters_is_never_written() -> None:
    tokenizer = CharTokenizer("ab", has_unknown=True)
    model = make_model(vocab_size=3)
    model.head.weight.data.zero_()  # all tokens are equally likely
    for sampling in (
        SamplingParams(max_new_tokens=60),
        SamplingParams(max_new_tokens=60, temperature=0),
        SamplingParams(top_k=3),
    ):
        for stream in next(stream_batches(model, tokenizer, [[2]], sampling, 4)):
            assert set(str(stream)) <= {"a", "b"}
            assert tokenizer.unk_id not in stream.tokens


def test_generation_ends_once_every_text_has(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0

    def generate_endlessly(*_: object) -> Iterator[list[int]]:
        nonlocal steps
        while True:
            steps += 1
            yield [ord("."), ord("." if steps == 5 else "x")]

    monkeypatch.setattr(stream_torch, "generate", generate_endlessly)
    streams = next(stream_batches(make_model(), ByteTokenizer(), [[0]], SamplingParams(stop=(".",)), 2))
    assert [str(stream) for stream in streams] == ["", "xxxx"]
    assert steps == 5


def test_texts_of_a_batch_can_be_read_in_any_order_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = scripted_streams(monkeypatch, ByteTokenizer(), [b"abc", b"xyz"])
    iterator = iter(second)
    assert next(iterator) == "x"
    assert str(first) == "abc"
    assert list(iterator) == ["y", "z"]
    assert str(second) == second.text() == "xyz"


def test_each_text_of_a_batch_is_the_text_alone() -> None:
    model, tokenizer = make_model(256, init_std=0.1), ByteTokenizer()
    sampler = Sampler(model, tokenizer, SamplingParams(max_new_tokens=20, temperature=1.0))
    single_stream, *_ = sampler.generate_batch("Hé", 1, seed=4, stop="e")
    streams = sampler.generate_batch("Hé", 3, seed=4, stop="e")
    assert single_stream.text() == streams[0].text()
    assert single_stream.tokens == streams[0].tokens


CHAR = CharTokenizer("\n abc")


def test_an_empty_prompt_starts_a_text() -> None:
    bpe = train_tokenizer(["a bc"], TokenizerConfig(kind="bpe", vocab_size=257))
    assert encode_prompt(bpe, "") == [bpe.eot_id]
    assert encode_prompt(ByteTokenizer(), "") == [ord("\n")]
    assert encode_prompt(CHAR, "") == [0]
    assert encode_prompt(CharTokenizer("xyz"), "") == [0]


def test_characters_that_the_vocabulary_lacks_are_refused_or_left_out() -> None:
    with pytest.raises(UnknownCharacters):
        encode_prompt(CHAR, "abX")
    assert drop_unknown(CHAR, "aXbXY\ud800c") == ("abc", ["X", "Y", "\ud800"])
    assert drop_unknown(ByteTokenizer(), "aX") == ("aX", [])


def test_any_prompt_without_surrogates_continues_under_a_byte_vocabulary() -> None:
    sampler = Sampler(make_model(256), ByteTokenizer(), SamplingParams(max_new_tokens=2))

    @given(st.text())
    def continues(prompt: str) -> None:
        stream = sampler.generate(prompt, seed=1)
        stream.text().encode()  # whole characters: nothing that UTF-8 cannot hold
        assert len(stream.tokens) == 2

    continues()


def test_the_config_of_a_run_decides_what_was_not_asked_for() -> None:
    config = SampleConfig(max_new_tokens=7, temperature=0.5, top_k=3, top_p=0.9, min_p=0.1)
    assert SamplingParams.from_config(config, seed=5) == SamplingParams(7, 0.5, 3, 0.9, 0.1, 5)
