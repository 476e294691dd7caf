"""The loop of `gpt chat`: read a line, run its command or continue it, until there are no more."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from gpt_cli.cli.hints import add_hint
from gpt_cli.cli.options.sampling_options import note_unmatched
from gpt_cli.cli.output import note, write_text
from gpt_cli.cli.unknown_characters import UnknownChoice, without_unknown
from gpt_cli.config.removed import removed_use
from gpt_cli.errors import ExitCode, RequestError, UserError
from gpt_cli.files import replace_file
from gpt_cli.files.locations import refuse_dash
from gpt_cli.sampling import SamplingOptions, SamplingParams
from gpt_cli.sampling.chat_template import TemplateConversation
from gpt_cli.sampling.conversation import ContextWindow, Conversation
from gpt_cli.sampling.sampling_params import SEEDS, with_learned_end
from gpt_cli.sampling.text_generator import TextGenerator
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.terminal.words import plural

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


@dataclass
class Repl:
    """A chat. A command that fails is one error, and the chat continues."""

    generator: TextGenerator
    conversation: Conversation | TemplateConversation
    sampling: SamplingParams
    learned_end: str
    unknown: UnknownChoice
    raw: bool
    _saved: set[Path] = field(default_factory=set)
    """Files of this conversation, which may be written again."""

    def run(self) -> int:
        """Until the end of the input or /quit. Returns 2 where a line from a pipe failed, else 0."""
        failed, typed = False, sys.stdin.isatty()
        with suppress(AttributeError):  # a standard input of somebody else's making
            sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
        if typed:
            with suppress(ImportError):
                import readline  # noqa: F401 - gives `input` a history and its keys
        while True:
            try:
                line = _read_line(typed)
                if line is None or line.strip().partition(" ")[0] in ("/quit", "/exit"):
                    return ExitCode.USAGE if failed and not typed else ExitCode.DONE
                self._follow(line)
            except UserError as error:
                failed = True
                add_hint(error, ["--unknown"])
                note(error.render())
            except KeyboardInterrupt:
                if not typed:
                    raise
                note("\n(Ctrl-D or /quit ends the chat)")

    def _follow(self, line: str) -> None:
        if not line.startswith("/") or line.startswith("//"):
            self._answer(line.removeprefix("/") if line.startswith("//") else line)
            return
        commands: dict[str, Callable[[str], None]] = {"stop": self._stop, "reset": self._reset, "save": self._save}
        name, _, value = line.removeprefix("/").partition(" ")
        if name in SETTINGS:
            self._set(name, value.strip())
        elif name == "help":
            note(HELP)
        elif name in commands:
            commands[name](value)
        else:
            unknown = f"there is no command /{escape_control_chars(name[:30])}; /help lists them"
            raise RequestError(removed_use(f"gpt chat /{name}", value) or unknown)

    def _answer(self, message: str) -> None:
        """Generate the model's turn, and print it while it is being written."""
        if message:
            (known,) = without_unknown(self.generator.tokenizer, [message], self.unknown, "message")
            window = self.conversation.say(known)
        else:
            window = self.conversation.continue_()
        _note_dropped(window)
        is_search, seed, reason = self.sampling.beams is not None, self.sampling.seed, None
        parts: list[str] = []
        with interrupts(at_once=is_search) as interrupted:  # a search writes at its end alone
            with suppress(KeyboardInterrupt):
                _, texts = self.generator.generate([window.tokens], self.sampling)
                (text,) = next(texts)
                for piece in text:
                    parts.append(piece)
                    write_text(piece, self.raw)
                    if interrupted():
                        break
                reason = text.finish_reason
            self.conversation.answer("".join(parts), None if is_search else seed)
            self.sampling = self.sampling.replace({"seed": (seed + 1) % SEEDS})
            if not (parts and parts[-1].endswith("\n")):
                write_text("\n")
            if interrupted():
                note("(stopped)")
            elif reason == "end_of_text":
                note("(the model ended its text)")
            else:
                note_unmatched(self.sampling, [reason])

    def _set(self, name: str, value: str) -> None:
        key, kind = SETTINGS[name]
        if self.sampling.beams is not None:
            raise RequestError(f"/{name} has no effect with beam search")
        if value:
            try:
                options: SamplingOptions = {key: kind(value)}  # type: ignore[misc]
            except ValueError:
                number = "a whole number" if kind is int else "a number"
                raise RequestError(f"/{name} takes {number}, not '{escape_control_chars(value[:30])}'") from None
            self.sampling = self.sampling.replace(options)
        now = getattr(self.sampling, key)
        note(f"({key} is {'off' if now is None else now})")

    def _stop(self, value: str) -> None:
        stop = value.replace("\\n", "\n")
        self.sampling = self.sampling.replace(with_learned_end({"stop": (stop,) if stop else ()}, self.learned_end))
        note(f"(an answer ends before {stop!r})" if stop else "(an answer ends nowhere before max_new_tokens)")

    def _reset(self, _: str) -> None:
        self.conversation.reset()
        self._saved.clear()
        note("(everything is forgotten)")

    def _save(self, value: str) -> None:
        if not value.strip():
            raise RequestError("/save takes the name of a file")
        path = Path(os.path.expanduser(value.strip()))
        refuse_dash(path, "a file")
        if path.exists() and path.resolve() not in self._saved:
            raise RequestError(f"there is a file {path} already")
        talk = self.conversation
        if not talk.text:
            raise RequestError("there is nothing to save: nothing was said yet")
        text = talk.whole_text
        if path.suffix == ".jsonl":
            turns: list[dict[str, object]] = [] if talk.system is None else [{"system": talk.system}]
            turns += [{"said": turn.user, "answer": turn.answer, "seed": turn.seed} for turn in talk.turns]
            text = "".join(json.dumps(turn) + "\n" for turn in turns)
        replace_file(path, text.encode())
        self._saved.add(path.resolve())
        note(f"(wrote {path})")


def _read_line(typed: bool) -> str | None:
    """The next line; None at the end. Only who types is prompted, and not on a stdout that is no terminal."""
    if typed and sys.stdout.isatty():
        with suppress(EOFError):
            return input("> ")
        print()
        return None
    if typed:
        print("> ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line.removesuffix("\n").removesuffix("\r") if line else None


def _note_dropped(seen: ContextWindow) -> None:
    """Note what no longer fits into the context."""
    for count, first, noun in ((seen.dropped_turns, "oldest", "turn"), (seen.dropped_tokens, "first", "token")):
        if count:
            what = f"{noun} no longer fits" if count == 1 else f"{plural(count, noun)} no longer fit"
            note(f"(the {first} {what} into the context, and {'is' if count == 1 else 'are'} forgotten)")


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
