"""What each ingredient of the default recipe is worth: it is taken out or exchanged, all else stays.

    python -m bench.ablations --text FILE                          all rows, three seeds, two corpora
    python -m bench.ablations --text FILE --only positions norms   those of some groups
    python -m bench.ablations --text FILE --minutes 10             as many as there is time for

FILE is tiny Shakespeare; the other corpus is the reference that Python brings along. Every row is the default recipe
in the shape of `configs/shakespeare_cpu.yaml` with the overrides it shows: the same number of tokens, the exact loss of
the whole validation split after the last step: mean and standard deviation over the seeds. A row stands beside the
default of the same seeds; `=` marks a difference of less than two standard errors, the noise being that of all rows of
the corpus together. A row without an equals sign in its name is a model of bench/residuals.py.

Each run is kept in bench/out/ablations.json when it is done, and not repeated: interrupted, the same command goes on.
`--table` prints what is there and trains nothing.
"""

import argparse
import json
import math
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "bench" / "out" / "ablations.json"
SEEDS = 3
ALWAYS = ("eval.every=null", "checkpoint.every=null", "sample.every=null", "sample.prompt=", "runtime.threads=1")
BASE = (
    *("model.n_layer=4", "model.n_head=4", "model.n_embd=128", "model.context_length=64"),
    *("tokenizer.kind=char", "train.batch_size=12", "train.steps=250"),
)
MODELS = {"value residual": "ValueResidualGPT", "embedding residual": "EmbeddingResidualGPT"}
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
    *_rows("head and heads", "model.logit_softcap=15", "model.tie_embeddings=true", "model.n_kv_head=2"),
    *_rows("biases", "model.bias=true"),
    *_rows("shortcuts from the first layer", *MODELS),
    *_rows("AdamW", *(f"optim.name=adamw optim.lr={lr}" for lr in ("5e-4", "1e-3", "2e-3", "4e-3", "8e-3"))),
    *_rows("Muon", "optim.lr=0.01", "optim.lr=0.03", "optim.adamw_lr=0.01", "optim.momentum=0.6"),
    *_rows("Muon", "optim.momentum=0.9", "optim.momentum=0.95", "optim.weight_decay=0"),
    *_rows("schedule", "schedule.kind=cosine", "schedule.kind=linear", "schedule.kind=constant"),
    *_rows("schedule", "schedule.decay_fraction=0.75", "schedule.warmup_steps=0"),
    *_rows("batch", "train.batch_size=6 train.steps=500", "train.batch_size=24 train.steps=125"),
    *_rows("average", "optim.ema=0.98", "schedule.kind=constant optim.ema=0.98"),
    *(Row(MANY_EPOCHS, overrides) for overrides in ((), ("optim.weight_decay=0",), ("optim.weight_decay=0.5",))),
    *_rows(MANY_EPOCHS, "model.dropout=0.2"),
)


@dataclass(frozen=True)
class Corpus:
    """A text to train on and, for many epochs, its excerpt with the validation split of the whole."""

    name: str
    whole: tuple[str, ...]
    excerpt: tuple[str, ...]

    def settings(self, row: Row) -> tuple[str, ...]:
        """What `row` is trained on, and how long, before its own overrides."""
        if row.group != MANY_EPOCHS:
            return self.whole
        return (*self.excerpt, "tokenizer.kind=byte", "train.steps=500")  # an excerpt lacks some of the characters


