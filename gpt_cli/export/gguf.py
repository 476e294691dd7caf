"""A single GGUF file for llama.cpp: the same model, with a vocabulary that gives the same ids."""

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gpt_cli.config import ModelConfig
from gpt_cli.corpus.turn_template import TurnTemplate
from gpt_cli.errors import RequestError, require_package
from gpt_cli.export.answer_borders import guarded_jinja
from gpt_cli.export.architectures import GPT2, LLAMA, QWEN3
from gpt_cli.export.gguf_vocabulary import GGUFVocabulary, further_end_key, gguf_vocabulary
from gpt_cli.export.layout import Layout, choose_layout
from gpt_cli.export.names import name, named_tensors
from gpt_cli.export.vocabulary import tokenizer_json
from gpt_cli.files import ExistsError, replace_file
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.model.parameters import gate_up_rows, qkv_rows
from gpt_cli.model.position import rotary_frequencies
from gpt_cli.run.load_model import LoadedRun
from gpt_cli.tokenizer import ForeignTokenizer, Tokenizer

GGUFType = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]
ARCHITECTURE = "general.architecture"
_IS_ROTATED = re.compile(r"\.attn_[qk]\.")
_TABLES = ("token_embd.weight", "output.weight")
TOKENIZER_JSON, CHAT_TEMPLATE = "tokenizer.huggingface.json", "tokenizer.chat_template"
SETTINGS = "gpt.tokenizer"
"""The settings that stand beside the tokenizer.json of an imported model in a run, as JSON."""


