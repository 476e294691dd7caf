"""A language model of Transformers learns to classify: from its own weights, and resumed exactly."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt_cli.cli.main import main
from gpt_cli.run.checkpoint import list_checkpoints, load
from gpt_cli.run.load_model import load_model
from gpt_cli.tokenizer import ByteTokenizer

pytestmark = pytest.mark.system

transformers = pytest.importorskip("transformers", reason="the extra [hf] is not installed")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 24,
         "intermediate_size": 32, "vocab_size": ByteTokenizer().vocab_size}  # fmt: skip
THEIRS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=2, n_positions=24, vocab_size=ByteTokenizer().vocab_size
    ),
    "llama": lambda: transformers.LlamaConfig(**SIZES, num_key_value_heads=1),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, num_key_value_heads=1, head_dim=8),
}
FURTHER = ("data.format=labelled", "sample.every=null", "train.batch_size=6", "runtime.threads=1")
HOW = {"all": (), "head": ("task.trains=head",), "lora": ("lora.rank=2",)}


@pytest.fixture(scope="module", params=THEIRS)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A random model of theirs as a run, and the model."""
    directory = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(THEIRS[request.param]()).eval()
    model.save_pretrained(directory / "theirs")
    ByteTokenizer().save(directory / "theirs" / "tokenizer.json")
    assert main(["import", "hf", str(directory / "theirs"), str(directory / "run")]) == 0
    return directory / "run", model


def write_texts(path: Path) -> None:
    rows = [{"text": f"{word} {i}", "label": word[0]} for i in range(30) for word in ("fig", "iron", "owl")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def weights_of(run: Path) -> tuple[dict[str, torch.Tensor], str]:
    newest = load(list_checkpoints(run)[0])
    return dict(newest.model_tensors), newest.weights_sha256


@pytest.mark.parametrize("trained_part", HOW)
def test_it_begins_with_their_weights_trains_what_is_asked_and_resumes_exactly(
    imported: tuple[Path, Any], trained_part: str, tmp_path: Path
) -> None:
    base, _ = imported
    write_texts(tmp_path / "texts.jsonl")
    keys = ["train", "--config", str(base / "config.yaml"), "task.kind=classes", f"data.source={tmp_path}/texts.jsonl"]
    keys += [
        *FURTHER,
        f"train.init_from={base}",
        "eval.every=null",
        *HOW[trained_part],
        "checkpoint.every=2",
        "checkpoint.keep=9",
        "train.steps=4",
    ]
    assert main([*keys, f"run_dir={tmp_path / 'whole'}"]) == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step-00000004")
    assert main([*keys, f"run_dir={tmp_path / 'parts'}"]) == 0
    (after, digest), (before, _) = weights_of(tmp_path / "whole"), weights_of(base)
    assert weights_of(tmp_path / "parts")[1] == digest
    blocks = set(after) - {"head.weight"}
    assert blocks == set(before) - {"head.weight"}
    changed = {name for name in blocks if not after[name].equal(before[name])}
    lora = {name for name in blocks if name.endswith(("qkv.weight", "out.weight"))}
    assert changed == {"all": blocks, "head": set(), "lora": lora}[trained_part]


def test_its_features_are_those_that_their_head_would_read(imported: tuple[Path, Any], tmp_path: Path) -> None:
    base, theirs = imported
    write_texts(tmp_path / "texts.jsonl")
    keys = ["train", "--config", str(base / "config.yaml"), "task.kind=classes", f"data.source={tmp_path}/texts.jsonl"]
    keys += [*FURTHER, f"train.init_from={base}"]
    assert main([*keys, "task.trains=head", "train.steps=1", f"run_dir={tmp_path / 'run'}"]) == 0
    run = load_model(tmp_path / "run", torch.device("cpu"), print, "classes")
    tokens = torch.tensor([list(b"a pear, an apple")])
    with torch.no_grad():
        state = theirs(tokens, output_hidden_states=True).hidden_states[-1][0, -1]
        ours = run.model.features(tokens)[0, -1]
        torch.testing.assert_close(ours, state, rtol=1e-4, atol=1e-5)
