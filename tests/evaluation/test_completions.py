"""`gpt eval` of completions: the figures are those of sacrebleu on what the model writes, and mean what they say."""

import json
import sys
from pathlib import Path

import pytest
import sacrebleu

from gpt_cli.cli.main import main
from gpt_cli.errors import UserError
from gpt_cli.evaluation.completions import NearestExample, score_completions

TINY = ("model.n_layer=1", "model.n_head=2", "model.n_embd=32", "model.context_length=24", "train.batch_size=8")
PAIRS = [(f"say {word}", f"{word}!") for word in ("ja", "nein", "gut", "da", "so", "wo", "wer", "was", "oft", "nie")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("completions")
    rows = [{"prompt": prompt, "completion": completion} for prompt, completion in PAIRS]
    (directory / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (directory / "pairs.yaml").write_text(
        f"data: {{source: {directory / 'pairs.jsonl'}, format: pairs, val_source: {directory / 'pairs.jsonl'}}}\n"
        f"run_dir: {directory / 'run'}\n"
    )
    keys = [*TINY, "train.steps=300", "eval.every=null", "checkpoint.every=null", "sample.every=null"]
    assert main(["train", "--config", str(directory / "pairs.yaml"), *keys]) == 0
    return directory / "run"


def figures(run: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, float]:
    assert main(["eval", str(run), "--json", *options]) == 0
    actual: dict[str, float] = json.loads(capsys.readouterr().out)
    return actual


def test_what_was_learned_by_heart_is_written_exactly_and_the_figures_are_those_of_sacrebleu(run, tmp_path, capsys):
    actual = figures(run, capsys, "--baselines", "--out", str(tmp_path / "out.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted((line["prompt"], line["completion"]) for line in lines) == sorted(PAIRS)
    written, references = [line["written"] for line in lines], [line["completion"] for line in lines]
    assert actual["examples"] == 10
    assert actual["exact_match"] == 100 * sum(map(str.__eq__, written, references)) / 10 >= 90
    assert actual["chrf"] == pytest.approx(sacrebleu.corpus_chrf(written, [references]).score)
    assert actual["bleu"] is None  # of references this short
    assert (actual["copy_exact_match"], actual["nearest_exact_match"]) == (0, 100)  # it validates what it trains on
    prompts = [line["prompt"] for line in lines]
    assert actual["copy_chrf"] == pytest.approx(sacrebleu.corpus_chrf(prompts, [references]).score)


def test_beams_and_a_part_of_the_examples_are_as_asked(run, capsys):
    greedy, beams = figures(run, capsys, "--examples", "3"), figures(run, capsys, "--examples", "3", "--beams", "2")
    assert greedy["examples"] == beams["examples"] == 3
    assert beams["exact_match"] >= 60


def test_bleu_is_that_of_sacrebleu_and_none_only_where_no_reference_has_four_words():
    written, references = ["it is number five of ten", "yes"], ["it is number five of nine", "no"]
    expected = sacrebleu.corpus_bleu(written, [references]).score
    assert score_completions(written, references).bleu == pytest.approx(expected)
    assert 0 < expected < 100
    assert score_completions(["it"], ["it is number four"]).bleu == 0
    assert score_completions(["it is four"], ["it is four"]).bleu is None


def test_without_sacrebleu_it_is_one_error_with_a_way_out_and_the_loss_can_be_had(run, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(UserError, match="chrF and BLEU need the package sacrebleu") as caught:
        score_completions(["a"], ["a"])
    assert (caught.value.kind, caught.value.choices) == ("package", ("gpt-cli[metrics]",))
    assert main(["eval", str(run)]) == 1
    monkeypatch.undo()
    assert "chrf" not in figures(run, capsys, "--no-completions")


def test_options_of_completions_are_refused_where_there_are_none(run, capsys, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("say ja")
    assert main(["eval", str(run), "--text", str(text), "--beams", "2"]) == 2
    assert "for a run that learned pairs or chats" in capsys.readouterr().err
    assert main(["eval", str(run), "--text", str(text), "--json"]) == 0
    assert "chrf" not in json.loads(capsys.readouterr().out)
    assert main(["eval", str(run), "--no-completions", "--examples", "2"]) == 2
    assert "--no-completions or --examples, not both" in capsys.readouterr().err


def write_pairs(path: Path, pairs: list[tuple[str, str]], keys: tuple[str, str] = ("prompt", "completion")) -> str:
    path.write_text("".join(json.dumps(dict(zip(keys, pair, strict=True))) + "\n" for pair in pairs))
    return str(path)


def test_other_pairs_are_measured_as_its_own_are(run, tmp_path, capsys):
    own = figures(run, capsys)
    copied = figures(run, capsys, "--text", write_pairs(tmp_path / "same.jsonl", PAIRS))
    assert {**copied, "text": own["text"]} == own
    subset = write_pairs(tmp_path / "some.jsonl", PAIRS[:4])
    actual = figures(run, capsys, "--text", subset, "--baselines", "--out", str(tmp_path / "out.jsonl"))
    assert (actual["examples"], actual["nearest_exact_match"]) == (4, 100)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["prompt"], line["completion"]) for line in lines] == PAIRS[:4]
    assert "chrf" not in figures(run, capsys, "--text", subset, "--no-completions")
    as_text = figures(run, capsys, "--text", subset, "--text-key", "completion")
    assert as_text["characters"] == sum(len(completion) for _, completion in PAIRS[:4]) - 1
    strange = write_pairs(tmp_path / "strange.jsonl", [("say Ω ja", "ja!"), *PAIRS[1:4]])
    assert main(["eval", str(run), "--text", strange]) == 2
    assert "that the vocabulary lacks: 'Ω'" in capsys.readouterr().err
    assert figures(run, capsys, "--text", strange, "--unknown", "skip")["examples"] == 4


def test_what_holds_no_pairs_for_this_run_is_refused_with_what_it_reads(run, tmp_path, capsys):
    chat = tmp_path / "chat.jsonl"
    chat.write_text(json.dumps({"messages": [{"role": "user", "content": "say"}]}) + "\n")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    write_pairs(folder / "pairs.jsonl", PAIRS)
    (folder / "text.txt").write_text("say it")
    ends = write_pairs(tmp_path / "ends.jsonl", [("say", "a\x03b")])
    renamed_keys = write_pairs(tmp_path / "others.jsonl", PAIRS, ("question", "answer"))
    for text, code, words in (
        (renamed_keys, 1, "no text under the key 'prompt'; keys: question, answer"),
        (chat, 1, "no text under the key 'prompt'; keys: messages"),
        (folder, 2, "text.txt is plain text: pairs are read from records"),
        (empty, 1, "empty.jsonl has no examples"),
        (ends, 1, "this completion contains '\\x03'"),
        (tmp_path / "absent.jsonl", 2, "does not exist"),
    ):
        assert main(["eval", str(run), "--text", str(text)]) == code
        assert words in capsys.readouterr().err
    assert main(["eval", str(run), "--text-key", "answer"]) == 2
    assert "--encoding and --text-key are of --text" in capsys.readouterr().err


def test_the_nearest_example_is_the_one_that_shares_most_of_its_runs_of_characters():
    nearest = NearestExample(["Delete page", "Delete all pages", "Save", ""], list("abcd"))
    assert [nearest.completion(text) for text in ("Delete page", "all pages", "Saved", "", "?")] == list("abcda")
