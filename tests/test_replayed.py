"""Decoding by replays writes the plain way's text, whatever is asked of it, and gives way where it does not work."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tape import recorder
from torch._dynamo.utils import counters

from gpt_cli.config import TokenizerConfig
from gpt_cli.model.gpt import GPT
from gpt_cli.model.kv_cache import KVCache, RaggedCache
from gpt_cli.model.static_cache import StaticCache
from gpt_cli.sampling import Sampling, replayed, stream_batches
from gpt_cli.sampling.bias import LogitBias
from gpt_cli.sampling.generate import Continuations, generate
from gpt_cli.sampling.noise import GumbelNoise
from gpt_cli.sampling.recorder import Recorder
from gpt_cli.sampling.replayed import DecodeStep, Replayed, keys_to_see
from gpt_cli.sampling.text import stream_texts
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer, train_tokenizer
from tests.test_generate import CONTEXT, VOCAB_SIZE, make_model
from tests.test_ragged import OPTIONS, PROMPTS

CPU = torch.device("cpu")
STEPS = 3 * CONTEXT


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """In a graph's place; gives how many keys each recording sees."""
    recorded: list[int] = []

    def record(compute: Any) -> Any:
        step = compute.__self__
        recorded.append(step._cache.seen)
        return recorder(lambda: step.tensors)(compute)

    monkeypatch.setattr(replayed, "can_record", lambda device: True)
    monkeypatch.setattr(replayed, "_LEAST_STEPS", 2)
    monkeypatch.setattr(replayed, "_LEAST_SEEN", 4)
    monkeypatch.setattr(replayed, "_WARM_UPS", 1)
    monkeypatch.setattr(replayed, "record", record)
    return recorded


def refuse(text: str) -> None:
    raise AssertionError(text)


def written(
    model: GPT, prompts: Sequence[Sequence[int]], sampling: Sampling, by: Replayed | None = None, **options: Any
) -> list[list[int]]:
    return list(generate(model, prompts, sampling, **options, replayed=by))


# The cache


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(OPTIONS, st.lists(st.integers(1, 3), min_size=1, max_size=3), st.booleans(), st.integers(1, 2))
def test_a_static_cache_is_the_cache_it_stands_for(
    options: dict[str, Any], lengths: list[int], ragged: bool, n_token: int
) -> None:
    try:
        model = make_model(**{**options, "context_length": 8})
    except ValidationError:
        reject()
    lengths = lengths if ragged else lengths[:1] * len(lengths)
    tokens = torch.randint(VOCAB_SIZE, (len(lengths), 8), generator=torch.Generator().manual_seed(0))
    kind = RaggedCache if ragged else KVCache
    with torch.inference_mode():
        plain, other = (kind(model.config, len(lengths)) for _ in range(2))
        for cache in (plain, other):
            prefilled = KVCache(model.config, len(lengths), room=max(lengths))
            model(tokens[:, : max(lengths)], prefilled)
            cache.store(range(len(lengths)), prefilled, lengths)
        static = StaticCache(other, seen=8)
        places = [t.data_ptr() for t in static.tensors]
        for at in range(3, 3 + 2 * n_token, n_token):
            expected = model(tokens[:, at : at + n_token], plain)
            found = model(tokens[:, at : at + n_token], static)
            torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)
            other.advance(n_token)
        assert [t.data_ptr() for t in static.tensors] == places
        # What it filled is the other's: that goes on from there.
        torch.testing.assert_close(model(tokens[:, :1], other), model(tokens[:, :1], plain), rtol=2e-4, atol=2e-4)


def test_attention_sees_a_power_of_two_of_keys_that_holds_the_next_one() -> None:
    assert [keys_to_see(filled, 1000) for filled in (0, 127, 128, 255, 256, 511, 512, 999)] == [
        *(128, 128, 256, 256, 512, 512, 1000, 1000)
    ]
    assert keys_to_see(3, 20) == 20


# The text


def test_replays_write_what_the_plain_way_writes_within_the_context_and_past_it(tape: list[int]) -> None:
    @settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
    @given(OPTIONS, PROMPTS, st.booleans())
    def they_do(options: dict[str, Any], prompts: list[list[int]], greedy: bool) -> None:
        try:
            model = make_model(**options)
        except ValidationError:
            reject()
        sampling = Sampling(temperature=0.0 if greedy else 1.0, seed=3, max_new_tokens=20)
        assert written(model, prompts, sampling, Replayed(refuse)) == written(model, prompts, sampling)

    they_do()
    assert tape


FILTERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 1.3},
    "filtered": {"temperature": 1.0, "top_k": 7, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.95},
}


@pytest.mark.parametrize("kind", FILTERS)
@pytest.mark.parametrize("prompts", [[[1, 2]], [[1, 2, 3]] * 3, [[1], [2, 3, 4], [5] * 30, [1]]], ids=str)
@pytest.mark.parametrize("steps", [2, 9, 60])
def test_every_filter_and_batch_is_written_as_the_plain_way_does(
    tape: list[int], kind: str, prompts: list[list[int]], steps: int
) -> None:
    model = make_model(context_length=24)
    sampling = Sampling(**FILTERS[kind], seed=8, max_new_tokens=steps)
    samples = [0, 1, 0, 7][: len(prompts)]
    expected = written(model, prompts, sampling, samples=samples)
    assert written(model, prompts, sampling, Replayed(refuse), samples=samples) == expected
    assert len(set(tape)) == len(tape)  # each recorded once, however often the window was read anew


def test_a_context_is_walked_through_in_growing_views(tape: list[int]) -> None:
    model = make_model(context_length=24)
    written(model, [[1]], Sampling(max_new_tokens=100), Replayed(refuse))
    assert tape == [4, 8, 16, 24]


@pytest.mark.parametrize("numbers", [1, 3 * VOCAB_SIZE, 2**24])
def test_noise_that_would_not_fit_makes_chunks_shorter_and_changes_nothing(
    tape: list[int], monkeypatch: pytest.MonkeyPatch, numbers: int
) -> None:
    model, sampling = make_model(), Sampling(seed=2, max_new_tokens=STEPS)
    monkeypatch.setattr(replayed, "_NOISE_NUMBERS", numbers)
    assert written(model, [[1]], sampling, Replayed(refuse)) == written(model, [[1]], sampling)


@pytest.mark.parametrize("vocab_size", [13, 1_300, 2**17 + 1])
def test_noise_drawn_ahead_is_the_noise_of_each_step(vocab_size: int) -> None:
    plain, ahead = (GumbelNoise(4, [0, 2, 0], vocab_size, CPU) for _ in range(2))
    for steps in (1, 3, 5):
        expected = torch.stack([plain.draw() for _ in range(steps)])
        ahead.ahead(7)  # asking uses nothing up
        torch.testing.assert_close(ahead.ahead(steps), expected, rtol=1e-6, atol=1e-6)
        ahead.pass_by(steps)


def test_stop_strings_and_ends_of_text_in_the_middle_of_a_chunk_end_texts_where_they_did(tape: list[int]) -> None:
    tokenizer = train_tokenizer(["a bc"], TokenizerConfig(kind="bpe", vocab_size=257))
    assert tokenizer.end_of_text is not None
    model = make_model(tokenizer.vocab_size, init_std=0.05)
    ends = set()
    for seed in range(3):
        sampling = Sampling(seed=seed, max_new_tokens=40, temperature=1.0, top_k=40, stop=("a", "\x00"), log_probs=True)
        pairs = [
            [text for texts in stream_batches(model, tokenizer, [[1], [2, 3]], sampling, 2, 2, by) for text in texts]
            for by in (None, Replayed(refuse))
        ]
        for expected, found in zip(*pairs, strict=True):
            assert found.text() == expected.text()
            assert (found.tokens, found.finish_reason) == (expected.tokens, expected.finish_reason)
            assert found.log_probs == pytest.approx(expected.log_probs, abs=1e-4)
            ends.add(found.finish_reason)
    assert tape
    assert {"stop", "length"} <= ends


