"""The training loop."""

import torch
from torch import Tensor

from gpt_cli.config import Config
from gpt_cli.corpus.bars import stage_bars
from gpt_cli.corpus.build import prepare_corpus
from gpt_cli.order import derive_seed
from gpt_cli.run import checkpoint
from gpt_cli.run.directory import RunDirectory
from gpt_cli.runtime.device import Runtime, open_runtime
from gpt_cli.runtime.signals import stop_requests
from gpt_cli.runtime.watchdog import watchdog
from gpt_cli.training.batches import Batches, MicroBatches, on_device
from gpt_cli.training.console import Console
from gpt_cli.training.evaluate import TokenSizes, evaluate
from gpt_cli.training.gradients import add_gradients
from gpt_cli.training.initial import initial_checkpoint
from gpt_cli.training.journal import Journal
from gpt_cli.training.memory import MemoryGuard
from gpt_cli.training.quickest import take_quickest
from gpt_cli.training.sample import sample_prompt, sample_text
from gpt_cli.training.schedule import lr_multiplier
from gpt_cli.training.state import TrainingState
from gpt_cli.training.stopping import Stopping
from gpt_cli.training.summary import Summary, summarise
from gpt_cli.training.update import update


def train(config: Config, console: Console) -> Summary:
    """Train what `config` describes, from scratch or from the newest checkpoint in its run directory."""
    runtime = open_runtime(config.runtime)
    with stage_bars() as progress:
        corpus = prepare_corpus(config.data, config.tokenizer, note=console.note, progress=progress)
    batches = Batches.of(config, on_device(corpus.train, runtime.device))
    val_tokens = on_device(corpus.val, runtime.device)
    prompt = sample_prompt(corpus.tokenizer, config)  # what it cannot spell is told before it trains
    sizes = TokenSizes.of(corpus.tokenizer, runtime.device)
    initial = initial_checkpoint(config, corpus.tokenizer, console.note)
    with (
        RunDirectory.open_for_training(config, corpus) as run,
        stop_requests() as request,
        watchdog(config.runtime.watchdog_minutes) as still_alive,
    ):
        state = TrainingState.fresh(config, corpus.tokenizer.vocab_size, runtime, console.note, initial)
        saved, seconds = state.restore(run, runtime, console.note)  # None and 0 in a new run
        start = saved or 0
        journal = Journal(run, console, config, state, start, seconds)
        memory = MemoryGuard(config.train.sequences_per_forward, journal)
        stopping = Stopping(config.train, request, journal.past_val_losses)
        stopping.due(start, seconds)
        console.start(config, corpus, state.model, runtime, state.native is not None, start, stopping.reason)
        take_quickest(state, batches, config, start, runtime, console.note)

        for step in range(start, config.train.steps + 1):  # the visit past the last step evaluates and saves
            still_alive()
            done, val_loss = stopping.due(step, journal.seconds), None
            last = done and not stopping.interrupted  # an interrupted run saves and leaves; nothing else differs
            if step != saved:  # what a checkpoint holds was evaluated before it was saved
                with state.average.applied():
                    if last or due(step, config.eval.every):
                        evaluation = evaluate(
                            state.model, val_tokens, sizes, runtime, config.eval.batch_size, state.native
                        )
                        val_loss = journal.evaluation(step, evaluation)
                        last = stopping.saw(val_loss) or last
                        done = done or last
                    if config.sample.every is not None and (last or due(step, config.sample.every)):
                        native = state.native is not None
                        journal.sample(step, sample_text(state.model, corpus.tokenizer, prompt, config, native=native))
                    if done or (step > 0 and (stopping.is_best(val_loss) or due(step, config.checkpoint.every))):
                        journal.settle()
                        facts = journal.facts(val_loss, corpus.fingerprint) | state.scalars()
                        checkpoint.save(run.path, step, *state.tensors(), facts, config, corpus.tokenizer)
                        checkpoint.prune(run.path, config.checkpoint.keep)
            if done:
                break

            multiplier = lr_multiplier(step, config.train.steps, config.schedule)
            take_step = state.way.taking(train_step)
            loss, grad_norms = memory.step(take_step, state, batches.at(step), config, step, multiplier, runtime)
            journal.step(step + 1, loss, grad_norms, multiplier * config.optim.peak_lr)

        return summarise(run.path, config, state.model, stopping, request, journal.seconds)


def train_step(
    state: TrainingState,
    micro_batches: MicroBatches,
    config: Config,
    step: int,
    lr_multiplier: float,
    runtime: Runtime,
) -> tuple[Tensor, Tensor]:
    """One update over `micro_batches`.

    Returns the mean loss, a scalar, and the norm of each parameter's gradient, both on the device.
    """
    loss_sum = torch.zeros((), device=runtime.device)
    for micro_step, (inputs, targets) in enumerate(micro_batches):
        torch.manual_seed(derive_seed(config.seed, "noise", step, micro_step))
        loss_sum += add_gradients(state, inputs, targets, len(micro_batches), runtime)
    grad_norms = update(state, config.optim, step, lr_multiplier)
    state.optimizer.zero_grad()
    return loss_sum, grad_norms


def due(step: int, every: int | None) -> bool:
    """Whether something that happens `every` so many steps happens at `step`; None means never."""
    return every is not None and step % every == 0
