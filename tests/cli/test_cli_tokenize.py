"""`gpt tokenize` shows what a text becomes, keeps it where it says, and refuses the rest in a line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt_cli.config import DataConfig, TokenizerConfig
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.corpus.store import TokenStore
from gpt_cli.files import cache_dir
from gpt_cli.tokenizer import CharTokenizer, load_tokenizer
from tests.support.command import Run, as_json, in_process

TEXT = "".join(f"Once upon a time there were {n} mice, and the {n}th of them lived in a shoe.\n" for n in range(200))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`gpt` in this process, in a directory that holds mice.txt."""
    monkeypatch.chdir(tmp_path)
    Path("mice.txt").write_text(TEXT)

    return in_process(capsys)


def test_the_table_tells_sizes_per_split_and_the_vocabulary(run: Run) -> None:
    answer = run("tokenize", "mice.txt", "--kind", "bpe", "--vocab-size", "300")
    assert answer.rc == 0
    lines = {line.partition("  ")[0]: line.split() for line in answer.stdout.splitlines()}
    sizes = [int(size.replace(",", "")) for size in lines["characters"][1:]]
    assert sizes[0] + sizes[1] == sizes[2] == len(TEXT)
    assert float(lines["bytes per token"][-1]) > 2
    assert lines["ids"][-1] == "300"
    assert {"tokenizer", "unused ids", "longest tokens", "first merges"} <= set(lines)
    assert answer.stdout.count(" + ") == 10


def test_the_longest_tokens_are_whole_in_the_table_and_in_json(run: Run) -> None:
    Path("ruled.txt").write_text(f"{TEXT}{'-' * 64}\n" * 50)
    command = ("tokenize", "ruled.txt", "--kind", "bpe", "--vocab-size", "400")
    (row,) = (line for line in run(*command).stdout.splitlines() if line.startswith("longest tokens"))
    assert row.startswith(f"longest tokens  '{'-' * 32}' '{'-' * 16}' ")
    assert as_json(run(*command, "--out", "again", "--json"))["longest_tokens"][0]["text"] == "-" * 32


def test_the_tokens_are_where_it_says_and_train_takes_them(run: Run) -> None:
    answer = run("tokenize", "mice.txt", "--kind", "bpe", "--vocab-size", "300", "--val-fraction", "0.2")
    assert "tokens/mice-bpe300" in answer.stderr
    store = TokenStore.open(Path("tokens/mice-bpe300"))
    assert store.tokenizer == load_tokenizer(Path("tokens/mice-bpe300/tokenizer.json"))
    data = DataConfig(source="tokens/mice-bpe300", val_fraction=0.2)
    corpus = prepare_corpus(data, TokenizerConfig(kind="bpe", vocab_size=300), note=pytest.fail)
    assert corpus.tokenizer.decode(corpus.train) + corpus.tokenizer.decode(corpus.val) == TEXT


def test_json_is_one_object_with_the_same_facts_and_stdout_has_nothing_else(run: Run) -> None:
    facts = as_json(run("tokenize", "mice.txt", "--kind", "bpe", "--vocab-size", "300", "--out", "out", "--json"))
    assert facts["out"] == "out"
    assert (facts["kind"], facts["vocab_size"]) == ("bpe", 300)
    assert facts["splits"]["all"]["characters"] == facts["splits"]["all"]["bytes"] == len(TEXT)
    assert facts["splits"]["train"]["bytes_per_token"] > 2
    assert set(facts["unused_ids"]) > {0, 255, 299}
    assert len(facts["longest_tokens"]) == len(facts["merges"]) == 10
    assert all(set(merge) == {"left", "right", "id", "count"} for merge in facts["merges"])
    assert facts["tokenizer_sha256"] == load_tokenizer(Path("out/tokenizer.json")).digest


@pytest.mark.parametrize("kind", ["char", "byte"])
def test_characters_and_bytes_have_no_merges(run: Run, kind: str) -> None:
    assert as_json(run("tokenize", "mice.txt", "--kind", kind, "--json"))["merges"] == []
    assert "merges" not in run("tokenize", "mice.txt", "--kind", kind).stdout


