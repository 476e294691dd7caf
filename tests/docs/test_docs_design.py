"""docs/design names files and definitions that are there."""

import ast
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.command import ROOT

pytestmark = pytest.mark.docs

DESIGN = ROOT / "docs" / "design"
FOREIGN = """
alibi auto decode.c gemm.h said loss_scale matmul_ceiling tokenizers outlines llguidance xgrammar GOMP_SPINCOUNT
found_inf use_attribute_docstrings StackOverflow riptoken AdamW runtime Generator __call__ NOINLINE
ws seat limbs epilogue state.json bd5638bd
runtime.measure runtime.deterministic re libtorch_cpu.so torch.nn.functional.linear_cross_entropy
"""
VALUES = set(FOREIGN.split())  # in backticks, but no names of Python that are ours


@cache
def defined_in(path: Path) -> frozenset[str]:
    """The functions, classes, methods, fields and module variables that a file defines; of C, its functions."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".c", ".h"):
        return frozenset(re.findall(r"^\w[\w *]*?(\w+)\([^;]*\{$", text, flags=re.MULTILINE))
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return frozenset(names)


def test_each_of_the_twenty_answers_names_a_file_and_what_it_defines() -> None:
    page = (DESIGN / "where.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+)\. .+? \| `([^`]+)` \| `([^`]+)` \|$", page, flags=re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 21))
    for number, file, name in rows:
        assert name in defined_in(ROOT / file), f"question {number}: {file} does not define {name}"


def test_each_file_on_the_way_to_the_forward_pass_imports_the_next() -> None:
    match = re.search(
        r"to the forward pass in `(.+?)`: (.+?), which", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.DOTALL
    )
    assert match is not None
    files = re.findall(r"`([\w/]+\.py)`", match[2])
    assert len(files) == 5
    for file, following in pairwise([*files, match[1]]):
        text = (ROOT / "gpt_cli" / file).read_text("utf-8")
        module = f"gpt_cli.{following.removesuffix('.py').replace('/', '.')}"
        is_engine = following == "training/torch_engine.py"  # the one of two that the state has
        assert ("state.engine.forward_backward(" if is_engine else f"from {module} import") in text, (file, following)
    assert "def forward_backward(" in (ROOT / "gpt_cli" / files[-1]).read_text("utf-8")


@pytest.mark.parametrize("page", sorted(DESIGN.glob("*.md")), ids=lambda page: page.name)
def test_every_file_and_every_name_of_a_design_page_is_there(page: Path) -> None:
    everything = {
        name for file in (*ROOT.glob("gpt_cli/**/*.py"), *ROOT.glob("tests/**/*.py")) for name in defined_in(file)
    }
    everything |= {name for file in ROOT.glob("gpt_cli/**/*.[ch]") for name in defined_in(file)}
    for quoted in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")):
        if re.fullmatch(r"(gpt_cli|tests|docs)/[\w./]+", quoted):
            assert (ROOT / quoted).exists(), quoted
        elif re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", quoted) and quoted not in VALUES:
            assert quoted.rpartition(".")[2] in everything, quoted
