"""Removed settings: ignored where they ask for nothing, else one sentence; a walk through the table."""

import inspect
import itertools
import json
from pathlib import Path

import pytest

import gpt_cli
from gpt_cli.cli.main import main
from gpt_cli.cli.repl import SETTINGS
from gpt_cli.config import Config, load_config, parse_config
from gpt_cli.config.keys import fields, replace_keys
from gpt_cli.config.removed import REMOVED, SAMPLING, TABLE, without_removed_options
from gpt_cli.errors import RequestError
from gpt_cli.sampling import SamplingParams
from gpt_cli.sampling.sampling_params import SamplingOptions
from tests.support.command_line_interface import every_command

KEYS = [name for name in REMOVED if "." in name]
COMMANDS = [name for name in REMOVED if name.startswith("gpt ") and " /" not in name]
OF_LOAD = {"draft"}
IN_USE = "in use"


def yaml(key: str, value: object) -> str:
    section, _, name = key.partition(".")
    return f"{section}:\n  {name}: {json.dumps(value)}\n"


def typed(value: object) -> str:
    """`value` as it is typed on a command line."""
    return value if isinstance(value, str) else json.dumps(value)


def test_no_removed_name_has_two_rows_or_is_still_in_use():
    assert len(REMOVED) == sum(len(row.names) for row in TABLE)
    assert {name for name in REMOVED if name.isidentifier()} == SAMPLING | OF_LOAD
    in_use = {*fields(), *SamplingOptions.__annotations__, *inspect.signature(gpt_cli.load).parameters}
    in_use |= {f"gpt chat /{name}" for name in SETTINGS}
    for path, command in every_command():
        in_use |= {path, *(f"{path} {option}" for parameter in command.params for option in parameter.opts)}
    assert not REMOVED.keys() & in_use


@pytest.mark.parametrize("key", KEYS)
def test_a_removed_key_is_ignored_at_its_off_value_in_a_file_and_in_an_override(key):
    assert REMOVED[key].off
    for off in REMOVED[key].off:
        assert parse_config(yaml(key, off), "c.yaml") == Config()
        assert parse_config("", "c.yaml", [f"{key}={typed(off)}"]) == Config()


@pytest.mark.parametrize("key", KEYS)
def test_a_removed_key_in_use_is_one_error_with_its_sentence_and_place(key, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(yaml(key, IN_USE))
    with pytest.raises(RequestError) as raised:
        load_config(file)
    assert raised.value.message == REMOVED[key].sentence(key)
    assert str(raised.value.where).startswith(f"{file}:2:")
    with pytest.raises(RequestError) as raised:
        parse_config("", "c.yaml", [f"{key}={IN_USE}"])
    assert raised.value.message == REMOVED[key].sentence(key)


@pytest.mark.system
def test_every_verb_takes_an_override_of_a_removed_key_at_its_off_value(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("the king and the queen went to the town.\n" * 60)
    tiny = ("model.n_layer=1", "model.n_embd=8", "model.n_head=1", "model.context_length=8", "runtime.threads=1")
    off = [f"{key}={typed(REMOVED[key].off[0])}" for key in KEYS]
    assert main(["train", "text.txt", *tiny, *off, "train.steps=1", "sample.every=null", "run_dir=run"]) == 0
    assert main(["train", "run", *off, "train.steps=2"]) == 0
    assert main(["train", "text.txt", *off, "train.budget=20s", "--dry-run"]) == 0
    assert main(["bench", *tiny, *off, "data.source=text.txt", "--seconds", "0.1"]) == 0
    assert main(["info", "run/config.yaml", *off]) == 0
    capsys.readouterr()
    assert main(["train", "text.txt", *tiny, f"{KEYS[0]}={IN_USE}", "train.budget=20s"]) == 2
    assert REMOVED[KEYS[0]].sentence(KEYS[0]) in capsys.readouterr().err


def test_a_removed_option_without_its_value_is_refused_and_a_word_behind_dashes_is_no_option(capsys):
    assert main(["sample", "run", "--forbid"]) == 2
    assert REMOVED["gpt sample --forbid"].sentence("gpt sample --forbid") in capsys.readouterr().err
    assert without_removed_options("gpt sample", ["--", "--forbid", "a"]) == ["--", "--forbid", "a"]


def test_load_ignores_a_removed_keyword_at_its_off_value_and_else_refuses_it():
    for name in OF_LOAD:
        with pytest.raises(RequestError, match=REMOVED[name].sentence(name)):
            gpt_cli.load("nothing", **{name: IN_USE})
        with pytest.raises(RequestError, match="nothing"):
            gpt_cli.load("nothing", **{name: REMOVED[name].off[0]})


@pytest.mark.parametrize("key", KEYS)
def test_a_run_that_used_a_removed_key_stays_readable(key):
    loaded = parse_config(yaml(key, IN_USE), "c.yaml", of_run=True)
    assert replace_keys(loaded, {"data.rules": Config().data.rules}) == Config()  # a run keeps those of its time
    with pytest.raises(RequestError):
        parse_config("", "c.yaml", [f"{key}={IN_USE}"], of_run=True)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_removed_command_option_or_value_in_use_exits_2_with_its_sentence(name, capsys):
    assert main([*name.split()[1:], IN_USE]) == 2
    assert f"error: {REMOVED[name].sentence(name)}\n" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_a_removed_option_at_its_off_value_is_left_out_of_the_command_line(name):
    _, verb, *option = name.split()
    for off, equals in itertools.product(REMOVED[name].off, (False, True)):
        given = [f"{option[0]}={typed(off)}"] if equals else [*option, typed(off)]
        assert without_removed_options(f"gpt {verb}", ["x", *given, "-n", "2"]) == ["x", "-n", "2"]


@pytest.mark.parametrize("name", sorted(SAMPLING))
def test_a_removed_keyword_is_ignored_at_its_off_value_and_else_refused(name):
    for off in REMOVED[name].off:
        assert SamplingParams(**{name: off}) == SamplingParams() == SamplingParams().replace({name: off})
    for use in (lambda: SamplingParams(**{name: IN_USE}), lambda: SamplingParams().replace({name: IN_USE})):
        with pytest.raises(RequestError, match="was removed") as raised:
            use()
        assert raised.value.message == REMOVED[name].sentence(name)


@pytest.mark.parametrize("name", sorted(SAMPLING))
def test_a_removed_field_of_a_request_is_ignored_at_its_off_value_and_else_refused_by_name(name):
    schemas = pytest.importorskip("gpt_cli.serve.request_schemas")
    for off in REMOVED[name].off:
        assert schemas.CompletionRequest.read({"prompt": "a", name: off}) == schemas.CompletionRequest.read(
            {"prompt": "a"}
        )
    errors = pytest.importorskip("gpt_cli.serve.api_errors")
    with pytest.raises(errors.ApiError) as raised:
        schemas.CompletionRequest.read({"prompt": "a", name: IN_USE})
    assert (raised.value.status, raised.value.param, raised.value.code) == (400, name, "unsupported_parameter")
