"""The first pass over a text: what has to be known before it can be divided and encoded."""

import hashlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gpt_cli.corpus.text import Text

Stage = Literal["reading", "learning", "encoding", "inspecting", "sampling"]
Progress = Callable[[Stage, int, int | None], None]
"""Called with what is being done, the bytes of text done so far, and their total where it is known."""


@dataclass(frozen=True)
class Survey:
    """The sizes of a text, and the hashes that divide it."""

    fingerprint: str
    characters: int
    """Of the text that is to be divided, so without `data.val_source`, and with the newlines between documents."""
    bytes: int
    """The same in UTF-8, as often as it is repeated."""
    work: int
    """Bytes of all text, as often as it is encoded."""
    documents: "array[int]"
    """64 bits of the hash of each document that is to be divided."""
    files: "array[int]"
    """The same of each file."""


class Fingerprint:
    """sha256 over the sha256 of each document: of what they say and where each ends, not of what they are called."""

    def __init__(self) -> None:
        self._whole = hashlib.sha256()
        self._document = hashlib.sha256()

    def add(self, data: bytes, ends: bool) -> bytes | None:
        """Take the next bytes of a document; its sha256 where it ends."""
        self._document.update(data)
        if not ends:
            return None
        digest = self._document.digest()
        self._whole.update(digest)
        self._document = hashlib.sha256()
        return digest

    def separate(self) -> None:
        """Take that here the text begins which only validates."""
        self._whole.update(b"validation")

    def hexdigest(self) -> str:
        """Of all documents so far."""
        return self._whole.hexdigest()


def survey(text: Text, *, end_lines: bool, progress: Progress) -> Survey:
    """Read a text to its end. `end_lines`: a newline keeps documents apart where there is none.

    Raises what reading raises.
    """
    fingerprint = Fingerprint()
    documents, files = array("Q"), array("Q")
    characters = size = work = done = 0
    unended = False
    for number, member in enumerate(text.members):
        if member.validates and (number == 0 or not text.members[number - 1].validates):
            fingerprint.separate()
        file = hashlib.sha256()
        for block in text.blocks(number):
            data = block.text.encode()
            digest = fingerprint.add(data, block.ends)
            work += len(data) * member.weight
            done += len(data)
            progress("reading", done, text.size)
            if member.validates:
                continue
            size += len(data) * member.weight
            characters += len(block.text) + (end_lines and unended)
            unended = block.ends and not block.text.endswith("\n")
            if digest is not None:
                documents.append(int.from_bytes(digest[:8], "big"))
                file.update(digest)
        if not member.validates:
            files.append(int.from_bytes(file.digest()[:8], "big"))
    return Survey(fingerprint.hexdigest(), characters, size, work, documents, files)
