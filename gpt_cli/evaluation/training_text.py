"""Decode the text that a run was trained on from its tokens."""

import codecs

from gpt_cli.corpus.mapped import MappedTokens
from gpt_cli.corpus.store import Tokens
from gpt_cli.errors import Notify, RequestError
from gpt_cli.run.checkpoint import Checkpoint
from gpt_cli.run.run_corpus import load_run_corpus
from gpt_cli.terminal.progress import stage_progress
from gpt_cli.tokenizer import Tokenizer

_CHUNK = 1 << 20  # tokens that are decoded at once
_SEPARATOR = b"\xff"  # never in UTF-8: decoded to a lone surrogate, which no sample contains, so no match spans it


def training_and_validation_text(checkpoint: Checkpoint, note: Notify) -> tuple[str, str]:
    """The training and validation text of a run, verified by its fingerprint.

    Special tokens, which separate documents, and `<unk>` become a lone surrogate, which no model can write. Raises
    RequestError if the text is missing or has changed.
    """
    if "-" in checkpoint.config.data.sources:
        raise RequestError(
            "the run was trained on standard input, so there is no text to compare with", hint="leave --novelty out"
        )
    with stage_progress() as progress:
        corpus = load_run_corpus(checkpoint, note=note, progress=progress, instead="leave --novelty out")
    return decode_all(corpus.tokenizer, corpus.train), decode_all(corpus.tokenizer, corpus.val)


def decode_all(tokenizer: Tokenizer, tokens: Tokens | MappedTokens) -> str:
    """The text of all tokens, with a lone surrogate for each special one."""
    pieces = [tokenizer.token_bytes(token) or _SEPARATOR for token in range(tokenizer.vocab_size)]
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    parts = [
        decoder.decode(b"".join([pieces[token] for token in tokens[start : start + _CHUNK].tolist()]))
        for start in range(0, len(tokens), _CHUNK)
    ]
    return "".join([*parts, decoder.decode(b"", final=True)])
