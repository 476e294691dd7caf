"""`gpt train` and `gpt eval` as a user meets them: from text to a run, and every bad input with one clear error."""

import contextlib
import fcntl
import json
import math
import os
import pty
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from gpt_cli.cli.main import main
from gpt_cli.cli.options.run_name import run_name
from gpt_cli.cli.train_output import print_summary
from gpt_cli.cli.verbs.train import train
from gpt_cli.config import Config, dump_config
from gpt_cli.config.keys import fields
from gpt_cli.errors import RequestError
from gpt_cli.training.summary import Summary
from tests.support.command import subprocess_env
from tests.support.tiny_run import TEXT
from tests.support.waiting import HANG, wait_until

CONFIG = """\
run_dir: runs/tiny
data: {source: text.txt}
model: {n_layer: 1, n_head: 2, n_embd: 16, context_length: 16}
train: {steps: 8, batch_size: 4}
eval: {every: 4}
checkpoint: {every: 4}
sample: {every: 8, max_new_tokens: 10}
runtime: {device: cpu, threads: 1}
"""


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    """A folder with a text and a config."""
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    return tmp_path


def test_the_test_split_is_for_a_last_evaluation_and_no_training_looks_at_it(gpt_here, work_dir):
    outcome_without_test = gpt_here("train", "--config", "tiny.yaml", "train.steps=1", "run_dir=runs/none")
    assert outcome_without_test.rc == 0, outcome_without_test.stderr
    eval_outcome = gpt_here("eval", "--run", "runs/none", "--split", "test")
    assert eval_outcome.rc == 2
    assert "data.test_fraction is 0" in eval_outcome.stderr

    weights = []
    for tail in ("wisdom", "domwis"):  # other text in the test split, made of the same characters
        offset = len(TEXT) - len(TEXT) // 5 + 5
        (work_dir / "text.txt").write_text(TEXT[:offset] + TEXT[offset:].replace("wisdom", tail))
        keys = ("data.test_fraction=0.2", f"run_dir=runs/{tail}", "sample.every=null")
        train_outcome = gpt_here("train", "--config", "tiny.yaml", "--json", *keys)
        assert train_outcome.rc == 0, train_outcome.stderr
        weights.append(json.loads(train_outcome.stdout)["weights_sha256"])
        metrics = {
            split: json.loads(gpt_here("eval", "--json", "--run", f"runs/{tail}", "--split", split).stdout)
            for split in ("val", "test")
        }
        assert metrics["test"]["text"] == "test split"
        assert metrics["test"]["characters"] == pytest.approx(len(TEXT) / 5, abs=3)
        assert metrics["val"]["loss"] == pytest.approx(json.loads(train_outcome.stdout)["val_loss"], rel=1e-5)
    assert weights[0] == weights[1]
    conflict_outcome = gpt_here("eval", "--run", "runs/wisdom", "--split", "test", "--text", "text.txt")
    assert conflict_outcome.rc == 2


def test_from_a_text_to_a_run_to_its_loss(gpt_here, work_dir):
    train_outcome = gpt_here("train", "--config", "tiny.yaml", "--json")
    assert train_outcome.rc == 0, train_outcome.stderr
    summary = json.loads(train_outcome.stdout)
    assert summary.keys() >= {
        "run_dir", "steps", "val_loss", "best_val_loss", "bpc", "bpb", "train_seconds", "tokens_per_second",
        "parameters", "weights_sha256",
    }  # fmt: skip
    assert (summary["run_dir"], summary["steps"]) == ("runs/tiny", 8)
    assert "gpt sample --run runs/tiny" in train_outcome.stderr

    metrics = json.loads(gpt_here("eval", "--json").stdout)
    assert metrics.keys() >= {"loss", "perplexity", "bpc", "bpb", "tokens"}
    assert metrics["loss"] == pytest.approx(summary["val_loss"], rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))

    (work_dir / "other.txt").write_text("it was the worst of wisdom")
    eval_outcome = gpt_here("eval", "--run", "runs/tiny", "--text", "other.txt")
    assert eval_outcome.rc == 0
    assert "tokens" in eval_outcome.stdout
    (work_dir / "other.txt").write_text("zero Ω")
    refused_outcome = gpt_here("eval", "--text", "other.txt")
    assert refused_outcome.rc == 2
    assert "'Ω'" in refused_outcome.stderr
    assert gpt_here("eval", "--text", "other.txt", "--unknown", "skip").rc == 0


