"""The torch engine of `gpt serve`: many texts in a pass, each to the last bit what it is alone, for every model."""

from pathlib import Path
from types import SimpleNamespace
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
from gpt_cli.sampling.prompt import Opening
from gpt_cli.serve.generation_request import GenerationRequest
from gpt_cli.serve.model_registry import EngineOptions, open_model
from gpt_cli.serve.text_sequence import TextSequence
from gpt_cli.serve.torch_text_engine import TorchTextEngine
from gpt_cli.tokenizer import ByteTokenizer

pytestmark = pytest.mark.system

SIZE = {"n_layer": 2, "n_embd": 32, "n_head": 4, "context_length": 20, "zero_init": False, "init_std": 0.2}
MODELS: dict[str, dict[str, Any]] = {
    "alibi": {"position": "alibi"},
    "embedding_norm": {"embedding_norm": True, "norm_gain": False, "n_kv_head": 2},
    "window": {"window": 7},
    "learned": {"position": "learned"},
}
SAMPLING = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_k=5, repetition_penalty=1.3),
    SamplingParams(temperature=1.3, top_p=0.8),
]
CASE = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 255), min_size=1, max_size=30),
        "sampling": st.sampled_from(SAMPLING),
        "seed": st.integers(0, 2**40),
        "joins_at": st.integers(0, 30),
        "n_token": st.integers(1, 45),
    }
)


def make_model(name: str) -> GPT:
    torch.manual_seed(0)
    return GPT(ModelConfig(**(SIZE | MODELS[name])), 256).eval()


def make_sequence(case: dict[str, Any]) -> TextSequence:
    sampling = case["sampling"].replace({"seed": case["seed"], "max_new_tokens": case["n_token"]})
    model: Any = SimpleNamespace(tokenizer=ByteTokenizer())
    rules = ProcessorFactory(model.tokenizer, sampling)
    request = GenerationRequest(model, [case["prompt"]], sampling, n_top=0, rules=rules)
    nowhere: Any = None
    return TextSequence(request, Opening(case["prompt"]), nowhere)


def alone(engine: TorchTextEngine, case: dict[str, Any]) -> list[Any]:
    slot = engine.join(make_sequence(case))
    return [engine.step([slot], 1, 256)[0][0] for _ in range(case["n_token"])]


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=5)
@given(cases=st.lists(CASE, min_size=1, max_size=20), prompt_step=st.sampled_from([1, 30, 256]))
def test_a_text_is_the_same_bits_whoever_joins_and_leaves_beside_it(
    name: str, cases: list[dict[str, Any]], prompt_step: int
) -> None:
    model = make_model(name)
    engine = TorchTextEngine(model)
    slots: dict[int, Any] = {}
    generated: list[list[Any]] = [[] for _ in cases]
    for step in range(10_000):
        slots |= {i: engine.join(make_sequence(case)) for i, case in enumerate(cases) if case["joins_at"] == step}
        if not slots and all(case["joins_at"] <= step for case in cases):
            break
        active = list(slots)
        for i, new_tokens in zip(active, engine.step([slots[i] for i in active], 1, prompt_step), strict=True):
            generated[i] += new_tokens
            if len(generated[i]) == cases[i]["n_token"]:
                del slots[i]
    for case, new_tokens in zip(cases, generated, strict=True):
        expected = alone(TorchTextEngine(model), case)
        assert [token for token, _ in new_tokens] == [token for token, _ in expected]
        np.testing.assert_array_equal([logits for _, logits in new_tokens], [logits for _, logits in expected])


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_logits_are_those_of_the_sampler_within_the_context_and_past_it(name: str) -> None:
    model = make_model(name)
    case = {"prompt": list(range(15)), "sampling": SAMPLING[0], "seed": 1, "n_token": 40}
    rows = SequenceBatch(model, [case["prompt"]])
    for token, logits in alone(TorchTextEngine(model), case):
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
    cases = [
        {"prompt": [i] * (1 + i), "sampling": SAMPLING[i % 4], "seed": i, "n_token": 9} for i in range(engine._n_row)
    ]
    slots = [engine.join(make_sequence(case)) for case in cases]
    engine.step(slots, 1, 256)
    assert len(passes) == len(cases)  # prompts
    passes.clear()
    for _ in range(5):
        assert all(len(new_tokens) == 1 for new_tokens in engine.step(slots, 1, 256))
    assert passes == [(engine._n_row, 1)] * 5


def test_rows_are_taken_again_by_those_who_come_later() -> None:
    engine = TorchTextEngine(make_model("alibi"))
    case = {"prompt": [1], "sampling": SAMPLING[0], "seed": 1, "n_token": 3}
    for _ in range(5):
        slots = [engine.join(make_sequence(case)) for _ in range(engine._n_row)]
        engine.step(slots, 1, 256)
    assert engine._tables is not None
    assert len(engine._tables) <= 2  # those of the next round come before the last ones go
    del slots
    assert all(len(table.free_rows) == engine._n_row for table in engine._tables)


def test_a_model_that_no_table_knows_is_written_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("learned")
    case = {"prompt": list(range(15)), "sampling": SAMPLING[0], "seed": 1, "n_token": 30}
    expected = alone(TorchTextEngine(model), case)
    monkeypatch.setattr(type(STATIC_CACHE), "refusal", lambda *_: "an option")
    new_tokens = alone(TorchTextEngine(model), case)
    assert [token for token, _ in new_tokens] == [token for token, _ in expected]
