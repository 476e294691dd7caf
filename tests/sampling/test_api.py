"""The Python API: `gpt_cli.load(run).generate(prompt)`, and an import that costs nothing."""

import inspect
import logging
import shutil
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

import gpt_cli
from gpt_cli.config import Config, ModelConfig, SampleConfig
from gpt_cli.cpu.common import kernel
from gpt_cli.errors import RequestError
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import save
from gpt_cli.tokenizer import CharTokenizer, UnknownCharacters
from tests.support.command import ROOT


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = Config(
        model=ModelConfig(n_layer=1, n_head=2, n_embd=16, context_length=8),
        sample=SampleConfig(max_new_tokens=30, temperature=1.0),
    )
    tokenizer = CharTokenizer("\n abcdefgh")
    model = GPT(config.model, tokenizer.vocab_size)
    return save(tmp_path_factory.mktemp("run"), 1, model.state_dict(), {}, {}, config, tokenizer)


def test_importing_the_package_imports_no_heavy_library() -> None:
    code = (
        "import sys, gpt_cli; gpt_cli.__version__, gpt_cli.load\n"
        "print({'torch', 'numpy', 'pydantic', 'yaml', 'tokenizers', 'matplotlib'} & sys.modules.keys())"
    )
    completed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert completed.stdout == "set()\n"


def test_every_public_name_can_be_fetched_and_an_unknown_one_is_an_attribute_error() -> None:
    for name in gpt_cli.__all__:
        assert getattr(gpt_cli, name) is not None
    assert gpt_cli.GPT is GPT
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = gpt_cli.nothing


def test_iterating_streams_the_text_that_str_gives_as_a_whole(checkpoint: Path) -> None:
    run = gpt_cli.load(checkpoint, device="cpu", engine="torch")
    assert len(list(run.generate("abc ", seed=1))) == 30  # a piece for each token
    run = gpt_cli.load(checkpoint, device="cpu")
    chunks = list(run.generate("abc ", seed=1))
    assert len(chunks[0]) == 1  # at once; then what is written in some 10 ms
    assert len(chunks) > 1
    generation = run.generate("abc ", seed=1)
    assert str(generation) == generation.text() == "".join(chunks)
    assert generation.tokens == run.tokenizer.encode("".join(chunks)).tolist()
    assert generation.finish_reason == "length"


def test_options_are_those_of_sampling_and_the_rest_comes_from_the_config(checkpoint: Path) -> None:
    run = gpt_cli.load(str(checkpoint))
    assert run.defaults.max_new_tokens == 30
    assert len(run.generate("a", max_new_tokens=5, top_k=2, seed=1).text()) == 5
    assert run.generate("a", temperature=0).text() == run.generate("a", temperature=0).text()
    stopped = run.generate("a", stop=("a", "b"), max_new_tokens=1000)
    assert not set("ab") & set(stopped.text())
    assert stopped.finish_reason == "stop"


def test_without_a_seed_each_call_writes_something_else(checkpoint: Path) -> None:
    run = gpt_cli.load(checkpoint)
    assert len({run.generate("a").text() for _ in range(3)}) == 3


def test_a_batch_holds_the_texts_that_each_would_be_alone(checkpoint: Path) -> None:
    run = gpt_cli.load(checkpoint)
    batch = run.generate_batch("a", 4, seed=2)
    assert batch[0].text() == run.generate("a", seed=2).text()
    assert len({text.text() for text in batch}) == 4


def test_wrong_requests_raise_what_the_command_line_would_report(checkpoint: Path, tmp_path: Path) -> None:
    run = gpt_cli.load(checkpoint)
    with pytest.raises(UnknownCharacters, match="'Z'"):
        run.generate("Z")
    with pytest.raises(RequestError, match="top_p must be above 0 and at most 1, not 7"):
        run.generate("a", top_p=7)
    with pytest.raises(RequestError, match="there is no option temperatur") as refused:
        run.generate("a", temperatur=1)
    assert refused.value.choices == ("temperature",)
    with pytest.raises(RequestError, match="generate returns one text"):
        run.generate("a", n=2)
    with pytest.raises(RequestError, match="choices are empty"):
        run.generate("a", choices=[])
    assert run.generate("a", choices=None, seed=1).text() == run.generate("a", seed=1).text()
    for n in (0, -1):
        with pytest.raises(RequestError, match=f"n must be at least 1, not {n}"):
            run.generate_batch("a", n)
    with pytest.raises(RequestError, match="there is no run at"):
        gpt_cli.load(tmp_path / "nothing")


def test_a_damaged_checkpoint_is_warned_about_and_passed_over(checkpoint: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    intact = run_dir / "checkpoints" / checkpoint.name
    shutil.copytree(checkpoint, intact)
    damaged = intact.with_name("step-00000002")
    shutil.copytree(checkpoint, damaged)
    (damaged / "model.safetensors").write_bytes(b"\0" * 100)
    (run_dir / "run.json").write_text("{}")
    with pytest.warns(UserWarning, match="step-00000002"):
        run = gpt_cli.load(run_dir)
    weights = torch.nn.utils.parameters_to_vector(run.model.parameters())
    expected = torch.nn.utils.parameters_to_vector(gpt_cli.load(intact).model.parameters())
    assert torch.equal(weights, expected)


def test_a_renamed_public_name_is_still_there_under_its_old_one() -> None:
    assert gpt_cli.Sampling is gpt_cli.SamplingParams


def test_a_removed_keyword_of_load_is_ignored_at_its_off_value_and_else_refused(checkpoint: Path) -> None:
    assert "draft" not in inspect.signature(gpt_cli.load).parameters
    assert gpt_cli.load(checkpoint, draft=None).generate("a", seed=1).text() == (
        gpt_cli.load(checkpoint).generate("a", seed=1).text()
    )
    with pytest.raises(RequestError, match="draft was removed after version"):
        gpt_cli.load(checkpoint, draft="ngram")
    with pytest.raises(TypeError, match="unexpected keyword argument 'drafts'"):
        gpt_cli.load(checkpoint, drafts=None)  # type: ignore[call-arg]


def test_that_a_kernel_is_compiled_is_no_warning(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told = threading.Event()
    tell = logging.Filter()
    monkeypatch.setattr(tell, "filter", lambda _: told.set() is None)
    load = kernel.load

    def load_once_told(*arguments: Any, **options: Any) -> Any:  # a cached library would be there before the message
        told.wait(60)
        return load(*arguments, **options)

    monkeypatch.setattr(kernel, "PATIENCE", 0.0)
    monkeypatch.setattr(kernel, "_jobs", {})
    monkeypatch.setattr(kernel, "load", load_once_told)
    with kernel.no_build_cache(), caplog.at_level("INFO"), caplog.filtering(tell):
        gpt_cli.load(checkpoint, device="cpu", engine="native")
    assert "compiling decode.c for this processor" in caplog.text


def test_a_traceback_shows_the_hint_of_an_error_and_the_notes_of_others() -> None:
    error = RequestError("there is no run", hint="gpt runs")
    error.add_note("while testing")
    assert traceback.format_exception(error)[-3:] == [
        "gpt_cli.errors.RequestError: there is no run\n",
        "hint: gpt runs\n",
        "while testing\n",
    ]
