"""The pages of `gpt report`, `attention` and `score` in a browser: by keyboard, on a phone, in light and dark."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpt_cli.cli.main import main
from tests.support.browser import Page, browsing, find_chromium

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium here"),
]

# axe looks at every token
BOOK = "Once upon a time there was a mouse, and it lived in a shoe.\n\nIt ate <b>cheese</b>.\n" * 12
PAGES = ["report.html", "several.html", "attention.html", "score.html", "long.html"]
_CONTROLS = "a, button, select, summary, input[type=radio]:checked, [tabindex='0']"
_SHOWN = f"[...document.querySelectorAll({_CONTROLS!r})].filter(e => e.checkVisibility())"
_OUTLINED = (
    "(() => { const e = document.activeElement, seen = e.type === 'radio' ? e.nextElementSibling : e;"
    " return getComputedStyle(seen).outlineStyle !== 'none'; })()"
)


@pytest.fixture(scope="module")
def pages_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each of the pages."""
    pages_dir = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(pages_dir)
        patch.setenv("GPT_CACHE", str(pages_dir / "cache"))
        Path("book.txt").write_text(BOOK)
        Path("long.txt").write_text(BOOK * 25)
        shape = ["model.n_layer=1", "model.n_head=4", "model.n_embd=32", "model.context_length=32"]
        shape += ["train.batch_size=4", "train.steps=6", "eval.every=2", "log.every=1", "runtime.threads=1"]
        for run in ("small", "other"):
            assert main(["train", "book.txt", f"run_dir=runs/{run}", "sample.every=3", *shape]) == 0
        assert main(["report", "runs/small", "-o", "report.html"]) == 0
        assert main(["report", "runs/small", "runs/other", "-o", "several.html"]) == 0
        assert main(["attention", "runs/small", "--prompt", "Once upon a mouse", "-o", "attention.html"]) == 0
        for text, page in (("book.txt", "score.html"), ("long.txt", "long.html")):
            assert main(["score", text, "runs/small", "--html", page]) == 0
    return pages_dir


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("browser")) as page:
        yield page
        assert page.problems == []


@pytest.mark.parametrize("name", PAGES)
def test_tab_comes_to_every_control_shows_where_it_is_and_leaves_the_page(
    pages_dir: Path, page: Page, name: str
) -> None:
    page.open_file(pages_dir / name)
    if name == "long.html":
        page.wait("document.querySelectorAll('.chunk span[tabindex]').length")
    page.run(f"window.missing = new Set({_SHOWN}); window.focused = []; missing.size")
    for _ in range(page.run("missing.size") + 20):
        page.key("Tab")
        if page.run("document.activeElement === document.body"):
            break
        page.run("focused.push(document.activeElement); missing.delete(document.activeElement)")
        if page.run("focused.length > 1 && focused[0] === document.activeElement"):
            break
        assert page.run(_OUTLINED), page.run("document.activeElement.outerHTML.slice(0, 200)")
    else:
        pytest.fail("Tab does not leave the page")
    assert page.run("[...missing].map(e => e.outerHTML.slice(0, 200))") == []


def test_the_arrows_tell_the_values_of_a_chart(pages_dir: Path, page: Page) -> None:
    page.open_file(pages_dir / "report.html")
    page.run("[...document.querySelectorAll('svg[data-x]')].find(e => e.checkVisibility()).focus()")
    under = "document.activeElement.querySelector('.under:not([hidden])')?.textContent"
    readouts = []
    for key in ("ArrowLeft", "ArrowLeft", "ArrowRight"):
        page.key(key)
        readouts.append(page.run(under))
    assert readouts[0] == readouts[2] != readouts[1]
    assert all("step" in text for text in readouts)
    page.key("Escape")
    assert page.run(under) is None


