"""`gpt export`: a run in the formats of others."""

import os
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpt_cli.cli.options.complete import complete_checkpoint
from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.errors import RequestError
from gpt_cli.files.kinds import kind_of
from gpt_cli.files.locations import require_writable
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.terminal.words import with_article

if TYPE_CHECKING:
    from gpt_cli.run.load_model import LoadedRun

_GGUF = ".gguf"
_FOREIGN = (
    *(".bin", ".ckpt", ".ggml", ".h5", ".json", ".mlmodel", ".npz"),
    *(".onnx", ".pkl", ".pt", ".pth", ".safetensors", ".tflite", ".zip"),
)
_DType = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]


def export(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run or checkpoint.", autocompletion=complete_checkpoint)
    ],
    target: Annotated[Path, typer.Argument(metavar="PATH", help="The new directory (hf, peft) or file (gguf).")],
    to: Annotated[
        Literal["hf", "gguf", "peft"] | None,
        typer.Option(
            help="hf: a directory for Transformers; gguf: a file for llama.cpp; peft: the adapter of a run with"
            " lora.rank, a directory for PEFT. [default: gguf if PATH ends in .gguf, else hf]",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[
        _DType,
        typer.Option(help="Of the matrices; q8_0 and q4_0, of 8 and 4 bits, are for gguf."),
    ] = "f32",
    json: JsonOption = False,
) -> None:
    """Write a trained model as others read it.

    Example: gpt export runs/quickstart --to hf exports/quickstart
    """
    suffix = target.suffix.lower()
    if str(target) == "-":
        raise RequestError("an export is a directory or a file: it is not written to standard output")
    if to is None and suffix in _FOREIGN:
        raise RequestError(
            f"gpt writes no {suffix}",
            hint=f"for Transformers, and what converts from it, name a directory: {_free_directory(target)}; for"
            " llama.cpp, a .gguf file",
        )
    if to is None and suffix != _GGUF and get_close_matches(suffix, [_GGUF], 1, 0.8):
        hint = f"did you mean {target.with_suffix(_GGUF)}? a directory of that name: --to hf"
        raise RequestError(f"gpt writes no {suffix}", hint=hint)
    if to == "gguf" and suffix == ".safetensors":
        raise RequestError(f"gpt writes no {suffix}", hint=f"name a .gguf file: {target.with_suffix(_GGUF)}")
    if to in ("hf", "peft") and suffix in (_GGUF, ".safetensors"):
        file = "leave out --to hf for a file, or name" if to == "hf" else "name"
        raise RequestError(
            f"--to {to} makes a directory, and {target} is the name of a file",
            hint=f"{file} a directory: {_free_directory(target)}",
        )
    to = to or ("gguf" if suffix == _GGUF else "hf")
    from gpt_cli.run.find_run import find_run

    path = find_run(run)
    with translate_os_errors("write" if to == "gguf" else "create", target):
        stands = target.exists()
    if stands:
        raise _exists(run, target, is_directory=to != "gguf")
    if to == "gguf":
        require_writable(target)
    if to == "peft":
        _export_adapter(run, path, target, dtype, json)
        return
    import torch

    from gpt_cli.run.load_model import load_model
    from gpt_cli.run.overfitting import note_better_checkpoint

    loaded = load_model(path, torch.device("cpu"), note, "any")
    note_better_checkpoint(path, loaded.step, note)
    if to == "gguf" and loaded.config.task.kind == "classes":
        into_hf = f"Transformers classifies with it: gpt export {quote(str(run))} {_free_directory(target)}"
        raise RequestError(
            f"{run} classifies texts: it predicts no tokens, as a model of llama.cpp must",
            hint=into_hf if loaded.config.task.pooling == "last" else "gpt classify uses it as it is",
        )
    if to == "hf":
        from gpt_cli.export.huggingface import export_huggingface

        if dtype == "q8_0" or dtype == "q4_0":
            raise _only_gguf(dtype)
        architecture = export_huggingface(loaded, target, dtype, note).architecture
        kind = with_article(architecture)
        if loaded.config.task.labels is None and loaded.config.sample.beams is not None:
            note("sample.beams is not in generation_config.json: by default Transformers takes the likeliest token")
    else:
        from gpt_cli.export.gguf import export_gguf

        architecture = export_gguf(loaded, target, dtype).model_type
        widths = {"model.n_embd": loaded.config.model.n_embd, "the MLP": loaded.config.model.mlp_hidden}
        odd = [f"{name} is {width:,}" for name, width in widths.items() if width % 32]
        if odd and dtype in ("q8_0", "q4_0"):
            note(f"matrices whose rows are no multiple of 32 long stay f16: {' and '.join(odd)} wide")
        kind = f"{with_article(architecture)} of llama.cpp"
    if loaded.config.task.labels is None:
        _note_unexported_prompt(loaded)
    if json:
        print_json({"run": loaded.path, "step": loaded.step, "path": target, "architecture": architecture})
    note(f"{target}: step {loaded.step:,} of {run} as {kind}, {dtype}")


def _export_adapter(run: Path, path: Path, target: Path, dtype: _DType, json: bool) -> None:
    """Write the adapter of the run or checkpoint at `path` to the directory `target`."""
    from gpt_cli.export.peft import export_peft
    from gpt_cli.run.open_checkpoint import open_checkpoint
    from gpt_cli.run.overfitting import note_better_checkpoint

    if dtype == "q8_0" or dtype == "q4_0":
        raise _only_gguf(dtype)
    checkpoint = open_checkpoint(path, note, "any")
    note_better_checkpoint(path, checkpoint.step, note)
    architecture = export_peft(checkpoint, target, dtype, note).architecture
    if json:
        print_json({"run": checkpoint.path, "step": checkpoint.step, "path": target, "architecture": architecture})
    note(f"{target}: step {checkpoint.step:,} of {run} as an adapter for {with_article(architecture)}, {dtype}")


def _only_gguf(dtype: str) -> RequestError:
    return RequestError(f"--dtype {dtype} is for --to gguf", hint="for a directory: f32, f16 or bf16")


def _note_unexported_prompt(run: "LoadedRun") -> None:
    """Say where texts without a prompt begin for others, if the run has them begin with `sample.prompt`."""
    sample, eot_id = run.config.sample, run.tokenizer.eot_id
    if sample.prompt and eot_id is not None:
        start = run.tokenizer.decode([eot_id])
        note(f"sample.prompt, {sample.prompt!r}, stays in the run: elsewhere a text without a prompt begins at {start}")


def _free_directory(file: Path) -> str:
    """The name, quoted, of a directory that is not there yet, after that of `file`."""
    from gpt_cli.files import free_name

    name = file.with_suffix("")
    return quote(str(free_name(name, "-hf") if os.path.lexists(name) else name))


def _exists(run: Path, target: Path, *, is_directory: bool) -> RequestError:
    """The error where there is something at `target`, with a new directory in it if it is one for several things."""
    inside = target / run.resolve().name
    is_for_several = is_directory and target.is_dir() and kind_of(target) in ("text", "runs folder")
    choices = [str(inside)] if is_for_several and not inside.exists() else []
    return RequestError(f"{target} exists already", choices=choices)
