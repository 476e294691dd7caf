"""The worth of each ingredient of the default recipe: it is taken out or exchanged, all else stays.

    python -m bench.ablations --text FILE                          all rows, three seeds, two corpora
    python -m bench.ablations --text FILE --only positions norms   those of some groups
    python -m bench.ablations --text FILE --minutes 10             as many as there is time for
    python -m bench.ablations --text FILE --steps 2600             over 2,600 steps, not 250

FILE is tiny Shakespeare; the other corpus is the reference that Python brings along. Every row is the default recipe
in the shape of `configs/shakespeare_cpu.yaml` with the overrides it shows: the same number of tokens, the exact loss of
the whole validation split after the last step: mean and standard deviation over the seeds. A row stands beside the
default of the same seeds, as `gpt sweep` compares settings: `=` marks a difference that seeds would make, too. A row
without an equals sign in its name is a model of bench/model_variants.py.

The runs are those of a sweep, in bench/out/ablations (2 GB): interrupted, the same command goes on with what is there.
Rows that set the number of steps are of 250 alone. `--table` prints that and trains nothing.
"""

import argparse
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.model_variants import ATTENTION, MODELS, SHORTCUTS
from gpt_cli.config import DataConfig, dump_config, parse_config
from gpt_cli.corpus.corpus_text import CorpusText
from gpt_cli.files import make_directory
from gpt_cli.runtime.processor import default_threads
from gpt_cli.runtime.signals import stop_requests
from gpt_cli.search.sweep.differences import compare
from gpt_cli.search.sweep.executor import ListSource, RunLimits, RunTask, execute, open_home
from gpt_cli.search.sweep.outcomes import read_outcome
from gpt_cli.search.sweep.run_pool import RunPool
from gpt_cli.search.sweep.sweep import config_changes

OUT = Path(__file__).parent / "out" / "ablations"
SEEDS = 3
BASE = (
    *("eval.every=null", "checkpoint.every=null", "sample.every=null", "sample.prompt=", "runtime.threads=1"),
    *("model.n_layer=4", "model.n_head=4", "model.n_embd=128", "model.context_length=64"),
    *("tokenizer.kind=char", "train.batch_size=12"),
)
STEPS = 250
MANY_EPOCHS = "many epochs"
EXCERPT = 20_000  # characters, which 500 steps see 19 times


@dataclass(frozen=True)
class Row:
    """An ingredient, and the overrides that take it away or put another in its place."""

    group: str
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """As it is told, which is as it is typed."""
        return " ".join(self.overrides) or "default"


Losses = Mapping[tuple[str, Row], Mapping[int, float]]
"""(corpus, row) -> seed -> loss of the runs that there are."""


def _rows(group: str, *overrides: str) -> list[Row]:
    return [Row(group, (override,) if override in MODELS else tuple(override.split())) for override in overrides]


DEFAULT = Row("default", ())
ROWS = (
    DEFAULT,
    *_rows("recipes", "recipe=speed", "recipe=classic"),
    *_rows("positions", *(f"model.position={kind}" for kind in ("learned", "sinusoidal", "none"))),
    *_rows("norms", "model.norm=layernorm", "model.norm_gain=false", "model.norm_position=post", "model.qk_norm=false"),
    *_rows("activation", *(f"model.mlp={kind}" for kind in ("gelu", "relu", "relu2"))),
    *_rows("start", "model.zero_init=false"),
    *_rows("previous-token heads", "model.previous_token_init=true"),
    *_rows("head and heads", "model.logit_softcap=15", "model.tie_embeddings=true", "model.n_kv_head=2"),
    *_rows("biases", "model.bias=true"),
    *_rows("shortcuts from the first layer", *SHORTCUTS),
    *_rows("AdamW", *(f"optim.name=adamw optim.lr={lr}" for lr in ("5e-4", "1e-3", "2e-3", "4e-3", "8e-3"))),
    *_rows("Muon", "optim.lr=0.01", "optim.lr=0.03", "optim.adamw_lr=0.01", "optim.momentum=0.6"),
    *_rows("Muon", "optim.momentum=0.9", "optim.momentum=0.95", "optim.weight_decay=0"),
    *_rows("schedule", "schedule.kind=cosine", "schedule.kind=linear", "schedule.kind=constant"),
    *_rows("schedule", "schedule.decay_fraction=0.75", "schedule.warmup_steps=0"),
    *_rows("batch", "train.batch_size=6 train.steps=500", "train.batch_size=24 train.steps=125"),
    *_rows("average", "optim.ema=0.98", "schedule.kind=constant optim.ema=0.98"),
    *(Row(MANY_EPOCHS, overrides) for overrides in ((), ("optim.weight_decay=0",), ("optim.weight_decay=0.5",))),
    *_rows(MANY_EPOCHS, "model.dropout=0.2"),
    *_rows("attention", *ATTENTION, "model.head_gate=true"),
)


