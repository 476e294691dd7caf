"""One file is the whole model: it samples as the run does, and a bit of it that flips is noticed."""

from pathlib import Path

import pytest
import safetensors.torch
import torch

from gpt_cli.cli.main import main
from gpt_cli.errors import UserError
from gpt_cli.run.checkpoint import save
from gpt_cli.run.load_model import load_model
from gpt_cli.run.one_file_run import load_single
from tests.support.export_models import GPT2, NANOCHAT, TOKENIZERS, greedy, make_run

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["char with <unk>", "byte", "bpe as gpt4"])
@pytest.mark.parametrize("options", [{}, {**GPT2, "tie_embeddings": True}], ids=["untied", "tied"])
def test_it_samples_and_evaluates_as_the_run_does_wherever_it_is(options, kind, tmp_path, capsys):
    run = make_run(options, TOKENIZERS[kind])
    checkpoint = save(tmp_path / "run", 7, run.model.state_dict(), {}, {"val_loss": 1.5}, run.config, run.tokenizer)
    file = tmp_path / "model.safetensors"
    assert main(["export", str(checkpoint), "--to", "checkpoint", str(file)]) == 0
    model, expected = load_model(file, CPU, print), load_model(checkpoint, CPU, print)
    assert model.weights_sha256 == expected.weights_sha256
    assert (model.tokenizer, model.config, model.step, model.state["val_loss"]) == (run.tokenizer, run.config, 7, 1.5)
    capsys.readouterr()
    texts = []
    for source in (file, checkpoint):
        assert main(["sample", "--run", str(source), "--prompt", "ab", "--seed", "1", "--max-new-tokens", "9"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert main(["export", str(file), "--to", "hf", str(tmp_path / "hf")]) == 0
    assert main(["export", str(checkpoint), "--to", "checkpoint", str(file)]) == 2
    assert main(["export", str(checkpoint), "--to", "checkpoint", str(tmp_path / "model.bin")]) == 2


def test_a_flipped_bit_and_a_foreign_file_are_noticed(tmp_path):
    run = make_run({}, TOKENIZERS["byte"])
    save(tmp_path / "run", 7, run.model.state_dict(), {}, {}, run.config, run.tokenizer)
    file = tmp_path / "model.safetensors"
    assert (
        main(["export", str(tmp_path / "run" / "checkpoints" / "step-00000007"), "--to", "checkpoint", str(file)]) == 0
    )
    data = file.read_bytes()
    for offset in (2, 40, len(data) // 2, len(data) - 1):
        damaged = bytearray(data)
        damaged[offset] ^= 4
        file.write_bytes(damaged)
        with pytest.raises(UserError):
            load_single(file)
    safetensors.torch.save_file({"a": torch.zeros(3)}, file)
    with pytest.raises(UserError, match="not a model of gpt"):
        load_single(file)
    assert main(["sample", "--run", str(file)]) == 1


def test_a_file_that_is_no_model_is_told(tmp_path: Path):
    (tmp_path / "x.safetensors").write_bytes(b"\x00" * 9)
    assert main(["sample", "--run", str(tmp_path / "x.safetensors")]) == 1


def test_a_model_that_only_torch_computes_is_sampled_by_it(tmp_path, capsys):
    run = make_run(NANOCHAT, TOKENIZERS["byte"])
    checkpoint = save(tmp_path / "run", 7, run.model.state_dict(), {}, {}, run.config, run.tokenizer)
    sample = ["sample", "--run", str(checkpoint), "--prompt", "ab", "--temperature", "0", "--max-new-tokens", "9"]
    assert main(sample) == 0
    assert capsys.readouterr().out == f"ab{greedy(run, 'ab', 9)}".rstrip("\n") + "\n"
    assert main([*sample, "--engine", "native"]) == 2
    assert "does not go with model.norm_gain: false" in capsys.readouterr().err
