"""Compare tokenizers on the same text."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpt_cli.analysis.text_sample import TextSample
from gpt_cli.config.schema import TokenizerConfig
from gpt_cli.corpus.vocab_size import choose_vocab_size
from gpt_cli.errors import RequestError
from gpt_cli.literals import Pattern
from gpt_cli.tokenizer import Tokenizer, UnknownCharacters, load_tokenizer, train_tokenizer
from gpt_cli.tokenizer.base import encode_text
from gpt_cli.tokenizer.vocab_stats import count_ids, unused_ids

ItemProgress = Callable[[int, int], None]
"""Called with the tokenizers measured so far and their number."""

_EXAMPLE = "--compare char,byte,bpe:512,gpt2=FILE"


@dataclass(frozen=True)
class TokenizerCandidate:
    """A tokenizer to compare: one to train, or one in a file."""

    name: str
    source: TokenizerConfig | Path
    pattern: Pattern | None = None
    """Pre-tokenizer for a file that does not specify one."""


@dataclass(frozen=True)
class Measured:
    """Statistics of one tokenizer on a text."""

    name: str
    kind: str
    vocab_size: int
    unused_ids: int
    """Ids that occur neither in the training nor in the validation text."""
    tokens: int
    """Tokens of both parts."""
    bytes_per_token: float
    """In the validation text."""
    characters_per_token: float
    """In the validation text."""


def parse_candidates(names: str, pattern: Pattern | None) -> list[TokenizerCandidate]:
    """`char,byte,bpe,bpe:512,NAME=FILE` or a FILE as candidates; BPEs are trained with `pattern` (None: gpt2).

    Raises RequestError for any other name, and for a repeated one.
    """
    candidates = [_parse(name.strip(), pattern) for name in names.split(",")]
    if len({candidate.name for candidate in candidates}) < len(candidates):
        repeated = next(c.name for i, c in enumerate(candidates) if c.name in [d.name for d in candidates[:i]])
        raise RequestError(
            f"--compare has {repeated} twice", hint="leave one of them out, or give a file another name: NAME=FILE"
        )
    return candidates


def measure_tokenizers(
    candidates: Sequence[TokenizerCandidate], sample: TextSample, progress: ItemProgress
) -> list[Measured]:
    """Train or load each candidate and encode both parts of the text with it, in the given order.

    BPE is trained on the training part alone, so that the validation part is new to it. Raises RequestError for a
    candidate that cannot be trained or does not know a character, UserError for a damaged file.
    """
    measured: list[Measured] = []
    for candidate in candidates:
        progress(len(measured), len(candidates))
        try:
            measured.append(_measure(candidate, sample))
        except UnknownCharacters as error:
            raise RequestError(f"{candidate.name}: {error.message}", hint="leave it out of --compare") from error
    progress(len(measured), len(candidates))
    return measured


def _parse(name: str, pattern: Pattern | None) -> TokenizerCandidate:
    if name in ("char", "byte"):
        return TokenizerCandidate(name, TokenizerConfig.model_validate({"kind": name}))
    if name == "bpe":  # its size is chosen by the text
        return TokenizerCandidate(name, TokenizerConfig(kind="bpe", pattern=pattern))
    if match := re.fullmatch(r"bpe:([0-9]{1,9})", name):
        size = int(match[1])
        if not 257 <= size <= 1_000_000:
            raise RequestError(f"--compare {name}: a BPE has 257 to 1,000,000 ids", hint=_EXAMPLE)
        return TokenizerCandidate(f"bpe:{size}", TokenizerConfig(kind="bpe", vocab_size=size, pattern=pattern))
    title, _, file = name.rpartition("=")
    path = Path(file).expanduser()
    if file and os.path.exists(path):  # unlike Path.exists, False for an invalid path
        return TokenizerCandidate(title or path.name, path, pattern)
    if name == "gpt2":
        raise RequestError("--compare gpt2 needs GPT-2's tokenizer: nothing is downloaded", hint="gpt2=FILE")
    if title and file:
        raise RequestError(f"--compare {name}: there is no file {file}", hint=_EXAMPLE)
    raise RequestError(f"--compare: '{name}' is no tokenizer", hint=_EXAMPLE)


def _measure(candidate: TokenizerCandidate, sample: TextSample) -> Measured:
    tokenizer = _load_or_train(candidate, sample)
    train, val = tokenizer.encode(sample.train), tokenizer.encode(sample.val)
    counts = count_ids(train, tokenizer.vocab_size) + count_ids(val, tokenizer.vocab_size)
    return Measured(
        candidate.name,
        tokenizer.kind,
        tokenizer.vocab_size,
        len(unused_ids(counts)),
        len(train) + len(val),
        len(encode_text(sample.val)) / len(val),
        len(sample.val) / len(val),
    )


def _load_or_train(candidate: TokenizerCandidate, sample: TextSample) -> Tokenizer:
    if isinstance(candidate.source, Path):
        return load_tokenizer(candidate.source, candidate.pattern)
    texts, config = [sample.train, sample.val], candidate.source
    if config.kind == "bpe":
        size = config.vocab_size or choose_vocab_size(sample.train, sample.characters)
        texts, config = [sample.train], config.model_copy(update={"vocab_size": size})
    try:
        return train_tokenizer(texts, config)
    except RequestError as error:
        raise RequestError(f"--compare {candidate.name}: {error.message}", hint="take a smaller one") from error
