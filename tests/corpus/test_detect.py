"""Data as public sets have it is read by its first record, and one line says how."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpt_cli.config import Config, dump_config, parse_config, to_yaml_scalar
from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.detect import choose_keys, first_record
from gpt_cli.corpus.examples import read_examples
from gpt_cli.corpus.readers import ReaderOptions
from gpt_cli.corpus.records import Record
from gpt_cli.corpus.sources import read_documents
from gpt_cli.errors import UserError
from gpt_cli.search.auto_config import fit_config

ANSWERS = {"\x02": "|", "\x03": "."}


def fit(path: Path, **values: Any) -> tuple[Config, list[str]]:
    requested = {"data.source": str(path), **{key.replace("__", "."): value for key, value in values.items()}}
    fitted, reasons = fit_config(requested, run_dir="runs/x", has_gpu=False, cores=2)
    overrides = [f"{key}={to_yaml_scalar(value)}" for key, value in requested.items()]
    return parse_config(dump_config(fitted), "fitted.yaml", overrides), reasons


def examples_of(path: Path, config: Config) -> list[str]:
    return [example.text.translate(str.maketrans(ANSWERS)) for example in read_examples(str(path), config.data, print)]


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def messages(*contents: str, role: str = "role", content: str = "content", user: str = "user", bot: str = "assistant"):
    return [{role: (user, bot)[i % 2], content: text} for i, text in enumerate(contents)]


def share_gpt(*contents: str) -> list[dict[str, str]]:
    return messages(*contents, role="from", content="value", user="human", bot="gpt")


CHAT = "user|hi 3.assistant|yo."
ROWS: dict[str, tuple[Any, str]] = {
    "messages": (lambda n: {"messages": messages(f"hi {n}", "yo")}, CHAT),
    "messages and other keys": (
        lambda n: {"id": f"c{n}", "source": "the web", "messages": messages(f"hi {n}", "yo"), "prompt_id": "a b"},
        CHAT,
    ),
    "messages and a text": (lambda n: {"text": f"hi {n} yo", "messages": messages(f"hi {n}", "yo")}, CHAT),
    "a bare list": (lambda n: messages(f"hi {n}", "yo"), CHAT),
    "messages in parts": (
        lambda n: {
            "messages": [{"role": "user", "content": [{"type": "text", "text": f"hi {n}"}]}, *messages("", "yo")[1:]]
        },
        CHAT,
    ),
    "conversations of ShareGPT": (lambda n: {"id": n, "conversations": share_gpt(f"hi {n}", "yo")}, CHAT),
    "a system key": (
        lambda n: {"system": "Be short.", "conversations": share_gpt(f"hi {n}", "yo")},
        "system|Be short..user|hi 3.assistant|yo.",
    ),
    "Alpaca": (
        lambda n: {"instruction": f"add {n}", "input": "1" if n % 2 else "", "output": "ok", "text": "all of it"},
        "add 3\n1|ok.",
    ),
    "Alpaca, at times without an input": (
        lambda n: {"instruction": f"add {n}", "output": "ok"} | ({"input": "1"} if n == 3 else {}),
        "add 3\n1|ok.",
    ),
    "Dolly": (
        lambda n: {"instruction": f"add {n}", "context": "1", "response": "ok", "category": "sum"},
        "add 3\n1|ok.",
    ),
    "prompt and completion": (lambda n: {"prompt": f"add {n}", "completion": "ok"}, "add 3|ok."),
    "prompt and response": (lambda n: {"prompt": f"add {n}", "response": "ok"}, "add 3|ok."),
    "question and answer": (lambda n: {"id": n, "question": f"add {n}", "answer": "ok"}, "add 3|ok."),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("suffix", [".jsonl", ".json", "-indented.json", "-indented.jsonl"])
def test_examples_of_public_data_sets_are_read_and_one_line_says_so(tmp_path: Path, name: str, suffix: str) -> None:
    make, fourth = ROWS[name]
    rows = [make(n) for n in range(40)]
    path = tmp_path / f"x{suffix}"
    if suffix == ".jsonl":
        write_lines(path, rows)
    elif suffix == "-indented.jsonl" and name != "a bare list":
        path.write_text("\n".join(json.dumps(row, indent=2) for row in rows), encoding="utf-8")
    else:
        path.write_text(json.dumps(rows, indent=None if suffix == ".json" else 2), encoding="utf-8")
    config, reasons = fit(path)
    assert examples_of(path, config)[3] == fourth
    assert len(examples_of(path, config)) == 40
    assert "data.text_key=KEY reads a text instead" in reasons[0]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_a_table_is_read_as_the_records_that_it_holds(tmp_path: Path, suffix: str) -> None:
    rows = [{"instruction": f"add {n}", "context": "1" if n % 2 else "", "response": 'say "ok"'} for n in range(40)]
    path = tmp_path / f"x{suffix}"
    if suffix == ".parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    else:
        separator, ok = (",", '"say ""ok"""') if suffix == ".csv" else ("\t", 'say "ok"')
        lines = [separator.join((row["instruction"], row["context"], ok)) for row in rows]
        path.write_text("\n".join([separator.join(rows[0]), *lines]), encoding="utf-8")
    config, _ = fit(path)
    assert config.data.prompt_keys == ["instruction", "context"]
    assert examples_of(path, config) == examples_of(write_lines(tmp_path / "same.jsonl", rows), config)


