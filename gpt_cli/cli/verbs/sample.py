"""`gpt sample`: read what a model writes."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpt_cli.cli.novelty_output import NoveltyReport
from gpt_cli.cli.open_generator import generate_texts
from gpt_cli.cli.options import sampling_options as opts
from gpt_cli.cli.options.prompts import Prompt, PromptsFormat, read_prompts
from gpt_cli.cli.options.run_options import RunArgument, RunOption, find_one
from gpt_cli.cli.output import note, print_json, write_text
from gpt_cli.cli.unknown_characters import (
    UnknownChoice,
    known_choices,
    note_unknown_stops,
    unknown_option,
    without_unknown,
)
from gpt_cli.errors import RequestError
from gpt_cli.terminal.words import plural

if TYPE_CHECKING:
    from gpt_cli.sampling import TextStream
    from gpt_cli.sampling.text_stream import FinishReason
    from gpt_cli.tokenizer import Tokenizer

_MAX = 100_000  # samples of a prompt, which are all kept
_PROMPTS, _OUTPUT = "What to continue", "How many, and what is printed"


def sample(
    run: RunArgument = None,
    run_option: RunOption = None,
    device: opts.DeviceOption = "auto",
    engine: opts.EngineOption = "auto",
    weights: opts.DtypeOption = "fp32",
    prompt: Annotated[
        str | None, opts.panel_option(_PROMPTS, "The prompt; - reads it from standard input.", metavar="TEXT")
    ] = None,
    prompt_file: Annotated[
        Path | None, opts.panel_option(_PROMPTS, "A UTF-8 file that is one prompt, to its end.", metavar="FILE")
    ] = None,
    prompts: Annotated[
        Path | None, opts.panel_option(_PROMPTS, "A file with a prompt a line; - is standard input.", metavar="FILE")
    ] = None,
    prompts_format: Annotated[
        PromptsFormat, opts.panel_option(_PROMPTS, 'jsonl: lines such as {"prompt": "..."}; auto: by the name.')
    ] = "auto",
    prefix: Annotated[str | None, opts.panel_option(_PROMPTS, "Put before each prompt.", metavar="TEXT")] = None,
    suffix: Annotated[str | None, opts.panel_option(_PROMPTS, "Put after each prompt.", metavar="TEXT")] = None,
    parse_special: Annotated[
        bool,
        typer.Option(
            "--parse-special", help="Text such as <|endoftext|> is that special token.", rich_help_panel=_PROMPTS
        ),
    ] = False,
    unknown: Annotated[UnknownChoice, unknown_option(_PROMPTS)] = "error",
    heal: Annotated[bool | None, opts.panel_option(_PROMPTS, "Complete a word that the prompt breaks off.")] = None,
    max_new_tokens: opts.MaxNewTokensOption = None,
    min_new_tokens: opts.MinNewTokensOption = None,
    stop: opts.StopOption = None,
    temperature: opts.TemperatureOption = None,
    top_k: opts.TopKOption = None,
    top_p: opts.TopPOption = None,
    min_p: opts.MinPOption = None,
    repetition_penalty: opts.RepetitionPenaltyOption = None,
    no_repeat_ngram: opts.NoRepeatNgramOption = None,
    logit_bias: opts.LogitBiasOption = None,
    seed: opts.SeedOption = None,
    beams: opts.BeamsOption = None,
    length_penalty: opts.LengthPenaltyOption = None,
    choices: opts.ChoicesOption = None,
    regex: opts.RegexOption = None,
    json_schema: opts.JsonSchemaOption = None,
    grammar: opts.GrammarOption = None,
    n: Annotated[int, typer.Option("-n", min=1, max=_MAX, help="Samples of each prompt.", rich_help_panel=_OUTPUT)] = 1,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Texts that are written at once.", rich_help_panel=_OUTPUT)
    ] = 64,
    jsonl: Annotated[
        bool,
        typer.Option("--jsonl", help="A JSON line for each, with log-probabilities.", rich_help_panel=_OUTPUT),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout.", rich_help_panel=_OUTPUT)
    ] = False,
    novelty: Annotated[
        bool,
        typer.Option("--novelty", help="Say what each text copies from the training text.", rich_help_panel=_OUTPUT),
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Send control characters to a terminal as they are.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Continue prompts with a trained model.

    An option that is not given has its value from the section `sample` of the run's config.yaml, so a run that learned
    pairs or chats completes a prompt as it learned to. An empty prompt starts a new text. Of a prompt longer than the
    context the model sees the last tokens; when its own text outgrows the context, the older half of what it sees is
    dropped.

    Example: gpt sample --prompt "ROMEO:" --temperature 0.7 --stop JULIET -n 3
    """
    arguments = locals()
    given = read_prompts(prompt, prompt_file, prompts, prompts_format)
    if as_json and jsonl:
        raise RequestError("give --json or --jsonl, not both", hint="--jsonl has log-probabilities, too")
    if as_json and prompts is not None:
        raise RequestError("--json is for one prompt", hint="--jsonl prints a line for each")
    options = opts.sampling_options({**arguments, "log_probs": jsonl or None})

    from gpt_cli.run.open_checkpoint import open_checkpoint
    from gpt_cli.run.overfitting import note_better_checkpoint
    from gpt_cli.sampling.sampling_params import with_learned_end

    path = find_one(run, run_option)
    loaded = open_checkpoint(path, note)
    note_better_checkpoint(path, loaded.step, note)
    defaults = loaded.config.sample
    options = with_learned_end(options, loaded.config.data.learned_end)
    sampling = opts.sampling_params(defaults, seed, options)
    opts.note_without_draws(options, sampling, n)
    note_unknown_stops(loaded.tokenizer, sampling.stop)
    inputs = [Prompt(defaults.prompt)] if given is None else given
    before, after = (defaults.prefix if prefix is None else prefix), (defaults.suffix if suffix is None else suffix)
    try:
        whole = _wrap(inputs, before, after, loaded.tokenizer, skip=unknown == "skip")
    except RequestError as error:
        if run is None and run_option is None:
            error.message += f" (the newest run was taken, {path})"
        raise
    if sampling.choices:
        known = known_choices(loaded.tokenizer, sampling.choices, skip=unknown == "skip")
        sampling = sampling.replace({"choices": known})
    copies = NoveltyReport(loaded) if novelty else None
    tokens = [_encode(one, loaded.tokenizer, parse_special) for one in whole]
    _note_cut(tokens, loaded.config.model.context_length)
    plain_text = loaded.config.data.format == "text"
    generator = (loaded, tokens, sampling, n, batch_size, device, engine, weights)
    engine_name, texts = generate_texts(*generator, plain_text=plain_text)
    if as_json:
        head = {"run": path, "step": loaded.step, "prompt": whole[0].text, "seed": sampling.seed, "engine": engine_name}
        print_json(head | {"samples": _as_objects(next(texts), copies)})
        return
    random = sampling.beams is None and not sampling.greedy
    note(f"{path}, step {loaded.step:,}" + (f", seed {sampling.seed}" if random else ""))
    if jsonl:
        _print_lines(zip(whole, texts, strict=True), sampling.seed, copies)
    else:
        displayed = [one.text if plain_text else f"{entry.text}\n" for one, entry in zip(whole, inputs, strict=True)]
        opts.note_unmatched(sampling, _print_samples(displayed, texts, n, raw, copies))


