"""What a config is refused for: every problem is named with its place and, where there is one, the way out."""

import random
import time
from collections.abc import Callable
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.config import Config, annotate_config, dump_config, parse_config
from gpt_cli.config.keys import accepted_types, fields, schema_of, sections
from gpt_cli.config.load import parse_overrides
from gpt_cli.config.synonyms import KEYS, OTHER_UNITS, VALUES
from gpt_cli.errors import RequestError
from gpt_cli.export.gguf import GGUFType
from gpt_cli.terminal.escape import escape_control_chars
from tests.support.command_line_interface import every_command

DEPTH = 20


def refused(text: str, *overrides: str) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse_config(text, "c.yaml", overrides)
    return caught.value


def refusal(text: str, *overrides: str) -> str:
    """The error as it is printed."""
    return refused(text, *overrides).render()


WRONG_VALUES = {
    # the config: (message, column, hint)
    "train: {steps: fast}": ("train.steps must be a whole number, not 'fast'", 16, None),
    "train: {steps: true}": ("train.steps must be a whole number, not true", 16, None),
    "train: {steps: 1_000}": ("train.steps must be a whole number, not '1_000'", 16, None),
    "train: {steps: 0777}": ("train.steps must be a whole number, not '0777'", 16, None),
    "train: {steps: '9'}": ("train.steps must be a whole number, not '9'", 16, None),
    "train: {steps: null}": ("train.steps must be a whole number, not null", 16, None),
    "train: {steps: -1}": ("train.steps must be at least 0, not -1", 16, None),
    "train: {steps: 1000000000000}": ("train.steps must be at most 2147483647, not 1000000000000", 16, None),
    "train: {max_minutes: soon}": ("train.max_minutes must be a number or null, not 'soon'", 22, None),
    "train: {steps: [1, 2]}": ("train.steps must be a whole number, not a list of 2", 16, None),
    "train: {steps: {a: 1}}": ("train.steps must be a whole number, not a section", 16, None),
    "seed: 9223372036854775808": ("seed must be below 9223372036854775808, not 9223372036854775808", 7, None),
    "optim: {lr: .nan}": ("optim.lr must be a finite number, not nan", 13, None),
    "optim: {lr: -.inf}": ("optim.lr must be a finite number, not -inf", 13, None),
    "optim: {lr: 1e999}": ("optim.lr must be a finite number, not inf", 13, None),
    "optim: {lr: 0}": ("optim.lr must be above 0, not 0", 13, None),
    "optim: {grad_clip: 0}": ("optim.grad_clip must be above 0 or null, not 0", 20, "did you mean null?"),
    "train: {patience: -1}": ("train.patience must be at least 1 or null, not -1", 19, "did you mean null?"),
    "train: {patience: -2}": ("train.patience must be at least 1 or null, not -2", 19, None),
    "eval: {every: 0}": ("eval.every must be at least 1 or null, not 0", 15, "did you mean null?"),
    "optim: {lr: true}": ("optim.lr must be a number or auto, not true", 13, None),
    "optim: {ema: none}": ("optim.ema must be a number or null, not 'none'", 14, "did you mean null?"),
    "optim: {betas: [0.9]}": ("optim.betas must be a list of 2 numbers, not a list of 1", 16, None),
    "optim: {betas: [1, 2, 3]}": ("optim.betas must be a list of 2 numbers, not a list of 3", 16, None),
    "optim: {betas: [0.9, x]}": ("item 2 of optim.betas must be a number, not 'x'", 22, None),
    "optim: {betas: [0.9, 1]}": ("item 2 of optim.betas must be below 1, not 1", 22, None),
    "optim: {name: adam}": ("optim.name must be adamw or muon, not 'adam'", 15, "did you mean adamw?"),
    "runtime: {device: gpu}": (
        "runtime.device must be auto, cpu, cuda or mps, not 'gpu'",
        19,
        "did you mean cuda?",
    ),
    "runtime: {compile: off}": (
        "runtime.compile must be auto, reduce-overhead, true or false, not 'off'",
        20,
        "did you mean false?",
    ),
    "model: {bias: yes}": ("model.bias must be true or false, not 'yes'", 15, "did you mean true?"),
    "model: {bias: 1}": ("model.bias must be true or false, not 1", 15, "did you mean true?"),
    "model: 5": ("model must be a section with keys of its own, not 5", 8, None),
    "model: [n_layer]": ("model must be a section with keys of its own, not a list of 1", 8, None),
    "data: {source: 5}": ("data.source must be text or a list of texts, not 5", 16, None),
    "data: {source: [a, 5]}": ("item 2 of data.source must be text, not 5", 20, None),
    "data: {source: []}": ("data.source must not be empty", 16, None),
    "data: {source: ['']}": ("item 1 of data.source must not be empty", 17, None),
    "run_dir: ''": ("run_dir must not be empty", 10, None),
    "sample: {prompt: 1984}": ("sample.prompt must be text, not 1984", 18, None),
    "tokenizer: {vocab_size: 300}": (
        *("tokenizer.vocab_size (300) needs tokenizer.kind (char) to be bpe", 25),
        None,
    ),
    "model: {n_head: 3}": ("model.n_embd (128) must be a multiple of model.n_head (3)", 17, None),
    "model: {n_kv_head: 3}": ("model.n_head (4) must be a multiple of model.n_kv_head (3)", 20, None),
    "train: {micro_batch_size: 3}": (
        *("train.batch_size (16) must be a multiple of train.micro_batch_size (3)", 27),
        None,
    ),
    "{train: {patience: 3}, eval: {every: null}}": (
        *("train.patience (3) needs eval.every (null) to be set", 20),
        None,
    ),
}