def test_an_end_of_text_in_the_middle_of_a_chunk_ends_its_text_and_no_other(
    tape: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = train_tokenizer(["a bc"], TokenizerConfig(kind="bpe", vocab_size=257))
    assert tokenizer.end_of_text is not None
    model = make_model(tokenizer.vocab_size)
    model.head.weight.data[tokenizer.end_of_text] *= 3.0  # which makes it likely
    sampling = Sampling(seed=5, max_new_tokens=60)
    found, expected = (
        [(t.text(), t.tokens, t.finish_reason) for t in stream_batch(model, tokenizer, sampling, by)]
        for by in (Replayed(refuse), None)
    )
    assert found == expected
    assert len({len(tokens) for _, tokens, reason in found if reason == "end_of_text"}) > 1


def stream_batch(model: GPT, tokenizer: Any, sampling: Sampling, by: Replayed | None) -> list[Any]:
    return next(stream_batches(model, tokenizer, [[1]], sampling, 4, replayed=by))


def test_the_token_for_unknown_characters_is_not_written_by_replays_either(tape: list[int]) -> None:
    tokenizer = CharTokenizer("ab", has_unknown=True)
    model = make_model(vocab_size=3)
    model.head.weight.data.zero_()  # all tokens are equally likely
    for text in stream_batch(model, tokenizer, Sampling(max_new_tokens=60), Replayed(refuse)):
        assert set(text.text()) == {"a", "b"}
        assert tokenizer.unknown not in text.tokens
    assert tape


def test_text_is_shown_a_chunk_at_a_time_not_at_its_end(tape: list[int]) -> None:
    model, tokenizer = make_model(256, context_length=64), ByteTokenizer()
    computed: list[int] = []
    real = DecodeStep.take
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecodeStep, "take", lambda *a: (chunk := real(*a), computed.append(chunk.steps))[0])
        (text,) = next(stream_batches(model, tokenizer, [[1]], Sampling(max_new_tokens=60), replayed=Replayed(refuse)))
        next(iter(text))
        while len(text.tokens) < 20:
            next(text._steps)
        assert sum(computed) <= 20 + 2 * replayed.CHUNK


# What a step needs


def test_no_step_asks_the_device_for_a_number() -> None:
    """On the meta device there are none: a step that asked would raise."""
    model = make_model(context_length=64).to("meta")
    sampling = Sampling(temperature=1.0, top_k=7, top_p=0.9, min_p=0.02, typical_p=0.95)
    rows = Continuations(model, [[1, 2], [3, 4]])
    with torch.inference_mode():
        rows.cache.length = 2
        rows.append(torch.zeros(2, dtype=torch.long, device="meta"))
        step = DecodeStep(model, rows, sampling, [Recorder(2), LogitBias({1: 2.0}, VOCAB_SIZE, rows.device)])
        step._replays = {keys_to_see(2, 64): step.compute}
        for _ in range(3):
            chunk = step.take(8, None)
            rows.extend(chunk.tokens.T)
        assert (chunk.steps, rows.cache.length) == (8, 2 + 3 * 8)
        with pytest.raises(RuntimeError, match="meta"):
            chunk.tokens.tolist()


