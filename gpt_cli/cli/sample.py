"""`gpt sample`: read what a model writes."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpt_cli.choices import Device
from gpt_cli.cli.engine import begin_texts
from gpt_cli.cli.output import note, print_json, write_text
from gpt_cli.errors import RequestError, escape_untrusted
from gpt_cli.files import read_file

if TYPE_CHECKING:
    from gpt_cli.sampling import SamplingOptions, TextStream
    from gpt_cli.tokenizer import Tokenizer

_PROMPT_LIMIT = 1 << 26  # bytes of a file
_LISTED = 10  # characters that a note spells out


def sample(
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What to continue; - reads it from standard input.")
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read the prompt from a UTF-8 file, to its last newline.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A run or checkpoint. [default: the newest run]")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Tokens to write.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Below 1 safer, above 1 wilder; 0 always takes the likeliest token.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Choose among the k likeliest tokens. 0: off.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Choose among the likeliest tokens with this probability. 1: off.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Drop what is less likely than this times the likeliest. 0: off.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End before this text. May be given several times.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed writes the same text. [default: a new one, told on stderr]")
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Samples, written as one batch.")] = 1,
    unknown: Annotated[
        Literal["error", "skip"], typer.Option(help="What to do with characters that the vocabulary lacks.")
    ] = "error",
    raw: Annotated[bool, typer.Option("--raw", help="Send even control characters to a terminal as they are.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = "auto",
    engine: Annotated[
        Literal["auto", "native", "torch"],
        typer.Option(help="native: without torch, on a CPU. auto: that, where it can write what is asked."),
    ] = "auto",
    weights: Annotated[
        Literal["fp32", "bf16", "int8"], typer.Option(help="How native keeps the matrices; fp32 is exact.")
    ] = "fp32",
) -> None:
    """Continue a prompt with a trained model.

    What is not given comes from the section `sample` of the run's config. An empty prompt starts a new text: after
    the end-of-text token, or a newline where the vocabulary has none. Of a prompt longer than the context the model
    sees the last tokens; when its own text outgrows the context, the older half of what it sees is dropped.

    Example: gpt sample --prompt "ROMEO:" --temperature 0.7 --stop "JULIET:" -n 3
    """
    given = _read_prompt(prompt, prompt_file)
    options = _given_options(max_new_tokens, temperature, top_k, top_p, min_p, stop)

    from gpt_cli.run.checkpoint import open_checkpoint
    from gpt_cli.run.directory import find_run
    from gpt_cli.sampling import Sampling, encode_prompt, fresh_seed

    seed = fresh_seed() if seed is None else seed
    path = find_run(run)
    loaded = open_checkpoint(path, note)
    sampling = Sampling.from_config(loaded.config.sample, seed).changed(options)
    text = loaded.config.sample.prompt if given is None else given
    if unknown == "skip":
        text = _skip_unknown(loaded.tokenizer, text)
    elif loaded.tokenizer.unknown is not None and (missing := loaded.tokenizer.unknown_characters(text)):
        note(f"the model sees <unk> for what its vocabulary lacks: {_list(missing)}")
    tokens = encode_prompt(loaded.tokenizer, text)
    context_length = loaded.config.model.context_length
    if len(tokens) > context_length:
        note(f"the prompt has {len(tokens):,} tokens; the model sees the last {context_length:,}, its context")
    writer, texts = begin_texts(loaded, tokens, sampling, n, device, engine, weights)
    if json:
        samples = [{"text": t.text(), "tokens": t.tokens, "finish_reason": t.finish_reason} for t in texts]
        print_json(
            {"run": path, "step": loaded.step, "prompt": text, "seed": seed, "engine": writer, "samples": samples}
        )
        return
    note(f"{path}, step {loaded.step:,}" + ("" if sampling.greedy else f", seed {seed}"))
    _print_samples(text, texts, raw)


def _read_prompt(prompt: str | None, file: Path | None) -> str | None:
    if prompt is not None and file is not None:
        raise RequestError("give --prompt or --prompt-file, not both")
    if file is not None:
        if not file.exists():
            raise RequestError(f"there is no file {file}")
        return _decode(read_file(file, _PROMPT_LIMIT), str(file))
    return _decode(sys.stdin.buffer.read(), "standard input") if prompt == "-" else prompt


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise RequestError(
            f"the prompt is not UTF-8 text: byte 0x{byte:02x} at offset {error.start}", where=name
        ) from None


def _given_options(
    max_new_tokens: int | None,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    stop: list[str] | None,
) -> "SamplingOptions":
    options: SamplingOptions = {}
    if max_new_tokens is not None:
        options["max_new_tokens"] = max_new_tokens
    if temperature is not None:
        options["temperature"] = temperature
    if top_k is not None:
        options["top_k"] = top_k or None
    if top_p is not None:
        options["top_p"] = top_p
    if min_p is not None:
        options["min_p"] = min_p or None
    if stop is not None:
        options["stop"] = stop
    return options


def _skip_unknown(tokenizer: "Tokenizer", text: str) -> str:
    from gpt_cli.sampling import drop_unknown

    kept, unknown = drop_unknown(tokenizer, text)
    if unknown:
        note(f"left out of the prompt, since the vocabulary lacks it: {_list(unknown)}")
    return kept


def _list(characters: list[str]) -> str:
    listed = ", ".join(f"'{escape_untrusted(character)}'" for character in characters[:_LISTED])
    return listed if len(characters) <= _LISTED else f"{listed}, and {len(characters) - _LISTED} more"


def _print_samples(prompt: str, texts: "list[TextStream]", raw: bool) -> None:
    """Print each text after its prompt, as it is being written; of a batch, the first unfinished one is live."""
    for number, text in enumerate(texts, start=1):
        if len(texts) > 1:
            write_text(f"--- sample {number} of {len(texts)}\n")
        write_text(prompt, raw)
        last = prompt
        for last in text:
            write_text(last, raw)
        if not last.endswith("\n"):
            write_text("\n")
