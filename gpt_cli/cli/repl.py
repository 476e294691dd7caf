"""The loop of `gpt chat`: read a line, do what it says or have the model go on, until there are no more."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from gpt_cli.cli.hints import add_hint
from gpt_cli.cli.options.sampling_options import note_unmatched
from gpt_cli.cli.output import note, write_text
from gpt_cli.cli.unknown_characters import without_unknown
from gpt_cli.config.removed import removed_use
from gpt_cli.errors import ExitCode, RequestError, UserError
from gpt_cli.files.locations import refuse_dash
from gpt_cli.sampling.sampling_params import SEEDS, SamplingOptions, SamplingParams, with_learned_end
from gpt_cli.terminal.escape import escape_control_chars

if TYPE_CHECKING:
    from gpt_cli.sampling.chat_template import TemplateConversation
    from gpt_cli.sampling.conversation import ContextWindow, Conversation
    from gpt_cli.sampling.text_generator import TextGenerator

HELP = """\
text         the model goes on after it; an empty line: it goes on after its own
//text       the text /text
/temp X      the temperature from now on; without X: print it
/top-k K     draw from the K likeliest tokens; 0: from all; without K: print it
/seed N      the seed of the next answer; the next ones count up from it
/stop TEXT   end an answer before TEXT, \\n for a new line; without it: never
/reset       forget what was said
/save FILE   write what was said into a new file; into a .jsonl, a line a turn
/help /quit  Ctrl-C stops an answer, Ctrl-D ends the chat"""

SETTINGS: dict[str, tuple[str, type[int] | type[float]]] = {
    "temp": ("temperature", float),
    "top-k": ("top_k", int),
    "seed": ("seed", int),
}
"""{command: (sampling option, type)}"""


class Repl:
    """A chat. What cannot be done is one error, and the chat goes on."""

    def __init__(
        self,
        generator: "TextGenerator",
        conversation: "Conversation | TemplateConversation",
        sampling: SamplingParams,
        learned_end: str,
        *,
        skip_unknown: bool,
        raw: bool,
    ) -> None:
        self._generator, self._conversation, self._sampling = generator, conversation, sampling
        self._learned_end = learned_end
        self._skip_unknown, self._raw = skip_unknown, raw
        self._typed = sys.stdin.isatty()
        self._saved: set[Path] = set()  # files of this conversation, which may be written again
        self._commands: dict[str, Callable[[str], None]] = {
            "stop": self._set_stop,
            "reset": self._reset,
            "save": self._save,
            "help": lambda _: note(HELP),
        }

    def run(self) -> int:
        """Until the end of the input or /quit. Returns 2 where a line from a pipe could not be followed, else 0."""
        failed = False
        with suppress(AttributeError):  # a standard input of somebody else's making
            sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
        if self._typed:
            with suppress(ImportError):
                import readline  # noqa: F401 - gives `input` a history and its keys
        while True:
            try:
                line = self._read()
                if line is None or line.strip().partition(" ")[0] in ("/quit", "/exit"):
                    return ExitCode.USAGE if failed and not self._typed else ExitCode.DONE
                self._follow(line)
            except UserError as error:
                failed = True
                add_hint(error, ["--unknown"])
                note(error.render())
            except KeyboardInterrupt:
                if not self._typed:
                    raise
                note("\n(Ctrl-D or /quit ends the chat)")

    def _read(self) -> str | None:
        """The next line; None at the end. Only who types is prompted, and not on a stdout that is no terminal."""
        if self._typed and sys.stdout.isatty():
            try:
                return input("> ")
            except EOFError:
                print()
                return None
        if self._typed:
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        return line.removesuffix("\n").removesuffix("\r") if line else None

    def _follow(self, line: str) -> None:
        if not line.startswith("/") or line.startswith("//"):
            self._answer(line.removeprefix("/") if line.startswith("//") else line)
            return
        name, _, value = line.removeprefix("/").partition(" ")
        if name in SETTINGS:
            self._set(name, value.strip())
        elif name in self._commands:
            self._commands[name](value)
        elif (problem := removed_use(f"gpt chat /{name}", value)) is not None:
            raise RequestError(problem)
        else:
            raise RequestError(
                f"there is no command /{escape_control_chars(name[:30])}",
                hint="/help lists them; // begins a text that begins with /",
            )

    def _answer(self, message: str) -> None:
        """Generate the model's turn, and print it while it is being written."""
        window = self._say(message)
        _report_dropped(window)
        seed, reason = self._sampling.seed, None
        parts: list[str] = []
        with interrupts(at_once=self._sampling.beams is not None) as interrupted:  # a search writes at its end alone
            try:
                _, texts = self._generator.generate([window.tokens], self._sampling)
                (text,) = next(texts)
                for piece in text:
                    parts.append(piece)
                    write_text(piece, self._raw)
                    if interrupted():
                        break
                reason = text.finish_reason
            except KeyboardInterrupt:
                pass
            self._conversation.answer("".join(parts), seed if self._sampling.beams is None else None)
            self._sampling = self._sampling.replace({"seed": (seed + 1) % SEEDS})
            if not (parts and parts[-1].endswith("\n")):
                write_text("\n")
            if interrupted():
                note("(stopped)")
            elif reason == "end_of_text":
                note("(the model ended its text)")
            else:
                note_unmatched(self._sampling, [reason])

    def _say(self, message: str) -> "ContextWindow":
        """The context to continue."""
        if not message:
            return self._conversation.continue_()
        (message,) = without_unknown(self._generator.tokenizer, [message], skip=self._skip_unknown, form="({})")
        return self._conversation.say(message)

    def _set(self, name: str, value: str) -> None:
        key, kind = SETTINGS[name]
        if self._sampling.beams is not None:
            raise RequestError(f"/{name} has no effect with beam search", hint="gpt chat --beams 0")
        if value:
            try:
                number = kind(value)
            except ValueError:
                article = "a whole number" if kind is int else "a number"
                raise RequestError(f"/{name} takes {article}, not '{escape_control_chars(value[:30])}'") from None
            options: SamplingOptions = {key: number}  # type: ignore[misc]
            self._sampling = self._sampling.replace(options)
        now = getattr(self._sampling, key)
        note(f"({key} is {'off' if now is None else now})")

    def _set_stop(self, value: str) -> None:
        stop = value.replace("\\n", "\n")
        self._sampling = self._sampling.replace(with_learned_end({"stop": (stop,) if stop else ()}, self._learned_end))
        note(f"(an answer ends before {stop!r})" if stop else "(an answer ends nowhere before max_new_tokens)")

    def _reset(self, _: str) -> None:
        self._conversation.reset()
        self._saved.clear()
        note("(everything is forgotten)")

    def _save(self, value: str) -> None:
        from gpt_cli.files import replace_file

        if not value.strip():
            raise RequestError("/save takes the name of a file", hint="/save chat.txt")
        path = Path(os.path.expanduser(value.strip()))
        refuse_dash(path, "a file")
        if path.exists() and path.resolve() not in self._saved:
            raise RequestError(f"there is a file {path} already", hint="choose another name")
        text = self._conversation.whole_text
        if not self._conversation.text:
            raise RequestError("there is nothing to save: nothing was said yet")
        if path.suffix == ".jsonl":
            system = self._conversation.system
            turns: list[dict[str, object]] = [] if system is None else [{"system": system}]
            turns += [{"said": t.user, "answer": t.answer, "seed": t.seed} for t in self._conversation.turns]
            text = "".join(json.dumps(turn) + "\n" for turn in turns)
        replace_file(path, text.encode())
        self._saved.add(path.resolve())
        note(f"(wrote {path})")


def _report_dropped(seen: "ContextWindow") -> None:
    """Print what no longer fits into the context."""
    if seen.dropped_turns == 1:
        note("(the oldest turn no longer fits into the context, and is forgotten)")
    elif seen.dropped_turns:
        note(f"(the oldest {seen.dropped_turns:,} turns no longer fit into the context, and are forgotten)")
    if seen.dropped_tokens == 1:
        note("(the first token no longer fits into the context, and is forgotten)")
    elif seen.dropped_tokens:
        note(f"(the first {seen.dropped_tokens:,} tokens no longer fit into the context, and are forgotten)")


@contextmanager
def interrupts(*, at_once: bool = False) -> Iterator[Callable[[], bool]]:
    """Defer the first Ctrl-C, so that nothing is left half done; the yielded function returns whether it came.

    A second one, or `at_once` the first, raises KeyboardInterrupt. Where SIGINT is ignored it stays so.
    """
    received = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal received
        is_first, received = not received, True
        if at_once or not is_first:
            signal.default_int_handler(number, frame)

    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: received
    finally:
        signal.signal(signal.SIGINT, before)
