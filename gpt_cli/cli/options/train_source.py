"""The config that an argument of `gpt train` means; arguments that are no text are refused: parts of runs, models."""

import os
from pathlib import Path
from shlex import join, quote

from gpt_cli.errors import RequestError, UserError

YAML = (".yaml", ".yml")
_TEXTS = (".txt", ".md", ".jsonl", ".csv", ".parquet")
_OF_RUN = ("run.json", "data.json", "tokenizer.json", "metrics.jsonl", "events.jsonl")


def config_file(source: str) -> Path | None:
    """The config that `source` means: itself, or that of the run it is; None for a text.

    Raises RequestError for a folder of runs or configs, a part of a run, a checkpoint or a model, and UserError for a
    run without its config.
    """
    path = Path(source)
    if not source or "\0" in source:
        return None
    if path.suffix.lower() in YAML and not path.is_dir():
        return path
    if path.suffix.lower() == ".safetensors" and path.is_file():
        _refuse_weights(path)
    if path.name in _OF_RUN and (path.parent / "run.json").is_file():
        raise RequestError(
            f"{path} is a part of a run, not text", hint=f"gpt train {quote(str(path.parent))} resumes it"
        )
    if not os.path.lexists(path):
        _refuse_named_checkpoint(source)
    if not path.is_dir():
        return None
    if (path / "run.json").is_file():
        if not (path / "config.yaml").exists() and any(path.glob("checkpoints/*/config.yaml")):
            raise UserError(f"{source} is damaged: config.yaml is missing", kind="damaged run", path=source)
        return path / "config.yaml"
    if (path / "SHA256SUMS").is_file() and (path / "state.json").is_file():
        run = path.parent.parent
        resume = f"resume its run with: gpt train {quote(str(run))}" if (run / "run.json").is_file() else None
        start = f"start a new run from it with: gpt train TEXT train.init_from={quote(source)}"
        raise RequestError(f"{source} is a checkpoint", hint=resume or start)
    from gpt_cli.run.find_run import refuse_without_record

    refuse_without_record(path)
    runs = sorted(run.parent for run in path.glob("*/run.json"))
    if runs and not _has_texts(path):
        listing = f"gpt runs --dir {quote(source)} lists them"
        raise RequestError(
            f"{source} is a folder of runs", hint=f"resume one: gpt train {quote(str(runs[0]))}; {listing}"
        )
    names = [file.name for file in path.iterdir() if not file.name.startswith(".")]
    if names == ["lock"]:
        hint = f"begin it again: gpt train TEXT run_dir={quote(source)}"
        raise RequestError(f"{source} is a run that was stopped before it began: there is nothing to resume", hint=hint)
    if names and all(Path(name).suffix.lower() in YAML for name in names):
        example = path / min(names)
        raise RequestError(f"{source} is a folder of configs", hint=f"name one: gpt train {quote(str(example))}")
    return None


def _refuse_named_checkpoint(source: str) -> None:
    """Raise RequestError for RUN@STEP and RUN@best."""
    from gpt_cli.run.find_run import named_checkpoint, split_name

    if (named := split_name(Path(source))) is None:
        return
    hint = f"resume its run with: gpt train {quote(str(named[0]))}"
    if named_checkpoint(*named) is not None:
        hint += f"; start a new run from it with: gpt train TEXT train.init_from={quote(source)}"
    raise RequestError(f"{source} is a checkpoint of a run, not text", hint=hint)


def _has_texts(folder: Path) -> bool:
    """True if a folder holds texts beside its runs, other than standard input that is kept for one of them."""
    files = [file for file in folder.iterdir() if file.suffix.lower() in _TEXTS and file.is_file()]
    return not all((file.with_suffix("") / "run.json").is_file() for file in files)


def _refuse_weights(file: Path) -> None:
    """Raise RequestError for a file of weights, with how its model can be trained further."""
    from gpt_cli.run.checkpoint import is_checkpoint

    folder, hint = quote(str(file.parent)), None
    if is_checkpoint(file.parent):
        hint = f"start a new run from its checkpoint with: gpt train TEXT train.init_from={folder}"
        raise RequestError(f"{file} is a part of a checkpoint, not text", hint=hint)
    if (file.parent / "config.json").is_file():
        hint = f"make it a run, which can be trained further: gpt import hf {folder} runs/NAME"
    raise RequestError(f"{file} is a model, not text", hint=hint)


def refuse_among_texts(source: str, others: list[str], overrides: list[str]) -> None:
    """Raise RequestError for a config or a run among texts."""
    if not os.path.lexists(source):
        _refuse_named_checkpoint(source)
        return
    if config_file(source) is None:
        return
    other = next((other for other in others if (Path(other) / "run.json").is_file()), None)
    if Path(source).is_dir() and other is not None:
        raise RequestError(f"{source} is a run, and so is {other}: one is trained at a time", hint="name one")
    if Path(source).is_dir():
        keys = [one for one in overrides if not one.startswith("train.init_from=")]
        command = join(["gpt", "train", *(others or ["TEXT"]), f"train.init_from={source}", *keys])
        raise RequestError(f"{source} is a run, not text", hint=f"start a new run from it with: {command}")
    other = next((other for other in others if Path(other).suffix.lower() in YAML), None)
    if other is not None:
        hint = f"gpt train {quote(source)} key=value changes what it says"
        raise RequestError(f"{source} is a config, and so is {other}: one is trained at a time", hint=hint)
    text = others[0] if len(others) == 1 else f"[{', '.join(others)}]"
    keys = [one for one in overrides if not one.startswith("data.source=")]
    command = join(["gpt", "train", source, f"data.source={text if others else 'TEXT'}", *keys])
    raise RequestError(f"{source} is a config, not text", hint=command)
