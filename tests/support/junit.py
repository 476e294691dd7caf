"""What a report of `pytest --junitxml` says."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree


class Case(NamedTuple):
    """A test that was run, with its arguments if it has some."""

    name: str
    """`room/file.py::test_x[1]`, below `tests`."""
    outcome: str
    """passed, failed, error (outside of the test itself) or skipped."""
    message: str
    """Of what did not pass, in a line."""
    seconds: float
    properties: dict[str, str]


def read_cases(report: Path) -> Iterator[Case]:
    """Each test of the file `report`."""
    for case in ElementTree.parse(report).iter("testcase"):
        parts = case.attrib["classname"].removeprefix("tests.").split(".")
        in_file = next(n for n, part in enumerate(parts) if part.startswith("test_")) + 1
        file = "/".join(parts[:in_file]) + ".py"
        actual = {outcome: case.find(outcome) for outcome in ("failure", "error", "skipped")}
        reason = next((element for element in actual.values() if element is not None), None)
        words = {"failure": "failed", "error": "error", "skipped": "skipped"}
        yield Case(
            "::".join([file, *parts[in_file:], case.attrib["name"]]),
            next((words[kind] for kind, element in actual.items() if element is not None), "passed"),
            "" if reason is None else (reason.attrib.get("message") or reason.text or "").strip().partition("\n")[0],
            float(case.attrib["time"]),
            {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")},
        )
