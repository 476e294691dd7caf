"""A single GGUF file for llama.cpp: the same model, and a vocabulary that gives the same ids.

llama.cpp knows one tokenizer that fits ours, GPT-2's byte-level BPE. Bytes are one without merges. A character is
one whose merges put its UTF-8 bytes together: no other merge can take a part of them, since UTF-8 says where a
character begins. What GGUF cannot say is that a vocabulary has no end of text (llama.cpp then takes id 11 for it), so
one without gets `<|endoftext|>` as a last id, of which the logit is the mean of all others: it is never the likeliest.
"""

import importlib
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from gpt_cli.config import ModelConfig
from gpt_cli.errors import RequestError
from gpt_cli.export.layout import Layout, choose_layout
from gpt_cli.export.layouts import GPT2, LLAMA, QWEN3
from gpt_cli.export.names import name, named_tensors
from gpt_cli.export.vocabulary import tokenizer_json
from gpt_cli.files import ExistsError, replace_file
from gpt_cli.literals import Pattern
from gpt_cli.model.parameters import gate_up_rows, qkv_rows
from gpt_cli.model.position import rotary_frequencies
from gpt_cli.run.load_model import LoadedRun
from gpt_cli.tokenizer import BPETokenizer, CharTokenizer, Tokenizer
from gpt_cli.tokenizer.bpe_vocabulary import BYTE_ENCODER, END_OF_TEXT, bytes_to_unicode
from gpt_cli.tokenizer.pretokenizer import pre_tokenizer

GGUFType = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]
ARCHITECTURE = "general.architecture"
_PATTERNS: dict[Pattern, str] = {"gpt2": "gpt-2", "gpt4": "llama-bpe"}  # its gpt-4o is another rule beyond ASCII
_LIKE_LLAMA3: tuple[Pattern, ...] = ("gpt4",)  # llama.cpp takes a word that is a token as it is
_NEVER = "ÿ ÿ"  # the merge of two bytes that UTF-8 does not have; a file without any merge is refused
_NORMAL, _CONTROL = 1, 3  # types of tokens
_IS_ROTATED = re.compile(r"\.attn_[qk]\.")
_TABLES = ("token_embd.weight", "output.weight")
TOKENIZER_JSON = "tokenizer.huggingface.json"


