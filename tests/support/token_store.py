"""A token store of a few letters."""

from pathlib import Path
from typing import Any

import numpy as np

from gpt_cli.corpus.store import SplitSpec, SplitStats, TokenStore, new_store
from gpt_cli.corpus.tokens import to_token_dtype
from gpt_cli.tokenizer import CharTokenizer

TOKENIZER = CharTokenizer("abcdefgh")
START = np.zeros(1, dtype=np.int64)
DIVISION = SplitSpec("characters", 0.1, 0.0)


def write(
    path: Path, train: Any, val: Any = (0, 1), tokenizer: CharTokenizer = TOKENIZER, **options: Any
) -> TokenStore:
    tokens = {
        split: to_token_dtype(np.array(ids, dtype=np.uint32), tokenizer.vocab_size)
        for split, ids in (("train", train), ("val", val))
    }
    facts = {split: SplitStats(len(ids), len(ids), len(ids), 1, START) for split, ids in tokens.items()}
    with new_store(path, tokenizer, **options) as writer:
        for split, ids in tokens.items():
            writer.append(split, ids)  # type: ignore[arg-type]
        writer.finish(facts, fingerprint="f", division=DIVISION)  # type: ignore[arg-type]
    return TokenStore.open(path)
