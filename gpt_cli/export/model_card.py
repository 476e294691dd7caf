"""The README of an exported model: size, validation loss, usage, config."""

from gpt_cli.config import dump_config
from gpt_cli.errors import Notify
from gpt_cli.run.load_model import LoadedRun
from gpt_cli.run.log import read_metrics
from gpt_cli.terminal.words import plural


def model_card(run: LoadedRun, architecture: str, note: Notify) -> str:
    """The model card in Markdown, with the metrics of the run and its config."""
    parameters = sum(p.numel() for p in run.model.parameters())
    tokenizer = f"{run.tokenizer.kind} vocabulary of {run.tokenizer.vocab_size:,} ids"
    classes = run.config.task.labels is not None
    return f"""---
library_name: transformers
pipeline_tag: {"text-classification" if classes else "text-generation"}
---

# A {"classifier" if classes else "language model"} of {parameters:,} parameters

Trained with `gpt`; in Transformers it is a `{architecture}`.

{_table(_training_facts(run, note) | {"tokenizer": tokenizer, "context": _context(run)})}

## Use

{_CLASSIFY if classes else _use(run)}

## Config

What differs from the defaults of `gpt`:

~~~yaml
{dump_config(run.config, full=False)}~~~
"""


_CLASSIFY = """```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")
model = AutoModelForSequenceClassification.from_pretrained("DIRECTORY")
logits = model(**tokenizer("TEXT", return_tensors="pt")).logits
print(model.config.id2label[int(logits.argmax())])
```"""


def _use(run: LoadedRun) -> str:
    return f"""```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")
model = AutoModelForCausalLM.from_pretrained("DIRECTORY")
inputs = tokenizer("{_prompt(run)}", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))
```

Prompt and continuation together fit in {_context(run)}."""


def _context(run: LoadedRun) -> str:
    return plural(run.config.model.context_length, "token")


def _training_facts(run: LoadedRun, note: Notify) -> dict[str, str]:
    """Step, validation loss and weights digest of the checkpoint, by name."""
    pairs = {"step": f"{run.step:,}"}
    if isinstance(loss := run.state.get("val_loss"), float):
        pairs["validation loss"] = f"{loss:.4f} nats per {run.config.task.predicted}"
    if bits := _bits(run, note):
        pairs["bits per byte"] = f"{bits:.4f}"
    return pairs | {"weights": f"sha256 {run.weights_sha256}"}


def _bits(run: LoadedRun, note: Notify) -> float | None:
    """Bits per byte at the checkpoint, from the log of its run, if it is there."""
    lines = read_metrics(run.path.parent.parent, note)
    return next((line["bpb"] for line in lines if line["step"] == run.step and "bpb" in line), None)


def _table(pairs: dict[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in pairs.items())])


def _prompt(run: LoadedRun) -> str:
    """The prompt of the run's samples, escaped for quotes; without one the first token that is a letter."""
    text = run.config.sample.prompt or next(
        (piece for token in range(run.tokenizer.vocab_size) if (piece := run.tokenizer.decode([token])).isalpha()), ""
    )
    return text.encode("unicode_escape").decode("ascii").replace('"', '\\"')