def test_a_second_train_says_that_the_run_is_done_and_more_steps_go_on(gpt_here, work_dir):
    first = gpt_here("train", "--config", "tiny.yaml", "--json")
    second = gpt_here("train", "--config", "tiny.yaml", "--json")
    assert json.loads(second.stdout)["weights_sha256"] == json.loads(first.stdout)["weights_sha256"]
    assert "all 8 steps are done" in second.stderr
    assert json.loads(gpt_here("train", "--config", "tiny.yaml", "train.steps=12", "--json").stdout)["steps"] == 12


def test_a_text_in_place_of_a_config_gets_one_that_fits(gpt_here, work_dir):
    outcome = gpt_here("train", "text.txt", "train.steps=3", "--json")
    assert outcome.rc == 0, outcome.stderr
    assert json.loads(outcome.stdout)["run_dir"] == "runs/text"
    assert "source: text.txt" in (work_dir / "runs/text/config.yaml").read_text()
    resumed_outcome = gpt_here("train", "text.txt", "train.steps=4", "--json")
    assert json.loads(resumed_outcome.stdout)["steps"] == 4


def test_a_text_that_is_named_like_an_override_is_a_text_and_typos_in_keys_stay_overrides(gpt_here, work_dir):
    (work_dir / "we=ird.txt").write_text(TEXT)
    outcome = gpt_here("train", "we=ird.txt", "train.steps=1", "run_dir=runs/my run")
    assert outcome.rc == 0, outcome.stderr
    assert (work_dir / "runs/my run/run.json").exists()
    assert "sample: gpt sample --run 'runs/my run'" in outcome.stderr
    assert_one_error(gpt_here("train", "text.txt", "train.stps=1"), 2, "train.stps is not a key")
    assert sorted(path.name for path in (work_dir / "runs").iterdir()) == ["my run"]


NAMES = {
    "book.txt.gz": "book",
    "v1.2-notes.txt": "v1-2-notes",
    "texts.tar.zst": "texts",
    "..": "folder",
    ".": "in-side",
    "glob*.txt": "glob",
    "**/*.txt": "text",
    "builtin:python-docs": "python-docs",
    "corpus:tiny-shakespeare": "tiny-shakespeare",
    "hf:someone/stories": "stories",
    "../my book (2nd).txt": "my-book-2nd",
    "/": "text",
    "\x1b[2J\n.txt": "2J",
    "книга.txt": "книга",
    ".hidden": "hidden",
    "学习.txt": "学习",
    "模型.txt": "模型",
    "Ma\u0308rchen & co.txt": "M\u00e4rchen-co",
    "\udcff.txt": "text",
}


@pytest.mark.parametrize("source", NAMES)
def test_a_run_is_named_after_its_text_in_letters_that_need_no_quotes(tmp_path, monkeypatch, source):
    (tmp_path / "folder/in side").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "folder/in side")
    assert run_name(source) == NAMES[source]


def planned_config(*arguments: str) -> Config:
    """What `gpt train ARGUMENTS` would train, asked in this process."""
    with pytest.MonkeyPatch.context() as patch:
        configs = []
        patch.setattr("gpt_cli.search.dry_run.plan", lambda config, _: configs.append(config))
        patch.setattr("gpt_cli.report.info_view.render_plan", str)
        train(list(arguments), dry_run=True)
    return configs[0]


def test_a_text_is_the_same_however_its_path_is_written_and_another_one_needs_a_run_dir(work_dir, monkeypatch):
    monkeypatch.chdir(work_dir)
    for folder in ("a", "b"):
        Path(folder).mkdir()
        Path(folder, "input.txt").write_text(TEXT)
    config = planned_config("a/input.txt", "train.steps=7")
    assert config.run_dir == "runs/input"
    Path("runs/input").mkdir(parents=True)
    Path("runs/input/config.yaml").write_text(dump_config(config))
    Path("link.txt").symlink_to("a/input.txt")
    for source in ("a/input.txt", "./a/input.txt", "b/../a/input.txt", str(work_dir / "a/input.txt"), "link.txt"):
        assert planned_config(source) == config
    with pytest.raises(RequestError, match=r"is a run on another text, a/input\.txt") as caught:
        planned_config("b/input.txt")
    assert caught.value.kind == "another run"
    other_config = planned_config("b/input.txt", "run_dir=runs/other")
    assert (other_config.run_dir, other_config.data.source) == ("runs/other", "b/input.txt")


