"""Lines of the standard library without the keyword that they begin with, as JSON lines: the keyword is the label.

    python examples/keywords.py keywords.jsonl [MOST]

`for name in names:` becomes {"text": "name in names:", "label": "for"}. Of each keyword the MOST (2000) different lines
with the lowest hashes are taken: a version of Python always gives the same ones. Nothing in a line tells `elif` from
`if`, so it is left out.
"""

import hashlib
import io
import json
import sys
import sysconfig
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

KEYWORDS = (
    *("assert", "class", "def", "del", "except", "for", "from", "if", "import"),
    *("raise", "return", "while", "with", "yield"),
)
OTHERS = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
NOTHING = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENCODING}


def lines_of(source: str) -> Iterator[tuple[str, str]]:
    """The keyword and the rest of each statement's first line."""
    begins = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if begins and token.type == tokenize.NAME and token.string in KEYWORDS:
            yield token.string, token.line[token.end[1] :].strip()
        begins = token.type in NOTHING and (begins or token.type == tokenize.NEWLINE)


def main(file: str, most: int = 2000) -> None:
    library = Path(sysconfig.get_paths()["stdlib"])
    found: dict[str, set[str]] = defaultdict(set)
    for path in library.rglob("*.py"):
        if OTHERS.isdisjoint(path.relative_to(library).parts):
            try:
                lines = list(lines_of(path.read_text(encoding="utf-8")))
            except (SyntaxError, UnicodeDecodeError, tokenize.TokenError):
                continue  # meant to be wrong
            for keyword, rest in lines:
                if len(rest) >= 4:
                    found[keyword].add(rest)
    with open(file, "w", encoding="utf-8") as out:
        for keyword in KEYWORDS:
            chosen = sorted(found[keyword], key=lambda text: hashlib.sha256(text.encode()).digest())[:most]
            out.writelines(json.dumps({"text": rest, "label": keyword}) + "\n" for rest in chosen)
            print(f"{keyword:8}{len(chosen):5}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or not all(map(str.isdecimal, sys.argv[2:])):
        sys.exit(__doc__)
    main(sys.argv[1], *map(int, sys.argv[2:]))
