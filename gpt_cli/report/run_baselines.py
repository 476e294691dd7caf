"""The baselines of `gpt data inspect` on the splits of a run."""

import hashlib
import json
from dataclasses import asdict

import numpy as np

from gpt_cli.analysis.baselines import Baseline, measure_baselines
from gpt_cli.corpus.tokens import MappedTokens, Tokens, sample_evenly
from gpt_cli.errors import Notify, UserError
from gpt_cli.files import cache_dir, make_directory, read_file, replace_file
from gpt_cli.report.run_record import RunRecord
from gpt_cli.run.run_corpus import prepare_run_corpus
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.tokenizer.base import encode_text
from gpt_cli.tokenizer.vocab_stats import count_ids

_TRAIN_LIMIT, _VAL_LIMIT = 4_000_000, 1_000_000  # bytes of text, about; of a longer split evenly spread parts
_PARTS = 64
_FORMAT = 2  # of the cached file
_MAX_CACHE_FILE = 1 << 16


class RunBaselines:
    """The text of a run, tokenized again, with its baselines and the number of unused ids."""

    def __init__(self, record: RunRecord, note: Notify) -> None:
        """Raises UserError if the text is missing or has changed."""
        config = record.config
        corpus = prepare_run_corpus(config, note=note)
        if corpus.fingerprint != record.fingerprint or corpus.tokenizer.digest != record.tokenizer.digest:
            raise UserError("the text has changed since the run began")
        self.corpus, self.key = corpus, _key(record)

    def unused(self) -> int:
        """The number of ids that the training split never uses."""
        return int(np.count_nonzero(count_ids(self.corpus.train, self.corpus.tokenizer.vocab_size) == 0))

    def baselines(self) -> list[Baseline]:
        """N-gram models and compressors, fitted to the training split and measured on the validation split.

        They take seconds, so they are cached.
        """
        path = cache_dir() / "baselines" / f"{self.key}.json"
        try:
            return [Baseline(**results) for results in json.loads(read_file(path, _MAX_CACHE_FILE))]
        except (UserError, ValueError, TypeError):
            pass  # not measured yet, or damaged
        tokenizer = self.corpus.tokenizer
        train, val = (
            _sample_text(self.corpus.train, tokenizer, _TRAIN_LIMIT),
            _sample_text(self.corpus.val, tokenizer, _VAL_LIMIT),
        )
        if not train or not val:
            raise UserError("a split has no text")
        codes = np.frombuffer(encode_text(train + val, "utf-32-le"), dtype="<u4")
        results = measure_baselines(train, val, np.unique(codes).astype(np.int64))
        try:
            make_directory(path.parent)
            replace_file(path, json.dumps([asdict(baseline) for baseline in results]).encode())
        except UserError:
            pass  # a cache that cannot be written costs time, not the report
        return results


def _key(record: RunRecord) -> str:
    """The cache key: a digest of the text, its split and the tokenizer, which cuts the sampled parts."""
    data = record.config.data.model_dump(exclude={"source", "encoding", "text_key"})
    parts = [_FORMAT, record.fingerprint, record.tokenizer.digest, data]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def _sample_text(tokens: Tokens | MappedTokens, tokenizer: Tokenizer, limit: int) -> str:
    """Decode (n,) `tokens` without ends of text; of a long text evenly spread parts of about `limit` bytes in all."""
    ids = sample_evenly(tokens, limit, _PARTS)
    if tokenizer.eot_id is not None:
        ids = ids[ids != tokenizer.eot_id]
    return tokenizer.decode(ids)
