"""Folders of many small files: the work for each does not grow with their number."""

from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest

from gpt_cli.corpus import blocks
from gpt_cli.corpus.blocks import CorpusText, SourceFile
from gpt_cli.corpus.encoder_pool import SerialExecutor
from gpt_cli.corpus.readers import ReaderOptions, TextFile
from gpt_cli.corpus.scan import scan
from gpt_cli.corpus.sources import find_files
from gpt_cli.search import text_statistics

FILES = 300


class _CountedFile(TextFile):
    """Counts how often its attributes are read."""

    reads: ClassVar[Counter[str]] = Counter()

    def __getattribute__(self, name: str) -> object:
        _CountedFile.reads[name] += 1
        return super().__getattribute__(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "texts").mkdir()
    for n in range(FILES):
        (tmp_path / "texts" / f"{n:04}.txt").write_text(f"This is text {n}, in a file of its own: {chr(0x4E00 + n)}")
    return tmp_path / "texts"


def _counted(source: str, options: ReaderOptions, note: object) -> list[TextFile]:
    files = find_files(source, options, pytest.fail)
    return [_CountedFile(file.name, file.size, file.read) for file in files]


@pytest.mark.parametrize("reader", ["scan", "statistics"])
def test_the_size_of_each_file_is_read_once_however_many_there_are(
    folder: Path, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "find_files", _counted)
    _CountedFile.reads.clear()
    totals: set[int | None] = set()
    if reader == "scan":
        files = [SourceFile(file, 1, validates=False) for file in _counted(str(folder), ReaderOptions(), None)]
        scan(CorpusText(files, pytest.fail), end_lines=True, progress=lambda _, __, total: totals.add(total))
    else:
        fixed = {"data.source": str(folder)}
        text_statistics.measure_source(
            [str(folder)], fixed, fixed, has_gpu=False, progress=lambda _, __, total: totals.add(total)
        )
    assert totals == {sum(file.stat().st_size for file in folder.iterdir())}
    assert _CountedFile.reads["size"] == FILES


@pytest.mark.parametrize("workers", [1, 2])
def test_the_characters_of_small_files_are_collected_together(
    folder: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[object] = []
    submit = SerialExecutor.submit
    monkeypatch.setattr(SerialExecutor, "submit", lambda *args: submitted.append(args[1]) or submit(*args))
    files = [SourceFile(file, 1, validates=False) for file in find_files(str(folder), ReaderOptions(), pytest.fail)]
    text = CorpusText(files, pytest.fail)
    stats = scan(text, end_lines=True, progress=lambda *_: None, alphabet=True, workers=workers)
    everything = "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.iterdir()))
    assert stats.alphabet == "".join(sorted(set(everything)))
    assert len(submitted) == 1
