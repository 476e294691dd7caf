"""A captured decode step writes the eager step's text, whatever is asked of it, and gives way where it does not work.

On a CPU `make_fx` stands in for a CUDA graph: it records the operations of a step once and does them again on the same
tensors, so that a position or a choice that Python made would be as it was at the capture.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx

from gpt_cli.config import TokenizerConfig
from gpt_cli.model.gpt import GPT
from gpt_cli.model.kv_cache import KVCache, RaggedCache
from gpt_cli.model.static_cache import StaticCache
from gpt_cli.runtime.cuda_graph import graphs_available
from gpt_cli.sampling import SamplingParams, graphed_decode, stream_batches
from gpt_cli.sampling.generate import SequenceBatch, generate
from gpt_cli.sampling.graphed_decode import CHUNK, GraphedDecoder, decode_step, length_bucket
from gpt_cli.sampling.logits_processors import LogitBias
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer, train_tokenizer
from tests.support.tiny_gpt import CONTEXT, OPTIONS, PROMPTS, VOCAB_SIZE, make_model

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def low_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts and contexts of tests are long enough for captures, and for several."""
    monkeypatch.setattr(graphed_decode, "FEWEST_STEPS", 2)
    monkeypatch.setattr(graphed_decode, "FEWEST_KEYS", 4)


def refuse(*arguments: Any) -> Any:
    raise AssertionError(arguments)


def fx_capture(step: Any, inputs: Sequence[Tensor]) -> Any:
    """In a CUDA graph's place: after two calls that must change nothing, as a capture makes them."""
    inputs = [tensor.clone() for tensor in inputs]
    outputs = step(*inputs)
    replay = make_fx(lambda *args: step(*args))(*inputs)  # it would ask for parameters with defaults, too
    assert all(actual.equal(expected) for actual, expected in zip(replay(*inputs), outputs, strict=True))
    return replay


def decoder(capture: Any = fx_capture, **options: Any) -> GraphedDecoder:
    return GraphedDecoder(refuse, capture=capture, **options)


def generate_ids(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    graphed_decoder: GraphedDecoder | None = None,
    **options: Any,
) -> list[list[int]]:
    return list(generate(model, prompts, sampling, **options, decoder=graphed_decoder))


# The cache


@pytest.mark.system
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(OPTIONS, st.lists(st.integers(1, 3), min_size=1, max_size=3), st.booleans())
def test_a_static_cache_is_the_cache_it_stands_for(options: dict[str, Any], lengths: list[int], ragged: bool) -> None:
    try:
        model = make_model(**{**options, "context_length": 8})
    except ValidationError:
        reject()
    lengths = lengths if ragged else lengths[:1] * len(lengths)
    tokens = torch.randint(VOCAB_SIZE, (len(lengths), 8), generator=torch.Generator().manual_seed(0))
    kind = RaggedCache if ragged else KVCache
    with torch.inference_mode():
        plain_cache, shared_cache = (kind(model.config, len(lengths)) for _ in range(2))
        for cache in (plain_cache, shared_cache):
            prefill_cache = KVCache(model.config, len(lengths), max_length=max(lengths))
            model(tokens[:, : max(lengths)], prefill_cache)
            cache.copy_from(range(len(lengths)), prefill_cache, lengths)
        layers = list(zip(shared_cache.keys, shared_cache.values, strict=True))
        for position in range(3, 5):
            static_cache = StaticCache(layers, torch.tensor(lengths) + position - 3, n_key=7)
            expected = model(tokens[:, position : position + 1], plain_cache)
            torch.testing.assert_close(
                model(tokens[:, position : position + 1], static_cache), expected, rtol=2e-4, atol=2e-4
            )
            shared_cache.advance(1)
        # What it filled is the shared cache's: that goes on from there.
        torch.testing.assert_close(
            model(tokens[:, :1], shared_cache), model(tokens[:, :1], plain_cache), rtol=2e-4, atol=2e-4
        )


