"""The first pass over a text: the sizes, hashes and characters that splitting and encoding need."""

import hashlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from gpt_cli.corpus.blocks import CorpusText, count_characters
from gpt_cli.corpus.encoder_pool import SerialExecutor
from gpt_cli.tokenizer.alphabets import code_point_runs

Stage = Literal["reading", "learning", "encoding", "inspecting"]
_SHORT = 1 << 16  # bytes; hashing fewer is faster than queueing them for a thread

StageProgress = Callable[[Stage, int, int | None], None]
"""Called with the stage, the bytes of text done so far, and their total if it is known."""


@dataclass(frozen=True)
class CorpusStats:
    """The sizes of a text, and the hashes by which it is split."""

    fingerprint: str
    characters: int
    """Characters to be split: without `data.val_source`, with the newlines between documents."""
    bytes: int
    """Bytes in UTF-8 of the text to be split, times its weights."""
    total_bytes: int
    """Bytes in UTF-8 of all text, times its weights."""
    documents: "array[int]"
    """64 bits of the hash of each document to be split."""
    files: "array[int]"
    """64 bits of the hash of each file to be split."""
    alphabet: str | None = None
    """All characters, sorted, with the newline that separates documents; None unless requested."""


class Fingerprint:
    """SHA-256 over the SHA-256 of each document: it depends on their contents and order, not on their names.

    `hasher` runs the hashing of large blocks.
    """

    def __init__(self, hasher: SerialExecutor | None = None) -> None:
        self._hasher = hasher or SerialExecutor()
        self._whole = hashlib.sha256()
        self._document = hashlib.sha256()

    def add(self, data: bytes, ends: bool) -> bytes | None:
        """Add the next bytes of a document; return its SHA-256 if it `ends`."""
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
        """Mark the start of `data.val_source`."""
        self._whole.update(b"validation")

    def hexdigest(self) -> str:
        return self._whole.hexdigest()


class _Alphabet:
    """A set of code points, as a bitmap. `recorder` does the work; what is shorter than _SHORT is collected for it."""

    def __init__(self, recorder: SerialExecutor) -> None:
        self._recorder = recorder
        self._pending = bytearray()
        self._seen: npt.NDArray[np.bool_] = np.zeros(0x110000, dtype=np.bool_)

    def add(self, data: bytes) -> None:
        """Add the characters of UTF-8 bytes."""
        if len(data) >= _SHORT:
            self._recorder.submit(self._record, data)
            return
        self._pending += data
        if len(self._pending) >= _SHORT:
            self._flush()

    def text(self) -> str:
        """Return all characters added so far, sorted."""
        self._flush()
        self._recorder.wait()
        return "".join(map(chr, np.flatnonzero(self._seen)))

    def _flush(self) -> None:
        self._recorder.submit(self._record, bytes(self._pending))
        self._pending.clear()

    def _record(self, data: bytes) -> None:
        for codes in code_point_runs(data):
            if not np.take(self._seen, codes, mode="clip").all():  # rare after a few blocks
                self._seen[codes] = True


def scan(
    text: CorpusText, *, end_lines: bool, progress: StageProgress, alphabet: bool = False, workers: int = 1
) -> CorpusStats:
    """Read a text to its end. `end_lines`: a document that does not end with a newline gets one before the next.

    `alphabet`: collect the characters. Raises what reading raises.
    """
    with SerialExecutor(workers) as hasher, SerialExecutor(workers) as recorder:
        return _scan(text, end_lines, progress, Fingerprint(hasher), _Alphabet(recorder) if alphabet else None)


def _scan(
    text: CorpusText,
    end_lines: bool,
    progress: StageProgress,
    fingerprint: Fingerprint,
    alphabet: _Alphabet | None,
) -> CorpusStats:
    documents, files = array("Q"), array("Q")
    characters = split_bytes = total_bytes = bytes_read = 0
    line_open = False
    for number, member in enumerate(text.files):
        if text.begins_validation(number):
            fingerprint.mark_val_source()
            line_open = False
        file_hash = hashlib.sha256()
        for block in text.blocks(number):
            data = block.data
            digest = fingerprint.add(data, block.ends)
            total_bytes += len(data) * member.weight
            bytes_read += len(data)
            progress("reading", bytes_read, text.size)
            if alphabet is not None:
                alphabet.add(b"\n" + data if end_lines and line_open else data)
            if not member.validates:
                split_bytes += len(data) * member.weight
                characters += count_characters(data) + (end_lines and line_open)
                if digest is not None:
                    documents.append(int.from_bytes(digest[:8], "big"))
                    file_hash.update(digest)
            line_open = block.ends and not data.endswith(b"\n")
        if not member.validates:
            files.append(int.from_bytes(file_hash.digest()[:8], "big"))
    letters = None if alphabet is None else alphabet.text()
    return CorpusStats(fingerprint.hexdigest(), characters, split_bytes, total_bytes, documents, files, letters)
