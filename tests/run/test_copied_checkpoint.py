"""A checkpoint directory is the whole model: copied anywhere, it samples as the run does."""

import shutil
from pathlib import Path

import pytest
import torch

from gpt_cli.cli.main import main
from gpt_cli.run.checkpoint import save
from gpt_cli.run.load_model import load_model
from tests.support.export_models import GPT2, NANOCHAT, TOKENIZERS, greedy, make_run

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["char with <unk>", "byte", "bpe as gpt4"])
@pytest.mark.parametrize("options", [{}, {**GPT2, "tie_embeddings": True}], ids=["untied", "tied"])
def test_it_samples_and_evaluates_as_the_run_does_wherever_it_is(options, kind, tmp_path, capsys):
    run = make_run(options, TOKENIZERS[kind])
    checkpoint = save(tmp_path / "run", 7, run.model.state_dict(), {}, {"val_loss": 1.5}, run.config, run.tokenizer)
    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    model, expected = load_model(copy, CPU, print), load_model(checkpoint, CPU, print)
    assert model.weights_sha256 == expected.weights_sha256
    assert (model.tokenizer, model.config, model.step, model.state["val_loss"]) == (run.tokenizer, run.config, 7, 1.5)
    texts = []
    for source in (copy, checkpoint):
        assert main(["sample", "--run", str(source), "--prompt", "ab", "--seed", "1", "--max-new-tokens", "9"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert main(["export", str(copy), "--to", "hf", str(tmp_path / "hf")]) == 0


def test_a_file_that_is_no_model_is_told(tmp_path: Path):
    (tmp_path / "x.safetensors").write_bytes(b"\x00" * 9)
    assert main(["sample", "--run", str(tmp_path / "x.safetensors")]) == 2


def test_a_model_that_only_torch_computes_is_sampled_by_it(tmp_path, capsys):
    run = make_run(NANOCHAT, TOKENIZERS["byte"])
    checkpoint = save(tmp_path / "run", 7, run.model.state_dict(), {}, {}, run.config, run.tokenizer)
    sample = ["sample", "--run", str(checkpoint), "--prompt", "ab", "--temperature", "0", "--max-new-tokens", "9"]
    assert main(sample) == 0
    assert capsys.readouterr().out == f"ab{greedy(run, 'ab', 9)}".rstrip("\n") + "\n"
    assert main([*sample, "--engine", "native"]) == 2
    assert "does not go with model.norm_gain: false" in capsys.readouterr().err