def _wrap(prompts: Sequence[Prompt], prefix: str, suffix: str, tokenizer: "Tokenizer", *, skip: bool) -> list[Prompt]:
    """The whole prompts that the model is given; with `skip`, without the characters that the vocabulary lacks."""
    for one in prompts if not skip and tokenizer.unk_id is None else ():
        if tokenizer.unknown_characters(one.text):  # told at its place in the prompt, not in the whole
            _encode(one, tokenizer)
    whole = [one.wrapped(prefix, suffix) for one in prompts]
    texts = without_unknown(tokenizer, [one.text for one in whole], skip=skip, source="prompt")
    return [Prompt(text, one.where, one.id) for text, one in zip(texts, whole, strict=True)]


def _encode(prompt: Prompt, tokenizer: "Tokenizer", parse_special: bool = False) -> list[int]:
    from gpt_cli.sampling import encode_prompt

    try:
        return encode_prompt(tokenizer, prompt.text, parse_special=parse_special)
    except RequestError as error:
        error.where = error.where or prompt.where
        raise


def _note_cut(prompts: Sequence[Sequence[int]], context_length: int) -> None:
    longest = max(map(len, prompts))
    if longest > context_length:
        note(
            f"the {'longest ' if len(prompts) > 1 else ''}prompt has {plural(longest, 'token')};"
            f" the model sees the last {context_length:,}, its context"
        )


def _as_objects(texts: "Sequence[TextStream]", copies: NoveltyReport | None) -> list[dict[str, Any]]:
    """The samples of one prompt, as --json prints them."""
    samples: list[dict[str, Any]] = []
    for one in texts:
        samples.append({"text": one.text(), "tokens": one.tokens, "finish_reason": one.finish_reason})
        if copies is not None:
            samples[-1]["novelty"] = copies.measure(one.text())
    return samples


def _print_samples(
    prompts: list[str], texts: "Iterator[list[TextStream]]", n: int, raw: bool, copies: NoveltyReport | None
) -> "list[FinishReason | None]":
    """Print each text after its prompt, as it is being written; of a batch, the first unfinished one is live.

    Returns why each of the texts ended.
    """
    reasons = []
    for number, (prompt, samples) in enumerate(zip(prompts, texts, strict=True), start=1):
        for i, text in enumerate(samples, start=1):
            parts = [f"prompt {number} of {len(prompts)}"] * (len(prompts) > 1) + [f"sample {i} of {n}"] * (n > 1)
            if parts:
                write_text(f"--- {', '.join(parts)}\n")
            write_text(prompt, raw)
            last = prompt
            for last in text:
                write_text(last, raw)
            if not last.endswith("\n"):
                write_text("\n")
            reasons.append(text.finish_reason)
            if copies is not None:
                copies.print_text(text.text())
    if copies is not None:
        copies.print_validation()
    return reasons


def _print_lines(texts: "Iterable[tuple[Prompt, list[TextStream]]]", seed: int, copies: NoveltyReport | None) -> None:
    """Print a JSON object for each text as soon as it is complete, in the order of the prompts."""
    for prompt, samples in texts:
        for number, text in enumerate(samples, start=1):
            line = {} if prompt.id is None else {"id": prompt.id}
            line |= {"prompt": prompt.text, "sample": number, "seed": seed, "text": text.text()}
            log_probs = [round(log_prob, 6) for log_prob in text.log_probs or ()]
            line |= {"tokens": text.tokens, "log_probs": log_probs, "finish_reason": text.finish_reason}
            if copies is not None:
                line["novelty"] = copies.measure(text.text())
            print(json.dumps(line, allow_nan=False), flush=True)
