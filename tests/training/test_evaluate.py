"""The exact loss: every token once, whatever the windows per pass, without touching randomness."""

import json
import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpt_cli.cli.main import main
from gpt_cli.config import Config, ModelConfig
from gpt_cli.errors import UserError
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import save
from gpt_cli.runtime.device import Runtime
from gpt_cli.tokenizer import ByteTokenizer
from gpt_cli.training.evaluate import EvalMetrics, EvaluationText, evaluate
from gpt_cli.training.grad_scaler import GradScaler
from gpt_cli.training.torch_engine import TorchEngine

RUNTIME = Runtime(torch.device("cpu"), "fp32", threads=1)


def test_a_damaged_checkpoint_is_reported_once(tmp_path, capsys) -> None:
    config, tokenizer = Config(model=ModelConfig(n_layer=1, n_head=1, n_embd=8, context_length=8)), ByteTokenizer()
    tensors = GPT(config.model, tokenizer.vocab_size).state_dict()
    for step in (1, 2):
        checkpoint = save(tmp_path / "run", step, tensors, {}, {}, config, tokenizer)
    (checkpoint / "model.safetensors").write_bytes(b"broken")
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "book.txt").write_text("the king\n" * 9)
    assert main(["eval", str(tmp_path / "run"), "--text", str(tmp_path / "book.txt"), "--device", "cpu"]) == 0
    assert capsys.readouterr().err.count("it is skipped") == 1


def make_model() -> GPT:
    torch.manual_seed(0)
    return GPT(ModelConfig(n_layer=1, n_embd=32, context_length=8, zero_init=False, init_std=0.3, dropout=0.5), 256)


def text_ids(text: str) -> np.ndarray:
    return np.array(list(text.encode()), dtype=np.uint16)


def losses(model: GPT, ids: np.ndarray, batch_size: int | None = None, max_tokens: int | None = None) -> EvalMetrics:
    engine = TorchEngine(model, RUNTIME, GradScaler(False), print)
    return evaluate(model, engine, EvaluationText.of(ids, ByteTokenizer(), RUNTIME.device, max_tokens), batch_size)


def reference_loss(model: GPT, ids: np.ndarray) -> float:
    """One window at a time, one log-probability at a time."""
    model.eval()
    tokens = torch.from_numpy(ids.astype(np.int64))
    total = 0.0
    for start in range(0, len(tokens) - 1, 8):
        window = tokens[start : start + 9]
        log_probabilities = model(window[None, :-1])[0].double().log_softmax(-1)
        total -= sum(log_probabilities[i, target].item() for i, target in enumerate(window[1:]))
    return total / (len(tokens) - 1)


@pytest.mark.parametrize("n_token", [2, 8, 9, 10, 17, 100])
@pytest.mark.parametrize(("batch_size", "dtype"), [(1, np.uint32), (3, np.uint16), (None, np.uint32)])
def test_it_is_the_mean_over_every_token_but_the_first(n_token, batch_size, dtype):
    model, ids = make_model(), np.random.default_rng(n_token).integers(256, size=n_token, dtype=dtype)
    evaluation = losses(model, ids, batch_size)
    assert evaluation.tokens == evaluation.of_tokens == n_token - 1
    assert evaluation.loss == pytest.approx(reference_loss(model, ids), rel=1e-5)


@pytest.mark.parametrize("max_tokens", [1, 7, 8, 20, 60])
def test_a_cap_evaluates_the_beginning_of_the_text_and_says_of_how_much(max_tokens):
    model, ids = make_model(), np.random.default_rng(0).integers(256, size=51, dtype=np.uint16)
    actual, expected = losses(model, ids, 2, max_tokens), losses(model, ids[: max_tokens + 1], 2)
    assert (actual.loss, actual.bytes, actual.tokens) == (expected.loss, expected.bytes, expected.tokens)
    assert (actual.tokens, actual.of_tokens) == (min(max_tokens, 50), 50)


def test_it_leaves_the_random_state_and_the_mode_of_the_model_alone():
    model = make_model().train()
    old_state = torch.get_rng_state()
    assert len({losses(model, text_ids("to be or not to be")).loss for _ in range(2)}) == 1
    assert model.training
    assert torch.get_rng_state().equal(old_state)


