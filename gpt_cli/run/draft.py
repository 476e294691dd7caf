"""Open a draft for speculative decoding: n-grams of the text itself or of a file, or a smaller run."""

from pathlib import Path

from gpt_cli.capabilities import NATIVE_DECODER
from gpt_cli.cpu.common.kernel import KernelUnavailable
from gpt_cli.cpu.decode.decoder import DraftOptions, NativeDecoder
from gpt_cli.cpu.decode.weights import WeightMismatch, read_weights
from gpt_cli.errors import Notify, RequestError
from gpt_cli.files import read_file
from gpt_cli.run.find_run import find_run
from gpt_cli.run.open_checkpoint import open_checkpoint
from gpt_cli.tokenizer import Tokenizer, drop_unknown

NGRAM = "ngram"
_LIMIT = 1 << 26  # bytes of a text


def open_draft(name: str | Path, tokenizer: Tokenizer, note: Notify) -> DraftOptions:
    """The draft called `name`: `ngram`, a file of text, or a run or checkpoint with the vocabulary of `tokenizer`.

    Raises RequestError for what is not there or cannot guess for this vocabulary, UserError for what cannot be read.
    """
    path = Path(name)
    if not str(name):
        raise RequestError("--draft is empty, which names nothing", hint="--draft ngram")
    if str(name) == NGRAM:
        return DraftOptions()
    if path.is_file():
        return DraftOptions(text=_tokens(path, tokenizer))
    saved = open_checkpoint(find_run(path), note)
    if saved.tokenizer.digest != tokenizer.digest:
        raise RequestError(
            f"the draft {path} has another vocabulary",
            hint="it must be trained with the tokenizer of the run that it guesses for",
        )
    if (reason := NATIVE_DECODER.refusal(saved.config.model)) is not None:
        raise RequestError(
            f"the draft {path} has {reason}, which only torch computes", hint="use another, or --draft ngram"
        )
    try:
        weights = read_weights(saved.config.model, tokenizer.vocab_size, saved.model_arrays)
        return DraftOptions(
            model=NativeDecoder(weights, format="bf16")
        )  # rounded: a guess need not be exact, but quick
    except WeightMismatch as error:
        raise RequestError(f"the draft {path} does not fit its config: {error}") from None
    except KernelUnavailable as error:
        note(f"nothing is drafted, since the kernel cannot be used: {error}")
        return DraftOptions()


def _tokens(path: Path, tokenizer: Tokenizer) -> list[int]:
    """Tokens of the text, without characters that the vocabulary lacks: the model will not write these."""
    try:
        text = read_file(path, _LIMIT).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise RequestError(
            f"the draft is neither a run nor UTF-8 text: byte 0x{byte:02x} at offset {error.start}", where=str(path)
        ) from None
    return [int(token) for token in tokenizer.encode(drop_unknown(tokenizer, text)[0])]