def test_the_json_of_a_column_is_a_chat(tmp_path: Path) -> None:
    cells = [json.dumps(messages(f"hi {n}", "yo")).replace('"', '""') for n in range(40)]
    (tmp_path / "x.csv").write_text("id,messages\n" + "".join(f'{n},"{cell}"\n' for n, cell in enumerate(cells)))
    config, _ = fit(tmp_path / "x.csv")
    assert examples_of(tmp_path / "x.csv", config)[3] == CHAT


@pytest.mark.parametrize(
    ("record", "requested", "keys"),
    [
        ({"text": "a b", "id": "c d"}, {}, {}),
        ({"id": "c1", "content": "a b"}, {}, {"data.text_key": "content"}),
        ({"id": "c1", "story line": "a b"}, {}, {"data.text_key": "story line"}),
        ({"one": "a b", "two": "a b"}, {}, {}),
        ({"text": "a", "prompt": "b", "completion": "c"}, {}, {}),
        ({"prompt": "b", "completion": "c"}, {"data.text_key": "prompt"}, {}),
        ({"text": "a", "prompt": "b", "output": "c"}, {"data.format": "pairs"}, {"data.completion_key": "output"}),
        ({"en": "a", "de": "b"}, {"data.prompt_key": "en", "data.completion_key": "de"}, {"data.format": "pairs"}),
        ({"log": messages("a", "b")}, {}, {"data.format": "chat", "data.messages_key": "log"}),
        ({"messages": messages("a", "b")}, {"data.format": "text"}, {}),
        ({"text": None, "label": "a b"}, {}, {}),
        ({"": "a b", "\ud800": "c d"}, {}, {}),
    ],
)
def test_what_is_asked_for_stays_and_the_rest_is_chosen_by_the_record(
    record: dict[str, Any], requested: dict[str, Any], keys: dict[str, Any]
) -> None:
    chosen = choose_keys(Record("x:1", record), requested)
    assert {**requested, **chosen} == {**requested, **chosen, **keys}
    assert bool(chosen) == bool(keys)


def test_a_text_under_the_only_key_that_can_hold_one_is_read(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", [{"id": f"{n}", "body": f"The text number {n}."} for n in range(50)])
    config, reasons = fit(path)
    assert config.data.text_key == "body"
    assert reasons[0].startswith("Records are read by data.text_key=body; data.text_key=KEY reads others.")


def test_strings_of_a_list_are_documents_and_values_of_several_kinds_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('["one",\n "two"]')
    assert [one.text for one in read_documents(str(tmp_path / "x.json"), note=pytest.fail)] == ["one", "two"]
    (tmp_path / "x.json").write_text('["one",\n {"text": "two"}]')
    with pytest.raises(UserError, match="the first record is a text") as caught:
        list(read_documents(str(tmp_path / "x.json"), note=pytest.fail))
    assert caught.value.where == f"{tmp_path / 'x.json'}:2"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('[{"text": "a"},\n {"text": "b}]', 2),
        ('[{"text": "a"},\n {"text": "b"}', 2),
        ('[{"text": "a"},\n 1]', 2),
        ('{"text": "a"\n', 1),
        ('{\n"text": "a"\n}\n{\n"text": \n}', 6),
    ],
)
def test_json_that_is_damaged_is_refused_with_its_line(tmp_path: Path, content: str, line: int) -> None:
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(UserError) as caught:
        list(read_documents(str(tmp_path / "x.jsonl"), note=pytest.fail))
    assert (caught.value.where or "").startswith(f"{tmp_path / 'x.jsonl'}:")
    assert int((caught.value.where or "").rpartition(":")[2]) <= line


def test_values_longer_than_a_piece_of_the_file_are_read_whole(tmp_path: Path) -> None:
    long = 'a, {[ \\ " 世界' * 400_000
    (tmp_path / "x.json").write_text(json.dumps([{"text": "first"}, {"text": long}, {"text": "last"}], indent=1))
    assert [one.text for one in read_documents(str(tmp_path / "x.json"), note=pytest.fail)] == ["first", long, "last"]