@pytest.mark.parametrize("text", WRONG_VALUES)
def test_a_wrong_value_is_named_with_its_place_and_the_way_out(text: str) -> None:
    message, column, hint = WRONG_VALUES[text]
    expected = f"error: {message}\n  --> c.yaml:2:{column}" + (f"\nhint: {hint}" if hint else "")
    assert refusal(f"# a comment\n{text}") == expected


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("model: {n_layr: 3}", "model.n_layr", "did you mean model.n_layer?"),
        ("n_layer: 3", "n_layer", "did you mean model.n_layer?"),
        ("train: {n_layers: 3}", "train.n_layers", "did you mean model.n_layer?"),
        ("model: {N-Layer: 3}", "model.N-Layer", "did you mean model.n_layer?"),
        ("trian: {steps: 3}", "trian", "did you mean train?"),
        ("model: {train: {steps: 3}}", "model.train", "did you mean train?"),
        ("every: 3", "every", "did you mean eval.every, checkpoint.every, sample.every or log.every?"),
        ("tokenizer: {patience: 3}", "tokenizer.patience", "did you mean train.patience?"),
        ("block_size: 3", "block_size", "did you mean model.context_length?"),
        ("optimizer: adamw", "optimizer", "did you mean optim.name?"),
        ("optimizer: {lr: 0.1}", "optimizer", "did you mean optim?"),
        ("scheduler: {kind: cosine}", "scheduler", "did you mean schedule?"),
        ("dataset: {source: a.txt}", "dataset", "did you mean data?"),
        ("qwertz: 3", "qwertz", None),
        ("evaluation: {every: 3}", "evaluation", "did you mean eval?"),
        ("model_config: {n_layer: 3}", "model_config", "did you mean model?"),
        ("qwertz: {steps: 3}", "qwertz", None),
        ('"\\e[2J\\n": 3', "\\x1b[2J\\x0a", None),
    ],
)
def test_an_unknown_key_is_named_with_the_one_that_was_meant(text: str, key: str, hint: str | None) -> None:
    lines = refusal(text).replace("\\n", "\\x0a").splitlines()
    assert lines[0] == f"error: {key} is not a key"
    assert lines[2:] == ([f"hint: {hint}"] if hint else [])


@pytest.mark.parametrize("override", ["data.split=characters", "data.split='characters'", "data.split=documents"])
@pytest.mark.parametrize("written", ["", ", split: characters"])
def test_examples_are_never_cut_in_two_however_the_split_is_written(written: str, override: str) -> None:
    text = f"data: {{source: a.jsonl, format: pairs{written}}}"
    assert parse_config(text, "c.yaml", [override]).data.split == "documents"


