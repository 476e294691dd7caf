"""`gpt tokenize --compare` shows what each tokenizer really makes of the text, and what it means for a model."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from gpt_cli.analysis import compare_tokenizers
from gpt_cli.analysis.compare_tokenizers import Measured, measure_tokenizers, parse_candidates
from gpt_cli.analysis.split_text import SplitText
from gpt_cli.analysis.text_sample import SystematicSample, TextSample, TextSpan, sample_text
from gpt_cli.cli.main import main
from gpt_cli.config import DataConfig, ModelConfig, TokenizerConfig
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.errors import RequestError
from gpt_cli.model.gpt import GPT
from gpt_cli.report.tokenizer_table import columns, draw_comparison
from gpt_cli.tokenizer import CharTokenizer
from tests.support.command import Run, as_json, in_process

TEXT = "".join(
    f"Once upon a time there were {n} mice, and the {n}th of them lived in a shoe. Größe!\n" for n in range(200)
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`gpt tokenize mice.txt` in this process, in a directory that holds little else."""
    monkeypatch.chdir(tmp_path)
    Path("mice.txt").write_text(TEXT)

    return in_process(capsys, "tokenize", "mice.txt")


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("char", TokenizerConfig(kind="char")),
        ("byte", TokenizerConfig(kind="byte")),
        ("bpe:300", TokenizerConfig(kind="bpe", vocab_size=300)),
        ("bpe", TokenizerConfig(kind="bpe")),
    ],
)
def test_the_figures_are_those_of_the_tokens_that_training_gets(run: Run, name: str, config: TokenizerConfig) -> None:
    output = as_json(run("--compare", name, "--json"))["tokenizers"][0]
    corpus = prepare_corpus(DataConfig(source="mice.txt"), config, cache=False, note=lambda _: None)
    used = {*corpus.train.tolist(), *corpus.val.tolist()}
    assert output["kind"] == config.kind
    assert output["vocab_size"] == corpus.tokenizer.vocab_size
    assert output["unused_ids"] == corpus.tokenizer.vocab_size - len(used)
    assert output["tokens"] == len(corpus.train) + len(corpus.val)
    facts = corpus.stats["val"]
    assert output["bytes_per_token"] == pytest.approx(facts.bytes / facts.tokens)
    assert output["characters_per_token"] == pytest.approx(facts.characters / facts.tokens)


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("position", ["rope", "learned"])
def test_the_share_of_embeddings_is_that_of_the_model_itself(tie: bool, position: str) -> None:
    shape = ModelConfig.model_validate({"tie_embeddings": tie, "position": position, "context_length": 32})
    column = columns([Measured("x", "bpe", 777, 0, 100, 2.5, 2.0)], shape)[0]
    model = GPT(shape, 777)
    rows = {id(p): p.numel() for p in (model.embedding.tokens.weight, model.head.weight)}
    assert column.parameters == sum(p.numel() for p in model.parameters())
    assert column.embedding_parameters == sum(rows.values())
    assert column.context_characters == 64.0


def test_the_table_has_a_line_for_each_and_the_picture_too(run: Run) -> None:
    answer = run("--compare", "char, byte,bpe:300", "-o", "compare.svg")
    assert answer.rc == 0, answer.stderr
    assert [line.split()[0] for line in answer.stdout.splitlines()[2:5]] == ["char", "byte", "bpe:300"]
    assert "wrote compare.svg" in answer.stderr
    drawn = Path("compare.svg").read_text()
    for label in ("bpe:300", "bytes per token", "context in characters", "parameters in embeddings"):
        assert f"<!-- {label}" in drawn
    assert not Path("tokens").exists()


def test_the_model_comes_from_a_config_or_a_width(run: Run) -> None:
    Path("model.yaml").write_text("model: {n_layer: 2, n_head: 2, n_embd: 32, context_length: 50}\n")
    by_file = as_json(run("--compare", "char", "--json", "--model-config", "model.yaml"))
    assert by_file["model"]["n_layer"] == 2
    assert by_file["tokenizers"][0]["context_characters"] == 50
    by_width = as_json(run("--compare", "char", "--json", "--model-config", "256"))
    assert by_width["model"]["n_embd"] == 256


def test_files_are_compared_under_the_name_they_are_given(run: Run) -> None:
    CharTokenizer("".join(sorted(set(TEXT + "xyz")))).save(Path("ready.json"))
    assert run("--kind", "bpe", "--vocab-size", "300", "--out", "store").rc == 0
    listed = "plain=ready.json,bpe:300,same=store/tokenizer.json"
    output = as_json(run("--compare", listed, "--json"))["tokenizers"]
    assert [row["name"] for row in output] == ["plain", "bpe:300", "same"]
    assert output[0]["unused_ids"] >= 1
    assert {**output[1], "name": ""} == {**output[2], "name": ""}
    assert as_json(run("--compare", "ready.json", "--json"))["tokenizers"][0]["name"] == "ready.json"