def permute_rope(config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """llama.cpp's Llama rotates dimension 2i with 2i + 1, where ours are D / 2 apart."""
    return _transpose_heads((2, config.head_dim // 2), tensors)


def unpermute_rope(config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `permute_rope`."""
    return _transpose_heads((config.head_dim // 2, 2), tensors)


def _transpose_heads(shape: tuple[int, int], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Queries and keys with the rows of each head, seen as a matrix of `shape`, transposed."""
    return {
        key: one.unflatten(0, (-1, *shape)).transpose(1, 2).flatten(0, 2) if _IS_ROTATED.search(key) else one
        for key, one in tensors.items()
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


@dataclass(frozen=True)
class GGUFVocabulary:
    """The tokens in GPT-2's spelling by id, which are special, the merges, the split pattern, the end of text."""

    tokens: list[str]
    special: frozenset[int]
    merges: list[str]
    pattern: str
    end_of_text: int

    def keys(self) -> dict[str, Any]:
        """Its metadata, by key."""
        kinds = [_CONTROL if i in self.special else _NORMAL for i in range(len(self.tokens))]
        told = {
            "model": "gpt2",
            "pre": self.pattern,
            "tokens": self.tokens,
            "token_type": kinds,
            "merges": self.merges,
            "bos_token_id": self.end_of_text,
            "eos_token_id": self.end_of_text,
            "add_bos_token": False,
        }
        return {f"tokenizer.ggml.{key}": value for key, value in told.items()}


def gguf_package() -> Any:
    """The package gguf. Raises RequestError where it is missing."""
    try:
        return importlib.import_module("gguf")
    except ImportError as error:
        raise RequestError("a GGUF file needs the package gguf", hint="pip install 'gpt-cli[gguf]'") from error


def export_gguf(run: LoadedRun, file: Path, dtype: GGUFType = "f32") -> Layout:
    """Write the model of `run` to the new `file`, and return its architecture.

    Matrices are rounded to `dtype`, vectors and positions stay f32; a matrix whose rows are no multiple of 32 long is
    f16 instead of q8_0 and q4_0, and with q4_0 the embedding and the head, which suffer most, are q8_0.

    Raises RequestError, with the reason, for a model or a tokenizer that llama.cpp would not run as it is, and where
    the package gguf is missing, ExistsError when `file` is there.
    """
    gguf = gguf_package()
    layout = choose_layout(run.config.model, LAYOUTS)
    vocabulary = gguf_vocabulary(run.tokenizer)
    if file.exists():
        raise ExistsError(f"{file} exists already", hint="export to another file, or move that one away")
    config, _ = layout.rewrite(run.config.model, named_tensors(run.model.state_dict()))
    tensors = layout.tensors(run.config.model, named_tensors(run.model.state_dict()))
    if config.rope_scaling is not None:  # what llama.cpp divides the angles by
        plain = rotary_frequencies(config.model_copy(update={"rope_scaling": None}))
        tensors["rope_freqs.weight"] = plain / rotary_frequencies(config)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        writer = gguf.GGUFWriter(path, layout.model_type)
        for key, value in model_keys(config, layout, len(vocabulary.tokens)).items():
            (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(key, value)
        for key, value in vocabulary.keys().items():
            add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, list: writer.add_array}
            add[type(value)](key, value)
        writer.add_string(TOKENIZER_JSON, tokenizer_json(run.tokenizer))  # which `gpt import` reads
        writer.add_file_type(getattr(gguf.LlamaFileType, _FILE_TYPES[dtype]))
        for key, tensor in tensors.items():
            if key in _TABLES and len(vocabulary.tokens) > len(tensor):
                tensor = torch.cat([tensor, tensor.mean(0, keepdim=True)])  # the end of text that there was not
            kind = getattr(gguf.GGMLQuantizationType, _kind(key, tensor, dtype))
            writer.add_tensor(key, gguf.quants.quantize(tensor.contiguous().numpy(), kind), raw_dtype=kind)
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


def _kind(key: str, tensor: Tensor, dtype: GGUFType) -> str:
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


def gguf_vocabulary(tokenizer: Tokenizer) -> GGUFVocabulary:
    """The tokenizer in llama.cpp's words. Raises RequestError, with the reason, for one that has no such words."""
    special: frozenset[int] = frozenset()
    pattern: Pattern = "gpt2"
    if isinstance(tokenizer, BPETokenizer):
        own = tokenizer.vocabulary
        special, pattern = own.special, own.pattern
        if pattern not in _PATTERNS:
            raise RequestError(
                f"llama.cpp does not split text as the pattern {pattern} does",
                hint="train with tokenizer.pattern=gpt2 or gpt4, or export it for Transformers: --to hf",
            )
        _require_same_words(tokenizer)
        tokens = [t.decode() if i in special else bytes_to_unicode(t) for i, t in enumerate(own.tokens)]
        merges = [f"{tokens[left]} {tokens[right]}" for left, right, _ in own.merges]
    elif isinstance(tokenizer, CharTokenizer):
        if tokenizer.unk_id is not None:
            raise RequestError(
                "llama.cpp has no <unk>: it leaves out the characters that a vocabulary lacks",
                hint="train with tokenizer.unknown=error, or with tokenizer.kind=byte or bpe, which lack nothing",
            )
        tokens = [bytes_to_unicode(character.encode()) for character in tokenizer.characters]
        merges = [f"{t[:i]} {t[i]}" for t in tokens for i in range(1, len(t))]
    else:
        tokens, merges = list(BYTE_ENCODER), []
    end = tokenizer.eot_id
    if end is None:
        end = len(tokens)
        tokens, special = [*tokens, END_OF_TEXT], special | {end}
    return GGUFVocabulary(tokens, special, list(dict.fromkeys([*merges, _NEVER])), _PATTERNS[pattern], end)


def _require_same_words(tokenizer: BPETokenizer) -> None:
    """Raise RequestError where llama.cpp's way with words that are tokens as a whole would give other ids."""
    own = tokenizer.vocabulary
    takes_whole = own.pattern in _LIKE_LLAMA3
    if takes_whole == own.ignore_merges:
        return
    split = pre_tokenizer(own.pattern)
    for i, token in enumerate(own.tokens):
        text = token.decode(errors="ignore")
        if i in own.special or text.encode() != token or len(split.pre_tokenize_str(text)) > 1:
            continue  # no word
        if tokenizer.encode(text).tolist() != [i] or own.ignore_merges:
            raise RequestError(
                f"llama.cpp would encode {text!r} in another way than this tokenizer",
                hint="export it for Transformers: --to hf",
            )