def test_names_and_words_of_other_trainers_lead_to_ours() -> None:
    parameters = [parameter for _, command in every_command() for parameter in command.params]
    options = {option.lstrip("-").replace("-", "_") for parameter in parameters for option in parameter.opts}
    assert {ours for meant in KEYS.values() for ours in meant} <= {*fields(), *options}
    assert KEYS.keys() >= OTHER_UNITS
    taken = {word for key in fields() for word in accepted_types(schema_of(key))}
    taken |= {*schema_of("lora.targets")["items"]["enum"], *get_args(GGUFType)}
    assert {ours for meant in VALUES.values() for ours in meant} <= taken
    assert refused("lora: {rank: 4, targets: [q_proj]}").choices == ("qkv",)


NOT_A_CONFIG = {
    # the text: (message, line:column)
    "seed: 1\nmodel:\n\tn_layer: 3": (
        "not valid YAML: found character '\\t' that cannot start any token",
        "3:1",
    ),
    "seed: 1: 2": ("not valid YAML: mapping values are not allowed here", "1:8"),
    "train:\n  steps 5\n  lr: 3": ("not valid YAML: mapping values are not allowed here", "3:5"),
    "run_dir: 'x\nseed: 1": ("not valid YAML: found unexpected end of stream", "1:10"),
    "data: {source: [a, b}": (
        "not valid YAML: expected ',' or ']', but got '}'",
        "1:21",
    ),
    "data: {source: a": (
        "not valid YAML: expected ',' or '}', but got '<stream end>'",
        "1:7",  # of what is never closed
    ),
    "data: {source: [": (
        "not valid YAML: expected the node content, but found '<stream end>'",
        "1:17",
    ),
    "seed: @1": (
        "not valid YAML: found character '@' that cannot start any token",
        "1:7",
    ),
    "train:\n  steps: 5\n lr: 3": (
        "not valid YAML: expected <block end>, but found '<block mapping start>'",
        "3:2",
    ),
    "%YAML 3.0\n---\na: 1": ("not valid YAML: found incompatible YAML document (version 1.* is required)", "1:1"),
    'run_dir: "\\U00110000"': ("not valid YAML: chr() arg not in range(0x110000)", "1:13"),
    "seed: 1\n\nrun_dir: a\x00b": ("not valid YAML: special characters are not allowed: U+0000", "3:11"),
    "a: \x1b[2J": ("not valid YAML: special characters are not allowed: U+001B", "1:4"),
    'run_dir: "a\\0b"': ("run_dir holds U+0000, which is not text", "1:10"),
    'run_dir: "\\ud800"': ("run_dir holds U+D800, which is not text", "1:10"),
    "seed: 1\nseed: 1": ("seed is given twice, first at c.yaml:1:1", "2:1"),
    "model:\n  bias: true\nmodel: {}": ("model is given twice, first at c.yaml:1:1", "3:1"),
    "seed: &x 3": ("seed has an anchor (&), which a config cannot have", "1:7"),
    "seed: *x": ("seed has an alias (*), which a config cannot have", "1:7"),
    "&x seed: 3": ("seed has an anchor (&), which a config cannot have", "1:1"),
    "seed: !!python/object/apply:os.system [id]": ("seed has a tag (!), which a config cannot have", "1:7"),
    "!!map {seed: 3}": ("the config has a tag (!), which a config cannot have", "1:1"),
    "? [a]\n: 3": ("a key has to be a word", "1:3"),
    "seed: 1\n---\nseed: 2": (
        "not valid YAML: expected a single document in the stream, but found another document",
        "2:1",
    ),
    "- seed": ("a config consists of keys with values, like `seed: 1`", "1:1"),
    "seed": ("a config consists of keys with values, like `seed: 1`", "1:1"),
    f"seed: {'[' * (DEPTH + 1)}": (f"not valid YAML: nested more than {DEPTH} deep", f"1:{7 + DEPTH}"),
    f"seed: {'{a: ' * 100_000}": (f"not valid YAML: nested more than {DEPTH} deep", f"1:{7 + 4 * DEPTH}"),
    "a" * 1_000_001: ("more than 1,000,000 characters: this is not a config", "1:1"),
}


@pytest.mark.parametrize("text", NOT_A_CONFIG, ids=lambda text: text[:30])
def test_what_is_no_config_is_refused_at_its_line_and_column(text: str) -> None:
    message, position = NOT_A_CONFIG[text]
    assert refusal(text).splitlines()[:2] == [f"error: {message}", f"  --> c.yaml:{position}"]


