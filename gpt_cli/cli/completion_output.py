"""`gpt eval` of a run that learned pairs or chats: what it writes after each prompt, beside what was to be written."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gpt_cli.cli.open_generator import generate_texts
from gpt_cli.cli.output import note
from gpt_cli.errors import UserError
from gpt_cli.literals import Device

if TYPE_CHECKING:
    from gpt_cli.corpus.examples import Examples
    from gpt_cli.run.checkpoint import Checkpoint

_AT_ONCE = 64


def measure_completions(
    saved: "Checkpoint",
    split: Literal["val", "test"],
    device: Device,
    *,
    beams: int | None,
    max_examples: int | None,
    baselines: bool,
    out: Path | None,
    other_examples: "Examples | None" = None,
) -> dict[str, Any]:
    """Write the last completion of the examples of a split, by greedy or beam search, and measure them.

    `max_examples` is how many are measured, from the first; None: all that fit into the context. `baselines` adds
    copying the prompt and the completion of the nearest training prompt. `out` is a file for a JSON line each.
    `other_examples` take the place of the split's.
    """
    from gpt_cli.evaluation.completions import NearestExample, require_sacrebleu, score_completions
    from gpt_cli.files import replace_file
    from gpt_cli.run.run_corpus import load_run_corpus
    from gpt_cli.sampling import SamplingParams
    from gpt_cli.terminal.progress import working

    require_sacrebleu()
    if other_examples is None or baselines:
        corpus = load_run_corpus(saved, note=_silent, with_test=split == "test")
    examples = corpus.examples[split] if other_examples is None else other_examples
    context = saved.config.model.context_length
    turns = [examples.last_turn(number) for number in range(len(examples))]
    turns = [turn for turn in turns if len(turn[0]) + len(turn[1]) - 1 <= context][:max_examples]
    if not turns:
        raise UserError(
            f"no example fits whole into model.context_length {context}, so no completion can be written",
            hint="leave them out: --no-completions",
        )
    references = [_text(saved, completion, examples) for _, completion in turns]
    sampling = SamplingParams(
        max_new_tokens=context, temperature=0.0, stop=(saved.config.data.completion_end,), beams=beams
    )
    with working("writing completions"):
        _, texts = generate_texts(saved, [turn[0] for turn in turns], sampling, 1, _AT_ONCE, device, "auto", "fp32")
        written = [text.text() for (text,) in texts]
    prompts = [_prompt(saved, prompt) for prompt, _ in turns]
    figures: dict[str, Any] = {"examples": len(turns), **asdict(score_completions(written, references))}
    if figures["bleu"] is None:
        note("no reference has four words in a row, so there is no BLEU")
    if baselines:
        train = corpus.examples["train"]
        known = [train.last_turn(number) for number in range(len(train))]
        nearest = NearestExample(
            [_prompt(saved, prompt) for prompt, _ in known],
            [_text(saved, completion, train) for _, completion in known],
        )
        for name, guesses in {"copy": prompts, "nearest": [nearest.completion(prompt) for prompt in prompts]}.items():
            scores = asdict(score_completions(guesses, references))
            figures |= {f"{name}_{key}": value for key, value in scores.items()}
    if out is not None:
        rows = zip(prompts, references, written, strict=True)
        lines = [json.dumps({"prompt": p, "completion": c, "written": w}, ensure_ascii=False) for p, c, w in rows]
        replace_file(out, "".join(f"{line}\n" for line in lines).encode())
        note(f"wrote {out}")
    return figures


def _text(saved: "Checkpoint", completion: list[int], examples: "Examples") -> str:
    return saved.tokenizer.decode(completion).removesuffix(examples.end_text)


def _prompt(saved: "Checkpoint", ids: list[int]) -> str:
    """The text before a completion; where that is one prompt, without the template."""
    data = saved.config.data
    text = saved.tokenizer.decode(ids)
    return text.removesuffix(data.prompt_end) if data.format == "pairs" else text


def _silent(_: str) -> None:
    """The evaluation before has printed it."""
