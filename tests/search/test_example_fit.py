"""A config is fitted to pairs, chats and labelled texts as to a text: what it decides on suits all of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.config import dump_config, parse_config
from gpt_cli.config.schema import Config
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.errors import UserError
from gpt_cli.search.auto_config import fit_config
from gpt_cli.search.source_format import measure_in_its_format
from gpt_cli.training.example_batches import open_example_batches
from gpt_cli.training.labelled_rows import with_labels

WORDS = ["sun", "moon", "the sea", "in winter", "färben", "云"]
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=60).map(" ".join)


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def chat(question: str, answer: str, key: str = "messages") -> dict[str, Any]:
    return {key: [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def rows_of(data_format: str, contents: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Distinct examples: their number begins each."""
    numbered = [(f"{number} {first}", second) for number, (first, second) in enumerate(contents)]
    if data_format == "chat":
        return [chat(first, second) for first, second in numbered]
    if data_format == "labelled":
        return [{"text": first, "label": number % 2} for number, (first, _) in enumerate(numbered)]
    return [{"prompt": first, "completion": second} for first, second in numbered]


def fit(source: Any, has_gpu: bool = False, **values: Any) -> tuple[Config, list[str]]:
    requested = {"data.source": source, **{key.replace("__", "."): value for key, value in values.items()}}
    return fit_config(requested, run_dir="runs/x", has_gpu=has_gpu, cores=2)


@pytest.mark.system
@settings(max_examples=40, deadline=None)
@given(
    contents=st.lists(st.tuples(texts, texts), min_size=24, max_size=60),
    data_format=st.sampled_from(["pairs", "chat", "labelled"]),
    kind=st.sampled_from([None, "char", "byte", "bpe"]),
    has_gpu=st.booleans(),
)
def test_a_fitted_context_holds_every_example_and_the_tokens_are_those_that_are_trained_on(
    tmp_path_factory: pytest.TempPathFactory,
    contents: list[tuple[str, str]],
    data_format: str,
    kind: str | None,
    has_gpu: bool,
) -> None:
    source = write(tmp_path_factory.mktemp("examples") / "x.jsonl", rows_of(data_format, contents))
    values: dict[str, Any] = {} if kind is None else {"tokenizer__kind": kind}
    values |= {"task__kind": "classes"} if data_format == "labelled" else {"data__format": data_format}
    config, reasons = fit(source, has_gpu, **values)
    corpus = prepare_corpus(config.data, config.tokenizer, cache=False, note=pytest.fail)
    splits = corpus.labelled if data_format == "labelled" else corpus.examples
    unread = 0 if data_format == "labelled" else 1
    assert all(members.lengths.max() - unread <= config.model.context_length for members in splits.values())
    assert (config.data.format, all(reasons)) == (data_format, True)
    fixed = {key.replace("__", "."): value for key, value in values.items()} | {"data.source": source}
    measured, _ = measure_in_its_format([source], fixed, fixed, has_gpu=has_gpu, progress=None)
    if measured.is_exact:
        assert (measured.training_tokens, measured.validation_tokens) == (len(corpus.train), len(corpus.val))


@pytest.mark.parametrize("messages_key", ["messages", "conversation"])
def test_chats_are_known_by_their_records(tmp_path: Path, messages_key: str) -> None:
    rows = [chat(f"What is {n}?", f"It is {n}.", messages_key) for n in range(30)]
    config, reasons = fit(write(tmp_path / "chats.jsonl", rows))
    assert (config.data.format, config.data.messages_key) == ("chat", messages_key)
    assert reasons[0].startswith("It learns what the assistant says in 30 chats (data.format=chat). ")
    assert config.sample.stop == [config.data.completion_end]


