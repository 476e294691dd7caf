"""Classification: what fills up a batch changes nothing, splits are fair, and what cannot be learned is told."""

import contextlib
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import gpt_cli
from gpt_cli.cli.main import main
from gpt_cli.config import Config, load_config, parse_config
from gpt_cli.corpus.labelled import LabelledText, assign_by_label, read_labelled, sort_labels
from gpt_cli.corpus.prepare import Corpus, prepare_corpus
from gpt_cli.distributed.world import World
from gpt_cli.errors import RequestError, UserError
from gpt_cli.evaluation.bag_of_words import BagOfWords
from gpt_cli.evaluation.classify_run import BINS, calibration_error
from gpt_cli.model.sequence_classifier import PADDING, SequenceClassifier
from gpt_cli.run.checkpoint import list_checkpoints, load
from gpt_cli.runtime.device import Runtime
from gpt_cli.search.auto_config import fit_config
from gpt_cli.training.class_evaluation import (
    ClassEvalMetrics,
    accuracy_of,
    confusion_matrix,
    evaluate_classes,
    macro_f1,
)
from gpt_cli.training.console import Console
from gpt_cli.training.example_batches import ExampleBatches, open_batches, open_evaluation
from gpt_cli.training.init_from import initial_checkpoint
from gpt_cli.training.labelled_rows import LabelledRows, with_labels
from gpt_cli.training.loop import train
from gpt_cli.training.state import TrainingState
from gpt_cli.training.step import train_step

