"""Import a GGUF file that `gpt export` wrote, losslessly.

A key must have the value that the export writes for this model, or be in _NEUTRAL; any other is refused by name.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from gpt_cli.config import Config, ModelConfig
from gpt_cli.corpus.turn_template import TurnTemplate
from gpt_cli.errors import RequestError, UserError
from gpt_cli.export.answer_borders import learned_template
from gpt_cli.export.gguf import (
    ARCHITECTURE,
    CHAT_TEMPLATE,
    LAYOUTS,
    SETTINGS,
    TOKENIZER_JSON,
    chat_keys,
    gguf_package,
    model_keys,
)
from gpt_cli.export.gguf_vocabulary import MERGES, UNUSED_MERGE, gguf_vocabulary
from gpt_cli.export.hf_config import LONGEST_CONTEXT, mlp_ratio
from gpt_cli.export.import_hf import convert_tensors, create_imported
from gpt_cli.export.layout import Layout
from gpt_cli.export.vocabulary import parse_exported
from gpt_cli.files.locations import similar_paths
from gpt_cli.model.sizing import build_on_meta
from gpt_cli.tokenizer import ForeignTokenizer, Tokenizer
from gpt_cli.tokenizer.loader import parse_tokenizer

_LOSSLESS_TYPES = ("F32", "F16", "BF16")
_NEUTRAL = {"general.alignment", "general.file_type", "general.name", "general.quantization_version"}
_OPTIONS = {
    "gpt2": {"position": "learned", "norm": "layernorm", "mlp": "gelu", "qk_norm": False},
    "llama": {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu", "qk_norm": False},
    "qwen3": {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu", "qk_norm": True},
}


def import_gguf(file: Path, run_dir: Path) -> Layout:
    """Make the model in `file` a new run in `run_dir`.

    Raises RequestError if `file` is missing or `run_dir` exists, and UserError, naming the key or the tensor, for a
    model that `gpt export` would not write.
    """
    gguf = gguf_package()
    if not file.is_file():
        problem = f"{file} is a directory, not a GGUF file" if file.is_dir() else f"there is no file {file}"
        similar = [] if file.exists() else similar_paths(file)
        hint = None if similar else "gpt export RUN model.gguf writes one"
        raise RequestError(problem, hint=hint, choices=similar)
    try:
        reader = gguf.GGUFReader(file)
        keys = {key: value.contents() for key, value in reader.fields.items() if not key.startswith("GGUF.")}
        tensor_types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    except Exception as error:  # damaged bytes raise many types
        raise UserError(
            f"it is no GGUF file, or one that is damaged or cut short ({shorten(str(error), 100, placeholder=' ...')})",
            where=str(file),
            hint="copy it again, or write another: gpt export RUN model.gguf",
        ) from None
    layout, model, tokenizer, template = _model(keys, tensor_types, str(file))
    for name, tensor_type in tensor_types.items():
        if tensor_type not in _LOSSLESS_TYPES:
            raise UserError(
                f"tensor {name:.200} is {tensor_type}, from which the weights cannot be restored",
                where=str(file),
                hint="import the file in f32, f16 or bf16 that it was made from",
            )
    tensors = {tensor.name: _values(gguf, tensor) for tensor in reader.tensors}
    converted = _convert(layout, model, tokenizer, tensors, str(file))
    create_imported(run_dir, model, tokenizer, converted, str(file), layout, template=template)
    return layout


def _values(gguf: Any, tensor: Any) -> Tensor:
    """The values of a tensor of a lossless type, in fp32."""
    shape = tuple(int(size) for size in reversed(tensor.shape))
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return torch.from_numpy(np.array(values, dtype=np.float32).reshape(shape))


def _model(
    keys: Mapping[str, Any], tensor_types: Mapping[str, str], location: str
) -> tuple[Layout, ModelConfig, Tokenizer, TurnTemplate | None]:
    """The layout, model, tokenizer and template of the keys.

    Raises UserError, naming the key, unless they are as exported.
    """
    architecture = keys.get(ARCHITECTURE)
    layout = next((layout for layout in LAYOUTS if layout.model_type == architecture), None)
    if layout is None:
        names = ", ".join(layout.model_type for layout in LAYOUTS)
        raise UserError(f"{ARCHITECTURE} is {architecture!r:.80}, not one of {names}", where=location)
    if not isinstance(keys.get(TOKENIZER_JSON), str):
        raise UserError(f"it has no {TOKENIZER_JSON}, as files of `gpt export` do", where=location)
    try:
        tokenizer = _tokenizer(keys)
        vocabulary = gguf_vocabulary(tokenizer)
    except (ValueError, RequestError) as error:
        raise UserError(
            f"{TOKENIZER_JSON} is no tokenizer of ours: {shorten(str(error), 200, placeholder=' ...')}", where=location
        ) from None
    model = _candidate(layout, keys, tensor_types, location)
    source = str(keys.get(CHAT_TEMPLATE, ""))
    is_own = isinstance(tokenizer, ForeignTokenizer) and tokenizer.chat_template == source
    template = None if is_own else learned_template(source, tokenizer)
    expected: dict[str, Any] = {
        **model_keys(model, layout, len(vocabulary.tokens)),
        **vocabulary.keys(),
        **chat_keys(vocabulary, tokenizer, template, source),
    }
    for key, value in keys.items():
        if key in (ARCHITECTURE, TOKENIZER_JSON, SETTINGS) or key in _NEUTRAL:
            continue
        if key not in expected:
            raise UserError(f"it says {key}, and what that changes is not known here", where=location)
        ours = expected[key]
        if key == MERGES and value == [*ours, UNUSED_MERGE]:  # as written before version 0.3
            continue
        if value != (float(np.float32(ours)) if isinstance(ours, float) else ours):
            raise UserError(f"{key} is {value!r:.60}, and {ours!r:.60} in what `gpt export` writes", where=location)
    if missing := sorted(expected.keys() - keys.keys()):
        raise UserError(f"it does not say {missing[0]}", where=location)
    return layout, model, tokenizer, template


def _tokenizer(keys: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of the keys. Raises ValueError if it is none."""
    settings = keys.get(SETTINGS)
    if settings is None:
        return parse_exported(keys[TOKENIZER_JSON])
    return parse_tokenizer(json.dumps(json.loads(settings) | {"tokenizer": json.loads(keys[TOKENIZER_JSON])}))


