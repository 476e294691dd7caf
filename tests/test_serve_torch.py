"""The torch engine of `gpt serve`: many texts in a pass, each to the last bit what it is alone, for every model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.capabilities import STATIC_CACHE
from gpt_cli.config import Config, ModelConfig
from gpt_cli.model.gpt import GPT
from gpt_cli.run.directory import create_imported_run
from gpt_cli.sampling import SamplingParams
from gpt_cli.sampling.generate import SequenceBatch
from gpt_cli.sampling.logits_processors import ProcessorFactory
from gpt_cli.serve.model_registry import EngineOptions, open_model
from gpt_cli.serve.text_engine import SequenceRequest
from gpt_cli.serve.torch_text_engine import TorchTextEngine
from gpt_cli.tokenizer import ByteTokenizer

SIZE = {"n_layer": 2, "n_embd": 32, "n_head": 4, "context_length": 20, "zero_init": False, "init_std": 0.2}
MODELS: dict[str, dict[str, Any]] = {
    "alibi": {"position": "alibi"},
    "embedding_norm": {"embedding_norm": True, "norm_gain": False, "n_kv_head": 2},
    "window": {"window": 7},
    "learned": {"position": "learned"},
}
WAYS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_k=5, repetition_penalty=1.3),
    SamplingParams(temperature=1.3, typical_p=0.8),
]
VISIT = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 255), min_size=1, max_size=30),
        "way": st.sampled_from(WAYS),
        "seed": st.integers(0, 2**40),
        "joins": st.integers(0, 30),
        "stays": st.integers(1, 45),
    }
)


def make_model(name: str) -> GPT:
    torch.manual_seed(0)
    return GPT(ModelConfig(**(SIZE | MODELS[name])), 256).eval()


def make_request(visit: dict[str, Any]) -> SequenceRequest:
    sampling = visit["way"].replace({"seed": visit["seed"], "max_new_tokens": visit["stays"]})
    return SequenceRequest(
        visit["prompt"], sampling, return_logits=True, processor_factory=ProcessorFactory(ByteTokenizer(), sampling)
    )


def alone(engine: TorchTextEngine, visit: dict[str, Any]) -> list[Any]:
    slot = engine.join(make_request(visit))
    return [engine.step([slot], 1, 256)[0][0] for _ in range(visit["stays"])]


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=5)
@given(visits=st.lists(VISIT, min_size=1, max_size=20), prompt_step=st.sampled_from([1, 30, 256]))
def test_a_text_is_the_same_bits_whoever_joins_and_leaves_beside_it(
    name: str, visits: list[dict[str, Any]], prompt_step: int
) -> None:
    model = make_model(name)
    engine = TorchTextEngine(model)
    slots: dict[int, Any] = {}
    written: list[list[Any]] = [[] for _ in visits]
    for turn in range(10_000):
        slots |= {i: engine.join(make_request(visit)) for i, visit in enumerate(visits) if visit["joins"] == turn}
        if not slots and all(visit["joins"] <= turn for visit in visits):
            break
        here = list(slots)
        for i, found in zip(here, engine.step([slots[i] for i in here], 1, prompt_step), strict=True):
            written[i] += found
            if len(written[i]) == visits[i]["stays"]:
                del slots[i]
    for visit, found in zip(visits, written, strict=True):
        expected = alone(TorchTextEngine(model), visit)
        assert [token for token, _ in found] == [token for token, _ in expected]
        np.testing.assert_array_equal([logits for _, logits in found], [logits for _, logits in expected])


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_logits_are_those_of_the_sampler_within_the_context_and_past_it(name: str) -> None:
    model = make_model(name)
    visit = {"prompt": list(range(15)), "way": WAYS[0], "seed": 1, "stays": 40}
    rows = SequenceBatch(model, [visit["prompt"]])
    for token, logits in alone(TorchTextEngine(model), visit):
        np.testing.assert_allclose(logits, rows.next_logits()[0].numpy(), rtol=1e-4, atol=1e-4)
        rows.append(torch.tensor([token]))


@pytest.mark.parametrize("name", ["alibi", "embedding_norm"])
def test_a_model_that_the_kernel_does_not_know_writes_its_texts_in_one_pass(tmp_path: Path, name: str) -> None:
    model = make_model(name)
    config = Config(model=model.config, run_dir=str(tmp_path / "run"))
    create_imported_run(config, ByteTokenizer(), model.state_dict(), "nowhere")
    engine = open_model("run", tmp_path / "run", EngineOptions(), print, None).engine
    assert isinstance(engine, TorchTextEngine)
    passes: list[torch.Size] = []
    engine._model.register_forward_pre_hook(lambda _, inputs: passes.append(inputs[0].shape))
    visits = [{"prompt": [i] * (1 + i), "way": WAYS[i % 4], "seed": i, "stays": 9} for i in range(engine._n_row)]
    slots = [engine.join(make_request(visit)) for visit in visits]
    engine.step(slots, 1, 256)
    assert len(passes) == len(visits)  # prompts
    passes.clear()
    for _ in range(5):
        assert all(len(found) == 1 for found in engine.step(slots, 1, 256))
    assert passes == [(engine._n_row, 1)] * 5


def test_rows_are_taken_again_by_those_who_come_later() -> None:
    engine = TorchTextEngine(make_model("alibi"))
    visit = {"prompt": [1], "way": WAYS[0], "seed": 1, "stays": 3}
    for _ in range(5):
        slots = [engine.join(make_request(visit)) for _ in range(engine._n_row)]
        engine.step(slots, 1, 256)
    assert engine._tables is not None
    assert len(engine._tables) <= 2  # those of the next round come before the last ones go
    del slots
    assert all(len(table.free_rows) == engine._n_row for table in engine._tables)


def test_a_model_that_no_table_knows_is_written_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("learned")
    visit = {"prompt": list(range(15)), "way": WAYS[0], "seed": 1, "stays": 30}
    expected = alone(TorchTextEngine(model), visit)
    monkeypatch.setattr(type(STATIC_CACHE), "refusal", lambda *_: "an option")
    found = alone(TorchTextEngine(model), visit)
    assert [token for token, _ in found] == [token for token, _ in expected]
