"""The texts that come with Python."""

import hashlib
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpt_cli.corpus import builtin
from gpt_cli.corpus.builtin import KEYWORDS, python_docs, python_keywords
from gpt_cli.errors import UserError
from tests.support.command import subprocess_env

STATEMENTS = {
    "assert": "x is not None, 'x'",
    "class": "Shape(Base):",
    "def": "area(self):",
    "del": "self.name",
    "except": "OSError as error:",
    "for": "name in names:",
    "from": "os import path",
    "if": "a == b:  # a comment",
    "import": "os.path",
    "raise": "ValueError(name)",
    "return": "self._area",
    "while": "pending:",
    "with": "open(name) as file:",
    "yield": "from names",
}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A standard library with one line of each keyword, and files that are no part of it."""
    folder = tmp_path / "lib"
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(folder)})
    for name in ("package", "site-packages", "test"):
        (folder / name).mkdir(parents=True)
    lines = "".join(f"    {keyword} {rest}\n" for keyword, rest in STATEMENTS.items())
    (folder / "package" / "code.py").write_text(f"if 1:\n{lines}{lines}    elif_ = for_ = 'return nothing'\n")
    (folder / "package" / "short.py").write_text("import os\ndel x\n'''\nimport from_a_string\n'''\n# import it\n")
    (folder / "package" / "latin.py").write_bytes(b"# caf\xe9\nimport latin_letters\n")
    (folder / "package" / "broken.py").write_text("import broken_file\nx = '''\n")
    (folder / "package" / "text.txt").write_text("import text_file\n")
    for name in ("site-packages", "test"):
        (folder / name / "other.py").write_text("import other_code\n")
    builtin._library_lines.cache_clear()
    yield folder
    builtin._library_lines.cache_clear()


def test_each_keyword_labels_the_rest_of_the_lines_that_begin_with_it(library: Path) -> None:
    assert list(python_keywords()) == [(rest, keyword) for keyword, rest in STATEMENTS.items()]


def test_of_a_keyword_with_many_lines_those_with_the_lowest_hashes_are_taken(library: Path) -> None:
    names = [f"module_{i}" for i in range(5000)]
    for part, place in ((names[:2500], "z.py"), (names[2500:], "a.py")):
        (library / place).write_text("".join(f"import {name}\n" for name in part))
    digests = {name: hashlib.sha256(name.encode()).digest() for name in [*names, STATEMENTS["import"]]}
    imports = [text for text, label in python_keywords() if label == "import"]
    assert imports == sorted(digests, key=lambda name: digests[name])[:2000]


def test_a_library_without_source_is_an_error_of_its_own(library: Path) -> None:
    (library / "package" / "code.py").unlink()
    with pytest.raises(UserError, match="without the source of its library"):
        next(python_keywords())


@pytest.mark.system
def test_the_lines_of_this_python_stand_in_its_library_and_are_the_same_in_every_process() -> None:
    records = list(python_keywords())
    library = Path(sysconfig.get_paths()["stdlib"])
    lines = {
        line.strip()
        for path in library.rglob("*.py")
        if not {"site-packages", "test"} & set(path.parts)
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n")
    }
    assert {label for _, label in records} == set(KEYWORDS)
    assert max(Counter(label for _, label in records).values()) <= 2000
    assert len(set(records)) == len(records)
    assert {line.replace(" ", "") for line in lines} >= {f"{label}{text}".replace(" ", "") for text, label in records}
    program = (
        "import hashlib; from gpt_cli.corpus.builtin import *;"
        "print(hashlib.sha256(repr(list(python_keywords())).encode()).hexdigest())"
    )
    env = {**subprocess_env(), "PYTHONHASHSEED": "7"}
    printed = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True, text=True)
    assert printed.stdout.strip() == hashlib.sha256(repr(records).encode()).hexdigest()


def test_a_python_without_documentation_is_an_error_with_another_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\n" in python_docs()
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(UserError, match="documentation topics") as error:
        python_docs()
    assert error.value.choices == ("corpus:tiny-shakespeare",)
