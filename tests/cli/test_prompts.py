"""Many prompts in, JSON lines out, defaults in the run's config, and an answer to every odd prompt."""

import io
import json
import random
import re
import sys
import unicodedata
from pathlib import Path

import pytest

import gpt_cli
from gpt_cli.cli.main import main
from gpt_cli.cli.verbs.sample import sample as verb
from gpt_cli.errors import RequestError
from gpt_cli.run.checkpoint import load
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer
from tests.support.command import Run
from tests.support.untrained_run import make_checkpoint


@pytest.fixture(scope="module")
def char_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("char"), CharTokenizer("\nabcdefgh"))


@pytest.fixture(scope="module")
def byte_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("byte"), ByteTokenizer())


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    """A run whose config.yaml can be edited."""
    checkpoint = make_checkpoint(tmp_path / "run", CharTokenizer("\nabcdefgh"))
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "run" / "config.yaml").write_bytes((checkpoint / "config.yaml").read_bytes())
    return tmp_path / "run"


def lines_of(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


def test_a_line_of_a_file_is_a_prompt_and_each_gets_the_text_it_gets_alone(
    sample: Run, char_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(b"abc\r\n\nbadhead\n")
    options = ("--run", char_run, "--seed", 3, "--max-new-tokens", 9)
    code, out, err = sample(*options, "--prompts", file)
    assert (code, err) == (0, f"{char_run}, step 3, seed 3\n")
    parts = re.split(r"^--- prompt (\d) of 3\n", out, flags=re.MULTILINE)
    assert parts[1::2] == ["1", "2", "3"]
    assert parts[2::2] == [sample(*options, "--prompt", prompt)[1] for prompt in ("abc", "", "badhead")]
    assert sample(*options, "--prompts", file, "--batch-size", 1)[1] == out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert sample(*options, "--prompts", "-")[1] == out
    _, out, _ = sample(*options, "--prompts", file, "-n", 2)
    assert out.count("--- prompt 2 of 3, sample 2 of 2\n") == 1


def test_json_lines_in_and_out(sample: Run, char_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "ab", "id": 7, "other": [1]}\n\n{"prompt": "c\\n"}\n')
    options = ("--run", char_run, "--seed", 3, "--max-new-tokens", 5, "--stop", "h", "--jsonl", "-n", 2)
    code, out, _ = sample(*options, "--prompts", file)
    assert code == 0
    written = lines_of(out)
    assert [(line.get("id"), line["prompt"], line["sample"]) for line in written] == [
        (7, "ab", 1),
        (7, "ab", 2),
        (None, "c\n", 1),
        (None, "c\n", 2),
    ]
    tokenizer = CharTokenizer("\nabcdefgh")
    for line in written:
        keys = ["prompt", "sample", "seed", "text", "tokens", "log_probs", "finish_reason"]
        assert list(line) == (["id"] if line["prompt"] == "ab" else []) + keys
        tokens, log_probs = line["tokens"], line["log_probs"]
        assert isinstance(tokens, list)
        assert isinstance(log_probs, list)
        assert len(tokens) == len(log_probs)
        assert max(log_probs) < 0
        assert str(line["text"]) == tokenizer.decode(tokens).partition("h")[0]
        assert line["finish_reason"] in ("length", "stop")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert sample(*options, "--prompts", "-", "--prompts-format", "jsonl")[1] == out
    alone = lines_of(sample(*options, "--prompt", "ab")[1])
    assert [line["tokens"] for line in alone] == [line["tokens"] for line in written[:2]]


def test_the_words_of_a_template_stand_around_every_prompt(sample: Run, char_run: Path, tmp_path: Path) -> None:
    options = ("--run", char_run, "--seed", 1)
    wrapped = sample(*options, "--prefix", "head\n", "--prompt", "bad", "--suffix", "ab")
    assert wrapped == sample(*options, "--prompt", "head\nbadab")


def test_how_a_run_writes_can_be_edited_in_its_config_and_flags_come_first(sample: Run, run_directory: Path) -> None:
    config = run_directory / "config.yaml"
    changed = (
        "\nsample:\n  prompt: bad\n  max_new_tokens: 6\n  temperature: 0.0\n  stop: [a, b, c, h]\n"
        "  prefix: de\n  repetition_penalty: 1.5\n"
    )
    text, count = re.subn(r"\nsample:\n(?:  .*\n)*", lambda _: changed, config.read_text())
    assert count == 1
    config.write_text(text)
    options = ("--run", run_directory)
    code, out, _ = sample(*options)
    assert code == 0
    assert out.startswith("debad")
    assert not set(out[5:]) & set("abch")
    plain = ("--prefix", "", "--repetition-penalty", 1, "--temperature", 1.0, "--seed", 1)
    assert set(sample(*options, "--max-new-tokens", 200, *plain, "--stop", "\n\n\n\n")[1]) >= set("abch")
    sampler = gpt_cli.load(run_directory)
    assert sampler.defaults.repetition_penalty == 1.5
    assert "debad" + sampler.generate("bad").text() == out.removesuffix("\n")
    config.write_text(text.replace("temperature: 0.0", "temperature: warm"))
    code, out, err = sample(*options)
    assert (code, out) == (2, "")
    assert f"--> {config}:" in err


def test_choices_and_patterns_are_kept_to(sample: Run, char_run: Path) -> None:
    options = ("--run", char_run, "--jsonl", "-n", 20, "--prompt", "a")
    texts = {str(line["text"]) for line in lines_of(sample(*options, "--choices", "bad,a,ab,head")[1])}
    assert len(texts) > 1
    assert texts <= {"bad", "a", "ab", "head"}
    for line in lines_of(sample(*options, "--regex", "(bad|head)+[a-c]{2}")[1]):
        is_match = re.fullmatch("(bad|head)+[a-c]{2}", str(line["text"])) is not None
        assert line["finish_reason"] == ("match" if is_match else "length")


def test_every_option_of_the_choice_of_tokens_has_its_effect(sample: Run, char_run: Path) -> None:
    options = ("--run", char_run, "--prompt", "ab", "--seed", 1, "--max-new-tokens", 60)
    plain = sample(*options)[1]
    for flags in (
        ("--repetition-penalty", 10_000),  # an untrained model has small logits
        ("--no-repeat-ngram", 2),
        ("--logit-bias", "a=5"),
        ("--logit-bias", "#1=5"),
        ("--beams", 3),
        ("--stop", plain[5]),
    ):
        code, out, err = sample(*options, *flags)
        assert (code, err.count("\n")) == (0, 1)
        assert out != plain
    off = ("--repetition-penalty", 1, "--no-repeat-ngram", 0, "--beams", 0, "--min-new-tokens", 0)
    assert sample(*options, *off, "--logit-bias", "a=0")[1] == plain
    assert sample(*options, "--logit-bias", "a=5") == sample(*options, "--logit-bias", "#1=5")


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        (b"", [], "there are no prompts\n  --> {file}"),
        (b"ab\naXb\n", [], "the text has a character that the vocabulary lacks: 'X' (U+0058, first at character 2)"),
        (b"ab\naXb\n", [], "--> {file}:2\n"),
        (b"a\xff\n", [], "the prompt is not UTF-8 text: byte 0xff at offset 1\n  --> {file}"),
        (b'{"prompt": 3}', ["jsonl"], "a JSON object with the key prompt, a text, is expected\n  --> {file}:1"),
        (b'{"prompt": "a"}\n[1', ["jsonl"], "--> {file}:2"),
        (b"[" * 100_000, ["jsonl"], "this line is not JSON"),
        (b"\n\n", ["jsonl"], "there are no prompts"),
        (b'{"prompt": "a\\ud800"}', ["jsonl"], "half a surrogate pair"),
    ],
)
def test_a_file_of_prompts_that_cannot_be_used_is_one_error_with_its_line(
    sample: Run, char_run: Path, tmp_path: Path, content: bytes, flags: list[str], message: str
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(content)
    code, out, err = sample("--run", char_run, "--prompts", file, *(["--prompts-format", *flags] if flags else []))
    assert (code, out) == (2, "")
    assert message.format(file=file) in err
    assert err.startswith("error: ")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prompts", "x", "--prompt", "a"], "give --prompt or --prompts, not both"),
        (["--prompts", "no-such-file"], "there is no file no-such-file"),
        (["--prompts", "-", "--json"], "--json is for one prompt"),
        (["--logit-bias", "a"], "--logit-bias must be TOKEN=NUMBER, not 'a'"),
        (["--logit-bias", "a=x"], "--logit-bias must be TOKEN=NUMBER"),
        (["--logit-bias", "ab=1"], "'ab' is 2 tokens, not one"),
        (["--logit-bias", "#99=1"], "there is no id 99"),
        (["--logit-bias", "X=1"], "the vocabulary lacks"),
        (["--choices", "a,,b"], "choices must be texts of at least one character"),
        (["--choices", "xyz"], "each of --choices has characters which the vocabulary lacks: 'x', 'y', 'z'"),
        (["--regex", "("], "regex: unclosed group, at character 1"),
        (["--regex", "a", "--stop", "b"], "stop does not go with regex"),
        (["--top-p", "0"], "top_p must be above 0"),
        (["--repetition-penalty", "-1"], "repetition_penalty must be from 1e-06 to 1e+06"),
        (["--beams", "2", "-n", "3"], "2 beams cannot give 3 texts"),
        (["--batch-size", "0"], "invalid value for '--batch-size'"),
    ],
)
def test_a_wrong_request_is_one_error_with_code_2_and_no_text(
    sample: Run, char_run: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], message: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n")))
    code, out, err = sample("--run", char_run, *flags)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err


