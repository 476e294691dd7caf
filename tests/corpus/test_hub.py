"""Data sets of the Hugging Face Hub: a commit is read once from the network, and a name means one text."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpt_cli.corpus.hub import pin_sources
from gpt_cli.corpus.sources import read_documents
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import cache_dir
from tests.support.command import ROOT
from tests.support.hub import Hub, local_hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with local_hub(tmp_path / "huggingface", monkeypatch) as hub:
        yield hub


def record(text: str) -> str:
    return json.dumps({"text": text}) + "\n"


def texts(source: str, notes: list[str] | None = None) -> list[str]:
    return [document.text for document in read_documents(source, note=(notes if notes is not None else []).append)]


def commit(hub: Hub, *names: str, card: str | None = None, branch: str = "main") -> str:
    """Make a commit of owner/name in which each file holds its own name as a text."""
    files = {name: name if name.endswith(".txt") else record(name) for name in names}
    cards = {} if card is None else {"README.md": f"---\n{card}\n---\n# A card\n"}
    return hub.commit("owner/name", {**files, **cards, ".gitattributes": "x.jsonl"}, branch)


def test_the_files_of_a_data_set_come_from_the_revision_that_was_looked_at(hub):
    names = ["README.md", "data/train-1.jsonl", "data/train-0.jsonl", "data/test.jsonl"]
    sha = commit(hub, *names)
    notes: list[str] = []
    assert texts("hf:owner/name@main", notes) == ["data/train-0.jsonl", "data/train-1.jsonl"]
    assert notes == [f"hf:owner/name@{sha}: downloading 2 files, 62 bytes"]
    assert texts("hf:owner/name", notes) == ["data/train-0.jsonl", "data/train-1.jsonl"]
    assert len(notes) == 1
    assert texts("hf:owner/name/data/te*", notes) == ["data/test.jsonl"]
    with pytest.raises(RequestError, match="no such files"):
        texts("hf:owner/name/nothing*")


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (["constrained_test.jsonl", "train.jsonl"], ["train.jsonl"]),
        (["constrained_test.jsonl", "retraining.jsonl"], ["constrained_test.jsonl", "retraining.jsonl"]),
        (["data/Train/x.jsonl", "data/valid/x.jsonl"], ["data/Train/x.jsonl"]),
        (["GPT4-train.txt", "GPT4-valid.txt"], ["GPT4-train.txt"]),
        (["a_training0.jsonl", "b.jsonl"], ["a_training0.jsonl"]),
        (["train.txt", "test.jsonl"], ["test.jsonl"]),  # of the first kind that there is
        (["shard-0/x.jsonl", "shard-1/x.jsonl"], ["shard-0/x.jsonl", "shard-1/x.jsonl"]),
        (["train-0/x.jsonl", "train-1/x.jsonl"], ["train-0/x.jsonl", "train-1/x.jsonl"]),
        (["x.jsonl", "dataset_info.json", "a.json"], ["x.jsonl"]),
    ],
)
def test_training_text_is_what_names_call_so_by_a_whole_word(hub, names, read):
    commit(hub, *names)
    assert texts("hf:owner/name") == read


CARD = """
configs:
- config_name: small
  data_files:
  - split: test
    path: small/constrained_test.jsonl
  - split: train
    path: [small/first*, small/second.jsonl]
- config_name: large
  data_dir: large
- config_name: all
  data_files: "**/*.jsonl"
