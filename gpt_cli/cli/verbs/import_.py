"""`gpt import`: the models of others as runs."""

from os.path import abspath, isfile, join
from pathlib import Path
from typing import Annotated

import typer

from gpt_cli.cli.options.config_argument import is_override
from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.errors import RequestError, UsageError
from gpt_cli.files.kinds import is_gguf
from gpt_cli.files.locations import refuse_dash, to_slug
from gpt_cli.terminal.words import with_article


def import_(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="[hf|gguf] DIR|NAME|FILE [RUN]",
            help="A model of Transformers, in safetensors: its directory, or its name on the hub; or a GGUF file that"
            " gpt export wrote; or the directory of a LoRA adapter of PEFT, which is merged over its base. [default of"
            " RUN: its name, in runs/]",
        ),
    ],
    download: Annotated[bool, typer.Option("--download", help="Get NAME from the hub, if it is not cached.")] = False,
    base: Annotated[str | None, typer.Option(metavar="PATH", help="Of an adapter. [default: the one it names]")] = None,
    json: JsonOption = False,
) -> None:
    """Make a model of GPT-2's, Llama's, Qwen3's or NanoChat's architecture a run.

    It samples, is evaluated on any text, is exported again, and is what train.init_from names to train it further.

    Example: gpt import hf exports/quickstart runs/imported
    """
    kind = arguments.pop(0) if arguments[0] in ("hf", "gguf") and len(arguments) > 1 else None
    source, *names = arguments
    if change := next(filter(is_override, names), None):
        raise UsageError(f"{change} is no name of a run, and no key changes a model that is imported")
    if len(names) > 1:
        raise UsageError(f"one model becomes one run, and {names[1]} is a third name")
    run_dir = Path(names[0]) if names else Path("runs", to_slug(Path(abspath(source)).stem))
    refuse_dash(run_dir, "a run")
    is_adapter = kind is None and isfile(join(source, "adapter_config.json"))
    if base is not None and not is_adapter:
        raise UsageError(f"--base is for an adapter of PEFT, which {source} is not")
    if is_adapter:
        from gpt_cli.export.peft import import_peft

        architecture = import_peft(source, run_dir, base, download=download, note=note).architecture
    elif kind == "gguf" or (kind is None and is_gguf(Path(source))):
        from gpt_cli.export.gguf_reading import import_gguf

        architecture = import_gguf(Path(source), run_dir).model_type
    elif is_gguf(Path(source)) and isfile(source):
        raise RequestError(f"{source} is a file for llama.cpp", kind="foreign model", path=source)
    else:
        from gpt_cli.export.import_hf import import_huggingface

        architecture = import_huggingface(source, run_dir, download=download, note=note).architecture
    if json:
        print_json({"source": source, "run_dir": run_dir, "architecture": architecture})
    note(f"{run_dir}: {source}, {with_article(architecture)}")
