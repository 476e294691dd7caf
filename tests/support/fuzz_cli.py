"""Hostile input by the thousand, in a process that is watched: nothing but the exit codes 0, 1 and 2 may come of it.

    python -m tests.support.fuzz_cli KIND COUNT SEED      in an empty directory, where all of it happens

KIND is one of those in KINDS. Each case is a command line for `gpt`, made by mutation from a sound one; the last case
is in `case.txt`. What a case may do is looked at as it does it (audit_hook.py: no code from data, no process, no
connection, no file outside), and afterwards: exit code, at most a dozen lines on stderr of which the first says
`error:`, no traceback, nothing that drives a terminal, no file but those it was to make. Prints how many cases ended
with each exit code, and by how many MB the memory of the process grew at most.
"""

import gc
import hashlib
import io
import json
import os
import random
import resource
import shutil
import struct
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.font_manager  # noqa: F401 - when it is new, it asks other programs for fonts
import torch
import typer

from gpt_cli.cli.main import main
from gpt_cli.cli.options.run_name import run_name
from gpt_cli.config import Config, ModelConfig, SampleConfig, annotate_config, dump_config, load_config
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.errors import UserError
from gpt_cli.model.gpt import GPT
from gpt_cli.run import directory
from gpt_cli.run.checkpoint import list_checkpoints, save
from gpt_cli.run.directory import RunDirectory
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer
from gpt_cli.training.console import Console
from gpt_cli.training.loop import train
from tests.support.audit_hook import watch

Case = Callable[[random.Random], list[str]]
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom.\n" * 40
TRAIN_CONFIG = """
run_dir: trained
data: {source: text.txt}
model: {n_layer: 1, n_head: 2, n_embd: 8, context_length: 8}
train: {steps: 2, batch_size: 2}
eval: {every: null}
sample: {every: null, max_new_tokens: 3}
runtime: {device: cpu, threads: 1}
"""
# Text that has been trouble somewhere: for YAML, JSON, a shell, a terminal, a path, an encoding, a number.
PIECES = [
    *"{}[]:,-?&*!|>'\"%@`#~<=\\\t\n\r \x00\x1b\x07\x85\u2028\u202e\ufeff\ud800\udc80é世🙂",
    *("\n  ", ": ", "- ", "<<: *a", "&a ", "!!python/object/apply:os.system ", "---\n", "%TAG ! x\n", "\\U00110000"),
    *("9" * 400, "1e999", "-1", "0", ".nan", "NaN", "Infinity", "null", "true", "2147483648", "9223372036854775808"),
    *("..", "../", "/", "//", "~", "~root", "$HOME", "$(id)", "`id`", ";id", "|id", "*", "/dev/zero", "/proc/self/mem"),
    *("file:", "http://[", "corpus:", "builtin:", "<|endoftext|>", "\x1b[2J", "\x1b]0;x\x07", "%s%n", "{0}", "-", "--"),
]
OPTIONS = """config dry-run json prompt prompt-file run max-new-tokens temperature top-k top-p min-p stop seed unknown
    raw device kind vocab-size out tokenizer text ids split at context help debug version dir"""
NUMBERS = [0, -1, 1, 2, 7, 2**31 - 1, 2**31, 2**62, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308, 5e-324]
VALUES = [*NUMBERS, None, True, False, "", "x", "\x1b[2J", [], {}, [[]], {"a": 1}, "9" * 400, [0] * 1000]


def mutated_text(dice: random.Random, text: str) -> str:
    """`text` with up to eight pieces put in, cut out, doubled or moved."""
    for _ in range(dice.choice([1, 1, 1, 2, 4, 8])):
        start, end = sorted(dice.randint(0, len(text)) for _ in range(2))
        end = min(end, start + dice.randint(0, 60))
        insertion = dice.choice(PIECES) * dice.choice([1, 1, 1, 30])
        kinds = [text[:start] + insertion + text[start:], text[:start] + text[end:], text[:end] + text[start:]]
        text = dice.choice([*kinds, text[end:] + text[start:end] + text[:start]])
    return text


def mutated_bytes(dice: random.Random, data: bytes) -> bytes:
    """`data` with a bit flipped, cut, lengthened, or one part in place of another."""
    if not data:
        return dice.randbytes(8)
    start, end = sorted(dice.randrange(len(data) + 1) for _ in range(2))
    buffer = bytearray(data)
    buffer[start % len(data)] ^= 1 << dice.randrange(8)
    return dice.choice([bytes(buffer), data[:start], data + dice.randbytes(9), data[end:] + data[:start], data[start:]])


