"""A command line that is wrong: the error, and the way out in our words where somebody speaks those of other tools."""

import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import pairwise, takewhile
from pathlib import Path
from shlex import quote
from typing import Any

import typer

from gpt_cli.errors import RequestError, did_you_mean
from gpt_cli.files.safe_io import how_to_permit

_ELSEWHERE = {
    "gpt sample": ("generate", "complete", "predict", "infer", "inference", "write", "run", "prompt", "text"),
    "gpt train TEXT train.init_from=RUN": ("finetune", "fine-tune", "fine_tune", "sft", "lora", "adapt"),
    "gpt train RUN": ("resume", "continue", "restart"),
    "gpt train TEXT": ("fit", "pretrain", "learn", "start"),
    "gpt --help": ("help", "man", "usage", "commands"),
    "gpt --version": ("version",),
    "gpt --install-completion": ("completion", "completions", "install-completion"),
    "gpt eval": ("evaluate", "test", "validate", "perplexity", "ppl", "loss", "lm_eval", "lm-eval"),
    "gpt score TEXT": ("surprise", "logprobs"),
    "gpt runs": ("list", "ls", "ps", "history", "show", "status"),
    "gpt runs rm RUN": ("rm", "remove", "delete", "del", "clean", "prune"),
    "gpt tokenize TEXT": ("prepare", "preprocess", "encode", "tokenise", "tokenizer", "bpe", "decode"),
    "gpt data get NAME": ("download", "fetch", "pull", "get", "dataset", "corpus"),
    "gpt data inspect TEXT": ("inspect", "stats", "analyze", "analyse"),
    "gpt export RUN PATH": ("convert", "save", "gguf", "quantize", "push", "merge"),
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

_GROUPS = {
    "gpt": COMMANDS,
    "gpt runs": {
        **dict.fromkeys(("list", "ls", "ps", "all"), "gpt runs"),
        **dict.fromkeys(("show", "info", "describe", "status"), "gpt info RUN"),
        **dict.fromkeys(("delete", "remove", "del", "prune", "clean"), "gpt runs rm RUN"),
        **dict.fromkeys(("resume", "continue"), "gpt train RUN"),
        **dict.fromkeys(("diff", "compare"), "gpt diff RUN RUN"),
    },
    "gpt config": {
        **dict.fromkeys(
            ("explain", "print", "list", "get", "check", "validate", "cat", "view"), "gpt config show FILE"
        ),
        **dict.fromkeys(("new", "create", "write", "generate"), "gpt config init -o FILE"),
        **dict.fromkeys(("set", "edit"), "keys stand behind the file: gpt train FILE section.key=value"),
    },
    "gpt data": {name: command for name, command in COMMANDS.items() if command.startswith("gpt data")},
}
"""By a command that has commands: its own and other ways, by what they are called elsewhere."""

_OPTIONS = {
    "sample": {
        "length": "max-new-tokens", "max-length": "max-new-tokens", "max-tokens": "max-new-tokens", "n-predict":
        "max-new-tokens", "tokens": "max-new-tokens", "num-tokens": "max-new-tokens", "n-tokens": "max-new-tokens",
        "num-samples": "n", "num-return-sequences": "n", "samples": "n", "num": "n", "temp":
        "temperature",
        "checkpoint": "run", "model": "run", "start": "prompt", "file": "prompt-file", "num-beams": "beams",
        "out-dir": "run", "quantize": "dtype", "no-repeat-ngram-size": "no-repeat-ngram", "random-seed": "seed",
    },
    "eval": {"checkpoint": "run", "model": "run", "file": "text", "data": "text", "dataset": "text"},
    "score": {
        "checkpoint": "run", "model": "run", "top": "worst", "o": "html", "out": "html", "output": "html",
    },
    "tokenize": {"vocab": "vocab-size", "size": "vocab-size", "output": "out", "type": "kind", "file": "tokenizer"},
    "export": {"format": "to", "type": "dtype", "quantize": "dtype", "outtype": "dtype"},
    "train": {
        "gpus": "devices", "num-gpus": "devices", "nproc-per-node": "devices", "num-processes": "devices",
        "run": "arguments",
    },
    "bench": {"run": "arguments"},
    "show": {"run": "file"},
    "rm": {"force": "yes", "f": "yes", "run": "paths"},
    **{verb: {"html": "output", "out": "output", "file": "output"} for verb in ("attention", "report", "plot")},
}  # fmt: skip
_OPTIONS["chat"] = _OPTIONS["sample"]
_SPOKEN = {
    "sample": {
        "step": "a checkpoint is a folder of its run: --run runs/NAME/checkpoints/step-00000600",
        **dict.fromkeys(("o", "out", "output"), "texts go to standard output: put > FILE at the end"),
        **dict.fromkeys(("greedy", "no-sample", "deterministic"), "the likeliest token each time: --temperature 0"),
    },
    "tokenize": {"run": "the tokenizer of a run is --tokenizer RUN/tokenizer.json"},
    "score": {"text": "a text is a file, or - for standard input: gpt score -"},
    "train": {
        **dict.fromkeys(("resume", "resume-from-checkpoint", "resume-from"), "gpt train RUN resumes that run"),
        **dict.fromkeys(
            ("force", "overwrite", "overwrite-output-dir", "from-scratch", "restart", "fresh", "new"),
            "a run is never overwritten: run_dir=runs/NAME begins another",
        ),
    },
}
"""By a verb and an option that it lacks: the way it is done instead."""
_TRUTHS = ("0", "1", "yes", "no", "on", "off")
_WORDS = {
    r"Input should be a valid integer.*": "it must be a whole number, not {value}",
    r"Input should be a valid number.*": "it must be a number, not {value}",
    r"Input should be greater than or equal to (\S+)": r"it must be at least \1, not {value}",
    r"Input should be less than or equal to (\S+)": r"it must be at most \1, not {value}",
    r"Input should be greater than (\S+)": r"it must be above \1, not {value}",
    r"Input should be less than (\S+)": r"it must be below \1, not {value}",
    r"\.? Choose from:\s*": ": one of ",
    r"\s*\n\s*": " ",
}
"""By the words of Typer and pydantic: ours."""
_DTYPES = {
    **dict.fromkeys(("float32", "fp32", "float"), "f32"),
    **dict.fromkeys(("float16", "fp16", "half"), "f16"),
    **{"bfloat16": "bf16", "int8": "q8_0", "q8": "q8_0", "int4": "q4_0", "q4": "q4_0"},
}
"""By the name of a data type elsewhere: that of `gpt export`."""
_LLAMA_CPP_TYPE = re.compile(r"(i?q\d|tq\d|mxfp|nvfp)\w*", re.IGNORECASE)  # such as Q4_K_M and IQ2_XS
_NO_VALUE = "VALUE"  # for the one that the command line lacks
_BOTH = re.compile(r"(--[a-z-]+(?: (?:'[^']*'|[^\s(]+))?) \(([a-z_]+\.[a-z_]+(?:='[^']*')?[^)]*)\)")


def usage_error(error: typer.TyperException, arguments: Sequence[str]) -> RequestError:
    """The error for a command line that Typer refuses, in our words, and with a hint that helps."""
    message = _in_our_words(error.format_message().rstrip(".").replace("Value error, ", ""), arguments)
    context = getattr(error, "ctx", None)  # Typer exports neither the class that has one, nor sets it always
    path = f"gpt {arguments[0]}" if context is None else context.command_path
    option = getattr(error, "option_name", None)
    hint: str | None = f"{path} --help"
    if context is not None and option is not None:
        message = message.partition(" (Possible")[0]
        hint = _of_option(context, option.lstrip("-"), arguments) or hint
    elif context is not None and (unknown := re.match(r"No such command '([^']*)'", message)):
        name = unknown[1]
        ours = _GROUPS.get(path, {}).get(name.lower())
        close = did_you_mean(name.lower(), context.command.commands, f"{path} ")
        if path == "gpt config" and os.path.isfile(name):
            ours = f"gpt config show {quote(name)}"
        if path == "gpt runs" and os.path.isdir(name):
            ours = f"gpt runs --dir {quote(name)}"
        if ours == "gpt --help":
            ours = _help_of(context.command, arguments[1:])
        if ours or close:
            message, hint = message.partition(". Did")[0], ours or close
    elif context is not None and "unexpected extra argument" in message and path in ("gpt sample", "gpt attention"):
        hint = _of_words(path, arguments[1:]) or hint
    elif path == "gpt eval" and "unexpected extra argument" in message:
        words = _leading_words(arguments[1:])
        if len(words) == 2 and os.path.isdir(words[1]) and os.path.isfile(words[0]):
            hint = f"the run comes first: gpt eval {quote(words[1])} --text {quote(words[0])}"
        elif len(words) == 2 and os.path.isdir(words[1]):
            hint = f"one run at a time: gpt eval {quote(words[0])}"
        elif len(words) == 2 and re.match(r"[a-z]+\.[a-z_]+=", words[1]):
            hint = f"keys of a config are for gpt train: gpt eval {quote(words[0])}"
        elif len(words) == 2:
            hint = f"a text is given by --text: gpt eval {quote(words[0])} --text {quote(words[1])}"
    elif path == "gpt score" and "unexpected extra argument" in message:
        message = "gpt score takes one FILE and one RUN"
        words = _leading_words(arguments[1:])
        if words:
            run = f" {quote(words[-1])}" if os.path.isdir(words[-1]) else ""
            hint = f"one at a time: gpt score {quote(words[0])}{run}"
    elif path == "gpt export" and "'--dtype'" in message:
        hint = _of_dtype(_value_of("dtype", arguments)) or hint
    elif choice := re.search(r"'([^']*)' is not one of (.*)", message):
        hint = did_you_mean(choice[1].lower(), re.findall(r"'([^']*)'", choice[2])) or hint
        if path == "gpt draw" and choice[1] == "attention":
            hint = "gpt attention RUN --prompt TEXT"
        if sized := re.fullmatch(r"bpe[:-]?(\d+)", choice[1]):
            hint = f"--kind bpe --vocab-size {sized[1]}"
    elif number := re.search(r"'(--[\w-]+)'.* must be a (whole )?number, not '(.*)'", message):
        from gpt_cli.config.validation_messages import plain_number

        digits = plain_number(number[3].lower(), is_whole=bool(number[2]))
        hint = f"{number[1]} {digits}" if re.fullmatch(r"-?\d+(\.\d+)?", digits) else hint
    elif message.endswith(" is not readable") and (closed := _named(message, arguments)) is not None:
        message, hint = f"cannot read {closed}: permission denied", how_to_permit(Path(closed))
    return RequestError(message[:1].lower() + message[1:], hint=hint)


def _help_of(command: Any, words: Sequence[str]) -> str:
    """The command line that prints the help of the command of `command` that `words` name."""
    path = ["gpt"]
    for word in words:
        if word not in (commands := getattr(command, "commands", {})):
            break
        command = commands[word]
        path.append(word)
    return " ".join([*path, "--help"])


def _named(message: str, arguments: Sequence[str]) -> str | None:
    """The path among the arguments that `message` quotes."""
    paths = [argument.partition("=")[2] if argument.startswith("--") else argument for argument in arguments]
    return next((path for path in paths if path and repr(path) in message), None)


def _in_our_words(message: str, arguments: Sequence[str]) -> str:
    """`message` without the words of the libraries that wrote it."""
    option = re.search(r"'--?([\w-]+)'", message)
    value = repr(_value_of(option[1], arguments)) if option else "this"
    for theirs, ours in _WORDS.items():
        message = re.sub(theirs, lambda match, ours=ours: match.expand(ours).replace("{value}", value), message)  # type: ignore[misc]
    return message


def _of_dtype(name: str) -> str | None:
    """The suggestion for a data type that `gpt export` does not write."""
    spelled = name.lower()
    if (ours := _DTYPES.get(spelled, spelled)) != name and ours in ("f32", "f16", "bf16", "q8_0", "q4_0"):
        return f"--dtype {ours}"
    if _LLAMA_CPP_TYPE.fullmatch(name):
        return f"export with --dtype f32, then, with llama.cpp's tool: llama-quantize IN.gguf OUT.gguf {name.upper()}"
    return None


def _leading_words(arguments: Sequence[str]) -> list[str]:
    """The arguments before the first option."""
    return list(takewhile(lambda argument: not argument.startswith("-"), arguments))


def _of_words(path: str, arguments: Sequence[str]) -> str | None:
    """The suggestion for words that are a text, with --prompt or without, a key, a run and a text, or two runs."""
    key = re.compile(r"sample\.(\w+)=(.*)", re.DOTALL)
    if any(map(key.fullmatch, arguments)):
        words = [
            f"--{found[1].replace('_', '-')} {quote(found[2])}"
            if (found := key.fullmatch(argument))
            else quote(argument)
            for argument in arguments
        ]
        return f"an option is written with dashes: {' '.join([path, *words])}"
    from gpt_cli.run.find_run import is_run

    runs = [one for before, one in pairwise(["", *arguments]) if not before.startswith("-") and is_run(one)]
    if len(runs) > 1:
        return f"one run at a time: {path} {quote(runs[0])}"
    for index, argument in enumerate(arguments):
        option, _, first = argument.partition("=")
        if option == "--prompt":
            following = _leading_words(arguments[index + 1 :])
            texts = [first, *following] if first else following
            if len(texts) < 2:
                continue
            prompt = quote(" ".join(texts))
            others = [quote(other) for other in arguments[index + 1 + len(following) :]]
            before = map(quote, arguments[:index])
            return f"a text in several words is one in quotes: {' '.join([path, *before, '--prompt', prompt, *others])}"
    words = _leading_words(arguments)
    if not words or not os.path.isdir(words[0]):
        return f"a text in several words is one in quotes: {path} --prompt {quote(' '.join(words))}" if words else None
    if path == "gpt sample" and len(words) == 2 and os.path.isfile(words[1]):
        return f"a file of text is given by --prompt-file: {path} {quote(words[0])} --prompt-file {quote(words[1])}"
    if len(words) < 2:
        return None
    return f"a text is given by --prompt: {path} {quote(words[0])} --prompt {quote(' '.join(words[1:]))}"


def takes_changes(context: Any) -> bool:
    """True if a verb takes `section.key=value`."""
    return any("section.key=value" in (parameter.metavar or "") for parameter in context.command.params)


def _of_option(context: Any, name: str, arguments: Sequence[str]) -> str | None:
    """The suggestion for the unknown option `name`: one of the verb's own, or a key of the config."""
    known = {option.lstrip("-"): option for parameter in context.command.params for option in parameter.opts}
    words = {name for name, option in known.items() if not option.startswith("-")}
    dashed = next(
        (argument for argument in arguments[1:] if argument.startswith("-") and os.path.exists(argument)), None
    )
    if dashed is not None:
        return f"a name that begins with a dash is given as {quote(f'./{dashed}')}"
    if context.command_path == "gpt" and name in ("v", "V"):
        return "gpt --version"
    name, _, _ = name.partition("=")
    spelled = name.replace("_", "-").lower()
    ours = _OPTIONS.get(context.info_name, {}).get(spelled) or (spelled if spelled in known else None)
    if ours is None and (close := get_close_matches(spelled, words, 1, 0.8)):
        ours = close[0]
    value = _value_of(name, arguments) or _NO_VALUE
    if ours == "run" and (value.isdecimal() or (spelled == "checkpoint" and not os.path.exists(value))):
        return _SPOKEN["sample"]["step"]
    if ours is not None and ours in words:
        argument = spelled.upper() if value == _NO_VALUE else quote(value)
        if context.info_name == "classify" and len(arguments) > 1 and os.path.isdir(arguments[1]):
            argument = f"{quote(arguments[1])} {argument}"
        needed = [one for one in context.command.params if one.opts == [ours] or (one.required and one.metavar)]
        order = [argument if one.opts == [ours] else one.metavar for one in needed]
        return f"it is given without a name: {' '.join([context.command_path, *order])}"
    if ours == "yes":
        return "--yes does not ask"
    if any(
        ours in (o.lstrip("-") for o in one.opts) and getattr(one, "is_flag", False) for one in context.command.params
    ):
        return f"--{ours}"
    if ours is not None:
        return f"{known.get(ours, f'--{ours}')} {value if value == _NO_VALUE else quote(value)}"
    if (spoken := _SPOKEN.get(context.info_name, {}).get(spelled)) is not None:
        return spoken
    if takes_changes(context):
        from gpt_cli.config.foreign_keys import assignment
        from gpt_cli.config.keys import key_for

        key = key_for(name)
        negated = key_for(name.lower()[3:]) if name.lower().startswith(("no-", "no_")) else None
        for switch, state in ((negated, "false"), (key, "true")):
            if switch is not None and _is_switch(switch, value):
                return f"keys of the config are written without dashes: {switch}={state}"
        if key is not None:
            return f"keys of the config are written without dashes: {assignment(name, key, value)}"
    if spelled == "debug":
        return f"it stands before the command: {context.command_path.replace('gpt', 'gpt --debug', 1)}"
    if spelled == "version":
        return "gpt --version"
    return did_you_mean(spelled, [option for option in known if len(option) > 1], "--")


def _is_switch(key: str, following: str) -> bool:
    """True if a key of the config is true or false, and the word `following` is none of its values."""
    from gpt_cli.config.keys import accepted_types, fields, schema_of

    values = accepted_types(schema_of(key)) if key in fields() else []
    return "true" in values and following.lower() not in (*values, *_TRUTHS)


def _value_of(name: str, arguments: Sequence[str]) -> str:
    """The text after the option on the command line; of several, the first that is no number, else the last."""
    values = []
    for argument, following in pairwise([*arguments, "--"]):
        option, equals, text = argument.lstrip("-").partition("=")
        if argument.startswith("-") and option == name:
            values.append(text if equals else _NO_VALUE if following.startswith("--") else following)
    words = (value for value in values if not re.fullmatch(r"[-+]?[0-9.]+", value))
    return next(words, values[-1] if values else _NO_VALUE)


def hint_for(hint: str, arguments: Sequence[str], command: Any) -> str:
    """`hint`, which may say both `--option X (section.key=X)`, in the words of the verb that was called."""
    options = _options_of(arguments, command)
    if "--unknown" in options:
        hint = with_unknown_option(hint)
    return _BOTH.sub(lambda match: match[1] if match[1].split(" ")[0] in options else match[2], hint)


def with_unknown_option(hint: str) -> str:
    """`hint` with the option that leaves unknown characters out, where it is about them."""
    return re.sub("^leave them out,", "leave them out with --unknown skip,", hint)


def message_for(message: str, arguments: Sequence[str], command: Any) -> str:
    """`message` with `--option` for `data.key` and `tokenizer.key`, where the verb that was called divides a text."""
    options = _options_of(arguments, command)
    if "--val-fraction" not in options:
        return message

    def name(match: re.Match[str]) -> str:
        from gpt_cli.config.keys import fields

        option = f"--{match[2].replace('_', '-')}"
        is_key = match[1] in fields() and option in options  # not data.json, a file
        return f"{option}{' ' * len(match[3])}" if is_key else match[0]

    return re.sub(r"(?<![\w./-])((?:data|tokenizer)\.([a-z_]+))(=?)", name, message)


def _options_of(arguments: Sequence[str], command: Any) -> set[str]:
    """The options of the verb that was called."""
    verb: Any = command
    names = [argument for argument in arguments if not argument.startswith("-")]
    while names and (inner := getattr(verb, "commands", {}).get(names[0])) is not None:
        verb, names = inner, names[1:]
    return {option for parameter in getattr(verb, "params", ()) for option in parameter.opts}