def test_a_text_that_is_named_twice_is_refused_with_both_names(work_dir, monkeypatch):
    monkeypatch.chdir(work_dir)
    with pytest.raises(RequestError, match=r"named twice: text\.txt, and data\.source=other\.txt"):
        planned_config("text.txt", "data.source=other.txt")


def test_the_folder_one_works_in_stays_the_same_text_when_its_runs_are_in_it(gpt_here, work_dir):
    assert gpt_here("train", ".", "train.steps=2", "run_dir=runs/here").rc == 0
    assert gpt_here("tokenize", ".", "--out", "tokens/here").rc == 0
    outcome = gpt_here("train", ".", "train.steps=3", "run_dir=runs/here", "--json")
    assert outcome.rc == 0, outcome.stderr
    assert json.loads(outcome.stdout)["steps"] == 3
    assert "left out the run runs/here" in outcome.stderr


def test_what_a_run_has_lost_is_said_before_it_goes_on(gpt_here, work_dir):
    args = ("train", "text.txt", "run_dir=runs/lost", "model.n_layer=1", "model.n_embd=32", "model.context_length=16")
    assert gpt_here(*args, "train.steps=2").rc == 0
    assert "all 2 steps are done" in gpt_here(*args, "train.steps=2", "--dry-run").stdout
    assert "would go on from step 2" in gpt_here(*args, "train.steps=3", "--dry-run").stdout
    tokenizer = work_dir / "runs" / "lost" / "tokenizer.json"
    tokenizer.unlink()
    doctor_outcome = gpt_here("doctor", "runs/lost")
    assert doctor_outcome.rc == 1
    assert re.search(r"^tokenizer +FAILED", doctor_outcome.stdout, re.MULTILINE)
    assert "has no checkpoint" not in gpt_here("train", "runs/lost", "train.steps=3").stderr
    assert not tokenizer.exists()  # the copy in the checkpoint is read
    shutil.copy(work_dir / "runs/lost/checkpoints/step-00000003/tokenizer.json", tokenizer)
    shutil.rmtree(work_dir / "runs" / "lost" / "checkpoints")
    metrics = work_dir / "runs" / "lost" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:1]))  # with log.every=10, say
    assert "runs/lost has no checkpoint: its 3 steps are lost" in gpt_here("train", "runs/lost").stderr


def test_a_token_store_trains_as_its_text_does(gpt_here, work_dir):
    assert gpt_here("tokenize", "text.txt", "--kind", "char", "--out", "store").rc == 0
    text_outcome = gpt_here("train", "--config", "tiny.yaml", "--json")
    store_outcome = gpt_here("train", "--config", "tiny.yaml", "data.source=store", "run_dir=runs/store", "--json")
    assert store_outcome.rc == 0, store_outcome.stderr
    assert json.loads(store_outcome.stdout)["weights_sha256"] == json.loads(text_outcome.stdout)["weights_sha256"]


def test_a_dry_run_on_damaged_tokens_is_an_error(gpt_here, work_dir):
    assert gpt_here("tokenize", "text.txt", "--kind", "char", "--out", "store").rc == 0
    shard = work_dir / "store/train-00000.npy"
    shard.write_bytes(shard.read_bytes()[:-200] + b"\xff" * 200)
    assert_one_error(gpt_here("train", "--config", "tiny.yaml", "data.source=store", "--dry-run"), 1, "damaged")


def test_a_dry_run_prints_the_plan_and_leaves_nothing_but_caches(gpt_here, work_dir):
    old_files = sorted(work_dir.rglob("*"))
    output = gpt_here("train", "--config", "tiny.yaml", "--dry-run")
    assert output.rc == 0, output.stderr
    for word in ("parameters", "memory", "epochs", "tokens per parameter", "4 x 16 tokens", "time"):
        assert word in output.stdout
    assert sorted(work_dir.rglob("*")) == old_files
    assert {path.name for path in Path(os.environ["GPT_CACHE"]).iterdir()} <= {"native", "stores", "texts"}
    assert "seconds_per_step" in json.loads(gpt_here("train", "--config", "tiny.yaml", "--dry-run", "--json").stdout)


