"""The schema of a config file: one frozen section per stage of a run, in the order of the run.

Every key has its one home, its default and its meaning, in the text below it, here or in the `*_schema.py` beside;
`gpt config schema` and the reference are generated from them. `None` (in YAML: `null`) is off, or to be derived, as the
text says.
"""

import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, Strict, model_validator

from gpt_cli.config.data_schema import DataConfig as DataConfig
from gpt_cli.config.data_schema import SampleConfig as SampleConfig
from gpt_cli.config.data_schema import TaskConfig as TaskConfig
from gpt_cli.config.derived import fill_open_keys
from gpt_cli.config.model_schema import ModelConfig as ModelConfig
from gpt_cli.config.section import (
    SET,
    Conditions,
    Count,
    Every,
    Minutes,
    Name,
    Needed,
    Needs,
    Positive,
    Probability,
    Steps,
    other_than,
    parse_duration,
)
from gpt_cli.config.section import ConfigSection as ConfigSection
from gpt_cli.literals import Device, Pattern, Recipe, TokenizerKind


class TokenizerConfig(ConfigSection):
    """The tokenizer: from text to tokens."""

    kind: TokenizerKind = "char"
    """One id per character, one per byte, byte-level byte-pair encoding (Sennrich et al., 2016), or hf: the tokenizer
    of an imported model, in `file`."""
    vocab_size: Annotated[int, Field(ge=257, le=1_000_000)] | None = None
    """Ids of a BPE, `<|endoftext|>` and the 256 bytes included. null: as many as suit the text."""
    pattern: Pattern | None = None
    """Rule that splits text before BPE merges: GPT-2's, GPT-4's or GPT-4o's. null: gpt2, or the file's own."""
    train_bytes: Count = 100_000_000
    """Most text that BPE learns from: of a longer one, parts evenly spread over the training split."""
    unknown: Literal["error", "token"] = "error"
    """Handling of a character that a char vocabulary lacks: refuse the text, or take `<unk>` for it."""
    min_count: Count = 1
    """Occurrences that give a character an id of its own; the others become `<unk>`, so unknown must be token."""
    allow_special: bool = False
    """Encode text that reads like a special token of a BPE, such as `<|endoftext|>`, as that token."""
    file: Name | None = None
    """A ready tokenizer to take instead of learning one: a tokenizer.json, GPT-2's files, a tiktoken rank file."""

    needs: ClassVar[Needs] = (
        ("unknown", "token", "kind", "char"),  # other vocabularies have every character
        ("min_count", Needed("above 1", lambda count: count > 1), "kind", "char"),
        ("min_count", Needed("above 1", lambda count: count > 1), "unknown", "token"),
        ("vocab_size", SET, "kind", "bpe"),  # the others have the size they have
    )


