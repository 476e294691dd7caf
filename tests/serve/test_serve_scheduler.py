"""The scheduler of `gpt serve`: whatever texts come, end and are given up, each is what it is alone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.sampling import SamplingParams
from gpt_cli.sampling.constraint import compile_constraint
from gpt_cli.sampling.prompt import Opening
from gpt_cli.serve.generation_request import GenerationRequest
from gpt_cli.serve.limits import Limits
from gpt_cli.serve.model_registry import EngineOptions, ServedModel, open_model
from gpt_cli.serve.scheduler import DeltaQueue, Scheduler
from gpt_cli.serve.server_metrics import ServerMetrics
from gpt_cli.serve.text_sequence import ChoiceDelta, TextSequence
from tests.support.live_server import make_run

pytestmark = pytest.mark.system

SAMPLING = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8, top_k=7),
    SamplingParams(temperature=1.2, top_p=0.9, stop=("e",)),
    SamplingParams(temperature=1.0, regex="[a-z ]{3,20}(!|[0-9]+)"),
    SamplingParams(temperature=1.0, top_k=3, json_schema='{"type": "array", "items": {"type": "boolean"}}'),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    run = make_run(tmp_path_factory.mktemp("runs") / "bytes")
    return open_model("bytes", run, EngineOptions(), print, None)


CASE = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 255), min_size=1, max_size=30),
        "sampling": st.sampled_from(SAMPLING),
        "seed": st.integers(0, 2**40),
        "tokens": st.integers(1, 50),
        "n_top": st.sampled_from([None, None, 0, 3]),
        "pause": st.integers(0, 3),
        "cancel_after": st.none() | st.integers(1, 4),
        "streamed": st.booleans(),
    }
)


def make_sequence(model: ServedModel, case: dict[str, Any], queue: DeltaQueue) -> TextSequence:
    sampling: SamplingParams = case["sampling"].replace({"seed": case["seed"], "max_new_tokens": case["tokens"]})
    rules = compile_constraint(model.tokenizer, sampling)
    prompt, streamed = case["prompt"], case.get("streamed", True)
    request = GenerationRequest(model, [prompt], sampling, n_top=case["n_top"], streamed=streamed, rules=rules)
    return TextSequence(request, Opening(prompt), queue)


async def alone(model: ServedModel, case: dict[str, Any]) -> list[Any]:
    """Text, tokens, log-probabilities and finish reason from a scheduler of its own."""
    scheduler = Scheduler(Limits(), ServerMetrics())
    try:
        queue = DeltaQueue()
        scheduler.submit([make_sequence(model, case, queue)])
        deltas = await queue.get()
        while deltas[-1].finish_reason is None:
            deltas += await queue.get()
    finally:
        await asyncio.to_thread(scheduler.close)
    return joined(deltas)


def joined(deltas: list[ChoiceDelta]) -> list[Any]:
    text = "".join(delta.text for delta in deltas)
    tokens = [token for delta in deltas for token in delta.tokens]
    logprobs = [entry for delta in deltas for entry in delta.logprobs]
    return [text, tokens, logprobs, deltas[-1].finish_reason]


@settings(max_examples=40)
@given(
    cases=st.lists(CASE, min_size=1, max_size=14),
    seats=st.integers(1, 9),
    prompt_step=st.sampled_from([1, 5, 256]),
)
def test_whoever_comes_ends_and_gives_up_a_text_is_what_it_is_alone(
    model: ServedModel, cases: list[dict[str, Any]], seats: int, prompt_step: int
) -> None:
    async def scenario() -> None:
        scheduler = Scheduler(Limits(seats=seats, prompt_step=prompt_step), ServerMetrics())

        async def generate(case: dict[str, Any]) -> list[Any] | None:
            for _ in range(case["pause"]):
                await asyncio.sleep(0)
            queue = DeltaQueue()
            sequence = make_sequence(model, case, queue)
            scheduler.submit([sequence])
            deltas = await queue.get()
            while deltas[-1].finish_reason is None:
                if case["cancel_after"] is not None and case["cancel_after"] <= len(deltas):
                    scheduler.cancel([sequence])
                    return None
                deltas += await queue.get()
            return joined(deltas)

        try:
            results = await asyncio.gather(*(generate(case) for case in cases))
        finally:
            await asyncio.to_thread(scheduler.close)
        for case, result in zip(cases, results, strict=True):
            if result is not None:
                assert result == await alone(model, case)
        assert scheduler.running == scheduler.waiting == 0 or any(case["cancel_after"] for case in cases)

    asyncio.run(scenario())


def test_what_fails_in_one_engine_ends_its_texts_and_not_the_thread(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        scheduler, queue = Scheduler(Limits(), ServerMetrics()), DeltaQueue()
        case = {"prompt": [1], "sampling": SAMPLING[0], "seed": 1, "tokens": 5, "n_top": None}
        try:
            with monkeypatch.context() as patch:
                patch.setattr(model.engine, "step", lambda *_: 1 / 0)
                scheduler.submit([make_sequence(model, case, queue)])
                assert [delta.finish_reason for delta in await queue.get()] == ["error"]
            scheduler.submit([make_sequence(model, case, queue)])
            deltas = await queue.get()
            while deltas[-1].finish_reason is None:
                deltas += await queue.get()
            assert deltas[-1].finish_reason == "length"
        finally:
            await asyncio.to_thread(scheduler.close)

    asyncio.run(scenario())
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_text_that_waits_when_the_server_ends_is_told(model: ServedModel) -> None:
    async def scenario() -> None:
        scheduler, queue = Scheduler(Limits(max_tokens=10**9), ServerMetrics()), DeltaQueue()
        case = {"prompt": [1], "sampling": SAMPLING[0], "seed": 1, "tokens": 10**9, "n_top": None}
        scheduler.submit([make_sequence(model, case, queue)])
        await queue.get()
        await asyncio.to_thread(scheduler.close)
        deltas = await queue.get()
        while deltas[-1].finish_reason is None:
            deltas = await queue.get()
        assert deltas[-1].finish_reason == "error"

    asyncio.run(scenario())


def test_the_checkpoint_of_a_path_is_served_under_its_run_and_step(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    model = open_model("x", run / "checkpoints" / "step-00000000", EngineOptions(), print, None)
    assert model.step == 0
