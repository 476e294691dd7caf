"""`gpt eval`: the exact loss of a trained model, and what it writes after the prompts of pairs and chats."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated, Literal

import typer

from gpt_cli.cli.open_generator import generate_texts
from gpt_cli.cli.options.data_options import note_unread
from gpt_cli.cli.options.run_options import RunArgument, RunOption, find_checkpoint
from gpt_cli.cli.options.shared_options import DeviceOption, option
from gpt_cli.cli.output import JsonOption, note, print_json, refuse_several
from gpt_cli.cli.process import gc_paused
from gpt_cli.cli.unknown_characters import UnknownOption
from gpt_cli.corpus.readers import ReaderOptions
from gpt_cli.corpus.sources import refuse_overwriting
from gpt_cli.errors import RequestError, UsageError
from gpt_cli.evaluation.completions import Completion, measure_completions, require_sacrebleu
from gpt_cli.evaluation.given_examples import holds_examples, read_given_examples
from gpt_cli.files import replace_file
from gpt_cli.files.locations import require_writable
from gpt_cli.literals import Device
from gpt_cli.run.checkpoint import Checkpoint
from gpt_cli.sampling import SamplingParams
from gpt_cli.terminal.progress import working
from gpt_cli.terminal.table import render_pairs

_AT_ONCE = 64  # completions
_COMPLETIONS = "Completions"
_Split = Literal["val", "test"]


def evaluate(
    run: RunArgument = None,
    run_option: RunOption = None,
    split: Annotated[_Split | None, typer.Option(help="Part of the run's own text. [default: val]")] = None,
    text: Annotated[str | None, typer.Option(metavar="FILE", help="Another text, or records as the run's.")] = None,
    unknown: UnknownOption = "error",
    encoding: Annotated[str | None, typer.Option(help="Of --text. [default: utf-8; of labels, the run's]")] = None,
    text_key: Annotated[str | None, typer.Option(metavar="KEY", help="Its key or column. [default: text]")] = None,
    completions: Annotated[
        bool | None, option(_COMPLETIONS, "Write completions and measure them.", "--completions/--no-completions")
    ] = None,
    beams: Annotated[int | None, option(_COMPLETIONS, "Search with N candidates.", metavar="N", min=1)] = None,
    examples: Annotated[int | None, option(_COMPLETIONS, "Write only the first N.", metavar="N", min=1)] = None,
    baselines: Annotated[bool, option(_COMPLETIONS, "Measure trivial answers, too.", "--baselines")] = False,
    out: Annotated[Path | None, option(_COMPLETIONS, "Keep them, as JSON lines.", metavar="FILE")] = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Measure the exact loss of a run on its validation or test split, or on another text.

    Every token but the first is predicted once, in non-overlapping windows of the model's context. A run that learned
    pairs or chats is measured on every completion after its prompt; it also writes completions, of a chat the last one,
    by greedy search: exact matches, chrF and BLEU are printed, in percent (pip install 'gpt-cli[metrics]'). --baselines
    adds the prompt itself and the completion of the nearest training prompt; --text names other pairs or chats (plain
    text, and any file with --text-key, is read as text). A run that learned classes gets accuracy, macro F1,
    calibration and the confusion matrix, beside the most frequent label and a bag of words; --text names labelled
    texts, and leaves the bag of words out.

    Example: gpt eval --run runs/quickstart --text letter.txt
    """
    refuse_several({"--split": split is not None, "--text": text is not None})
    if text is None and (encoding is not None or text_key is not None or unknown == "skip"):
        raise UsageError("--encoding and --text-key are of --text, as is --unknown skip: it is not given")
    of_completions = {"--beams": beams, "--examples": examples, "--baselines": baselines or None, "--out": out}
    asked = [name for name, value in of_completions.items() if value is not None][:1]
    refuse_several({"--no-completions": completions is False, **dict.fromkeys(asked, True)})
    _, saved = find_checkpoint(run, run_option, "any")
    data, texts = saved.config.data, [] if text is None else [text]
    part, skip = split or "val", unknown == "skip"
    note_unread(texts, text_key, encoding)
    is_given = text is not None and holds_examples(data, text, text_key)
    has_completions = is_given or (text is None and data.format in ("pairs", "chat"))
    if not has_completions and (completions or asked):
        asked = asked or ["--completions"]
        raise UsageError(f"{asked[0]} is for a run that learned pairs or chats, on examples")
    if out is not None:
        require_writable(out)
        refuse_overwriting(out, [*data.sources, *data.val_sources, *texts], "--out")
    if saved.config.task.kind == "classes":
        changes = {key: value for key, value in {"encoding": encoding, "text_key": text_key}.items() if value}
        _print_classes(saved, text, part, device, changes, skip_unknown=skip, json=json)
        return
    if writes := has_completions and completions is not False:
        require_sacrebleu()
    others = None
    if text is not None and is_given:
        data = data.model_copy(update={"encoding": encoding or data.encoding})
        others = read_given_examples(text, data, saved.tokenizer, skip_unknown=skip, note=note)
    with gc_paused():
        from gpt_cli.evaluation.evaluate_run import evaluate_run

    options = ReaderOptions(encoding or "utf-8", text_key or "text")
    figures = evaluate_run(
        saved.path, text, device, split=part, skip_unknown=skip, note=note, options=options, examples=others
    ).figures()
    if writes:
        measured, written = measure_completions(
            saved,
            part,
            lambda prompts: _complete(saved, prompts, beams, device),
            others=others,
            limit=examples,
            baselines=baselines,
        )
        _keep(written, out)
        if measured["bleu"] is None:
            note("no reference has four words in a row, so there is no BLEU")
        figures |= measured
    shown = {name: figure for name, figure in figures.items() if not name.endswith("bleu") or figure is not None}
    print_json(figures) if json else print(render_pairs(shown))


def _print_classes(
    saved: Checkpoint,
    text: str | None,
    split: _Split,
    device: Device,
    changes: Mapping[str, str],
    *,
    skip_unknown: bool,
    json: bool,
) -> None:
    """Evaluate a run that learned classes; `changes` to its data section say how `text` is read."""
    if changes.get("text_key") == saved.config.data.label_key:
        raise RequestError(f"--text-key and the run's data.label_key are both '{changes['text_key']}'")
    with gc_paused():
        from gpt_cli.evaluation.classify_run import evaluate_classifier
        from gpt_cli.evaluation.text_classifier import TextClassifier
        from gpt_cli.report.confusion_table import render_classes

    data = saved.config.data.model_copy(update=dict(changes))
    classifier = TextClassifier.of(saved, device, note)
    report = evaluate_classifier(saved, classifier, text, split, note, data, skip_unknown=skip_unknown)
    print_json(report.to_json()) if json else print(render_classes(report))


def _complete(saved: Checkpoint, prompts: Sequence[list[int]], beams: int | None, device: Device) -> list[str]:
    """The completion that the model writes after each prompt, by greedy or beam search."""
    sampling = SamplingParams(
        max_new_tokens=saved.config.model.context_length,
        temperature=0.0,
        stop=(saved.config.data.completion_end,),
        beams=beams,
    )
    with working("writing completions"):
        _, texts = generate_texts(saved, prompts, sampling, 1, _AT_ONCE, device, "auto", "fp32")
        return [text.text() for (text,) in texts]


def _keep(written: Sequence[Completion], out: Path | None) -> None:
    """Write a JSON line for each completion."""
    if out is not None:
        replace_file(out, "".join(f"{dumps(asdict(one), ensure_ascii=False)}\n" for one in written).encode())
        note(f"wrote {out}")
