"""Keys of other trainers: which of ours each is, and how its value is written there."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from shlex import quote

_EPOCHS = ("epochs", "epoch", "n_epochs", "num_epochs", "num_train_epochs")
_NAMES = {
    "model.context_length": ("block_size", "n_ctx", "max_seq_len", "seq_len", "seq_length", "context", "n_positions"),
    "model.n_embd": ("d_model", "hidden_size", "embed_dim", "dim", "width", "n_embed", "embedding_dim"),
    "model.n_layer": ("n_layers", "num_layers", "num_hidden_layers", "layers", "depth"),
    "model.n_head": ("n_heads", "num_heads", "num_attention_heads", "heads"),
    "tokenizer.vocab_size": ("vocab_size", "vocab"),
    "tokenizer.kind": ("tokenizer", "tokenizer_type"),
    "optim.lr": ("learning_rate", "max_lr", "rate"),
    "optim.name": ("optimizer", "optim_kind", "optim_type"),
    "optim.weight_decay": ("wd", "decay"),
    "optim.grad_clip": ("max_grad_norm", "gradient_clip_val", "clip", "clip_grad"),
    "optim.betas": ("beta1", "beta2", "adam_beta1", "adam_beta2"),
    "schedule.min_lr_ratio": ("min_lr",),
    "schedule.warmup_steps": ("warmup_iters", "warmup", "warmup_ratio"),
    "schedule.kind": ("scheduler", "lr_scheduler", "lr_scheduler_type", "lr_schedule"),
    "train.steps": (
        *("max_iters", "max_steps", "iters", "iterations", "num_steps", "n_steps"),
        *_EPOCHS,
    ),
    "train.batch_size": ("batch_size", "batch", "bs", "train_batch_size", "per_device_train_batch_size"),
    "train.micro_batch_size": ("gradient_accumulation_steps", "grad_accum", "grad_accum_steps", "accumulate"),
    "train.activation_checkpointing": ("gradient_checkpointing",),
    "train.init_from": ("init", "finetune", "pretrained", "from_pretrained", "base_model"),
    "train.budget": ("time", "minutes", "hours", "max_time", "time_limit", "seconds"),
    "lora.rank": ("lora_r", "lora_rank", "rank"),
    "eval.every": ("eval_interval", "eval_steps", "eval_every"),
    "checkpoint.every": (
        *("save_steps", "save_every", "save_interval", "ckpt_interval"),
        *("checkpoint_interval", "checkpoint_steps"),
    ),
    "log.every": ("log_interval", "logging_steps", "log_steps", "log_every"),
    "sample.every": ("sample_interval", "sample_steps", "sample_every"),
    "log.sinks": ("wandb", "tensorboard", "report_to", "wandb_log"),
    "data.source": ("dataset", "text", "input", "train_file", "data_dir", "data_path", "corpus", "file"),
    "data.val_fraction": ("val_split", "validation_split", "val_ratio", "val_size"),
    "runtime.precision": ("dtype", "bf16", "fp16", "amp", "mixed_precision"),
    "runtime.device": ("gpu", "cuda", "cpu"),
    "run_dir": ("out_dir", "output_dir", "output", "out", "name", "run_name", "save_dir"),
}
FOREIGN_KEYS = {name: key for key, names in _NAMES.items() for name in names}
"""Names of our keys in other trainers."""

PRECISIONS = {
    **dict.fromkeys(("32", "32-true", "float32", "fp32", "float", "no"), "fp32"),
    **dict.fromkeys(("16", "16-mixed", "float16", "half"), "fp16"),
    **dict.fromkeys(("bf16-mixed", "bf16-true", "bfloat16"), "bf16"),
}
"""By the name of a precision elsewhere: that of `runtime.precision`."""

_VALUES = {
    "qkv": ("q_proj", "k_proj", "v_proj", "qkv_proj", "c_attn", "query_key_value"),
    "out": ("o_proj", "out_proj"),
    "up": ("up_proj", "gate_proj", "c_fc", "fc_in"),
    "down": ("down_proj", "fc_out"),
    "rope": ("rotary",),
    "learned": ("absolute",),
    "layernorm": ("ln", "layer_norm"),
    "rmsnorm": ("rms", "rms_norm"),
    "gelu": ("gelu_new", "gelu_pytorch_tanh"),
    "swiglu": ("silu", "swish"),
    "relu2": ("relu_squared", "squared_relu"),
    "adamw": ("adamw_torch", "adamw_hf"),
    "cosine": ("cosine_with_restarts", "cosine_with_min_lr"),
    "wsd": ("warmup_stable_decay", "trapezoidal"),
    "constant": ("constant_with_warmup",),
    "optimizer": ("zero1", "zero2"),
    "full": ("fsdp", "full_shard", "zero3"),
    "classes": ("classification", "seq_cls"),
    "language": ("causal_lm", "clm"),
    "gpt2": ("gpt-2", "r50k_base"),
    "gpt4": ("gpt-4", "cl100k", "cl100k_base"),
    "o200k": ("gpt-4o", "o200k_base"),
}
FOREIGN_VALUES = PRECISIONS | {name: value for value, names in _VALUES.items() for name in names}
"""By the word of other trainers for one of ours."""


def assignment(name: str, key: str, value: str) -> str:
    """The override that does for `key` what `value` does for its foreign `name`; with a remark where units differ."""
    convert = _CONVERSIONS.get(name.lower().replace("-", "_"))
    if convert is not None:
        return convert(value)
    if key == "optim.grad_clip" and re.fullmatch(r"0(\.0*)?|none|false", value.lower()):
        return f"{key}=null"
    if key == "runtime.precision":
        known = value.lower()
        return f"{key}={PRECISIONS.get(known, quote(value))}"
    return f"{key}={quote(value)}"


def _sinks(value: str) -> str:
    sink = value.lower() if value.lower() in ("wandb", "tensorboard", "csv") else "wandb"
    none = value.lower() in ("none", "false", "no", "0")
    return "log.sinks=[] (as it is without)" if none else f"'log.sinks=[{sink}]'"


def _duration(unit: str, value: str) -> str:
    duration = value if value[:-1].isdecimal() and value[-1] in "smh" else f"{value if value.isdecimal() else 10}{unit}"
    return f"train.budget={duration}"


def _tokenizer(value: str) -> str:
    return f"tokenizer.file={quote(value)}" if "." in value or "/" in value else f"tokenizer.kind={value.lower()}"


_CONVERSIONS: Mapping[str, Callable[[str], str]] = {
    **dict.fromkeys(_EPOCHS, lambda _: "train.steps=1000 (the run says how often that reads the text)"),
    **dict.fromkeys(
        _NAMES["train.micro_batch_size"],
        lambda _: (
            "train.micro_batch_size=4 (sequences of a pass, which divide train.batch_size; not the number of passes)"
        ),
    ),
    **dict.fromkeys(("wandb", "wandb_log", "report_to"), _sinks),
    "tensorboard": lambda _: "'log.sinks=[tensorboard]'",
    **dict.fromkeys(("beta1", "adam_beta1"), lambda value: f"'optim.betas=[{value},0.95]'"),
    **dict.fromkeys(("beta2", "adam_beta2"), lambda value: f"'optim.betas=[0.9,{value}]'"),
    **dict.fromkeys(("name", "run_name"), lambda value: f"run_dir={quote(value if '/' in value else f'runs/{value}')}"),
    **{unit: partial(_duration, unit[0]) for unit in ("seconds", "minutes", "hours")},
    "gpu": lambda _: "runtime.device=cuda",
    "cuda": lambda _: "runtime.device=cuda",
    "cpu": lambda _: "runtime.device=cpu",
    **dict.fromkeys(("tokenizer", "tokenizer_type"), _tokenizer),
    "min_lr": lambda _: "schedule.min_lr_ratio=0.1 (a share of optim.lr)",
    "warmup_ratio": lambda _: "schedule.warmup_steps=100 (steps, not a share of them)",
    "bf16": lambda value: f"runtime.precision={'fp32' if value.lower() == 'false' else 'bf16'}",
    "fp16": lambda value: f"runtime.precision={'fp32' if value.lower() == 'false' else 'fp16'}",
    **dict.fromkeys(("amp", "mixed_precision"), lambda value: f"runtime.precision={PRECISIONS.get(value, 'bf16')}"),
}
"""By a foreign name whose value is of another kind than ours: the override for a value of it."""
NEEDS_CONVERSION = frozenset(_CONVERSIONS)