CPU = Runtime(torch.device("cpu"), "fp32", 1)
TINY_RUN = (
    "model.n_layer=2",
    "model.n_head=2",
    "model.n_embd=32",
    "model.context_length=24",
    "train.batch_size=6",
    "runtime.threads=1",
)
WORDS = {"fruit": ["apple", "pear", "fig"], "metal": ["iron", "zinc", "gold"], "bird": ["owl", "crow", "jay"]}
BIRD, METAL, FRUIT = "owl owl . 6", "gold gold ... 8", "apple apple ... 3"  # of `rows_of`: learnt on any processor
KINDS = ["causal-last", "causal-mean", "encoder-last", "encoder-mean"]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def rows_of(n: int = 90) -> list[dict[str, object]]:
    """Of a label each second text, the others share the rest."""
    actual = []
    for i in range(n):
        label = "fruit" if i % 2 else ("metal", "bird")[i % 4 // 2]
        words = WORDS[label]
        actual.append({"text": " ".join([words[i % 3], words[i * 7 % 3], "." * (i % 5), str(i)]), "label": label})
    return actual


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write(tmp_path / "texts.jsonl", rows_of())


def config_of(path: Path, *overrides: str) -> Config:
    return parse_config("", "t", ["task.kind=classes", f"data.source={path}", *TINY_RUN, *overrides])


def kind_overrides(kind: str) -> list[str]:
    attention, pooling = kind.split("-")
    return [f"model.causal={str(attention == 'causal').lower()}", f"task.pooling={pooling}"]


def prepare(config: Config) -> tuple[Config, Corpus]:
    corpus = prepare_corpus(config.data, config.tokenizer, note=print)
    return with_labels(config, corpus), corpus


def state_of(config: Config, corpus: Corpus) -> TrainingState:
    state = TrainingState.initialize(config, corpus.tokenizer.vocab_size, CPU, lambda _: None)
    torch.manual_seed(1)
    with torch.no_grad():  # none is zero
        for parameter in state.parameters:
            parameter.add_(0.1 * torch.randn_like(parameter))
    return state


def classifier(*overrides: str, labels: int = 3) -> SequenceClassifier:
    names = "[" + ",".join(f"l{i}" for i in range(labels)) + "]"
    config = parse_config("", "t", ["task.kind=classes", f"task.labels={names}", *TINY_RUN, *overrides])
    torch.manual_seed(0)
    model = SequenceClassifier(config.model, 11, config.task).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def test_what_a_table_of_labels_begins_with_is_told_once_though_it_is_read_twice(tmp_path):
    path, notes = tmp_path / "table.csv", []
    path.write_text("\ufefftext,label\na,x\nb,y\n")
    config = parse_config(f"data: {{source: {path}, format: labelled}}\ntask: {{kind: classes}}\n", "test")
    assert len(list(read_labelled(str(path), config.data, notes.append))) == 2
    assert len(notes) == 1


@pytest.mark.parametrize("position", ["rope", "learned", "sinusoidal", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_in_a_padded_batch_has_the_logits_that_it_has_alone(kind, position):
    model = classifier(*kind_overrides(kind), f"model.position={position}", "model.n_kv_head=1")
    texts = [torch.randint(0, 11, (n,)) for n in (1, 24, 7, 2)]
    batch = torch.full((4, 24), PADDING)
    for row, ids in zip(batch, texts, strict=True):
        row[: len(ids)] = ids
    batch_logits = model(batch)
    single_logits = torch.cat([model(ids[None]) for ids in texts])
    torch.testing.assert_close(batch_logits, single_logits, rtol=1e-5, atol=1e-6)


def test_alibi_in_a_padded_batch_is_that_alone():
    model = classifier("model.position=alibi")
    batch = torch.tensor([[1, 2, PADDING, PADDING], [3, 4, 5, 6]])
    torch.testing.assert_close(model(batch)[0], model(batch[:1, :2])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_a_token_sees_those_after_it_if_and_only_if_the_model_is_not_causal(causal):
    model = classifier(f"model.causal={str(causal).lower()}")
    embeddings: list[torch.Tensor] = []
    model.embedding.register_forward_hook(lambda _m, _i, out: (out.retain_grad(), embeddings.append(out))[0])
    features: list[torch.Tensor] = []
    model.norm.register_forward_hook(lambda _m, _i, out: features.append(out))
    model(torch.randint(0, 11, (1, 9)))
    features[0][0, 3].sum().backward()
    gradient = embeddings[0].grad[0].abs().sum(-1)
    assert (gradient[:4] > 0).all()
    assert (gradient[4:] > 0).all() if not causal else (gradient[4:] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_a_step_is_the_mean_over_its_texts_each_alone(texts, kind):
    config, corpus = prepare(config_of(texts, *kind_overrides(kind)))
    state = state_of(config, corpus)
    batches = open_batches(config, corpus, CPU.device, print)
    assert isinstance(batches, ExampleBatches)
    losses = []
    for row in batches.indices(3):
        ids = torch.from_numpy(batches.rows.ids(row).astype(np.int64))
        target = torch.tensor([config.task.labels.index(corpus.labelled["train"].source[row].label)])
        with torch.no_grad():
            losses.append(F.cross_entropy(state.model(ids[None]), target).item())
    loss, _ = train_step(state, batches.at(3), config, 3, 0.0, CPU)
    assert loss.item() == pytest.approx(sum(losses) / 6, rel=1e-5)


def test_gradients_do_not_depend_on_micro_batches(texts):
    actual = []
    for size in (6, 3, 1):
        config, corpus = prepare(config_of(texts, f"train.micro_batch_size={size}", "task.class_weights=balanced"))
        state = state_of(config, corpus)
        loss, norms = train_step(state, open_batches(config, corpus, CPU.device, print).at(0), config, 0, 0.0, CPU)
        actual.append(torch.cat([loss[None], norms]))
    torch.testing.assert_close(actual[1], actual[0], rtol=2e-5, atol=1e-7)
    torch.testing.assert_close(actual[2], actual[0], rtol=2e-5, atol=1e-7)


def test_balanced_weights_make_labels_count_alike_in_training_and_leave_evaluation_as_it_is(texts):
    config, corpus = prepare(config_of(texts, "task.class_weights=balanced"))
    counts = [sum(t.label == label for t in corpus.labelled["train"].source) for label in config.task.labels]
    assert config.task.class_weights == pytest.approx([sum(counts) / 3 / n for n in counts])
    state = state_of(config, corpus)
    (inputs, targets) = open_batches(config, corpus, CPU.device, print).at(0)[0]
    weights = torch.tensor(config.task.class_weights)[targets]
    with torch.no_grad():
        losses = F.cross_entropy(state.model(inputs), targets, reduction="none")
        state.model.train()
        assert state.engine.eager(inputs, targets).item() == pytest.approx((losses * weights).mean().item(), rel=1e-5)
        state.model.eval()
        assert state.engine.eager(inputs, targets).item() == pytest.approx(losses.mean().item(), rel=1e-5)


@pytest.mark.parametrize("batch_size", [1, 4, None])
def test_evaluation_is_that_of_each_text_alone(texts, batch_size):
    config, corpus = prepare(config_of(texts, "model.causal=false"))
    state = state_of(config, corpus)
    rows = open_evaluation(config, corpus, CPU.device, print)
    assert isinstance(rows, LabelledRows)
    actual = evaluate_classes(state.model, rows, CPU, batch_size)
    with torch.no_grad():
        logits = [state.model(torch.from_numpy(rows.ids(i).astype(np.int64))[None])[0] for i in range(len(rows))]
    log_probs = torch.stack(logits).double().log_softmax(-1)
    np.testing.assert_allclose(actual.log_probs, log_probs.numpy(), atol=1e-5)
    classes = torch.from_numpy(rows.classes)
    assert actual.loss == pytest.approx(F.nll_loss(log_probs, classes).item(), abs=1e-5)
    assert accuracy_of(actual.confusion) == pytest.approx((log_probs.argmax(-1) == classes).double().mean().item())


def test_macro_f1_is_its_definition_over_the_classes_that_occur():
    target, pred = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 2, 0])
    expected = np.mean([2 * 2 / (3 + 3), 2 * 1 / (2 + 2), 0.0])  # 2 TP / (target + pred)
    assert macro_f1(confusion_matrix(target, pred, 4)) == pytest.approx(expected)  # of the fourth there is none
    assert ClassEvalMetrics(np.log(np.eye(4)[pred] * 0.9 + 0.025), target).metrics()["accuracy"] == pytest.approx(0.5)


def test_processes_share_the_texts_of_one(texts):
    config, corpus = prepare(config_of(texts))
    batches = open_batches(config, corpus, CPU.device, print)
    inputs = torch.cat([i for i, _ in batches.at(5)])
    shares = [
        ExampleBatches(batches.rows, CPU.device, 24, 6, 1, config.seed, World(rank, 3)).at(5) for rank in range(3)
    ]
    assert torch.cat([i for share in shares for i, _ in share]).equal(inputs)
    assert World(0, 1).size == 1


def test_splits_hold_the_share_of_each_label_whatever_the_order_and_equal_texts_stay_together():
    texts = [LabelledText(str(i), f"text {i % 180}", "rare" if i % 180 < 20 else "common") for i in range(200)]
    units = assign_by_label(texts, 0.2, 0.1, 0)
    for label, n in (("rare", 20), ("common", 160)):
        label_units = [u for t, u in zip(texts, units, strict=True) if t.label == label and int(t.where) < 180]
        assert [label_units.count(unit) for unit in (0, 1, 2)] == [round(n * share) for share in (0.7, 0.2, 0.1)]
    assert (units[180:] == units[:20]).all()
    order = np.random.default_rng(0).permutation(200)
    assert (assign_by_label([texts[i] for i in order], 0.2, 0.1, 0) == units[order]).all()
    assert (assign_by_label(texts, 0.2, 0.1, 1) != units).any()
    more_texts = [*texts, *(LabelledText("x", f"other {i}", "third") for i in range(10))]
    assert (assign_by_label(more_texts, 0.2, 0.1, 0)[:200] == units).all()


def test_labels_that_are_numbers_are_in_their_order():
    assert sort_labels(["10", "9", "-1", "9"]) == ["-1", "9", "10"]
    assert sort_labels(["b", "10", "a"]) == ["10", "a", "b"]


def test_labels_come_from_records_tables_and_the_names_of_folders(tmp_path):
    rows = rows_of(12)
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    write(tmp_path / "a.jsonl", rows)
    lines = [f'"{row["text"]}",{row["label"]}' for row in rows]
    (tmp_path / "b.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "c.parquet")
    for i, row in enumerate(rows):
        folder = tmp_path / "texts" / str(row["label"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:02}.txt").write_text(str(row["text"]))
    expected = sorted((row["text"], row["label"]) for row in rows)
    for name in ("a.jsonl", "b.csv", "c.parquet", "texts"):
        actual = list(read_labelled(str(tmp_path / name), config_of(tmp_path).data, print))
        assert sorted((text.text, text.label) for text in actual) == expected, name


def test_whole_numbers_are_labels(tmp_path):
    rows = [{"review": f"text {i}", "sentiment": i % 2} for i in range(6)]
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "c.parquet")
    data = config_of(tmp_path, "data.text_key=review", "data.label_key=sentiment").data
    for path in (write(tmp_path / "a.jsonl", rows), tmp_path / "c.parquet"):
        assert [text.label for text in read_labelled(str(path), data, print)] == ["0", "1"] * 3


@pytest.mark.parametrize(
    ("header", "text_key", "label_key"),
    [
        ("id,review,sentiment", "review", "sentiment"),
        ("sentiment,text,user", "text", "sentiment"),
        ("topic,body", "body", "topic"),
    ],
)
def test_a_label_and_its_text_are_read_under_the_names_that_data_sets_use(tmp_path, header, text_key, label_key):
    columns = header.split(",")
    rows = "".join(
        ",".join(f"a text {i}" if name == text_key else "xy"[i % 2] for name in columns) + "\n" for i in range(40)
    )
    (tmp_path / "rows.csv").write_text(f"{header}\n{rows}")
    values = {"data.source": str(tmp_path / "rows.csv"), "task.kind": "classes"}
    config, _ = fit_config(values, run_dir="runs/x", has_gpu=False, cores=2)
    assert (config.data.text_key, config.data.label_key) == (text_key, label_key)


BAD_FILES: dict[str, tuple[list[str], str, str | None]] = {
    "no label": (['{"text": "a", "label": "x"}', '{"text": "b"}'], "no label under the key 'label'", ":2"),
    "a list": (['{"text": "a", "label": ["x"]}'], "no label under the key 'label'", ":1"),
    "no text": (['{"words": "a", "label": "x"}'], "no text under the key 'text'", ":1"),
    "mixed types": (['{"text": "a", "label": "1"}', '{"text": "b", "label": 1}'], "is a whole number; that of", ":2"),
    "empty text": (['{"text": "", "label": "x"}', '{"text": "b", "label": "y"}'], "the text is empty", ":1"),
    "blank text": (['{"text": "b", "label": "x"}', '{"text": " ", "label": "y"}'], "the text is empty", ":2"),
    "empty label": (['{"text": "a", "label": " "}'], "the label is empty", ":1"),
    "one label": (['{"text": "a", "label": "x"}', '{"text": "b", "label": "x"}'], "nothing to tell apart", ":1"),
    "seen once": (
        [*(f'{{"text": "{i}", "label": "{"xyz"[i % 3]}"}}' for i in range(9)), '{"text": "b", "label": "rare"}'],
        "1 of 4 labels occurs only once, such as 'rare'",
        ":10",
    ),
    "more classes than texts": (
        [f'{{"text": "{i}", "label": {i}}}' for i in range(9)],
        "9 of 9 labels occur only once",
        ":1",
    ),
    "one text of a label": (
        ['{"text": "a", "label": "x"}'] * 2 + [f'{{"text": "{i}", "label": "y"}}' for i in range(9)],
        "'x' has 1 different text;",
        ":1",
    ),
    "half a surrogate pair": (['{"text": "a", "label": "\\ud800"}'], "half a surrogate pair", ":1"),
    "a long label": ([f'{{"text": "a", "label": "{"x" * 300}"}}'], "has 300 characters", ":1"),
    "no texts": (["", ""], "no texts", None),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_what_cannot_be_learned_is_one_error_with_its_place(name, tmp_path, capsys):
    lines, message, line = BAD_FILES[name]
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines) + "\n")
    config = tmp_path / "c.yaml"
    config.write_text(f"task: {{kind: classes}}\nrun_dir: {tmp_path / 'run'}\ndata: {{source: {path}}}\n")
    assert main(["train", str(config)]) in (1, 2)
    error = capsys.readouterr().err
    assert error.count("error:") == 1
    assert message in error
    assert line is None or f"--> {path}{line}\n" in error
    assert not (tmp_path / "run").exists()


def test_a_label_of_validation_alone_and_one_that_the_config_does_not_name_are_told_with_their_place(texts, tmp_path):
    val_path = write(tmp_path / "val.jsonl", [{"text": "a", "label": "fruit"}, {"text": "b", "label": "stone"}])
    with pytest.raises(UserError, match="no training text has the label 'stone'") as excinfo:
        prepare(config_of(texts, f"data.val_source={val_path}"))
    assert excinfo.value.where == f"{val_path}:2"
    assert excinfo.value.suggestion == "data.val_source=null"
    with pytest.raises(UserError, match=r"'bird' is none of task\.labels") as excinfo:
        prepare(config_of(texts, "task.labels=[fruit, metal]"))
    assert excinfo.value.where is not None
    with pytest.raises(RequestError, match="no text that trains has the label 'stone'"):
        prepare(config_of(texts, "task.labels=[fruit, metal, bird, stone]"))


def test_a_character_that_the_vocabulary_lacks_is_refused_with_the_place_of_its_text(texts, tmp_path):
    vocabulary = tmp_path / "abc.json"
    vocabulary.write_text(json.dumps({"format": "gpt-char-1", "characters": "abcdefghijklmnopqrstuvwxyz ."}))
    with pytest.raises(RequestError, match="vocabulary lacks") as caught:
        prepare(config_of(texts, f"tokenizer.file={vocabulary}"))
    assert (caught.value.where or "").startswith(f"{texts}:")


def test_text_without_labels_is_refused(tmp_path):
    (tmp_path / "plain.csv").write_text("text,label\na\n")
    with pytest.raises(UserError, match="no label under the key 'label'"):
        list(read_labelled(str(tmp_path / "plain.csv"), config_of(tmp_path).data, print))
    with pytest.raises(UserError, match="has no labels"):
        list(read_labelled("builtin:python-docs", config_of(tmp_path).data, print))


@pytest.mark.parametrize(
    "keys",
    [
        ["model.causal=false"],
        ["task.pooling=mean"],
        ["data.format=labelled"],
        ["task.kind=classes", "data.format=pairs"],
        ["task.kind=classes", "sample.every=10"],
        ["task.kind=classes", "task.trains=head"],
        ["task.kind=classes", "task.labels=[a, b, a]"],
        ["task.kind=classes", "task.class_weights=[1.0, 2.0]"],
        ["task.kind=classes", "model.causal=false", "model.window=8"],
        ["task.kind=classes", "model.causal=false", "model.position=alibi"],
        ["task.kind=classes", "train.budget=1m"],
        ["task.kind=classes", "eval.max_tokens=100"],
    ],
)
def test_keys_that_do_not_go_with_the_task_are_refused(keys):
    with pytest.raises(RequestError):
        parse_config("", "t", keys)


def test_only_torch_trains_classes(texts):
    config, corpus = prepare(config_of(texts, "runtime.engine=native"))
    with pytest.raises(RequestError, match=r"it does not know task\.kind: classes"):
        state_of(config, corpus)


def test_too_long_texts_are_cut_and_told_or_left_out_as_asked(texts):
    config, corpus = prepare(config_of(texts, "model.context_length=12"))
    notes: list[str] = []
    rows = LabelledRows.of(config, corpus.labelled["train"], "training", notes.append)
    assert len(rows) == len(corpus.labelled["train"])
    assert rows.widths.max() == 12
    assert "only their first 12 tokens are read" in notes[0]
    drop_config = config.model_copy(update={"data": config.data.model_copy(update={"too_long": "drop"})})
    kept_rows = LabelledRows.of(drop_config, corpus.labelled["train"], "training", notes.append)
    assert 0 < len(kept_rows) < len(rows)
    assert "left out" in notes[1]


@pytest.mark.parametrize("overrides", [(), ("model.causal=false", "model.dropout=0.2", "model.attention_dropout=0.1")])
def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted_and_its_checkpoints_have_the_labels(
    texts, tmp_path, overrides
):
    base = ["train", "--config", str(tmp_path / "c.yaml"), "task.kind=classes", f"data.source={texts}", *TINY_RUN]
    keys = [*base, "checkpoint.every=4", "eval.every=4", "checkpoint.keep=9", "task.class_weights=balanced", *overrides]
    (tmp_path / "c.yaml").write_text("seed: 3\n")
    assert main([*keys, f"run_dir={tmp_path / 'whole'}", "train.steps=8"]) == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step-00000008")
    assert main([*keys, f"run_dir={tmp_path / 'parts'}", "train.steps=8"]) == 0
    uninterrupted, resumed = (load(list_checkpoints(tmp_path / name)[0]) for name in ("whole", "parts"))
    assert uninterrupted.step == resumed.step == 8
    assert uninterrupted.weights_sha256 == resumed.weights_sha256
    assert uninterrupted.config.task.labels == ["bird", "fruit", "metal"]
    assert load_config(tmp_path / "parts" / "config.yaml").task.class_weights == uninterrupted.config.task.class_weights
    last_metrics = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()][-1]
    assert {"val_loss", "accuracy", "macro_f1"} < set(last_metrics)


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """A run of 60 steps, its texts, and what `gpt train` printed."""
    directory = tmp_path_factory.mktemp("trained")
    path = write(directory / "texts.jsonl", rows_of())
    (directory / "c.yaml").write_text("seed: 3\n")
    keys = ["task.kind=classes", f"data.source={path}", *TINY_RUN, f"run_dir={directory / 'run'}", "train.steps=60"]
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        assert main(["train", "--config", str(directory / "c.yaml"), *keys, "data.test_fraction=0.1"]) == 0
    return str(directory / "run"), str(path), err.getvalue()


def test_training_learns_what_words_tell_and_says_so(trained_run):
    assert "accuracy 1.0000  macro F1 1.0000" in trained_run[2]
    assert f"classify: gpt classify --run {trained_run[0]} TEXT" in trained_run[2]
    assert re.search(r"labels 3, of 7\d train and \d validation texts", trained_run[2])


def test_a_run_of_classes_given_to_what_predicts_tokens_is_one_error_with_a_hint(trained_run, tmp_path, capsys):
    run, texts, _ = trained_run
    for command in (
        ["sample", "--run", run],
        ["chat", "--run", run],
        ["score", "--run", run, texts],
        ["attention", run],
        ["export", run, str(tmp_path / "out.gguf")],
    ):
        capsys.readouterr()
        assert main(command) == 2, command
        error = capsys.readouterr().err
        assert f"error: {run} classifies texts: it predicts no tokens" in error
        assert f"\nhint: gpt classify --run {run} TEXT\n" in error
        assert error.count("error:") == 1
    with pytest.raises(RequestError, match="classifies texts"):
        gpt_cli.load(run)


def test_a_run_of_tokens_given_to_classify_is_one_error_with_a_hint(tmp_path, capsys, texts):
    (tmp_path / "c.yaml").write_text("seed: 3\n")
    run = str(tmp_path / "run")
    keys = [f"data.source={texts}", *TINY_RUN, f"run_dir={run}", "train.steps=1", "sample.every=null"]
    assert main(["train", "--config", str(tmp_path / "c.yaml"), *keys]) == 0
    capsys.readouterr()
    assert main(["classify", "--run", run, "owl"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {run} predicts tokens: it was not trained with task.kind classes\nhint: ")
    with pytest.raises(RequestError, match="predicts tokens"):
        gpt_cli.load_classifier(run)


def test_classify_says_label_and_probabilities_of_texts_files_and_lines(trained_run, capsys, monkeypatch, tmp_path):
    run, path, _ = trained_run
    capsys.readouterr()
    assert main(["classify", "--run", run, BIRD]) == 0
    assert capsys.readouterr().out.split()[1] == "bird"
    assert main(["classify", "--run", run, BIRD, METAL, "--top", "2"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["bird", "metal"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{FRUIT}\n\n{METAL}\n".encode())))
    assert main(["classify", "--run", run, "-", "--jsonl"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["label"] for line in lines] == ["fruit", "metal"]
    assert [line["where"] for line in lines] == ["standard input:1", "standard input:3"]  # the empty one is left out
    for line in lines:
        assert sum(line["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert list(line["probabilities"].values()) == sorted(line["probabilities"].values(), reverse=True)
    assert main(["classify", "--run", run, path, "--jsonl", "--top", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 90
    assert {len(line["probabilities"]) for line in lines} == {2}
    plain_path = tmp_path / "plain.txt"
    plain_path.write_text(BIRD)
    assert main(["classify", "--run", run, str(plain_path)]) == 0
    assert "bird" in capsys.readouterr().out


def test_a_text_that_cannot_be_classified_is_named_by_its_line_of_standard_input(trained_run, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{BIRD}\n\n{BIRD} Ω\n".encode())))
    assert main(["classify", "--run", trained_run[0], "-"]) == 2
    assert "--> standard input:3" in capsys.readouterr().err


@pytest.mark.parametrize("texts", [[], ["   "], ["missing.jsonl"], ["ß"]], ids=["none", "blank", "no file", "unknown"])
def test_what_classify_cannot_read_is_one_error(trained_run, capsys, texts):
    assert main(["classify", "--run", trained_run[0], *texts]) in (1, 2)
    assert capsys.readouterr().err.count("error:") == 1


def test_python_classifies_as_the_command_does_whatever_texts_are_beside(trained_run):
    run = gpt_cli.load_classifier(trained_run[0], device="cpu")
    texts = [BIRD, METAL, "fig fig  5", FRUIT]
    batch_predictions, single_predictions = run.classify(texts), [run.classify([text])[0] for text in texts]
    assert [prediction.label for prediction in batch_predictions] == [
        prediction.label for prediction in single_predictions
    ]
    assert [prediction.label for prediction in batch_predictions] == ["bird", "metal", "fruit", "fruit"]
    for prediction, single_prediction in zip(batch_predictions, single_predictions, strict=True):
        assert prediction.probabilities == pytest.approx(single_prediction.probabilities, abs=1e-6)
    with pytest.warns(UserWarning, match="only the first 24 tokens are read"):
        run.classify(["owl " * 20])


@pytest.mark.parametrize("products", ["highest", "medium"])
def test_torchs_settings_are_after_training_and_classifying_what_they_were(trained_run, tmp_path, products):
    def settings():
        return torch.get_float32_matmul_precision(), torch.get_num_threads(), float("1e-310") * 1.0 > 0.0

    torch.set_float32_matmul_precision(products)
    torch.set_num_threads(2)
    before = settings()
    classifier = gpt_cli.load_classifier(trained_run[0], device="cpu")
    assert settings() == before
    classifier.classify([BIRD])
    assert settings() == before
    config = config_of(Path(trained_run[1]), f"run_dir={tmp_path / 'run'}", "train.steps=1")
    train(config, Console(lambda _: None))
    assert settings() == before


@pytest.mark.parametrize("split", ["val", "test"])
def test_eval_prints_the_figures_of_a_split_beside_the_baselines(trained_run, capsys, split):
    capsys.readouterr()
    assert main(["eval", "--run", trained_run[0], "--split", split, "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert actual["labels"] == ["bird", "fruit", "metal"]
    matrix = np.array(actual["confusion"])
    assert matrix.sum() == actual["texts"]
    assert actual["accuracy"] == pytest.approx(accuracy_of(matrix))
    assert actual["majority_accuracy"] == pytest.approx(matrix[1].sum() / matrix.sum())
    assert {"calibration_error", "bag_of_words_accuracy", "bag_of_words_macro_f1"} < set(actual)
    assert main(["eval", "--run", trained_run[0], "--split", split]) == 0
    assert "true \\ chosen" in capsys.readouterr().out


def test_eval_measures_other_labelled_texts_and_refuses_labels_that_the_run_does_not_know(
    trained_run, capsys, tmp_path
):
    labelled_path = write(tmp_path / "some.jsonl", rows_of(12))
    capsys.readouterr()
    assert main(["eval", "--run", trained_run[0], "--text", str(labelled_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["texts"] == 12
    labelled_path.write_text(labelled_path.read_text() + '{"text": "gold", "label": "stone"}\n')
    assert main(["eval", "--run", trained_run[0], "--text", str(labelled_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: the run has no label 'stone': its labels are ")
    assert f"\n  --> {labelled_path}:13\n" in error


def test_eval_reads_other_labelled_texts_under_the_keys_and_with_the_characters_asked_for(
    trained_run, capsys, tmp_path
):
    rows = rows_of(12)
    labelled_path = write(tmp_path / "some.jsonl", [{"body": f"{row['text']}Ω", "label": row["label"]} for row in rows])
    capsys.readouterr()
    arguments = ["eval", "--run", trained_run[0], "--text", str(labelled_path)]
    assert main(arguments) == 1
    assert "--text-key body" in capsys.readouterr().err
    assert main([*arguments, "--text-key", "body"]) == 2
    assert "--unknown skip" in capsys.readouterr().err
    assert main([*arguments, "--text-key", "body", "--unknown", "skip", "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    plain_path = write(tmp_path / "plain.jsonl", rows)
    assert main(["eval", "--run", trained_run[0], "--text", str(plain_path), "--json"]) == 0
    assert actual == {**json.loads(capsys.readouterr().out), "text": str(labelled_path)}
    bare_path = write(tmp_path / "bare.jsonl", [{"text": row["text"], "kind": row["label"]} for row in rows])
    assert main(["eval", "--run", trained_run[0], "--text", str(bare_path)]) == 1
    assert "no label under the key 'label'; keys: text, kind" in capsys.readouterr().err


def test_calibration_is_the_gap_of_sureness_and_truth_in_each_bin():
    confidences = np.array([0.94, 0.95, 0.65, 0.62])
    log_probs = np.log(np.stack([confidences, 1 - confidences], axis=1))
    actual = calibration_error(ClassEvalMetrics(log_probs, np.array([0, 1, 0, 0])))
    assert BINS == 15  # the first two share a bin, the others too
    assert actual == pytest.approx((abs(1 - 1.89) + abs(2 - 1.27)) / 4)


def test_the_bag_of_words_is_at_the_minimum_of_its_loss_and_does_not_see_order():
    rows = rows_of(60)
    labels = [sorted(WORDS).index(str(row["label"])) for row in rows]
    bag = BagOfWords.train([str(row["text"]) for row in rows], labels, 3)
    assert bag.classify(["Owl crow!", "zinc gold", "apple"]) == [0, 2, 1]
    assert bag.classify(["crow ! owl"]) == bag.classify(["owl crow !"])
    assert bag.classify(["nothing known"]) == [int(bag.bias.argmax())]
    assert float(bag.bias.sum()) == pytest.approx(0, abs=1e-3)  # softmax does not see what is common to all classes
    assert bag.weight.sum(1).abs().max() < 1e-3


@pytest.fixture(scope="module")
def language_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A run that predicts the tokens of the same texts, and these."""
    directory = tmp_path_factory.mktemp("language")
    path = write(directory / "texts.jsonl", rows_of())
    (directory / "c.yaml").write_text("seed: 3\n")
    keys = [f"data.source={path}", *TINY_RUN, f"run_dir={directory / 'run'}", "train.steps=2", "sample.every=null"]
    assert main(["train", "--config", str(directory / "c.yaml"), *keys, "model.zero_init=false"]) == 0
    return str(directory / "run"), str(path)


@pytest.mark.parametrize("trained_part", ["all", "head", "lora"])
@pytest.mark.parametrize("arch", [(), ("model.causal=false", "model.tie_embeddings=true")], ids=["decoder", "encoder"])
def test_a_run_of_tokens_is_trained_to_classify_all_of_it_its_head_or_by_lora_and_resumes_exactly(
    language_run, tmp_path, trained_part, arch
):
    base, path = language_run
    overrides = {"all": (), "head": ("task.trains=head",), "lora": ("lora.rank=2",)}[trained_part]
    (tmp_path / "c.yaml").write_text("seed: 3\n")
    keys = ["train", "--config", str(tmp_path / "c.yaml"), "task.kind=classes", f"data.source={path}", *TINY_RUN, *arch]
    keys += [*overrides, f"train.init_from={base}", "model.zero_init=false", f"tokenizer.file={base}/tokenizer.json"]
    keys += ["checkpoint.every=2", "checkpoint.keep=9", "eval.every=null", "train.steps=4"]
    assert main([*keys, f"run_dir={tmp_path / 'whole'}"]) == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step-00000004")
    assert main([*keys, f"run_dir={tmp_path / 'parts'}"]) == 0
    uninterrupted, resumed = (load(list_checkpoints(tmp_path / name)[0]) for name in ("whole", "parts"))
    assert uninterrupted.weights_sha256 == resumed.weights_sha256
    base_tensors, tuned_tensors = load(list_checkpoints(Path(base))[0]).model_tensors, uninterrupted.model_tensors
    changed_names = {
        name for name in tuned_tensors if name != "head.weight" and not tuned_tensors[name].equal(base_tensors[name])
    }
    blocks = set(tuned_tensors) - {"head.weight"}
    lora = {name for name in blocks if name.endswith(("qkv.weight", "out.weight"))}
    assert changed_names == {"all": blocks, "head": set(), "lora": lora}[trained_part]


def test_a_fitted_classifier_reads_the_features_that_the_head_of_its_base_has_learned(tmp_path, texts, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["model.n_layer=1", "model.n_embd=32", "train.steps=1"]
    assert main(["train", str(texts), "task.kind=classes", "task.pooling=mean", *small, "run_dir=base"]) == 0
    assert main(["train", str(texts), "task.kind=classes", "train.init_from=base", "train.steps=1", "run_dir=new"]) == 0
    assert load_config(Path("new/config.yaml")).task.pooling == "mean"
    lines = [Path(run, "metrics.jsonl").read_text().splitlines()[n] for run, n in (("base", -1), ("new", 0))]
    losses = [json.loads(line)["val_loss"] for line in lines]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_classifier_is_trained_further_with_its_head_where_the_labels_are_equal(trained_run, tmp_path, capsys):
    run, path, _ = trained_run
    (tmp_path / "c.yaml").write_text("seed: 3\n")
    keys = ["train", "--config", str(tmp_path / "c.yaml"), f"data.source={path}", *TINY_RUN, f"train.init_from={run}"]
    keys += [f"tokenizer.file={run}/tokenizer.json", "train.steps=1"]
    assert main([*keys, "task.kind=classes", f"run_dir={tmp_path / 'same'}", "--json"]) == 0
    first_metrics = json.loads((tmp_path / "same" / "metrics.jsonl").read_text().splitlines()[0])
    assert (first_metrics["step"], first_metrics["accuracy"]) == (0, 1.0)
    others = write(tmp_path / "others.jsonl", [{**row, "label": f"a {row['label']}"} for row in rows_of()])
    for name, key, is_new in (
        ("moved", "task.labels=[metal,fruit,bird]", False),
        ("new", f"data.source={others}", True),
    ):
        assert main([*keys, "task.kind=classes", key, f"run_dir={tmp_path / name}", "--json"]) == 0
        metrics = json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[0])
        assert (metrics["val_loss"] == pytest.approx(first_metrics["val_loss"], rel=1e-3)) != is_new
        assert ("the head is new" in capsys.readouterr().err) == is_new
    config = parse_config("", "t", [*TINY_RUN, f"train.init_from={run}"])
    with pytest.raises(RequestError, match="it has no head that predicts tokens"):
        initial_checkpoint(config, load(list_checkpoints(Path(run))[0]).tokenizer, print)


def test_doctor_examines_a_classifier(trained_run, capsys):
    assert main(["doctor", trained_run[0]]) == 0
    assert "padded = alone" in capsys.readouterr().out


def test_the_report_draws_accuracy_and_the_confusion_matrix(trained_run, tmp_path):
    page = tmp_path / "report.html"
    assert main(["report", trained_run[0], "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "<h2>Confusion</h2>" in text
    assert "Bits per byte</h" not in text
    assert 'scope="row">metal</th>' in text
    assert re.search(r"validation texts: accuracy 1\.0000, macro F1 1\.0000.* A bag of words reaches", text)