def prepare(name: str, source: str, folder: Path) -> Corpus:
    """The corpus `source`, an excerpt and its validation split laid down in `folder` as files."""
    from gpt_cli.config import DataConfig
    from gpt_cli.corpus.corpus_text import CorpusText

    text = CorpusText.find(DataConfig(source=source), lambda _: None)
    whole = "\n".join(block.text for number in range(len(text.members)) for block in text.blocks(number))
    parts = {"train": whole[:EXCERPT], "val": whole[len(whole) * 9 // 10 :]}
    for split, part in parts.items():
        (folder / f"{name}-{split}.txt").write_text(part, encoding="utf-8")
    files = (f"data.source={folder / f'{name}-train.txt'}", f"data.val_source={folder / f'{name}-val.txt'}")
    return Corpus(name, (f"data.source={source}",), files)


def settings_of(overrides: Sequence[str]) -> list[str]:
    """Those of `overrides` that are settings; a model of the bench's own is trained by torch."""
    settings = [override for override in overrides if override not in MODELS]
    return settings if len(settings) == len(overrides) else [*settings, "runtime.engine=torch"]


@contextmanager
def models(overrides: Sequence[str]) -> Iterator[None]:
    """Meanwhile, what is trained is the model that `overrides` name, if they do."""
    from bench import residuals
    from gpt_cli.training import state

    theirs = state.GPT
    for name in (override for override in overrides if override in MODELS):
        state.GPT = getattr(residuals, MODELS[name])  # type: ignore[misc]
    try:
        yield
    finally:
        state.GPT = theirs  # type: ignore[misc]


def train_once(overrides: Sequence[str], seed: int) -> float:
    """The exact validation loss, in nats per token, of the recipe under `overrides`."""
    from gpt_cli.config import parse_config
    from gpt_cli.training.console import Console
    from gpt_cli.training.loop import train

    with tempfile.TemporaryDirectory(prefix="gpt-ablation-") as folder, models(overrides):
        asked = [*ALWAYS, *BASE, *settings_of(overrides), f"seed={seed}", f"run_dir={folder}/run"]
        summary = train(parse_config("", "bench.ablations", asked), Console(lambda _: None))
    if summary.exit_code or summary.val_loss is None:
        sys.exit(summary.exit_code or "the run ended without a validation loss")
    return summary.val_loss


def read_record() -> dict[str, Any]:
    """The record so far; of another version of PyTorch, an error."""
    import torch

    here = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
    if not RECORD.is_file():
        return {**here, "runs": []}
    record: dict[str, Any] = json.loads(RECORD.read_text())
    if {key: record[key] for key in here} != here:
        sys.exit(f"{RECORD} was made by other versions: {record['torch']}, {record['python']}; move it away")
    return record


def key_of(corpus: str, row: Row, seed: int) -> dict[str, Any]:
    """What tells a run from all others."""
    return {"corpus": corpus, "group": row.group, "overrides": list(row.overrides), "seed": seed}


def missing(record: dict[str, Any], rows: Sequence[Row], corpora: Sequence[str]) -> Iterator[tuple[str, Row, int]]:
    """The runs that are not in the record: of all rows one seed first, then the next."""
    done = [{key: run[key] for key in ("corpus", "group", "overrides", "seed")} for run in record["runs"]]
    for seed in range(1, SEEDS + 1):
        for row in rows:
            yield from ((corpus, row, seed) for corpus in corpora if key_of(corpus, row, seed) not in done)


def losses(record: dict[str, Any], corpus: str, row: Row) -> dict[int, float]:
    """Seed -> loss of the runs that there are."""
    asked = (corpus, row.group, list(row.overrides))
    found = [run for run in record["runs"] if (run["corpus"], run["group"], run["overrides"]) == asked]
    return {run["seed"]: run["val_loss"] for run in found}


def noise(record: dict[str, Any], corpus: str, rows: Sequence[Row]) -> float:
    """The standard deviation of a difference to the default at one seed, over all `rows` together, in nats."""
    squares, freedom = 0.0, 0
    for row in rows:
        if differences := paired(record, corpus, row):
            mean = statistics.fmean(differences)
            squares += sum((difference - mean) ** 2 for difference in differences)
            freedom += len(differences) - 1
    return math.sqrt(squares / freedom) if freedom else math.nan


def paired(record: dict[str, Any], corpus: str, row: Row) -> list[float]:
    """By how much `row` is worse than its default, seed by seed."""
    default = losses(record, corpus, Row(row.group if row.group == MANY_EPOCHS else DEFAULT.group, ()))
    mine = losses(record, corpus, row)
    return [mine[seed] - default[seed] for seed in sorted(mine.keys() & default.keys())] if row.overrides else []


def table(record: dict[str, Any], corpora: Sequence[str]) -> str:
    """The record as Markdown."""
    lines = [
        "| | " + " | ".join(f"{corpus} | worse by" for corpus in corpora) + " |",
        "|---|" + "---|---|" * len(corpora),
    ]
    group = ""
    for row in (row for row in ROWS if any(losses(record, corpus, row) for corpus in corpora)):
        if row.group != group:
            group = row.group
            lines += [f"| **{group}** |" + " | |" * len(corpora)] if row is not DEFAULT else []
        name = f"`{row.name}`" if row.overrides else "default"
        lines.append(f"| {name} | " + " | ".join(_cells(record, corpus, row) for corpus in corpora) + " |")
    return "\n".join(lines)


def _cells(record: dict[str, Any], corpus: str, row: Row) -> str:
    found = list(losses(record, corpus, row).values())
    if not found:
        return " | "
    spread = f" ± {statistics.stdev(found):.3f}" if len(found) > 1 else ""
    spread += f" (n={len(found)})" if len(found) < SEEDS else ""
    differences = paired(record, corpus, row)
    if not differences:
        return f"{statistics.fmean(found):.3f}{spread} | "
    mean, error = statistics.fmean(differences), standard_error(record, corpus, row)
    sign = "?" if math.isnan(error) else "=" if abs(mean) <= 2 * error else ""
    return f"{statistics.fmean(found):.3f}{spread} | {mean:+.3f} {sign}".rstrip()


def standard_error(record: dict[str, Any], corpus: str, row: Row) -> float:
    """Of the mean difference of `row` to its default, in nats; rows of many epochs have a noise of their own."""
    alike = [other for other in ROWS if (other.group == MANY_EPOCHS) == (row.group == MANY_EPOCHS)]
    return noise(record, corpus, alike) / math.sqrt(max(1, len(paired(record, corpus, row))))


def main() -> None:
    """Train what is missing, keep each run, print the table."""
    groups = list(dict.fromkeys(row.group for row in ROWS))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, type=Path, metavar="FILE")
    parser.add_argument("--only", nargs="+", choices=groups, default=groups, metavar="GROUP", help=", ".join(groups))
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    from gpt_cli.files import replace_file

    sources = {"shakespeare": str(arguments.text.resolve()), "python-docs": "builtin:python-docs"}
    record, started = read_record(), time.monotonic()
    rows = [row for row in ROWS if row.group in arguments.only or row is DEFAULT]
    with tempfile.TemporaryDirectory(prefix="gpt-ablations-") as folder:
        corpora = {name: prepare(name, source, Path(folder)) for name, source in sources.items()}
        todo = [] if arguments.table else list(missing(record, rows, list(corpora)))
        for number, (corpus, row, seed) in enumerate(todo, 1):
            if time.monotonic() - started > 60 * arguments.minutes:
                print(f"{len(todo) - number + 1} runs are left: the same command goes on", file=sys.stderr)
                break
            settings, began = (*corpora[corpus].settings(row), *row.overrides), time.monotonic()
            loss = train_once(settings, seed)
            seconds = round(time.monotonic() - began, 1)
            record["runs"].append({**key_of(corpus, row, seed), "val_loss": loss, "seconds": seconds})
            RECORD.parent.mkdir(exist_ok=True)
            replace_file(RECORD, (json.dumps(record, indent=1) + "\n").encode())
            print(f"{number}/{len(todo)} {corpus} {row.name} {seed}: {loss:.4f}, {seconds} s", file=sys.stderr)
    print(table(record, list(sources)))


if __name__ == "__main__":
    main()
