"""Import a Hugging Face model, losslessly.

Only config.json, the safetensors and the tokenizer's files are read, as data: no code of the model runs.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from gpt_cli.config import Config, DataConfig, ModelConfig, TaskConfig, TokenizerConfig
from gpt_cli.corpus.turn_template import TurnTemplate
from gpt_cli.errors import Notify, RequestError, UserError, first_line
from gpt_cli.export.class_layouts import as_class_model, as_classifier, class_shapes, is_classifier, read_labels
from gpt_cli.export.hf_config import read_model
from gpt_cli.export.layout import Layout
from gpt_cli.export.names import from_foreign, named_tensors
from gpt_cli.export.vocabulary import read_tokenizer
from gpt_cli.files import read_file, verify_files
from gpt_cli.files.kinds import refuse_unless
from gpt_cli.model.sizing import build_on_meta
from gpt_cli.run.directory import create_imported_run
from gpt_cli.run.tensors import unpack_tensors
from gpt_cli.sampling.chat_template import compile_template
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.tokenizer import ForeignTokenizer, Tokenizer
from gpt_cli.tokenizer.hf_directory import FILES as TOKENIZER_FILES
from gpt_cli.tokenizer.hf_directory import chat_template
from gpt_cli.tokenizer.loader import SIBLINGS

MODEL, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
FILES = (CONFIG, "*.safetensors", INDEX, "tokenizer.json", "vocab.json", "merges.txt", *TOKENIZER_FILES)
_JSON_LIMIT = 16 << 20
_MAX_LISTED = 4  # end tokens
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.safetensors")
_BUFFERS = re.compile(r"(.*\.attn\.(masked_)?bias|.*rotary_emb\.inv_freq)")  # constants that old files keep, too
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class ForeignModel:
    """A model of Transformers, with our config and tensors."""

    layout: Layout
    config: ModelConfig
    tokenizer: Tokenizer
    tensors: dict[str, Tensor]
    task: TaskConfig | None = None
    template: TurnTemplate | None = None

    def save(self, run_dir: Path, source: str, note: Notify) -> None:
        """Make it a new run in `run_dir`, and `note` what its tokenizer does. Raises RequestError if that exists."""
        tokenizer = self.tokenizer
        if isinstance(tokenizer, ForeignTokenizer):
            tokenizer = _with_valid_template(tokenizer, note)
            note(_describe(tokenizer))
        create_imported(run_dir, self.config, tokenizer, self.tensors, source, self.layout, self.task, self.template)


def import_huggingface(source: str, run_dir: Path, *, download: bool = False, note: Notify = lambda _: None) -> Layout:
    """Make the model in the directory `source`, or of that name on the hub, a new run in `run_dir`.

    A name is looked up in the hub's cache on this machine; only with `download` is the network used. `note` gets what
    the tokenizer takes over. Raises RequestError if `source` is missing or `run_dir` exists, and UserError, with the
    location, for a model that `gpt` cannot represent exactly, or a damaged one.
    """
    model = read_huggingface(find_model(source, download))
    model.save(run_dir, source, note)
    return model.layout


def read_huggingface(directory: Path) -> ForeignModel:
    """The model in `directory`. Raises UserError, with the location, unless it is intact and `gpt` represents it."""
    config_path = directory / CONFIG
    verify_files(directory, _files_read(directory))
    file = read_json(config_path)
    task = read_labels(file, str(config_path)) if is_classifier(file) else None
    layout, model = read_model(file, str(config_path))
    if task is not None:
        layout, model = as_classifier(layout), as_class_model(model)
    size = file.get("vocab_size")
    if type(size) is not int or size < 1:
        raise UserError(f"vocab_size is {size!r:.80}", where=str(config_path))
    tokenizer = read_tokenizer(directory, size)
    if size != tokenizer.vocab_size:
        raise UserError(
            f"vocab_size is {size:,}, but its tokenizer has {tokenizer.vocab_size:,} ids", where=str(config_path)
        )
    tensors = _convert(layout, model, tokenizer, _read_tensors(directory, model), str(directory), task)
    template = None
    if not isinstance(tokenizer, ForeignTokenizer) and (source := chat_template(directory)) is not None:
        template = TurnTemplate.from_jinja(source)
    return ForeignModel(layout, model, tokenizer, tensors, task, template)


def _with_valid_template(tokenizer: ForeignTokenizer, note: Notify) -> ForeignTokenizer:
    """`tokenizer`, without a chat template that is no valid one."""
    try:
        if tokenizer.chat_template is not None:
            compile_template(tokenizer.chat_template)
    except RequestError as error:
        note(f"{error.message}; the model is imported without it")
        return replace(tokenizer, chat_template=None)
    return tokenizer


def _describe(tokenizer: ForeignTokenizer) -> str:
    """One line: where prompts begin and texts end, and whether there is a chat template."""
    begin = " ".join(tokenizer.decode([token]) for token in tokenizer.begin_ids)
    ends = " or ".join(tokenizer.decode([token]) for token in tokenizer.ends[:_MAX_LISTED])
    ends += f" or {len(tokenizer.ends) - _MAX_LISTED:,} others" if len(tokenizer.ends) > _MAX_LISTED else ""
    parts = [
        f"tokenizer of {tokenizer.vocab_size:,} ids",
        f"prompts begin with {escape_control_chars(begin)}" if begin else "",
        f"text ends at {escape_control_chars(ends)}" if ends else "text ends at no token",
        "the chat template is taken over" if tokenizer.chat_template is not None else "",
    ]
    return "; ".join(part for part in parts if part)


def create_imported(
    run_dir: Path,
    model: ModelConfig,
    tokenizer: Tokenizer,
    tensors: dict[str, Tensor],
    source: str,
    layout: Layout,
    task: TaskConfig | None = None,
    template: TurnTemplate | None = None,
) -> None:
    """Write `tensors` as a new run in `run_dir`. Raises RequestError if it exists."""
    unknown = "error" if tokenizer.unk_id is None else "token"
    tokenizer_file = str(run_dir / "tokenizer.json")
    tokenizer_config = TokenizerConfig.model_validate(
        {"kind": tokenizer.kind, "file": tokenizer_file, "unknown": unknown}
    )
    data = DataConfig() if template is None else DataConfig.model_validate(asdict(template))
    config = Config(run_dir=str(run_dir), task=task or TaskConfig(), data=data, model=model, tokenizer=tokenizer_config)
    create_imported_run(config, tokenizer, tensors, f"{source} ({layout.architecture})")


def find_model(source: str, download: bool) -> Path:
    """The directory of the model `source`. Raises RequestError when there is none, UserError if the hub refuses."""
    refuse_unless(("foreign model", "text", None), source, "a model of another tool")
    if Path(source).is_dir():
        return Path(source)
    if Path(source).is_file():
        raise RequestError(f"{source} is a file, not the directory of a model")
    if Path(source).exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source) or source.startswith((".", "/")):
        raise RequestError(f"there is no directory {source}")
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - slow to import, and only for names

    try:
        return Path(snapshot_download(source, local_files_only=not download, allow_patterns=list(FILES)))
    except Exception as error:  # the library's errors have no base in common
        if not download:
            is_file = Path(source).suffix in (".safetensors", ".json", ".bin", ".pt")
            raise RequestError(
                f"there is no directory {source}, and no such model in the Hugging Face cache of this machine",
                hint="name the directory of a model" if is_file else f"--download gets {source} from the hub",
            ) from None
        reason = shorten(first_line(error), 300)
        raise RequestError(
            f"there is no directory {source}, and the Hugging Face hub does not give it: {reason}"
        ) from None


def _files_read(directory: Path) -> set[str]:
    """The names of the files that an import reads or would read if they were there, but for shards."""
    tokenizer = {"tokenizer.json"} if (directory / "tokenizer.json").is_file() else {"tokenizer.json", *SIBLINGS}
    return {CONFIG, MODEL, *tokenizer, *TOKENIZER_FILES} | (set() if (directory / MODEL).is_file() else {INDEX})


def read_json(path: Path) -> dict[str, Any]:
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
    """All tensors of the safetensors file or its shards, by name, converted to fp32 (lossless)."""
    tensors: dict[str, Tensor] = {}
    for path in _shards(directory):
        for name, tensor in read_floats(path).items():
            if name in tensors:
                raise UserError(f"tensor {name:.200} is there twice", where=str(path))
            tensors[name] = tensor
    if model.n_layer > len(tensors):  # before memory for that many is allocated
        raise UserError(f"{directory} has {len(tensors)} tensors, too few for {model.n_layer:,} layers")
    return tensors


def read_floats(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, converted to fp32 (lossless). Raises UserError for one that is not finite."""
    tensors = unpack_tensors(read_file(path), str(path))
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES and not _BUFFERS.fullmatch(name):
            raise UserError(f"tensor {name:.200} is {tensor.dtype}, not a float of 16 or 32 bits", where=str(path))
        if bad := int((~torch.isfinite(tensor)).sum()):
            raise UserError(
                f"tensor {name:.200} has {bad:,} of {tensor.numel():,} values that are not finite", where=str(path)
            )
    return {name: tensor.float() for name, tensor in tensors.items()}


