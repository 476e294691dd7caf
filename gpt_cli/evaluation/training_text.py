"""The text that a run was trained on, as its tokens have it."""

import codecs

from gpt_cli.corpus.mapped import MappedTokens
from gpt_cli.corpus.store import Tokens
from gpt_cli.errors import Notify, RequestError
from gpt_cli.run.checkpoint import Checkpoint
from gpt_cli.run.run_corpus import load_run_corpus
from gpt_cli.terminal.progress import stage_progress
from gpt_cli.tokenizer import Tokenizer

_AT_ONCE = 1 << 20  # tokens that become text together
_BORDER = b"\xff"  # never part of UTF-8: no sample has what stands for it, so nothing is copied across it


def training_and_validation_text(checkpoint: Checkpoint, note: Notify) -> tuple[str, str]:
    """Both splits of the text of a run, verified to be what it was trained on.

    Documents are parted by half a surrogate pair, which no model can write, and it stands for `<unk>`, too. Raises
    UserError where the text is gone or has changed.
    """
    sources = checkpoint.config.data.source
    if "-" in ([sources] if isinstance(sources, str) else sources):
        raise RequestError(
            "the run was trained on standard input, so there is no text to compare with", hint="leave --novelty out"
        )
    with stage_progress() as progress:
        corpus = load_run_corpus(checkpoint, note=note, progress=progress, instead="leave --novelty out")
    return decode_all(corpus.tokenizer, corpus.train), decode_all(corpus.tokenizer, corpus.val)


def decode_all(tokenizer: Tokenizer, tokens: Tokens | MappedTokens) -> str:
    """The text of any number of tokens, half a surrogate pair for each special one."""
    pieces = [tokenizer.token_bytes(token) or _BORDER for token in range(tokenizer.vocab_size)]
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    parts = [
        decoder.decode(b"".join([pieces[token] for token in tokens[start : start + _AT_ONCE].tolist()]))
        for start in range(0, len(tokens), _AT_ONCE)
    ]
    return "".join([*parts, decoder.decode(b"", final=True)])
