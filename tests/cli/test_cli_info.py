"""`gpt info`: the figures are those of the model that would be, or was, trained; asking changes nothing."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt_cli.cli.main import main
from gpt_cli.config import Config, load_config
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.distributed.shard import Shard
from gpt_cli.distributed.world import World
from gpt_cli.errors import RequestError
from gpt_cli.model.gpt import GPT
from gpt_cli.report.info_view import render_info
from gpt_cli.run.checkpoint import save
from gpt_cli.run.directory import RunDirectory
from gpt_cli.run.model_info import Info, info_of_config, info_of_run
from gpt_cli.search.dry_run import plan
from gpt_cli.training.batches import Batches
from gpt_cli.training.device_share import device_share
from gpt_cli.training.device_tokens import DeviceTokens
from gpt_cli.training.optim import MuonAdamW, state_parts
from tests.support.command import ROOT

TEXT = "the quick brown fox jumps over the lazy dog. " * 40


def ignore(text: str) -> None:
    """Take a note."""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    (tmp_path / "fox.txt").write_text(TEXT)
    file = tmp_path / "fox.yaml"
    file.write_text(
        f"data: {{source: {tmp_path / 'fox.txt'}}}\n"
        f"run_dir: {tmp_path / 'run'}\n"
        "model: {n_layer: 3, n_head: 2, n_embd: 16, context_length: 8, bias: true, norm: layernorm}\n"
        "train: {batch_size: 4}\n"
    )
    return file


@pytest.fixture
def run(config_file: Path) -> Path:
    """A run that was opened and has saved nothing yet."""
    config = load_config(config_file)
    with RunDirectory.open_for_training(config, prepare_corpus(config.data, config.tokenizer, note=ignore)) as run:
        return run.path


def model_of(config: Config) -> GPT:
    return GPT(config.model, len(set(TEXT)))


def save_step(run: Path, step: int, val_loss: float | None = None) -> Path:
    config = load_config(run / "config.yaml")
    tokenizer = prepare_corpus(config.data, config.tokenizer, note=ignore).tokenizer
    state = {} if val_loss is None else {"val_loss": val_loss}
    return save(run, step, model_of(config).state_dict(), {}, state, config, tokenizer)


def test_the_table_adds_up_to_the_parameters_of_the_model(config_file: Path) -> None:
    info = info_of_config(config_file, [], ignore)
    model = model_of(load_config(config_file))
    assert info.vocab_size == len(set(TEXT))
    assert info.parameters == sum(p.numel() for p in model.parameters())
    assert sum(group.parameters for group in info.parameter_table) == info.parameters
    assert sum(group.tensors for group in info.parameter_table) == len(list(model.parameters()))
    assert len({group.name for group in info.parameter_table}) == len(info.parameter_table)
    assert info.memory_bytes["weights"] == 4 * info.parameters
    assert info.tokens_per_step == 4 * 8


def test_the_head_of_classes_that_the_data_tells_is_counted_as_in_a_dry_run(tmp_path: Path) -> None:
    texts = [{"text": f"it is {n}", "label": ("good", "bad", "odd")[n % 3]} for n in range(60)]
    (tmp_path / "marks.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    file = tmp_path / "classes.yaml"
    file.write_text(f"data: {{source: {tmp_path / 'marks.jsonl'}}}\ntask: {{kind: classes}}\nmodel: {{n_embd: 16}}\n")
    info = info_of_config(file, ["model.n_layer=1", "model.n_head=1"], ignore)
    assert info.parameter_table[-1].shape == (3, 16)
    assert info == replace(plan(load_config(file, ["model.n_layer=1", "model.n_head=1"]), ignore).info, path=str(file))


def test_overrides_change_the_figures(config_file: Path) -> None:
    three, six = (info_of_config(config_file, [f"model.n_layer={n}"], ignore) for n in (3, 6))
    blocks = sum(group.parameters for group in three.parameter_table if group.name.startswith("blocks."))
    assert six.parameters - three.parameters == blocks


def test_gpt2_small_has_its_published_size_and_needs_no_text_to_say_so(tmp_path: Path) -> None:
    file = tmp_path / "gpt2.yaml"
    file.write_text(
        "data: {source: not-here.txt}\n"
        "tokenizer: {kind: bpe, vocab_size: 50257}\n"
        "model: {n_layer: 12, n_head: 12, n_embd: 768, context_length: 1024, position: learned, norm: layernorm,\n"
        "        mlp: gelu, qk_norm: false, bias: true, tie_embeddings: true}\n"
    )
    assert info_of_config(file, [], ignore).parameters == 124_439_808


def test_asking_about_a_config_leaves_nothing_behind(
    config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPT_CACHE", str(tmp_path / "cache"))
    before = sorted(tmp_path.rglob("*"))
    info_of_config(config_file, [], ignore)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_without_a_checkpoint_has_the_figures_of_its_config(config_file: Path, run: Path) -> None:
    info = info_of_run(run, ignore)
    assert info == Info(**{**vars(info_of_config(config_file, [], ignore)), "path": str(run)})
    assert info.step is None


def test_a_run_is_as_far_as_its_newest_intact_checkpoint(run: Path) -> None:
    save_step(run, 10, val_loss=1.25)
    older, damaged = save_step(run, 20, val_loss=1.5), save_step(run, 30)
    (damaged / "model.safetensors").write_bytes(b"broken")
    notes: list[str] = []
    info = info_of_run(run, notes.append)
    assert (info.step, info.val_loss, info.checkpoint) == (20, 1.5, str(older))
    assert info.weights_sha256 == hashlib.sha256((older / "model.safetensors").read_bytes()).hexdigest()
    assert len(notes) == 1
    assert str(damaged) in notes[0]


def test_a_checkpoint_copied_anywhere_tells_what_it_is(run: Path, tmp_path: Path) -> None:
    copy = save_step(run, 10, val_loss=1.25).rename(tmp_path / "copied")
    assert (info_of_run(copy, ignore).step, info_of_run(copy, ignore).val_loss) == (10, 1.25)


def test_the_text_shows_every_figure(run: Path) -> None:
    save_step(run, 1000, val_loss=1.25)
    info = info_of_run(run, ignore)
    text = render_info(info)
    for figure in (
        f"{info.parameters:,}",
        f"{info.flops_per_token:,} FLOPs per token",
        f"{info.vocab_size} ids (char)",
        "8 tokens",
        "4 sequences, 32 tokens",
        "1,000 steps, validation loss 1.2500",
        str(info.weights_sha256),
        "blocks.*.attention.qkv.weight",
    ):
        assert figure in text


def test_the_verb_answers_for_configs_and_runs(gpt_here: Callable[..., Any], config_file: Path, run: Path) -> None:
    as_json = gpt_here("info", config_file, "--json")
    assert (as_json.rc, as_json.stderr) == (0, "")
    assert json.loads(as_json.stdout) == json.loads(json.dumps(asdict(info_of_config(config_file, [], ignore))))
    as_text = gpt_here("info", run)
    assert (as_text.rc, as_text.stdout) == (0, render_info(info_of_run(run, ignore)) + "\n")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nowhere"], "error: there is no run at nowhere"),
        (["nowhere.yaml"], "error: there is no config file nowhere.yaml"),
        ([], "error: no run found"),
        (["run", "model.n_layer=2"], "error: model.n_layer=2 is for a config file"),
    ],
)
def test_a_wrong_request_is_refused_with_code_2(
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    error: str,
) -> None:
    monkeypatch.chdir(run.parent)
    assert main(["info", *arguments]) == 2
    assert capsys.readouterr().err.startswith(error)


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("extra", [[], ["optim.name=adamw"], ["optim.ema=0.9"]])
def test_each_device_keeps_what_its_optimizer_allocates(config_file: Path, extra: list[str]) -> None:
    overrides = ["train.batch_size=8", "train.micro_batch_size=1", *extra]
    config = load_config(config_file, overrides)
    model = model_of(config)
    share = device_share(config, len(set(TEXT)), 4)
    parameters = dict(model.named_parameters())
    parts = state_parts({name: p.shape for name, p in parameters.items()}, config.optim, 4)
    sizes = []
    for rank in range(4):
        shard = Shard(parameters, World(rank, 4), parts)
        optimizer = MuonAdamW(model, config.optim, zeros=shard.zeros, parameters=shard.optimized)
        sizes.append(sum(t.nbytes for name, t in optimizer.state_tensors().items() if "/" in name and not t.is_meta))
    average = 0 if config.optim.ema is None else sum(p.nbytes for p in parameters.values())
    assert share.memory_bytes["optimizer"]["optimizer"] == max(sizes) + average
    assert share.memory_bytes["none"]["optimizer"] == sum(sizes) + average
    assert (share.sequences, share.micro_batch_size, share.micro_batches) == (2, 1, 2)
    assert share.bytes_sent == 2 * 3 / 4 * sum(p.nbytes for p in parameters.values())


def test_one_device_has_what_training_takes_and_sends_nothing(config_file: Path) -> None:
    info = info_of_config(config_file, [], ignore)
    share = device_share(load_config(config_file), info.vocab_size, 1)
    assert share.totals["none"] == sum(info.memory_bytes.values())
    assert share.bytes_sent == 0


def test_devices_that_training_would_refuse_are_refused_in_the_same_words(
    config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", str(config_file), "--devices", "3"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    config = load_config(config_file)
    corpus = prepare_corpus(config.data, config.tokenizer, note=ignore)
    with pytest.raises(RequestError) as refused:
        Batches.of(config, DeviceTokens(corpus.train, torch.device("cpu")), World(0, 3))
    assert str(refused.value.message) in output


def test_a_run_has_no_devices_to_plan(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(run), "--devices", "2"]) == 2
    assert "--devices is for a config file" in capsys.readouterr().err


def test_what_the_page_on_scaling_shows_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    examples = re.findall(r"^\$ gpt (info \S+ .*)\n\.\.\.\n([^`]+)", page, re.MULTILINE)
    assert len(examples) == 2
    for command, text in examples:
        assert main(command.replace("configs/", f"{ROOT}/configs/").split()) == 0
        printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert "\n".join(printed).endswith(text.rstrip())
