"""MB/s at which text becomes tokens, side by side with other libraries in one run.

    python -m bench.tokenizers [FILE ...]        (without a file: the documentation that comes with Python)

Everything is timed in turns, in seconds of one core, the best of a few; what counts are the ratios. The others are
measured where they are installed: tiktoken, tokie, riptoken (encoding), rustbpe (training). Ids are compared with
those of Hugging Face's `tokenizers`, which is the reference. A record goes to bench/out/tokenizers.json.
"""

import argparse
import importlib.util
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["RAYON_NUM_THREADS"] = "1"  # before the library starts its threads
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
from tokenizers import Tokenizer as HuggingFace

from gpt_cli.config.schema import TokenizerConfig
from gpt_cli.corpus.sources import read_documents
from gpt_cli.terminal.table import render_table
from gpt_cli.tokenizer import BPETokenizer, ByteTokenizer, Tokenizer, train_tokenizer
from gpt_cli.tokenizer.cached_bpe import CachedBPE
from gpt_cli.tokenizer.pretokenizer import RULES, split_chunks

OUT = Path(__file__).parent / "out" / "tokenizers.json"
OTHERS = ("tokenizers", "tiktoken", "tokie", "riptoken", "rustbpe")
ROUNDS = 5
VOCAB_SIZE = 4096
ALPHABETS = {"ASCII": "etaoin shrdlu\nETA.", "Cyrillic": "оеаинт слврк\nОЕ.", "mixed": "aé→語🙂 text of every width\n"}
LENGTH = 4_000_000  # characters of the text for characters and bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", default=["builtin:python-docs"], metavar="FILE")
    files = parser.parse_args().files
    record: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in OTHERS if installed(name)},
        "corpora": {},
        "alphabets": measure_alphabets(),
    }
    show("characters and bytes, MB/s of one core", ("", *next(iter(record["alphabets"].values()))), record["alphabets"])
    for file in files:
        text = "\n".join(document.text for document in read_documents(file, note=print))
        record["corpora"][file] = measure_corpus(file, text)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"\nrecord: {OUT}")


def measure_corpus(name: str, text: str) -> dict[str, Any]:
    """Print and return the figures of one text."""
    size = len(text.encode()) / 1e6
    print(f"\n{name}: {size:.2f} MB, vocabulary {VOCAB_SIZE:,}, pattern gpt2")
    encoding, training = measure_encoding(text, size), measure_training(text, size)
    scaling = measure_processes(text, size)
    header = ("", "MB/s", "times Hugging Face", "same")
    show("encoding, one core", header, encoding)
    show("training, one core", header, training)
    show("encoding, processes", ("", "MB/s by the clock", "times one"), scaling)
    return {"megabytes": size, "encoding": encoding, "training": training, "processes": scaling}


def measure_encoding(text: str, size: float) -> dict[str, dict[str, Any]]:
    tokenizer = learn(text)
    theirs = HuggingFace.from_str(tokenizer.to_json())
    reference = theirs.encode(text, add_special_tokens=False).ids
    ready = CachedBPE(tokenizer.vocabulary)
    lines = text.splitlines(keepends=True)

    ways: dict[str, Callable[[], Any]] = {
        "Hugging Face, one string": lambda: theirs.encode(text, add_special_tokens=False).ids,
        "Hugging Face, lines": lambda: [e.ids for e in theirs.encode_batch_fast(lines, add_special_tokens=False)],
        "word cache, pieces new": lambda: CachedBPE(tokenizer.vocabulary).encode(text),
        "word cache, pieces known": lambda: ready.encode(text),
        "gpt": lambda: tokenizer.encode(text),
        **other_encoders(tokenizer, text),
    }
    seconds, results = race(ways)
    base = seconds["Hugging Face, one string"]
    return {
        way: {
            "speed": size / s,
            "ratio": base / s,
            "same": way == "Hugging Face, lines" or same(results[way], reference),
        }
        for way, s in seconds.items()
    }


def other_encoders(tokenizer: BPETokenizer, text: str) -> dict[str, Callable[[], Any]]:
    vocabulary = tokenizer.vocabulary
    ranks = {token: i for i, token in enumerate(vocabulary.tokens) if i not in vocabulary.special}
    ways: dict[str, Callable[[], Any]] = {}
    if installed("tiktoken"):
        import tiktoken

        openai = tiktoken.Encoding("bench", pat_str=RULES["gpt2"].published, mergeable_ranks=ranks, special_tokens={})
        ways["tiktoken"] = lambda: openai.encode_to_numpy(text, disallowed_special=())
    if installed("riptoken"):
        import riptoken

        rip = riptoken.CoreBPE(ranks, {}, RULES["gpt2"].published)
        ways["riptoken"] = lambda: rip.encode_ordinary(text)
    if installed("tokie"):
        import tokie

        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save(Path(folder) / "tokenizer.json")
            quick = tokie.Tokenizer.from_json(str(Path(folder) / "tokenizer.json"))
        ways["tokie"] = lambda: quick.encode(text).ids
    return ways


