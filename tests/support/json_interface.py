"""The keys and types of what `--json` and `--jsonl` print, one a line, from commands on tiny runs."""

import io
import json
import shlex
from collections import defaultdict
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gpt_cli.cli.main import main
from gpt_cli.config import dump_config, parse_config
from gpt_cli.corpus.registry import corpora_dir, corpus_path, find_corpus
from gpt_cli.files import atomic_directory, make_directory, write_file
from gpt_cli.selftest.check import Check

LINES = [f"It was the {word} of times and times, the age of {word}, {i}.\n" for i in range(60) for word in ("A", "B")]
SEEDED = "--device cpu --seed 1"
CONFIG = """\
run_dir: runs/{name}
data: {{source: {source}}}
tokenizer: {{kind: byte}}
model: {{n_layer: 1, n_head: 2, n_embd: 32, context_length: 64}}
schedule: {{warmup_steps: 1}}
train: {{steps: 4, batch_size: 4}}
eval: {{every: 2}}
sample: {{every: null}}
runtime: {{device: cpu, engine: torch, threads: 1}}
"""

# (name of an output, a command that prints it). Outputs of the same name are merged. Later commands read files that
# earlier ones leave.
COMMANDS = (
    ("gpt train --dry-run --json", "gpt train --config text.yaml --dry-run --json"),
    ("gpt train --json", "gpt train --config text.yaml --json"),
    (
        "gpt train --dry-run --json",
        "gpt train --config text.yaml run_dir=runs/new schedule.warmup_steps=9 --dry-run --json",
    ),
    ("gpt train --json", "gpt train --config other.yaml --json"),
    ("gpt train --dry-run --json", "gpt train --config other.yaml --dry-run --json"),
    ("gpt train --json", "gpt train --config classes.yaml --json"),
    ("gpt train --json", "gpt train --config pairs.yaml optim.lr=10 optim.adamw_lr=10 --json"),
    ("gpt sample --json", f"gpt sample runs/text {SEEDED} --prompt It -n 2 --max-new-tokens 40 --json"),
    ("gpt sample --json", f"gpt sample runs/text {SEEDED} --max-new-tokens 40 --novelty --json"),
    ("gpt sample --json", f"gpt sample runs/text {SEEDED} --max-new-tokens 3 --novelty --json"),
    ("gpt sample --jsonl", f"gpt sample runs/text {SEEDED} --prompts prompts.jsonl --max-new-tokens 40 --jsonl"),
    ("gpt sample --jsonl", f"gpt sample runs/text {SEEDED} --max-new-tokens 40 --novelty --jsonl"),
    ("gpt sample --jsonl", f"gpt sample runs/text {SEEDED} --max-new-tokens 3 --novelty --jsonl"),
    ("gpt eval --json", "gpt eval runs/text --device cpu --json"),
    ("gpt eval --json (classes)", "gpt eval runs/classes --device cpu --json"),
    ("gpt eval --json (classes)", "gpt eval runs/classes --device cpu --text labels.jsonl --json"),
    ("gpt eval --json (pairs)", "gpt eval runs/pairs --device cpu --examples 2 --baselines --json"),
    ("gpt eval --json (pairs)", "gpt eval runs/pairs --device cpu --text words.jsonl --baselines --json"),
    ("gpt eval --json (pairs)", "gpt eval runs/pairs --device cpu --no-completions --json"),
    ("gpt score --json", "gpt score letter.txt runs/text --device cpu --json"),
    ("gpt score --jsonl", "gpt score letter.txt runs/text --device cpu --jsonl"),
    ("gpt classify --jsonl", "gpt classify --run runs/classes --device cpu 'some text' labels.jsonl --jsonl"),
    ("gpt info --json", "gpt info runs/text --json"),
    ("gpt info --json", "gpt info text.yaml --devices 2 --json"),
    ("gpt info --json", "gpt info text.yaml --devices 3 --json"),
    ("gpt diff --json", "gpt diff runs/text runs/other runs/classes --json"),
    ("gpt attention --json", "gpt attention runs/text --prompt was --json"),
    ("gpt attention --json", "gpt attention runs/other --prompt 'TIMES AND TIMES' --json"),
    ("gpt bench --json", "gpt bench text.yaml --seconds 0.1 --json"),
    ("gpt tune --json", "gpt tune text.yaml --steps 10 --json"),
    ("gpt tune --json", "gpt tune text.yaml optim.name=adamw optim.lr=0.001 --steps 10 --json"),
    ("gpt sweep --json", "gpt sweep text.yaml optim.lr=0.01,0.02 --seeds 2 --json"),
    ("gpt sweep --json", "gpt sweep text.yaml optim.lr=0.01..0.02 --seeds 1 --max-runs 2 --out searched --json"),
    ("gpt scale --json", "gpt scale text.yaml model.n_embd=64 --budget 2s --jobs 2 --json"),
    ("gpt export --json", "gpt export runs/text exports/text --json"),
    ("gpt import --json", "gpt import exports/text runs/imported --json"),
    ("gpt doctor --json", "gpt doctor runs/text --json"),
    ("gpt selftest --json", "gpt selftest --quick --json"),
    ("gpt runs --json", "gpt runs --json"),
    ("gpt config show --json", "gpt config show text.yaml --json"),
    ("gpt data get --json", "gpt data get tiny-shakespeare --json"),
    ("gpt data list --json", "gpt data list --json"),
    ("gpt data inspect --json", "gpt data inspect letter.txt --json"),
    ("gpt data inspect --window --json", "gpt data inspect text.txt --window 0 --json"),
    ("gpt tokenize --json", "gpt tokenize text.txt --kind bpe --vocab-size 300 --test-fraction 0.1 --out bpe --json"),
    ("gpt tokenize --json", "gpt tokenize text.txt --unknown token --min-count 70 --out char --json"),
    ("gpt tokenize --text --ids --json", "gpt tokenize --kind byte --text It --ids '1 2' --json"),
)