def test_all_problems_of_a_file_and_its_overrides_come_in_one_error_in_order() -> None:
    text = "train:\n  steps: fast\n  steps: 5\nmodel: {n_layr: 3, dropout: 1.5}\nseed: *x\ntrian: {}\n"
    assert refusal(text, "optim.lr=high", "optim.nam=adamw").splitlines() == [
        "error: c.yaml is not a valid config: 8 problems",
        "  c.yaml:2:10: train.steps must be a whole number, not 'fast'",
        "  c.yaml:3:3: train.steps is given twice, first at c.yaml:2:3",
        "  c.yaml:4:9: model.n_layr is not a key; did you mean model.n_layer?",
        "  c.yaml:4:29: model.dropout must be below 1, not 1.5",
        "  c.yaml:5:7: seed has an alias (*), which a config cannot have",
        "  c.yaml:6:1: trian is not a key; did you mean train?",
        "  override 'optim.nam=adamw': optim.nam is not a key; did you mean optim.name?",
        "  override 'optim.lr=high': optim.lr must be a number or auto, not 'high'",
    ]


def test_a_key_given_three_times_is_reported_twice_against_the_first() -> None:
    lines = refusal("seed: 1\nseed: 2\nseed: 3\n").splitlines()
    assert [line.split(": ", 1)[1] for line in lines[1:]] == ["seed is given twice, first at c.yaml:1:1"] * 2


def test_a_hundred_problems_are_counted_and_ten_shown() -> None:
    lines = refusal("".join(f"key{number}: 1\n" for number in range(100))).splitlines()
    assert len(lines) == 12
    assert (lines[0], lines[-1]) == ("error: c.yaml is not a valid config: 100 problems", "  ... and 90 more")


def test_a_long_value_is_shown_in_part() -> None:
    assert len(refusal(f"train: {{steps: {'x' * 1000}}}")) < 200


# --- overrides


def test_overrides_win_over_the_file_even_where_the_file_is_wrong_and_the_last_one_wins() -> None:
    config = parse_config("train: {steps: fast}\nseed: *x\n", "c.yaml", ["train.steps=1", "seed=7", "train.steps=2"])
    assert (config.train.steps, config.seed) == (2, 7)


def test_an_override_of_a_list_replaces_all_of_it() -> None:
    config = parse_config("data: {source: [a, 5]}", "c.yaml", ["data.source=[b, 'c d']", "optim.betas=[0.8, 0.9]"])
    assert (config.data.source, config.optim.betas) == (["b", "c d"], (0.8, 0.9))


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        *[(text, text) for text in ("1984", "ROMEO:", "no", "", "# x", "[a]", "a = b", "'", "true", " a ", "~")],
        ('"a\\nb"', "a\nb"),
        ("'1'", "1"),
        ("'null'", "null"),
    ],
)
def test_an_override_of_a_text_key_is_taken_as_it_stands_unless_quoted(value: str, meaning: str) -> None:
    assert parse_config("", "c.yaml", [f"sample.prompt={value}"]).sample.prompt == meaning


def test_null_overrides_what_may_be_null_and_a_dash_is_standard_input() -> None:
    config = parse_config(
        "run_dir: x\neval: {every: 3}", "c.yaml", ["run_dir=null", "eval.every=null", "data.source=-"]
    )
    assert (config.run_dir, config.eval.every, config.data.source) == (None, None, "-")
    with pytest.raises(RequestError, match="must be text, not null"):  # as in a file
        parse_config("", "c.yaml", ["sample.prompt=null"])


@pytest.mark.parametrize(
    ("override", "message", "hint"),
    [
        ("train.steps=fast", "train.steps must be a whole number, not 'fast'", None),
        ("train.steps=", "train.steps must be a whole number, not null", None),
        ("optim.betas=[0.9, 2]", "item 2 of optim.betas must be below 1, not 2", None),
        ("run_dir=", "run_dir must not be empty", None),
        ("n_layer=3", "n_layer is not a key", "did you mean model.n_layer?"),
        ("model.n_layer.x=3", "model.n_layer.x is not a key", None),
        ("model=3", "model is a section: override one of its keys, such as model.n_layer=...", None),
        ("train.steps", "'train.steps' is not an override: it needs a key, '=' and a value", None),
        (
            'data.source=[a, "b]',
            "data.source is not valid YAML: found unexpected end of stream",
            None,
        ),
        ("data.source=caf\udce9", "data.source holds U+DCE9, which is not text", None),
        ("model.n_head=5", "model.n_embd (128) must be a multiple of model.n_head (5)", None),
    ],
)
def test_an_error_in_an_override_names_its_key_and_no_place(override: str, message: str, hint: str | None) -> None:
    expected = [f"error: {message}", *([f"hint: {hint}"] if hint else [])]
    assert refusal("model: {n_embd: 128}\noptim: {betas: [0.8, 0.9]}", override).splitlines() == expected