def measure_training(text: str, size: float) -> dict[str, dict[str, Any]]:
    ways: dict[str, Callable[[], Any]] = {"gpt, by Hugging Face's trainer": lambda: merges_of(learn(text))}
    if installed("rustbpe"):
        import rustbpe

        def rust() -> list[bytes]:
            trainer = rustbpe.Tokenizer()
            trainer.train_from_iterator([text], vocab_size=VOCAB_SIZE - 1, pattern=RULES["gpt2"].published)
            ranks = sorted(trainer.get_mergeable_ranks(), key=lambda item: item[1])
            return [bytes(token) for token, _ in ranks[256:]]

        ways["rustbpe"] = rust
    seconds, results = race(ways, rounds=2)
    base = next(iter(seconds))
    return {
        way: {"speed": size / s, "ratio": seconds[base] / s, "same": results[way] == results[base]}
        for way, s in seconds.items()
    }


def measure_processes(text: str, size: float) -> dict[str, dict[str, Any]]:
    """All blocks of a text, encoded by one process and by one per core; each learns its pieces itself."""
    tokenizer = learn(text)
    parts = list(split_chunks(text, max(1, len(text) // 32), "gpt2"))
    clock: dict[int, float] = {}
    for n in sorted({1, os.cpu_count() or 1}):
        with ProcessPoolExecutor(n, initializer=_receive, initargs=(tokenizer,)) as pool:
            list(pool.map(_encode, parts[:1] * n))  # so that they have started
            start = time.perf_counter()
            list(pool.map(_encode, parts))
            clock[n] = time.perf_counter() - start
    return {str(n): {"speed": size / s, "ratio": clock[1] / s} for n, s in clock.items()}


_received: list[Tokenizer] = []


def _receive(tokenizer: Tokenizer) -> None:
    _received[:] = [tokenizer]


def _encode(text: str) -> int:
    return len(_received[0].encode(text))


def measure_alphabets() -> dict[str, dict[str, float]]:
    figures: dict[str, dict[str, float]] = {}
    for script, alphabet in ALPHABETS.items():
        text = "".join(np.random.default_rng(0).choice(list(alphabet), LENGTH))
        size = len(text.encode()) / 1e6
        for tokenizer in (train_tokenizer([text], TokenizerConfig(kind="char")), ByteTokenizer()):
            ids = tokenizer.encode(text)
            assert tokenizer.decode(ids) == text
            ways: dict[str, Callable[[], Any]] = {
                "encode": lambda tokenizer=tokenizer, text=text: tokenizer.encode(text),
                "decode": lambda tokenizer=tokenizer, ids=ids: tokenizer.decode(ids),
            }
            seconds, _ = race(ways)
            figures[f"{tokenizer.kind}, {script}"] = {way: size / s for way, s in seconds.items()}
    return figures


def learn(text: str) -> BPETokenizer:
    tokenizer = train_tokenizer([text], TokenizerConfig(kind="bpe", vocab_size=VOCAB_SIZE))
    assert isinstance(tokenizer, BPETokenizer)
    return tokenizer


def merges_of(tokenizer: BPETokenizer) -> list[bytes]:
    return [tokenizer.vocabulary.tokens[merged] for _, _, merged in tokenizer.vocabulary.merges]


def race(ways: dict[str, Callable[[], Any]], rounds: int = ROUNDS) -> tuple[dict[str, float], dict[str, Any]]:
    """The least seconds of one core that each way took, by turns, so that a busy machine is unfair to nobody."""
    seconds = dict.fromkeys(ways, float("inf"))
    results: dict[str, Any] = {}
    for _ in range(rounds):
        for way, work in ways.items():
            start = time.process_time()
            results[way] = work()
            seconds[way] = min(seconds[way], time.process_time() - start)
    return seconds, results


def same(ids: Iterable[int], reference: list[int]) -> bool:
    return np.array_equal(np.asarray(ids), np.asarray(reference))


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def show(title: str, header: tuple[str, ...], table: dict[str, dict[str, Any]]) -> None:
    rows = [
        (name, *(f"{v:.1f}" if isinstance(v, float) else str(v) for v in row.values())) for name, row in table.items()
    ]
    print(f"\n{render_table(rows, header=(title, *header[1:]))}")


if __name__ == "__main__":
    main()
