"""No input takes memory or time beyond a stated bound, and what is within the bounds is read whole."""

import bz2
import gzip
import json
import lzma
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpt_cli.corpus import parquet, records
from gpt_cli.corpus.sources import read_documents
from gpt_cli.corpus.stored_file import StoredFile
from gpt_cli.errors import RequestError, UserError
from tests.support import input_bombs as bombs
from tests.support.command import subprocess_env

pytestmark = pytest.mark.robust

SECONDS = 10  # of processor time
MEGABYTES = 600  # over what a small text takes

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
    """What is wrong with how they end: each in one error, in 10 seconds and 600 MB. Removes them."""
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


def test_every_bomb_ends_in_one_error_in_10_seconds_and_600_mb(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    failures = explode(bombs.BOMBS, tmp_path)
    record_property("faults", len(bombs.BOMBS))
    assert not failures, "\n".join(failures)


@pytest.mark.slow
def test_the_larger_bombs_end_in_one_error_in_10_seconds_and_600_mb(
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


def test_a_text_that_is_in_many_rows_is_held_a_few_times_at_once(tmp_path: Path) -> None:
    """A batch of 256 rows would take 2.5 GB."""
    bombs.parquet_of_repeated_texts(tmp_path)
    check = (
        "import sys; from itertools import islice; from gpt_cli.corpus.sources import read_documents;"
        "from tests.support.memory import peak_kilobytes;"
        "texts = islice(read_documents(sys.argv[1], note=print), 300); print(sum(len(one.text) for one in texts));"
        "print(peak_kilobytes() // 1000)"
    )
    completed = subprocess.run(
        [sys.executable, "-c", check, str(tmp_path / "x.parquet")],
        env=subprocess_env(),
        capture_output=True,
        text=True,
        check=True,
    )
    read, peak = map(int, completed.stdout.split())
    assert read == 3_000_000_000
    assert peak < 1_000


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_what_expands_a_thousand_times_is_read_in_pieces(tmp_path: Path, suffix: str) -> None:
    makers = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    compress = makers.get(suffix) or pytest.importorskip("zstandard").ZstdCompressor().compress
    path = tmp_path / f"x.txt{suffix}"
    path.write_bytes(compress(b"a" * (64 << 20)) * 2)
    tracemalloc.start()
    assert sum(map(len, StoredFile.at(path).pieces())) == 128 << 20
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80 << 20


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_a_text_as_long_as_allowed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in (records, parquet):
        monkeypatch.setattr(module, "LONGEST_RECORD", 100_000)
    text = "a" * (100_000 - 100)
    if name == "x.parquet":
        path = bombs._parquet(tmp_path, [text, "b"])
        longer = ["x" * 100_001]
    else:
        (tmp_path / "x.jsonl").write_text(json.dumps({"text": text}) + '\n{"text": "b"}\n')
        path = tmp_path / "x.jsonl"
    assert texts(path) == [text, "b"]
    if name == "x.parquet":
        bombs._parquet(tmp_path, longer)
    else:
        path.write_text(json.dumps({"text": "a" * 100_001}))
    with pytest.raises(UserError, match=r"this (value|line) is longer than"):
        texts(path)


def test_the_rows_of_a_table_are_bounded_each_not_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LONGEST_RECORD", 1_000)
    row = '"' + "line,\n" * 100 + '"'
    (tmp_path / "x.csv").write_text("id,text\n" + "".join(f"{n},{row}\n\n\r\n" for n in range(500)))
    assert texts(tmp_path / "x.csv") == ["line,\n" * 100] * 500
    (tmp_path / "x.csv").write_text("id,text\n1,a\n\n2," + '"' + "line\n" * 300 + '"')
    with pytest.raises(UserError, match="this row is longer than") as caught:
        texts(tmp_path / "x.csv")
    assert caught.value.where == f"{tmp_path / 'x.csv'}:4"


# Folders


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
