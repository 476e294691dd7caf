"""Several examples in one row: each has the loss, and gives the gradient, that it has alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.cli.main import main
from gpt_cli.config import Config, ModelConfig, parse_config
from gpt_cli.corpus.examples.tokens import COMPLETION, COMPLETION_END, PROMPT, Examples
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.errors import RequestError
from gpt_cli.model.gpt import GPT
from gpt_cli.model.packed_rows import unpack
from gpt_cli.runtime.device import Runtime
from gpt_cli.training.evaluate import IGNORED
from gpt_cli.training.example_batches import ExampleBatches, open_batches
from gpt_cli.training.example_rows import ExampleRows, first_fit
from gpt_cli.training.state import TrainingState
from gpt_cli.training.step import train_step
from gpt_cli.training.torch_engine import TorchEngine, packed_loss, token_loss

CPU = torch.device("cpu")
CONTEXT, VOCAB = 24, 17
MODELS: list[dict[str, Any]] = [
    {"position": "rope"},
    {"position": "learned", "norm": "layernorm", "bias": True},
    {"position": "sinusoidal"},
    {"position": "alibi"},
    {"position": "none", "window": 4},
    {"n_kv_head": 1, "window": 5},
    {"position": "alibi", "window": 3},
]


def make_model(options: dict[str, Any]) -> GPT:
    torch.manual_seed(3)
    model = GPT(ModelConfig(n_layer=2, n_head=2, n_embd=16, context_length=CONTEXT, zero_init=False, **options), VOCAB)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@st.composite
def example_rows(draw: st.DrawFn) -> ExampleRows:
    """Examples of 2 to CONTEXT + 1 tokens, each with a prompt and a completion."""
    lengths = draw(st.lists(st.integers(2, CONTEXT + 1), min_size=1, max_size=12))
    ids = np.random.default_rng(draw(st.integers(0, 99))).integers(0, VOCAB, sum(lengths)).astype(np.uint16)
    kinds = []
    for length in lengths:
        prompt = draw(st.integers(1, length - 1))
        kinds += [PROMPT] * prompt + [COMPLETION] * (length - prompt - 1) + [COMPLETION_END]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    config = parse_config("", "t", [f"model.context_length={CONTEXT}", "data.format=pairs"])
    return ExampleRows.of(config, Examples(ids, starts, np.array(kinds, dtype=np.uint8), "."), "training", print)


@pytest.mark.parametrize("options", MODELS, ids=str)
@settings(max_examples=6, deadline=None)
@given(rows=example_rows())
def test_padded_and_packed_examples_have_the_loss_that_each_has_alone(
    options: dict[str, Any], rows: ExampleRows
) -> None:
    model = make_model(options).double()
    chosen = list(range(len(rows)))
    alone = sum(token_loss(model, *rows.tensors([row], int(rows.widths[row]), CPU), "sum") for row in chosen)
    padded = token_loss(model, *rows.tensors(chosen, int(rows.widths.max()), CPU), "sum")
    positions = first_fit(rows.widths.tolist(), CONTEXT)
    packed = packed_loss(model, *rows.packed(chosen, positions, (1 + max(positions)[0], CONTEXT), CPU), "sum")
    assert isinstance(alone, torch.Tensor)
    expected = torch.autograd.grad(alone, model.parameters())
    for loss in (padded, packed):
        torch.testing.assert_close(loss, alone, rtol=1e-6, atol=1e-6)
        for actual, gradient in zip(torch.autograd.grad(loss, model.parameters()), expected, strict=True):
            torch.testing.assert_close(actual, gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_what_stands_in_an_example_changes_no_bit_of_its_neighbours(options: dict[str, Any]) -> None:
    model = make_model(options).eval()
    tokens = torch.randint(0, VOCAB, (3, CONTEXT), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[:, 9:15] = (tokens[:, 9:15] + 5) % VOCAB  # the second of three
    actual = []
    for rows in (tokens, changed):
        marked = rows.clone()
        for start in (0, 9, 15):
            marked[:, start] = ~marked[:, start]
        ids, what_sees_what = unpack(marked)
        assert ids.equal(rows)
        with torch.no_grad():
            actual.append(model(ids, what_sees_what))
    assert actual[0][:, :9].equal(actual[1][:, :9])
    assert actual[0][:, 15:].equal(actual[1][:, 15:])
    assert not actual[0][:, 9:15].equal(actual[1][:, 9:15])


@given(widths=st.lists(st.integers(1, 50), min_size=1, max_size=60))
def test_rows_overlap_nowhere_and_are_few(widths: list[int]) -> None:
    positions = first_fit(widths, 50)
    occupied = np.zeros((1 + max(positions)[0], 50), dtype=int)
    for width, (row, at) in zip(widths, positions, strict=True):
        assert at + width <= 50
        occupied[row, at : at + width] += 1
    assert occupied.max() == 1
    assert len(occupied) <= 11 / 9 * max(1, sum(widths) / 50) + 1 + len(widths) / 2
    assert sum(sum(row) <= 25 for row in occupied) <= 1  # two half empty rows would be one


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"{i} {'.' * (i % 5)}", "completion": "ab" * (1 + i * 7 % 11)} for i in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def config_of(path: Path, *overrides: str) -> Config:
    sizes = ("model.n_layer=2", "model.n_head=2", "model.n_embd=32", "model.context_length=40", "train.batch_size=6")
    return parse_config("", "t", [f"data.source={path}", "data.format=pairs", *sizes, *overrides])


@pytest.mark.system
@pytest.mark.parametrize(("size", "compile_mode"), [(6, None), (2, None), (6, "default")])
def test_a_step_of_packed_rows_is_that_of_the_same_examples_padded(
    pairs: Path, size: int, compile_mode: str | None
) -> None:
    config = config_of(pairs, "data.packing=true", "runtime.engine=torch", f"train.micro_batch_size={size}")
    corpus = prepare_corpus(config.data, config.tokenizer, note=print)
    runtime = Runtime(CPU, "fp32", 1)
    batches = open_batches(config, corpus, CPU, print)
    assert isinstance(batches, ExampleBatches)
    packed, chosen = batches.at(0), batches.indices(0)
    assert len(packed) == 6 // size
    rows = torch.cat([inputs for inputs, _ in packed])
    assert rows.shape[1] == 40
    assert len(rows) < 6
    assert int((rows < 0).sum()) == 6
    groups = [chosen[i : i + size] for i in range(0, 6, size)]
    padded = [batches.rows.tensors(group, int(batches.rows.widths[group].max()), CPU) for group in groups]
    actual = []
    for micro_batches in (packed, padded):
        state = TrainingState.initialize(config, corpus.tokenizer.vocab_size, runtime, print)
        engine = TorchEngine(
            state.model, runtime, state.grad_scaler, print, compile_mode, backend="aot_eager", packed=True
        )
        object.__setattr__(state, "engine", engine)
        loss, norms = train_step(state, micro_batches, config, 0, 0.0, runtime)
        assert engine.loss is not engine.eager or compile_mode is None
        actual.append(torch.cat([loss[None], norms]))
    torch.testing.assert_close(actual[0], actual[1], rtol=2e-5, atol=1e-7)


def test_an_epoch_of_packed_rows_has_each_example_once_and_filling_is_no_target(pairs: Path) -> None:
    config = config_of(pairs, "data.packing=true")
    batches = open_batches(config, prepare_corpus(config.data, config.tokenizer, note=print), CPU, print)
    assert isinstance(batches, ExampleBatches)
    n = len(batches.rows)
    indices = [row for step in range(n) for row in batches.indices(step)]  # 6 epochs
    assert np.bincount(indices, minlength=n).tolist() == [6] * n
    counts = batches.rows.count_targets()
    for step in range(20):
        assert sum(int((t != IGNORED).sum()) for _, t in batches.at(step)) == counts[batches.indices(step)].sum()


def test_packing_is_refused_where_it_is_not_known(pairs: Path) -> None:
    with pytest.raises(RequestError, match=r"data\.packing is for data\.format pairs and chat"):
        parse_config("", "t", ["data.packing=true"])
    config = config_of(pairs, "data.packing=true", "model.attention_dropout=0.1")
    corpus = prepare_corpus(config.data, config.tokenizer, note=print)
    with pytest.raises(RequestError, match=r"data\.packing does not know model\.attention_dropout: 0\.1"):
        open_batches(config, corpus, CPU, print)
    config = config_of(pairs, "data.packing=true", "runtime.engine=native")
    with pytest.raises(RequestError, match=r"it does not know data\.packing: true"):
        TrainingState.initialize(config, corpus.tokenizer.vocab_size, Runtime(CPU, "fp32", 1), print)


def test_a_packed_run_learns_and_resumes_bit_for_bit(
    tmp_path: Path, pairs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(f"data: {{source: {pairs}, format: pairs, packing: true}}\n", encoding="utf-8")
    keys = [f"{section}.every={interval}" for section, interval in (("eval", 5), ("checkpoint", 5), ("sample", "null"))]
    sizes = ["model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.context_length=40", "train.batch_size=6"]

    def train(*overrides: str) -> dict[str, Any]:
        assert main(["train", "--config", "c.yaml", *keys, *sizes, "schedule.kind=constant", *overrides, "--json"]) == 0
        actual: dict[str, Any] = json.loads(capsys.readouterr().out)
        return actual

    uninterrupted = train("run_dir=whole", "train.steps=10")
    train("run_dir=halves", "train.steps=5")
    assert train("run_dir=halves", "train.steps=10")["weights_sha256"] == uninterrupted["weights_sha256"]
