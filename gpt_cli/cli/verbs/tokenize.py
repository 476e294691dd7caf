"""`gpt tokenize`: a tokenizer for a text, the text as tokens, and what the two look like."""

import re
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import typer

from gpt_cli.cli.options.data_options import DATA_OPTIONS, CorpusArgument, config_of_options, data_config
from gpt_cli.cli.options.run_name import resolve_source, run_name
from gpt_cli.cli.options.shared_options import takes
from gpt_cli.cli.output import JsonOption, note, print_json, write_text
from gpt_cli.cli.process import interruptible_progress
from gpt_cli.config import DataConfig, TokenizerConfig
from gpt_cli.corpus.prepare import learn_tokenizer, tokenize_corpus
from gpt_cli.corpus.small_file import as_request_error
from gpt_cli.corpus.store import TokenStore, is_store
from gpt_cli.corpus.tokenize_pipeline import Tokenized
from gpt_cli.errors import RequestError, UsageError
from gpt_cli.files import DamagedError
from gpt_cli.files.locations import refuse_dash
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.literals import INT32_MAX, SUBWORD_KINDS, Pattern, TokenizerKind
from gpt_cli.report.tokens_view import describe_encoding, describe_tokens, render_tokens
from gpt_cli.tokenizer import Tokenizer, UnknownCharacters, train_tokenizer
from gpt_cli.tokenizer.loader import load_configured


@takes(DATA_OPTIONS)
def tokenize(
    corpus: CorpusArgument = None,
    kind: Annotated[TokenizerKind | None, typer.Option(help="Characters, bytes or BPE. [default: char]")] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(min=257, max=1_000_000, help="Tokens of a BPE. [default: by the text]"),
    ] = None,
    pattern: Annotated[Pattern | None, typer.Option(help="Split before BPE merges. [default: by the text]")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A tokenizer.json, GPT-2's encoder.json, or tiktoken ranks.")
    ] = None,
    train_bytes: Annotated[
        int | None, typer.Option(min=1, max=INT32_MAX, help="Bytes that BPE learns from. [default: 100,000,000]")
    ] = None,
    unknown: Annotated[Literal["error", "token"], typer.Option(help="Characters that --kind char lacks.")] = "error",
    min_count: Annotated[
        int, typer.Option(min=1, max=INT32_MAX, help="Occurrences that give a character a token of its own.")
    ] = 1,
    allow_special: Annotated[
        bool, typer.Option("--allow-special", help="Encode <|endoftext|> as the special token of a BPE.")
    ] = False,
    *,
    weight: Annotated[
        list[int] | None, typer.Option(min=1, max=INT32_MAX, help="Repeats of each CORPUS in the training split.")
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, max=1024, help="Processes. [default: one a core]")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="The store. [default: as tokens/book-bpe1024]"),
    ] = None,
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="Show the encoding of a text.")] = None,
    ids: Annotated[str | None, typer.Option(metavar="IDS", help="Show the text of ids, such as '1 2 3'.")] = None,
    json: JsonOption = False,
    **keys: Any,
) -> int:
    """Train or load a tokenizer, encode a corpus, and print statistics of its tokens.

    The tokens and tokenizer.json are written to --out, a token store that `gpt train` takes. With --text or --ids only
    that encoding or decoding is shown, and nothing is written unless --out is given.

    Example: gpt tokenize book.txt --kind bpe --vocab-size 1024
    """
    shown = [option for option, value in {"--text": text, "--ids": ids}.items() if value is not None]
    if shown and tokenizer is None and not corpus and kind != "byte":  # which is learned from no text
        raise UsageError(f"{shown[0]} needs a tokenizer: --tokenizer FILE, such as that of a run, or --kind byte")
    if not corpus and not shown:
        raise UsageError("there is nothing to tokenize: give a CORPUS, or --tokenizer FILE with --text or --ids")
    data = data_config(corpus, weights=weight, **keys) if corpus else None
    config = _tokenizer_config(
        kind=kind,
        vocab_size=vocab_size,
        pattern=pattern,
        file=None if tokenizer is None else str(tokenizer),
        train_bytes=train_bytes,
        unknown=unknown,
        min_count=min_count,
        allow_special=allow_special,
    )
    if corpus and out is None and not shown:  # tokens/shakespeare-bpe1024 for the file books/shakespeare.txt.gz
        out = Path("tokens", f"{run_name(corpus)}-{config.kind}{config.vocab_size or ''}")
    result: dict[str, Any] = {}
    try:
        if data is not None and out is not None:
            tokenized = _write_tokens(data, config, out, processes)
            used = tokenized.tokenizer
            result |= describe_tokens(tokenized, out)
        else:
            used = _learn(data, config)
        if text is not None:
            result["encoding"] = describe_encoding(used, text, allow_special=allow_special)
        if ids is not None:
            result["decoding"] = _decode(used, ids)
    except UnknownCharacters as error:
        known = ["byte"] if tokenizer is None else []
        kind_key = ["tokenizer.kind"]
        raise RequestError(error.message, kind="set" if known else None, keys=kind_key, choices=known) from error
    print_json(result) if json else write_text(f"{render_tokens(result)}\n")
    return 0