def test_a_uniform_model_costs_eight_bits_per_byte_and_more_per_character_of_many_bytes():
    model = make_model()
    torch.nn.init.zeros_(model.head.weight)
    text = "aé漢🙂" * 10
    evaluation = losses(model, text_ids("x" + text))
    assert evaluation.loss == pytest.approx(math.log(256), rel=1e-6)
    assert evaluation.perplexity == pytest.approx(256, rel=1e-5)
    assert (evaluation.bytes, evaluation.characters) == (len(text.encode()), len(text))
    assert evaluation.bpb == pytest.approx(8.0)
    assert evaluation.bpc == pytest.approx(8.0 * (1 + 2 + 3 + 4) / 4)


def test_a_text_of_one_token_is_an_error():
    with pytest.raises(UserError, match="leaves nothing to predict"):
        losses(make_model(), text_ids("a"))


def test_perplexity_of_a_hopeless_model_is_large_not_an_overflow():
    assert EvalMetrics(loss=1e6, tokens=1, of_tokens=1, characters=1, bytes=1).perplexity > 1e300


class Reads(TorchDispatchMode):
    """Counts how often a number is asked of a tensor, for which a GPU would be waited for."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_no_window_is_waited_for(monkeypatch):
    model, ids = make_model(), np.random.default_rng(0).integers(256, size=100, dtype=np.uint16)
    lists, tolist = [], torch.Tensor.tolist  # which no dispatch sees on a CPU
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: lists.append(tensor.shape) or tolist(tensor))
    with Reads() as reads:
        torch.ones(2).sum().item()
        losses(model, ids, batch_size=1)
    assert reads.count == 1  # the one of this test
    n_windows = -(-99 // model.config.context_length)
    assert n_windows > 2
    assert lists == [(n_windows,)]  # all losses at the end


@pytest.mark.parametrize(
    "tokenizer",
    [
        ["tokenizer.kind=char"],
        ["tokenizer.kind=byte"],
        ["tokenizer.vocab_size=270"],
        ["tokenizer.vocab_size=270", "tokenizer.allow_special=true"],
        ["tokenizer.file=ready.json"],
    ],
    ids=["char", "byte", "bpe", "special", "bpe without an end of text"],
)
def test_documents_that_are_given_cost_what_they_cost_as_the_validation_split(gpt_here, tmp_path, tokenizer):
    ends = ("", "\n", "\n\n", " <|endoftext|> and")
    documents = [f"the king and the queen {n} went\nto the town{end}" for n in range(40) for end in ends]
    (tmp_path / "docs.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in documents))
    assert gpt_here("tokenize", "docs.jsonl", "--kind", "bpe", "--vocab-size", "270", "--out", "store").rc == 0
    ready = (tmp_path / "store" / "tokenizer.json").read_text()
    (tmp_path / "ready.json").write_text(ready.replace("<|endoftext|>", "<|another|>"))
    shape = ["model.n_layer=1", "model.n_head=1", "model.n_embd=8", "model.context_length=8", "train.steps=3"]
    overrides = [*shape, *tokenizer, "data.val_source=docs.jsonl", "sample.every=null", "run_dir=runs/docs"]
    outcome = gpt_here("train", "docs.jsonl", *overrides)
    assert outcome.rc == 0, outcome.stderr
    own, given = (
        {**json.loads(gpt_here("eval", "runs/docs", "--json", *text).stdout), "text": ""}
        for text in ([], ["--text", "docs.jsonl"])
    )
    assert own == given


def test_documents_are_evaluated_without_the_newline_that_the_vocabulary_lacks(gpt_here, tmp_path):
    (tmp_path / "one.txt").write_text("abba" * 100)
    (tmp_path / "more.jsonl").write_text("\n".join(json.dumps({"text": "ab"}) for _ in range(9)))
    shape = ["model.n_layer=1", "model.n_head=1", "model.n_embd=8", "model.context_length=8", "train.steps=1"]
    assert gpt_here("train", "one.txt", *shape, "sample.every=null", "run_dir=runs/one").rc == 0
    outcome = gpt_here("eval", "runs/one", "--text", "more.jsonl", "--json")
    assert json.loads(outcome.stdout)["characters"] == 17
