"""LoRA adapters in the format of PEFT: written from a run, and merged over a base model into a new run.

In both directions the layout of the base converts weights: adapted ones stand where its own would, so that whatever a
layout does to a matrix is done to its adapter, too.

Shapes: O outputs, I inputs, R rank; W (O, I) is adapted by scale * B A, with A (R, I) and B (O, R).
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from gpt_cli.config import Config, ModelConfig, TaskConfig
from gpt_cli.corpus.turn_template import TurnTemplate
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.export.architectures import LAYOUTS, transpose_conv1d
from gpt_cli.export.class_layouts import choose_class_layout, class_shapes
from gpt_cli.export.huggingface import DTYPES, DType
from gpt_cli.export.import_hf import (
    ForeignModel,
    convert_tensors,
    find_model,
    read_floats,
    read_huggingface,
    read_json,
)
from gpt_cli.export.layout import Layout, choose_layout
from gpt_cli.export.names import Tensors, named_tensors
from gpt_cli.export.numbers import Range
from gpt_cli.files import commit_files, verify_files
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.model.sequence_classifier import HEAD
from gpt_cli.model.sizing import build_on_meta
from gpt_cli.run.checkpoint import Checkpoint
from gpt_cli.run.find_run import find_run, is_run
from gpt_cli.run.load_model import build_verified
from gpt_cli.run.open_checkpoint import open_checkpoint
from gpt_cli.run.tensors import check_tensors
from gpt_cli.training.init_from import open_base

CONFIG, FACTORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_SCORE = "score"  # the head of a classifier
_SCORE_KEY = f"{_PREFIX}{_SCORE}.weight"
_TASKS = {"language": "CAUSAL_LM", "classes": "SEQ_CLS"}
_FACTOR = re.compile(re.escape(_PREFIX) + r"(.+)\.lora_([AB])\.weight")
_COPY = re.compile(re.escape(_PREFIX) + r"|\.base_layer(?=\.weight$)")  # embeddings are stored beside an adapted head

# Keys about training and storage, and those by which modules were chosen: the tensors show which.
_NEUTRAL = {
    "auto_mapping", "base_model_name_or_path", "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode",
    "layers_pattern", "layers_to_transform", "lora_dropout", "megatron_core", "peft_version", "qalora_group_size",
    "runtime_config", "target_modules",
}  # fmt: skip
_READ = {"alpha_pattern", "lora_alpha", "modules_to_save", "r", "rank_pattern", "revision", "task_type"}
_FIXED: dict[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),  # others change the base, too
    "peft_type": ("LORA",),
    "use_rslora": (False, True),
}
_OFF: tuple[Any, ...] = (None, False, [], {})
_RANK, _ALPHA = Range(1, 1 << 20, True), Range(0.0, 1e9)
_PATTERN = re.compile(r"[\w.^$\\|\[\]*+?-]{1,1000}")  # without groups and with few repeats, it is matched in no time
_MAX_REPEATS = 3


def export_peft(checkpoint: Checkpoint, directory: Path, dtype: DType, note: Notify) -> Layout:
    """Write the adapter that `checkpoint` has learned to the new `directory`, and return the layout of its base.

    Raises RequestError for a model without an adapter, or without a layout.
    """
    config, lora = checkpoint.config, checkpoint.config.lora
    is_classifier = config.task.kind == "classes"
    state = _learned_state(checkpoint)
    assert lora.rank is not None
    layout, model = _layout_of(config)
    merged = named_tensors(build_verified(checkpoint).state_dict())
    weights = {name: state[f"base/{name}"] for name in merged if name.endswith(lora.suffixes)}
    factors = _to_theirs(layout, model, merged, weights, state, lora.alpha / lora.rank)
    modules = {module for module, _ in factors}
    tensors = {f"{_PREFIX}{module}.lora_{kind}.weight": factor for (module, kind), factor in factors.items()}
    if is_classifier:
        tensors[_SCORE_KEY] = merged[HEAD]
    if (base := _base_name(checkpoint, weights)) is None:
        note(f"{CONFIG} names no base: train.init_from, {config.train.init_from}, has other weights or is gone")
    description = {
        "peft_type": "LORA",
        "task_type": _TASKS[config.task.kind],
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha.is_integer() else lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": layout.transform is transpose_conv1d,
        "target_modules": _targets(modules, layout.tensors(model, merged)),
        "modules_to_save": [_SCORE] if is_classifier else None,
    }
    # Copied, since several matrices may share an A, which safetensors refuses.
    stored = {name: tensor.detach().to(DTYPES[dtype], copy=True).contiguous() for name, tensor in tensors.items()}
    contents = {
        CONFIG: json.dumps(description, indent=2, allow_nan=False).encode() + b"\n",
        FACTORS: safetensors.torch.save(stored, {"format": "pt"}),
    }
    commit_files(directory, contents)
    return layout


def _learned_state(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The optimizer's `base/NAME`, `lora/NAME/a` and `lora/NAME/b`. Raises RequestError for a run without these."""
    lora, path = checkpoint.config.lora, checkpoint.path
    whole = f"export the whole model: gpt export {quote(str(path))} --to hf DIR"
    if lora.rank is None:
        raise RequestError(f"{path} was not trained with lora.rank: it has no adapter", hint=whole)
    if checkpoint.config.optim.ema is not None:
        raise RequestError(f"with optim.ema the weights are an average, of a rank above {lora.rank}", hint=whole)
    expected: dict[str, tuple[torch.Size, torch.dtype]] = {}
    for name, weight in checkpoint.model_tensors.items():
        if name.endswith(lora.suffixes):
            shapes = {f"base/{name}": weight.shape, f"lora/{name}/a": torch.Size([lora.rank, weight.shape[-1]])}
            shapes[f"lora/{name}/b"] = torch.Size([len(weight), lora.rank])
            expected |= {key: (shape, weight.dtype) for key, shape in shapes.items()}
    state = checkpoint.optimizer_tensors()
    if not expected.keys() <= state.keys():
        raise RequestError(f"{path} no longer has its optimizer state, which held the adapter", hint=whole)
    learned = {key: state[key] for key in expected}
    check_tensors(learned, expected)
    return learned


