"""The training loop."""

from gpt_cli.config import Config
from gpt_cli.run import checkpoint
from gpt_cli.run.open_run import open_run
from gpt_cli.run.run_corpus import prepare_run_corpus, restoring_text
from gpt_cli.runtime.device import restoring_settings, setup_runtime
from gpt_cli.runtime.signals import stop_requests
from gpt_cli.runtime.watchdog import watchdog
from gpt_cli.terminal.progress import stage_progress
from gpt_cli.training.console import Console
from gpt_cli.training.evaluate_task import evaluate_task
from gpt_cli.training.example_batches import open_batches, open_evaluation
from gpt_cli.training.init_from import initial_checkpoint
from gpt_cli.training.labelled_rows import with_labels
from gpt_cli.training.metrics_logger import MetricsLogger
from gpt_cli.training.oom_retry import OOMRetry
from gpt_cli.training.schedule import lr_multiplier
from gpt_cli.training.schedule_clock import ScheduleClock
from gpt_cli.training.state import TrainingState
from gpt_cli.training.step import train_step
from gpt_cli.training.stopping import Decision, Stopping
from gpt_cli.training.summary import PLANNED, Summary, summarise
from gpt_cli.training.training_samples import load_decoder, sample_prompt, sample_text

CONTINUE, FINISH = Decision.CONTINUE, Decision.FINISH


@restoring_settings()
def train(config: Config, console: Console, expected_loss: float | None = None) -> Summary:
    """Train what `config` describes, from scratch or from the newest checkpoint in its run directory.

    `expected_loss`, in nats per token, is recorded for the summary.
    """
    runtime = setup_runtime(config.runtime)
    world = runtime.world
    with stage_progress() as progress, world.main_first(), restoring_text(config):
        corpus = prepare_run_corpus(config, note=console.note, progress=progress)
    config = with_labels(config, corpus)
    batches = open_batches(config, corpus, runtime.device, console.note, world)
    val_data = open_evaluation(config, corpus, runtime.device, console.note, config.eval.max_tokens)
    prompt, prompt_text = sample_prompt(corpus, config)  # raises for an invalid prompt before training
    initial = initial_checkpoint(config, corpus.tokenizer, console.note)
    with (
        open_run(config, corpus, world) as run,
        stop_requests() as request,
        watchdog(config.runtime.watchdog_minutes) as still_alive,
        console.live(),
    ):
        state = TrainingState.initialize(
            config, corpus.tokenizer.vocab_size, runtime, run.log.recording(console.note), initial
        )
        saved, seconds = state.restore(run, runtime, console.note)  # None and 0 in a new run
        world.wait()
        step = start = saved or 0
        if state.is_native and world.is_main and start < config.train.steps:
            load_decoder(config, console.note)
        logger = MetricsLogger(run, console, config, state, start, seconds, batches)
        oom_retry = OOMRetry(batches.micro_batch_size, logger)
        saved_state = checkpoint.saved_state(run.path, saved)
        clock = ScheduleClock(config.train, start, saved_state)
        stopping = Stopping(config.train, request, logger.past_val_losses, clock, saved_state)
        stopping.update(start, seconds)
        console.start(config, corpus, state, runtime, batches.steps_per_epoch, start, stopping.reason)
        if expected_loss is not None:
            run.log.event(PLANNED, step=start, expected_loss=expected_loss)

        for step in range(start, config.train.steps + 1):  # the iteration after the last step evaluates and saves
            still_alive()
            seconds, request.signal = world.sync_clock_and_signal(logger.seconds, request.received)
            decision, val_loss = stopping.update(step, seconds), None
            if step != saved:  # the checkpoint that is resumed from is evaluated and saved already
                with state.ema.swapped_in(), console.doing("evaluating and saving"):
                    if decision is FINISH or due(step, config.eval.every):
                        evaluation = evaluate_task(state.model, state.engine, val_data, config.eval.batch_size, world)
                        val_loss = logger.evaluation(step, evaluation)
                        decision = stopping.record_eval(val_loss)
                    should_sample = config.sample.every and (decision is FINISH or due(step, config.sample.every))
                    if should_sample and (model := state.model_to_sample(world)) is not None:
                        text = sample_text(model, corpus.tokenizer, prompt, config, native=state.is_native)
                        logger.sample(step, prompt_text, text)
                    should_save = stopping.is_best(val_loss) or due(step, config.checkpoint.every)
                    if decision is not CONTINUE or (step > 0 and should_save):
                        logger.flush()
                        fields = logger.checkpoint_fields(val_loss, corpus.fingerprint)
                        fields |= state.scalars() | clock.state() | stopping.state()
                        tensors = state.collect_tensors()
                        if world.is_main:
                            run.save_checkpoint(step, tensors, fields, corpus.tokenizer, config.checkpoint.keep)
            if decision is not CONTINUE:
                run.lifecycle.final = stopping.reason if decision is FINISH and step < config.train.steps else None
                break

            multiplier = lr_multiplier(clock.position, config.train.steps, config.schedule)
            loss, grad_norms = oom_retry.run(train_step, state, batches.at(step), config, step, multiplier, runtime)
            logger.step(step + 1, loss, grad_norms, multiplier * config.optim.peak_lr)

        world.wait()  # until process 0 has saved
        return summarise(run.path, step, config, state.model, stopping, request, logger)


def due(step: int, every: int | None) -> bool:
    """True if what happens each `every` steps happens at `step`; None means never."""
    return every is not None and step % every == 0