def _shards(directory: Path) -> list[Path]:
    if (directory / MODEL).is_file():
        return [directory / MODEL]
    if not (directory / INDEX).is_file():
        raise UserError(
            f"{directory} has no {MODEL}",
            hint="a pytorch_model.bin can run code when it is read, so it is not: take a model in safetensors",
        )
    names = read_json(directory / INDEX).get("weight_map")
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
    verify_files(directory, files)
    return [directory / name for name in sorted(files)]


def _convert(
    layout: Layout,
    model: ModelConfig,
    tokenizer: Tokenizer,
    tensors: Mapping[str, Tensor],
    location: str,
    task: TaskConfig | None,
) -> dict[str, Tensor]:
    """The tensors of our model. Raises UserError for a tensor that is missing or unexpected."""
    shapes = build_on_meta(model, tokenizer.vocab_size).state_dict()
    if task is not None:
        shapes = class_shapes(model, task, tokenizer.vocab_size)
    expected = layout.tensors(model, named_tensors(shapes))
    prefix = "transformer."
    unprefixed = not any(name.startswith(prefix) for name in tensors)  # as in the published GPT-2
    named = {}
    for name, tensor in tensors.items():
        prefixed = prefix + name if unprefixed and prefix + name in expected else name
        if not _BUFFERS.fullmatch(name):
            named[prefixed] = tensor
    if model.tie_embeddings and (head := named.pop("lm_head.weight", None)) is not None:
        tokens = named.setdefault(next(name for name in _TOKENS if name in expected), head)  # stored as the head alone
        if not torch.equal(head, tokens):
            raise UserError(f"{location} says that its head is its embedding, and has another head")
    return convert_tensors(layout, model, shapes, named, location)