def _layout_of(config: Config) -> tuple[Layout, ModelConfig]:
    """The layout of the model of `config`, and the model config for it. Raises RequestError if there is none."""
    if config.task.kind == "classes":
        return choose_class_layout(config)
    return choose_layout(config.model, LAYOUTS), config.model


def _oriented(layout: Layout, key: str, matrix: Tensor) -> Tensor:
    """A matrix (O, I) as the layout stores its tensor `key`, or the reverse."""
    return layout.transform(ModelConfig(), {key: matrix})[key] if layout.transform is transpose_conv1d else matrix


def _to_theirs(
    layout: Layout, model: ModelConfig, merged: Tensors, weights: Tensors, state: Tensors, scale: float
) -> dict[tuple[str, str], Tensor]:
    """The factors by (their module, A or B), of matrices that were `weights` and are in `merged`.

    A layout only rearranges rows, which B shares, or transposes. That is checked: raises RequestError, with the name of
    the matrix, if it does anything else.
    """
    before, after = layout.tensors(model, {**merged, **weights}), layout.tensors(model, merged)
    theirs = layout.tensors(model, {**merged, **{name: state[f"lora/{name}/b"] for name in weights}})
    pairs = [pair for entry in layout.names for pair in entry.pairs(model)]
    factors: dict[tuple[str, str], Tensor] = {}
    for key, ours in ((key, ours) for ours, keys in pairs if ours in weights for key in keys):
        a, b = state[f"lora/{ours}/a"], _oriented(layout, key, theirs[key])
        actual, change = after[key] - before[key], _oriented(layout, key, scale * (b @ a))
        # The device of the training may have multiplied with fewer bits.
        rounding = 0.01 * float(actual.abs().max()) + 1e-6 * float(after[key].abs().max())
        if float((actual - change).abs().max()) > rounding:
            raise RequestError(f"{ours} is not its base and its adapter in a {layout.architecture}: it is not exported")
        module = key.removesuffix(".weight")
        factors |= {(module, "A"): a, (module, "B"): b}
    return factors


def _targets(modules: set[str], tensors: Tensors) -> list[str]:
    """The ends of the names of `modules`: the last part, and the one before it where another module ends alike."""
    others = {name.split(".")[-2] for name in tensors if name.rpartition(".")[0] not in modules}
    parts = [module.split(".") for module in modules]
    return sorted({last if last not in others else f"{above}.{last}" for *_, above, last in parts})


