"""A command line that is wrong: the error, and the way out in our words where somebody speaks those of other tools."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from shlex import quote
from typing import Any

import typer

from gpt_cli.errors import RequestError

_ELSEWHERE = {
    "gpt sample": ("generate", "complete", "predict", "infer", "inference", "write", "run", "prompt", "text"),
    "gpt train TEXT train.init_from=RUN": ("finetune", "fine-tune", "fine_tune", "sft", "lora", "adapt"),
    "gpt train RUN": ("resume", "continue", "restart"),
    "gpt train TEXT": ("fit", "pretrain", "learn", "start"),
    "gpt --help": ("help", "man", "usage", "commands"),
    "gpt --version": ("version",),
    "gpt eval": ("evaluate", "test", "validate", "perplexity", "ppl", "loss", "lm_eval", "lm-eval"),
    "gpt score TEXT": ("classify", "surprise", "logprobs"),
    "gpt runs": ("list", "ls", "ps", "history", "show", "status"),
    "gpt runs rm RUN": ("rm", "remove", "delete", "del", "clean", "prune"),
    "gpt tokenize TEXT": ("prepare", "preprocess", "encode", "tokenise", "tokenizer", "bpe", "decode"),
    "gpt data get NAME": ("download", "fetch", "pull", "get", "dataset", "corpus"),
    "gpt data inspect TEXT": ("inspect", "stats", "analyze", "analyse"),
    "gpt export RUN PATH": ("convert", "save", "gguf", "quantize", "push"),
    "gpt import hf DIR RUN": ("load", "from_pretrained"),
    "gpt config init TEXT": ("init", "new", "create", "configure", "setup"),
    "gpt report RUN": ("visualize", "visualise", "dashboard", "view", "tensorboard"),
    "gpt plot RUN": ("graph", "chart", "curves"),
    "gpt diff RUN RUN": ("compare", "cmp"),
    "gpt bench CONFIG": ("benchmark", "profile", "speed", "time"),
    "gpt tune CONFIG": ("lr", "lr-find", "lrfind", "find-lr", "range-test"),
    "gpt doctor RUN": ("check", "verify", "fsck", "validate-run"),
    "gpt chat": ("interactive", "repl", "talk", "shell"),
}
"""Our command, and what it is called elsewhere."""

COMMANDS = {name: command for command, names in _ELSEWHERE.items() for name in names}

_OPTIONS = {
    "sample": {
        "length": "max-new-tokens", "max-length": "max-new-tokens", "max-tokens": "max-new-tokens", "n-predict":
        "max-new-tokens", "num-samples": "n", "num-return-sequences": "n", "samples": "n", "temp": "temperature",
        "checkpoint": "run", "model": "run", "start": "prompt", "file": "prompt-file", "num-beams": "beams",
        "out-dir": "run", "quantize": "dtype", "no-repeat-ngram-size": "no-repeat-ngram", "random-seed": "seed",
    },
    "eval": {"checkpoint": "run", "model": "run", "file": "text", "data": "text", "dataset": "text"},
    "score": {"checkpoint": "run", "model": "run", "top": "worst"},
    "tokenize": {"vocab": "vocab-size", "size": "vocab-size", "output": "out", "type": "kind", "file": "tokenizer"},
    "export": {"format": "to", "type": "dtype", "quantize": "dtype", "outtype": "dtype"},
}  # fmt: skip
_OPTIONS["chat"] = _OPTIONS["sample"]
_CHANGING = ("CONFIG", "TEXT", "section.key=value")  # metavars of verbs that take changes to a config
_BOTH = re.compile(r"(--[a-z-]+(?: [^\s(]+)?) \(([a-z_]+\.[a-z_]+[^)]*)\)")


def usage_error(error: typer.TyperException, arguments: Sequence[str]) -> RequestError:
    """The error for a command line that Typer refuses, in our words, and with a hint that helps."""
    message = error.format_message().rstrip(".").replace("Value error, ", "")
    context = getattr(error, "ctx", None)  # Typer exports neither the class that has one, nor sets it always
    path = f"gpt {arguments[0]}" if context is None else context.command_path
    option = getattr(error, "option_name", None)
    hint = f"{path} --help"
    if context is not None and option is not None:
        message = message.partition(" (Possible")[0]
        hint = _of_option(context, option.lstrip("-"), arguments) or hint
    elif context is not None and (unknown := re.match(r"No such command '([^']*)'", message)):
        name = unknown[1]
        ours = COMMANDS.get(name.lower()) if path == "gpt" else None
        close = get_close_matches(name.lower(), context.command.commands, 1, 0.6)
        if ours is not None or close:
            message, hint = message.partition(". Did")[0], ours or f"did you mean {path} {close[0]}?"
    elif context is not None and "unexpected extra argument" in message and path in ("gpt sample", "gpt attention"):
        words = " ".join(argument for argument in arguments[1:] if not argument.startswith("-"))
        hint = f"a text in several words is one in quotes: {path} --prompt {quote(words)}"
    return RequestError(message[:1].lower() + message[1:], hint=hint)


def takes_changes(context: Any) -> bool:
    """True if a verb takes `section.key=value`."""
    return any("section.key=value" in (parameter.metavar or "") for parameter in context.command.params)


def _of_option(context: Any, name: str, arguments: Sequence[str]) -> str | None:
    """The suggestion for the unknown option `name`: one of the verb's own, or a key of the config."""
    known = [option.lstrip("-") for parameter in context.command.params for option in parameter.opts]
    name, _, _ = name.partition("=")
    spelled = name.replace("_", "-").lower()
    ours = _OPTIONS.get(context.info_name, {}).get(spelled) or (spelled if spelled in known else None)
    value = _value_of(name, arguments)
    if ours is not None:
        return f"--{ours} {value}" if len(ours) > 1 else f"-{ours} {value}"
    if takes_changes(context):
        from gpt_cli.config.keys import key_for

        key = key_for(name)
        if key is not None:
            return f"keys of the config are written without dashes: {_assignment(key, name, value)}"
    close = get_close_matches(spelled, [option for option in known if len(option) > 1], 1, 0.6)
    return f"did you mean --{close[0]}?" if close else None


def _assignment(key: str, name: str, value: str) -> str:
    if "epoch" in name:
        return f"{key}=1000 (the run says how often that reads the text)"
    return f"{key}={quote(value)}"


def _value_of(name: str, arguments: Sequence[str]) -> str:
    """The text after the option on the command line."""
    for number, argument in enumerate(arguments):
        option, equals, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and option == name:
            if equals:
                return value
            following = arguments[number + 1 : number + 2]
            return following[0] if following and not following[0].startswith("--") else "VALUE"
    return "VALUE"


def hint_for(hint: str, arguments: Sequence[str], command: Any) -> str:
    """`hint`, which may say both `--option X (section.key=X)`, in the words of the verb that was called."""
    verb: Any = command
    names = [argument for argument in arguments if not argument.startswith("-")]
    while names and (inner := getattr(verb, "commands", {}).get(names[0])) is not None:
        verb, names = inner, names[1:]
    options = {option for parameter in getattr(verb, "params", ()) for option in parameter.opts}
    return _BOTH.sub(lambda found: found[1] if found[1].split(" ")[0] in options else found[2], hint)
