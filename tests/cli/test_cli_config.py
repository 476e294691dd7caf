"""`gpt config`: what it prints is data, what it writes loads, and it overwrites nothing unasked."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpt_cli.cli.verbs.config import app
from gpt_cli.config import Config, json_schema, load_config
from gpt_cli.config.keys import fields
from gpt_cli.errors import UserError

Gpt = Callable[..., Any]  # the fixture of conftest


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Result:
    """Run `gpt config ...` in this process; what it raises is raised."""
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def refused(*arguments: str) -> UserError:
    with pytest.raises(UserError) as caught:
        run(*arguments)
    return caught.value


def test_show_prints_every_key_with_its_value_and_origin_in_aligned_columns() -> None:
    Path("c.yaml").write_text("seed: 3\nsample:\n  prompt: 'a b'\n")
    output = run("show", "c.yaml", "model.n_layer=7", "data.source=" + "x" * 100).stdout.splitlines()
    rows = {line.split()[0]: line for line in output}
    assert list(rows) == list(fields())
    assert rows["seed"].split() == ["seed", "3", "c.yaml:1"]
    assert rows["sample.prompt"].split("  ")[-1].strip() == "c.yaml:3"
    assert '"a b"' in rows["sample.prompt"]
    assert rows["model.n_layer"].split() == ["model.n_layer", "7", "override"]
    assert rows["run_dir"].split() == ["run_dir", "runs/c", "default"]
    assert len({line.index(line.split()[-1]) for line in output if "xxx" not in line}) == 1


def test_show_as_json_is_one_object_of_keys() -> None:
    Path("c.yaml").write_text("optim: {betas: [0.8, 0.9]}\n")
    output = json.loads(run("show", "c.yaml", "--json").stdout)
    assert list(output) == list(fields())
    betas = output["optim.betas"]
    assert (betas["value"], betas["origin"]) == ([0.8, 0.9], "c.yaml:1")
    assert betas["description"].startswith("AdamW's decay rates")


def test_schema_prints_the_json_schema_alone() -> None:
    assert json.loads(run("schema").stdout) == json_schema()


def test_init_writes_every_key_explained_and_it_loads_to_the_defaults() -> None:
    result = run("init")
    assert "gpt train --config config.yaml" in result.stderr
    assert result.stdout == ""
    assert load_config(Path("config.yaml")) == Config(run_dir="runs/config")
    text = Path("config.yaml").read_text()
    assert all(f"{key.rpartition('.')[2]}: " in text for key in fields())
    assert "# Transformer blocks.\n  n_layer: 4\n" in text


def test_init_to_a_dash_prints_the_config_and_writes_nothing() -> None:
    result = run("init", "-o", "-")
    Path("printed.yaml").write_text(result.stdout)
    assert load_config(Path("printed.yaml")) == Config(run_dir="runs/printed")
    assert [path.name for path in Path.cwd().iterdir()] == ["printed.yaml"]


def test_init_overwrites_only_by_force() -> None:
    Path("config.yaml").write_text("seed: 1\n")
    error = refused("init")
    assert (error.message, error.exit_code) == ("config.yaml exists already", 2)
    assert Path("config.yaml").read_text() == "seed: 1\n"
    run("init", "--force")
    assert load_config(Path("config.yaml")).seed == Config().seed


def test_init_with_a_text_fits_a_config_to_it_and_says_why() -> None:
    Path("the book.txt").write_text("It is a truth universally acknowledged.\n" * 2000)
    run("init", "the book.txt")
    config = load_config(Path("the-book.yaml"))
    assert (config.data.source, config.run_dir) == ("the book.txt", "runs/the-book")
    heading = Path("the-book.yaml").read_text().split("\n\n")[0].splitlines()
    assert all(line.startswith("# ") for line in heading)
    assert any("80,000 characters" in line for line in heading)


def test_init_takes_no_config_from_the_name_of_a_text() -> None:
    name = "a\nseed: 5\n\x1b[2J # b.txt"
    Path(name).write_text("It is a truth universally acknowledged.\n" * 2000)
    run("init", name, "-o", "c.yaml")
    config = load_config(Path("c.yaml"))
    assert (config.data.source, config.seed) == (name, Config().seed)


def test_init_refuses_a_text_that_is_not_there_and_a_folder_that_is_not_there() -> None:
    assert refused("init", "missing.txt").exit_code == 2
    assert "there is no directory missing to write c.yaml into" in refused("init", "-o", "missing/c.yaml").message
    assert list(Path.cwd().iterdir()) == []


def test_errors_go_to_stderr_with_exit_code_2_and_nothing_to_stdout(gpt: Gpt) -> None:
    Path("c.yaml").write_text("train:\n  steps: fast\n")
    outcome = gpt("config", "show", "c.yaml")
    assert (outcome.rc, outcome.stdout) == (2, "")
    assert outcome.stderr == ("error: train.steps must be a whole number, not 'fast'\n  --> c.yaml:2:10\n")


def test_config_alone_says_what_it_can_do(gpt: Gpt) -> None:
    outcome = gpt("config")
    assert outcome.rc == 0
    assert all(verb in outcome.stdout for verb in ("show", "schema", "init"))
