"""`gpt tokenize`: a tokenizer for a text, the text as tokens, and what the two look like."""

import re
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gpt_cli.cli.options.data_options import (
    DocumentsOption,
    EncodingOption,
    SplitOption,
    TestFractionOption,
    TextKeyOption,
    ValFractionOption,
    ValSourceOption,
    data_config,
)
from gpt_cli.cli.options.fit_config import resolve_source, run_name
from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.cli.process import interruptible_progress
from gpt_cli.cli.tokenize_output import describe, print_tokenized, token_json
from gpt_cli.errors import RequestError
from gpt_cli.files.locations import refuse_dash, similar_paths
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.literals import INT32_MAX, Pattern, TokenizerKind

if TYPE_CHECKING:
    from gpt_cli.config import DataConfig, TokenizerConfig
    from gpt_cli.corpus.tokenize_pipeline import Tokenized
    from gpt_cli.tokenizer import Tokenizer


def tokenize(
    corpus: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CORPUS", help="Files, folders, globs, -, builtin:NAME or hf:OWNER/NAME.", show_default=False
        ),
    ] = None,
    kind: Annotated[
        TokenizerKind | None, typer.Option(help="One token per character, per byte, or learned tokens. [default: char]")
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            min=257, max=1_000_000, help="How many tokens a BPE has, the 256 bytes included. [default: by the text]"
        ),
    ] = None,
    pattern: Annotated[
        Pattern | None, typer.Option(help="How text is split before BPE merges. [default: by the text]")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take this one: a tokenizer.json, GPT-2's encoder.json and vocab.bpe, or a tiktoken rank file.",
        ),
    ] = None,
    train_bytes: Annotated[
        int | None, typer.Option(min=1, max=INT32_MAX, help="How much text BPE learns from. [default: 100,000,000]")
    ] = None,
    unknown: Annotated[
        Literal["error", "token"], typer.Option(help="What --kind char does with a character that it lacks.")
    ] = "error",
    min_count: Annotated[
        int,
        typer.Option(
            min=1, max=INT32_MAX, help="How often a character must occur, else --unknown token stands for it."
        ),
    ] = 1,
    allow_special: Annotated[
        bool, typer.Option("--allow-special", help="Text such as <|endoftext|> becomes the special token of a BPE.")
    ] = False,
    val_fraction: ValFractionOption = 0.1,
    test_fraction: TestFractionOption = 0.0,
    split: SplitOption = "characters",
    val_source: ValSourceOption = None,
    weight: Annotated[
        list[int] | None,
        typer.Option(min=1, max=INT32_MAX, help="Repeats of each CORPUS in the training split, one for each."),
    ] = None,
    documents: DocumentsOption = None,
    encoding: EncodingOption = "utf-8",
    text_key: TextKeyOption = "text",
    processes: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="How many encode side by side. [default: one a core]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Where the tokens go. [default: such as tokens/book-bpe1024]",
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="Show how this is encoded.")] = None,
    ids: Annotated[str | None, typer.Option(metavar="IDS", help="Show what these ids mean, as in '1 2 3'.")] = None,
    json: JsonOption = False,
) -> int:
    """Train or take a tokenizer, write the corpus as tokens, and print what they are like.

    The tokens and tokenizer.json go to --out, which `gpt train` takes as data.source. With --text or --ids only
    that encoding or decoding is shown, and nothing is written unless --out is given.

    Example: gpt tokenize book.txt --kind bpe --vocab-size 1024
    """
    from gpt_cli.tokenizer import UnknownCharacters

    looks = text is not None or ids is not None
    if looks and tokenizer is None and not corpus and kind != "byte":  # which is learned from no text
        option = "--text" if text is not None else "--ids"
        raise RequestError(
            f"{option} needs a tokenizer", hint="--tokenizer FILE, such as the tokenizer.json of a run, or --kind byte"
        )
    if not corpus and not looks:
        raise RequestError(
            "there is nothing to tokenize", hint="give a CORPUS, or --tokenizer FILE with --text TEXT or --ids IDS"
        )
    data = None
    if corpus:
        data = data_config(
            corpus,
            weights=weight,
            documents=documents,
            encoding=encoding,
            text_key=text_key,
            split=split,
            val_fraction=val_fraction,
            test_fraction=test_fraction,
            val_source=val_source,
        )
        trained = {resolve_source(source) for source in data.sources}
        if same := [source for source in data.val_sources if resolve_source(source) in trained]:
            note(f"trained and validated on the same text: {', '.join(same)}")
    config = _config(kind, vocab_size, pattern, tokenizer, train_bytes, unknown, min_count, allow_special)
    if data is not None and out is None and not looks:
        out = _directory(corpus or [], config)
    result: dict[str, Any] = {}
    try:
        if data is not None and out is not None:
            tokenized = _tokenize(data, config, out, processes)
            used = tokenized.tokenizer
            result |= describe(tokenized, out)
        else:
            used = _tokenizer(data, config)
        if text is not None:
            result["encoding"] = _encode(used, text, allow_special)
        if ids is not None:
            result["decoding"] = _decode(used, ids)
    except UnknownCharacters as error:
        hint = "--kind byte and --kind bpe know every character"
        if data is None:
            hint = "--kind byte, in place of --tokenizer, knows every character"
        else:
            hint = f"without --tokenizer, {hint}" if tokenizer else f"{hint}, --unknown token has one for the others"
        raise RequestError(error.message, hint=hint) from error
    print_json(result) if json else print_tokenized(result)
    return 0