def test_the_options_of_the_text_are_the_keys_of_its_config(run: Run) -> None:
    Path("rows.csv").write_bytes(b"id,body\n" + "".join(f"{n},Mäuse {n}\n" for n in range(50)).encode("cp1252"))
    Path("held.txt").write_bytes("Mäuse held out\n".encode("cp1252") * 9)
    options = ["--encoding", "cp1252", "--text-key", "body", "--split", "documents", "--test-fraction", "0.2"]
    options += ["--val-source", "held.txt", "--weight", "2", "--weight", "1"]
    Path("more.txt").write_text("and more")
    facts = as_json(run("tokenize", "rows.csv", "more.txt", *options, "--kind", "byte", "--out", "out", "--json"))
    assert set(facts["splits"]) == {"train", "val", "test", "all"}
    data = DataConfig(
        source=["rows.csv", "more.txt"],
        weights=[2, 1],
        encoding="cp1252",
        text_key="body",
        split="documents",
        test_fraction=0.2,
        val_source="held.txt",
    )
    corpus = prepare_corpus(data, TokenizerConfig(kind="byte"), note=pytest.fail, with_test=True)
    assert corpus.test is not None
    assert facts["splits"]["test"]["tokens"] == len(corpus.test)
    assert corpus.tokenizer.decode(corpus.val) == "Mäuse held out\n" * 9
    tested = set(corpus.tokenizer.decode(corpus.test).split("\n")) - {""}
    trained = corpus.tokenizer.decode(corpus.train).split("\n")
    assert len(tested) == 10
    assert tested.isdisjoint(trained)
    assert all(trained.count(f"Mäuse {n}") == 2 for n in range(50) if f"Mäuse {n}" not in tested)


def test_what_it_made_before_it_makes_again(run: Run) -> None:
    for _ in range(2):
        assert run("tokenize", "mice.txt").rc == 0
    Path("mice.txt").write_text(TEXT + "!")
    assert as_json(run("tokenize", "mice.txt", "--json"))["splits"]["all"]["characters"] == len(TEXT) + 1


@pytest.mark.parametrize(
    ("arguments", "directory"),
    [
        (["mice.txt"], "tokens/mice-char"),
        (["mice.txt", "--vocab-size", "300"], "tokens/mice-bpe300"),
        (["./m*.txt"], "tokens/m-char"),
        (["mice.txt", "builtin:python-docs"], "tokens/mice-and-1-more-char"),
        (["builtin:python-docs"], "tokens/python-docs-char"),
    ],
)
def test_the_directory_is_named_after_the_corpus(run: Run, arguments: list[str], directory: str) -> None:
    assert as_json(run("tokenize", *arguments, "--json"))["out"] == directory


def test_an_encoding_shows_ids_and_pieces_and_a_decoding_the_text(run: Run) -> None:
    assert run("tokenize", "mice.txt", "--kind", "bpe", "--vocab-size", "300").rc == 0
    ready = ("--tokenizer", "tokens/mice-bpe300/tokenizer.json")
    encoding = as_json(run("tokenize", *ready, "--text", "there were mäuse\n", "--json"))["encoding"]
    assert "".join(encoding["pieces"]) == "there were m\\xc3\\xa4use\n"
    assert encoding["bytes"] == 18
    ids = " ".join(map(str, encoding["ids"]))
    assert as_json(run("tokenize", *ready, "--ids", ids, "--json")) == {"decoding": "there were mäuse\n"}
    answer = run("tokenize", *ready, "--text", "there were mäuse\n", "--ids", f"[{ids.replace(' ', ', ')}]")
    assert answer.stdout.splitlines()[0] == f"ids     {ids}"
    assert "' were'" in answer.stdout.splitlines()[1]
    assert answer.stdout.endswith("there were mäuse\n\n")


