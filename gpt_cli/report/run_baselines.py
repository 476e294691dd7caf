"""The baselines of `gpt data inspect` on the splits of a run."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import numpy.typing as npt

from gpt_cli.analysis.baselines import Baseline, measure_baselines
from gpt_cli.corpus.mapped import MappedTokens
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.corpus.store import Tokens
from gpt_cli.errors import UserError
from gpt_cli.files import cache_dir, make_directory, read_file, replace_file
from gpt_cli.report.run_record import RunRecord
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.tokenizer.base import encode_text
from gpt_cli.tokenizer.vocab_stats import count_ids

_LEARN, _MEASURE = 4_000_000, 1_000_000  # bytes of text, about: of a longer split, evenly spread parts
_PARTS = 64
_FORMAT = 2  # of what is kept: 1 had other names
_LIMIT = 1 << 16


class RunBaselines:
    """The text of a run, made again: `unused` ids of its vocabulary, and the baselines on it."""

    def __init__(self, record: RunRecord, note: Callable[[str], None]) -> None:
        """Raises UserError where the text is gone or has changed."""
        config = record.config
        corpus = prepare_corpus(config.data, config.tokenizer, note=note)
        if corpus.fingerprint != record.fingerprint or corpus.tokenizer.digest != record.tokenizer.digest:
            raise UserError("the text has changed since the run began")
        self.corpus, self.key = corpus, _key(record)

    def unused(self) -> int:
        """The number of ids that the training split never uses."""
        return int(np.count_nonzero(count_ids(self.corpus.train, self.corpus.tokenizer.vocab_size) == 0))

    def baselines(self) -> list[Baseline]:
        """N-gram models and compressors, learned on the training split and measured on the validation split.

        Kept in the cache: they take seconds.
        """
        path = cache_dir() / "baselines" / f"{self.key}.json"
        try:
            return [Baseline(**found) for found in json.loads(read_file(path, _LIMIT))]
        except (UserError, ValueError, TypeError):
            pass  # not measured yet, or damaged
        tokenizer = self.corpus.tokenizer
        train, val = _spell(self.corpus.train, tokenizer, _LEARN), _spell(self.corpus.val, tokenizer, _MEASURE)
        if not train or not val:
            raise UserError("a split has no text")
        codes = np.frombuffer(encode_text(train + val, "utf-32-le"), dtype="<u4")
        found = measure_baselines(train, val, np.unique(codes).astype(np.int64))
        try:
            make_directory(path.parent)
            replace_file(path, json.dumps([asdict(baseline) for baseline in found]).encode())
        except UserError:
            pass  # a cache that cannot be written costs time, not the report
        return found


def _key(record: RunRecord) -> str:
    """The name of the baselines in the cache: a digest of all that decides them. The tokenizer cuts what is sampled."""
    data = record.config.data.model_dump(exclude={"source", "encoding", "text_key"})
    parts = [_FORMAT, record.fingerprint, record.tokenizer.digest, data]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def _spell(tokens: Tokens | MappedTokens, tokenizer: Tokenizer, limit: int) -> str:
    """The text of (n,) `tokens`, without the marks between documents; of a long one, parts of about `limit` bytes."""
    if len(tokens) <= limit:
        kept: npt.NDArray[np.uint16 | np.uint32] = tokens[:]
    else:
        size = limit // _PARTS
        starts = np.linspace(0, len(tokens) - size, _PARTS).astype(np.int64)
        kept = np.concatenate([tokens[start : start + size] for start in starts])
    if tokenizer.eot_id is not None:
        kept = kept[kept != tokenizer.eot_id]
    return tokenizer.decode(kept)
