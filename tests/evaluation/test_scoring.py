"""`gpt score`: every figure equals what a plain forward pass says of that token, and nothing of a text gets lost."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.config import Config, ModelConfig, TokenizerConfig
from gpt_cli.evaluation.logprob_scorer import LogprobScorer, NativeScorer
from gpt_cli.evaluation.scored_text import ScoredLine, ScoredText
from gpt_cli.evaluation.sliding_windows import read_tokens, windows
from gpt_cli.evaluation.torch_scorer import TorchScorer
from gpt_cli.model.gpt import GPT
from gpt_cli.report import score_page
from gpt_cli.report.score_text import paint, render_lines
from gpt_cli.run.checkpoint import save
from gpt_cli.runtime.device import setup_runtime
from gpt_cli.sampling.native_decoder import open_decoder
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer, train_tokenizer
from gpt_cli.training.evaluate import EvaluationText, evaluate
from gpt_cli.training.grad_scaler import GradScaler
from gpt_cli.training.torch_engine import TorchEngine
from tests.support.command import Run, in_process, subprocess_env
from tests.support.html_page import require_harmless

CONTEXT = 16
BPE = train_tokenizer(["the cat sat \n\non the mat, é€ the end\n" * 20], TokenizerConfig(kind="bpe", vocab_size=276))
UNKNOWN = CharTokenizer("\nabc", has_unknown=True)


def make_model(vocab_size: int) -> GPT:
    """A model for which the context matters: the sublayers of an untrained one begin at zero."""
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=2, n_head=2, n_embd=16, context_length=CONTEXT), vocab_size)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.5)
    return model.eval()


MODEL = make_model(256)


@pytest.fixture(params=["native", "torch"])
def reader(request: pytest.FixtureRequest) -> LogprobScorer:
    if request.param == "torch":
        return TorchScorer(MODEL)
    decoder = open_decoder(MODEL.config, 256, {name: tensor.numpy() for name, tensor in MODEL.state_dict().items()})
    assert decoder is not None
    return NativeScorer(decoder)


def plain(tokens: list[int], begin: int, index: int) -> float:
    """The definition: log p(tokens[index] | tokens[begin:index]) by a forward pass of its own, uncached."""
    with torch.no_grad():
        logits = MODEL(torch.tensor([tokens[begin:index]]))[0, -1].double()
    return float(logits.log_softmax(0)[tokens[index]])


@given(n=st.integers(2, 90), context=st.integers(1, 20), data=st.data())
def test_every_token_but_the_first_is_predicted_once_and_from_enough(n: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context))
    actual = list(windows(n, context, stride))
    predicted = [index for w in actual for index in range(w.first, w.end)]
    assert predicted == list(range(1, n))
    assert all(w.begin < w.first <= w.end <= w.begin + context + 1 for w in actual)
    for w in actual[1:]:
        assert w.first - w.begin >= context + 1 - stride
    assert actual[0].begin == 0
    assert n > context + 1 or len(actual) == 1


@pytest.mark.parametrize(("length", "stride"), [(2, 8), (17, 8), (18, 8), (75, 8), (75, 16), (40, 1)])
def test_each_figure_is_that_of_a_forward_pass_of_its_own(reader: LogprobScorer, length: int, stride: int) -> None:
    tokens = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint32)
    actual = read_tokens(reader, tokens, stride)
    assert math.isnan(actual[0])
    expected = [
        plain(tokens.tolist(), w.begin, index)
        for w in windows(length, CONTEXT, stride)
        for index in range(w.first, w.end)
    ]
    assert actual[1:] == pytest.approx(expected, abs=2e-4)


def test_windows_that_do_not_overlap_give_the_loss_of_gpt_eval(reader: LogprobScorer) -> None:
    tokens = np.random.default_rng(7).integers(0, 256, 131, dtype=np.uint32)
    runtime = setup_runtime(Config().runtime.model_copy(update={"device": "cpu", "precision": "fp32"}))
    engine = TorchEngine(MODEL, runtime, GradScaler(False), print)
    loss = evaluate(MODEL, engine, EvaluationText.of(tokens, ByteTokenizer(), runtime.device)).loss
    assert -read_tokens(reader, tokens, CONTEXT)[1:].mean() == pytest.approx(loss, rel=1e-5)
    assert -read_tokens(reader, tokens, CONTEXT // 2)[1:].mean() != pytest.approx(loss, rel=1e-3)


@given(
    text=st.text(alphabet="abc \n\té€\U0001f600\u0301", min_size=1, max_size=40),
    tokenizer=st.sampled_from([ByteTokenizer(), BPE, UNKNOWN]),
    seed=st.integers(0, 9),
)
@settings(max_examples=150)
def test_lines_and_spans_have_all_of_the_text_and_all_of_its_bits(text: str, tokenizer: Tokenizer, seed: int) -> None:
    ids = tokenizer.encode(text)
    log_probs = -np.random.default_rng(seed).exponential(size=len(ids))
    log_probs[0] = np.nan
    scored = ScoredText(tokenizer, text, ids, log_probs)
    lines = [scored.line(i) for i in range(len(scored))]
    assert [line.text for line in lines] == re.findall(r"[^\n]*\n|[^\n]+", text)
    assert [token for line in lines for token in line.tokens] == ids.tolist()
    assert [value for line in lines for value in line.log_probs][1:] == log_probs[1:].tolist()
    assert sum(line.bits for line in lines) == pytest.approx(-log_probs[1:].sum() / math.log(2))
    assert sum(line.bytes for line in lines) == sum(len(tokenizer.token_bytes(int(i))) for i in ids[1:])
    assert sum(line.bits for line in lines) == pytest.approx(scored.bits)
    for line in lines:
        assert "".join(span.text for span in line.spans) == line.text
    rates = [line.bits_per_byte or 0.0 for line in lines]
    worst = scored.top_surprising(len(lines), "bits-per-byte")
    assert [rates[i] for i in worst] == pytest.approx([rates[i] for i in blank_last(lines, rates)])
    bits = [line.bits for line in lines]
    assert [bits[i] for i in scored.top_surprising(2, "bits")] == pytest.approx(
        [bits[i] for i in blank_last(lines, bits)[:2]]
    )


def blank_last(lines: list[ScoredLine], costs: list[float]) -> list[int]:
    """The lines by what they cost, the dearest first, and those without a character that is seen behind all others."""
    return sorted(range(len(lines)), key=lambda i: (not lines[i].text.encode().strip(), -costs[i]))


def test_blank_lines_are_not_the_most_surprising_ones() -> None:
    text = "a\n\nb\n \nc\n"
    ids = ByteTokenizer().encode(text)
    log_probs = np.array([np.nan, *(-20.0 if text[i] in "\n " else -1.0 for i in range(1, len(ids)))])
    scored = ScoredText(ByteTokenizer(), text, ids, log_probs)
    assert sorted(scored.top_surprising(3, "bits-per-byte")) == [0, 2, 4]
    assert len(scored.top_surprising(5, "bits-per-byte")) == 5


def test_a_token_of_several_lines_belongs_to_the_one_where_it_begins() -> None:
    ids = BPE.encode("cat \n\non")
    assert len(ids) < 8
    scored = ScoredText(BPE, "cat \n\non", ids, np.array([np.nan, *[-1.0] * (len(ids) - 1)]))
    assert [scored.line(i).text for i in range(3)] == ["cat \n", "\n", "on"]
    assert sum(len(scored.line(i).tokens) for i in range(3)) == len(ids)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = Config(model=MODEL.config)
    return save(tmp_path_factory.mktemp("run"), 3, MODEL.state_dict(), {}, {}, config, ByteTokenizer())


@pytest.fixture
def score(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    return in_process(capsys, "score", "--run", str(run))


TEXT = "The first line.\n\tA tab, and \x1b[31mred\x1b[0m, <b>bold</b> & 漢字漢字.\n\n" + "long " * 60 + "\nlast"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_columns_have_each_line_whole_and_hold_nothing_that_drives_a_terminal(score: Run, file: Path) -> None:
    code, out, err = score(file)
    rows = out.splitlines()
    assert (code, len(rows)) == (0, 6)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", out)
    assert rows[0].split() == ["line", "bits", "bits/byte", "text"]
    for row, line in zip(rows[1:], TEXT.splitlines(), strict=True):
        assert row.endswith(escape_control_chars(line.rstrip()))
    assert f"{len(TEXT.encode()) - 1:,} tokens, loss" in err


def test_json_lines_hold_the_text_and_add_up_to_the_sums(score: Run, file: Path) -> None:
    _, out, _ = score(file, "--jsonl")
    lines = [json.loads(line) for line in out.splitlines()]
    sums = json.loads(score(file, "--json")[1])
    assert "".join(line["text"] for line in lines) == TEXT
    assert [line["line"] for line in lines] == [1, 2, 3, 4, 5]
    assert lines[0]["log_probs"][0] is None
    for line in lines:
        log_probs = [value for value in line["log_probs"] if value is not None]
        assert line["bits"] == pytest.approx(-sum(log_probs) / math.log(2), abs=1e-3)
        assert line["bits_per_byte"] == pytest.approx(line["bits"] / line["bytes"], abs=1e-5)
        assert len(line["tokens"]) == len(line["pieces"]) == len(line["log_probs"])
    assert sums["bits"] == pytest.approx(sum(line["bits"] for line in lines), abs=1e-3)
    assert sums["bytes"] == sums["tokens"] == len(TEXT.encode()) - 1
    assert sums["loss"] == pytest.approx(sums["bits"] * math.log(2) / sums["tokens"])
    _, out, _ = score(file, "--jsonl", "--worst", 2)
    worst = [json.loads(line) for line in out.splitlines()]
    assert worst == sorted(lines, key=lambda line: -line["bits_per_byte"])[:2]


def test_engines_agree_and_a_token_has_its_row(score: Run, file: Path) -> None:
    native, torch_ = (json.loads(score(file, "--json", "--engine", name)[1]) for name in ("native", "torch"))
    assert (native.pop("engine") in ("native", "numpy"), torch_.pop("engine")) == (True, "torch")
    assert native["bits"] == pytest.approx(torch_["bits"], rel=1e-5)
    _, out, _ = score(file, "--tokens", "--worst", 1)
    assert out.splitlines()[0].split() == ["line", "id", "bits", "piece"]
    assert len(out.splitlines()) > 1


def test_a_terminal_is_shown_colours_of_ours_alone(score: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    _, out, _ = score(file)
    ours = re.compile(r"\x1b\[(?:0|2|38;5;\d+;48;5;\d+)m")
    assert ours.search(out)
    bare = ours.sub("", out)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", bare)
    assert "long " * 60 in bare.replace("⏎", "")  # whole
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in score(file)[1]


def test_the_page_is_one_harmless_file_with_the_text_in_it(score: Run, file: Path, tmp_path: Path) -> None:
    code, out, err = score(file, "--html", tmp_path / "page.html")
    assert (code, out) == (0, "")
    assert "wrote" in err
    html = (tmp_path / "page.html").read_text()
    page = require_harmless(html)
    assert page.count("script") == 1
    assert page.count("b") == 0
    output = page.text().replace("⏎", "")
    assert "<b>bold</b>" in output
    assert r"\x1b[31mred" in output
    assert "漢字漢字" in output
    assert html.count("color-scheme: dark") >= 2  # light and dark


def test_the_heading_says_whether_the_lines_are_the_text_or_the_most_surprising_ones(score: Run, tmp_path) -> None:
    (tmp_path / "short.txt").write_text("once upon\na time\n")
    for flags, heading in (([], "The text"), (["--worst", "2"], "Most surprising lines")):
        assert score(tmp_path / "short.txt", "--html", tmp_path / "p.html", *flags)[0] == 0
        assert re.findall("<h2>([^<]*)", (tmp_path / "p.html").read_text()) == [heading]


def test_a_long_text_is_data_that_becomes_markup_where_one_looks(score: Run, file: Path, tmp_path, monkeypatch) -> None:
    hostile = "</script><b>bold</b> & \x1b[31mred"
    (tmp_path / "long.txt").write_text(f"{hostile}\n" + "once upon a time\n" * 40)
    monkeypatch.setattr(score_page, "MAX_INLINE_TOKENS", 30)
    monkeypatch.setattr(score_page, "CHUNK", 100)
    code, _, err = score(tmp_path / "long.txt", "--html", tmp_path / "page.html", "--unknown", "skip")
    assert code == 0, err
    page = require_harmless(html := (tmp_path / "page.html").read_text())
    scripts = re.findall(r'<script type="application/json">(.*?)</script>', html, flags=re.DOTALL)
    assert len(scripts) > 3
    assert page.count("script") == len(scripts) + 1
    lines = [line for script in scripts for line in json.loads(script)]
    assert [line[0] for line in lines] == list(range(1, 42))
    assert "".join(lines[1][3][::3]).replace("⏎", "") == "once upon a time"
    assert page.count("b") == 0
    monkeypatch.setattr(score_page, "MAX_TOKENS", 30)
    assert score(tmp_path / "long.txt", "--html", tmp_path / "page.html", "--unknown", "skip")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.txt"], "none.txt does not exist"),
        (["empty.txt"], "empty.txt"),
        (["text.txt", "--stride", "17"], "stride must be from 1 to 16"),
        (["text.txt", "--stride", "0"], "stride must be from 1 to 16"),
        (["text.txt", "--html", "page.pdf"], "written as .html"),
        (["text.txt", "--json", "--jsonl"], "not both"),
    ],
)
def test_what_cannot_be_done_is_one_error(
    score: Run, file: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "empty.txt").write_text("")
    code, out, err = score(*arguments)
    assert code in (1, 2)
    assert out == ""
    assert message in err
    assert err.count("error: ") == 1


def test_a_vocabulary_without_a_character_says_so_or_leaves_it_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("abXcab\n")
    for folder, tokenizer in (("known", CharTokenizer("\nabc")), ("unknown", UNKNOWN)):
        model = make_model(tokenizer.vocab_size)
        save(tmp_path / folder, 1, model.state_dict(), {}, {}, Config(model=MODEL.config), tokenizer)
        (tmp_path / folder / "run.json").write_text("{}")
        (tmp_path / folder / "config.yaml").write_text("")

    gpt = in_process(capsys, "score", str(tmp_path / "text.txt"), "--jsonl", "--run")
    code, out, err = gpt(tmp_path / "known")
    assert (code, out) == (2, "")
    assert "'X' (U+0058, first at character 3)" in err
    assert f"--> {tmp_path / 'text.txt'}" in err
    code, out, err = gpt(tmp_path / "known", "--unknown", "skip")
    assert (code, json.loads(out)["text"]) == (0, "abcab\n")
    assert "left out of the text" in err
    code, out, err = gpt(tmp_path / "unknown")
    line = json.loads(out)
    assert (code, line["text"], line["pieces"][2]) == (0, "abXcab\n", "X")
    assert line["bytes"] == 5  # as gpt eval counts: neither the first token nor <unk>
    assert "the model sees <unk>" in err


def test_a_painted_line_reads_as_the_line() -> None:
    scored = ScoredText(ByteTokenizer(), "aé\x07b\n", ByteTokenizer().encode("aé\x07b\n"), np.full(6, -3.0))
    line = scored.line(0)
    assert re.sub(r"\x1b\[[\d;]*m", "", paint(line.spans)) == "aé\\x07b⏎"
    assert [span.text for span in line.spans] == ["a", "é", "\x07", "b", "\n"]
    assert line.spans[1].bits == pytest.approx(6 / math.log(2))
    assert len(list(render_lines([line], 1, coloured=False))) == 2


def test_native_scoring_imports_no_torch(run: Path, tmp_path: Path) -> None:
    source = (
        "import sys; from gpt_cli.cli.main import main;"
        f"code = main(['score', 'text.txt', '--run', {str(run)!r}, '--engine', 'native']);"
        "sys.exit(code or ('torch' in sys.modules))"
    )
    (tmp_path / "text.txt").write_text("abc")
    completed = subprocess.run(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        env=subprocess_env(),
        capture_output=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