def test_a_dry_run_of_steps_that_torch_compiles_tells_their_time_without_the_compilation(
    gpt_here, work_dir, monkeypatch
):
    seconds = iter([29.0, 0.3])
    monkeypatch.setattr("gpt_cli.search.dry_run.time_steps", lambda *_: next(seconds))
    output = gpt_here("train", "--config", "tiny.yaml", "runtime.compile=true", "--dry-run", "--json")
    assert json.loads(output.stdout)["seconds_per_step"] == pytest.approx(0.1)


MEASURING_SCRIPT = """
import json, resource, sys
from gpt_cli.cli.main import main
from tests.support.memory import peak_kilobytes
code = main(sys.argv[1:])
facts = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([code, facts.ru_utime + facts.ru_stime, peak_kilobytes() / 1024]))
"""


@pytest.mark.robust
@pytest.mark.parametrize(("largest", "layers"), [
    (["model.n_layer=10000", "model.n_embd=64"], [1, 2]),
    (["model.n_layer=10000", "model.n_embd=10000000", "model.n_head=1"], []),
])  # fmt: skip
def test_a_dry_run_of_the_largest_model_takes_10_seconds_of_a_processor_and_500_mb_at_most(work_dir, largest, layers):
    completed = subprocess.run(
        [sys.executable, "-c", MEASURING_SCRIPT, "train", "--config", "tiny.yaml", "--dry-run", "--json", *largest],
        cwd=work_dir, env=subprocess_env(), capture_output=True, text=True,
        timeout=HANG, check=False,
    )  # fmt: skip
    plan, _, usage = completed.stdout.strip().rpartition("\n")
    code, seconds, megabytes = json.loads(usage)
    assert code == 0, completed.stderr
    assert json.loads(plan)["measured_layers"] == layers
    assert seconds <= 10
    assert megabytes <= 500


@pytest.mark.system
def test_the_text_is_read_under_a_bar_where_someone_watches_and_silently_elsewhere(gpt, work_dir):
    (work_dir / "long.txt").write_text(TEXT * 300)
    config = ["train", "--config", "tiny.yaml", "data.source=long.txt", "train.steps=1"]
    master_fd, slave_fd = pty.openpty()
    fcntl.ioctl(slave_fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))  # no bar fits a terminal of no width
    process = subprocess.Popen(
        [sys.executable, "-m", "gpt_cli", *config],
        cwd=work_dir, stderr=slave_fd, env=subprocess_env(),
    )  # fmt: skip
    os.close(slave_fd)
    output = b""
    with contextlib.suppress(OSError):  # EIO: the process has ended
        while chunk := os.read(master_fd, 4096):
            output += chunk
    os.close(master_fd)
    assert process.wait(timeout=HANG) == 0
    for stage in (b"reading", b"encoding"):
        assert re.search(stage + rb": +\d+%.*B/s", output), stage
    (work_dir / "long.txt").write_text(TEXT * 301)  # its tokens are not known yet
    outcome = gpt(*config, "run_dir=runs/silent")
    assert outcome.rc == 0
    assert "B/s" not in outcome.stderr


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_says_so_and_the_same_command_goes_on(gpt_here, work_dir, number):
    command = [
        sys.executable,
        "-m",
        "gpt_cli",
        "train",
        "--config",
        "tiny.yaml",
        "train.steps=1000000000",
        "eval.every=null",
    ]
    environment = subprocess_env()
    process = subprocess.Popen(command, cwd=work_dir, env=environment, stderr=subprocess.PIPE, text=True)
    metrics = work_dir / "runs/tiny/metrics.jsonl"
    wait_until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 3, process)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=HANG)
    assert process.returncode == 128 + number
    assert "is saved" in stderr
    assert "Traceback" not in stderr
    steps = max(int(path.name.removeprefix("step-")) for path in (work_dir / "runs/tiny/checkpoints").iterdir())
    outcome = gpt_here("train", "--config", "tiny.yaml", f"train.steps={steps + 5}", "eval.every=null", "--json")
    assert json.loads(outcome.stdout)["steps"] == steps + 5