def test_attention_reads_a_power_of_two_of_keys_that_holds_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_decode, "FEWEST_KEYS", 128)
    assert [length_bucket(length, 1000) for length in (0, 127, 128, 255, 256, 511, 512, 999)] == [
        *(128, 128, 256, 256, 512, 512, 1000, 1000)
    ]
    assert length_bucket(3, 20) == 20


# The text


@pytest.mark.system
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(OPTIONS, PROMPTS, st.booleans())
def test_captured_steps_write_what_eager_ones_write_within_the_context_and_past_it(
    options: dict[str, Any], prompts: list[list[int]], greedy: bool
) -> None:
    try:
        model = make_model(**options)
    except ValidationError:
        reject()
    sampling = SamplingParams(temperature=0.0 if greedy else 1.0, seed=3, max_new_tokens=12)
    assert generate_ids(model, prompts, sampling, decoder()) == generate_ids(model, prompts, sampling)


FILTERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 1.3},
    "filtered": {"temperature": 1.0, "top_k": 7, "top_p": 0.9, "min_p": 0.02},
}


@pytest.mark.system
@pytest.mark.parametrize("kind", FILTERS)
@pytest.mark.parametrize("prompts", [[[1, 2]], [[1, 2, 3]] * 3, [[1], [2, 3, 4], [5] * 30, [1]]], ids=str)
@pytest.mark.parametrize("steps", [2, 30])
def test_every_filter_and_batch_is_written_as_by_eager_steps(kind: str, prompts: list[list[int]], steps: int) -> None:
    model, captured_inputs = make_model(context_length=12, n_layer=1), []
    sampling = SamplingParams(**FILTERS[kind], seed=8, max_new_tokens=steps)
    samples = [0, 1, 0, 7][: len(prompts)]

    def capture(step: Any, inputs: Sequence[Tensor]) -> Any:
        captured_inputs.append(inputs)
        return fx_capture(step, inputs)

    expected = generate_ids(model, prompts, sampling, samples=samples)
    assert generate_ids(model, prompts, sampling, decoder(capture), samples=samples) == expected
    assert 1 <= len(captured_inputs) <= 3  # one for each of 4, 8 and 12 keys, however often the window was read anew


def texts(
    model: GPT, tokenizer: Any, sampling: SamplingParams, graphed_decoder: GraphedDecoder | None, n: int = 4
) -> list[Any]:
    actual = next(stream_batches(model, tokenizer, [[1]], sampling, n, decoder=graphed_decoder))
    return [(text.text(), text.tokens, text.finish_reason) for text in actual]


@pytest.mark.system
@pytest.mark.parametrize("stop", [(), ("a", "\x00")])
def test_a_text_that_ends_in_the_middle_of_a_chunk_ends_where_it_did_and_ends_no_other(stop: tuple[str, ...]) -> None:
    tokenizer = train_tokenizer(["a bc"], TokenizerConfig(kind="bpe", vocab_size=257))
    assert tokenizer.eot_id is not None
    model = make_model(tokenizer.vocab_size)
    model.head.weight.data[tokenizer.eot_id] *= 3.0  # which makes it likely
    sampling = SamplingParams(seed=5, max_new_tokens=60, stop=stop)
    actual = texts(model, tokenizer, sampling, decoder())
    assert actual == texts(model, tokenizer, sampling, None)
    assert len({len(tokens) for _, tokens, reason in actual if reason != "length"}) > 1


@pytest.mark.system
def test_the_token_for_unknown_characters_is_not_written() -> None:
    tokenizer = CharTokenizer("ab", has_unknown=True)
    model = make_model(vocab_size=3)
    model.head.weight.data.zero_()  # all tokens are equally likely
    for text, tokens, _ in texts(model, tokenizer, SamplingParams(max_new_tokens=60), decoder()):
        assert set(text) == {"a", "b"}
        assert tokenizer.unk_id not in tokens


