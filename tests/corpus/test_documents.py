"""Documents of plain text: files, lines and paragraphs; pairs without prompts."""

import json
import random
from pathlib import Path

import pytest

import gpt_cli
from gpt_cli.cli.main import main
from gpt_cli.config import load_config, parse_config
from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.blocks import CorpusText
from gpt_cli.corpus.detect import propose_lines
from gpt_cli.corpus.prepare import prepare_corpus

TINY = ("model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.context_length=16", "sample.every=null")
draw = random.Random(3)
NAMES = sorted({"".join(draw.choices("abdeilmnorstu", k=draw.randint(3, 8))).title() for _ in range(600)})


def documents(path: Path, unit: str) -> list[str]:
    text = CorpusText.find(DataConfig.model_validate({"source": str(path), "documents": unit}), pytest.fail)
    found, parts = [], []
    for block in text.blocks(0):
        parts.append(block.text)
        if block.ends:
            found.append("".join(parts))
            parts = []
    return found


def test_a_file_a_line_and_a_paragraph_are_documents_as_asked(tmp_path: Path) -> None:
    text = "One.\r\nTwo.\r\n\r\n\nThree.\n  Four.\n \n\nFive."
    (tmp_path / "x.txt").write_bytes(text.encode())
    assert documents(tmp_path / "x.txt", "file") == [text]
    assert documents(tmp_path / "x.txt", "lines") == ["One.", "Two.", "Three.", "  Four.", "Five."]
    assert documents(tmp_path / "x.txt", "paragraphs") == ["One.\nTwo.\n\n", "Three.\n  Four.\n\n", "Five.\n\n"]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv", ".ipynb"])
def test_a_unit_that_is_asked_for_reads_any_file_as_plain_text(tmp_path: Path, suffix: str) -> None:
    content = '{"text": "one"}\n{"text": "two"}\n'
    (tmp_path / f"x{suffix}").write_text(content)
    text = CorpusText.find(DataConfig(source=str(tmp_path / f"x{suffix}"), documents="file"), lambda _: None)
    assert [block.text for block in text.blocks(0)] == [content]


def test_lines_are_dealt_to_the_splits_whole_and_alike_in_any_order(tmp_path: Path) -> None:
    held_out = []
    for name, lines in (("sorted.txt", NAMES), ("shuffled.txt", draw.sample(NAMES, len(NAMES)))):
        (tmp_path / name).write_text("\n".join(lines))
        config = parse_config("{}", "c", [f"data.source={tmp_path / name}", "data.documents=lines"])
        assert config.data.split == "documents"
        corpus = prepare_corpus(config.data, config.tokenizer, cache=False, note=pytest.fail)
        held_out.append(set(corpus.tokenizer.decode(corpus.val.tolist()).split()))
        assert corpus.stats["train"].documents + corpus.stats["val"].documents == len(NAMES)
    assert held_out[0] == held_out[1] <= set(NAMES)
    assert len({name[0] for name in held_out[0]}) > 6  # not the end of the alphabet
    assert parse_config("{}", "c", ["data.documents=lines", "data.split=characters"]).data.split == "documents"


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_a_sample_of_lines_is_one_line_that_an_empty_prompt_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("names.txt").write_text("\n".join(NAMES))
    size = ("tokenizer.vocab_size=300",) if kind == "bpe" else ()
    command = ("names.txt", "data.documents=lines", f"tokenizer.kind={kind}", *size, *TINY, "train.steps=60")
    assert main(["train", *command]) == 0
    sample = load_config(Path("runs/names/config.yaml")).sample
    assert (sample.stop, sample.prompt) == (["\n"], "")
    run = gpt_cli.load("runs/names")
    samples = [str(run.generate("", seed=seed, max_new_tokens=80)) for seed in range(20)]
    assert not any("\n" in sample for sample in samples)
    assert sum(0 < len(sample) < 30 for sample in samples) >= 15
    assert sum(sample[:1].isupper() for sample in samples) >= 12


def test_short_lines_that_are_alike_are_proposed_as_documents_and_a_sorted_list_is_noted() -> None:
    assert "data.documents=lines" in propose_lines("\n".join(NAMES) + "\n")
    assert "sorted" in propose_lines("\n".join(NAMES) + "\n")
    assert "sorted" not in propose_lines("\n".join(draw.sample(NAMES, len(NAMES))) + "\n")
    words = " ".join(NAMES * 20)
    wrapped = [words[start : start + 64] for start in range(0, len(words), 64)]
    verse = [line for start in range(0, len(NAMES), 4) for line in (*NAMES[start : start + 4], "")]
    code = [f"{'    ' * (n % 3)}x{n} = {n}" for n in range(400)]
    prose = [" ".join(draw.choices(NAMES, k=draw.randint(20, 90))) for _ in range(100)]
    for lines in (wrapped, verse, code, prose, NAMES[:20]):
        assert propose_lines("\n".join(lines) + "\n") == ""


def test_the_proposal_is_made_where_a_text_is_trained_on_or_inspected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("names.txt").write_text("\n".join(NAMES) + "\n")
    for command in (["train", "names.txt", "--dry-run"], ["data", "inspect", "names.txt"]):
        assert main(command) == 0
        assert "data.documents=lines" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("prompts", [0, 1], ids=["no prompts", "one in ten prompts"])
def test_pairs_with_empty_prompts_are_dealt_out_and_trained_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompts: int
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{n}" if prompts and n % 10 == 0 else "", "completion": name} for n, name in enumerate(NAMES)]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataConfig(source="pairs.jsonl", format="pairs")
    corpus = prepare_corpus(data, parse_config("{}", "c").tokenizer, cache=False, note=pytest.fail)
    examples = {split: len(corpus.examples[split]) for split in ("train", "val")}
    assert examples["val"] == pytest.approx(len(NAMES) / 10, abs=2)
    assert main(["train", "pairs.jsonl", *TINY, "train.steps=2"]) == 0


def test_a_step_of_a_fitted_config_has_at_most_half_of_the_examples(tmp_path: Path) -> None:
    from gpt_cli.search.auto_config import fit_config

    sizes = {}
    for n in (4, 36, 600):
        rows = [{"prompt": f"{i}", "completion": f"the number {i}"} for i in range(n)]
        (tmp_path / f"{n}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        config, _ = fit_config({"data.source": str(tmp_path / f"{n}.jsonl")}, run_dir="runs/x", has_gpu=False, cores=2)
        sizes[n] = config.train.batch_size
    assert sizes[4] == 1
    assert sizes[36] == 16
    assert sizes[600] > 16
