"""`gpt chat`: the model sees the last of what was said, Ctrl-C stops an answer alone, and a terminal stays unharmed."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.cli import repl
from gpt_cli.cli.main import main
from gpt_cli.config import Config, DataConfig, ModelConfig, SampleConfig
from gpt_cli.config.removed import REMOVED
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import save
from gpt_cli.sampling.conversation import Conversation
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer, UnknownCharacters
from tests.support.command import subprocess_env
from tests.support.waiting import HANG, Idleness

CONTEXT = 16
Chat = Callable[..., tuple[int, str, str]]
# A process that has SIGINT, whatever the shell of the tests ignores, and `tty` as the terminal that sends it.
START = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.default_int_handler)
if os.isatty(0):
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from gpt_cli.cli.main import main
sys.exit(main())
"""

turns = st.lists(st.tuples(st.text(alphabet="ab\n", max_size=12), st.text(alphabet="cd\n", max_size=12)), max_size=6)


@given(turns=turns)
def test_without_a_template_the_model_sees_the_end_of_one_text(turns: list[tuple[str, str]]) -> None:
    conversation = Conversation(ByteTokenizer(), CONTEXT)
    expected, n_forgotten = "", 0
    for user_text, answer in turns:
        expected += "\n" if expected and user_text and not expected.endswith("\n") else ""
        window = conversation.say(user_text) if user_text else conversation.continue_()
        expected += user_text
        n_forgotten += window.dropped_tokens
        assert window.dropped_turns == 0
        if expected:
            start = "" if turns[0][0] else "\n"  # what stands for the start of a text
            assert bytes(window.tokens).decode() == (start + expected)[-CONTEXT:]
            assert n_forgotten == len(start + expected) - len(window.tokens)
        conversation.answer(answer, 1)
        expected += answer
        assert conversation.text == expected
    assert [(turn.user or "", turn.answer) for turn in conversation.turns] == turns


@given(turns=turns.filter(bool))
def test_with_a_template_the_oldest_turns_are_dropped_whole(turns: list[tuple[str, str]]) -> None:
    conversation = Conversation(ByteTokenizer(), CONTEXT, "Q", "A")
    turn_texts: list[str] = []
    text = ""
    for user_text, answer in turns:
        window = conversation.say(user_text)
        start = "\n" if text and not text.endswith("\n") else ""
        turn_texts.append(f"{start}Q{user_text}A")
        n_dropped = 0
        while len(turn_texts) > 1 and len("".join(turn_texts)) > CONTEXT:
            turn_texts.pop(0)
            n_dropped += 1
        n_cut = 0
        if len(turn_texts) == 1 and len(turn_texts[0]) > CONTEXT:  # the role stays, and the end of the text
            n_cut = len(turn_texts[0]) - len(f"Q{user_text}A"[-CONTEXT:])
            turn_texts[0] = "Q" + user_text[max(0, len(user_text) + 2 - CONTEXT) :] + "A"
        assert (window.dropped_turns, window.dropped_tokens) == (n_dropped, n_cut)
        assert bytes(window.tokens).decode() == "".join(turn_texts)
        conversation.answer(answer, 1)
        turn_texts[-1] += answer
        text += f"{start}Q{user_text}A{answer}"
    assert conversation.text == text
    conversation.reset()
    assert bytes(conversation.say("x").tokens) == b"QxA"