BAD_TEXTS = {
    "missing": (None, 2, "does not exist"),
    "empty": (b"", 1, "empty"),
    "binary": (b"\x00\x01\x02" * 100, 1, "binary"),
    "latin-1": ("déjà vu ".encode("latin-1") * 50, 1, "offset 1"),
    "short": (b"seventeen letters", 2, "too few"),
}


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_a_bad_text_is_one_clear_error(gpt_here, work_dir, name):
    content, code, words = BAD_TEXTS[name]
    if content is not None:
        (work_dir / "bad.txt").write_bytes(content)
    outcome = gpt_here("train", "--config", "tiny.yaml", "data.source=bad.txt")
    assert_one_error(outcome, code, words)
    assert not (work_dir / "runs").exists()


BAD_CONFIGS = {
    "unknown key": ("model: {n_layr: 2}", "did you mean", "bad.yaml:1:9"),
    "wrong type": ("train: {steps: many}", "'many'", "bad.yaml:1:16"),
    "out of range": ("model: {dropout: 1.5}", "1.5", "bad.yaml:1:18"),
    "indivisible": ("model: {n_embd: 10, n_head: 4}", "multiple", "bad.yaml"),
    "not yaml": ("model: {n_layer: 2\ntrain: [", "bad.yaml:", "bad.yaml:2"),
    "vocabulary smaller than the alphabet": ("tokenizer: {kind: bpe, vocab_size: 20}", "257", "bad.yaml:1:36"),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_a_bad_config_is_one_clear_error_with_its_place(gpt_here, work_dir, name):
    text, words, location = BAD_CONFIGS[name]
    (work_dir / "bad.yaml").write_text(text)
    outcome = gpt_here("train", "--config", "bad.yaml")
    assert_one_error(outcome, 2, words)
    assert location in outcome.stderr


BAD_REQUESTS = {
    "no config and no text": (["train"], 2, "nothing to train"),
    "both": (["train", "text.txt", "--config", "tiny.yaml"], 2, "either"),
    "missing config": (["train", "--config", "nowhere.yaml"], 2, "nowhere.yaml"),
    "vocabulary larger than the corpus supports": (
        ["train", "--config", "tiny.yaml", "tokenizer.kind=bpe", "tokenizer.vocab_size=5000"], 2, "5,000",
    ),
    "absent device": (["train", "--config", "tiny.yaml", "runtime.device=mps"], 2, "no mps device"),
    "no run": (["eval"], 2, "no run found"),
    "no such run": (["eval", "--run", "nowhere"], 2, "nowhere"),
    "an empty run": (["eval", "--run", ""], 2, "--run must not be empty"),
    "unknown flag": (["train", "--confg", "tiny.yaml"], 2, "--confg"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_is_one_clear_error(gpt_here, work_dir, name):
    arguments, code, words = BAD_REQUESTS[name]
    assert_one_error(gpt_here(*arguments), code, words)


def test_a_run_directory_of_another_config_is_refused_with_both_values(gpt_here, work_dir):
    gpt_here("train", "--config", "tiny.yaml")
    outcome = gpt_here("train", "--config", "tiny.yaml", "model.n_layer=2")
    assert_one_error(outcome, 2, "model.n_layer 1 there, 2 here")


def test_a_directory_that_is_no_run_is_refused_and_left_alone(gpt_here, work_dir):
    (work_dir / "runs/tiny").mkdir(parents=True)
    (work_dir / "runs/tiny/thesis.txt").write_text("mine")
    outcome = gpt_here("train", "--config", "tiny.yaml")
    assert_one_error(outcome, 2, "holds other files")
    assert [path.name for path in (work_dir / "runs/tiny").iterdir()] == ["thesis.txt"]


@pytest.mark.system
def test_a_reader_of_stderr_that_leaves_does_not_end_the_training(gpt_here, work_dir):
    script = f"{sys.executable} -m gpt_cli train --config tiny.yaml 2>&1 | head -1"
    environment = subprocess_env()
    subprocess.run(["bash", "-c", script], cwd=work_dir, env=environment, check=True, capture_output=True, timeout=HANG)
    assert json.loads(gpt_here("eval", "--json").stdout)["step"] == 8


def assert_one_error(outcome, code: int, words: str) -> None:
    assert outcome.rc == code, outcome.stderr
    assert outcome.stdout == ""
    assert words in outcome.stderr
    assert outcome.stderr.count("error:") == 1
    assert "Traceback" not in outcome.stderr
    assert len(outcome.stderr.splitlines()) <= 12


def test_where_the_text_of_a_run_is_gone_no_other_is_proposed_and_the_hint_leads_on(gpt_here, work_dir):
    assert gpt_here("train", "tiny.yaml", "train.steps=1").rc == 0
    (work_dir / "text.txt").rename(work_dir / "texts.txt")
    for flags in ([], ["--dry-run"]):
        outcome = gpt_here("train", "runs/tiny", *flags)
        assert outcome.rc == 2
        assert "did you mean" not in outcome.stderr
        assert "hint: data.source=PATH\n" in outcome.stderr
    assert gpt_here("train", "texts.txt", "train.init_from=runs/tiny", "train.steps=1").rc == 0
    assert gpt_here("train", "runs/tiny", "data.source=texts.txt").rc == 0


def test_a_run_goes_on_where_its_text_lies_now_and_on_no_other_text(gpt_here, work_dir):
    assert gpt_here("train", "tiny.yaml", "run_dir=runs/whole").rc == 0
    assert gpt_here("train", "tiny.yaml", "train.steps=4").rc == 0
    (work_dir / "other.txt").write_text((work_dir / "text.txt").read_text()[::-1])
    assert_one_error(gpt_here("train", "runs/tiny", "data.source=other.txt"), 2, "is a run with another config")
    (work_dir / "moved").mkdir()
    (work_dir / "text.txt").rename(work_dir / "moved" / "text.txt")
    outcome = gpt_here("train", "runs/tiny", "data.source=other.txt")
    assert_one_error(outcome, 2, "this is not the text of the run in runs/tiny")
    assert "data.source=other.txt" not in (work_dir / "runs/tiny/config.yaml").read_text()
    outcome = gpt_here("train", "runs/tiny", "data.source=moved/text.txt", "train.steps=8")
    assert outcome.rc == 0, outcome.stderr
    assert "\n  source: moved/text.txt\n" in (work_dir / "runs/tiny/config.yaml").read_text()
    assert gpt_here("eval", "runs/tiny").rc == gpt_here("train", "runs/tiny").rc == 0


def test_the_moved_text_itself_resumes_its_run_and_another_does_not(gpt_here, work_dir):
    assert gpt_here("train", "text.txt", "model.n_layer=1", "model.n_embd=16", "train.steps=4").rc == 0
    (work_dir / "text.txt").rename(work_dir / "moved.txt")
    assert gpt_here("train", "moved.txt", "run_dir=runs/text", "train.steps=6").rc == 0
    (work_dir / "moved.txt").rename(work_dir / "again.txt")
    assert gpt_here("train", "again.txt", "run_dir=runs/text", "train.steps=6").rc == 0  # it is complete
    for run in ("runs/text", "runs/text/checkpoints/step-00000006"):
        assert json.loads(gpt_here("eval", run, "--json").stdout)["step"] == 6
    (work_dir / "again.txt").rename(work_dir / "gone.txt")
    (work_dir / "text.txt").write_text(TEXT[::-1])
    outcome = gpt_here("train", "text.txt", "train.steps=7")
    assert_one_error(outcome, 2, "this is not the text of the run in runs/text")
    assert "hint: run_dir=runs/NAME starts a new run\n" in outcome.stderr


def test_the_hint_names_the_key_of_the_text_that_is_gone(gpt_here, work_dir):
    (work_dir / "held.txt").write_text(TEXT)
    assert gpt_here("train", "tiny.yaml", "data.source=[text.txt,held.txt]", "data.val_source=held.txt").rc == 0
    (work_dir / "held.txt").rename(work_dir / "moved.txt")
    outcome = gpt_here("train", "runs/tiny")
    (source,) = shlex.split(outcome.stderr.rpartition("hint: ")[2])
    assert source == "data.source=[text.txt, PATH]"
    keys = [source.replace("PATH", "moved.txt"), "data.val_source=moved.txt"]
    assert gpt_here("train", "runs/tiny", *keys).rc == 0
    assert_one_error(gpt_here("train", "runs/tiny", "data.val_source=null"), 2, "is a run with another config")


def test_the_new_place_of_a_text_is_kept_as_one_that_is_found_from_anywhere(gpt_here, work_dir, monkeypatch):
    assert gpt_here("train", "tiny.yaml", "train.steps=4").rc == 0
    (work_dir / "moved").mkdir()
    (work_dir / "text.txt").rename(work_dir / "moved" / "book.txt")
    monkeypatch.chdir(work_dir / "moved")
    assert gpt_here("train", "../runs/tiny", "data.source=book.txt", "train.steps=5").rc == 0
    monkeypatch.chdir(work_dir)
    assert gpt_here("train", "runs/tiny", "train.steps=6").rc == 0


def test_a_run_that_ended_in_nan_before_it_saved_is_not_to_be_trained_again_as_it_is(gpt_here, work_dir):
    keys = ("optim.lr=1e30", "optim.grad_clip=null", "schedule.warmup_steps=0", "runtime.engine=torch")
    train_outcome = gpt_here("train", "tiny.yaml", *keys)
    assert train_outcome.rc == 1, train_outcome.stderr
    sample_outcome = gpt_here("sample", "--run", "runs/tiny")
    assert sample_outcome.rc == 2
    assert (
        "as its loss was not finite\nhint: gpt train runs/tiny run_dir=runs/NAME optim.lr=RATE\n"
        in sample_outcome.stderr
    )
    assert gpt_here("train", "runs/tiny", "run_dir=runs/again", "optim.lr=0.001").rc == 0
    assert gpt_here("sample", "--run", "runs/again").rc == 0


def summary_of(**values: Any) -> Summary:
    losses = {"val_loss": 2.5, "best_val_loss": 2.0, "best_step": 2, "bpc": 3.0, "bpb": 3.0}
    size = {"train_seconds": 1.0, "tokens_per_second": 8.0, "parameters": 1, "val_tokens": None}
    paths = {"run_dir": "runs/x", "checkpoint": "runs/x/checkpoints/4", "best_checkpoint": "runs/x/checkpoints/2"}
    end = {"weights_sha256": "0" * 64, "stopped": "all 4 steps are done", "exit_code": 0}
    return Summary(steps=4, accuracy=None, macro_f1=None, **(losses | size | paths | end | values))


@pytest.mark.parametrize(("steps", "is_told"), [(0, False), (3, True)])
def test_how_a_run_goes_on_is_told_where_it_has_steps_left(gpt_here, work_dir, steps: int, is_told: bool) -> None:
    outcome = gpt_here("train", "--config", "tiny.yaml", "train.until_loss=100", f"train.steps={steps}")
    assert outcome.rc == 0, outcome.stderr
    assert ("continue: gpt train runs/tiny train.until_loss=null" in outcome.stderr) is is_told


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "the best is kept too: gpt sample --run runs/x/checkpoints/2"),
        ({"best_step": 0, "best_checkpoint": None}, "from before the first step: no checkpoint is that good"),
        ({"best_step": 0, "best_checkpoint": None, "val_loss": None}, None),
        ({"best_checkpoint": None}, "the checkpoint of the best val loss, step 2, is damaged or gone"),
        ({"best_checkpoint": None, "best_val_loss": None, "best_step": None, "val_loss": None}, None),
        ({"best_step": 4, "best_checkpoint": "runs/x/checkpoints/4"}, None),
    ],
)
def test_a_summary_says_where_the_best_weights_are_if_not_in_the_last_checkpoint(
    values: dict[str, Any], said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    print_summary(summary_of(**values), json=False)
    lines = capsys.readouterr().err.splitlines()
    of_best = [line for line in lines if "the best is kept" in line or "checkpoint" in line]
    assert (of_best == []) if said is None else (said in of_best[0])


def test_the_keys_of_the_help_are_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    keys = re.findall(r"^  ([a-z_]+(?:\.[a-z_]+)?)=", capsys.readouterr().out, flags=re.MULTILINE)
    assert len(keys) == 10
    assert set(keys) <= fields().keys()
