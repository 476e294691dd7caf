"""The commands of `gpt`: the module of a command is imported when the command is called."""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from gpt_cli.cli.help_format import App, PanelGroup

COMMANDS = {
    "train": ("train", "train", "Train a model, or resume a run that was interrupted."),
    "sample": ("sample", "sample", "Continue prompts with a trained model."),
    "chat": ("chat", "chat", "Chat with a model, turn by turn."),
    "classify": ("classify", "classify", "Predict the label of a text."),
    "tokenize": ("tokenize", "tokenize", "Train or load a tokenizer, and encode a corpus."),
    "eval": ("eval", "evaluate", "Measure the exact loss of a run, on its own text or another."),
    "score": ("score", "score", "Measure how likely a text is under a model."),
    "info": ("info", "info", "Show the size of a model and the cost of training it."),
    "report": ("report", "report", "Write an HTML report on one or more runs."),
    "plot": ("plot", "plot", "Plot the curves of runs for a paper."),
    "diff": ("diff", "diff", "Show how runs differ."),
    "attention": ("attention", "attention", "Show what each attention head attends to."),
    "draw": ("draw", "draw", "Draw the effect of a part of a config."),
    "bench": ("bench", "bench", "Benchmark training on this machine."),
    "tune": ("tune", "tune", "Suggest a learning rate."),
    "sweep": ("sweep", "sweep", "Compare values of keys over seeds."),
    "scale": ("scale", "scale", "Fit a scaling law to small runs."),
    "export": ("export", "export", "Export a run to the format of another tool."),
    "import": ("import_", "import_", "Import a model of another tool as a run."),
    "serve": ("serve", "serve", "Serve runs through an OpenAI-compatible API, with a web page."),
    "doctor": ("selftest", "doctor", "Check a run for damage."),
    "selftest": ("selftest", "selftest", "Test gpt's guarantees on this machine and disk."),
    "runs": ("runs", "app", "List runs, or remove one."),
    "config": ("config", "app", "Show, create or validate a config."),
    "data": ("data", "app", "List, download or inspect corpora."),
}
"""{command: (its module of `verbs`, its function or group there, its short help)}, in the order of `gpt --help`."""


class LazyGroup(PanelGroup):
    """The group of COMMANDS: it lists and completes their names without importing them."""

    def __init__(self, **settings: Any) -> None:
        names = {name: TyperCommand(name, short_help=short_help) for name, (_, _, short_help) in COMMANDS.items()}
        super().__init__(**{**settings, "commands": names})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """(name, command, other arguments). The command is imported here; `commands` has names and short helps only."""
        name, known, rest = super().resolve_command(ctx, args)
        return name, known and load(known.name), rest


def load(name: str) -> Any:
    """The command or group of this name."""
    module, attribute, short_help = COMMANDS[name]
    verb = getattr(import_module(f"gpt_cli.cli.verbs.{module}"), attribute)
    if not isinstance(verb, typer.Typer):
        app = App()
        app.command()(verb)
        verb = app
    command = typer.main.get_command(verb)
    command.name, command.short_help = name, short_help
    return command