"""
NAMES = [
    "small/first.jsonl",
    "small/second.jsonl",
    "small/constrained_test.jsonl",
    "large/train.jsonl",
    "large/a.jsonl",
]


def test_a_configuration_of_the_card_is_its_training_split(hub):
    commit(hub, *NAMES, card=CARD)
    assert texts("hf:owner/name/small") == ["small/first.jsonl", "small/second.jsonl"]
    assert texts("hf:owner/name/large") == ["large/train.jsonl"]
    assert texts("hf:owner/name/all") == sorted(NAMES)


@pytest.mark.parametrize(
    ("pattern", "read"),
    [
        ("*.jsonl", ["0.jsonl"]),
        ("**/*.jsonl", ["0.jsonl", "a/1.jsonl", "a/b/2.jsonl"]),
        ("a/**", ["a/1.jsonl", "a/b/2.jsonl"]),
        ("./a/?.jsonl", ["a/1.jsonl"]),
        ("**/[0-1].jsonl", ["0.jsonl", "a/1.jsonl"]),
        ("**/[!0-1].jsonl", ["a/b/2.jsonl"]),
        ("a/*/[2].jsonl", ["a/b/2.jsonl"]),
        ("[", []),
    ],
)
def test_the_patterns_of_a_card_are_those_of_its_library(hub, pattern, read):
    commit(hub, "0.jsonl", "a/1.jsonl", "a/b/2.jsonl", card=f"configs: [{{config_name: x, data_files: '{pattern}'}}]")
    if read:
        assert texts("hf:owner/name") == read
    else:
        with pytest.raises(RequestError, match="has no text"):
            texts("hf:owner/name")


def test_several_configurations_are_refused_with_their_names(hub):
    commit(hub, *NAMES, card=CARD)
    with pytest.raises(RequestError, match="3 configurations") as caught:
        texts("hf:owner/name")
    assert caught.value.choices == ("hf:owner/name/small", "hf:owner/name/large", "hf:owner/name/all")
    with pytest.raises(RequestError, match="no such files") as caught:
        texts("hf:owner/name/smal")
    assert caught.value.choices == ("hf:owner/name/small",)


@pytest.mark.parametrize("names", [{"default": "small", "large": "large"}, {"only": "small"}])
def test_the_only_configuration_and_the_default_one_need_no_name(hub, names):
    entries = "".join(f"\n- config_name: {name}\n  data_dir: {folder}" for name, folder in names.items())
    commit(hub, *NAMES, card=f"configs:{entries}")
    assert texts("hf:owner/name") == sorted(name for name in NAMES if name.startswith("small"))


def test_folders_with_a_training_split_each_are_configurations_where_no_card_names_any(hub):
    commit(hub, "de/train/0.jsonl", "en/train/0.jsonl", "en/test/0.jsonl", branch="refs/convert/parquet")
    with pytest.raises(RequestError, match="2 configurations") as caught:
        texts("hf:owner/name@refs/convert/parquet")
    assert caught.value.choices == tuple(f"hf:owner/name@refs/convert/parquet/{name}" for name in ("de", "en"))
    assert texts("hf:owner/name@refs/convert/parquet/en") == ["en/train/0.jsonl"]


@pytest.mark.parametrize(
    "card",
    ["configs: [", "a: &a [*a", "x: 2020-99-99"],
)
def test_a_card_that_is_not_valid_is_one_error(hub, card):
    commit(hub, "train.jsonl", card=card)
    with pytest.raises(UserError, match="the card of a data set"):
        texts("hf:owner/name")


@pytest.mark.parametrize("card", ["configs: 7", "a: &a [*a]\nconfigs: *a", "configs: [x, {data_files: y}]", "- x"])
def test_a_card_without_a_configuration_names_none(hub, card):
    commit(hub, "train.jsonl", card=card)
    assert texts("hf:owner/name") == ["train.jsonl"]


@pytest.mark.parametrize("name", ["hf:", "hf:x", "hf:/x", "hf:x/", "hf:../../x", "hf:x/y z"])
def test_a_name_that_is_no_data_set_is_a_wrong_request_and_touches_no_network(name, monkeypatch):
    monkeypatch.setattr(socket, "socket", lambda *_: pytest.fail("the network"))
    with pytest.raises(RequestError, match="names no data set"):
        texts(name)


def test_without_a_network_hf_is_one_clear_error(gpt, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text(
        "import socket\n"
        "def refuse(*_, **__): raise OSError(101, 'Network is unreachable')\n"
        "socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse\n"
    )
    path = f"{blocked}:{ROOT}"
    completed = gpt(
        "tokenize",
        "hf:nobody/nothing",
        PYTHONPATH=path,
        HF_HOME=str(tmp_path / "hub"),
        HF_ENDPOINT="http://127.0.0.1:9",
    )
    assert completed.rc == 1, completed.stderr
    assert completed.stderr.startswith("error: cannot get hf:nobody/nothing from the Hugging Face Hub")
    assert "unreachable" in completed.stderr
    assert len(completed.stderr.splitlines()) == 1
    assert not (tmp_path / "tokens").exists()


def test_no_other_source_loads_the_library_of_the_hub(tmp_path):
    (tmp_path / "x.txt").write_text("text " * 100)
    check = (
        "import sys; from gpt_cli.corpus.prepare import prepare_corpus; from gpt_cli.config import *;"
        "prepare_corpus(DataConfig(source='x.txt'), TokenizerConfig(), cache=False, note=print);"
        "sys.exit('huggingface_hub' in sys.modules)"
    )
    completed = subprocess.run([sys.executable, "-c", check], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, check=False)
    assert completed.returncode == 0


# Commits


def pinned(source: str, *known: str) -> str:
    return str(pin_sources({"data.source": source}, pytest.fail, known).get("data.source", source))


def test_a_source_is_pinned_to_the_newest_commit_and_means_that_one_after_main_has_moved(hub):
    old = commit(hub, "train.jsonl")
    source = pinned("hf:owner/name/train*")
    assert source == f"hf:owner/name@{old}/train*"
    new = commit(hub, "train.jsonl", "train-more.jsonl")
    assert texts(source) == ["train.jsonl"]
    assert pinned("hf:owner/name") == f"hf:owner/name@{new}"
    values = {"data.source": ["book.txt", "hf:owner/name"], "data.val_source": "hf:owner/name", "seed": 1}
    assert pin_sources(values, pytest.fail) == {
        "data.source": ["book.txt", f"hf:owner/name@{new}"],
        "data.val_source": f"hf:owner/name@{new}",
    }
    assert pin_sources({"data.source": "book.txt", "data.val_source": None}, pytest.fail) == {}


def test_a_source_that_is_known_keeps_its_commit_without_the_network(hub):
    old = commit(hub, "train.jsonl")
    known = pinned("hf:owner/name")
    commit(hub, "train.jsonl", "more.jsonl")
    hub.disconnect()
    assert pinned("hf:owner/name", known) == known
    assert pinned(f"hf:owner/name@{old}", known) == known
    assert pinned("hf:owner/name", "hf:owner/name") == "hf:owner/name"  # of a run that older versions began


def test_another_tag_or_selection_is_another_text(hub):
    old = commit(hub, "train.jsonl", branch="v1")
    new = commit(hub, "train.jsonl", "train-more.jsonl", branch="v2")
    known = pinned("hf:owner/name@v1")
    assert known == f"hf:owner/name@{old}"
    assert pinned("hf:owner/name@v1", known) == known
    assert pinned("hf:owner/name@v2", known) == f"hf:owner/name@{new}"
    commit(hub, "train.jsonl")
    assert pinned("hf:owner/name/train.jsonl", known) == f"hf:owner/name@{old}/train.jsonl"


def test_a_commit_that_was_read_needs_no_network(hub, monkeypatch):
    sha = commit(hub, *NAMES, card=CARD)
    source = f"hf:owner/name@{sha}/small"
    first = texts(source)
    asked = len(hub.requests)
    assert texts(source) == first
    assert len(hub.requests) == asked
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert texts(source) == first


def test_a_name_without_a_commit_is_the_newest_on_this_machine_where_there_is_no_network(hub):
    sha = commit(hub, "train.jsonl")
    texts("hf:owner/name")
    hub.disconnect()
    notes: list[str] = []
    assert texts("hf:owner/name", notes) == ["train.jsonl"]
    assert sha in notes[0]
    assert pin_sources({"data.source": "hf:owner/name"}, notes.append) == {"data.source": f"hf:owner/name@{sha}"}


def test_what_another_program_has_downloaded_is_found_where_there_is_no_network(hub):
    from huggingface_hub import hf_hub_download

    sha = commit(hub, "train.jsonl")
    hf_hub_download("owner/name", "train.jsonl", repo_type="dataset", revision=sha)
    hub.disconnect()
    assert texts(f"hf:owner/name@{sha}") == ["train.jsonl"]


def test_a_commit_of_which_a_part_was_downloaded_is_not_taken_for_the_whole(hub, monkeypatch):
    sha = commit(hub, "train-0.jsonl", "train-1.jsonl")
    texts(f"hf:owner/name@{sha}/train-0.jsonl")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="cannot get"):
        texts(f"hf:owner/name@{sha}")


def test_a_memory_that_is_damaged_or_gone_is_made_anew(hub):
    sha = commit(hub, "train.jsonl")
    source = f"hf:owner/name@{sha}"
    assert texts(source) == ["train.jsonl"]
    [memory] = (cache_dir() / "hub").rglob("*.json")
    memory.write_text('{"commit": 1')
    assert texts(source) == ["train.jsonl"]
    shutil.rmtree(cache_dir() / "hub")
    assert texts(source) == ["train.jsonl"]


def test_what_the_hub_refuses_is_not_read_from_this_machine(hub):
    commit(hub, "train.jsonl")
    texts("hf:owner/name")
    hub.refs.clear()
    with pytest.raises(UserError, match="cannot get hf:owner/name from the Hugging Face Hub"):
        texts("hf:owner/name")
