"""Export a run as a single safetensors file, the format of `gpt_cli.run.one_file_run`."""

from pathlib import Path

from gpt_cli.errors import RequestError
from gpt_cli.export.names import Tensors
from gpt_cli.files import ExistsError, replace_file
from gpt_cli.run.load_model import LoadedRun
from gpt_cli.run.one_file_run import pack_single


def write_single_file(run: LoadedRun, file: Path) -> None:
    """Write the model of `run` to the new `file`. Raises ExistsError if it exists, RequestError for another suffix."""
    if file.suffix != ".safetensors":
        raise RequestError(f"{file} is no name for it", hint="it is a safetensors file: call it NAME.safetensors")
    if file.exists():
        raise ExistsError(f"{file} exists already", hint="export to another file, or move that one away")
    tensors: Tensors = run.model.state_dict()
    replace_file(file, pack_single(tensors, run.config, run.tokenizer, run.step, run.state, run.weights_sha256))