@given(turns=turns.filter(bool), head=st.text("s|", max_size=CONTEXT // 2))
def test_what_the_system_says_is_never_dropped_and_leaves_half_of_the_context(
    turns: list[tuple[str, str]], head: str
) -> None:
    conversation = Conversation(ByteTokenizer(), CONTEXT, "Q", "A", None, head)
    alone = Conversation(ByteTokenizer(), CONTEXT - len(head), "Q", "A")
    for user_text, answer in turns:
        assert bytes(conversation.say(user_text).tokens) == head.encode() + bytes(alone.say(user_text).tokens)
        conversation.answer(answer, 1)
        alone.answer(answer, 1)
    assert conversation.text == alone.text
    assert conversation.whole_text == head + alone.text


def test_what_cannot_be_said_changes_nothing() -> None:
    conversation = Conversation(CharTokenizer("ab"), CONTEXT)  # without a new line
    conversation.say("ab")
    conversation.answer("b", 1)
    with pytest.raises(UnknownCharacters):
        conversation.say("X")
    assert conversation.say("a").tokens == [0, 1, 1, 0]
    assert conversation.text == "abba"


def make_run(
    folder: Path, tokenizer: Tokenizer, sample: SampleConfig | None = None, context_length: int = CONTEXT, **keys: Any
) -> Path:
    model = ModelConfig(n_layer=1, n_head=2, n_embd=16, context_length=context_length)
    torch.manual_seed(0)
    weights = GPT(model, tokenizer.vocab_size).state_dict()
    config = Config(model=model, sample=sample or SampleConfig(), **keys)
    return save(folder, 3, weights, {}, {}, config, tokenizer)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"), ByteTokenizer())


@pytest.fixture
def chat(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chat:
    monkeypatch.chdir(tmp_path)

    def call(stdin: str | bytes, *options: str, path: Path = run) -> tuple[int, str, str]:
        data = stdin if isinstance(stdin, bytes) else stdin.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        code = main(["chat", str(path), "--seed", "5", "--max-new-tokens", "12", *options])
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_an_answer_is_what_gpt_sample_writes_after_the_same_text(
    chat: Chat, run: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def sample_text(prompt: str, seed: int) -> str:
        options = ("--max-new-tokens", "12", "--seed", str(seed), "--engine", engine, "--json")
        assert main(["sample", "--run", str(run), "--prompt", prompt, *options]) == 0
        return str(json.loads(capsys.readouterr().out)["samples"][0]["text"])

    code, _, err = chat("ab\n\ncd\n/save out.jsonl\n", "--engine", engine)
    assert (code, "(wrote out.jsonl)" in err) == (0, True)
    first, second, third = (json.loads(line) for line in Path("out.jsonl").read_text().splitlines())
    assert [turn["said"] for turn in (first, second, third)] == ["ab", None, "cd"]
    assert [turn["seed"] for turn in (first, second, third)] == [5, 6, 7]
    text = "ab"
    assert first["answer"] == sample_text(text, 5)
    text += first["answer"]
    assert second["answer"] == sample_text(text, 6)
    text += second["answer"] + ("" if second["answer"].endswith("\n") else "\n") + "cd"
    assert third["answer"] == sample_text(text, 7)
    assert "no longer fit into the context, and are forgotten)" in err


def test_what_is_saved_begins_with_what_the_system_says(chat: Chat, tmp_path: Path) -> None:
    chats = make_run(tmp_path / "run", ByteTokenizer(), context_length=64, data=DataConfig(format="chat"))
    code, _, err = chat("ab\n/save a.txt\n/save a.jsonl\n", "--system", "Be brief.", path=chats)
    assert code == 0, err
    system, turn = (json.loads(line) for line in Path("a.jsonl").read_text().splitlines())
    assert (system, turn["said"]) == ({"system": "Be brief."}, "ab")
    saved = Path("a.txt").read_text()
    assert 0 <= saved.index("system") < saved.index("Be brief.") < saved.index("user") < saved.index("ab")


def test_a_pipe_gets_the_answers_alone(chat: Chat) -> None:
    code, out, err = chat("/help\nab\n/save a.txt\n/quit\nab\n")
    assert code == 0
    answer = Path("a.txt").read_bytes().decode().removeprefix("ab")
    assert out == answer + "\n" * (not answer.endswith("\n"))
    assert "/temp X" in err
    assert max(map(len, repl.HELP.splitlines())) <= 80
    assert ">" not in err.splitlines()[0]
    code, out, _ = chat("ab")  # without a newline at the end
    assert out.startswith(answer)


def test_every_answer_satisfies_the_constraint_or_a_note_says_that_it_was_cut(chat: Chat) -> None:
    Path("schema.json").write_text('{"type": "integer", "minimum": 10, "maximum": 99}')
    Path("grammar.lark").write_text('start: "(" /[a-z]/ ")"')
    for options, pattern in (
        (("--choices", "yes,no"), "yes|no"),
        (("--regex", "[a-c]{3}-[0-9]"), "[a-c]{3}-[0-9]"),
        (("--json-schema", "schema.json"), "[1-9][0-9]"),
        (("--grammar", "grammar.lark"), r"\([a-z]\)"),
    ):
        code, out, err = chat("ab\ncd\n", *options)
        assert (code, "cut" in err) == (0, False), err
        answers = out.splitlines()
        assert len(answers) == 2
        assert all(re.fullmatch(pattern, answer) for answer in answers), answers
    code, _, err = chat("ab\n", "--regex", "[a-z]{40}")
    assert code == 0
    assert "1 text cut after 12 tokens (max_new_tokens): --regex may not be satisfied" in err
    code, out, err = chat("ab\n", "--regex", "(")
    assert (code, out) == (2, "")
    assert "regex: unclosed group" in err


def test_settings_hold_from_then_on_and_are_told(chat: Chat) -> None:
    code, _, err = chat(
        "/temp 0\nab\n/save 1.jsonl\n/reset\n/seed 9\nab\n/save 2.jsonl\n"
        "/top-k\n/top-k 3\n/top-k 0\n/reset\nab\n/save 3.jsonl\n"
    )
    assert code == 0
    first, second, third = (json.loads(Path(f"{number}.jsonl").read_text()) for number in (1, 2, 3))
    assert first["answer"] == second["answer"] == third["answer"]  # greedy, whatever the seed
    assert (first["seed"], second["seed"], third["seed"]) == (5, 9, 10)
    for message in ("(temperature is 0.0)", "(top_k is off)", "(top_k is 3)", "(seed is 9)"):
        assert message in err
    assert err.count("(top_k is off)") == 2


def test_commands_of_drawing_are_refused_while_beams_search_and_options_noted(chat: Chat, tmp_path: Path) -> None:
    run = make_run(tmp_path / "searching", ByteTokenizer(), SampleConfig(beams=2))
    code, searched_text, err = chat("ab\n/save searched.jsonl\n", path=run)
    assert (code, searched_text != "", "seed 5" in err) == (0, True, False)
    assert json.loads(Path("searched.jsonl").read_text())["seed"] is None
    code, out, err = chat("/temp 0.1\n/top-k 3\n/seed 9\n/temp\nab\n", path=run)
    assert (code, out, err.count("error: ")) == (2, searched_text, 4)
    assert "/top-k has no effect with beam search" in err
    drawn_text = chat("ab\n")[1]
    assert chat("ab\n", "--beams", "0", path=run)[1] == drawn_text
    assert searched_text == chat("ab\n", "--beams", "2")[1] != drawn_text
    code, out, err = chat("ab\n", "--temperature", "2", path=run)
    assert (code, out) == (0, searched_text)
    assert "no effect with beam search: --temperature\n" in err
    code, out, err = chat("ab\n", "--engine", "native", path=run)
    assert (code, out, err.count("error: "), "Ctrl-D" in err) == (2, "", 1, False)


def test_a_template_frames_each_turn_and_a_stop_string_ends_the_answer(chat: Chat) -> None:
    options = ("--prefix", "Q:", "--suffix", "A:", "--stop", "e", "--max-new-tokens", "400", "--temperature", "2")
    code, _, err = chat("ab\ncd\n/save a.txt\n/save a.jsonl\n", *options)
    assert code == 0
    text = Path("a.txt").read_bytes().decode()
    answers = [json.loads(line)["answer"] for line in Path("a.jsonl").read_text().splitlines()]
    assert not any("e" in answer for answer in answers)
    border = "" if answers[0].endswith("\n") else "\n"
    assert text == f"Q:abA:{answers[0]}{border}Q:cdA:{answers[1]}"
    assert "(the oldest turn no longer fits into the context, and is forgotten)" in err


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (b"/nope\n", "there is no command /nope"),
        (b"/temp x\n", "/temp takes a number, not 'x'"),
        (b"/temp -1\n", "temperature must be 0 or a positive number"),
        (b"/top-k 1.5\n", "/top-k takes a whole number"),
        (b"/save\n", "takes the name of a file"),
        (b"/save there.txt\n", "there is a file there.txt already"),
        (b"/save new.txt\n", "nothing was said yet"),
        (b"ab\n/save no/where.txt\n", "where.txt"),
        (b"ab\n/save new.txt\n/reset\ncd\n/save new.txt\n", "there is a file new.txt already"),
        (b"\xff\n", "is not UTF-8"),
        (b"/\x1b[31m\n", "there is no command /\\x1b[31m"),
    ],
)
def test_what_cannot_be_done_is_one_error_and_the_chat_goes_on(chat: Chat, typed: bytes, message: str) -> None:
    Path("there.txt").write_text("mine")
    code, out, err = chat(typed + b"ab\n")
    assert code == 2
    assert err.count("error: ") == 1
    assert message in err
    assert out != ""
    assert Path("there.txt").read_text() == "mine"


@pytest.mark.parametrize("name", [name for name in REMOVED if " /" in name])
def test_a_removed_command_is_one_error_with_its_sentence_and_the_chat_goes_on(chat: Chat, name: str) -> None:
    code, out, err = chat(f"{name.removeprefix('gpt chat ')} 1\nab\n")
    assert (code, out != "", err.count("error: ")) == (2, True, 1)
    assert f"error: {REMOVED[name].sentence(name)}\n" in err


def test_options_against_repetition_hold_in_a_chat_and_are_refused_where_the_engine_has_none(chat: Chat) -> None:
    options = ("--temperature", "0", "--max-new-tokens", "200")
    greedy = chat("ab\n", *options)[1]
    for option, value in (("--no-repeat-ngram", "1"), ("--repetition-penalty", "1000000")):
        code, out, _ = chat("ab\n", *options, option, value)  # torch takes over
        assert (code, out != greedy) == (0, True)
        code, out, err = chat("ab\n", "--engine", "native", option, value)
        assert (code, out, err.count("error: ")) == (2, "", 1)


def test_characters_that_the_vocabulary_lacks_are_an_error_or_left_out(chat: Chat, tmp_path: Path) -> None:
    path = make_run(tmp_path / "char", CharTokenizer("\nab"))
    code, out, err = chat("aXb\n", path=path)
    assert (code, out) == (2, "")
    assert "'X' (U+0058, first at character 2)" in err
    assert "hint: --unknown skip" in chat("aXb\n", path=path)[2]
    code, out, err = chat("aXb\n/save a.txt\n", "--unknown", "skip", path=path)
    assert (code, "left out" in err) == (0, True)
    assert Path("a.txt").read_text() == "ab" + out.removesuffix("\n") or Path("a.txt").read_text() == "ab" + out
    code, _, err = chat("", "--prefix", "X", path=path)
    assert code == 2
    assert "--prefix has a character that the vocabulary lacks: 'X'" in err


def test_one_interrupt_asks_and_a_second_one_insists() -> None:
    old_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with repl.interrupts() as is_interrupted:
            assert not is_interrupted()
            signal.raise_signal(signal.SIGINT)
            assert is_interrupted()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with repl.interrupts() as is_interrupted:
            signal.raise_signal(signal.SIGINT)
            assert not is_interrupted()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with repl.interrupts(at_once=True) as is_interrupted:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert is_interrupted()
    finally:
        signal.signal(signal.SIGINT, old_handler)


def environment() -> dict[str, str]:
    return subprocess_env(TERM="dumb")


def test_ctrl_c_in_a_pipe_stops_the_answer_and_the_next_line_is_answered(run: Path, tmp_path: Path) -> None:
    arguments = ["chat", str(run), "--seed", "1", "--max-new-tokens", "100000000"]
    with subprocess.Popen(
        [sys.executable, "-c", START, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"ab\n")
        process.stdin.flush()
        assert len(process.stdout.read(100)) == 100  # in the middle of an answer
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(b"/stop e\ncd\n/save chat.jsonl\n", timeout=HANG)
        assert process.returncode == 0
    assert err.decode().count("(stopped)") == 1
    _, turn = (json.loads(line) for line in (tmp_path / "chat.jsonl").read_text().splitlines())
    assert (turn["said"], turn["seed"], "e" in turn["answer"]) == ("cd", 2, False)


@pytest.fixture
def terminal(run: Path, tmp_path: Path) -> Iterator["Terminal"]:
    chat_terminal = Terminal(["chat", str(run), "--seed", "1", "--max-new-tokens", "100000000"], tmp_path)
    yield chat_terminal
    chat_terminal.close()


class Terminal:
    """A process on a terminal of its own, which has Ctrl-C and Ctrl-D."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self._ours, slave_fd = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, *arguments],
            stdin=slave_fd,
            stdout=slave_fd,
            stderr=slave_fd,
            cwd=folder,
            env=environment(),
        )
        os.close(slave_fd)
        self.shown = ""

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def expect(self, text: str, keys: str = "") -> None:
        """Read until `text` is shown, pressing `keys` whenever the process waits for some and has shown nothing."""
        output, start_time, idleness = "", time.monotonic(), Idleness(self.process.pid)
        self.press(keys)
        while text not in output:
            assert time.monotonic() - start_time < HANG, f"{text!r} is not in {output[-2000:]!r}"
            if select.select([self._ours], [], [], 0.1)[0]:
                output += os.read(self._ours, 1 << 16).decode(errors="replace")
                idleness = Idleness(self.process.pid)
            elif keys and idleness.looks() >= 10:
                self.press(keys)
                idleness = Idleness(self.process.pid)
        self.shown += output

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


def test_on_a_terminal_ctrl_c_stops_the_answer_ctrl_d_the_chat_and_nothing_drives_it(terminal: Terminal) -> None:
    terminal.expect("> ")
    terminal.press("ab\n")
    terminal.expect("\\x1b")  # sooner or later a model of bytes writes an escape, which is shown
    terminal.press("\x03")
    terminal.expect("(stopped)\r\n> ")
    # Again and again: what is pressed in the microseconds before `input` waits is seen by Python, but not by `input`.
    terminal.expect("(Ctrl-D or /quit ends the chat)\r\n> ", keys="\x03")
    terminal.press("/save chat.txt\n")
    terminal.expect("(wrote chat.txt)\r\n> ")
    terminal.press("\x04")
    assert terminal.process.wait(timeout=HANG) == 0
    assert not re.search(r"[\x00-\x06\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", terminal.shown.replace("^C", ""))
