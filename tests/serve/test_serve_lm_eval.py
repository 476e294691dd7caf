"""lm-evaluation-harness against `gpt serve`: the figures that it gives on the export to Transformers."""

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt_cli.cli.main import main
from gpt_cli.config import Config, ModelConfig, SampleConfig, TokenizerConfig
from gpt_cli.model.gpt import GPT
from gpt_cli.run.directory import create_imported_run
from gpt_cli.tokenizer import train_tokenizer
from tests.support.command import ROOT
from tests.support.live_server import serving

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("lm_eval", "tenacity", "transformers", "accelerate")),
    reason="pip install 'lm-eval[api,hf]'",
)

CONTEXT = 40
WORDS = "the cat sat on a mat and saw seven dogs run home to eat their fish".split()  # noqa: SIM905 - it is read
TASKS: dict[str, dict[str, Any]] = {
    "choose": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_target": "{{answer}}",
        "doc_to_choice": "{{choices}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "predict": {
        "output_type": "loglikelihood",
        "doc_to_text": "{{text}}",
        "doc_to_target": " {{choices[0]}}",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    },
    "read": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{long}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    },
    "write": {
        "output_type": "generate_until",
        "doc_to_text": "{{short}}",  # of a long one the harness leaves the server one token more than Transformers
        "doc_to_target": "{{choices[0]}}",
        "generation_kwargs": {"until": ["zz"], "max_gen_toks": 8, "temperature": 0, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose probabilities differ much from token to token, with a BPE tokenizer."""
    tokenizer = train_tokenizer([" ".join(WORDS) * 20], TokenizerConfig(kind="bpe", vocab_size=290))
    shape = ModelConfig(n_layer=2, n_embd=32, n_head=2, context_length=CONTEXT, zero_init=False, init_std=0.2)
    path = tmp_path_factory.mktemp("runs") / "small"
    torch.manual_seed(0)
    sample = SampleConfig(max_new_tokens=8)  # exported, and then stronger than what the harness asks Transformers for
    config = Config(model=shape, sample=sample, run_dir=str(path))
    create_imported_run(config, tokenizer, GPT(shape, tokenizer.vocab_size).state_dict(), "nowhere")
    return path


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks of the harness on a file of this machine."""
    folder = tmp_path_factory.mktemp("tasks")
    chance = random.Random(1)
    with (folder / "docs.jsonl").open("w") as file:
        for _ in range(12):
            text, long = (" ".join(chance.choices(WORDS, k=k)) for k in (chance.randrange(1, 60), 90))
            choices = [" ".join(chance.choices(WORDS, k=chance.randrange(1, 4))) for _ in range(4)]
            line = {"text": text, "short": text[:30], "long": long, "choices": choices, "answer": chance.randrange(4)}
            file.write(json.dumps(line) + "\n")
    for name, content in TASKS.items():
        files = {"task": name, "dataset_path": "json", "test_split": "test"}
        data = {"dataset_kwargs": {"data_files": {"test": str(folder / "docs.jsonl")}}}
        (folder / f"{name}.yaml").write_text(json.dumps({**files, **data, **content}))  # JSON is YAML
    return folder


def evaluate(model: str, arguments: str, tasks: Path, folder: Path) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Figures of each task, and for each the harness's raw answers by document."""
    command = [sys.executable, "-m", "lm_eval", "--model", model, "--model_args", arguments]
    command += [
        "--include_path",
        str(tasks),
        "--tasks",
        ",".join(TASKS),
        "--output_path",
        str(folder),
        "--log_samples",
        "--device",
        "cpu",
    ]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
    environment = {
        **os.environ,
        **offline,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    completed = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert completed.returncode == 0, completed.stderr[-3000:]
    (results,) = folder.rglob("results_*.json")
    answers = {}
    for file in folder.rglob("samples_*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        name = re.sub(r"samples_(.*)_\d{4}-.*", r"\1", file.name)
        answers[name] = [row["filtered_resps"] for row in sorted(rows, key=lambda row: row["doc_id"])]
    return json.loads(results.read_text())["results"], answers


def numbers(value: Any) -> list[float]:
    """All numbers in nested lists; of a pair (log-likelihood, is it greedy) both."""
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    return [float({"True": 1, "False": 0}.get(value, value))]


@pytest.mark.slow
def test_the_harness_gives_the_same_figures_on_the_server_as_on_the_export(
    run: Path, tasks: Path, tmp_path: Path
) -> None:
    export = tmp_path / "export"
    assert main(["export", str(run), "--to", "hf", str(export)]) == 0
    expected, own = evaluate("hf", f"pretrained={export},dtype=float32", tasks, tmp_path / "hf")
    with serving(run) as client:
        where = f"model=small,base_url={client.url}/v1/completions,tokenizer_backend=huggingface,tokenizer={export}"
        limits = f"max_length={CONTEXT + 2},num_concurrent=1"
        actual, served = evaluate("local-completions", f"{where},{limits}", tasks, tmp_path / "served")
    assert served["write"] == own["write"]
    for name in ("choose", "predict", "read"):
        assert numbers(served[name]) == pytest.approx(numbers(own[name]), abs=1e-3)
    assert set(actual) == set(expected) == set(TASKS)
    for name, figures in expected.items():
        for metric, figure in figures.items():
            if isinstance(figure, float) and "stderr" not in metric:
                assert actual[name][metric] == pytest.approx(figure, rel=1e-4), (name, metric)