def _base_name(checkpoint: Checkpoint, weights: Tensors) -> str | None:
    """The run at `train.init_from` if it has these `weights`, by the name of the model that it was imported from."""
    init_from = checkpoint.config.train.init_from
    if init_from is None:
        return None
    try:
        _, base = open_base(Path(init_from), lambda _: None)
    except UserError:
        return None
    there = base.model_tensors
    if not all(name in there and torch.equal(there[name], weight) for name, weight in weights.items()):
        return None
    imported = str(base.state.get("source", "")).rpartition(" (")[0]
    is_hub_name = re.fullmatch(r"[\w.-]+/[\w.-]+", imported) and not imported.endswith(".gguf")
    return imported if is_hub_name or (Path(imported) / "config.json").is_file() else init_from


def import_peft(
    source: str, run_dir: Path, base: str | None = None, *, download: bool = False, note: Notify = lambda _: None
) -> Layout:
    """Make the adapter in the directory `source`, merged over its base, a new run in `run_dir`.

    `base` is a run, a checkpoint or a model of Transformers; None: the one that the adapter names. Raises RequestError
    if something is missing or `run_dir` exists, UserError for an adapter that is no plain LoRA, or a damaged one.
    """
    directory = Path(source)
    verify_files(directory, {CONFIG, FACTORS})
    file = read_json(directory / CONFIG)
    location = str(directory / CONFIG)
    _check_config(file, location)
    if base is None and file.get("revision") not in (None, "main"):
        raise UserError(f"revision is {file['revision']!r:.80}", where=location, hint="name that base: --base PATH")
    path = _find_base(file.get("base_model_name_or_path"), directory, base, download)
    model = _open_run(path, note) if is_run(str(path)) else read_huggingface(path)
    kind = "language" if model.task is None else "classes"
    if file.get("task_type") not in (None, _TASKS[kind]):
        raise UserError(f"task_type is {file['task_type']!r:.80}, and {path} is {_TASKS[kind]}", where=location)
    heads = {_SCORE, "classifier"} if kind == "classes" else set()
    saved = file.get("modules_to_save") or []
    if not isinstance(saved, list) or not all(isinstance(name, str) and name in heads for name in saved):
        raise UserError(f"modules_to_save is {saved!r:.80}, and only the head of a classifier may be", where=location)
    weights = model.layout.tensors(model.config, named_tensors(model.tensors))
    merged = _merge(model.layout, weights, file, directory, has_head=_SCORE in saved)
    config, _ = model.layout.rewrite(model.config, named_tensors(model.tensors))
    size = model.tokenizer.vocab_size
    shapes = build_on_meta(config, size).state_dict() if model.task is None else class_shapes(config, model.task, size)
    tensors = convert_tensors(model.layout, config, shapes, merged, str(path))
    replace(model, config=config, tensors=tensors).save(run_dir, f"{source} over {path}", note)
    return model.layout


def _check_config(file: Mapping[str, Any], location: str) -> None:
    """Raise UserError, naming the key, unless the adapter is a plain LoRA."""
    for key, value in {"peft_type": None, **file}.items():
        if key in _FIXED:
            if value not in _FIXED[key]:
                raise UserError(f"{key} is {value!r:.80}, and {_FIXED[key][0]!r} in what is read here", where=location)
        elif value not in _OFF and key not in _NEUTRAL | _READ:
            raise UserError(f"{key} is {value!r:.80}, which is no plain LoRA", where=location)
    for key, pattern_key, allowed in (("r", "rank_pattern", _RANK), ("lora_alpha", "alpha_pattern", _ALPHA)):
        patterns = file.get(pattern_key) or {}
        if not isinstance(patterns, dict):
            raise UserError(f"{pattern_key} is {patterns!r:.80}", where=location)
        for name, value in {key: file.get(key), **{f"{pattern_key}.{one}": x for one, x in patterns.items()}}.items():
            if not allowed.allows(value):
                raise UserError(f"{name:.80} must be {allowed}, not {value!r:.60}", where=location)
        if complex_ := [pattern for pattern in patterns if not _is_simple(pattern)]:
            raise UserError(f"{pattern_key} has {complex_[0]!r:.80}, which is not read here", where=location)