def test_help_names_each_option_once_under_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "--help"]) == 0
    out = capsys.readouterr().out
    for group in ("What to continue:", "How long:", "How to choose tokens:", "What may be written:", "Options:"):
        assert out.count(f"\n{group}\n") == 1
    options = re.findall(r"^  (-[-a-z]+)", out, flags=re.MULTILINE)
    assert len(options) == len(set(options)) >= 33
    assert max(map(len, out.splitlines())) <= 100


ODD = [
    "",
    "\0",
    "\x1b[2J",
    "\u202eevil",
    "\ufeff",
    "مرحبا",
    "🇦🇶👨‍👩‍👧",
    "<|endoftext|>",
    "<unk>",
    "\r\n",
    "\ud800",
    "a\udcff",
    "\x85",
    "é" * 9,
]


def fuzzed(seed: int) -> str:
    """A prompt out of odd pieces, characters from all of Unicode, surrogates among them, and plain ones."""
    generator = random.Random(seed)
    fragments = [
        generator.choice(ODD)
        if generator.random() < 0.4
        else "".join(chr(generator.choice([generator.randrange(128), generator.randrange(0x110000)])) for _ in range(4))
        for _ in range(generator.randrange(5))
    ]
    return "".join(fragments) * generator.choice([1, 1, 1, 40])


