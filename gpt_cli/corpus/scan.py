"""The first pass over a text: what has to be known before it can be divided and encoded."""

import hashlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from gpt_cli.corpus.corpus_text import CorpusText, count_characters
from gpt_cli.corpus.executors import InlineExecutor, SerialExecutor, serial_executor
from gpt_cli.tokenizer.char import code_point_runs

Stage = Literal["reading", "learning", "encoding", "inspecting", "sampling"]
_SHORT = 1 << 16  # bytes that are hashed sooner than handed to a thread

StageProgress = Callable[[Stage, int, int | None], None]
"""Called with what is being done, the bytes of text done so far, and their total where it is known."""


@dataclass(frozen=True)
class CorpusStats:
    """The sizes of a text, and the hashes that divide it."""

    fingerprint: str
    characters: int
    """Characters to be divided, so without `data.val_source`, and with the newlines between documents."""
    bytes: int
    """The same in UTF-8, as often as it is repeated."""
    total_bytes: int
    """Bytes of all text, as often as it is encoded."""
    documents: "array[int]"
    """64 bits of the hash of each document that is to be divided."""
    files: "array[int]"
    """The same of each file."""
    alphabet: str | None = None
    """Every character, by code point, those that only keep documents apart included; None if not asked for."""


class Fingerprint:
    """sha256 over the sha256 of each document: of what they say and where each ends, not of what they are called.

    `hasher`: who computes it.
    """

    def __init__(self, hasher: SerialExecutor | None = None) -> None:
        self._hasher = hasher or InlineExecutor()
        self._whole = hashlib.sha256()
        self._document = hashlib.sha256()

    def add(self, data: bytes, ends: bool) -> bytes | None:
        """Take the next bytes of a document; its sha256 where it ends."""
        if len(data) >= _SHORT:
            self._hasher.submit(self._document.update, data)
        else:
            self._hasher.wait()
            self._document.update(data)
        if not ends:
            return None
        self._hasher.wait()
        digest = self._document.digest()
        self._whole.update(digest)
        self._document = hashlib.sha256()
        return digest

    def mark_val_source(self) -> None:
        """Take that here the text begins which only validates."""
        self._whole.update(b"validation")

    def hexdigest(self) -> str:
        return self._whole.hexdigest()


class _Alphabet:
    """The characters that were seen."""

    def __init__(self) -> None:
        self._seen: npt.NDArray[np.bool_] = np.zeros(0x110000, dtype=np.bool_)

    def add(self, data: bytes) -> None:
        for codes in code_point_runs(data):
            if not np.take(self._seen, codes, mode="clip").all():  # after a few blocks all are known
                self._seen[codes] = True

    def __str__(self) -> str:
        return "".join(map(chr, np.flatnonzero(self._seen)))


def scan(
    text: CorpusText, *, end_lines: bool, progress: StageProgress, alphabet: bool = False, workers: int = 1
) -> CorpusStats:
    """Read a text to its end. `end_lines`: a newline keeps documents apart where there is none.

    `alphabet`: whether to note which characters there are. Raises what reading raises.
    """
    with serial_executor(workers) as hasher, serial_executor(workers) as watcher:
        return _scan(text, end_lines, progress, Fingerprint(hasher), watcher if alphabet else None)


def _scan(
    text: CorpusText, end_lines: bool, progress: StageProgress, fingerprint: Fingerprint, watcher: SerialExecutor | None
) -> CorpusStats:
    documents, files = array("Q"), array("Q")
    seen = _Alphabet()
    characters = size = work = done = 0
    unended = False
    for number, member in enumerate(text.members):
        if member.validates and (number == 0 or not text.members[number - 1].validates):
            fingerprint.mark_val_source()
            unended = False
        file = hashlib.sha256()
        for block in text.blocks(number):
            data = block.data
            digest = fingerprint.add(data, block.ends)
            work += len(data) * member.weight
            done += len(data)
            progress("reading", done, text.size)
            if watcher is not None:
                if end_lines and unended:
                    seen.add(b"\n")
                watcher.submit(seen.add, data)
            if not member.validates:
                size += len(data) * member.weight
                characters += count_characters(data) + (end_lines and unended)
                if digest is not None:
                    documents.append(int.from_bytes(digest[:8], "big"))
                    file.update(digest)
            unended = block.ends and not data.endswith(b"\n")
        if not member.validates:
            files.append(int.from_bytes(file.digest()[:8], "big"))
    known = None
    if watcher is not None:
        watcher.wait()
        known = str(seen)
    return CorpusStats(fingerprint.hexdigest(), characters, size, work, documents, files, known)
