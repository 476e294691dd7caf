"""Progress of a run on stderr: a bar on a terminal, plain lines elsewhere."""

import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import numpy as np
from tqdm import tqdm

from gpt_cli.config import Config
from gpt_cli.corpus.prepare import Corpus
from gpt_cli.errors import Notify
from gpt_cli.runtime.device import Runtime
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.terminal.progress import BrokenPipeSafeStream
from gpt_cli.terminal.words import format_duration, plural
from gpt_cli.training.class_evaluation import ClassEvalMetrics
from gpt_cli.training.evaluate import EvalMetrics
from gpt_cli.training.lora import LoRA
from gpt_cli.training.schedule import schedule_warning
from gpt_cli.training.state import TrainingState

_SECONDS_BETWEEN_LINES = 30.0  # without a terminal
SECOND = 1.0
_COUNTED = 1_000_000  # tokens, among which unknown ones are counted
_FEWEST_VALIDATED = 100  # tokens, below which the loss of the validation split is mostly chance


class Console:
    """Renders a run, its lines by `write_line`; the run's files do not depend on it."""

    def __init__(self, write_line: Notify) -> None:
        self.write_line = write_line
        self.bar: tqdm[NoReturn] | None = None
        self.steps = 0
        self.val_loss: float | None = None
        self.last_line = time.perf_counter()
        self._activity = ""

    def start(
        self,
        config: Config,
        corpus: Corpus,
        state: TrainingState,
        runtime: Runtime,
        steps_per_epoch: float,
        step: int,
        finished: str | None,
    ) -> None:
        """Print the text, the model, the steps and the device."""
        self.steps = config.train.steps
        parameters = sum(p.numel() for p in state.model.parameters())
        stats = corpus.stats
        epochs, whole = config.train.steps / steps_per_epoch, math.ceil(steps_per_epoch)
        coverage = f"\n  reads  {100 * epochs:.2g}% of the text; train.steps={whole} would read all of it once"
        coverage = coverage if 0 < epochs < 0.995 and finished is None else ""
        self.note(
            f"{_heading(step, config.train.steps, finished)}: {config.run_dir}\n"
            f"  text   {stats['train'].characters:,} characters train, {stats['val'].characters:,} validation;"
            f" {corpus.tokenizer.kind} vocabulary of {corpus.tokenizer.vocab_size:,}\n"
            f"{_unknown(corpus)}{_examples(config, corpus, round(steps_per_epoch * config.train.batch_size))}"
            f"  model  {parameters:,} parameters, context {config.model.context_length};"
            f" {plural(config.train.steps, 'step')} of {plural(config.train.batch_size, 'sequence')}{coverage}\n"
            f"{_trained_part(config, state)}"
            f"{_rate(config) if finished is None else ''}"
            f"  device {runtime.describe()}{', compiled code' if state.is_native else ''}"
        )
        if finished is None and config.task.kind == "language" and stats["val"].tokens < _FEWEST_VALIDATED:
            tokens = plural(stats["val"].tokens, "token")
            advice = "a longer text says more" if config.data.val_sources else "data.val_source names another text"
            self.note(f"  the validation split has {tokens}: its loss says little; {advice}")
        if finished is None:
            self._activity = "first step"  # it compiles
            self._open_bar(step, config.train.steps)

    @contextmanager
    def live(self) -> Iterator[None]:
        """Redraw the bar each second, if stderr is a terminal."""
        stop = threading.Event()
        try:
            if sys.stderr.isatty():
                threading.Thread(target=self._tick, args=(stop,), daemon=True).start()
            yield
        finally:
            stop.set()
            if self.bar is not None:
                self.bar.close()
                self.bar = None

    @contextmanager
    def doing(self, activity: str) -> Iterator[None]:
        """Show `activity` in the bar for the block, if it takes a second."""
        previous, self._activity = self._activity, activity
        try:
            yield
        finally:
            self._activity = previous

    def _tick(self, stop: threading.Event) -> None:
        while not stop.wait(SECOND):
            if (bar := self.bar) is not None:
                bar.set_description_str(self._activity, refresh=False)
                with suppress(ValueError):  # it was closed meanwhile
                    bar.refresh()

    def _open_bar(self, step: int, steps: int) -> None:
        if sys.stderr.isatty():
            self.bar = tqdm(
                file=BrokenPipeSafeStream(sys.stderr),
                initial=step,
                total=steps,
                unit="step",
                dynamic_ncols=True,
                leave=False,
            )

    def step(self, step: int, loss: float, tokens_per_second: float) -> None:
        self._activity = ""
        if self.bar is not None:
            val = "" if self.val_loss is None else f" val {self.val_loss:.4f}"
            self.bar.set_postfix_str(f"loss {loss:.4f}{val} {tokens_per_second:,.0f} tokens/s", refresh=False)
            self.bar.update(step - self.bar.n)
        elif time.perf_counter() - self.last_line > _SECONDS_BETWEEN_LINES:
            self._progress(step, f"loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s")

    def evaluation(
        self, step: int, evaluation: EvalMetrics | ClassEvalMetrics, seconds: float, seconds_left: float | None
    ) -> None:
        self.val_loss = evaluation.loss
        remaining = "" if seconds_left is None else f"  {format_duration(seconds_left)} left"
        self._progress(step, f"{evaluation.describe()}  {format_duration(seconds)}{remaining}")

    def sample(self, text: str) -> None:
        """Print a sample, a margin before each of its lines."""
        self.note("\n".join(f"    | {escape_control_chars(line)}" for line in text.split("\n")))

    def note(self, text: str) -> None:
        """Print a message, above the bar if there is one."""
        if self.bar is None:
            self.write_line(text)
            return
        with self.bar.get_lock():  # type: ignore[no-untyped-call]  # else `_tick` could draw the bar in between
            self.bar.clear(nolock=True)
            self.write_line(text)
            self.bar.refresh(nolock=True)

    def _progress(self, step: int, text: str) -> None:
        self.last_line = time.perf_counter()
        self.note(f"step {step:>{len(str(self.steps))}}/{self.steps}  {text}")


