"""`gpt sample`: read what a model writes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from gpt_cli.cli.open_generator import generate_texts
from gpt_cli.cli.options.prompts import Prompt, PromptsFormat, read_prompts
from gpt_cli.cli.options.run_options import RunArgument, RunOption, find_checkpoint
from gpt_cli.cli.options.sampling_options import (
    PROMPTS,
    SAMPLING_OPTIONS,
    note_unmatched,
    sampling_options,
    sampling_params,
)
from gpt_cli.cli.options.shared_options import DeviceOption, DtypeOption, EngineOption, option, takes
from gpt_cli.cli.output import note, print_json, refuse_several
from gpt_cli.cli.sample_output import print_lines, print_samples, sample_record
from gpt_cli.cli.unknown_characters import (
    UnknownChoice,
    known_choices,
    located,
    note_unknown_stops,
    unknown_option,
    without_unknown,
)
from gpt_cli.corpus.turn_template import refuse_marks
from gpt_cli.errors import UsageError
from gpt_cli.sampling import encode_prompt
from gpt_cli.terminal.words import plural
from gpt_cli.tokenizer import Tokenizer

_MAX = 100_000  # samples of a prompt, which are all kept
_OUTPUT = "How many, and what is printed"


@takes(SAMPLING_OPTIONS)
def sample(
    run: RunArgument = None,
    run_option: RunOption = None,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    weights: DtypeOption = "fp32",
    prompt: Annotated[str | None, option(PROMPTS, "The prompt; - is standard input.", metavar="TEXT")] = None,
    prompt_file: Annotated[Path | None, option(PROMPTS, "A UTF-8 file that is one prompt.", metavar="FILE")] = None,
    prompts: Annotated[Path | None, option(PROMPTS, "A prompt a line; - is standard input.", metavar="FILE")] = None,
    prompts_format: Annotated[
        PromptsFormat, option(PROMPTS, 'jsonl: lines such as {"prompt": "..."}; auto: by the name.')
    ] = "auto",
    prefix: Annotated[str | None, option(PROMPTS, "Put before each prompt.", metavar="TEXT")] = None,
    suffix: Annotated[str | None, option(PROMPTS, "Put after each prompt.", metavar="TEXT")] = None,
    parse_special: Annotated[bool, option(PROMPTS, "Encode <|endoftext|> as that token.", "--parse-special")] = False,
    unknown: Annotated[UnknownChoice, unknown_option(PROMPTS)] = "error",
    *,
    n: Annotated[int, option(_OUTPUT, "Samples of each prompt.", "-n", min=1, max=_MAX)] = 1,
    batch_size: Annotated[int, option(_OUTPUT, "Texts that are written at once.", min=1)] = 64,
    jsonl: Annotated[bool, option(_OUTPUT, "A JSON line for each, with log-probabilities.", "--jsonl")] = False,
    as_json: Annotated[bool, option(_OUTPUT, "One JSON object on stdout.", "--json")] = False,
    novelty: Annotated[bool, option(_OUTPUT, "Report what is copied from the training text.", "--novelty")] = False,
    raw: Annotated[bool, option(_OUTPUT, "Send control characters to a terminal as they are.", "--raw")] = False,
    **given: Any,
) -> None:
    """Continue prompts with a trained model.

    An option that is not given has its value from the section `sample` of the run's config.yaml, so a run that learned
    pairs or chats completes a prompt as it learned to. An empty prompt starts a new text. Of a prompt longer than the
    context the model sees the last tokens; when its own text outgrows the context, the older half of what it sees is
    dropped.

    Example: gpt sample --prompt "ROMEO:" --temperature 0.7 --stop JULIET -n 3
    """
    refuse_several({"--json": as_json, "--jsonl": jsonl})
    if as_json and prompts is not None:
        raise UsageError("--json is for one prompt, and --jsonl for several")
    inputs = read_prompts(prompt, prompt_file, prompts, prompts_format)
    options = sampling_options({**given, "log_probs": jsonl or None})
    path, saved = find_checkpoint(run, run_option)
    defaults, tokenizer = saved.config.sample, saved.tokenizer
    sampling = sampling_params(saved.config, options)
    note_unknown_stops(tokenizer, sampling.stop)
    if sampling.choices:
        sampling = sampling.replace({"choices": known_choices(tokenizer, sampling.choices, unknown)})
    around = (defaults.prefix if prefix is None else prefix), (defaults.suffix if suffix is None else suffix)
    inputs = inputs or [Prompt(defaults.prompt)]
    whole, tokens = _encode(inputs, around, tokenizer, unknown, parse_special)
    copies = None
    if novelty:
        from gpt_cli.evaluation.novelty import TrainingText  # 0.1 s that nothing else needs

        copies = TrainingText(saved, note)
    if (longest := max(map(len, tokens))) > (context_length := saved.config.model.context_length):
        name = "the longest prompt" if len(tokens) > 1 else "the prompt"
        note(f"{name} has {plural(longest, 'token')}; the model sees the last {context_length:,}, its context")
    engine_name, texts = generate_texts(saved, tokens, sampling, n, batch_size, device, engine, weights)
    if as_json:
        head = {"run": path, "step": saved.step, "prompt": whole[0].text, "seed": sampling.seed, "engine": engine_name}
        print_json(head | {"samples": [sample_record(text, copies) for text in next(texts)]})
        return
    is_random = sampling.beams is None and not sampling.greedy
    note(f"{path}, step {saved.step:,}" + (f", seed {sampling.seed}" if is_random else ""))
    if jsonl:
        print_lines(zip(whole, texts, strict=True), sampling.seed, copies)
    else:
        is_plain = saved.config.data.format == "text"
        shown = [one.text if is_plain else f"{entry.text}\n" for one, entry in zip(whole, inputs, strict=True)]
        note_unmatched(sampling, print_samples(shown, texts, raw, copies))


def _encode(
    prompts: Sequence[Prompt], around: tuple[str, str], tokenizer: Tokenizer, unknown: UnknownChoice, special: bool
) -> tuple[list[Prompt], list[list[int]]]:
    """The prompts with the prefix and suffix `around` them, and their tokens.

    A RequestError has the place of its prompt.
    """
    prefix, suffix = around
    for prompt in prompts:
        with located(prompt.where):
            if unknown == "error" and tokenizer.unk_id is None and tokenizer.unknown_characters(prompt.text):
                encode_prompt(tokenizer, prompt.text)  # raises, with the place of the character in the prompt
            refuse_marks(prompt.text, prefix, suffix)
    texts = without_unknown(tokenizer, [prefix + one.text + suffix for one in prompts], unknown, "prompt")
    whole = [replace(prompt, text=text) for prompt, text in zip(prompts, texts, strict=True)]
    tokens = []
    for prompt in whole:
        with located(prompt.where):
            tokens.append(encode_prompt(tokenizer, prompt.text, parse_special=special))
    return whole, tokens