def _is_simple(pattern: str) -> bool:
    """True for a regular expression that any name is matched against quickly."""
    try:
        re.compile(pattern if _PATTERN.fullmatch(pattern) else "(")
    except re.error:
        return False
    return sum(map(pattern.count, "*+?")) <= _MAX_REPEATS


def _of_module(patterns: Mapping[str, Any] | None, module: str, default: Any) -> Any:
    """The value of the first pattern that the end of a module's name matches, as PEFT matches it."""
    matching = (value for key, value in (patterns or {}).items() if re.match(rf"(.*\.)?({key})$", module))
    return next(matching, default)


def _find_base(named: Any, directory: Path, base: str | None, download: bool) -> Path:
    """The directory of the base. Raises RequestError if it is not there."""
    name = base or named
    if not isinstance(name, str) or not name:
        raise RequestError(f"{directory} names no base model", hint="name it: --base PATH")
    places = [Path(name)] if base else [Path(name), directory / name]
    found = next((place for place in places if os.path.isdir(place)), None)
    if found is not None:
        return found
    try:
        with translate_os_errors("read", Path(name)):
            return find_model(name, download)
    except UserError as error:
        if base is None:
            error.message = f"the base of {directory}: {error.message}"
            further = f" ({error.hint})" if error.hint is not None and not download else ""
            error.hint = f"name it: --base PATH{further}"
        raise


def _open_run(path: Path, note: Notify) -> ForeignModel:
    """The run or checkpoint at `path` in its layout. Raises RequestError if it has none."""
    checkpoint = open_checkpoint(find_run(path), note, "any")
    layout, model = _layout_of(checkpoint.config)
    task, template = checkpoint.config.task, TurnTemplate.of(checkpoint.config.data)
    classes = TaskConfig(kind="classes", labels=task.labels) if task.kind == "classes" else None
    tensors = dict(build_verified(checkpoint).state_dict())
    return ForeignModel(layout, model, checkpoint.tokenizer, tensors, classes, template)


def _merge(
    layout: Layout, weights: Tensors, file: Mapping[str, Any], directory: Path, *, has_head: bool
) -> dict[str, Tensor]:
    """Their `weights` with the adapter added, and its head if it has one. Raises UserError unless all fit."""
    location = str(directory / FACTORS)
    if not (directory / FACTORS).is_file():
        raise UserError(f"{directory} has no {FACTORS}", hint="a .bin can run code when it is read, so it is not")
    tensors, merged = read_floats(directory / FACTORS), dict(weights)
    if has_head and (head := tensors.pop(_SCORE_KEY, None)) is not None:
        merged[f"{_SCORE}.weight"] = head
    pairs: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := _FACTOR.fullmatch(name):
            pairs.setdefault(match[1], {})[match[2]] = tensor
        elif (copied := weights.get(_COPY.sub("", name))) is None or not torch.equal(copied, tensor):
            raise UserError(f"tensor {name:.200} is no adapter, and not the same in its base", where=location)
    if not pairs or (has_head and merged[f"{_SCORE}.weight"] is weights[f"{_SCORE}.weight"]):
        raise UserError(f"it has no {'head' if pairs else 'adapter'}", where=location)
    for module, factors in pairs.items():
        key, (a, b) = f"{module}.weight", (factors.get("A"), factors.get("B"))
        if a is None or b is None or a.dim() != 2 or b.dim() != 2 or len(a) != b.shape[1]:
            raise UserError(f"{module:.200} is not adapted by an A (R, I) and a B (O, R)", where=location)
        change = _oriented(layout, key, torch.empty(len(b), a.shape[1], device="meta"))
        if key not in weights or weights[key].shape != change.shape:
            raise UserError(f"{module:.200} is no matrix of {len(b)} x {a.shape[1]} in its base", where=location)
        rank = _of_module(file.get("rank_pattern"), module, file["r"])
        if len(a) != rank:
            raise UserError(f"{module:.200} has an adapter of rank {len(a)}, not {rank}", where=location)
        alpha = _of_module(file.get("alpha_pattern"), module, file["lora_alpha"])
        scale = alpha / (math.sqrt(rank) if file.get("use_rslora") else rank)
        merged[key] = weights[key] + _oriented(layout, key, scale * (b @ a))
    return merged
