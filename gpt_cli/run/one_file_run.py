"""A trained model as one safetensors file: the weights, and in its metadata the config and the tokenizer.

What training needs beside them stays in the run.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt_cli.config import Config, dump_config, parse_config
from gpt_cli.errors import UserError
from gpt_cli.files import DamagedError, read_file
from gpt_cli.run.arrays import read_header, unpack_arrays
from gpt_cli.run.checkpoint import Checkpoint
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.tokenizer.loader import parse_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
_KEY = "gpt"  # the only entry of the metadata: several would be written in no fixed order
_TYPES = {
    **{"format": int, "step": int, "config": str, "tokenizer": str, "state": dict},
    **{"weights_sha256": str, "data_sha256": str},
}


def pack_single(
    tensors: "Mapping[str, Tensor]",
    config: Config,
    tokenizer: Tokenizer,
    step: int,
    state: Mapping[str, Any],
    weights_sha256: str,
) -> bytes:
    """The bytes of the file; `state` is strict JSON, `weights_sha256` the digest of the checkpoint's weights.

    The same model gives the same bytes.
    """
    import safetensors.torch  # noqa: PLC0415 - reading the file needs no torch

    stored = {name: t.detach().cpu().contiguous() for name, t in tensors.items() if not _is_tied(name, config)}
    fields = {
        "format": FORMAT,
        "step": step,
        "config": dump_config(config),
        "tokenizer": tokenizer.to_json(),
        "weights_sha256": weights_sha256,
        "data_sha256": _digest(safetensors.torch.save(stored)),
        "state": dict(state),
    }
    return safetensors.torch.save(stored, {_KEY: json.dumps(fields, allow_nan=False)})


def load_single(path: Path) -> Checkpoint:
    """The model in the file `path`, as the checkpoint that it was made of, without its optimizer.

    Raises DamagedError for a file that is not one, or not what was written, UserError for a newer format.
    """
    data = read_file(path)
    fields = _parse_fields(read_header(data, str(path)), path)
    if fields["format"] > FORMAT:
        raise UserError(f"{path} was written by a newer gpt (format {fields['format']})", hint="install that one")
    if _digest(data) != fields["data_sha256"]:
        raise DamagedError(f"{path} is damaged: its weights do not match their SHA-256")
    arrays = unpack_arrays(data, str(path))
    config = parse_config(fields["config"], str(path), of_run=True)
    try:
        tokenizer = parse_tokenizer(fields["tokenizer"])
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: its tokenizer is none ({error})") from error
    if _is_tied("head.weight", config) and "embedding.tokens.weight" in arrays:
        arrays["head.weight"] = arrays["embedding.tokens.weight"]
    return Checkpoint(path, fields["step"], fields["state"], config, tokenizer, arrays, fields["weights_sha256"])


def _parse_fields(header: Mapping[str, Any], path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(header["__metadata__"][_KEY])
    except (ValueError, LookupError, TypeError, RecursionError):
        raise DamagedError(f"{path} is not a model of gpt: it has no config") from None
    if not isinstance(fields, dict) or any(type(fields.get(key)) is not kind for key, kind in _TYPES.items()):
        raise DamagedError(f"{path} is damaged: its metadata does not say {', '.join(_TYPES)}")
    return fields


def _is_tied(name: str, config: Config) -> bool:
    return name == "head.weight" and config.model.tie_embeddings and config.task.kind == "language"


def _digest(data: bytes) -> str:
    """sha256 of the numbers in a safetensors file, all that comes after its header."""
    return hashlib.sha256(data[8 + int.from_bytes(data[:8], "little") :]).hexdigest()
