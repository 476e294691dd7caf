"""A model of Hugging Face's as a run of ours: data only, read strictly, converted without the loss of a bit.

Of the directory are read config.json, the safetensors and the tokenizer's files; nothing in it is run.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from gpt_cli.config import Config, ModelConfig, TaskConfig, TokenizerConfig
from gpt_cli.errors import RequestError, UserError
from gpt_cli.export.class_layouts import as_class_model, as_classifier, class_shapes, is_classifier, read_labels
from gpt_cli.export.hf_config import read_model
from gpt_cli.export.layout import Layout
from gpt_cli.export.names import from_foreign, named_tensors
from gpt_cli.export.vocabulary import read_tokenizer
from gpt_cli.files import read_file
from gpt_cli.model.sizing import build_on_meta
from gpt_cli.run.directory import create_imported_run, is_run
from gpt_cli.run.tensors import unpack_tensors
from gpt_cli.tokenizer import Tokenizer

MODEL, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
FILES = (CONFIG, "*.safetensors", INDEX, "tokenizer.json", "vocab.json", "merges.txt")
_JSON_LIMIT = 16 << 20
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.safetensors")
_BUFFERS = re.compile(r"(.*\.attn\.(masked_)?bias|.*rotary_emb\.inv_freq)")  # constants that old files keep, too
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def import_huggingface(source: str, run_dir: Path, *, download: bool = False) -> Layout:
    """Make the model in the directory `source`, or of that name on the hub, a new run in `run_dir`.

    A name is looked up in the hub's cache on this machine; only with `download` is the network used. Raises
    RequestError for a source that is not there or a `run_dir` that is taken, and UserError, with the place, for a
    model that is not exactly one of ours, or a damaged one.
    """
    directory = find_model(source, download)
    place = directory / CONFIG
    if not place.exists() and is_run(str(directory)):
        hint = f"it needs no import: gpt sample --run {quote(str(directory))}"
        raise RequestError(f"{directory} is a run of gpt, and no model of other tools", hint=hint)
    file = _read_json(place)
    task = read_labels(file, str(place)) if is_classifier(file) else None
    layout, model = read_model(file, str(place))
    if task is not None:
        layout, model = as_classifier(layout), as_class_model(model)
    tokenizer = read_tokenizer(directory)
    if (size := file.get("vocab_size")) != tokenizer.vocab_size:
        raise UserError(
            f"vocab_size is {size!r}, but its tokenizer has {tokenizer.vocab_size:,} ids",
            where=str(place),
            hint="rows without a token cannot be kept: a model of ours has as many as its tokenizer has ids",
        )
    tensors = _convert(layout, model, tokenizer, _read_tensors(directory, model), str(directory), task)
    create_imported(run_dir, model, tokenizer, tensors, source, layout, task)
    return layout


def create_imported(
    run_dir: Path,
    model: ModelConfig,
    tokenizer: Tokenizer,
    tensors: dict[str, Tensor],
    source: str,
    layout: Layout,
    task: TaskConfig | None = None,
) -> None:
    """Make `tensors` a new run in `run_dir`. Raises RequestError where it is taken."""
    unknown = "error" if tokenizer.unk_id is None else "token"
    own = str(run_dir / "tokenizer.json")
    kind = TokenizerConfig.model_validate({"kind": tokenizer.kind, "file": own, "unknown": unknown})
    config = Config(run_dir=str(run_dir), task=task or TaskConfig(), model=model, tokenizer=kind)
    create_imported_run(config, tokenizer, tensors, f"{source} ({layout.architecture})")


def find_model(source: str, download: bool) -> Path:
    """The directory of the model `source`. Raises RequestError when there is none, UserError if the hub refuses."""
    if Path(source).is_dir():
        return Path(source)
    if Path(source).exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source) or source.startswith((".", "/")):
        raise RequestError(f"there is no directory {source}")
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - slow to import, and only for names

    try:
        return Path(snapshot_download(source, local_files_only=not download, allow_patterns=list(FILES)))
    except Exception as error:  # the library's errors have no base in common
        if not download:
            raise RequestError(
                f"there is no directory {source}, and no such model in the Hugging Face cache of this machine",
                hint=f"--download gets {source} from the hub",
            ) from None
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RequestError(
            f"there is no directory {source}, and the Hugging Face hub does not give it: {shorten(reason, 300)}"
        ) from None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"{path.parent} holds no model: {path.name} is missing")
    try:
        file = json.loads(read_file(path, _JSON_LIMIT))
    except (ValueError, RecursionError) as error:
        raise UserError(f"it is not JSON: {shorten(str(error), 100)}", where=str(path)) from None
    if not isinstance(file, dict):
        raise UserError("it is not a JSON object", where=str(path))
    return file


def _read_tensors(directory: Path, model: ModelConfig) -> dict[str, Tensor]:
    """All tensors of the one file or the several that the index names, by name, in fp32 (which loses nothing)."""
    tensors: dict[str, Tensor] = {}
    for path in _shards(directory):
        for name, tensor in unpack_tensors(read_file(path), str(path)).items():
            if name in tensors:
                raise UserError(f"tensor {name:.200} is there twice", where=str(path))
            if tensor.dtype not in _DTYPES and not _BUFFERS.fullmatch(name):
                raise UserError(f"tensor {name:.200} is {tensor.dtype}, not a float of 16 or 32 bits", where=str(path))
            if bad := int((~torch.isfinite(tensor)).sum()):
                raise UserError(
                    f"tensor {name:.200} has {bad:,} of {tensor.numel():,} values that are not finite", where=str(path)
                )
            tensors[name] = tensor.float()
    if model.n_layer > len(tensors):  # before anything as large as the config says is made
        raise UserError(f"{directory} has {len(tensors)} tensors, too few for {model.n_layer:,} layers")
    return tensors


def _shards(directory: Path) -> list[Path]:
    if (directory / MODEL).is_file():
        return [directory / MODEL]
    if not (directory / INDEX).is_file():
        raise UserError(
            f"{directory} has no {MODEL}",
            hint="a pytorch_model.bin can run code when it is read, so it is not: take a model in safetensors",
        )
    names = _read_json(directory / INDEX).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise UserError("it has no weight_map", where=str(directory / INDEX))
    files = {name for name in names.values() if isinstance(name, str) and _SHARD.fullmatch(name)}
    if len(files) < len(set(map(str, names.values()))):
        raise UserError(
            "its weight_map names something that is no file of this directory", where=str(directory / INDEX)
        )
    for name in sorted(files):
        if not (directory / name).is_file():
            raise UserError(f"{name} is missing", where=str(directory / INDEX))
    return [directory / name for name in sorted(files)]


def _convert(
    layout: Layout,
    model: ModelConfig,
    tokenizer: Tokenizer,
    tensors: Mapping[str, Tensor],
    place: str,
    task: TaskConfig | None,
) -> dict[str, Tensor]:
    """Our tensors out of theirs. Raises UserError unless there are exactly those that the model has."""
    shapes = build_on_meta(model, tokenizer.vocab_size).state_dict()
    if task is not None:
        shapes = class_shapes(model, task, tokenizer.vocab_size)
    expected = layout.tensors(model, named_tensors(shapes))
    prefix = "transformer."
    bare = not any(name.startswith(prefix) for name in tensors)  # as GPT-2 was published
    found = {}
    for name, tensor in tensors.items():
        full = prefix + name if bare and prefix + name in expected else name
        if not _BUFFERS.fullmatch(name):
            found[full] = tensor
    if model.tie_embeddings and (head := found.pop("lm_head.weight", None)) is not None:
        tokens = next((found[name] for name in _TOKENS if name in found), None)
        if tokens is None or not torch.equal(head, tokens):
            raise UserError(f"{place} says that its head is its embedding, and has another head")
    return own_tensors(layout, model, shapes, found, place)


def own_tensors(
    layout: Layout, model: ModelConfig, shapes: Mapping[str, Tensor], found: dict[str, Tensor], place: str
) -> dict[str, Tensor]:
    """The tensors of our names and `shapes` out of those `found`. Raises UserError unless these are exactly theirs."""
    expected = layout.tensors(model, named_tensors(shapes))
    if missing := sorted(expected.keys() - found.keys()):
        raise UserError(f"tensor {missing[0]} is missing", where=place)
    if foreign := sorted(found.keys() - expected.keys()):
        raise UserError(f"tensor {foreign[0]:.200} has no place in a {layout.architecture} like this", where=place)
    for name, tensor in expected.items():
        if found[name].shape != tensor.shape:
            raise UserError(f"tensor {name} is {list(found[name].shape)}, not {list(tensor.shape)}", where=place)
    ours = from_foreign(layout.names, model, layout.restore(model, found))
    if "embedding.positions.weight" in ours:
        ours["embedding.positions"] = ours.pop("embedding.positions.weight")
    if model.tie_embeddings:
        ours["head.weight"] = ours["embedding.tokens.weight"]
    return {name: ours[name].contiguous() for name in shapes}


_TOKENS = ("transformer.wte.weight", "model.embed_tokens.weight")