def _tokenizer_config(**values: Any) -> TokenizerConfig:
    """The tokenizer section that the options amount to: a file has its kind, and a size is that of a BPE."""
    if values["file"] is not None:
        found = load_configured(TokenizerConfig(file=values["file"], pattern=values["pattern"])).kind
        values["kind"] = values["kind"] or found
    values["kind"] = values["kind"] or ("char" if values["vocab_size"] is None else "bpe")
    config = config_of_options({"tokenizer": {key: value for key, value in values.items() if value is not None}})
    given = [key for key in ("pattern", "train_bytes", "allow_special") if values[key]]
    if given and config.tokenizer.kind not in SUBWORD_KINDS:
        raise RequestError(
            f"--{given[0].replace('_', '-')} is only for --kind bpe, and this is {config.tokenizer.kind}"
        )
    return config.tokenizer


def _learn(data: DataConfig | None, config: TokenizerConfig) -> Tokenizer:
    """The tokenizer that is learned from a text, or, without a text, that of a file, or else that of bytes."""
    if data is None:
        return train_tokenizer((), config)
    with interruptible_progress() as progress:
        return learn_tokenizer(data, config, note=note, progress=progress, by_text=True)


def _write_tokens(data: DataConfig, config: TokenizerConfig, out: Path, processes: int | None) -> Tokenized:
    """The corpus as tokens in `out`, which is looked at before the work, so that nothing fails late."""
    trained = {resolve_source(source) for source in data.sources}
    if same := [source for source in data.val_sources if resolve_source(source) in trained]:
        note(f"trained and validated on the same text: {', '.join(same)}")
    refuse_dash(out)
    with translate_os_errors("create", out):
        is_there = out.is_symlink() or out.exists()  # a link to nothing, too
        if is_there and not is_store(out) and not (out.is_dir() and not any(out.iterdir())):
            raise RequestError(f"{out} exists and is not a token store")
    before = None
    if is_store(out):
        with suppress(DamagedError):
            before = TokenStore.open(out).tokenizer.digest
    with interruptible_progress() as progress:
        tokenized = tokenize_corpus(
            out, data, config, replace=out.exists(), note=note, progress=progress, processes=processes, by_text=True
        )
    if before not in (None, tokenized.tokenizer.digest):
        note(f"{out} had other tokens, by another tokenizer: they are replaced, and runs on them cannot be resumed")
    note(f"the tokens and tokenizer.json are in {out}\ntrain on them with: gpt train {quote(str(out))}")
    return tokenized


def _decode(tokenizer: Tokenizer, ids: str) -> str:
    words = re.split(r"[\s,]+", ids.strip("[] \n"))
    if wrong := next((word for word in words if not re.fullmatch(r"[0-9]{1,9}", word)), None):
        raise UsageError(f"--ids takes token ids, whole numbers from 0 up, not '{wrong}'")
    with as_request_error():
        return tokenizer.decode([int(word) for word in words if word])