class SilentConsole(Console):
    """The console of a process other than process 0."""

    def __init__(self) -> None:
        super().__init__(lambda _: None)

    def _open_bar(self, step: int, steps: int) -> None:
        """There is none."""


def _unknown(corpus: Corpus) -> str:
    unk_id = corpus.tokenizer.unk_id
    share = 0.0 if unk_id is None else float(np.mean(corpus.val[:_COUNTED] == unk_id))
    return f"  <unk>  {share:.2%} of the validation text: characters that the vocabulary lacks\n" if share else ""


def _rate(config: Config) -> str:
    """A line where the warm-up takes most of the run."""
    what = schedule_warning(config.train.steps, config.schedule)
    return "" if what is None else f"  rate   {what}\n"


def _trained_part(config: Config, state: TrainingState) -> str:
    if config.task.trains == "head":
        return f"  head   of {state.model.head.weight.numel():,} parameters, the only ones that are trained\n"
    if not isinstance(state.optimizer, LoRA):
        return ""
    trained = sum(p.numel() for p in state.optimizer.adamw.parameters.values())
    return f"  LoRA   of rank {config.lora.rank}: {trained:,} parameters are trained in place of these\n"


def _examples(config: Config, corpus: Corpus, n: int) -> str:
    """The line on labelled texts, pairs or chats, of which `n` are trained on: too long ones may be left out."""
    if corpus.labelled:
        val = corpus.labelled["val"].lengths
        validated = np.count_nonzero((val <= config.model.context_length) | (config.data.too_long == "cut"))
        return f"  labels {len(config.task.labels or ()):,}, of {n:,} train and {validated:,} validation texts\n"
    if corpus.examples:
        of_all = f" of {len(corpus.examples['train']):,}" if n < len(corpus.examples["train"]) else ""
        return f"  {'chats ' if config.data.format == 'chat' else 'pairs '} {n:,}{of_all} to train on\n"
    return ""


def _heading(step: int, steps: int, finished: str | None) -> str:
    if finished is not None:  # by its time or its loss, if before the last step
        if steps == 0:
            return "no step to train"
        return "already complete" if step >= steps else f"already ended at step {step:,} of {steps:,}"
    return "training" if step == 0 else f"resuming from step {step:,}"