def test_json_that_is_one_object_and_json_in_a_project_are_plain_text(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"a": 1}\n')
    notes: list[str] = []
    [document] = read_documents(str(tmp_path / "settings.json"), note=notes.append)
    assert document.text == '{"a": 1}\n'
    (tmp_path / "list.json").write_text('[{"text": "one"}]')
    (tmp_path / "code.py").write_text("print()")
    assert '[{"text": "one"}]' in [one.text for one in read_documents(str(tmp_path), note=notes.append)]


def test_carriage_returns_alone_end_the_lines_of_tables_and_json(tmp_path: Path) -> None:
    notes: list[str] = []
    (tmp_path / "x.csv").write_bytes(b"id,text\r1,one\r2,two\r")
    assert [one.text for one in read_documents(str(tmp_path / "x.csv"), note=notes.append)] == ["one", "two"]
    (tmp_path / "x.jsonl").write_bytes(b'{"text": "one"}\r{"text": "two"}\r')
    assert [one.text for one in read_documents(str(tmp_path / "x.jsonl"), note=notes.append)] == ["one", "two"]
    assert sum("carriage return" in note for note in notes) == 2


@pytest.mark.parametrize("mark", ";\t|")
def test_columns_are_separated_by_the_mark_of_a_header_row_without_commas(tmp_path: Path, mark: str) -> None:
    (tmp_path / "x.csv").write_text(f'id{mark}text\n1{mark}"one{mark} two, three"\n')
    [document] = read_documents(str(tmp_path / "x.csv"), note=pytest.fail)
    assert document.text == f"one{mark} two, three"


def test_a_notebook_is_read_by_its_cells(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Words."]},
        {"cell_type": "code", "source": "x = 1\n", "outputs": [{"data": {"image/png": "iVBOR"}}]},
        {"cell_type": "raw", "source": []},
    ]
    (tmp_path / "x.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4}, indent=1))
    [document] = read_documents(str(tmp_path / "x.ipynb"), note=pytest.fail)
    assert document.text == "# Title\nWords.\n\nx = 1\n"
    (tmp_path / "x.ipynb").write_text("{}")
    with pytest.raises(UserError, match="no Jupyter notebook"):
        list(read_documents(str(tmp_path / "x.ipynb"), note=pytest.fail))


def test_a_key_that_is_null_throughout_reads_nothing_and_a_run_begun_before_reads_plain_text(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("text\tn\none\t1\n")
    for rules, expected in ((2, ["one"]), (1, ["text\tn\none\t1\n"])):
        options = ReaderOptions(rules=rules)
        documents = read_documents(str(tmp_path / "x.tsv"), note=lambda _: None, options=options)
        assert [document.text for document in documents] == expected
    rows = [{"system": "Be short.", "messages": messages("hi", "yo")}]
    path = write_lines(tmp_path / "x.jsonl", rows)
    for rules, start in ((2, "system"), (1, "user")):
        [example] = read_examples(str(path), DataConfig(format="chat", rules=rules), pytest.fail)
        assert example.text.startswith(start)


def test_a_long_value_beside_many_small_ones_is_read_and_each_has_a_place_of_its_own(tmp_path: Path) -> None:
    rows = [{"text": "x y " * 1_200_000}, *({"text": "ab", "n": [1, 2, 3] * 9} for _ in range(60_000))]
    (tmp_path / "x.json").write_text(json.dumps(rows))
    documents = list(read_documents(str(tmp_path / "x.json"), note=pytest.fail))
    assert [document.text for document in documents] == [row["text"] for row in rows]
    assert len({document.name for document in documents}) == len(rows)


def test_records_in_a_json_file_are_known_however_long_the_first_is(tmp_path: Path) -> None:
    rows = [{"text": "a long text " * 200_000}, {"text": "a short one"}]
    write_lines(tmp_path / "x.json", rows)
    documents = read_documents(str(tmp_path / "x.json"), note=pytest.fail)
    assert [document.text for document in documents] == [row["text"] for row in rows]


def test_a_folder_of_records_of_several_kinds_is_read_by_its_records(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"text": "one"}])
    (tmp_path / "b.json").write_text('[{"text": "two"}]')
    assert [one.text for one in read_documents(str(tmp_path), note=pytest.fail)] == ["one", "two"]


def test_the_first_record_is_that_of_a_file_that_has_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,completion\n")
    write_lines(tmp_path / "b.jsonl", [{"prompt": f"{n}", "completion": "c"} for n in range(30)])
    record = first_record([str(tmp_path)], ReaderOptions())
    assert record is not None
    assert record.where == f"{tmp_path / 'b.jsonl'}:1"


def test_a_comma_in_quotation_marks_separates_no_columns(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('id;text;"price, eur"\n0;quick fox;3\n')
    assert [one.text for one in read_documents(str(tmp_path / "x.csv"), note=pytest.fail)] == ["quick fox"]