def test_looking_at_an_encoding_writes_nothing(run: Run) -> None:
    answer = run("tokenize", "mice.txt", "--text", "mice", "--json")
    assert as_json(answer)["encoding"]["pieces"] == ["m", "i", "c", "e"]
    assert not Path("tokens").exists()
    assert not (cache_dir() / "stores").exists() or not any((cache_dir() / "stores").iterdir())


def test_looking_with_a_place_for_the_tokens_does_both(run: Run) -> None:
    facts = as_json(run("tokenize", "mice.txt", "--text", "", "--out", "out", "--json"))
    assert facts["encoding"] == {"ids": [], "pieces": [], "bytes": 0}
    assert facts["splits"]["all"]["tokens"] == len(TEXT)


def test_a_corpus_can_come_through_a_pipe(gpt: Callable[..., Any]) -> None:
    completed = gpt("tokenize", "-", "--json", stdin=TEXT)
    assert json.loads(completed.stdout)["out"] == "tokens/standard-input-char"
    assert completed.stderr.count("\n") == 2  # where the tokens are, and what for; no progress bar without a terminal


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "nothing to tokenize"),
        (["--text", "x"], 2, "--text needs a tokenizer"),
        (["--tokenizer", "ready.json"], 2, "nothing to tokenize"),
        (["nice.txt"], 2, "nice.txt does not exist"),
        ([""], 2, "empty"),
        (["empty.txt"], 1, "empty.txt is empty"),
        (["binary.bin"], 1, "zero byte at offset 1"),
        (["latin1.txt"], 1, "0xe4 at offset 1"),
        (["tiny.txt"], 1, "too small to split"),
        (["mice.txt", "--kind", "bpe", "--vocab-size", "256"], 2, "--vocab-size"),
        (["mice.txt", "--kind", "char", "--vocab-size", "300"], 2, "needs --kind (char) to be bpe"),
        (["mice.txt", "--kind", "byte", "--pattern", "gpt4"], 2, "only for --kind bpe"),
        (["mice.txt", "--kind", "word"], 2, "word"),
        (["mice.txt", "--kind", "byte", "--unknown", "token"], 2, "needs --kind (byte) to be char"),
        (["mice.txt", "--min-count", "2"], 2, "--unknown (error) to be token"),
        (["mice.txt", "--min-count", "0"], 2, "--min-count"),
        (["mice.txt", "--unknown", "token", "--min-count", "99999"], 2, "--min-count"),
        (["mice.txt", "--val-fraction", "1"], 2, "--val-fraction must be below 1"),
        (["mice.txt", "--val-fraction", "nan"], 2, "--val-fraction must be a finite number"),
        (["mice.txt", "--test-fraction", "-0.1"], 2, "--test-fraction must be at least 0"),
        (["mice.txt", "--val-fraction", "0.6", "--test-fraction", "0.5"], 2, "leave a part to train on"),
        (["mice.txt", "--weight", "2", "--weight", "1"], 2, "--weight is given 2 times for 1 text"),
        (["mice.txt", "--weight", "0"], 2, "--weight"),
        (["mice.txt", "--encoding", "klingon"], 2, "'klingon' is not an encoding"),
        (["mice.txt", "--encoding", "utf-16"], 1, "UTF-16"),
        (["mice.txt", "--split", "documents"], 1, "too few to split"),
        (["mice.txt", "--val-source", "nice.txt"], 2, "nice.txt does not exist"),
        (["mice.txt", "--processes", "0"], 2, "--processes"),
        (["mice.txt", "--train-bytes", "1000"], 2, "only for --kind bpe"),
        (["no.csv"], 1, "no text under the key 'text'"),
        (["mice.txt", "--tokenizer", "nowhere.json"], 2, "nowhere.json does not exist"),
        (["mice.txt", "--tokenizer", "mice.txt"], 1, "mice.txt"),
        (["mice.txt", "--tokenizer", "ready.json"], 2, "the vocabulary lacks"),
        (["mice.txt", "--tokenizer", "ready.json", "--kind", "bpe", "--vocab-size", "300"], 2, "char"),
        (["mice.txt", "--tokenizer", "ready.json", "--pattern", "gpt4"], 2, "--pattern"),
        (["mice.txt", "--out", "mice.txt"], 2, "not a token store"),
        (["mice.txt", "--out", "full"], 2, "not a token store"),
        (["mice.txt", "--out", "mice.txt/below"], 1, "cannot create mice.txt"),
        (["--tokenizer", "ready.json", "--text", "abd"], 2, "'d'"),
        (["--tokenizer", "ready.json", "--ids", "0 3"], 2, "outside the vocabulary"),
        (["--tokenizer", "ready.json", "--ids", "0 -1"], 2, "'-1'"),
        (["--tokenizer", "ready.json", "--ids", "one"], 2, "'one'"),
        (["--tokenizer", "ready.json", "--ids", "9" * 5000], 2, "whole numbers"),
    ],
)
def test_bad_input_is_one_error_line_and_leaves_nothing(
    run: Run, arguments: list[str], code: int, message: str
) -> None:
    Path("empty.txt").touch()
    Path("binary.bin").write_bytes(b"a\0b")
    Path("latin1.txt").write_bytes("Mäuse".encode("latin-1"))
    Path("tiny.txt").write_text("ab")
    Path("no.csv").write_text("id,body\n1,one\n")
    Path("full").mkdir()
    Path("full/file").touch()
    CharTokenizer("abc").save(Path("ready.json"))
    before = sorted(Path().rglob("*"))
    answer = run("tokenize", *arguments)
    assert answer.rc == code, answer.stderr
    assert answer.stdout == ""
    assert answer.stderr.startswith("error: ")
    assert answer.stderr.count("error: ") == 1
    assert message in answer.stderr
    assert sorted(Path().rglob("*")) == before