def _tokenizer(data: "DataConfig | None", config: "TokenizerConfig") -> "Tokenizer":
    """The tokenizer that is learned from a text, or, without a text, that of a file, or else that of bytes."""
    if data is None:
        from gpt_cli.tokenizer.trainer import train_tokenizer

        return train_tokenizer((), config)
    from gpt_cli.corpus.prepare import learn_tokenizer

    with interruptible_progress() as progress:
        return learn_tokenizer(data, config, note=note, progress=progress, by_text=True)


def _config(
    kind: TokenizerKind | None,
    vocab_size: int | None,
    pattern: Pattern | None,
    file: Path | None,
    train_bytes: int | None,
    unknown: Literal["error", "token"],
    min_count: int,
    allow_special: bool,
) -> "TokenizerConfig":
    """The tokenizer section that the options amount to."""
    from gpt_cli.config import TokenizerConfig

    if file is not None:
        from gpt_cli.tokenizer import load_tokenizer

        if not file.exists():
            raise RequestError(f"{file} does not exist", choices=similar_paths(file))
        kind = kind or load_tokenizer(file, pattern).kind  # type: ignore[assignment]  # one of the three
    kind = kind or ("char" if vocab_size is None else "bpe")
    if kind != "bpe" and (vocab_size, pattern) != (None, None):
        option, reason = ("--vocab-size", "has the size it has") if vocab_size else ("--pattern", "merges nothing")
        raise RequestError(f"{option} is only for --kind bpe: a {kind} vocabulary {reason}")
    if train_bytes is not None and (kind != "bpe" or file is not None):
        raise RequestError("--train-bytes is only for a BPE that is learned")
    if allow_special and kind not in ("bpe", "hf"):
        raise RequestError(f"--allow-special is only for --kind bpe: a {kind} vocabulary has no special token")
    if kind != "char" and (unknown, min_count) != ("error", 1):
        raise RequestError(f"--unknown and --min-count are only for --kind char: a {kind} vocabulary knows every text")
    if min_count > 1 and file is not None:
        raise RequestError("--min-count is only for a vocabulary that is learned", hint="leave out --min-count")
    if min_count > 1 and unknown != "token":
        raise RequestError(
            f"--min-count {min_count} leaves characters out", hint="add --unknown token to stand for them"
        )
    return TokenizerConfig(
        kind=kind,
        vocab_size=vocab_size,
        pattern=pattern,
        unknown=unknown,
        min_count=min_count,
        allow_special=allow_special,
        file=None if file is None else str(file),
        **({} if train_bytes is None else {"train_bytes": train_bytes}),
    )


def _directory(corpus: list[str], config: "TokenizerConfig") -> Path:
    """tokens/shakespeare-bpe1024 for the file books/shakespeare.txt.gz."""
    return Path("tokens", f"{run_name(corpus)}-{config.kind}{config.vocab_size or ''}")


def _tokenize(data: "DataConfig", config: "TokenizerConfig", out: Path, processes: int | None) -> "Tokenized":
    """The corpus as tokens in `out`, which is looked at before the work, so that nothing fails late."""
    from gpt_cli.corpus.prepare import tokenize_corpus
    from gpt_cli.corpus.store import TokenStore, is_store
    from gpt_cli.files import DamagedError

    refuse_dash(out)
    with translate_os_errors("create", out):
        is_there = out.is_symlink() or out.exists()  # a link to nothing, too
        is_other = is_there and not is_store(out) and not (out.is_dir() and not any(out.iterdir()))
    if is_other:
        raise RequestError(f"{out} exists and is not a token store", hint="choose another --out")
    before = None
    if is_store(out):
        with suppress(DamagedError):
            before = TokenStore.open(out)
    with interruptible_progress() as progress:
        tokenized = tokenize_corpus(
            out, data, config, replace=out.exists(), note=note, progress=progress, processes=processes, by_text=True
        )
    if before is not None and before.tokenizer.digest != tokenized.tokenizer.digest:
        note(f"{out} had other tokens, by another tokenizer: they are replaced, and runs on them cannot be resumed")
    note(f"the tokens and tokenizer.json are in {out}\ntrain on them with: gpt train {quote(str(out))}")
    return tokenized


def _encode(tokenizer: "Tokenizer", text: str, allow_special: bool) -> dict[str, Any]:
    encoded = tokenizer.encode(text, allow_special=True) if allow_special else tokenizer.encode_prompt(text)
    ids = [int(token) for token in encoded]
    return {"ids": ids, "pieces": [token_json(tokenizer, token)["text"] for token in ids], "bytes": len(text.encode())}


def _decode(tokenizer: "Tokenizer", ids: str) -> str:
    from gpt_cli.corpus.small_file import as_request_error

    with as_request_error():
        return tokenizer.decode(_parse_ids(ids))


def _parse_ids(text: str) -> list[int]:
    words = re.split(r"[\s,]+", text.strip("[] \n"))
    if wrong := next((word for word in words if not re.fullmatch(r"[0-9]{1,9}", word)), None):
        raise RequestError(f"--ids takes token ids, whole numbers from 0 up, not '{wrong}'")
    return [int(word) for word in words if word]
