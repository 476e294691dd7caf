"""A page taken apart, to see that what it shows is text and that it fetches nothing."""

from html.parser import HTMLParser

VOID = {"meta", "input", "img", "br", "path", "circle", "rect", "polyline"}


class Page(HTMLParser):
    """A page taken apart: its elements with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def text(self) -> str:
        """All of it, styles and scripts too."""
        return "".join(self.texts)

    def count(self, tag: str) -> int:
        """How many elements of that name there are."""
        return sum(name == tag for name, _ in self.elements)


def require_harmless(html: str) -> Page:
    """The page asks nobody for anything, leads nowhere but into itself, and has no script but its own."""
    page = Page(html)
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    for tag, attributes in page.elements:
        if tag == "a":
            target = attributes.pop("href") or ""
            assert target[:1] == "#"
            assert target[1:] in ids
            assert not attributes
        assert tag not in ("link", "iframe", "object", "embed", "base", "form", "use", "image"), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), name
            assert name not in ("href", "srcset", "action", "background", "poster")
            assert name != "src" or (value or "").startswith("data:image/png;base64,")
    assert [a["content"] for t, a in page.elements if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    own = html.replace('"http://www.w3.org/2000/svg"', "")
    style = own[own.index("<style>") : own.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    return page
