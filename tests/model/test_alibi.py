"""`model.position: alibi` from end to end: torch trains, evaluates and samples it; what does not know it says so."""

from pathlib import Path

import pytest

from gpt_cli.cli.main import main

TEXT = "the mouse lived in a shoe, and the shoe was the king's. " * 40
TINY = [
    *("model.n_layer=1", "model.n_embd=16", "model.n_head=2", "model.context_length=16", "train.steps=3"),
    *("train.batch_size=2", "eval.every=null", "checkpoint.every=null", "sample.max_new_tokens=4"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alibi")
    (folder / "text.txt").write_text(TEXT)
    keys = [f"data.source={folder}/text.txt", f"run_dir={folder}/run", "model.position=alibi"]
    assert main(["train", "--config", str(config(folder)), *keys, *TINY]) == 0
    return folder / "run"


def config(folder: Path) -> Path:
    (folder / "config.yaml").write_text("seed: 1\n")
    return folder / "config.yaml"


def test_torch_trains_it_and_samples_it_past_the_context(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = ["sample", "--run", str(run), "--prompt", "the ", "--max-new-tokens", "40", "--temperature", "0"]
    assert main(sample) == 0
    assert len(capsys.readouterr().out) > 40
    assert main(["eval", "--run", str(run)]) == 0
    assert main([*sample, "--engine", "native"]) == 2
    assert "model.position: alibi" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["export", "RUN", "--to", "hf", "OUT"], "model.position is alibi"),
        (["attention", "RUN", "--prompt", "the mouse", "--ascii"], "model.position: alibi"),
        (["train", "--config", "CONFIG", "run_dir=OUT", "data.source=TEXT", "runtime.engine=native",
          "model.position=alibi", *TINY], "model.position: alibi"),
    ],
    ids=["export", "attention", "native"],
)  # fmt: skip
def test_what_does_not_know_it_refuses_it_by_name(
    run: Path, tmp_path: Path, arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {"RUN": run, "OUT": tmp_path / "out", "CONFIG": config(tmp_path), "TEXT": run.parent / "text.txt"}
    for name, path in paths.items():
        arguments = [argument.replace(name, str(path)) for argument in arguments]
    assert main(arguments) in (1, 2)
    assert named in capsys.readouterr().err
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("checkpoints/*"))
