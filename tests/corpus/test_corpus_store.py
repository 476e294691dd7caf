"""A token store gives back the very ids it was given, with their tokenizer, or says that it cannot."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.corpus import store as store_module
from gpt_cli.corpus.store import SplitStats, TokenStore
from gpt_cli.corpus.tokens import to_token_dtype, token_dtype
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import DamagedError, DiskError, ExistsError
from gpt_cli.tokenizer import CharTokenizer
from tests.support.sums import reseal
from tests.support.token_store import DIVISION, START, TOKENIZER, write

FACTS = {"characters": 3, "bytes": 3, "documents": 1}


def load(path: Path) -> None:
    """Load all that is in a store."""
    store = TokenStore.open(path)
    for split in store.stats:
        store.tokens(split)


def alphabet(size: int) -> CharTokenizer:
    return CharTokenizer("".join(chr(code) for code in range(size + 0x800) if not 0xD800 <= code < 0xE000)[:size])


@settings(max_examples=50)
@given(st.lists(st.integers(0, 7), min_size=1), st.lists(st.integers(0, 7), min_size=1), st.integers(1, 9))
def test_the_ids_come_back_however_they_are_cut_into_shards(
    tmp_path: Path, train: list[int], val: list[int], shard: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "SHARD_TOKENS", shard)
        store = write(tmp_path / "store", train, val, replace=True)
    assert store.tokens("train").tolist() == train
    assert store.tokens("val").tolist() == val


def test_a_store_brings_its_tokenizer_and_what_is_known_of_the_text(tmp_path: Path) -> None:
    store = write(tmp_path / "store", [1, 2, 3])
    assert store.tokenizer == TOKENIZER
    assert store.stats["train"] == SplitStats(3, 3, 3, 1, START)
    assert (store.fingerprint, store.division) == ("f", DIVISION)
    assert store.stats["train"].document_starts.tolist() == [0]


@pytest.mark.parametrize(("size", "dtype"), [(65_535, "<u2"), (65_536, "<u2"), (65_537, "<u4"), (70_000, "<u4")])
def test_the_last_id_of_a_vocabulary_survives(tmp_path: Path, size: int, dtype: str) -> None:
    tokens = write(tmp_path / "store", [0, size - 1], tokenizer=alphabet(size)).tokens("train")
    assert tokens.tolist() == [0, size - 1]
    assert tokens.dtype == np.dtype(dtype) == token_dtype(size)


@pytest.mark.parametrize("size", [8, 65_535, 65_536, 65_537])
def test_an_id_outside_the_vocabulary_is_never_stored(size: int) -> None:
    with pytest.raises(ValueError, match="outside the vocabulary"):
        to_token_dtype(np.array([0, size], dtype=np.uint32), size)


def test_the_shards_are_files_that_any_numpy_reads(tmp_path: Path) -> None:
    write(tmp_path / "store", [3, 1, 2])
    assert np.load(tmp_path / "store" / "train-00000.npy").tolist() == [3, 1, 2]


def test_writing_to_the_tokens_changes_no_file(tmp_path: Path) -> None:
    store = write(tmp_path / "store", [3, 1, 2])
    store.tokens("train")[:] = 0
    assert TokenStore.open(tmp_path / "store").tokens("train").tolist() == [3, 1, 2]


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    write(tmp_path / "store", range(8))
    for path in sorted((tmp_path / "store").iterdir()):
        data = path.read_bytes()
        for offset in {0, len(data) // 2, len(data) - 1}:
            path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
            with pytest.raises(DamagedError):
                load(tmp_path / "store")
        path.write_bytes(data)
    load(tmp_path / "store")


@pytest.mark.parametrize(
    "name", ["tokens.json", "tokenizer.json", "train-00000.npy", "val-documents.npy", "SHA256SUMS"]
)
def test_a_missing_file_is_found(tmp_path: Path, name: str) -> None:
    write(tmp_path / "store", [1])
    (tmp_path / "store" / name).unlink()
    with pytest.raises(UserError):
        TokenStore.open(tmp_path / "store")


def test_tokens_of_another_tokenizer_are_refused_even_with_right_sums(tmp_path: Path) -> None:
    write(tmp_path / "store", [1])
    (tmp_path / "store" / "tokenizer.json").write_text(CharTokenizer("hgfedcba").to_json())
    reseal(tmp_path / "store")
    with pytest.raises(DamagedError, match="another tokenizer"):
        TokenStore.open(tmp_path / "store")


def damaged_array(array: Any, **options: Any) -> Callable[[Path], None]:
    return lambda path: np.save(path / "train-00000.npy", array, **options)


def damaged_header(old: bytes, new: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        file = path / "train-00000.npy"
        assert old in file.read_bytes()[:128]
        file.write_bytes(file.read_bytes().replace(old, new, 1))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        damaged_array(np.array([1, 2, 8], dtype=np.uint16)),  # an id too large, in the last place
        damaged_array(np.array([1, 2], dtype=np.uint16)),
        damaged_array(np.array([1, 2, 3], dtype=np.uint32)),
        damaged_array(np.array([1, 2, 3], dtype=np.int16)),
        damaged_array(np.array([[1, 2, 3]], dtype=np.uint16)),
        damaged_array(np.array([print, 2, 3], dtype=object), allow_pickle=True),
        lambda path: (path / "train-00000.npy").write_bytes(b"no array"),
        damaged_header(b" \n", b"(\n"),  # NumPy's own reader fails at these two in ways of its own
        damaged_header(b"{", b"y"),
        damaged_header(b"(3,)", b"(33)"),
        lambda path: (path / "train-00000.npy").write_bytes((path / "train-00000.npy").read_bytes()[:-1]),
    ],
)
def test_an_array_that_is_not_what_the_store_says_is_refused_even_with_right_sums(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    write(tmp_path / "store", [1, 2, 3])
    damage(tmp_path / "store")
    reseal(tmp_path / "store")
    with pytest.raises(DamagedError, match=r"train-00000\.npy"):
        TokenStore.open(tmp_path / "store").tokens("train")


@pytest.mark.parametrize(
    "change",
    [
        {"format": "gpt-tokens-1"},
        {"division": {"split": "characters", "val_fraction": "0.1", "test_fraction": 0.0}},
        {"train": {}},
        {"more": 1},
        {"train": FACTS | {"shards": [{"file": "../../secret.npy", "tokens": 3}]}},
        {"train": FACTS | {"shards": []}},
        {"train": FACTS | {"shards": [{"file": "train-00000.npy", "tokens": 4}]}},
        {"train": FACTS | {"shards": [{"file": "train-00000.npy", "tokens": 10**18}]}},
        {"train": FACTS | {"shards": [{"file": "train-00000.npy", "tokens": -3}]}},
        {"train": FACTS | {"documents": 10**18, "shards": [{"file": "train-00000.npy", "tokens": 3}]}},
        {"train": FACTS | {"documents": 2, "shards": [{"file": "train-00000.npy", "tokens": 3}]}},
    ],
)
def test_a_description_that_is_not_a_token_stores_is_refused_even_with_right_sums(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    write(tmp_path / "store", [1, 2, 3])
    path = tmp_path / "store" / "tokens.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    reseal(tmp_path / "store")
    with pytest.raises(DamagedError):
        TokenStore.open(tmp_path / "store").tokens("train")


def test_what_is_no_store_is_a_wrong_request(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="not a token store"):
        TokenStore.open(tmp_path)


def test_a_store_takes_anothers_place_only_when_told_to(tmp_path: Path) -> None:
    write(tmp_path / "store", [1])
    with pytest.raises(ExistsError):
        write(tmp_path / "store", [2])
    assert TokenStore.open(tmp_path / "store").tokens("train").tolist() == [1]
    assert write(tmp_path / "store", [2], replace=True).tokens("train").tolist() == [2]


def test_a_disk_that_fills_up_leaves_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fill)
    with pytest.raises(DiskError, match="no space left"):
        write(tmp_path / "store", [1])
    assert not any(tmp_path.iterdir())