def data_of(corpus: str, source: str, steps: int) -> dict[bool, tuple[str, ...]]:
    """{whether epochs are many: the settings for it}: an excerpt and the validation split are laid down as files."""
    text = CorpusText.find(DataConfig(source=source), lambda _: None)
    whole = "\n".join(block.text for number in range(len(text.files)) for block in text.blocks(number))
    files = {split: OUT / f"{corpus}-{split}.txt" for split in ("train", "val")}
    files["train"].write_text(whole[:EXCERPT], encoding="utf-8")
    files["val"].write_text(whole[len(whole) * 9 // 10 :], encoding="utf-8")
    excerpt = (f"data.source={files['train']}", f"data.val_source={files['val']}")
    return {  # an excerpt lacks some of the characters
        False: (f"data.source={source}", f"train.steps={steps}"),
        True: (*excerpt, "tokenizer.kind=byte", "train.steps=500"),
    }


def task_of(name: str, settings: Sequence[str], row: Row, seed: int) -> RunTask:
    """The run of `row`, called `name` and so on; a model of the bench's own is trained by torch."""
    label = f"{name} {row.group} {row.name} seed={seed}"
    overridden = [key if key not in MODELS else "runtime.engine=torch" for key in row.overrides]
    run_dir = OUT / re.sub(r"[^\w.=+-]+", "-", label)
    overrides = [*BASE, *settings, *overridden, f"seed={seed}", f"run_dir={run_dir}"]
    config = parse_config("", "bench", overrides)
    there = run_dir / "config.yaml"
    if there.is_file() and (changes := config_changes(there.read_text(encoding="utf-8"), dump_config(config))):
        sys.exit(f"{run_dir} is a run of another config: move it away{''.join(changes)}")
    return RunTask(label, label, config)


def train_all(tasks: Sequence[RunTask], minutes: float | None = None, jobs: int | None = None) -> int:
    """Train what is not there yet; returns 0, or 128 + the signal that ended it."""
    with stop_requests() as stop, RunPool(jobs or default_threads(), worker="bench.model_variants") as pool:
        limits = RunLimits(None if minutes is None else 60 * minutes)
        done = execute(ListSource(tasks), pool, limits, stop, lambda line: print(line, file=sys.stderr))
    if done.left or stop.received:
        left = len(tasks) - len(done.outcomes)
        print(f"{left} runs are left, {done.left or 'interrupted'}: the same command goes on", file=sys.stderr)
    return 128 + stop.received if stop.received else 0


def loss_of(task: RunTask) -> float | None:
    """The loss of a run that is done."""
    outcome = read_outcome(Path(str(task.config.run_dir)), task.config.train.steps)
    return outcome.val_loss if outcome.state == "done" else None


def table(losses: Losses, corpora: Sequence[str]) -> str:
    """The losses as Markdown."""
    cells = {corpus: _cells(losses, corpus) for corpus in corpora}
    lines = [
        "| | " + " | ".join(f"{corpus} | worse by" for corpus in corpora) + " |",
        "|---|" + "---|---|" * len(corpora),
    ]
    group = DEFAULT.group
    for row in (row for row in ROWS if any(losses.get((corpus, row)) for corpus in corpora)):
        if row.group != group:
            group = row.group
            lines.append(f"| **{group}** |" + " | |" * len(corpora))
        name = f"`{row.name}`" if row.overrides else "default"
        lines.append(f"| {name} | " + " | ".join(cells[corpus].get(row, " | ") for corpus in corpora) + " |")
    return "\n".join(lines)


def _cells(losses: Losses, corpus: str) -> dict[Row, str]:
    """The loss of each row and its difference to the default; many epochs have a default and a noise of their own."""
    cells = {}
    for many in (False, True):
        rows = [row for row in ROWS if (row.group == MANY_EPOCHS) == many and losses.get((corpus, row))]
        by_seeds = [losses[corpus, row] for row in rows]
        default = next((number for number, row in enumerate(rows) if not row.overrides), None)
        differences = [None] * len(rows) if default is None else compare(by_seeds, default)
        for row, by_seed, difference in zip(rows, by_seeds, differences, strict=True):
            spread = f" ± {statistics.stdev(by_seed.values()):.3f}" if len(by_seed) > 1 else ""
            spread += f" (n={len(by_seed)})" if len(by_seed) < SEEDS else ""
            worse = ""
            if difference is not None:
                worse = f"{difference.mean:+.3f}" + {None: " ?", True: "", False: " ="}[difference.is_told_apart]
            cells[row] = f"{statistics.fmean(by_seed.values()):.3f}{spread} | {worse}"
    return cells


def main() -> int:
    """Train what is missing, print the table; returns the exit code."""
    groups = list(dict.fromkeys(row.group for row in ROWS))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, type=Path, metavar="FILE")
    parser.add_argument("--only", nargs="+", choices=groups, default=groups, metavar="GROUP", help=", ".join(groups))
    parser.add_argument("--steps", type=int, default=STEPS, help="of a run (default: %(default)s)")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--jobs", type=int, help="runs side by side (default: one per core)")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    steps: int = arguments.steps
    sources = {"shakespeare": str(arguments.text.resolve()), "python-docs": "builtin:python-docs"}
    rows = [row for row in ROWS if row.group in arguments.only or row is DEFAULT]
    if steps != STEPS:
        rows = [row for row in rows if row.group != MANY_EPOCHS and "train.steps=" not in row.name]
    make_directory(OUT)
    with open_home(OUT):
        data = {corpus: data_of(corpus, source, steps) for corpus, source in sources.items()}
        tasks = {
            (corpus, row, seed): task_of(
                corpus if steps == STEPS else f"{corpus} {steps}", data[corpus][row.group == MANY_EPOCHS], row, seed
            )
            for seed in range(1, SEEDS + 1)
            for row in rows
            for corpus in sources
        }
        code = 0 if arguments.table else train_all(list(tasks.values()), arguments.minutes, arguments.jobs)
    losses: dict[tuple[str, Row], dict[int, float]] = {}
    for (corpus, row, seed), task in tasks.items():
        if (loss := loss_of(task)) is not None:
            losses.setdefault((corpus, row), {})[seed] = loss
    print(table(losses, list(sources)))
    return code


if __name__ == "__main__":
    sys.exit(main())
