"""docs/howto/own_text.md: every row of its table is read as it says, and by the keys that it says."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from gpt_cli.config import Config, dump_config, parse_config
from gpt_cli.config.keys import get_key
from gpt_cli.config.load import parse_overrides
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.search.auto_config import fit_config
from tests.support.command import ROOT

pytestmark = pytest.mark.docs

TABLE = (ROOT / "docs/howto/own_text.md").read_text("utf-8").partition("| forced by |\n|---|---|---|---|\n")[2]
ROWS = [[cell.strip() for cell in row.strip("|").split("|")] for row in TABLE.partition("\n\n")[0].splitlines()]
N = 40


def numbered(value: Any, n: int) -> Any:
    """`value` with another number in each of its texts, but for roles."""
    if isinstance(value, dict):
        return {key: item if key in ("role", "from") else numbered(item, n) for key, item in value.items()}
    if isinstance(value, list):
        return [numbered(item, n) for item in value]
    return f"{value} {n % 2 if value == 'good' else n}"


def write(folder: Path, suffix: str, example: str) -> Path:
    path = folder / f"x{suffix}"
    if suffix in (".txt", ".ipynb"):
        texts = [f"{example} {n}" for n in range(N)]
        blank = "\n\n" if "paragraph" in example else "\n"
        notebook = {"cells": [{"cell_type": "markdown", "source": [text]} for text in texts * 20]}
        path.write_text(json.dumps(notebook) if suffix == ".ipynb" else blank.join(texts * 20))
        return path
    rows = [numbered(json.loads(example), n) for n in range(N)]
    if suffix == ".parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    elif suffix in (".csv", ".tsv"):
        mark = "," if suffix == ".csv" else "\t"
        path.write_text("\n".join([mark.join(rows[0]), *(mark.join(row.values()) for row in rows)]))
    else:
        path.write_text(json.dumps(rows) if suffix == ".json" else "\n".join(map(json.dumps, rows)))
    return path


def fit(path: Path, keys: list[str]) -> Config:
    overrides = [f"data.source={path}", *keys]
    fitted, _ = fit_config(parse_overrides(overrides), run_dir="runs/x", has_gpu=False, cores=2)
    return parse_config(dump_config(fitted), "fitted.yaml", overrides)


def test_the_table_names_every_suffix_that_is_read() -> None:
    assert {row[0].partition("`,")[0].strip("`") for row in ROWS} >= {
        ".txt",
        ".ipynb",
        ".jsonl",
        ".json",
        ".csv",
        ".tsv",
    }
    assert len(ROWS) == 17


@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]} {row[3]}".replace("`", "") for row in ROWS])
def test_a_row_of_the_table_is_read_as_it_says(tmp_path: Path, row: list[str]) -> None:
    file, example, read_as, forced_by = row
    suffix = "." + file.replace("`", "").replace(",", " ").split()[0].lstrip(".")
    path = write(tmp_path, suffix, example.strip("`"))
    keys = shlex.split(forced_by.strip("`"))
    forced = fit(path, keys)
    chosen = forced if "if asked for" in f"{file} {read_as}" else fit(path, [])
    expected = parse_overrides(keys)
    assert {key: get_key(forced, key) for key in expected} == expected
    reading = ("format", "text_key", "prompt_keys", "completion_key", "messages_key", "label_key")
    assert [getattr(chosen.data, key) for key in reading] == [getattr(forced.data, key) for key in reading]
    corpora = [prepare_corpus(c.data, c.tokenizer, cache=False, note=lambda _: None) for c in (chosen, forced)]
    assert corpora[0].fingerprint == corpora[1].fingerprint
    documents = sum(stats.documents for stats in corpora[0].stats.values())
    if read_as.startswith(("one document", "a document for each notebook")):
        assert documents == 2  # the parts of one in two splits
    elif suffix == ".txt":
        assert documents == N * 20
    else:
        assert documents == N
