"""Export a directory that Transformers' `AutoModel...` and `AutoTokenizer` load without remote code."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch

from gpt_cli.config import SampleConfig
from gpt_cli.corpus.turn_template import TurnTemplate
from gpt_cli.errors import Notify
from gpt_cli.export.answer_borders import with_chat_template
from gpt_cli.export.architectures import LAYOUTS
from gpt_cli.export.class_layouts import choose_class_layout, label_config
from gpt_cli.export.layout import Layout, choose_layout
from gpt_cli.export.model_card import model_card
from gpt_cli.export.names import named_tensors
from gpt_cli.export.vocabulary import special_ids, tokenizer_config, tokenizer_json
from gpt_cli.files import ExistsError, commit_files
from gpt_cli.run.load_model import LoadedRun
from gpt_cli.tokenizer import ForeignTokenizer

DType = Literal["f32", "f16", "bf16"]
DTYPES: dict[str, torch.dtype] = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def export_huggingface(run: LoadedRun, directory: Path, dtype: DType = "f32", note: Notify = lambda _: None) -> Layout:
    """Write the model of `run` to the new `directory`, and return its layout. Notes damaged lines of its metrics.

    Raises RequestError, naming the options that prevent it, if no architecture of Transformers represents the model
    exactly, ExistsError if `directory` exists, and DiskError.
    """
    model, tokenizer, labels = run.config.model, run.tokenizer, run.config.task.labels
    ours = named_tensors(run.model.state_dict())
    if labels is None:
        layout = choose_layout(model, LAYOUTS)
    else:
        layout, model = choose_class_layout(run.config)
    tensors = {name: tensor.to(DTYPES[dtype]).contiguous() for name, tensor in layout.tensors(model, ours).items()}
    eot_id = tokenizer.eot_id
    rewritten, _ = layout.rewrite(model, ours)
    template = TurnTemplate.of(run.config.data)
    allow_special = run.config.tokenizer.allow_special and template is None  # examples are encoded without
    tokenizer_file, chat = tokenizer_json(tokenizer), dict[str, str]()
    if template is not None:
        tokenizer_file, chat["chat_template"] = with_chat_template(tokenizer_file, tokenizer, template)
    special = special_ids(tokenizer)
    pad = eot_id if special["pad_token_id"] is None else special["pad_token_id"]
    config = {
        "architectures": [layout.architecture],
        "model_type": layout.model_type,
        "dtype": str(DTYPES[dtype]).removeprefix("torch."),
        "vocab_size": tokenizer.vocab_size,
        "tie_word_embeddings": rewritten.tie_embeddings,
        **special,
        **layout.describe(rewritten),
        **({} if labels is None else {**label_config(labels), "pad_token_id": pad}),
    }
    contents = {
        "config.json": _json(config),
        "model.safetensors": safetensors.torch.save(tensors, {"format": "pt"}),
        "tokenizer.json": tokenizer_file.encode(),
        "tokenizer_config.json": _json(
            tokenizer_config(tokenizer, model.context_length, allow_special, is_padded=labels is not None) | chat
        ),
        "README.md": model_card(run, layout.architecture, note).encode(),
    }
    if labels is None:
        never = {} if tokenizer.unk_id is None else {"suppress_tokens": [tokenizer.unk_id]}  # which nothing writes here
        contents["generation_config.json"] = _json(
            special | _eos_token(run, template) | never | _generation(run.config.sample)
        )
    try:
        commit_files(directory, contents)
    except ExistsError as error:
        raise ExistsError(error.message, hint="export to another directory, or move that one away") from None
    return layout


def _eos_token(run: LoadedRun, template: TurnTemplate | None) -> dict[str, Any]:
    """The eos_token_id of a model of completions whose end is a single token, else nothing."""
    if template is None:
        return {}
    ids = run.tokenizer.encode(template.completion_end).tolist()
    ends = list(run.tokenizer.ends) if isinstance(run.tokenizer, ForeignTokenizer) else []
    return {"eos_token_id": [*ends, ids[0]] if ends else ids[0]} if len(ids) == 1 else {}


def _generation(sample: SampleConfig) -> dict[str, Any]:
    """The generation config, without a beam search. top_k is 0 if it is off: the default of Transformers is 50."""
    if sample.beams is not None:
        return {"max_new_tokens": sample.max_new_tokens}
    if sample.temperature == 0:
        return {"do_sample": False, "max_new_tokens": sample.max_new_tokens}
    off: dict[str, Any] = {"top_k": 0, "top_p": 1.0}
    filters = {"top_k": sample.top_k, "top_p": sample.top_p, "min_p": sample.min_p}
    enabled = {name: value for name, value in filters.items() if value is not None}
    return (
        {"do_sample": True, "temperature": sample.temperature, "max_new_tokens": sample.max_new_tokens} | off | enabled
    )


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, allow_nan=False).encode() + b"\n"
