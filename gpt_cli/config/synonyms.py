"""Names that other tools have for our commands, keys and values, and the suggestion for an unknown word.

The words are those of nanoGPT, Transformers, Lightning, litgpt and torchtune.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches


def _normalised(word: str) -> str:
    return word.lower().replace("-", "_")


def _by_synonym(rows: Mapping[str, str]) -> dict[str, list[str]]:
    """{synonym: our words} of rows {our word: "its synonyms"}."""
    words: dict[str, list[str]] = {}
    for ours, synonyms in rows.items():
        for synonym in synonyms.split():
            words.setdefault(_normalised(synonym), []).append(ours)
    return words


COMMANDS = _by_synonym(
    {
        "gpt train TEXT": "pretrain fit",
        "gpt train TEXT train.init_from=RUN": "finetune finetune_lora sft",
        "gpt train RUN": "resume continue",
        "gpt sample": "generate predict inference",
        "gpt eval": "evaluate test validate perplexity",
        "gpt tokenize TEXT": "prepare prepare_data tokenizer",
        "gpt data get NAME": "download",
        "gpt data inspect TEXT": "inspect",
        "gpt export RUN PATH": "convert quantize push merge_lora",
        "gpt import hf DIR RUN": "convert_from_hf",
        "gpt config show CONFIG": "print validate",
        "gpt config init TEXT": "init new",
        "gpt runs": "list ls",
        "gpt runs rm RUN": "rm remove delete",
        "gpt plot RUN": "curves",
        "gpt bench CONFIG": "benchmark",
        "gpt tune CONFIG": "lr_find",
        "gpt doctor RUN": "check verify",
        "gpt --help": "help",
        "gpt --version": "version",
    }
)
"""By the name of a command elsewhere: the command line that does the same."""

KEYS = _by_synonym(
    {
        "model.context_length": "block_size n_ctx n_positions max_seq_len max_seq_length max_position_embeddings",
        "model.n_embd": "d_model hidden_size embed_dim",
        "model.n_layer": "n_layers num_layers num_hidden_layers",
        "model.n_head": "n_heads num_heads num_attention_heads",
        "model.n_kv_head": "num_kv_heads num_key_value_heads n_query_groups",
        "optim.name": "optimizer",
        "optim.lr": "learning_rate",
        "optim.grad_clip": "max_grad_norm gradient_clip_val clip_grad_norm max_norm",
        "optim.betas": "beta1 beta2 adam_beta1 adam_beta2",
        "schedule.kind": "lr_scheduler lr_scheduler_type lr_schedule scheduler",
        "schedule.warmup_steps": "warmup_iters lr_warmup_steps num_warmup_steps",
        "schedule.min_lr_ratio": "min_lr",
        "train.steps": "max_iters max_steps num_steps epochs num_train_epochs max_epochs",
        "train.batch_size": "global_batch_size per_device_train_batch_size",
        "train.micro_batch_size": "gradient_accumulation_steps accumulate_grad_batches",
        "train.activation_checkpointing": "gradient_checkpointing enable_activation_checkpointing",
        "train.init_from": "pretrained from_pretrained checkpoint_dir",
        "train.budget": "max_time",
        "lora.rank": "lora_r lora_rank",
        "lora.targets": "target_modules lora_attn_modules",
        "eval.every": "eval_interval eval_steps val_check_interval",
        "checkpoint.every": "save_steps save_interval save_every",
        "log.every": "log_interval logging_steps log_every_n_steps",
        "log.sinks": "wandb tensorboard report_to logger_name wandb_log",
        "data.source": "dataset train_file data_dir data_path",
        "data.val_fraction": "val_split val_split_fraction validation_split_percentage",
        "runtime.precision": "dtype bf16 fp16 amp",
        "runtime.device": "gpu accelerator",
        "run_dir": "out_dir output_dir run_name default_root_dir",
        "devices": "gpus num_gpus nproc_per_node num_processes",
        "run": "checkpoint ckpt_path",
        "n": "num_samples num_return_sequences",
        "max_new_tokens": "length max_length max_tokens",
        "beams": "num_beams",
        "no_repeat_ngram": "no_repeat_ngram_size",
        "out": "output",
    }
)
"""By the name of a key, or of an option, elsewhere: ours."""

OTHER_UNITS = frozenset(
    "epochs num_train_epochs max_epochs min_lr gradient_accumulation_steps accumulate_grad_batches"  # noqa: SIM905
    " validation_split_percentage max_time".split()
)
"""Names of KEYS whose value elsewhere means something else than that of our key."""

VALUES = _by_synonym(
    {
        "true": "yes on 1",
        "false": "no off 0",
        "null": "none off no never nil 0 -1",
        "cuda": "gpu",
        "fp32": "32 32-true float32",
        "fp16": "16 16-mixed float16 half",
        "bf16": "bf16-mixed bf16-true bfloat16",
        "f32": "float32 fp32",
        "f16": "float16 fp16",
        "q8_0": "int8 q8",
        "q4_0": "int4 q4",
        "qkv": "q_proj k_proj v_proj c_attn",
        "out": "o_proj output_proj c_proj",
        "up": "up_proj gate_proj c_fc",
        "down": "down_proj",
        "rope": "rotary",
        "layernorm": "layer_norm",
        "rmsnorm": "rms_norm",
        "gelu": "gelu_new gelu_pytorch_tanh",
        "swiglu": "silu",
        "adamw": "adamw_torch",
        "cosine": "cosine_with_min_lr",
        "wsd": "warmup_stable_decay",
        "full": "fsdp full_shard",
        "gpt2": "gpt-2 r50k_base",
        "gpt4": "cl100k_base",
        "o200k": "gpt-4o o200k_base",
    }
)
"""By the word for a value elsewhere: ours."""


def suggest(word: str, known: Iterable[str], synonyms: Mapping[str, list[str]] | None = None) -> list[str]:
    """The `known` words that may have been meant by `word`, the likeliest first; `synonyms` have those of other tools.

    Case does not matter, nor whether it is written with dashes or underscores.
    """
    spelled = _normalised(word)
    ours = {_normalised(one): one for one in known}
    if spelled in ours:
        return [ours[spelled]]
    meant = [_normalised(one) for one in (synonyms or {}).get(spelled, [])]
    if known_ones := [ours[one] for one in meant if one in ours]:
        return known_ones
    begun = [one for one in ours if one.startswith(spelled)] if len(spelled) > 2 else []
    close = begun if len(begun) == 1 else get_close_matches(spelled, ours, 1, 0.7)
    return [ours[one] for one in close]
