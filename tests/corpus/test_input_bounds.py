"""No input takes memory or time beyond a stated bound, and what is within the bounds is read whole."""

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpt_cli.corpus import compression, folders, parquet, records, tables
from gpt_cli.corpus.parquet_pages import PageError, read_pages
from gpt_cli.corpus.sources import read_documents
from gpt_cli.errors import RequestError, UserError
from tests.support import input_bombs as bombs
from tests.support.command import subprocess_env

pytestmark = pytest.mark.robust

SECONDS = 10  # of processor time
MEGABYTES = 300  # over what a small text takes

pytest.importorskip("pyarrow.parquet")
pytest.importorskip("zstandard")


def texts(source: Path | str) -> list[str]:
    return [document.text for document in read_documents(str(source), note=lambda _: None)]


def measure(sources: Sequence[Path], folder: Path) -> list[dict[str, Any]]:
    """What `gpt tokenize` took for each of them."""
    commands = [["tokenize", str(source), "--out", str(folder / f"tokens-{n}")] for n, source in enumerate(sources)]
    completed = subprocess.run(
        [sys.executable, "-m", "tests.support.resource_usage", str(SECONDS)],
        input=json.dumps(commands),
        env=subprocess_env(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answers: list[dict[str, Any]] = json.loads(completed.stdout)
    return answers


def explode(makers: Sequence[bombs.Bomb], folder: Path) -> list[str]:
    """What is wrong with how they end: each in one error, in 10 seconds and 300 MB. Removes them."""
    (folder / "x.txt").write_text("a small text\n" * 100)
    sources = [folder / "x.txt", bombs._parquet(folder, ["a small text\n"] * 100)]
    for maker in makers:
        (folder / maker.__name__).mkdir()
        sources.append(maker(folder / maker.__name__))
    base, table, *outcomes = measure(sources, folder)
    subprocess.run(["rm", "-rf", *(folder / maker.__name__ for maker in makers)], check=True)  # too deep for Python
    assert base["rc"] == table["rc"] == 0, (base, table)
    failures = []
    for maker, outcome in zip(makers, outcomes, strict=True):
        lines = outcome["stderr"].splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        is_one_error = outcome["rc"] in (1, 2) and len(errors) == 1 and len(lines) <= 3
        usual = table["peak"] if "parquet" in maker.__name__ else base["peak"]
        if not is_one_error or outcome["peak"] > usual + MEGABYTES:
            failures.append(f"{maker.__name__}: {outcome}")
    return failures


def test_every_bomb_ends_in_one_error_in_10_seconds_and_300_mb(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    failures = explode(bombs.BOMBS, tmp_path)
    record_property("faults", len(bombs.BOMBS))
    assert not failures, "\n".join(failures)


@pytest.mark.slow
def test_the_larger_bombs_end_in_one_error_in_10_seconds_and_300_mb(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    failures = explode(bombs.LARGE, tmp_path)
    record_property("faults", len(bombs.LARGE))
    assert not failures, "\n".join(failures)


def test_want_of_memory_is_not_called_damage(tmp_path: Path) -> None:
    path = bombs._parquet(tmp_path, ["a" * 60_000_000], compression="zstd", use_dictionary=False)
    check = (
        "import resource, sys; import pyarrow.parquet; from gpt_cli.cli.main import main;"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize();"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 40_000_000,) * 2); sys.exit(main(sys.argv[1:]))"
    )
    completed = subprocess.run(
        [sys.executable, "-c", check, "tokenize", str(path)],
        env=subprocess_env(ARROW_DEFAULT_MEMORY_POOL="system"),
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert completed.returncode == 1, completed.stderr
    assert "memory" in completed.stderr.splitlines()[0]
    assert "not a whole" not in completed.stderr


# What is within the bounds


@pytest.mark.parametrize(
    "options", [{}, {"use_dictionary": False}, {"data_page_version": "2.0"}, {"compression": "gzip"}]
)
@pytest.mark.parametrize("rows", [1, 300, 5_000])
def test_a_parquet_file_is_read_whole_whatever_its_pages(tmp_path: Path, rows: int, options: dict[str, Any]) -> None:
    import pyarrow as arrow
    from pyarrow import parquet as format

    column = [None if n % 7 == 3 else f"{n % 11} größer " * (n % 5 * n % 300) for n in range(rows)]
    column[0] = "a" * 3_000_000
    format.write_table(
        arrow.table({"id": range(rows), "text": column}),
        tmp_path / "x.parquet",
        row_group_size=1_000,
        data_page_size=10_000,
        **options,
    )
    assert texts(tmp_path / "x.parquet") == [text for text in column if text]


def test_the_pages_that_are_read_are_those_that_pyarrow_wrote(tmp_path: Path) -> None:
    import pyarrow as arrow
    from pyarrow import parquet as format

    words = [f"word {n % 50} " * 20 for n in range(20_000)]
    for statistics in (False, True):
        format.write_table(
            arrow.table({"text": words}), tmp_path / "x.parquet", data_page_size=2_000, write_statistics=statistics
        )
        chunk = format.ParquetFile(tmp_path / "x.parquet").metadata.row_group(0).column(0)
        with (tmp_path / "x.parquet").open("rb") as stream:
            pages = list(read_pages(stream, chunk.dictionary_page_offset, chunk.total_compressed_size))
        assert [page.is_dictionary for page in pages] == [True] + [False] * (len(pages) - 1)
        assert len(pages) > 5
        assert sum(page.values for page in pages if page.is_data) == len(words)
        assert pages[0].values == 50
        assert pages[0].size == sum(len(word) + 4 for word in set(words))


def test_bytes_that_are_no_page_headers_are_refused() -> None:
    for number in range(2_000):
        data = os.urandom(number % 90 + 1) if number % 3 else b"\x19" * 400 + bytes([number % 256])
        with suppress(PageError):
            list(read_pages(io.BytesIO(data), 0, len(data)))


@pytest.mark.parametrize("module", [records, parquet])
def test_a_text_as_long_as_allowed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    monkeypatch.setattr(module, "LONGEST_RECORD", 100_000)
    text = "a" * (100_000 - 100)
    if module is parquet:
        path = bombs._parquet(tmp_path, [text, "b"])
        longer = ["x" * 100_001]
    else:
        (tmp_path / "x.jsonl").write_text(json.dumps({"text": text}) + '\n{"text": "b"}\n')
        path = tmp_path / "x.jsonl"
    assert texts(path) == [text, "b"]
    if module is parquet:
        bombs._parquet(tmp_path, longer)
    else:
        path.write_text(json.dumps({"text": "a" * 100_001}))
    with pytest.raises(UserError, match=r"this (value|line) is longer than"):
        texts(path)


def test_the_rows_of_a_table_are_bounded_each_not_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LONGEST_RECORD", 1_000)
    monkeypatch.setattr(tables, "MAX_DELIMITERS", 200)
    row = '"' + "line,\n" * 100 + '"'
    (tmp_path / "x.csv").write_text("id,text\n" + "".join(f"{n},{row}\n\n\r\n" for n in range(500)))
    assert texts(tmp_path / "x.csv") == ["line,\n" * 100] * 500
    (tmp_path / "x.csv").write_text("id,text\n1,a\n\n2," + '"' + "line\n" * 300 + '"')
    with pytest.raises(UserError, match="more than 1,000 characters") as caught:
        texts(tmp_path / "x.csv")
    assert caught.value.where == f"{tmp_path / 'x.csv'}:4"
    assert "never closed" in (caught.value.hint or "")


def test_json_besides_the_text_may_be_as_large_as_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_STRUCTURE", 1_000)
    long = 'a "quoted" \\ text, [with] {all} of it: ' * 100
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": long, "ids": list(range(100))}))
    assert texts(tmp_path / "x.jsonl") == [long]
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": long, "ids": list(range(300))}))
    with pytest.raises(UserError, match="of JSON besides its strings"):
        texts(tmp_path / "x.jsonl")


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.parquet"])
def test_records_without_text_are_counted_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(records, "MAX_EMPTY_RECORDS", 600)

    def write(column: list[str]) -> Path:
        if name.endswith("parquet"):
            return bombs._parquet(tmp_path, column)
        lines = (
            [json.dumps({"text": text}) for text in column]
            if name.endswith("l")
            else ["text,b", *(f"{text}," for text in column)]
        )
        (tmp_path / name).write_text("\n".join(lines))
        return tmp_path / name

    assert texts(write([*[""] * 500, "a"] * 5)) == ["a"] * 5
    with pytest.raises(UserError, match="more than 600 records without text"):
        texts(write([*["a"], *[""] * 1_000]))


def test_expansion_is_bounded_where_it_happens_not_over_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "ALWAYS_ALLOWED", 1 << 16)
    noise = os.urandom(1 << 16).hex().encode()
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(b"a" * (1 << 20)) + gzip.compress(noise))
    with pytest.raises(UserError, match=r"expands to more than 204\.8 kB in its first 1\.0 kB"):
        texts(tmp_path / "x.txt.gz")
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(noise) + gzip.compress(b"a" * (1 << 20)))
    assert len(texts(tmp_path / "x.txt.gz")[0]) == (1 << 20) + (2 << 16)


# Folders


def test_a_folder_has_as_many_files_as_stated_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "MAX_ENTRIES", 10)
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text("x")
    assert len(texts(tmp_path)) == 10
    assert len(texts(f"{tmp_path}/*.txt")) == 10
    (tmp_path / ".hidden").mkdir()
    with pytest.raises(UserError, match="more than 10 files"):
        texts(tmp_path)
    (tmp_path / "10.txt").write_text("x")
    with pytest.raises(UserError, match="more than 10 files"):
        texts(f"{tmp_path}/*.txt")


def test_two_stars_match_what_they_match_for_glob_but_through_no_link(tmp_path: Path) -> None:
    for name in ("a.txt", "b/c.txt", "b/d/e.txt", "b/d/f.md", ".g/h.txt", "b/.i.txt", "j[1]/k.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "b" / "again").symlink_to(tmp_path)
    patterns = ["**/*.txt", "b/**/*.txt", "**/d/*", "**", "b/**", "**/d/**/*.md", "*/**/k.txt", "**/**/e.txt"]
    expected = {
        "**/*.txt": ["a.txt", "b/c.txt", "b/d/e.txt", "j[1]/k.txt"],
        "b/**/*.txt": ["b/c.txt", "b/d/e.txt"],
        "**/d/*": ["b/d/e.txt", "b/d/f.md"],
        "**": ["a.txt", "b/c.txt", "b/d/e.txt", "b/d/f.md", "j[1]/k.txt"],
        "b/**": ["b/c.txt", "b/d/e.txt", "b/d/f.md"],
        "**/d/**/*.md": ["b/d/f.md"],
        "*/**/k.txt": ["j[1]/k.txt"],
        "**/**/e.txt": ["b/d/e.txt"],
    }
    for pattern in patterns:
        assert texts(f"{tmp_path}/{pattern}") == expected[pattern], pattern


def test_a_pattern_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.txt").write_text("it")
    monkeypatch.chdir(tmp_path)
    assert texts("**/*.txt") == texts("b/**") == ["it"]
    with pytest.raises(RequestError, match="no file matches"):
        texts("**/*.md")


def test_a_folder_as_deep_as_stated_is_read(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * folders.MAX_DEPTH)
    deep.mkdir(parents=True)
    (deep / "x.txt").write_text("deep")
    assert texts(tmp_path) == ["deep"]
    (deep / "d").mkdir()
    with pytest.raises(UserError, match="more than 100 folders in each other"):
        texts(tmp_path)
