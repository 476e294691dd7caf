"""A GGUF file as a run of ours: what `gpt export` wrote, back without the loss of a bit.

Every key is one that the export writes for this very model, or is known to change nothing; others are refused by name.
"""

from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from gpt_cli.config import Config, ModelConfig
from gpt_cli.errors import RequestError, UserError
from gpt_cli.export.gguf import ARCHITECTURE, LAYOUTS, TOKENIZER_JSON, gguf_package, gguf_vocabulary, model_keys
from gpt_cli.export.hf_config import LONGEST_CONTEXT, mlp_ratio
from gpt_cli.export.import_hf import create_imported, own_tensors
from gpt_cli.export.layout import Layout
from gpt_cli.export.vocabulary import parse_exported
from gpt_cli.model.sizing import build_on_meta
from gpt_cli.tokenizer import Tokenizer

_EXACT = ("F32", "F16", "BF16")
_NEUTRAL = {"general.alignment", "general.file_type", "general.name", "general.quantization_version"}
_OPTIONS = {
    "gpt2": {"position": "learned", "norm": "layernorm", "mlp": "gelu", "qk_norm": False},
    "llama": {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu", "qk_norm": False},
    "qwen3": {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu", "qk_norm": True},
}


def import_gguf(file: Path, run_dir: Path) -> Layout:
    """Make the model in `file` a new run in `run_dir`.

    Raises RequestError for a file that is not there or a `run_dir` that is taken, and UserError, naming the key or the
    tensor, for what is not exactly a model that `gpt export` writes.
    """
    gguf = gguf_package()
    if not file.is_file():
        problem = f"{file} is a directory, not a GGUF file" if file.is_dir() else f"there is no file {file}"
        raise RequestError(problem, hint="gpt export RUN model.gguf writes one")
    try:
        reader = gguf.GGUFReader(file)
        keys = {key: value.contents() for key, value in reader.fields.items() if not key.startswith("GGUF.")}
        kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    except Exception as error:  # of the many that damaged bytes cause in it
        raise UserError(
            f"it is no GGUF file, or a damaged one: {shorten(str(error), 100, placeholder=' ...')}", where=str(file)
        ) from None
    layout, model, tokenizer = _model(keys, kinds, str(file))
    for name, kind in kinds.items():
        if kind not in _EXACT:
            raise UserError(
                f"tensor {name:.200} is {kind}, from which the weights cannot be had back",
                where=str(file),
                hint="import the file in f32, f16 or bf16 that it was made from",
            )
    tensors = {one.name: _values(gguf, one) for one in reader.tensors}
    create_imported(
        run_dir, model, tokenizer, _convert(layout, model, tokenizer, tensors, str(file)), str(file), layout
    )
    return layout


def _values(gguf: Any, tensor: Any) -> Tensor:
    """The numbers of a tensor in fp32, which loses nothing."""
    shape = tuple(int(size) for size in reversed(tensor.shape))
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return torch.from_numpy(np.array(values, dtype=np.float32).reshape(shape))


def _model(keys: Mapping[str, Any], kinds: Mapping[str, str], place: str) -> tuple[Layout, ModelConfig, Tokenizer]:
    """The model of the keys. Raises UserError, naming the key, unless it is what the export says of such a model."""
    kind = keys.get(ARCHITECTURE)
    layout = next((layout for layout in LAYOUTS if layout.model_type == kind), None)
    if layout is None:
        names = ", ".join(layout.model_type for layout in LAYOUTS)
        raise UserError(f"{ARCHITECTURE} is {kind!r:.80}, not one of {names}", where=place)
    if not isinstance(keys.get(TOKENIZER_JSON), str):
        raise UserError(f"it has no {TOKENIZER_JSON}, as files of `gpt export` do", where=place)
    try:
        tokenizer = parse_exported(keys[TOKENIZER_JSON])
        vocabulary = gguf_vocabulary(tokenizer)
    except (ValueError, RequestError) as error:
        raise UserError(
            f"{TOKENIZER_JSON} is no tokenizer of ours: {shorten(str(error), 200, placeholder=' ...')}", where=place
        ) from None
    model = _candidate(layout, keys, kinds, place)
    ours: dict[str, Any] = {**model_keys(model, layout, len(vocabulary.tokens)), **vocabulary.keys()}
    for key, value in keys.items():
        if key in (ARCHITECTURE, TOKENIZER_JSON) or key in _NEUTRAL:
            continue
        if key not in ours:
            raise UserError(f"it says {key}, and what that changes is not known here", where=place)
        expected = ours[key]
        if value != (float(np.float32(expected)) if isinstance(expected, float) else expected):
            raise UserError(f"{key} is {value!r:.60}, and {ours[key]!r:.60} in what `gpt export` writes", where=place)
    if missing := sorted(ours.keys() - keys.keys()):
        raise UserError(f"it does not say {missing[0]}", where=place)
    return layout, model, tokenizer


def _candidate(layout: Layout, keys: Mapping[str, Any], kinds: Mapping[str, str], place: str) -> ModelConfig:
    """The model of these sizes. Raises UserError for one that is missing, no number, or out of any range."""

    def size(key: str, kind: type) -> Any:
        value: Any = keys.get(f"{layout.model_type}.{key}")
        if type(value) is not kind:
            raise UserError(f"it does not say {layout.model_type}.{key}", where=place)
        # Of a float the shortest number that becomes it.
        return float(str(np.float32(keys[f"{layout.model_type}.{key}"]))) if kind is float else value

    heads, width = size("attention.head_count", int), size("embedding_length", int)
    kv_heads, layers = size("attention.head_count_kv", int), size("block_count", int)
    norm = "layer_norm" if layout.model_type == "gpt2" else "layer_norm_rms"
    values: dict[str, Any] = {
        **_OPTIONS[layout.model_type],
        "n_layer": layers,
        "n_head": heads,
        "n_kv_head": None if kv_heads == heads else kv_heads,
        "n_embd": width,
        "context_length": size("context_length", int),
        "norm_eps": size(f"attention.{norm}_epsilon", float),
        "bias": "blk.0.attn_output.bias" in kinds,
        "tie_embeddings": "output.weight" not in kinds,
        "zero_init": False,
    }
    if layout.model_type != "gpt2":
        values["rope_theta"] = size("rope.freq_base", float)
    try:
        values["mlp_ratio"] = mlp_ratio(size("feed_forward_length", int), width)
        model = Config.model_validate({"model": values}).model
    except (ValidationError, ZeroDivisionError, OverflowError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "a size is 0"
        raise UserError(f"it is no model of ours: {reason.removeprefix('Value error, ')}", where=place) from None
    if model.context_length > LONGEST_CONTEXT or layers > len(kinds):
        raise UserError(f"{layers:,} layers, a context of {model.context_length:,}: out of reach", where=place)
    return model


def _convert(
    layout: Layout, model: ModelConfig, tokenizer: Tokenizer, found: dict[str, Tensor], place: str
) -> dict[str, Tensor]:
    """Our tensors out of theirs. Raises UserError unless there are exactly those that the model has."""
    if tokenizer.eot_id is None:  # a last row for the end of text
        found |= {name: found[name][:-1] for name in ("token_embd.weight", "output.weight") if name in found}
    for name, tensor in found.items():
        if not bool(torch.isfinite(tensor).all()):
            raise UserError(f"tensor {name} has values that are not finite", where=place)
    return own_tensors(layout, model, build_on_meta(model, tokenizer.vocab_size).state_dict(), found, place)