def test_text_is_shown_a_chunk_at_a_time_not_at_its_end() -> None:
    model, calls = make_model(256, context_length=64), []

    def counting_capture(step: Any, inputs: Sequence[Tensor]) -> Any:
        return lambda *args: (calls.append(1), step(*args))[1]

    (text,) = next(
        stream_batches(
            model, ByteTokenizer(), [[1]], SamplingParams(max_new_tokens=60), decoder=decoder(counting_capture)
        )
    )
    while len(text.tokens) < 20:
        next(text._steps)
    assert len(calls) <= 20 + 2 * CHUNK


# What a step needs


@pytest.mark.system
def test_no_decode_step_asks_the_device_for_a_number() -> None:
    """On the meta device there are none: a step that asked would raise."""
    model = make_model(context_length=64).to("meta")
    sampling = SamplingParams(temperature=1.0, top_k=7, top_p=0.9, min_p=0.02, max_new_tokens=60, log_probs=True)
    rows = SequenceBatch(model, [[1, 2], [3, 4]])
    with torch.inference_mode():
        rows.cache.length = 2
        noise = torch.zeros(2, VOCAB_SIZE, device="meta")
        rules = [LogitBias({1: 2.0}, VOCAB_SIZE, rows.device)]
        decode = decoder(lambda step, inputs: step).begin(model, rows, sampling, rules)
        rows.append(torch.zeros(2, dtype=torch.long, device="meta"))
        for _ in range(20):
            assert rows.prefill_due() is None
            outputs = decode(noise)
            assert outputs is not None
            rows.append(outputs[0])
    assert rows.cache.length == 22
    with pytest.raises(RuntimeError, match="meta"):
        outputs[0].tolist()