# Objects whose keys are data: labels, seeds, keys of a config.
MAPS = {
    "gpt classify --jsonl": {"probabilities"},
    "gpt config show --json": {""},
    "gpt diff --json": {"config"},
    "gpt runs --json": {"runs[].differences"},
    "gpt sweep --json": {"settings[].losses", "settings[].values"},
}


class Node:
    """The types of the values at one place, and what is in them."""

    def __init__(self) -> None:
        self.types: set[str] = set()
        self.keys: dict[str, Node] = defaultdict(Node)
        self.objects = 0
        self.seen = 0

    def add(self, value: Any, path: str, maps: set[str]) -> None:
        """Add a `value` that is at `path`."""
        self.seen += 1
        if isinstance(value, dict):
            self.types.add("object")
            self.objects += 1
            for key, inner in value.items():
                name = "{*}" if path in maps else key if key.isidentifier() else json.dumps(key)
                self.keys[name].add(inner, f"{path}.{name}".removeprefix("."), maps)
        elif isinstance(value, list):
            self.types.add("list")
            for inner in value:
                self.keys["[]"].add(inner, f"{path}[]", maps)
        else:
            kinds = {str: "str", bool: "bool", int: "number", float: "number"}
            self.types.add("null" if value is None else kinds[type(value)])

    def lines(self, path: str = "") -> Iterator[str]:
        """`path: types` for this place and all below; `?` marks a key that may be missing."""
        if path:
            yield f"{path}: {' | '.join(sorted(self.types))}"
        for name, node in self.keys.items():
            missing = "?" * (name not in ("[]", "{*}") and node.seen < self.objects)
            yield from node.lines(f"{path}{'' if name == '[]' else '.'}{name}{missing}".removeprefix("."))


def json_interface(folder: Path) -> list[str]:
    """Run the commands in the empty `folder`; a line for each key."""
    outputs: dict[str, Node] = defaultdict(Node)
    with (
        chdir(folder),
        patch("gpt_cli.search.scaling.ladder._FEWEST_STEPS", 1),
        patch("gpt_cli.search.scaling.run_scale._seconds_per_token", lambda config, *_: 1e-6 * config.model.n_embd),
        patch("gpt_cli.search.scaling.run_scale.DRAWS", 10),
        patch("gpt_cli.selftest.machine.check_kills", lambda *_: Check("kill it any time", True, "left out here")),
    ):
        write_inputs()
        for name, command in COMMANDS:
            printed = run(shlex.split(command)[1:])
            for document in printed.splitlines() if "--jsonl" in command else [printed]:
                outputs[name].add(json.loads(document), "", MAPS.get(name, set()))
    return sorted(f"{name}: {line}" for name, node in outputs.items() for line in node.lines())


def run(arguments: list[str]) -> str:
    """What a command prints on stdout."""
    printed, messages = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(messages):
        code = main(arguments)
    assert code == 0, (arguments, messages.getvalue())
    return printed.getvalue()


def write_inputs() -> None:
    """Write texts and configs into the current folder, and a known corpus into the cache, as if it was downloaded."""
    Path("text.txt").write_text("".join(LINES))
    Path("other.txt").write_text("".join(LINES[20:]).upper())
    Path("letter.txt").write_text(
        "\n" + "".join(LINES[:4]) * 3 + "rare \u200b, caf\u00e9\n" + "".join(LINES[40:60]), "utf-8"
    )
    write_json_lines("labels.jsonl", [{"text": line, "label": line[11]} for line in LINES])
    write_json_lines("pairs.jsonl", [{"prompt": line[:12], "completion": line[12:40]} for line in LINES])
    write_json_lines("words.jsonl", [{"prompt": "It was", "completion": "so"}])
    write_json_lines("prompts.jsonl", [{"prompt": "It", "id": "first"}, {"prompt": "was"}])
    for name, source, *keys in (
        ("text", "text.txt"),
        ("other", "other.txt", "data.test_fraction=0.1", "tokenizer.kind=char", "eval.max_tokens=64",
         "train.until_loss=100", "model.previous_token_init=true", "model.tie_embeddings=false"),
        ("classes", "labels.jsonl", "task.kind=classes"),
        ("pairs", "pairs.jsonl", "data.format=pairs"),
    ):  # fmt: skip
        config = parse_config(CONFIG.format(name=name, source=source), name, keys)
        Path(f"{name}.yaml").write_text(dump_config(config))
    Path("runs/broken").mkdir(parents=True)
    Path("runs/broken/run.json").write_text("{}")
    corpus = find_corpus("tiny-shakespeare")
    path = corpus_path(corpus, corpora_dir())
    make_directory(path.parent.parent)
    with atomic_directory(path.parent) as temporary:
        write_file(temporary / path.name, b"ROMEO:\n")


def write_json_lines(file: str, values: list[dict[str, str]]) -> None:
    Path(file).write_text("".join(json.dumps(value) + "\n" for value in values))