def test_a_rank_file_is_compared_where_the_pattern_is_said(run: Run) -> None:
    ranks = "".join(f"{b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    Path("mine.tiktoken").write_text(ranks)
    assert "does not say how it splits text" in run("--compare", "mine=mine.tiktoken").stderr
    (mine,) = as_json(run("--compare", "mine=mine.tiktoken", "--pattern", "o200k", "--json"))["tokenizers"]
    assert (mine["vocab_size"], mine["tokens"]) == (257, len(TEXT.encode()))


def test_names_that_mean_something_to_a_drawing_are_only_names(tmp_path: Path) -> None:
    names = ["_hidden", "$x_1$", "100%", "a\x1b[31mb", "日本"]
    measured = [Measured(name, "bpe", 300, 0, 100, 2.5, 2.0) for name in names]
    for output in (tmp_path / "a.png", tmp_path / "b.png"):
        draw_comparison(columns(measured, ModelConfig()), ModelConfig(), output)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_large_text_is_measured_on_a_sample_and_that_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(text: SplitText, progress: Any) -> TextSample:
        sample = sample_text(text, progress)
        return TextSample(sample.train[:5000], sample.val, sample.characters)

    monkeypatch.setattr("gpt_cli.analysis.text_sample.sample_text", small)
    answer = run("--compare", "char")
    assert f"of the {len(TEXT):,} characters" in answer.stderr


def test_text_passes_through_a_sample_unchanged_and_cut_where_training_cuts(tmp_path: Path) -> None:
    (tmp_path / "mice").write_text(TEXT)
    reports: list[Any] = []
    text = SplitText.find(
        DataConfig(source=str(tmp_path / "mice"), val_fraction=0.25),
        pytest.fail,
        lambda *report: reports.append(report),
    )
    sample = sample_text(text, lambda *report: reports.append(report))
    assert {report[0] for report in reports} == {"reading", "sampling"}
    cut = int(0.75 * len(TEXT))
    assert (sample.train, sample.val, sample.whole) == (TEXT[:cut], TEXT[cut:], True)
    large = SystematicSample(1 << 20)
    for i in range(40):
        large.add(TextSpan(i << 17, "x" * (1 << 17)))
    assert len(large.text(0, 40 << 17)) < (1 << 20) + (1 << 20)


def test_what_is_kept_for_the_test_is_not_compared(run: Run) -> None:
    Path("mice.txt").write_text(TEXT + "ß" * len(TEXT))  # the second half
    answer = run("--compare", "char", "--test-fraction", "0.5", "--val-fraction", "0.1", "--json")
    answered = json.loads(answer.stdout)
    assert answered["characters"] == len(TEXT)
    assert answered["tokenizers"][0]["vocab_size"] == len(set(TEXT))
    assert "kept for the test was not looked at" in answer.stderr


def test_the_options_that_divide_a_text_divide_it_for_a_comparison_too(run: Run) -> None:
    Path("val.txt").write_text("abc\n" * 100)
    answered = json.loads(run("--compare", "byte", "--val-source", "val.txt", "--json").stdout)
    assert answered["characters"] == len(TEXT) + 400
    assert answered["tokenizers"][0]["tokens"] == len(TEXT.encode()) + 400


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--compare", "gpt2"], 2, "nothing is downloaded"),
        (["--compare", "word"], 2, "'word' is no tokenizer"),
        (["--compare", ""], 2, "'' is no tokenizer"),
        (["--compare", "char,,byte"], 2, "'' is no tokenizer"),
        (["--compare", "="], 2, "no tokenizer"),
        (["--compare", "a="], 2, "no tokenizer"),
        (["--compare", "gpt2=nowhere.json"], 2, "no file nowhere.json"),
        (["--compare", "a\0b=c\0d"], 2, "no file"),
        (["--compare", "bpe:256"], 2, "257 to 1,000,000"),
        (["--compare", "bpe:99999999"], 2, "257 to 1,000,000"),
        (["--compare", "bpe:50000"], 2, "out of reach"),
        (["--compare", "char,char"], 2, "char twice"),
        (["--compare", "mice.txt"], 1, "no tokenizer that gpt can use"),
        (["--compare", "small=small.json"], 2, "small: the text has"),
        (["--compare", "char", "--kind", "byte"], 2, "--kind cannot be combined"),
        (["--compare", "char", "--text", "x"], 2, "--text cannot be combined"),
        (["--compare", "char", "--unknown", "token"], 2, "--unknown cannot be combined"),
        (["--compare", "char", "--min-count", "2"], 2, "--min-count cannot be combined"),
        (["--compare", "bpe:300", "--allow-special"], 2, "--allow-special cannot be combined"),
        (["--compare", "bpe:300", "--train-bytes", "1000"], 2, "--train-bytes cannot be combined"),
        (["--compare", "char", "--val-fraction", "0"], 2, "between 0 and 1"),
        (["--compare", "char", "-o", "compare.gif"], 2, ".png, .svg, .pdf"),
        (["--compare", "char", "-o", "nowhere/compare.png"], 2, "no directory"),
        (["--compare", "char", "--model-config", "nowhere.yaml"], 2, "no config file"),
        (["--compare", "char", "--model-config", "30"], 2, "n_head"),
        (["--model-config", "128"], 2, "--model-config is for --compare"),
    ],
)
def test_bad_input_is_one_error_and_leaves_nothing(run: Run, arguments: list[str], code: int, message: str) -> None:
    CharTokenizer("abc").save(Path("small.json"))
    before = sorted(Path().rglob("*"))
    answer = run(*arguments)
    assert (answer.rc, answer.stdout) == (code, ""), answer.stderr
    assert answer.stderr.startswith("error: ")
    assert message in answer.stderr
    assert sorted(Path().rglob("*")) == before


def test_a_comparison_needs_a_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenize", "--compare", "char"]) == 2
    assert "nothing to tokenize" in capsys.readouterr().err


def test_progress_counts_the_tokenizers() -> None:
    events: list[tuple[int, int]] = []
    sample = TextSample("abcabc" * 20, "abc" * 5, 135)
    measure_tokenizers(parse_candidates("char,byte", "gpt2"), sample, lambda done, total: events.append((done, total)))
    assert events == [(0, 2), (1, 2), (2, 2)]


def test_a_file_that_cannot_be_a_path_is_no_file() -> None:
    with pytest.raises(RequestError):
        parse_candidates(f"x={'a' * 5000}", "gpt2")
    assert compare_tokenizers.parse_candidates("bpe:0300", "gpt4")[0].name == "bpe:300"
