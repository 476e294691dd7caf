"""Data is never code: nothing in the package unpickles, executes or evaluates, and a watched run does not either."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import ROOT
from tests.support.waiting import HANG

SOURCES = sorted((ROOT / "gpt_cli").rglob("*.py"))
MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "code",
    "codeop",
    "imp",
}
BUILTINS = {"exec", "eval", "compile", "__import__"}
FUNCTIONS = {
    "torch.load", "torch.save", "torch.jit.load", "torch.hub.load", "torch.utils.cpp_extension.load", "os.system",
    "os.popen", "yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "numpy.fromregex",
    "pandas.read_pickle", "zipfile.ZipFile.extractall",
}  # fmt: skip
NAMES = {"allow_pickle": {True}, "shell": {True}, "weights_only": {False}, "trust_remote_code": {True}}
LOADERS = {"Loader", "FullLoader", "UnsafeLoader", "CLoader"}


def dangers(source: str) -> Iterator[tuple[int, str]]:
    """Each line of `source` that could turn data into code, and what there does."""
    tree = ast.parse(source)
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                aliases[name.asname or name.name.partition(".")[0]] = (
                    name.name if name.asname else name.name.partition(".")[0]
                )
                if name.name.partition(".")[0] in MODULES:
                    yield node.lineno, f"import {name.name}"
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                aliases[name.asname or name.name] = f"{node.module}.{name.name}"
                if (node.module or "").partition(".")[0] in MODULES:
                    yield node.lineno, f"import {node.module}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func, aliases)
            if name in FUNCTIONS or (isinstance(node.func, ast.Name) and node.func.id in BUILTINS):
                yield node.lineno, f"call of {name}"
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("extract", "extractall"):
                yield node.lineno, f"call of {node.func.attr}, which writes where an archive says"
            if name == "numpy.load" and not any(keyword.arg == "allow_pickle" for keyword in node.keywords):
                yield node.lineno, "numpy.load that does not say allow_pickle=False"
            for keyword in node.keywords:
                if isinstance(keyword.value, ast.Constant) and keyword.value.value in NAMES.get(keyword.arg or "", ()):
                    yield node.lineno, f"{keyword.arg}={keyword.value.value}"
        elif isinstance(node, ast.Attribute) and dotted(node, aliases) in {f"yaml.{loader}" for loader in LOADERS}:
            yield node.lineno, dotted(node, aliases)


def dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    """`np.load` as `numpy.load`; empty for what is no name."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    return f"{dotted(node.value, aliases)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_turns_data_into_code(path: Path) -> None:
    assert list(dangers(path.read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import torch as t; t.load('x')",
        "from torch import save as keep; keep({}, 'x')",
        "eval('1')",
        "exec(text)",
        "compile(text, 'x', 'exec')",
        "import yaml; yaml.load(text, Loader=yaml.FullLoader)",
        "import yaml; yaml.unsafe_load(text)",
        "import numpy as np; np.load('x')",
        "import numpy as np; np.load('x', allow_pickle=True)",
        "import subprocess; subprocess.run('ls', shell=True)",
        "import os; os.system('ls')",
    ],
)
def test_the_reader_of_sources_sees_each_danger(line: str) -> None:
    assert list(dangers(line))


@pytest.mark.parametrize("line", ["model.eval()", "import re; re.compile('a')", "import torch; torch.compile(f)"])
def test_the_reader_of_sources_knows_what_is_harmless(line: str) -> None:
    assert list(dangers(line)) == []


CONFIG = """
run_dir: run
data: {source: text.txt}
model: {n_layer: 1, n_head: 2, n_embd: 16, context_length: 16}
train: {steps: 6, batch_size: 2}
eval: {every: 3}
checkpoint: {every: 3}
sample: {every: 3, max_new_tokens: 5}
runtime: {device: cpu, threads: 1}
"""


def watched(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    shutil.copytree(os.environ["GPT_CACHE"], folder / "cache", dirs_exist_ok=True)
    directories = {"GPT_CACHE": str((folder / "cache").resolve()), "TMPDIR": str(folder)}
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", **directories}
    return subprocess.run(
        [sys.executable, "-B", "-m", "tests.support.audit_hook", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=HANG, check=False,
    )  # fmt: skip


@pytest.mark.robust
def test_a_whole_train_resume_eval_and_sample_stays_on_its_own_ground(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("It was the best of times, it was the worst of times.\n" * 40)
    (tmp_path / "config.yaml").write_text(CONFIG)
    commands = [
        "train --config config.yaml",
        "train --config config.yaml train.steps=9",
        "eval --run run",
        "sample --run run --max-new-tokens 5",
        "train --config config.yaml run_dir=bpe tokenizer.kind=bpe tokenizer.vocab_size=260",
        "doctor run",
    ]
    completed = watched(tmp_path, *" then ".join(commands).split())
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr.count("is saved") == 3


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("import pickle; pickle.loads(b'cos\\nsystem\\n.')", "pickle.find_class"),
        ("exec('1')", "compile"),
        ("import socket; socket.socket().connect(('127.0.0.1', 9))", "socket.connect"),
        ("import subprocess; subprocess.run(['true'])", "subprocess.Popen"),
        ("open('/tmp/gpt-outside', 'w')", "opened for writing"),
    ],
)
def test_the_watch_is_awake(tmp_path: Path, code: str, complaint: str) -> None:
    (tmp_path / "planted.py").write_text(code)
    completed = watched(tmp_path, "do", "planted")
    assert completed.returncode == 99, completed.stderr
    assert complaint in completed.stderr or "exec of" in completed.stderr