def test_pairs_are_known_by_the_usual_names_of_their_keys_and_by_no_others(tmp_path: Path) -> None:
    contents = [(f"{n} and one", str(n + 1)) for n in range(30)]
    config, reasons = fit(write(tmp_path / "pairs.jsonl", rows_of("pairs", contents)))
    assert config.data.format == "pairs"
    assert reasons[0].startswith("It learns the completions of 30 pairs (data.format=pairs). ")
    others = write(tmp_path / "others.jsonl", [{"question": q, "answer": a} for q, a in contents])
    named, _ = fit(others)
    assert (named.data.format, named.data.prompt_key, named.data.completion_key) == ("pairs", "question", "answer")
    only_questions, _ = fit(others, data__text_key="question")
    assert only_questions.data.format == "text"
    unknown = write(tmp_path / "unknown.jsonl", [{"this one": q, "that one": f"It is {a}."} for q, a in contents])
    with pytest.raises(UserError, match="no text under the key 'text'") as error:
        fit(unknown)
    assert error.value.choices == ("this one", "that one")


def test_a_text_before_or_beside_chats_is_not_read_as_one(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("The sea in winter.\n" * 20)
    talk = chat("What is it?", "It is one.")
    chats = write(tmp_path / "chats.jsonl", [talk] * 20)
    later = write(tmp_path / "later.jsonl", [{"text": "The sea."}, talk])
    with pytest.raises(UserError, match="no text under the key 'text'") as error:
        fit(later)
    assert error.value.where == f"{later}:2"
    with pytest.raises(UserError, match=r"plain.txt is plain text: chats are read from records"):
        fit([str(tmp_path / "plain.txt"), chats])
    with pytest.raises(UserError, match="no text under the key 'text'"):
        fit(chats, data__format="text")


def test_classes_are_fitted_with_an_encoder_that_writes_nothing(tmp_path: Path) -> None:
    rows = [{"text": f"{n} is {'odd' if n % 2 else 'even'}", "label": n % 2} for n in range(60)]
    config, reasons = fit(write(tmp_path / "x.jsonl", rows), task__kind="classes")
    assert (config.task.kind, config.task.pooling, config.model.causal) == ("classes", "mean", False)
    assert config.sample.every is None
    assert reasons[0].startswith("It learns the 2 labels of 60 texts (task.kind=classes). One token per byte: ")
    labelled, _ = fit(write(tmp_path / "x.jsonl", rows), data__format="labelled")
    assert labelled == config


@pytest.mark.parametrize("data_format", ["pairs", "labelled"])
@pytest.mark.parametrize("too_long", ["drop", "cut"])
def test_the_plan_counts_the_examples_that_are_trained_on(tmp_path: Path, data_format: str, too_long: str) -> None:
    rows = rows_of(data_format, [("sea " * (1 + n % 40), "sun") for n in range(300)])
    values = {"task.kind": "classes"} if data_format == "labelled" else {"data.format": "pairs"}
    values |= {"data.source": write(tmp_path / "x.jsonl", rows), "data.too_long": too_long}
    values |= {"model.context_length": 64, "train.steps": 40}
    config, reasons = fit_config(values, run_dir="runs/x", has_gpu=False, cores=2)
    config = parse_config(dump_config(config), "x.yaml", [f"{key}={value}" for key, value in values.items()])
    corpus = prepare_corpus(config.data, config.tokenizer, cache=False, note=pytest.fail)
    config = with_labels(config, corpus)
    batches = open_example_batches(config, corpus, torch.device("cpu"), lambda _: None)
    assert batches is not None
    epochs = config.train.steps / batches.steps_per_epoch
    assert f"all of them {epochs:.1f} times, in 40 steps" in " ".join(reasons)


def test_long_examples_have_few_rows_and_short_ones_many(tmp_path: Path) -> None:
    sizes = {}
    for words in (1, 30, 1000, 10_000):
        rows = rows_of("pairs", [("sea " * words, "sun " * words)] * (300 if words == 1 else 30))
        config, _ = fit(write(tmp_path / "x.jsonl", rows))
        sizes[words] = config.model.context_length, config.train.batch_size
    assert sizes == {1: (16, 64), 30: (256, 8), 1000: (8192, 1), 10_000: (8192, 1)}
    rows = rows_of("pairs", [("sea ", "sun ")] * 39 + [("sea " * 1000, "sun")])
    config, _ = fit(write(tmp_path / "x.jsonl", rows))
    assert (config.model.context_length, config.train.batch_size) == (1024, 16)
    config, _ = fit(write(tmp_path / "x.jsonl", rows), model__context_length=100_000)
    assert config.train.batch_size == 16