def test_a_tape_that_forgets_what_changes_is_told_from_the_step(
    tape: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the tape, in the place of a graph, would show a position that is baked in."""
    model, sampling = make_model(), Sampling(temperature=0.0, max_new_tokens=STEPS)
    monkeypatch.setattr(StaticCache, "start", property(lambda self: self.plain.start))
    assert written(model, [[1]], sampling, Replayed(lambda _: None)) != written(model, [[1]], sampling)


@pytest.mark.parametrize(
    "settings",
    [
        *({"repetition_penalty": 1.2}, {"no_repeat_ngram": 2}, {"regex": "[ab]*"}, {"choices": ("a", "b")}),
        *({"forbid": "a"}, {"allow": "ab"}, {"beams": 2}, {"max_new_tokens": 31}),
    ],
    ids=str,
)
def test_what_needs_the_host_at_every_step_is_written_the_plain_way_without_a_word(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(replayed, "can_record", lambda device: True)
    monkeypatch.setattr(replayed, "record", refuse)
    model, tokenizer = make_model(256), ByteTokenizer()
    sampling = Sampling(**{"max_new_tokens": 40, "seed": 1, **settings})
    found, expected = (
        next(stream_batches(model, tokenizer, [[1]], sampling, 1, replayed=by))[0].text()
        for by in (Replayed(refuse), None)
    )
    assert found == expected


def test_a_cpu_is_never_asked_to_record() -> None:
    assert not replayed.can_record(CPU)
    assert not Replayed(refuse).suits(CPU, Sampling(max_new_tokens=1000), (), ())


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # how torch looks into one
def test_a_compiled_step_is_one_graph_for_each_view_and_computes_the_same(
    tape: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    counters.clear()
    real_compile, real_record = torch.compile, replayed.record

    def record(compute: Any) -> Any:
        """As written: what is compiled does not show what it does to a tape."""
        step = compute.__self__
        fast = compute()
        step._begin()
        step._forward, forward = step._model, step._forward
        torch.testing.assert_close(fast, compute(), rtol=1e-4, atol=1e-4)
        step._begin()
        replay = real_record(compute)
        step._forward = forward
        return replay

    def compile_(model: GPT, dynamic: bool) -> Any:
        return real_compile(model, dynamic=dynamic, backend="aot_eager")

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(replayed, "record", record)
    model, sampling = make_model(context_length=8, n_layer=1), Sampling(temperature=0.0, max_new_tokens=20)
    assert written(model, [[1]], sampling, Replayed(refuse, compiling=True)) == written(model, [[1]], sampling)
    assert tape == [4, 8]
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


# Where it does not work


def failing_at(nth: int, error: Exception) -> Any:
    """Replays that raise, the nth of each recording."""

    def record(compute: Any) -> Any:
        replay, calls = recorder(lambda: compute.__self__.tensors)(compute), 0

        def call() -> Any:
            nonlocal calls
            calls += 1
            if calls == nth:
                raise error
            return replay()

        return call

    return record


def spoiled(compute: Any) -> Any:
    """A replay whose logits are a little wrong."""
    replay = recorder(lambda: compute.__self__.tensors)(compute)
    return lambda: replay() * 1.01


def deaf(compute: Any) -> Any:
    """A replay that chooses its tokens as if there were no noise."""
    step = compute.__self__
    replay = recorder(lambda: step.tensors)(compute)

    def call() -> Any:
        step._noise.zero_()
        step._noise[:, :, 3] = 1e6
        logits = replay()
        step._noise.zero_()
        return logits

    return call


BROKEN = {
    "cannot be recorded": failing_at(0, RuntimeError()),
    "first replay": failing_at(1, RuntimeError("a driver's error\nand its trace")),
    "in a chunk": failing_at(4, RuntimeError("a driver's error\nand its trace")),
    "later": failing_at(11, torch.OutOfMemoryError("CUDA out of memory")),
    "logits": spoiled,
    "choice": deaf,
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("prompts", [[[1, 2]], [[1], [2, 3, 4], [5] * 30]], ids=str)
def test_where_replays_fail_or_differ_the_same_text_goes_on_with_one_note(
    tape: list[int], monkeypatch: pytest.MonkeyPatch, how: str, prompts: list[list[int]]
) -> None:
    def refusing(compute: Any) -> Any:
        raise RuntimeError("not while capturing")

    model, notes = make_model(context_length=24), []
    monkeypatch.setattr(replayed, "record", refusing if how == "cannot be recorded" else BROKEN[how])
    by, sampling = Replayed(notes.append), Sampling(seed=9, max_new_tokens=45)
    expected = written(model, prompts, sampling)
    assert written(model, prompts, sampling, by) == expected
    assert len(notes) == 1
    assert notes[0].startswith("decoding by CUDA graphs does not work here (")
    assert "\n" not in notes[0]
    monkeypatch.setattr(replayed, "record", refuse)
    assert written(model, prompts, sampling, by) == expected  # it is not tried again
    assert len(notes) == 1


def test_log_probabilities_are_whole_where_replays_fail_in_the_middle(
    tape: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = make_model(256), ByteTokenizer()
    sampling = Sampling(seed=9, max_new_tokens=40, log_probs=True)
    monkeypatch.setattr(replayed, "record", failing_at(11, RuntimeError("gone")))
    notes: list[str] = []
    (found,), (expected,) = (
        next(stream_batches(model, tokenizer, [[1]], sampling, replayed=by)) for by in (Replayed(notes.append), None)
    )
    assert (found.text(), found.tokens) == (expected.text(), expected.tokens)
    assert found.log_probs == pytest.approx(expected.log_probs, abs=1e-4)
    assert len(notes) == 1


def test_what_the_plain_way_itself_raises_is_no_reason_to_go_on(
    tape: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Continuations, "_prefill", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        written(make_model(), [[1]], Sampling(max_new_tokens=40), Replayed(refuse))


def test_an_interrupt_is_not_swallowed(tape: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DecodeStep, "take", interrupted)
    model = make_model(256)
    (text,) = stream_texts(model, ByteTokenizer(), [1], Sampling(max_new_tokens=40))
    assert len(text.text()) > 0
    with pytest.raises(KeyboardInterrupt):
        written(model, [[1]], Sampling(max_new_tokens=40), Replayed(refuse))
