"""The training state: everything that an update changes, and that checkpoints save and restore."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from gpt_cli.config import Config
from gpt_cli.cpu.train.native_engine import NativeEngine
from gpt_cli.cpu.train.native_muon import NativeMuon
from gpt_cli.distributed.shard import Shard
from gpt_cli.distributed.world import World
from gpt_cli.errors import Notify
from gpt_cli.model.activation_checkpointing import apply_activation_checkpointing
from gpt_cli.model.gpt import GPT
from gpt_cli.model.sequence_classifier import freeze_all_but_head, make_model
from gpt_cli.model.sizing import flops_per_token
from gpt_cli.run.checkpoint import Checkpoint, load_newest
from gpt_cli.run.directory import RunDirectory
from gpt_cli.run.log import last_logged_step
from gpt_cli.run.tensors import check_tensors, tensor_specs
from gpt_cli.runtime.compilation import compile_mode, estimate_eager_seconds
from gpt_cli.runtime.device import Runtime
from gpt_cli.runtime.oom import oom_as_user_error
from gpt_cli.shuffle import derive_seed
from gpt_cli.training.ema import EMA
from gpt_cli.training.engine import Engine
from gpt_cli.training.grad_scaler import GradScaler
from gpt_cli.training.init_from import load_initial
from gpt_cli.training.lora import LoRA
from gpt_cli.training.muon import POLAR_EXPRESS
from gpt_cli.training.optim import MuonAdamW, state_parts
from gpt_cli.training.select_engine import build_native_engine
from gpt_cli.training.torch_engine import TorchEngine


@dataclass(frozen=True)
class TrainingState:
    """Weights, their average, the optimizer and the loss scale. Everything else follows from the step."""

    model: GPT
    optimizer: MuonAdamW | LoRA
    ema: EMA
    grad_scaler: GradScaler
    engine: Engine  # computes losses and gradients
    shard: Shard  # what this process updates

    @property
    def is_native(self) -> bool:
        """True if the C engine computes."""
        return isinstance(self.engine, NativeEngine)

    @cached_property
    def parameters(self) -> list[Parameter]:
        """The model's parameters. Cached: walking the modules takes a noticeable part of a small model's step."""
        return list(self.model.parameters())

    @classmethod
    def initialize(
        cls, config: Config, vocab_size: int, runtime: Runtime, note: Notify, initial: Checkpoint | None = None
    ) -> "TrainingState":
        """The state before the first step: weights drawn on the CPU, so that they are the same on every device."""
        torch.manual_seed(derive_seed(config.seed, "weights"))
        with oom_as_user_error(
            "building the model", "lower model.n_embd or model.n_layer; `gpt info` says what they take"
        ):
            model = make_model(config, vocab_size)
            if initial is not None:
                load_initial(model, initial)
            if config.task.trains == "head":
                freeze_all_but_head(model)
            if config.train.activation_checkpointing:
                apply_activation_checkpointing(model)
            shard = _shard(model, config, runtime)
            options = ["parallel.shard: full"] * (config.parallel.shard == "full")
            native = build_native_engine(model, config.runtime, runtime, note, options=options)
            muon = None if native is None else NativeMuon(native.library, native.threads, POLAR_EXPRESS).update
            optimizer: MuonAdamW | LoRA
            if config.lora.rank is not None:
                optimizer = LoRA(model, config.lora, config.optim, config.seed)
            else:
                updated = shard.optimized if shard.is_full or shard.parts is not None else None
                row_shard = shard if shard.is_full else None
                optimizer = MuonAdamW(model, config.optim, runtime.matmul_dtype, muon, shard.zeros, updated, row_shard)
            ema = EMA(shard.stored, config.optim.ema, in_place=shard.is_full)
        grad_scaler = GradScaler(runtime.precision == "fp16", runtime.device)
        engine: Engine | None = native
        if engine is None:
            mode = None
            if config.parallel.shard != "full":
                eager_seconds = _eager_seconds(config, vocab_size, runtime)
                mode = compile_mode(config.runtime.compile, runtime.device, eager_seconds)
            engine = TorchEngine(model, runtime, grad_scaler, note, mode)
        return cls(model=model, optimizer=optimizer, ema=ema, grad_scaler=grad_scaler, engine=engine, shard=shard)

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """(the model's tensors, all others): the parts that this process has; others may be on the device meta."""
        return self.shard.local_state(self.model), self._optimizer_tensors()

    def collect_tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The same for a checkpoint, whole in process 0. All processes call this together."""
        optimizer = self.shard.collect(self.optimizer.state_tensors())
        return self.collect_weights(), optimizer | self.shard.collect_rows(self.ema.state_tensors())

    def collect_weights(self) -> dict[str, Tensor]:
        """The model's tensors, whole in process 0. All processes call this together."""
        return self.shard.collect_rows(self.shard.local_state(self.model))

    def model_to_sample(self, world: World) -> GPT | None:
        """The whole model in process 0 (a copy on the CPU where weights are sharded), None in the others.

        All processes call this together.
        """
        if not self.shard.is_full:
            return self.model if world.is_main else None
        weights = self.collect_weights()
        if not world.is_main:
            return None
        whole = GPT(self.model.config, self.model.head.out_features)
        whole.load_state_dict(weights)
        return whole

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        """All tensors but the model's own."""
        return self.optimizer.state_tensors() | self.ema.state_tensors()

    def scalars(self) -> dict[str, Any]:
        """The state that is not a tensor."""
        scale, good_updates = float(self.grad_scaler.scale), int(self.grad_scaler.good_updates)
        return {"loss_scale": scale, "loss_scale_good_updates": good_updates}

    def restore(self, run: RunDirectory, runtime: Runtime, note: Notify) -> tuple[int | None, float]:
        """Load the newest intact checkpoint of `run`; returns (step, seconds of training), or (None, 0).

        The run's logs are truncated to that step.
        """
        checkpoint = load_newest(run.path, note)
        lost = last_logged_step(run.path) if checkpoint is None else 0  # before this training is in the logs
        run.begin(0 if checkpoint is None else checkpoint.step, runtime.describe())
        if checkpoint is None:
            if lost:
                note(f"{run.path} has no checkpoint: its {lost:,} steps are lost, and training starts again")
            run.log.truncate(-1, note)
            return None, 0.0
        run.log.truncate(checkpoint.step, note)
        self.load(checkpoint)
        return checkpoint.step, checkpoint.get_float("seconds")

    def load(self, checkpoint: Checkpoint) -> None:
        """Load a checkpoint, bit for bit. Raises UserError if it is not of this model and optimizer."""
        shard, weights = self.shard, checkpoint.model_tensors
        check_tensors(weights, tensor_specs(self.model.state_dict()))
        with torch.no_grad():
            for name, local in shard.local_state(self.model).items():
                local.copy_(shard.local_part(name, local, weights[name]))
        tensors, local_tensors = checkpoint.optimizer_tensors(), self._optimizer_tensors()
        check_tensors(tensors, {key: (shard.shape_of(key, local), local.dtype) for key, local in local_tensors.items()})
        with torch.no_grad():
            for key, local in local_tensors.items():
                local.copy_(shard.local_part(key, local, tensors[key]))
        self.ema.swap()  # a checkpoint's weights are the average
        self.grad_scaler.scale.fill_(checkpoint.get_float("loss_scale", torch.finfo(torch.float32).max))
        self.grad_scaler.good_updates.fill_(int(checkpoint.get_float("loss_scale_good_updates", 2**53)))


def _shard(model: GPT, config: Config, runtime: Runtime) -> Shard:
    """Move `model` to the device; returns this process's part of the optimizer, or of model and optimizer."""
    world = runtime.world
    if config.parallel.shard == "full" and world.size > 1:
        from gpt_cli.distributed.fsdp import FullShard  # noqa: PLC0415 - it takes a second to import

        return FullShard(model, model.blocks, world, runtime.device)
    model.to(runtime.device)
    parameters = dict(model.named_parameters())
    if config.parallel.shard == "none" or world.size == 1:
        return Shard(parameters)
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    return Shard(parameters, world, state_parts(shapes, config.optim, world.size))


def _eager_seconds(config: Config, vocab_size: int, runtime: Runtime) -> float:
    """An estimate of the time of all steps without compiling; of the whole run, so that a resume decides alike."""
    train = config.train
    tokens = train.steps * train.batch_size * config.model.context_length
    forwards = train.steps * train.batch_size // train.sequences_per_forward
    flops = float(tokens * flops_per_token(config.model, vocab_size))
    return estimate_eager_seconds(runtime.device, config.model.n_layer, flops, forwards)