class OptimConfig(ConfigSection):
    """The optimizer."""

    name: Literal["adamw", "muon"] = "muon"
    """AdamW for all (Loshchilov and Hutter, 2019), or Muon for matrices (Jordan et al., 2024) + AdamW."""
    lr: Positive | Literal["auto"] = 0.02
    """Peak learning rate: of every parameter under adamw, of the hidden matrices under muon. auto: what a range test
    (`gpt tune`) proposes, run before the first step; the run keeps it. adamw_lr then keeps its ratio to 0.02."""
    adamw_lr: Positive = 0.005
    """Peak learning rate of what Muon leaves to AdamW: embeddings, vectors, all of LoRA, a new classification head and,
    times 128 / n_embd where that is less than 1, an untied head. Unused under adamw."""
    betas: Annotated[tuple[Probability, Probability], Strict(False)] = (0.9, 0.95)
    """AdamW's decay rates of the first and second moment."""
    eps: Positive = 1e-8
    """AdamW's guard against division by zero."""
    momentum: Probability = 0.8
    """Muon's momentum."""
    weight_decay: Annotated[float, Field(ge=0.0, le=1e6)] = 0.1
    """Decoupled decay of matrices and embeddings, times the learning rate. Vectors never decay."""
    grad_clip: Positive | None = 1.0
    """Largest norm of the whole gradient. null: off."""
    ema: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Decay per step of an exponential moving average of the weights, which then is what is evaluated,
    sampled and shipped. null: off."""

    @property
    def peak_lr(self) -> float:
        """lr; while it is auto, the middle of the rates that a range test tries."""
        if self.lr == "auto":
            return 0.02 if self.name == "muon" else 0.003
        return self.lr


class ScheduleConfig(ConfigSection):
    """The learning rate over the run, as a multiple of its peak."""

    kind: Literal["cosine", "linear", "wsd", "constant"] = "wsd"
    """wsd: warm up, stay, then decay linearly (Hu et al., 2024)."""
    warmup_steps: Steps = 20
    """Linear warm-up from near zero."""
    min_lr_ratio: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """End of the decay, as a multiple of the peak."""
    decay_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """The last part of the run in which wsd decays."""


class TrainConfig(ConfigSection):
    """Length of the run and size of its steps."""

    budget: Name | None = None
    """A time such as 90s, 10m or 1h30m in which the run is to end, from the command to the last checkpoint: size,
    context, dropout, decay, batch and schedule are chosen for it where they are not written down, and steps and
    train.max_minutes whatever a config file says of them. null: off."""
    steps: Steps = 1000
    """Optimizer updates."""
    batch_size: Count = 16
    """Sequences per step, over all devices."""
    init_from: Name | None = None
    """A run or checkpoint of the same model and tokenizer whose weights training starts from. null: random ones."""
    micro_batch_size: Count | None = None
    """Sequences per forward pass on one device; a divisor of batch_size. null: batch_size."""
    activation_checkpointing: bool = False
    """Keep only the inputs of blocks for the backward pass, and compute the rest again: less memory, the same numbers,
    a third more time (Chen et al., 2016)."""
    until_loss: Positive | None = None
    """Stop once the validation loss is this low. null: off."""
    max_minutes: Minutes | None = None
    """Stop (evaluated and saved) after so much training time, that before a resume included. null: off."""
    patience: Count | None = None
    """Stop after this many evaluations without a better validation loss. null: off."""

    conditions: ClassVar[Conditions] = (
        (
            lambda t: t.budget is None or parse_duration(t.budget) is not None,
            "{} must be a time such as 90s, 10m or 1h30m",
            "budget",
        ),
        (
            lambda t: t.batch_size % t.sequences_per_forward == 0,
            "{} must be a multiple of {}",
            "batch_size micro_batch_size",
        ),
    )

    @property
    def sequences_per_forward(self) -> int:
        """micro_batch_size, with null resolved."""
        return self.batch_size if self.micro_batch_size is None else self.micro_batch_size


_LORA_SUFFIXES = {
    "qkv": (".attention.qkv.weight",),
    "out": (".attention.out.weight",),
    "up": (".mlp.up.weight", ".mlp.gate_up.weight"),
    "down": (".mlp.down.weight",),
}


class LoraConfig(ConfigSection):
    """Training a change of low rank to some matrices instead of all parameters (Hu et al., 2021)."""

    rank: Count | None = None
    """Rank of the change. null: off, all parameters are trained."""
    alpha: Positive = 16.0
    """The change is multiplied by alpha / rank."""
    targets: Annotated[list[Literal["qkv", "out", "up", "down"]], Field(min_length=1)] = ["qkv", "out"]
    """Matrices that change: of attention qkv and out, of the MLP up (with its gate) and down."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The ends of the names of the parameters that change."""
        return tuple(suffix for target in self.targets for suffix in _LORA_SUFFIXES[target])


class EvalConfig(ConfigSection):
    """The exact validation loss during training."""

    every: Every = 250
    """Steps between evaluations; the last step always evaluates. null: the last step alone."""
    batch_size: Count | None = None
    """Windows per forward pass. null: chosen from the model's size."""
    max_tokens: Count | None = None
    """Evaluate on this many tokens, the first of the validation split. null: all of them, the exact loss."""


class CheckpointConfig(ConfigSection):
    """Checkpoints of the run."""

    every: Every = 250
    """Steps between checkpoints; the last step saves, too, and each evaluation that is the best so far. null: these
    alone."""
    keep: Count = 2
    """Newest checkpoints kept, those of evaluations among them, besides the best one."""


class LogConfig(ConfigSection):
    """Logging: metrics.jsonl, the terminal and other places."""

    every: Count = 10
    """Steps between lines of training loss."""
    sinks: list[Literal["csv", "tensorboard", "wandb"]] = []
    """Other places to which metrics are written as they come: metrics.csv, TensorBoard, Weights & Biases."""


