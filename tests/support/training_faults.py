"""Numbers that turn bad in the middle of a training."""

from gpt_cli.training import loop
from gpt_cli.training.step import train_step


def at_step(monkeypatch, step, harm):
    """Call `harm(state, micro_batches)` right before every computation of update `step`."""

    def train_step_with_harm(state, micro_batches, config, number, *args):
        if number == step:
            harm(state, micro_batches)
        return train_step(state, micro_batches, config, number, *args)

    monkeypatch.setattr(loop, "train_step", train_step_with_harm)


def poison_weight(state, value):
    state.model.blocks[0].mlp.down.weight.data[0, 0] = value


def poison_moment(state, value):
    state.optimizer.state_tensors()["exp_avg/head.weight"][0, 0] = value


def poison_momentum(state, value):
    state.optimizer.muon.buffers["blocks.0.mlp.down.weight"][0, 0] = value


def poison_gradient(state, value):
    parameter = state.model.blocks[0].attention.out.weight

    def spoil(gradient):
        spoilt_gradient = gradient.clone()
        spoilt_gradient[0, 0] = value
        return spoilt_gradient

    if not state.is_native:
        parameter.register_hook(spoil)
        return
    loss_and_gradients = state.engine.loss_and_gradients

    def add_spoilt_gradients(*arguments):
        loss = loss_and_gradients(*arguments)
        parameter.grad = spoil(parameter.grad)
        return loss

    state.engine.loss_and_gradients = add_spoilt_gradients


HARMS = {
    "weight": (poison_weight, "weight blocks.0.mlp.down.weight is not finite at step 7"),
    "moment": (poison_moment, "optimizer state exp_avg/head.weight is not finite at step 8"),
    "momentum": (poison_momentum, "optimizer state momentum/blocks.0.mlp.down.weight is not finite at step 8"),
    "gradient": (poison_gradient, "the gradient of blocks.0.attention.out.weight is not finite at step 7"),
}