def _candidate(layout: Layout, keys: Mapping[str, Any], tensor_types: Mapping[str, str], location: str) -> ModelConfig:
    """The model of the keys. Raises UserError for a size that is missing, of the wrong type or out of range."""

    def read(key: str, kind: type) -> Any:
        value: Any = keys.get(f"{layout.model_type}.{key}")
        if type(value) is not kind:
            raise UserError(f"it does not say {layout.model_type}.{key}", where=location)
        # The shortest decimal of the float32.
        return float(str(np.float32(keys[f"{layout.model_type}.{key}"]))) if kind is float else value

    heads, width = read("attention.head_count", int), read("embedding_length", int)
    kv_heads, layers = read("attention.head_count_kv", int), read("block_count", int)
    norm = "layer_norm" if layout.model_type == "gpt2" else "layer_norm_rms"
    values: dict[str, Any] = {
        **_OPTIONS[layout.model_type],
        "n_layer": layers,
        "n_head": heads,
        "n_kv_head": None if kv_heads == heads else kv_heads,
        "n_embd": width,
        "context_length": read("context_length", int),
        "norm_eps": read(f"attention.{norm}_epsilon", float),
        "bias": "blk.0.attn_output.bias" in tensor_types,
        "tie_embeddings": "output.weight" not in tensor_types,
        "zero_init": False,
    }
    if layout.model_type != "gpt2":
        values["rope_theta"] = read("rope.freq_base", float)
    try:
        values["mlp_ratio"] = mlp_ratio(read("feed_forward_length", int), width)
        model = Config.model_validate({"model": values}).model
    except (ValidationError, ZeroDivisionError, OverflowError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "a size is 0"
        raise UserError(f"it is no model of ours: {reason.removeprefix('Value error, ')}", where=location) from None
    if model.context_length > LONGEST_CONTEXT or layers > len(tensor_types):
        raise UserError(f"{layers:,} layers, a context of {model.context_length:,}: out of reach", where=location)
    return model


def _convert(
    layout: Layout, model: ModelConfig, tokenizer: Tokenizer, tensors: dict[str, Tensor], location: str
) -> dict[str, Tensor]:
    """The tensors of our model. Raises UserError for a tensor that is missing, unexpected or not finite."""
    if tokenizer.eot_id is None:  # drop the row that the export adds for an end of text
        tensors |= {name: tensors[name][:-1] for name in ("token_embd.weight", "output.weight") if name in tensors}
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise UserError(f"tensor {name} has values that are not finite", where=location)
    return convert_tensors(layout, model, build_on_meta(model, tokenizer.vocab_size).state_dict(), tensors, location)
