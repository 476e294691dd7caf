"""Which text trains and which validates."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpt_cli.corpus.sources import Document

Split = Literal["train", "val"]


@dataclass(frozen=True)
class Piece:
    """A document, or the part of one that falls into a split."""

    text: str
    followed: bool
    """Whether another document follows: where the vocabulary has an end of text, it stands between them."""


def split_documents(documents: Sequence[Document], val_fraction: float) -> dict[Split, list[Piece]]:
    """The documents, in order, cut once: the last `val_fraction` of their characters validates.

    The cut is at character int((1 - val_fraction) * characters), through a document if need be.
    """
    left = int((1 - val_fraction) * sum(len(document.text) for document in documents))
    pieces: dict[Split, list[Piece]] = {"train": [], "val": []}
    for number, document in enumerate(documents, start=1):
        followed = number < len(documents)
        if len(document.text) <= left:
            pieces["train"].append(Piece(document.text, followed))
        else:
            if left:
                pieces["train"].append(Piece(document.text[:left], followed=False))
            pieces["val"].append(Piece(document.text[left:], followed))
        left = max(0, left - len(document.text))
    return pieces


def end_lines(documents: Sequence[Document]) -> list[Document]:
    """The documents with a newline after each that lacks one and is followed by another.

    What keeps documents apart for a vocabulary that has no end of text.
    """
    return [
        document
        if number == len(documents) or document.text.endswith("\n")
        else Document(document.name, document.text + "\n")
        for number, document in enumerate(documents, start=1)
    ]


def fingerprint(documents: Sequence[Document]) -> str:
    """sha256 (hex) of the texts and of where each ends; the names of the files do not matter."""
    digest = hashlib.sha256()
    for document in documents:
        data = document.text.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()
