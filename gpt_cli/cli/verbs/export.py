"""`gpt export`: a run in the formats of others."""

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpt_cli.cli.options.complete import complete_checkpoint
from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.errors import RequestError, UsageError
from gpt_cli.files.locations import refuse_dash, require_writable
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.run.checkpoint import Checkpoint
from gpt_cli.run.find_run import find_run
from gpt_cli.run.open_checkpoint import open_checkpoint
from gpt_cli.run.overfitting import note_better_checkpoint
from gpt_cli.terminal.words import with_article

if TYPE_CHECKING:
    from gpt_cli.run.load_model import LoadedRun

Format = Literal["hf", "gguf", "peft"]
_DType = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]
_GGUF = ".gguf"
_FOREIGN = (
    *(".bin", ".ckpt", ".ggml", ".h5", ".json", ".mlmodel", ".npz"),
    *(".onnx", ".pkl", ".pt", ".pth", ".safetensors", ".tflite", ".zip"),
)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", autocompletion=complete_checkpoint)],
    target: Annotated[Path, typer.Argument(metavar="PATH", help="The new directory (hf, peft) or file (gguf).")],
    to: Annotated[
        Format | None,
        typer.Option(
            help="hf: a directory for Transformers; gguf: a file for llama.cpp; peft: the adapter of a run with"
            " lora.rank, a directory for PEFT. [default: gguf if PATH ends in .gguf, else hf]",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[_DType, typer.Option(help="Of the matrices; q8_0 and q4_0 are for gguf.")] = "f32",
    json: JsonOption = False,
) -> None:
    """Write a trained model as others read it.

    Example: gpt export runs/quickstart --to hf exports/quickstart
    """
    to = _format(to, target)
    if to != "gguf" and dtype in ("q8_0", "q4_0"):
        raise UsageError(f"--dtype {dtype} is for --to gguf")
    path = find_run(run)
    with translate_os_errors("write" if to == "gguf" else "create", target):
        if target.exists():
            raise RequestError(f"{target} exists already")
    if to == "gguf":
        require_writable(target)
    checkpoint = open_checkpoint(path, note, "language" if to == "gguf" else "any")
    note_better_checkpoint(path, checkpoint.step, note)
    write = {"hf": _write_hf, "gguf": _write_gguf, "peft": _write_adapter}[to]
    architecture, kind = write(checkpoint, target, dtype)
    if to != "peft" and checkpoint.config.task.labels is None:
        _note_unexported_prompt(checkpoint)
    if json:
        print_json({"run": checkpoint.path, "step": checkpoint.step, "path": target, "architecture": architecture})
    note(f"{target}: step {checkpoint.step:,} of {run} as {kind}, {dtype}")


def _format(to: Format | None, target: Path) -> Format:
    """The format that is asked for, or else that of the suffix of `target`. Raises RequestError for another one's."""
    refuse_dash(target, "an export")
    suffix = target.suffix.lower()
    if (to is None and suffix in _FOREIGN) or suffix == ".safetensors":
        raise RequestError(f"gpt writes no {suffix}, but a directory for Transformers, or a {_GGUF} file for llama.cpp")
    if to is None and suffix != _GGUF and get_close_matches(suffix, [_GGUF]):
        raise RequestError(f"gpt writes no {suffix}", choices=[str(target.with_suffix(_GGUF))])
    if to in ("hf", "peft") and suffix == _GGUF:
        problem = f"--to {to} makes a directory, and {target} is the name of a file"
        raise RequestError(problem, choices=[str(target.with_suffix(""))])
    return to or ("gguf" if suffix == _GGUF else "hf")


def _load(checkpoint: Checkpoint) -> "LoadedRun":
    import torch

    from gpt_cli.run.load_model import build_model

    return build_model(checkpoint, torch.device("cpu"))


def _write_hf(checkpoint: Checkpoint, target: Path, dtype: _DType) -> tuple[str, str]:
    """Write a directory for Transformers. Returns the architecture and its name in a sentence."""
    from gpt_cli.export.huggingface import export_huggingface

    assert dtype != "q8_0"
    assert dtype != "q4_0"
    architecture = export_huggingface(_load(checkpoint), target, dtype, note).architecture
    if checkpoint.config.task.labels is None and checkpoint.config.sample.beams is not None:
        note("sample.beams is not in generation_config.json: by default Transformers takes the likeliest token")
    return architecture, with_article(architecture)


def _write_gguf(checkpoint: Checkpoint, target: Path, dtype: _DType) -> tuple[str, str]:
    """Write a file for llama.cpp. Returns as `_write_hf` does."""
    from gpt_cli.export.gguf import export_gguf

    architecture, model = export_gguf(_load(checkpoint), target, dtype).model_type, checkpoint.config.model
    widths = {"model.n_embd": model.n_embd, "the MLP": model.mlp_hidden}
    odd = [f"{name} is {width:,}" for name, width in widths.items() if width % 32]
    if odd and dtype in ("q8_0", "q4_0"):
        note(f"matrices whose rows are no multiple of 32 long stay f16: {' and '.join(odd)} wide")
    return architecture, f"{with_article(architecture)} of llama.cpp"


def _write_adapter(checkpoint: Checkpoint, target: Path, dtype: _DType) -> tuple[str, str]:
    """Write a directory for PEFT. Returns as `_write_hf` does."""
    from gpt_cli.export.peft import export_peft

    assert dtype != "q8_0"
    assert dtype != "q4_0"
    architecture = export_peft(checkpoint, target, dtype, note).architecture
    return architecture, f"an adapter for {with_article(architecture)}"


def _note_unexported_prompt(checkpoint: Checkpoint) -> None:
    """Note where texts without a prompt begin for others, if the run has them begin with `sample.prompt`."""
    prompt, eot_id = checkpoint.config.sample.prompt, checkpoint.tokenizer.eot_id
    if prompt and eot_id is not None:
        start = checkpoint.tokenizer.decode([eot_id])
        note(f"sample.prompt, {prompt!r}, stays in the run: elsewhere a text without a prompt begins at {start}")