def convert_tensors(
    layout: Layout, model: ModelConfig, shapes: Mapping[str, Tensor], tensors: dict[str, Tensor], location: str
) -> dict[str, Tensor]:
    """Convert foreign `tensors` to our names. Raises UserError unless their names and shapes are those of `layout`.

    `shapes`: the tensors of our model, of which only names and shapes are used.
    """
    expected = layout.tensors(model, named_tensors(shapes))
    if missing := sorted(expected.keys() - tensors.keys()):
        raise UserError(f"tensor {missing[0]} is missing", where=location)
    if unexpected := sorted(tensors.keys() - expected.keys()):
        raise UserError(
            f"tensor {unexpected[0]:.200} has no place in a {layout.architecture} like this", where=location
        )
    for name, tensor in expected.items():
        if tensors[name].shape != tensor.shape:
            raise UserError(f"tensor {name} is {list(tensors[name].shape)}, not {list(tensor.shape)}", where=location)
    ours = from_foreign(layout.names, model, layout.restore(model, tensors))
    if "embedding.positions.weight" in ours:
        ours["embedding.positions"] = ours.pop("embedding.positions.weight")
    if model.tie_embeddings:
        ours["head.weight"] = ours["embedding.tokens.weight"]
    return {name: ours[name].contiguous() for name in shapes}


_TOKENS = ("transformer.wte.weight", "model.embed_tokens.weight")