def permute_rope(config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Reorder Q and K rows: llama.cpp's Llama rotates dimensions 2i and 2i + 1, ours are D / 2 apart."""
    return _transpose_heads((2, config.head_dim // 2), tensors)


def unpermute_rope(config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `permute_rope`."""
    return _transpose_heads((config.head_dim // 2, 2), tensors)


def _transpose_heads(shape: tuple[int, int], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Transpose the rows of each head of Q and K, viewed as a matrix of `shape`."""
    return {
        key: tensor.unflatten(0, (-1, *shape)).transpose(1, 2).flatten(0, 2) if _IS_ROTATED.search(key) else tensor
        for key, tensor in tensors.items()
    }


_COMMON = (
    name("embedding.tokens", "token_embd"),
    name("head", "output"),
    name("norm", "output_norm"),
    name("blocks.{}.norm1", "blk.{}.attn_norm"),
    name("blocks.{}.attention.out", "blk.{}.attn_output"),
    name("blocks.{}.norm2", "blk.{}.ffn_norm"),
    name("blocks.{}.mlp.down", "blk.{}.ffn_down"),
)
_ROTARY = (
    *_COMMON,
    name("blocks.{}.attention.qkv", *(f"blk.{{}}.attn_{x}" for x in "qkv"), rows=qkv_rows),
    name("blocks.{}.attention.q_norm", "blk.{}.attn_q_norm"),
    name("blocks.{}.attention.k_norm", "blk.{}.attn_k_norm"),
    name("blocks.{}.mlp.gate_up", "blk.{}.ffn_gate", "blk.{}.ffn_up", rows=gate_up_rows),
)
_GPT2 = (
    *_COMMON,
    name("embedding.positions", "position_embd"),
    name("blocks.{}.attention.qkv", "blk.{}.attn_qkv"),
    name("blocks.{}.mlp.up", "blk.{}.ffn_up"),
)
LAYOUTS = (
    replace(GPT2, requires={**GPT2.requires, "mlp": ("gelu",)}, names=_GPT2, transform=lambda config, tensors: tensors),
    replace(LLAMA, names=_ROTARY, transform=permute_rope, inverse=unpermute_rope),
    replace(QWEN3, requires={**QWEN3.requires, "rope_scaling": (None,), "window": (None,)}, names=_ROTARY),
)


def gguf_package() -> Any:
    """The package gguf. Raises RequestError if it is not installed."""
    return require_package("gguf", "a GGUF file needs", "gpt-cli[gguf]", RequestError)


def export_gguf(run: LoadedRun, file: Path, dtype: GGUFType = "f32") -> Layout:
    """Write the model of `run` to the new `file`, and return its architecture.

    Matrices are rounded to `dtype`, vectors and positions stay f32; a matrix whose rows are no multiple of 32 long is
    f16 instead of q8_0 and q4_0, and with q4_0 the embedding and the head, which suffer most, are q8_0.

    Raises RequestError, with the reason, for a model or a tokenizer that llama.cpp would not run exactly, and if the
    package gguf is missing; ExistsError if `file` exists.
    """
    gguf = gguf_package()
    layout = choose_layout(run.config.model, LAYOUTS)
    vocabulary, template = gguf_vocabulary(run.tokenizer), TurnTemplate.of(run.config.data)
    source = None if template is None else guarded_jinja(template, run.tokenizer)
    chat = chat_keys(vocabulary, run.tokenizer, template, source)
    if file.exists():
        raise ExistsError(f"{file} exists already", hint="export to another file, or move that one away")
    config, _ = layout.rewrite(run.config.model, named_tensors(run.model.state_dict()))
    tensors = layout.tensors(run.config.model, named_tensors(run.model.state_dict()))
    if config.rope_scaling is not None:  # llama.cpp divides the angles by rope_freqs
        unscaled = rotary_frequencies(config.model_copy(update={"rope_scaling": None}))
        tensors["rope_freqs.weight"] = unscaled / rotary_frequencies(config)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".tmp-") as folder:
        path = Path(folder) / "model.gguf"
        writer = gguf.GGUFWriter(path, layout.model_type)
        for key, value in model_keys(config, layout, len(vocabulary.tokens)).items():
            (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(key, value)
        for key, value in (vocabulary.keys() | chat).items():
            writers = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, list: writer.add_array}
            writers[type(value)](key, value)
        writer.add_string(TOKENIZER_JSON, tokenizer_json(run.tokenizer))  # for `gpt import`
        if isinstance(run.tokenizer, ForeignTokenizer):
            writer.add_string(SETTINGS, run.tokenizer.settings_json)
        writer.add_file_type(getattr(gguf.LlamaFileType, _FILE_TYPES[dtype]))
        for key, tensor in tensors.items():
            tensor_type = getattr(gguf.GGMLQuantizationType, _tensor_type(key, tensor, dtype))
            rows = gguf.quants.quantize(tensor.contiguous().numpy(), tensor_type)
            if key in _TABLES and len(vocabulary.tokens) > len(tensor):
                # The row of the added end of text: the mean of what is written, so that it is the same after an import.
                mean = torch.from_numpy(gguf.quants.dequantize(rows, tensor_type)).mean(0, keepdim=True)
                rows = np.concatenate([rows, gguf.quants.quantize(mean.numpy(), tensor_type)])
            writer.add_tensor(key, rows, raw_dtype=tensor_type)
        with translate_os_errors("write", file):  # not the temporary file, of which the user knows nothing
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
        replace_file(file, path.read_bytes())
    return layout


_FILE_TYPES = {
    **{"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16"},
    **{"q8_0": "MOSTLY_Q8_0", "q4_0": "MOSTLY_Q4_0"},
}


def _tensor_type(key: str, tensor: Tensor, dtype: GGUFType) -> str:
    if tensor.dim() < 2 or key.startswith("position"):
        return "F32"
    if dtype in ("q8_0", "q4_0") and tensor.shape[1] % 32:
        return "F16"
    return "Q8_0" if dtype == "q4_0" and key in _TABLES else dtype.upper()


def model_keys(config: ModelConfig, layout: Layout, vocab_size: int) -> dict[str, int | float]:
    """Metadata of the model, by key."""
    sizes: dict[str, int | float] = {
        "context_length": config.context_length,
        "embedding_length": config.n_embd,
        "block_count": config.n_layer,
        "feed_forward_length": config.mlp_hidden,
        "attention.head_count": config.n_head,
        "attention.head_count_kv": config.kv_heads,
        "vocab_size": vocab_size,
    }
    if layout.model_type == "gpt2":
        sizes["attention.layer_norm_epsilon"] = config.norm_eps
    else:
        sizes |= {
            "attention.layer_norm_rms_epsilon": config.norm_eps,
            "rope.freq_base": config.rope_theta,
            "rope.dimension_count": config.head_dim,
            "attention.key_length": config.head_dim,
            "attention.value_length": config.head_dim,
        }
    return {f"{layout.model_type}.{key}": value for key, value in sizes.items()}


def chat_keys(
    vocabulary: GGUFVocabulary, tokenizer: Tokenizer, template: TurnTemplate | None, source: str | None
) -> dict[str, Any]:
    """Metadata of a model of chats, by key: the `source` of its chat template, and the end of an answer.

    That of a `template` which the run has learned, if it is one token, else that of an imported tokenizer.
    """
    if template is None:
        own = tokenizer.chat_template if isinstance(tokenizer, ForeignTokenizer) else None
        return {} if own is None else {CHAT_TEMPLATE: own}
    end = tokenizer.encode(template.completion_end).tolist()
    return {CHAT_TEMPLATE: source, **({further_end_key(vocabulary): end[0]} if len(end) == 1 else {})}