def test_overrides_alone_are_not_judged_by_keys_that_a_file_may_set() -> None:
    assert parse_overrides(["model.n_embd=12", "model.n_head=4"]) == {"model.n_embd": 12, "model.n_head": 4}
    fractions = ["data.val_fraction=0.6", "data.test_fraction=0.5"]
    assert parse_overrides(fractions) == {"data.val_fraction": 0.6, "data.test_fraction": 0.5}
    with pytest.raises(RequestError, match="even head width"):
        parse_overrides(["model.n_embd=12", "model.n_head=4", "model.position=rope"])


@pytest.mark.parametrize("path", ["{a}", "{0}", "{}", "{keys}", "%s"])
def test_braces_in_a_value_stand_in_the_message_as_they_are(path: str) -> None:
    message = f"optim.lr (auto) needs train.init_from ({path}) to be null"
    assert refused("", "optim.lr=auto", f"train.init_from={path}").message == message


# --- hostile input

PIECES = [*"{}[]:,-?&*!|>'\"%@`#~<=\\\t\n\r \x00\x1b\x85\u2028\ufeff\ud800", "\n  ", ": ", "- ", "? ", "<<: *a", "&a "]
PIECES += [
    "!!python/object/apply:os.system ",
    "---\n",
    "...\n",
    "9" * 400,
    "1e999",
    ".nan",
    "\\U00110000",
    "%TAG ! x\n",
]


def damaged(text: str, noise: random.Random) -> str:
    """`text` with up to eight pieces put in, cut out, doubled or moved."""
    for _ in range(noise.randint(1, 8)):
        start, end = sorted(noise.randint(0, len(text)) for _ in range(2))
        end = min(end, start + noise.randint(0, 60))
        text = noise.choice(
            [
                text[:start] + noise.choice(PIECES) * noise.choice([1, 1, 1, 30]) + text[start:],
                text[:start] + text[end:],
                text[:end] + text[start:],
                text[end:] + text[start:end] + text[:start],
            ]
        )
    return text


def survives(text: str, *overrides: str) -> None:
    """It is a config, or it is refused in at most a dozen lines that cannot drive a terminal."""
    try:
        config = parse_config(text, "c.yaml", overrides)
    except RequestError as error:
        rendered, where = error.render(), error.where
    else:
        assert parse_config(dump_config(config), "dump") == config
        return
    assert len(rendered.splitlines()) <= 12
    assert escape_control_chars(rendered, keep="\n") == rendered
    assert where is not None or "problems" in rendered or overrides


def test_five_hundred_damaged_configs_are_loaded_or_refused_and_nothing_else(
    record_property: Callable[[str, object], None],
) -> None:
    record_property("faults", 500)
    noise = random.Random(0)
    full = annotate_config(Config())
    short = "model:\n  n_layer: 2\ndata: {source: ['a b', c]}\noptim: {lr: 3e-4, betas: [0.9, 0.95]}\n"
    for _ in range(500):
        survives(damaged(noise.choice([short, short, short, full]), noise))


@given(st.text(), st.lists(st.tuples(st.sampled_from([*fields(), *sections(), "x"]), st.text()), max_size=4))
@settings(max_examples=200)
def test_any_text_and_any_overrides_are_loaded_or_refused(text: str, overrides: list[tuple[str, str]]) -> None:
    survives(text, *(f"{key}={value}" for key, value in overrides))


def test_the_worst_a_file_can_hold_is_refused_within_seconds() -> None:
    start = time.process_time()
    for worst in ("[" * 900_000, "a: " + "x " * 400_000, "- " * 400_000, '"' + "\\n" * 400_000, "a" * 900_000 + ": 1"):
        survives(worst)
    assert time.process_time() - start < 15
