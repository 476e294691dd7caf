"""House rules: one name a thing, packages that say what they are for, short files, docstrings in plain English."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.command import ROOT

PACKAGE = ROOT / "gpt_cli"
TESTS = PACKAGE.parent / "tests"
FILES = sorted(path for path in PACKAGE.rglob("*.py"))
PACKAGES = sorted(path for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)
MAX_LINES = 390
OPENINGS = ("What", "How", "Who", "Whoever", "Where", "Which", "Whose", "Those", "Within", "Within:", "Whether", "When")


def name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_no_two_classes_have_one_name() -> None:
    homes = defaultdict(list)
    for path in FILES:
        for cls in re.findall(r"^ *class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            homes[cls].append(name(path))
    assert {cls: files for cls, files in homes.items() if len(files) > 1} == {}


def test_no_two_modules_have_one_name_but_a_verb_and_what_it_calls() -> None:
    homes = defaultdict(list)
    for path in FILES:
        if path.name != "__init__.py" and path.parent.name != "verbs":
            homes[path.name].append(name(path))
    assert {module: files for module, files in homes.items() if len(files) > 1} == {}


@pytest.mark.parametrize("path", PACKAGES, ids=name)
def test_every_package_says_what_it_is_for_what_to_read_first_and_what_it_never_does(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    actual = re.fullmatch(r"[^\n]+\.\n\nRead first: (?P<first>[^\n]+)\.\nNever: [^\n]+\.", text)
    assert actual, f"{name(path)}: {text!r}"
    for file in re.findall(r"`([\w/]+\.(?:py|c|h))`", text):
        assert (path.parent / file).exists() or (PACKAGE / file).exists(), file


def test_a_file_is_no_longer_than_five_screens() -> None:
    lines = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {file: count for file, count in lines.items() if count > MAX_LINES} == {}


def test_no_docstring_answers_a_question_that_nobody_asked() -> None:
    openings = [
        (path.name, opening)
        for path in [*FILES, *sorted((PACKAGE.parent / "bench").glob("*.py"))]
        for opening in re.findall(r'^ *r?"""([^\s"]+)', path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(openings) > len(FILES)
    assert [(file, opening) for file, opening in openings if opening in OPENINGS] == []


def test_no_test_file_imports_from_another() -> None:
    imports = []
    for path in sorted(TESTS.rglob("*.py")):
        for module in re.findall(r"^\s*(?:from|import) ([\w.]+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            if re.match(r"(tests\.)?(test_\w+|conftest)\b|\.", module):
                imports.append(f"{path.name}: {module}")
    assert imports == []


def test_each_test_file_is_in_the_room_of_the_package_that_it_tests_and_beside_the_rooms_are_only_commands() -> None:
    rooms = {path.parent.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")}
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert rooms - packages == {"docs", "project"}
    assert {path.stem for path in TESTS.glob("*.py")} == {"attack", "conftest", "flaky", "mutations", "promises"}