def test_the_hint_for_a_character_that_is_missing_works(run: Run) -> None:
    refused = run("tokenize", "mice.txt", "--text", "ß")
    assert refused.rc == 2
    assert "--kind byte" in refused.stderr
    assert as_json(run("tokenize", "mice.txt", "--text", "ß", "--kind", "byte", "--json"))["encoding"]["ids"] == [
        195,
        159,
    ]


def test_rare_characters_become_unk_where_that_is_asked_for_and_the_table_says_how_many(run: Run) -> None:
    Path("rare.txt").write_text(TEXT + "ß語\n")
    answer = run("tokenize", "rare.txt", "--unknown", "token", "--min-count", "2", "--text", "aß", "--out", "out")
    assert answer.rc == 0, answer.stderr
    assert "2 characters (0.01%) became <unk>" in answer.stdout
    assert "'a' '<unk>'" in answer.stdout
    ready = ("--tokenizer", "out/tokenizer.json")
    ids = as_json(run("tokenize", *ready, "--text", "aß語", "--json"))["encoding"]["ids"]
    decoded = as_json(run("tokenize", *ready, "--ids", " ".join(map(str, ids)), "--json"))["decoding"]
    assert decoded == "a\ufffd\ufffd"


def test_special_tokens_in_a_text_are_read_where_that_is_allowed(run: Run) -> None:
    Path("stories.txt").write_text(TEXT + "<|endoftext|>" + TEXT)
    bpe = ("tokenize", "stories.txt", "--kind", "bpe", "--vocab-size", "300", "--text", "<|endoftext|>", "--json")
    assert len(as_json(run(*bpe))["encoding"]["ids"]) > 1
    assert as_json(run(*bpe, "--allow-special"))["encoding"]["ids"] == [299]


def test_an_empty_directory_is_a_place_for_tokens_and_a_foreign_one_is_not_touched(run: Run) -> None:
    Path("empty").mkdir()
    assert run("tokenize", "mice.txt", "--out", "empty").rc == 0
    assert TokenStore.open(Path("empty")).stats["train"].documents == 1


def test_a_token_store_is_not_tokenized_again(run: Run) -> None:
    run("tokenize", "mice.txt", "--out", "out")
    answer = run("tokenize", "out")
    assert answer.rc == 2
    assert "gpt train out" in answer.stderr
