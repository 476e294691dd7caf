"""`gpt sample`: what it prints, where, and what it answers to requests that cannot be met."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt_cli.run.open_checkpoint import open_checkpoint
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer
from tests.support.command import Run, subprocess_env
from tests.support.untrained_run import CONTEXT, make_checkpoint
from tests.support.waiting import HANG


@pytest.fixture(scope="module")
def char_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("char"), CharTokenizer("\nabcdefgh"))


@pytest.fixture(scope="module")
def byte_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("byte"), ByteTokenizer())


def test_the_text_follows_its_prompt_on_stdout_and_everything_else_is_on_stderr(sample: Run, char_run: Path) -> None:
    code, out, err = sample("--run", char_run, "--prompt", "bad", "--seed", 5)
    assert code == 0
    assert out.startswith("bad")
    assert set(out) <= set("\nabcdefgh")
    assert len(out) in (3 + 24, 3 + 24 + 1)  # and a newline, if the text does not end with one
    assert err == f"{char_run}, step 3, seed 5\n"


def test_unset_options_come_from_the_config_of_the_run(sample: Run, char_run: Path) -> None:
    by_default = sample("--run", char_run, "--seed", 5)
    assert by_default == sample(
        *("--run", char_run, "--seed", 5),
        *("--prompt", "ab", "--max-new-tokens", 24, "--temperature", 1.0),
    )


def test_the_seed_that_was_chosen_is_told_and_repeats_the_text(sample: Run, char_run: Path) -> None:
    _, first, message = sample("--run", char_run)
    seed = message.split("seed ")[1].strip()
    _, repeated, _ = sample("--run", char_run, "--seed", seed)
    assert repeated == first
    _, another, _ = sample("--run", char_run)
    assert another != first


@pytest.mark.parametrize("worth", [0, 2**62])
def test_torch_takes_several_threads_only_where_a_pass_is_worth_them_and_writes_the_same(
    sample: Run, char_run: Path, monkeypatch: pytest.MonkeyPatch, worth: int
) -> None:
    monkeypatch.setattr("gpt_cli.cli.open_generator.WORTH_THREADS", worth)
    torch.set_num_threads(2)
    code, written, _ = sample("--run", char_run, "--engine", "torch", "-n", 3, "--seed", 5)
    assert (code, torch.get_num_threads()) == (0, 2 if worth == 0 else 1)
    assert written == sample("--run", char_run, "--engine", "native", "-n", 3, "--seed", 5)[1]


@pytest.mark.parametrize(
    ("options", "threads"),
    [
        ((), 1),
        (("-n", 2), 1),
        (("-n", 3), 2),
        (("--beams", 3), 2),
        (("-n", 2, "--prompt", "abcabcab", "--max-new-tokens", 4), 2),
        (("--prompt", "abcabcab", "--max-new-tokens", 4), 1),
    ],
    ids=str,
)
def test_what_a_pass_is_worth_counts_texts_beams_and_the_prompt_of_several(
    sample: Run, char_run: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[object, ...], threads: int
) -> None:
    parameters = sum(array.size for array in open_checkpoint(char_run, print).model_arrays.values())
    monkeypatch.setattr("gpt_cli.cli.open_generator.WORTH_THREADS", 5 * parameters // 2)
    torch.set_num_threads(2)
    assert sample("--run", char_run, "--engine", "torch", *options)[0] == 0
    assert torch.get_num_threads() == threads


def test_temperature_0_always_writes_the_same(sample: Run, char_run: Path) -> None:
    first = sample("--run", char_run, "--temperature", 0)
    assert first == sample("--run", char_run, "--temperature", 0)
    assert "seed" not in first[2]


def test_0_switches_a_filter_of_the_config_off(sample: Run, char_run: Path) -> None:
    off = ("--top-k", 0, "--top-p", 1, "--min-p", 0)
    assert sample("--run", char_run, "--seed", 1, *off) == sample("--run", char_run, "--seed", 1)


def test_an_option_without_effect_leaves_the_text_as_it_is(sample: Run, char_run: Path) -> None:
    options = ("--run", char_run, "--prompt", "ab", "--seed", 1, "--max-new-tokens", 9)
    plain = sample(*options)
    for unused in (("--length-penalty", 3), ("--prompts-format", "jsonl"), ("--min-new-tokens", 99)):
        assert sample(*options, *unused) == plain
    code, out, err = sample(*options, "--temperature", 0, "--top-k", 3, "--min-p", 0.5)
    assert (code, out) == sample(*options, "--temperature", 0)[:2]
    assert err.startswith("no effect at temperature 0: --top-k, --min-p\n")


def test_several_samples_are_printed_in_turn_each_under_its_own_line(sample: Run, char_run: Path) -> None:
    code, out, _ = sample("--run", char_run, "-n", 3, "--prompt", "abc", "--seed", 1)
    assert code == 0
    sections = out.split("--- sample ")
    assert [section.split("\n")[0] for section in sections[1:]] == ["1 of 3", "2 of 3", "3 of 3"]
    texts = [section.partition("\n")[2] for section in sections[1:]]
    assert all(text.startswith("abc") and text.endswith("\n") for text in texts)
    assert len(set(texts)) == 3
    _, alone, _ = sample("--run", char_run, "--prompt", "abc", "--seed", 1)
    assert alone == texts[0]


def test_json_is_one_object_with_the_texts_their_tokens_and_why_they_ended(sample: Run, char_run: Path) -> None:
    code, out, err = sample("--run", char_run, "--json", "--prompt", "a", "--seed", 9, "-n", 2, "--stop", "b")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert {key: answer[key] for key in ("run", "step", "prompt", "seed")} == {
        "run": str(char_run),
        "step": 3,
        "prompt": "a",
        "seed": 9,
    }
    tokenizer = CharTokenizer("\nabcdefgh")
    for written in answer["samples"]:
        assert written.keys() == {"text", "tokens", "finish_reason"}
        generated = tokenizer.decode(written["tokens"])
        assert written["text"] == generated.partition("b")[0]
        assert written["finish_reason"] == ("stop" if "b" in generated else "length")


def test_a_prompt_is_read_from_standard_input_or_a_file_as_it_is(
    sample: Run, char_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--run", char_run, "--seed", 2, "--prompt")
    expected = sample(*options, "ab\ncd\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\ncd\n")))
    assert sample(*options, "-") == expected
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"\xef\xbb\xbfab\ncd\n")  # with a byte order mark, as some editors write it
    assert sample(*options[:-1], "--prompt-file", file) == expected


def test_characters_that_the_vocabulary_lacks_are_listed_or_left_out(sample: Run, char_run: Path) -> None:
    code, out, err = sample("--run", char_run, "--prompt", "aXb\x1b€")
    assert (code, out) == (2, "")
    for listed in ("'X' (U+0058", "'\\x1b' (U+001B", "'€' (U+20AC", "--unknown skip"):
        assert listed in err
    code, out, err = sample("--run", char_run, "--prompt", "aXb\x1b€", "--unknown", "skip", "--seed", 3)
    assert code == 0
    assert err.splitlines()[0] == "left out of the prompt, since the vocabulary lacks it: 'X', '\\x1b', '€'"
    assert out == sample("--run", char_run, "--prompt", "ab", "--seed", 3)[1]


def test_of_a_prompt_longer_than_the_context_the_last_tokens_are_seen_and_it_is_said(
    sample: Run, char_run: Path
) -> None:
    options = ("--run", char_run, "--seed", 4, "--prompt")
    code, out, err = sample(*options, "h" * 1000 + "a" * CONTEXT)
    assert code == 0
    assert err.startswith("the prompt has 1,016 tokens; the model sees the last 16, its context\n")
    assert out.removeprefix("h" * 1000) == sample(*options, "a" * CONTEXT)[1]


@pytest.mark.parametrize("prompt", ["", "\0", "مرحبا", "<|endoftext|>", "\u202eevil", "\r\n" * 9, "x" * 100_000])
def test_odd_prompts_are_continued(sample: Run, byte_run: Path, prompt: str) -> None:
    code, out, _ = sample("--run", byte_run, "--prompt", prompt)
    assert code == 0
    assert out.startswith(prompt)


def test_a_terminal_is_shown_what_would_drive_it_unless_raw_is_asked_for(
    sample: Run, byte_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--run", byte_run, "--seed", 1, "--prompt", "a\x1b]0;owned\x07\tb\n", "--max-new-tokens", 100)
    _, piped, _ = sample(*options)
    assert piped.startswith("a\x1b]0;owned\x07\tb\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _, printed, _ = sample(*options)
    assert printed.startswith("a\\x1b]0;owned\\x07\tb\n")
    assert not {c for c in printed if c < " " or "\x7f" <= c < "\xa0"} - {"\n", "\t"}
    assert sample(*options, "--raw")[1] == piped


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt", "a", "--prompt-file", "b"], "give --prompt or --prompt-file, not both"),
        (["--prompt-file", "no-such-file"], "there is no file no-such-file"),
        (["--temperature", "-1"], "temperature must be 0 or a positive number, not -1.0"),
        (["--temperature", "nan"], "temperature must be 0 or a positive number, not nan"),
        (["--top-k", "-3"], "top_k must be at least 1, or 0 for off, not -3"),
        (["--top-p", "0"], "top_p must be above 0 and at most 1, not 0.0"),
        (["--min-p", "2"], "min_p must be above 0 and at most 1, or 0 for off, not 2.0"),
        (["--max-new-tokens", "-1"], "max_new_tokens must be at least 0, not -1"),
        (["--seed", "-1"], "seed must be at least 0 and below 2^63, not -1"),
        (["--stop", ""], "stop must be a text of at least one character"),
        (["--prompt", "a\udcffb"], "is not UTF-8: its byte 0xff"),
        (["-n", "0"], "invalid value for '-n'"),
        (["--unknown", "guess"], "invalid value for '--unknown'"),
    ],
)
def test_a_wrong_request_is_one_error_with_code_2_and_no_text(
    sample: Run, char_run: Path, options: list[str], message: str
) -> None:
    code, out, err = sample("--run", char_run, *options)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err


def test_a_prompt_that_is_not_utf_8_is_refused_with_the_place(sample: Run, char_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "latin1.txt"
    file.write_bytes("abé".encode("latin-1"))
    code, out, err = sample("--run", char_run, "--prompt-file", file)
    assert (code, out) == (2, "")
    assert err == (f"error: the prompt is not UTF-8 text: byte 0xe9 at offset 2\n  --> {file}\n")


def test_without_a_run_there_is_one_clear_answer(sample: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = sample("--prompt", "a")
    assert (code, out) == (2, "")
    assert err.startswith("error: no run found")


def test_without_run_the_newest_run_is_taken(sample: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(["newest", "older"]):
        checkpoint = make_checkpoint(tmp_path / "runs" / name, ByteTokenizer())
        moment = 2_000_000_000 - age
        os.utime(checkpoint, (moment, moment))
    code, _, err = sample("--prompt", "a", "--seed", 1)
    assert (code, err) == (0, f"{Path('runs/newest')}, step 3, seed 1\n")


def gpt_in_a_shell(command: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a shell line in which `$GPT` is `gpt`."""
    environment = subprocess_env(GPT=f"{sys.executable} -m gpt_cli")
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env=environment,
        capture_output=True,
        timeout=HANG,
        check=False,
        **options,
    )


def test_a_reader_that_has_enough_ends_it_quietly(byte_run: Path) -> None:
    completed = gpt_in_a_shell(f"$GPT sample --run {byte_run} --prompt ab --max-new-tokens 100000 | head -c 10")
    assert completed.returncode == 0
    assert len(completed.stdout) == 10
    assert completed.stderr.decode().startswith(str(byte_run))
    assert len(completed.stderr.splitlines()) == 1


def test_text_arrives_while_it_is_being_written(byte_run: Path) -> None:
    arguments = ["sample", "--run", str(byte_run), "--prompt", "streams", "--max-new-tokens", "1000000000"]
    with subprocess.Popen(
        [sys.executable, "-m", "gpt_cli", *arguments],
        env=subprocess_env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(200).startswith(b"streams")
        process.terminate()
