"""The training state: everything that an update changes, saved to and restored from checkpoints."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from gpt_cli.config import Config
from gpt_cli.cpu.train.native_muon import NativeNewtonSchulz
from gpt_cli.cpu.train.network import NativeNetwork
from gpt_cli.distributed.shard import Shard
from gpt_cli.distributed.world import World
from gpt_cli.errors import Notify
from gpt_cli.model.activation_checkpointing import apply_activation_checkpointing
from gpt_cli.model.gpt import GPT
from gpt_cli.model.sequence_classifier import freeze_all_but_head, make_model
from gpt_cli.model.sizing import flops_per_token
from gpt_cli.run.checkpoint import Checkpoint, load_newest
from gpt_cli.run.directory import RunDirectory
from gpt_cli.run.load_model import load_weights, tensor_specs
from gpt_cli.run.tensors import check_tensors
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
from gpt_cli.training.optim import MuonAdamW, state_owners
from gpt_cli.training.select_engine import try_native
from gpt_cli.training.step import TorchEngine


@dataclass(frozen=True)
class TrainingState:
    """Weights, their average, the optimizer and the loss scale. Everything else follows from the step."""

    model: GPT
    optimizer: MuonAdamW | LoRA
    ema: EMA
    grad_scaler: GradScaler
    engine: Engine  # computes losses and gradients
    shard: Shard  # which parameters this process updates

    @property
    def is_native(self) -> bool:
        """True if the C engine computes."""
        return isinstance(self.engine, NativeNetwork)

    @cached_property
    def parameters(self) -> list[Parameter]:
        """Trained parameters. Cached: the model's own walk takes a noticeable part of a small model's step."""
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
            model.to(runtime.device)
            if config.task.trains == "head":
                freeze_all_but_head(model)
            native = try_native(model, config.runtime, runtime, note)
            shard = _shard(model, config, runtime.world)
            orthogonalise = (
                None if native is None else NativeNewtonSchulz(native.library, native.threads, POLAR_EXPRESS)
            )
            optimizer: MuonAdamW | LoRA
            if config.lora.rank is not None:
                optimizer = LoRA(model, config.lora, config.optim, config.seed)
            else:
                optimizer = MuonAdamW(model, config.optim, runtime.matmul_dtype, orthogonalise, shard.zeros)
            average = EMA(model, config.optim.ema)
        if config.train.activation_checkpointing:
            apply_activation_checkpointing(model)
        grad_scaler = GradScaler(runtime.precision == "fp16", runtime.device)
        engine: Engine | None = native
        if engine is None:
            mode = compile_mode(config.runtime.compile, runtime.device, _eager_seconds(config, vocab_size, runtime))
            engine = TorchEngine(model, runtime, grad_scaler, note, mode)
        return cls(model=model, optimizer=optimizer, ema=average, grad_scaler=grad_scaler, engine=engine, shard=shard)

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The model's tensors, and all others; on the device meta are those that another process keeps."""
        return dict(self.model.state_dict()), self._optimizer_tensors()

    def collect_tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The same for a checkpoint: process 0 receives what others keep. All call this together."""
        optimizer = self.shard.collect(self.optimizer.state_tensors())
        return dict(self.model.state_dict()), optimizer | self.ema.state_tensors()

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        """All tensors but the model's own."""
        return self.optimizer.state_tensors() | self.ema.state_tensors()

    def scalars(self) -> dict[str, Any]:
        """The state that is not a tensor."""
        scale, good_updates = float(self.grad_scaler.scale), int(self.grad_scaler.good_updates)
        return {"loss_scale": scale, "loss_scale_good_updates": good_updates}

    def restore(self, run: RunDirectory, runtime: Runtime, note: Notify) -> tuple[int | None, float]:
        """Go on from the newest intact checkpoint of `run`: its step and seconds of training, or None and 0.

        The run's logs are cut back to that step.
        """
        checkpoint = load_newest(run.path, note)
        run.lifetime.begin(0 if checkpoint is None else checkpoint.step, runtime.describe())
        if checkpoint is None:
            run.log.truncate(-1)
            return None, 0.0
        run.log.truncate(checkpoint.step)
        self.load(checkpoint)
        return checkpoint.step, checkpoint.get_float("seconds")

    def load(self, checkpoint: Checkpoint) -> None:
        """Take over a checkpoint, bit for bit. Raises UserError if it is not of this model and optimizer."""
        load_weights(self.model, checkpoint)
        tensors = checkpoint.optimizer_tensors()
        check_tensors(tensors, tensor_specs(self._optimizer_tensors()))
        self.optimizer.load_state_tensors(tensors)
        self.ema.load_state_tensors(tensors)
        self.grad_scaler.scale.fill_(checkpoint.get_float("loss_scale", torch.finfo(torch.float32).max))
        self.grad_scaler.good_updates.fill_(int(checkpoint.get_float("loss_scale_good_updates", 2**53)))


def _shard(model: GPT, config: Config, world: World) -> Shard:
    """The share of the optimizer that this process keeps."""
    parameters = dict(model.named_parameters())
    if config.parallel.shard == "none":
        return Shard(parameters)
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    return Shard(parameters, world, state_owners(shapes, config.optim, world.size))


def _eager_seconds(config: Config, vocab_size: int, runtime: Runtime) -> float:
    """An estimate of what all steps of the run take without compiling; of the whole run, so that a resume agrees."""
    train = config.train
    tokens = train.steps * train.batch_size * config.model.context_length
    forwards = train.steps * train.batch_size // train.sequences_per_forward
    flops = float(tokens * flops_per_token(config.model, vocab_size))
    return estimate_eager_seconds(runtime.device, config.model.n_layer, flops, forwards)