@pytest.mark.system
@pytest.mark.parametrize(
    "settings",
    [
        *({"repetition_penalty": 1.2}, {"no_repeat_ngram": 2}, {"regex": "[ab]*"}, {"choices": ("a", "b")}),
        *({"beams": 2}, {"max_new_tokens": 31}),
    ],
    ids=str,
)
def test_what_needs_the_host_at_every_step_is_written_by_eager_steps_without_a_word(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(graphed_decode, "FEWEST_STEPS", 32)
    model, n = make_model(256), 1 if "beams" in settings else 2
    sampling = SamplingParams(**{"max_new_tokens": 40, "seed": 1, **settings})
    assert texts(model, ByteTokenizer(), sampling, decoder(refuse), n) == texts(
        model, ByteTokenizer(), sampling, None, n
    )


def test_there_are_no_cuda_graphs_on_a_cpu() -> None:
    assert not graphs_available(CPU)


@pytest.mark.system
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # how torch looks into one
def test_a_compiled_step_is_one_graph_for_each_bucket_and_writes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    counters.clear()
    real_compile, compile_options = torch.compile, []

    def compile_(step: Any, **options: Any) -> Any:
        compile_options.append(options)
        return real_compile(step, backend="aot_eager", **options)

    monkeypatch.setattr(torch, "compile", compile_)
    model, sampling = make_model(context_length=8, n_layer=1), SamplingParams(top_k=5, seed=2, max_new_tokens=20)
    prompts = [[1], [2, 3]]
    graphed_decoder = decoder(lambda step, inputs: step, compiling=True)
    assert generate_ids(model, prompts, sampling, graphed_decoder) == generate_ids(model, prompts, sampling)
    assert compile_options == [{"fullgraph": True, "dynamic": False}] * 2  # for 4 keys and for 8
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


# Where it does not work


def failing_capture(nth_capture: int, nth_replay: int, error: Exception) -> Any:
    """A capture that raises, or whose replays do, each at its turn; 0 is the first."""
    captures = 0

    def capture(step: Any, inputs: Sequence[Tensor]) -> Any:
        nonlocal captures
        captures, replays = captures + 1, 0
        if captures - 1 == nth_capture and nth_replay < 0:
            raise error

        def replay(*args: Tensor) -> Any:
            nonlocal replays
            replays += 1
            if captures - 1 == nth_capture and replays - 1 == nth_replay:
                raise error
            return step(*args)

        return replay

    return capture


@pytest.mark.system
@pytest.mark.parametrize("prompts", [[[1, 2]], [[1], [2, 3, 4], [5] * 30]], ids=str)
@pytest.mark.parametrize("where", [(0, -1), (1, -1), (0, 0), (0, 1), (1, 3)], ids=str)
@pytest.mark.parametrize("error", [RuntimeError(), torch.OutOfMemoryError("CUDA out of memory\nand its trace")])
def test_where_a_capture_or_a_replay_fails_the_same_text_goes_on_with_one_note(
    prompts: list[list[int]], where: tuple[int, int], error: Exception
) -> None:
    model, notes = make_model(context_length=12, n_layer=1), list[str]()
    sampling = SamplingParams(seed=9, max_new_tokens=24)
    graphed_decoder = GraphedDecoder(notes.append, capture=failing_capture(*where, error))
    expected = generate_ids(model, prompts, sampling)
    assert generate_ids(model, prompts, sampling, graphed_decoder) == expected
    graphed_decoder._capture = refuse
    assert generate_ids(model, prompts, sampling, graphed_decoder) == expected  # it is not tried again
    if len(prompts) == 1 or where[0] == 0:  # the longest prompt begins with the last bucket
        (note,) = notes
        assert note.startswith("decoding by CUDA graphs does not work here (")
        assert "\n" not in note


@pytest.mark.system
@pytest.mark.parametrize("where", [None, (0, 3), (1, -1)], ids=str)
def test_log_probabilities_are_whole_even_where_a_replay_fails_in_the_middle(where: tuple[int, int] | None) -> None:
    model, tokenizer = make_model(256, context_length=12, n_layer=1), ByteTokenizer()
    sampling = SamplingParams(seed=9, max_new_tokens=24, log_probs=True)
    capture = fx_capture if where is None else failing_capture(*where, RuntimeError("gone"))
    graphed_decoder = GraphedDecoder(lambda _: None, capture=capture)
    actual, expected = (
        next(stream_batches(model, tokenizer, [[1]], sampling, 2, decoder=d)) for d in (graphed_decoder, None)
    )
    for actual_text, expected_text in zip(actual, expected, strict=True):
        assert (actual_text.text(), actual_text.tokens) == (expected_text.text(), expected_text.tokens)
        assert actual_text.log_probs == pytest.approx(expected_text.log_probs, abs=1e-4)
        assert len(actual_text.log_probs or ()) == 24


def test_what_a_prefill_raises_is_no_reason_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(SequenceBatch, "_prefill", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        generate_ids(make_model(), [[1]], SamplingParams(max_new_tokens=40), decoder())


def test_an_interrupt_is_not_swallowed() -> None:
    def interrupting_capture(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_ids(make_model(), [[1]], SamplingParams(max_new_tokens=3 * CONTEXT), decoder(interrupting_capture))


def test_a_step_done_twice_changes_nothing() -> None:
    """A capture computes its step beforehand, more than once."""
    model, sampling = make_model(context_length=8), SamplingParams(seed=1)
    cache = KVCache(model.config, 2)
    with torch.inference_mode():
        model(torch.tensor([[1, 2], [3, 4]]), cache)
        step = decode_step(model, cache, 4, sampling, ())
        inputs = (torch.tensor([[5], [6]]), torch.tensor([2, 2]), torch.zeros(2, VOCAB_SIZE))
        (first_output,), keys = step(*inputs), cache.keys.clone()
        assert step(*inputs)[0].equal(first_output)
        assert cache.keys.equal(keys)
