"""Pairs of English and another language from the message catalogues (.mo) of programs, as JSON lines.

    pip install --no-deps --target catalogues Django==5.2.19 wagtail==8.0.1 django-oscar==4.2.1
    python examples/catalogues.py de catalogues > messages.jsonl

The three packages are under the BSD licence (3 clauses), and so are their messages; configs/translate.yaml names
more. A message that has several translations keeps the one of the catalogue that comes first by its name.
"""

import gettext
import json
import sys
from pathlib import Path

LONGEST = 120  # characters of either side


def read_pairs(folder: Path, language: str) -> dict[str, str]:
    """English -> the other language, of every catalogue in `folder`; each form of the plural is a message.

    A catalogue of a country, such as de_DE, is one of its language.
    """
    pairs: dict[str, str] = {}
    for path in sorted(folder.glob("**/LC_MESSAGES/*.mo")):
        if path.parts[-3].partition("_")[0] != language:
            continue
        with path.open("rb") as file:
            catalogue = gettext.GNUTranslations(file)
        for key, translated in catalogue._catalog.items():
            message = key[0] if isinstance(key, tuple) else key  # (message, number) where there are plurals
            message = " ".join(message.rpartition("\x04")[2].split())  # after its context
            if message and translated.split():
                pairs.setdefault(message, " ".join(translated.split()))
    return pairs


def main() -> None:
    """Print one line a pair."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    language, folder = sys.argv[1], Path(sys.argv[2])
    pairs = read_pairs(folder, language)
    if not pairs:
        sys.exit(f"there is no catalogue of '{language}' in {folder}")
    kept = {en: to for en, to in pairs.items() if len(en) <= LONGEST and len(to) <= LONGEST}
    for english, other in sorted(kept.items()):
        print(json.dumps({"en": english, language: other}, ensure_ascii=False))
    print(f"{len(kept):,} of {len(pairs):,} messages of at most {LONGEST} characters", file=sys.stderr)


if __name__ == "__main__":
    main()
