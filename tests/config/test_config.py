"""The config: what is accepted means what it says, and what is refused is said with its place and a way out."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gpt_cli.config import (
    Config,
    ModelConfig,
    annotate_config,
    changed_keys,
    dump_config,
    explain,
    json_schema,
    load_config,
    parse_config,
    to_yaml_scalar,
)
from gpt_cli.config.keys import description, fields, get_key, schema_of, sections
from gpt_cli.config.load import parse_overrides
from gpt_cli.config.yaml_reader import resolve_scalar
from gpt_cli.errors import RequestError
from gpt_cli.run.resume import RESUMABLE_CHANGES
from tests.support.command import ROOT

FEWER = settings(max_examples=settings.default.max_examples // 4)  # an example is a whole config, of a hundred keys


# --- random valid configs


def values_of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that the JSON Schema of one key allows."""
    if "anyOf" in schema:
        return st.one_of([values_of(choice) for choice in schema["anyOf"]])
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    match schema["type"]:
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            highest = schema.get("exclusiveMaximum", schema.get("maximum", 0) + 1) - 1
            return st.integers(schema["minimum"], highest)
        case "number":
            return st.floats(
                schema.get("minimum", schema.get("exclusiveMinimum", 0)),
                schema.get("maximum", schema.get("exclusiveMaximum")),
                exclude_min="exclusiveMinimum" in schema,
                exclude_max="exclusiveMaximum" in schema,
                allow_nan=False,
                allow_infinity=False,
            )
        case "string":
            characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
            words = st.sampled_from(["no", "3e-4", "null", "~", "1:30", "0777", "a b", "- x", "*.txt", "[a]", "'", '"'])
            return words | st.text(characters, min_size=schema.get("minLength", 0))
        case _:
            if "prefixItems" in schema:
                return st.tuples(*map(values_of, schema["prefixItems"]))
            return st.lists(values_of(schema["items"]), min_size=schema.get("minItems", 0), max_size=4)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Any valid config: each key by its schema, then those that depend on one another."""
    values: dict[str, Any] = {name: {} for name in sections()}
    for key in fields():
        section, _, name = key.rpartition(".")
        (values[section] if section else values)[name] = draw(values_of(schema_of(key)))
    small = st.integers(1, 4)
    model, train, tokenizer = values["model"], values["train"], values["tokenizer"]
    model["n_kv_head"] = draw(small)
    model["n_head"] = model["n_kv_head"] * draw(small)
    model["n_embd"] = model["n_head"] * draw(small) * 2
    model["causal"], values["task"] = True, {}  # a classifier's config is in tests/evaluation/test_classes.py
    if model["previous_token_init"]:
        model.update(position="rope", qk_norm=True, norm_position="pre", tie_embeddings=False)
        model["n_embd"] = model["n_head"] * draw(small) * 8
    model["norm_gain"] |= model["norm"] == "layernorm"
    if model["rope_scaling"] is not None:  # its second number is less than its third
        model["rope_scaling"] = (8.0, draw(small), draw(small) + 4, 64)
    if values["optim"]["lr"] == "auto":
        train["budget"] = train["init_from"] = None
    if train["init_from"] is None:
        values["lora"]["rank"] = None
    if values["lora"]["rank"] is not None:
        values["parallel"]["shard"] = "none"
    if values["parallel"]["shard"] == "full":
        values["runtime"].update(engine="torch", compile=False, device="cpu")
    if train["micro_batch_size"] is not None:
        train["micro_batch_size"] = draw(small)
        train["batch_size"] = train["micro_batch_size"] * draw(small)
    if train["budget"] is not None:
        train["budget"] = f"{draw(small)}m"
    if values["eval"]["every"] is None:
        train["until_loss"] = train["patience"] = None
    if (tokenizer["kind"] == "bpe") != (tokenizer["vocab_size"] is not None):
        tokenizer["vocab_size"] = 300 if tokenizer["kind"] == "bpe" else None
    data = values["data"]
    if data["weights"] is not None:
        data["weights"] = draw(st.lists(small, min_size=1, max_size=3))
        data["source"] = [f"{number}.txt" for number in range(len(data["weights"]))]
    if data["format"] == "labelled":
        data["format"] = "text"
    if data["format"] != "text":  # an example is never cut in two
        data["split"], data["text_key"] = "documents", "text"
        if data["prompt_key"] == data["completion_key"]:
            data["completion_key"] += "'"
    if values["sample"]["min_new_tokens"] > values["sample"]["max_new_tokens"]:
        values["sample"]["min_new_tokens"] = 0
    if data["val_fraction"] + data["test_fraction"] >= 1:
        data["test_fraction"] = 0.0
    if tokenizer["kind"] != "char":
        tokenizer["unknown"], tokenizer["min_count"] = "error", 1
    elif tokenizer["unknown"] != "token":
        tokenizer["min_count"] = 1
    return Config.model_validate(values)


@FEWER
@given(configs())
def test_a_dumped_config_loads_to_itself_whole_short_and_annotated(config: Config) -> None:
    for text in (dump_config(config), dump_config(config, full=False), annotate_config(config)):
        assert parse_config(text, "dump") == config


@FEWER
@given(configs())
def test_overriding_every_key_gives_the_config_without_a_file(config: Config) -> None:
    overrides = [f"{key}={to_yaml_scalar(get_key(config, key))}" for key in fields()]
    assert parse_config("", "empty", overrides) == config


@FEWER
@given(configs())
def test_the_json_schema_accepts_every_valid_config_and_no_other_key(config: Config) -> None:
    values = json.loads(config.model_dump_json())
    assert conforms(values, json_schema())
    assert not conforms({**values, "n_layer": 3}, json_schema())
    assert not conforms({**values, "model": {**values["model"], "n_layr": 3}}, json_schema())


def conforms(value: Any, schema: dict[str, Any]) -> bool:
    """True if `value` is valid under the part of JSON Schema that ours uses."""
    types = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    checks: dict[str, Callable[[Any], bool]] = {
        "$ref": lambda name: conforms(value, json_schema()["$defs"][name.rpartition("/")[2]]),
        "anyOf": lambda choices: any(conforms(value, choice) for choice in choices),
        "const": lambda only: value == only,
        "enum": lambda allowed: value in allowed,
        "minimum": lambda limit: value >= limit,
        "maximum": lambda limit: value <= limit,
        "exclusiveMinimum": lambda limit: value > limit,
        "exclusiveMaximum": lambda limit: value < limit,
        "minLength": lambda length: len(value) >= length,
        "minItems": lambda length: len(value) >= length,
        "maxItems": lambda length: len(value) <= length,
        "items": lambda item: all(conforms(child, item) for child in value),
        "prefixItems": lambda items: all(conforms(*pair) for pair in zip(value, items, strict=True)),
        "properties": lambda rules: all(conforms(child, rules[key]) for key, child in value.items() if key in rules),
        "additionalProperties": lambda _: value.keys() <= schema["properties"].keys(),
    }
    silent = {"$schema", "$defs", "title", "description", "default", "type"}
    kind = schema.get("type")
    if kind in ("integer", "number"):
        allowed = int if kind == "integer" else int | float
        if not isinstance(value, allowed) or isinstance(value, bool):
            return False
    elif kind is not None and not isinstance(value, types[kind]):
        return False
    return all(checks[keyword](rule) for keyword, rule in schema.items() if keyword not in silent)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_loads_and_conforms_to_the_json_schema(path: Path) -> None:
    assert conforms(json.loads(load_config(path).model_dump_json()), json_schema())


def test_every_key_is_described_in_a_sentence() -> None:
    for key, definition in fields().items():
        assert description(definition).endswith("."), key


def test_the_json_schema_of_a_new_process_says_what_every_key_and_section_means() -> None:
    source = "import json; from gpt_cli.config import json_schema; print(json.dumps(json_schema()))"
    completed = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    schema = json.loads(completed.stdout)
    tables = {name: schema["$defs"][section.__name__] for name, section in sections().items()}
    assert all(table["description"] for table in tables.values())
    for key, definition in fields().items():
        section, _, name = key.rpartition(".")
        properties = (tables[section] if section else schema)["properties"]
        assert " ".join(properties[name]["description"].split()) == description(definition), key


def test_without_the_source_of_the_schema_there_are_types_and_no_meanings() -> None:
    source = (
        "import inspect\n"
        "def missing(_): raise OSError('could not get source code')\n"
        "inspect.findsource = missing\n"
        "from gpt_cli.config import json_schema, keys\n"
        "print(keys.description(keys.fields()['model.n_layer']) == '', 'properties' in json_schema())"
    )
    completed = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert completed.stdout == "True True\n"


# --- what scalars mean


@given(
    st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["no", "On", "y", "3e-4", "0777", "1:30", "="])
)
def test_a_text_is_written_so_that_other_readers_of_yaml_take_it_for_text_too(text: str) -> None:
    assert yaml.safe_load(f"key: {to_yaml_scalar(text)}") == {"key": text}
    assert yaml.safe_load(f"keys: {to_yaml_scalar([text, text])}") == {"keys": [text, text]}


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        *[("3e-4", 3e-4), ("1E3", 1000.0), (".5", 0.5), ("-1.", -1.0), ("+12", 12), ("0", 0), ("00.5", 0.5)],
        *[("null", None), ("~", None), ("", None), ("True", True), ("FALSE", False)],
        *[(text, text) for text in ("no", "on", "Yes", "1:30", "0777", "0x10", "1_000", "2024-01-01", "<<", "=", "e3")],
        ("9" * 5000, "9" * 5000),
        *[("-.inf", -math.inf), ("+.INF", math.inf), ("1e999", math.inf)],
    ],
)
def test_plain_scalars_mean_what_yaml_1_2_and_the_reader_say(text: str, meaning: object) -> None:
    resolved = resolve_scalar(text)
    assert resolved == meaning
    assert type(resolved) is type(meaning)


def test_not_a_number_is_read_as_such() -> None:
    assert all(math.isnan(float(resolve_scalar(text) or 0)) for text in (".nan", ".NaN"))


def test_a_learning_rate_of_3e_minus_4_is_a_number_and_words_stay_text() -> None:
    config = parse_config("optim: {lr: 3e-4, betas: [0, 1e-1]}\nsample:\n  prompt: no\n", "c.yaml")
    assert (config.optim.lr, config.optim.betas, config.sample.prompt) == (3e-4, (0.0, 0.1), "no")


@pytest.mark.parametrize(("written", "steps"), [("10k", 10_000), ("2M", 2_000_000), ("1e3", 1000), ("1.5e3", 1500)])
def test_a_count_may_have_a_unit_or_an_exponent_in_a_file_and_an_override(written: str, steps: int) -> None:
    assert parse_config(f"train: {{steps: {written}}}", "c.yaml").train.steps == steps
    assert parse_config("", "c.yaml", [f"train.steps={written}"]).train.steps == steps
    assert parse_overrides([f"train.steps={written}"]) == {"train.steps": steps}
    text = parse_config(f"sample: {{prompt: '{written}'}}", "c.yaml", [f"data.source={written}"])
    assert (text.sample.prompt, text.data.source) == (written, written)


@pytest.mark.parametrize(("written", "minutes"), [("90s", 1.5), ("10m", 10.0), ("1h30m", 90.0), ("2", 2.0)])
def test_minutes_may_be_a_duration_and_a_budget_stays_one(written: str, minutes: float) -> None:
    overrides = [f"train.max_minutes={written}", f"runtime.watchdog_minutes={written}", "train.budget=90s"]
    config = parse_config(f"parallel: {{timeout_minutes: {written}}}", "c.yaml", overrides)
    assert config.train.max_minutes == config.runtime.watchdog_minutes == config.parallel.timeout_minutes == minutes
    assert config.train.budget == "90s"


def test_an_empty_text_and_empty_sections_have_all_defaults() -> None:
    for text in ("", "# nothing\n", "model:\ntrain:\n  # steps: 5\n", "---\n", "\ufeffseed: 1337"):
        assert parse_config(text, "c.yaml") == Config()


# --- files


def test_the_run_is_named_after_the_file_unless_the_config_says_where(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text("seed: 3\n")
    assert load_config(path).run_dir == "runs/small"
    assert load_config(path, ["run_dir=elsewhere"]).run_dir == "elsewhere"
    assert load_config(path, ["run_dir=~/x"]).run_dir == str(Path.home() / "x")  # no folder of the name ~


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such file names")
def test_a_run_named_after_a_file_whose_name_is_not_utf_8_can_be_written_down(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.yaml")
    path.write_text("seed: 3\n")
    config = load_config(path)
    assert config.run_dir == "runs/caf?"
    assert parse_config(dump_config(config), "dump") == config


def test_a_byte_order_mark_and_windows_newlines_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xef\xbb\xbfseed: 3\r\nmodel:\r\n  n_layer: 2\r\n")
    assert (load_config(path).seed, load_config(path).model.n_layer) == (3, 2)


@pytest.mark.parametrize(
    ("content", "message", "position"),
    [
        (b"seed: 3\nrun_dir: caf\xe9\n", "is not UTF-8 text: it holds the byte 0xe9", ":2:13"),
        ("seed: 3\n".encode("utf-16"), "is not UTF-8 text: it holds the byte 0xff", ":1:1"),
        (b"\x7fELF\x02\x01\x01\x00\x00", "not valid YAML: special characters are not allowed: U+007F", ":1:1"),
        (b"#" * 1_000_001, "is larger than 1,000,000 bytes: this is not a config", None),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes, message: str, position: str | None) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(RequestError) as caught:
        load_config(path)
    assert message in caught.value.message
    assert caught.value.where == (position and f"{path}{position}")


def test_a_missing_file_leads_to_a_similar_one_or_to_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "quickstart.yaml").touch()
    with pytest.raises(RequestError, match="there is no config file") as caught:
        load_config(tmp_path / "quickstrat.yaml")
    assert caught.value.choices == (f"{tmp_path}/configs/quickstart.yaml",)
    for folder, kind in (("configs", "no config"), ("nowhere", None)):  # into which no config could be written
        with pytest.raises(RequestError) as caught:
            load_config(tmp_path / folder / "x.yaml")
        assert (caught.value.kind, caught.value.path) == (kind, f"{tmp_path}/{folder}/x.yaml")


def test_a_folder_is_refused_and_a_run_leads_to_its_config(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is a folder, not a config file") as caught:
        load_config(tmp_path)
    assert caught.value.choices == ()
    (tmp_path / "config.yaml").touch()
    with pytest.raises(RequestError) as caught:
        load_config(tmp_path)
    assert caught.value.choices == (f"{tmp_path}/config.yaml",)


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="cannot read the config file"):
        load_config(tmp_path / "file" / "c.yaml")


# --- where values come from, and how configs differ


def test_each_value_is_explained_by_its_default_its_line_or_its_override(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("# text\nmodel:\n  n_layer: 2\n  n_head: 2\noptim: {lr: 1, ema: null}\n")
    overrides = ["model.n_head=8"]
    config = load_config(path, overrides)
    rows = {row.key: row for row in explain(config, path, overrides)}
    assert list(rows) == list(fields())
    origins = {key: row.origin for key, row in rows.items() if row.origin != "default"}
    assert origins == {
        "model.n_layer": f"{path}:3",
        "model.n_head": "override",
        "optim.lr": f"{path}:5",
        "optim.ema": f"{path}:5",
    }
    assert (rows["model.n_head"].value, rows["run_dir"].value) == (8, "runs/c")
    assert rows["model.n_layer"].description == "Transformer blocks."


def test_changed_keys_are_those_that_differ() -> None:
    old = Config()
    new = Config(seed=3, model=ModelConfig(n_layer=9))
    assert changed_keys(old, new) == [("seed", 1337, 3), ("model.n_layer", 4, 9)]
    assert changed_keys(new, new) == []


def test_what_may_change_exists_and_is_not_what_the_weights_depend_on() -> None:
    keys = {*fields(), *(f"{name}.*" for name in sections())}
    assert keys >= RESUMABLE_CHANGES
    assert not any(name.startswith(("model", "data", "tokenizer", "optim", "seed")) for name in RESUMABLE_CHANGES)


def test_configs_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Config().model.n_layer = 3


def test_a_config_is_read_without_torch_or_numpy() -> None:
    program = (
        "import sys; from gpt_cli.config import parse_config; parse_config('', 'x');"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