def test_curves_over_another_axis_are_chosen_by_the_arrows(pages_dir: Path, page: Page) -> None:
    page.open_file(pages_dir / "report.html")
    page.run("document.querySelector('input:checked').focus()")
    page.key("ArrowRight")
    assert page.run("document.querySelector('.over-tokens').checkVisibility()")
    assert not page.run("document.querySelector('.over-step').checkVisibility()")


@pytest.mark.parametrize("view", ["lines", "cells"])
def test_every_weight_of_a_head_is_read_by_keyboard(pages_dir: Path, page: Page, view: str) -> None:
    page.open_file(pages_dir / "attention.html")
    page.run("document.querySelectorAll('.heads button')[2].focus()")
    page.key("Enter")
    assert page.run("document.querySelector('#name').textContent") == "0.2"
    page.run(f"document.querySelector('#{view}').focus()")
    readout = "document.querySelector('#told').textContent"
    page.key("ArrowUp")
    page.key("ArrowUp")
    assert page.run(readout).startswith("query \u201cu\u201d (14) gives key")
    assert page.run("document.querySelector('#spot.held') !== null")
    page.key("ArrowDown")
    assert page.run(readout).startswith("query \u201cs\u201d (15) gives key")
    if view == "cells":
        before = page.run(readout)
        page.key("ArrowLeft")
        assert page.run(readout) != before
        page.key("Enter")
        assert page.run("document.querySelector('#spot.held') === null")
    page.key("Escape")
    assert page.run("document.querySelectorAll('.look.off').length") == 0


@pytest.mark.parametrize("name", ["score.html", "long.html"])
def test_the_bits_of_every_token_are_read_by_keyboard(pages_dir: Path, page: Page, name: str) -> None:
    page.open_file(pages_dir / name)
    last = "[...document.querySelectorAll('main section')].at(-1)"
    page.wait(f"{last}.querySelector('span[tabindex]')")
    page.run(f"{last}.querySelector('span[tabindex]').focus()")
    read = "getComputedStyle(document.activeElement, '::after').content"
    texts = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"):
        page.key(key)
        texts.append(page.run("document.activeElement.textContent"))
        assert page.run("document.activeElement.title") in page.run(read)
    assert "".join(texts[:2]) == "nc"
    assert page.run(f"{last}.querySelectorAll('span[tabindex]').length") == 1


@pytest.mark.parametrize("width", [390, 768, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_no_page_is_wider_than_its_window(pages_dir: Path, page: Page, name: str, width: int) -> None:
    page.open_file(pages_dir / name, width)
    assert page.run("document.documentElement.scrollWidth <= innerWidth")


def test_on_a_phone_no_number_is_broken_and_four_heads_fit(pages_dir: Path, page: Page) -> None:
    page.open_file(pages_dir / "several.html", 390)
    broken = (
        "[...document.querySelectorAll('.figures td')].filter(e => { const all = document.createRange();"
        " all.selectNodeContents(e); return /^[\\d,.]+$/.test(e.textContent) && all.getClientRects().length > 1; })"
        ".map(e => e.textContent)"
    )
    assert page.run(broken) == []
    widths = page.run("[...document.querySelectorAll('.events td:last-child')].map(e => e.clientWidth)")
    assert min(widths) > 300
    page.open_file(pages_dir / "attention.html", 390)
    assert page.run("document.querySelectorAll('.heads img')[3].getBoundingClientRect().right <= innerWidth")
    page.open_file(pages_dir / "score.html", 390)
    assert page.run("document.querySelector('.scored tbody td:last-child').clientWidth") > 300


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["several.html", "attention.html", "score.html"])
def test_axe_finds_no_fault(pages_dir: Path, page: Page, name: str, dark: bool) -> None:
    axe = Path(pytest.importorskip("axe_core_python").__file__).with_name("axe.min.js").read_text(encoding="utf-8")
    page.open_file(pages_dir / name, dark=dark)
    page.run(f"{axe}; 1")
    faults = page.run("axe.run().then(r => r.violations.map(v => [v.id, v.nodes.slice(0, 3).map(n => n.html)]))")
    assert faults == []