@pytest.mark.parametrize("count", [500, pytest.param(5_000, marks=pytest.mark.slow)])
def test_fuzzed_prompts_get_text_or_one_clear_error(
    count: int,
    sample: Run,
    byte_run: Path,
    char_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Through the verb, on what it takes for a terminal. The models are loaded once, and few command lines parsed."""
    loaded = {path: load(path) for path in (byte_run, char_run)}
    monkeypatch.setattr("gpt_cli.cli.options.run_options.open_checkpoint", lambda path, *_: loaded[path])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    answers = {0: 0, 2: 0}
    for seed in range(count):
        prompt = fuzzed(seed)
        run = byte_run if seed % 3 else char_run
        if seed < count // 20:
            code, out, err = sample("--run", run, "--prompt", prompt, "--seed", seed, "--max-new-tokens", 3)
        else:
            code, refused = 0, ""
            try:
                verb(run=run, prompt=prompt, seed=seed, max_new_tokens=3)
            except RequestError as error:
                code, refused = error.exit_code, error.render()
            out, err = capsys.readouterr()
            err += refused
        answers[code] += 1
        assert not [c for c in out + err if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cs")], seed
        if code == 0:
            assert out.startswith(escape_control_chars(prompt, keep="\n\t")), seed
        else:
            assert err.startswith("error: "), seed
            assert len(err.splitlines()) <= 3, seed
            assert out == "", seed
    assert min(answers.values()) > count // 10


def test_a_megabyte_is_continued_by_every_kind_of_sampling(sample: Run, byte_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_text("aé\n" * 262_144)
    for flags in ((), ("--repetition-penalty", 1.2, "--no-repeat-ngram", 3), ("--beams", 2), ("--regex", r"\w+")):
        code, out, err = sample("--run", byte_run, "--prompt-file", file, "--max-new-tokens", 3, *flags)
        assert code == 0, err
        assert err.startswith("the prompt has 1,048,576 tokens; the model sees the last 16")
        assert len(out) > 3 * 262_144


@pytest.mark.parametrize("option", ["--prompt", "--prompts", "--prompt-file"])
def test_closed_standard_input_is_a_wrong_request(sample, char_run, monkeypatch, option):
    monkeypatch.setattr(sys, "stdin", None)
    code, _, stderr = sample("--run", char_run, option, "-")
    assert (code, stderr.splitlines()[0]) == (2, "error: standard input is closed")