class RuntimeConfig(ConfigSection):
    """The machine."""

    device: Device = "auto"
    """auto: cuda, then mps, then cpu."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Precision of the matrix products; weights stay fp32. auto: bf16 where the hardware is good at it, else fp32."""
    compile: Literal["auto", "reduce-overhead"] | bool = "auto"
    """torch.compile of the step. auto: on a GPU, for runs so long that compiling saves more time than it takes.
    reduce-overhead: with CUDA graphs, as auto does."""
    engine: Literal["auto", "native", "torch"] = "auto"
    """Engine of losses and gradients on a CPU: code compiled for this machine, or torch. auto: the compiled code
    where a C compiler is at hand and it knows the model."""
    deterministic: Literal["auto"] | bool = "auto"
    """Use only algorithms that repeat bit for bit. auto: on a CPU, where it costs nothing; on a GPU the last bits
    of two runs may differ."""
    threads: Annotated[int, Field(ge=1, le=4096)] | None = None
    """CPU threads. null: one per physical core."""
    watchdog_minutes: Minutes | None = None
    """End the run, printing all stacks, when one step with its evaluation and checkpoint takes longer. null: off."""


class ParallelConfig(ConfigSection):
    """Several processes that train one model together (`gpt train --devices N`, or torchrun)."""

    shard: Literal["none", "optimizer", "full"] = "none"
    """none: each keeps the whole model and the whole optimizer. optimizer: each keeps the optimizer state of some
    parameters, or of slices of large ones, and updates these for all (ZeRO stage 1, Rajbhandari et al., 2020): less
    memory, the same traffic. full: each keeps some rows of every weight, and all gather those of a block to compute it
    (FSDP, Zhao et al., 2023), for models that one device cannot hold; by torch, not compiled, and equal to the others
    up to rounding."""
    timeout_minutes: Minutes = 10.0
    """Minutes that a process waits for another one before it takes it for lost and ends."""


class Config(ConfigSection):
    """Everything that decides what a run does."""

    run_dir: Annotated[Name, AfterValidator(os.path.expanduser)] | None = None
    """Directory of the run. null: runs/ and the config file's name."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1337
    """Seed of weights, data order, dropout and samples."""
    recipe: Recipe | None = None
    """Preset of the keys of model, optim and schedule that are not written down: classic as in GPT-2, modern as in
    Qwen3, trained by Muon, speed the same for runs of some hundred steps. Sizes and lengths are in no recipe. null: the
    defaults here."""
    task: TaskConfig = TaskConfig()
    data: DataConfig = DataConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    optim: OptimConfig = OptimConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    train: TrainConfig = TrainConfig()
    lora: LoraConfig = LoraConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    sample: SampleConfig = SampleConfig()
    log: LogConfig = LogConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    parallel: ParallelConfig = ParallelConfig()

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        return fill_open_keys(values) if isinstance(values, Mapping) else values

    @property
    def rate_keys(self) -> tuple[str, ...]:
        """The keys of the peak learning rates that have an effect."""
        return rate_keys(self.optim.name, updates_matrices=self.lora.rank is None and self.task.trains == "all")

    needs: ClassVar[Needs] = (
        ("task.labels", SET, "task.kind", "classes"),
        ("task.class_weights", SET, "task.kind", "classes"),
        ("task.pooling", "mean", "task.kind", "classes"),
        ("task.trains", "head", "task.kind", "classes"),
        ("data.format", "labelled", "task.kind", "classes"),
        ("model.causal", False, "task.kind", "classes"),  # else the next token would be seen
        ("task.kind", "classes", "data.format", "labelled"),
        ("task.kind", "classes", "sample.every", None),  # nothing is written
        ("task.kind", "classes", "train.budget", None),
        ("task.kind", "classes", "eval.max_tokens", None),
        ("task.trains", "head", "train.init_from", SET),  # whose features it reads
        ("task.trains", "head", "lora.rank", None),
        ("task.trains", "head", "parallel.shard", "none"),
        ("lora.rank", SET, "train.init_from", SET),  # whose weights it changes
        ("lora.rank", SET, "parallel.shard", "none"),
        ("parallel.shard", "full", "runtime.engine", other_than("native")),
        ("parallel.shard", "full", "runtime.compile", other_than(True, "reduce-overhead")),
        ("parallel.shard", "full", "runtime.device", other_than("mps")),
        ("parallel.shard", "full", "task.kind", "language"),
        ("optim.lr", "auto", "train.budget", None),  # which does not count the time of a range test
        ("optim.lr", "auto", "train.init_from", None),  # a range test is for random weights
        ("train.until_loss", SET, "eval.every", SET),
        ("train.patience", SET, "eval.every", SET),
    )


def rate_keys(optimizer: str, *, updates_matrices: bool) -> tuple[str, ...]:
    """The keys of the peak learning rates that have an effect.

    `updates_matrices`: hidden matrices are trained, which are all that Muon updates. LoRA's and a head are not.
    """
    if optimizer == "adamw":
        return ("optim.lr",)
    return ("optim.lr", "optim.adamw_lr") if updates_matrices else ("optim.adamw_lr",)