def mutated_json(dice: random.Random, value: Any) -> Any:
    """`value` with something in it replaced, removed, renamed, doubled or added."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key, mutant = dice.choice(sorted(value)), dict(value)
        match dice.randrange(6):
            case 0:
                del mutant[key]
            case 1:
                mutant[dice.choice(["", "x", "../x", "\x1b", key + "x", "__metadata__"])] = mutant.pop(key)
            case 2:
                mutant[dice.choice([*value, "x"])] = dice.choice([*VALUES, value[key]])
            case _:
                mutant[key] = mutated_json(dice, value[key])
        return mutant
    if isinstance(value, list) and value and dice.random() < 0.8:
        index = dice.randrange(len(value))
        return [*value[:index], mutated_json(dice, value[index]), *value[index + dice.randrange(2) :]]
    return dice.choice(VALUES)


# The kinds: each prepares a sound thing and returns what makes a command line of a mutated one.


def configs() -> Case:
    """Config files and overrides, shown and planned."""
    Path("text.txt").write_text(TEXT)
    seeds = [TRAIN_CONFIG, TRAIN_CONFIG, annotate_config(Config()), dump_config(Config())]

    def case(dice: random.Random) -> list[str]:
        text = mutated_text(dice, dice.choice(seeds))
        data = text.encode(errors="surrogatepass") if dice.random() < 0.5 else text.encode(errors="replace")
        Path("case.yaml").write_bytes(mutated_bytes(dice, data) if dice.random() < 0.1 else data)
        keys = ["train.steps", "model.n_embd", "optim.betas", "data.source", "run_dir", "x", "seed", "model", ""]
        overrides = [f"{dice.choice(keys)}={dice.choice(PIECES)}" for _ in range(dice.choice([0, 0, 1, 2]))]
        return ["config", "show", "case.yaml", *(text.replace("\0", "") for text in overrides)]

    return case


def checkpoints() -> Case:
    """Checkpoints with sums that are right, sampled, examined, described, measured and resumed."""
    Path("text.txt").write_text(TEXT)
    Path("trained.yaml").write_text(TRAIN_CONFIG)
    train(load_config(Path("trained.yaml")), Console(lambda text: None))
    sound_run = Path("trained.sound")
    Path("trained").rename(sound_run)
    (name,) = [path.name for path in list_checkpoints(sound_run)]

    def case(dice: random.Random) -> list[str]:
        shutil.rmtree("trained", ignore_errors=True)
        shutil.copytree(sound_run, "trained")
        path = Path("trained/checkpoints") / name
        for _ in range(dice.choice([1, 1, 1, 2])):
            mutate_checkpoint(dice, path)
        if dice.random() < 0.95:
            seal(path)
        verbs = (["sample", "--max-new-tokens", "2", "--seed", "1", "--run"], ["doctor"], ["info"], ["eval", "--run"])
        verb = dice.choice([*verbs[:1], *verbs, ["train", "--config", "trained.yaml", "train.steps=3"]])
        return verb if verb[0] == "train" else [*verb, dice.choice(["trained", str(path)])]

    return case


def mutate_checkpoint(dice: random.Random, path: Path) -> None:
    """Change one file of the checkpoint, mostly in what it means and not in its form."""
    file = path / dice.choice([*["model.safetensors", "optimizer.safetensors", "state.json"] * 2, *os.listdir(path)])
    data = file.read_bytes()
    if file.name == "SHA256SUMS":
        line = f"{'0' * 64}  {dice.choice(['../x', '/etc/passwd', 'a/b', '', 'x' * 300, 'state.json'])}\n".encode()
        data = dice.choice([data + line, data.upper(), b"", data * 2, mutated_bytes(dice, data)])
    elif file.name.endswith(".yaml"):
        key = dice.choice(["n_layer", "n_head", "n_embd", "context_length", "mlp_ratio", "position", "window", "norm"])
        value = dice.choice([*NUMBERS[:8], "x", "learned", "sinusoidal", "none", "layernorm", 8, 16])
        text = data.decode(errors="replace")
        lines = [f"  {key}: {value}" if key in line else line for line in text.split("\n")]
        data = dice.choice(["\n".join(lines), mutated_text(dice, text)]).encode(errors="surrogatepass")
    elif file.name.endswith(".json"):
        try:
            data = json.dumps(mutated_json(dice, json.loads(data))).encode()
        except ValueError:  # it was mutated before
            data = mutated_bytes(dice, data)
    else:
        size = min(int.from_bytes(data[:8], "little"), len(data))
        try:
            header = json.dumps(mutated_json(dice, json.loads(data[8 : 8 + size]))).encode()
        except ValueError:  # it was mutated before
            header = dice.randbytes(100)
        numbers = dice.choice([data[8 + size :], b"\xff" * max(0, len(data) - 8 - size), data[8 + size : -4]])
        stated_size = dice.choice([len(header)] * 8 + [2**63, 2**64 - 1, 0, len(header) + 1, 100_000_000])
        data = struct.pack("<Q", stated_size) + header + numbers
    file.write_bytes(mutated_bytes(dice, data) if dice.random() < 0.1 else data)


def seal(path: Path) -> None:
    """Make SHA256SUMS right again, as somebody hostile would; not if that is what was changed."""
    sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()}
    lines = (path / "SHA256SUMS").read_bytes().splitlines(keepends=True)
    listed_names = {line[66:].strip().decode(errors="replace") for line in lines}
    if listed_names == set(sums) - {"SHA256SUMS"}:
        text = "".join(f"{sums[name]}  {name}\n" for name in sorted(listed_names))
        (path / "SHA256SUMS").write_text(text)


def prompts() -> Case:
    """Prompts on the command line and in files, and texts to be scored, for a model of characters and one of bytes."""
    model = ModelConfig(n_layer=1, n_head=2, n_embd=8, context_length=8)
    config = Config(model=model, sample=SampleConfig(max_new_tokens=2))
    runs = [
        save(Path(name), 1, GPT(model, tokenizer.vocab_size).state_dict(), {}, {}, config, tokenizer)
        for name, tokenizer in (("char", CharTokenizer("\n abcdefgh")), ("byte", ByteTokenizer()))
    ]

    def case(dice: random.Random) -> list[str]:
        text = "".join(dice.choices(["a", "bc", "abc abc ", *PIECES], k=dice.choice([0, 1, 3, 30])))
        text *= dice.choice([1, 1, 1, 1, 500])
        arguments = ["sample", "--run", dice.choice([str(path) for path in runs]), "--seed", "1"]
        arguments += dice.choice([[], ["--unknown", "skip"], ["-n", "2"], ["--json"], ["--stop", text[:9] or "x"]])
        if dice.random() < 0.6:
            data = text.encode(dice.choice(["utf-8", "utf-16", "utf-8-sig"]), errors="surrogatepass")
            Path("case.prompt").write_bytes(mutated_bytes(dice, data) if dice.random() < 0.5 else data)
            if dice.random() < 0.7:
                return [*arguments, "--prompt-file", "case.prompt"]
            options = dice.choice([[], ["--jsonl"], ["--tokens"], ["--worst", "2"]])
            unknown = dice.choice([[], ["--unknown", "skip"]])
            return ["score", "case.prompt", *arguments[1:3], *options, *unknown]
        return [*arguments, "--prompt", text]

    return case


def names() -> Case:
    """Names of texts, runs and tensors: what is made is below the folder that is meant."""
    Path("text.txt").write_text(TEXT)
    corpus = prepare_corpus(Config().data.model_copy(update={"source": "text.txt"}), Config().tokenizer, note=print)

    def case(dice: random.Random) -> list[str]:
        name = "".join(dice.choices(["a", "runs", *PIECES], k=dice.choice([1, 1, 2, 4])))
        name = name.replace("\ud800", "")  # no command line and no config can hold it
        try:
            dir_name = run_name(name)
            assert Path("runs", dir_name).parent == Path("runs"), name
            assert all(c.isalnum() or c in "_-" for c in dir_name), name
            assert dir_name not in ("", ".", ".."), name
        except UserError:
            pass
        relative_path = name.replace("..", "").lstrip("/~")
        with suppress(UserError, ValueError):  # a config cannot have every text as a run_dir
            RunDirectory.open_for_training(Config(run_dir=f"made/{relative_path}"), corpus).close()
        shutil.rmtree("made", ignore_errors=True)
        name = name.replace("\0", "")
        verbs = (["info"], ["sample", "--run"], ["eval", "--run"], ["doctor"], ["plot"], ["data", "get"])
        verb = dice.choice([*verbs, ["eval", "--run", "x", "--text"], ["config", "show"], ["tokenize", "--tokenizer"]])
        return [*verb, name if not name.startswith("-") else f"./{name}"]

    return case


def commands() -> Case:
    """Command lines: every verb and option there is, with values that fit and values that do not."""
    Path("text.txt").write_text(TEXT)
    verbs = [
        "train",
        "sample",
        "chat",
        "score",
        "tokenize",
        "eval",
        "info",
        "plot",
        "doctor",
        "config",
        "data",
        "selftest",
    ]
    subcommands = ["show", "schema", "init", "list", "inspect", "get"]
    options = ["-n", "-o", "-h", *(f"--{name}" for name in OPTIONS.split())]
    values = ["text.txt", "nothing", "0", "1", "-1", "3", "cpu", "char", "bpe", "1e3", "nan", "train.steps=0", "a=b"]

    def case(dice: random.Random) -> list[str]:
        verb = dice.choice([*verbs, *verbs, dice.choice(PIECES)])
        words = [*options, *values, *subcommands, *PIECES]
        arguments = [dice.choice(words) for _ in range(dice.choice([0, 1, 2, 3, 5, 9]))]
        if verb == "train" and "--dry-run" not in arguments:
            arguments.append("--dry-run")  # or hours go by
        if verb == "selftest":
            arguments += ["--dir", "nowhere"]
        if verb in ("config", "data") and dice.random() < 0.8:
            arguments.insert(0, dice.choice(subcommands))
        return [
            argument.translate({0: None, 0xD800: None}) for argument in (verb, *arguments)
        ]  # no system passes these

    return case


KINDS = {"configs": configs, "checkpoints": checkpoints, "prompts": prompts, "names": names, "commands": commands}
ARTIFACTS = {"case.yaml", "case.txt", "case.prompt", "trained", "made", "temporary", "cache"}  # by the cases, and torch


def tree() -> set[str]:
    """All that lies here, but what cases are made of."""
    return {str(path) for path in Path().rglob("*") if path.parts[0] not in ARTIFACTS}


@cache
def _devnull() -> int:
    """A descriptor for what asks a stream for its own."""
    return os.open(os.devnull, os.O_WRONLY)


def run(arguments: list[str]) -> int:
    """The exit code of `gpt ARGUMENTS`, once all else about it is found to be as it should."""
    out, err = io.StringIO(), io.StringIO()
    out.fileno = err.fileno = _devnull  # type: ignore[method-assign]
    sys.stdin = io.TextIOWrapper(io.BytesIO(b""), encoding="utf-8")
    os.environ.pop("GPT_DEBUG", None)
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    output = err.getvalue()
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    assert code in (0, 1, 2), (code, output)
    assert "Traceback" not in output or "--debug" in arguments, output
    assert escape_control_chars(output, keep="\n\t") == output, output
    if code and "--debug" not in arguments and arguments[0] not in ("doctor", "selftest"):
        assert len(errors) == 1, output
        assert len(output.splitlines()[output.splitlines().index(errors[0]) :]) <= 12, output
    return code


def attack(kind: str, count: int, seed: int) -> dict[str, int]:
    """Try `count` cases of `kind`; how many ended with 0, 1 and 2, and the growth of memory in MB."""
    torch.set_num_threads(1)
    case, dice = KINDS[kind](), random.Random(seed)
    codes = {"0": 0, "1": 0, "2": 0}
    run(case(random.Random(0)))  # imports what is imported late
    Path("case.txt").touch()
    sys.addaudithook(watch)
    # What takes most of the time, and is not what this is about.
    os.fsync = lambda descriptor: None
    typer.main.get_command = cache(typer.main.get_command)
    directory._version = cache(directory._version)
    old_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    old_files = tree()
    for number in range(count):
        arguments = case(dice)
        Path("case.txt").write_text(ascii((number, arguments)))
        codes[str(run(arguments))] += 1
        if (new_files := tree()) != old_files:
            output_flags = {"-o", "--out", "init", "tokenize"} & {*arguments}  # it was asked for, by that name
            assert output_flags, new_files - old_files
            for path in new_files - old_files:
                shutil.rmtree(path, ignore_errors=True) if Path(path).is_dir() else Path(path).unlink(missing_ok=True)
    gc.collect()
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - old_memory
    return {"tried": sum(codes.values()), **codes, "grown": growth // 1000}


if __name__ == "__main__":
    Path("temporary").mkdir()
    os.environ["TMPDIR"] = str(Path("temporary").absolute())
    os.environ["GPT_CACHE"] = str(Path("cache").absolute())
    print(json.dumps(attack(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
