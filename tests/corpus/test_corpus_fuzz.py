"""Any bytes, any store, any name: tokens that say the text, or one clear error and nothing half-written."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from gpt_cli.cli.main import main
from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus import blocks, encode
from gpt_cli.corpus.prepare import Corpus, prepare_corpus, tokenize_corpus
from gpt_cli.corpus.sources import read_documents
from gpt_cli.corpus.store import TokenStore
from gpt_cli.errors import UserError
from gpt_cli.tokenizer import CharTokenizer, train_tokenizer
from tests.support.sums import reseal

pytestmark = pytest.mark.robust

ENGLISH = "It was the best of times, it was the worst of times; it's 1859.\n" * 20
ALPHABET = ["a", "bc ", "\n", "\r\n", "\r", " ", "\t", "é", "ß", "世", "🙂", "\u0301", "\u200d", "\u202e", "\x1b[2J",
            "\x85", "<|endoftext|>", "\ufeff", "'s", "12345", "\u2028", "\x7f", "\x01"]  # fmt: skip


def any_text(order: random.Random) -> str:
    return "".join(order.choices(ALPHABET, k=order.choice((1, 2, 5, 40, 300))))


# How a file of text goes wrong: each takes text and gives bytes.
MAKERS: list[Callable[[random.Random, str], bytes]] = [
    lambda order, text: text.encode(),
    lambda order, text: b"\xef\xbb\xbf" + text.encode(),
    lambda order, text: text.encode("utf-16"),
    lambda order, text: text.encode("utf-16-le"),
    lambda order, text: text.encode("utf-32"),
    lambda order, text: text.encode("latin-1", errors="ignore"),
    lambda order, text: text.encode()[: order.randrange(len(text.encode()) + 1)],
    lambda order, text: splice(order, text.encode(), b"\0"),
    lambda order, text: splice(order, text.encode(), "\ud800".encode(errors="surrogatepass")),
    lambda order, text: splice(order, text.encode(), b"\xc0\x80"),
    lambda order, text: splice(order, text.encode(), order.randbytes(3)),
    lambda order, text: order.randbytes(order.randrange(50)),
    lambda order, text: text.replace("\n", "").encode() * 50,
    lambda order, text: b"",
    lambda order, text: b"x",
    lambda order, text: bytes(order.randrange(1, 100)),
]


def splice(order: random.Random, data: bytes, insertion: bytes) -> bytes:
    offset = order.randrange(len(data) + 1)
    return data[:offset] + insertion + data[offset:]


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> list[TokenizerConfig]:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer([ENGLISH], TokenizerConfig(kind="bpe", vocab_size=270, pattern="gpt4")).save(path)
    return [
        TokenizerConfig(kind="char"),
        TokenizerConfig(kind="byte"),
        TokenizerConfig(kind="bpe", vocab_size=270, file=str(path)),
    ]


@contextmanager
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", 50)
        patch.setattr(encode, "BLOCK", 50)
        yield


def check_text(folder: Path, data: bytes, config: TokenizerConfig, *, on_disk: bool) -> None:
    """Tokenize a file with these bytes: it comes back, or is refused as it should be."""
    file = folder / "x.txt"
    file.write_bytes(data)
    source = DataConfig(source=str(file))
    store = folder / "store"
    corpus: Corpus | None = None
    with suppress(UserError):
        if on_disk:
            tokenize_corpus(store, source, config, note=lambda _: None)
            corpus = prepare_corpus(DataConfig(source=str(store)), config, note=pytest.fail)
        else:
            corpus = prepare_corpus(source, config, cache=False, note=lambda _: None)
    if corpus is None:
        assert sorted(folder.iterdir()) == [file]
        assert len(text_of(data)) <= 20  # too small to split
        return
    decoded = corpus.tokenizer.decode(corpus.train) + corpus.tokenizer.decode(corpus.val)
    if config.kind != "char":  # a half of a character at the border between the splits
        tokens = np.concatenate([corpus.train, corpus.val])
        decoded = corpus.tokenizer.decode(tokens)
    assert decoded == text_of(data)
    if on_disk:
        shutil.rmtree(store)


def text_of(data: bytes) -> str:
    """The text that a file with these bytes holds, by its mark or else in UTF-8; empty if it is none."""
    is_wide = {data[:4]: "utf-32", data[:2]: "utf-16"}
    marks = (b"\xff\xfe\0\0", b"\0\0\xfe\xff", b"\xff\xfe", b"\xfe\xff")
    encoding = next((is_wide[mark] for mark in marks if mark in is_wide), "utf-8")
    try:
        text = data.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError:
        return ""
    return "" if "\0" in text else text


def fuzz_texts(folder: Path, configs: list[TokenizerConfig], seed: int, count: int) -> None:
    order = random.Random(seed)
    for number in range(count):
        data = order.choice(MAKERS)(order, any_text(order))
        with small_blocks():
            check_text(folder, data, order.choice(configs), on_disk=number % 20 == 0)


def test_any_bytes_become_tokens_that_say_them_or_are_refused(
    tmp_path: Path, configs: list[TokenizerConfig], record_property: Callable[[str, object], None]
) -> None:
    record_property("faults", 400)
    fuzz_texts(tmp_path, configs, seed=1, count=400)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_more_bytes_become_tokens_or_are_refused(
    tmp_path: Path, configs: list[TokenizerConfig], seed: int, record_property: Callable[[str, object], None]
) -> None:
    record_property("faults", 5000)
    fuzz_texts(tmp_path, configs, seed=seed, count=5000)


def test_one_line_of_many_megabytes_is_text_like_any_other(tmp_path: Path, configs: list[TokenizerConfig]) -> None:
    for config in configs:
        check_text(tmp_path, b"all of it is one line " * 150_000, config, on_disk=False)
    (tmp_path / "sparse.txt").touch()
    os.truncate(tmp_path / "sparse.txt", 1 << 30)  # takes no room on the disk, and no time
    with pytest.raises(UserError, match="zero byte at offset 0"):
        list(read_documents(str(tmp_path / "sparse.txt"), note=pytest.fail))


def test_what_is_no_file_of_text_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "locked.txt").write_text(ENGLISH)
    (tmp_path / "locked.txt").chmod(0)
    sources = ["folder", "loop", "dangling", "nowhere", "/dev/null", "/dev/zero", "x\0y", "", "\udc80", "~root/x"]
    if os.geteuid():  # root may read everything
        sources.append("locked.txt")
    before = sorted(tmp_path.rglob("*"))
    for source in sources:
        assert main(["tokenize", source]) in (1, 2), source
        assert main(["train", source]) in (1, 2), source
    assert sorted(tmp_path.rglob("*")) == before


# Token stores


def damage(order: random.Random, path: Path, other_store: Path) -> None:
    """Flip, cut, lengthen, swap, or replace something of a store."""
    file = order.choice(sorted(path.iterdir()))
    data = file.read_bytes()
    offset = order.randrange(len(data))
    match order.randrange(7):
        case 0:
            file.write_bytes(data[:offset] + bytes([data[offset] ^ 1 << order.randrange(8)]) + data[offset + 1 :])
        case 1:
            file.write_bytes(data[:offset])
        case 2:
            file.write_bytes(data + order.randbytes(order.randrange(1, 9)))
        case 3:
            file.write_bytes((other_store / file.name).read_bytes())
        case 4:
            file.write_bytes(order.choice(sorted(path.iterdir())).read_bytes())
        case 5:
            file.unlink()
        case 6:
            kind = order.choice(["<u4", ">u2", "<i2", "<f8", "<u1", "<U2", "<M8[s]"])
            np.save(path / "train-00000.npy", np.ones(order.choice((0, 1, 700)), dtype=kind))


def fuzz_stores(folder: Path, seed: int, count: int) -> None:
    order = random.Random(seed)
    tokenizer = TokenizerConfig(kind="char")
    for name, text in (("whole", ENGLISH), ("other", ENGLISH.replace("best", "last"))):
        (folder / f"{name}.txt").write_text(text)
        tokenize_corpus(folder / name, DataConfig(source=str(folder / f"{name}.txt")), tokenizer, note=pytest.fail)
    expected = TokenStore.open(folder / "whole").tokens("train").tolist()
    refused = 0
    for _ in range(count):
        shutil.copytree(folder / "whole", folder / "damaged")
        damage(order, folder / "damaged", folder / "other")
        if sealed := order.random() < 0.5:
            reseal(folder / "damaged")
        refused += 1
        with suppress(UserError):
            store = TokenStore.open(folder / "damaged")
            tokens = store.tokens("train")
            refused -= 1
            assert tokens.max() < store.tokenizer.vocab_size
            assert store.stats["train"].tokens == len(tokens)
            assert sealed or tokens.tolist() == expected
        shutil.rmtree(folder / "damaged")
    assert refused > count // 2


def test_a_damaged_store_is_refused_also_when_its_sums_are_right(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("faults", 300)
    fuzz_stores(tmp_path, seed=1, count=300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_many_more_damaged_stores_are_refused(tmp_path: Path, seed: int) -> None:
    fuzz_stores(tmp_path, seed=seed, count=3000)


def test_tokens_in_memory_do_not_care_what_happens_to_their_files(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(ENGLISH)
    data = DataConfig(source=str(tmp_path / "x.txt"))
    corpus = prepare_corpus(data, TokenizerConfig(), note=pytest.fail)
    cached = prepare_corpus(data, TokenizerConfig(), note=pytest.fail)
    for file in Path(os.environ["GPT_CACHE"]).rglob("*.npy"):
        os.truncate(file, 10)
    assert np.array_equal(corpus.train, cached.train)


def test_a_store_and_a_tokenizer_that_do_not_belong_together_are_a_wrong_request(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(ENGLISH)
    tokenize_corpus(
        tmp_path / "store", DataConfig(source=str(tmp_path / "x.txt")), TokenizerConfig(kind="char"), note=pytest.fail
    )
    reordered = "".join(sorted(set(ENGLISH), reverse=True))  # the same size, another meaning
    CharTokenizer(reordered).save(tmp_path / "other.json")
    config = TokenizerConfig(kind="char", file=str(tmp_path / "other.json"))
    with pytest.raises(UserError, match="another tokenizer") as caught:
        prepare_corpus(DataConfig(source=str(tmp_path / "store")), config, note=pytest.fail)
    assert caught.value.exit_code == 2


# Names


HOSTILE = [
    *("..", ".", "...", "-", "--out", "-rf", "a/b", "../x", "../../x", "/x", "a\nb", "a\rb", "\x1b[2J", "a\tb", "~"),
    *("~root", "$HOME", "`id`", "$(id)", "a;b", "a|b", "a&b", "*", "?", "[a]", "a b", " ", "CON", "nul.txt", "a:b"),
    *("C:\\x", "\\\\host\\x", "ﬀ", "é", "\u202egpj", "世界", "🙂", ".tmp-x", ".trash-x", ".hidden", "SHA256SUMS"),
    *("tokens.json", "x" * 255, "%2e%2e", "..%2f"),
]


def hostile_name(order: random.Random) -> str:
    return "".join(order.choices(HOSTILE, k=order.choice((1, 1, 2, 3))))


def tree(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


def outside(folder: Path, tokens: Path) -> set[str]:
    return tree(folder) - tree(tokens) - {str(tokens)}


def fuzz_names(folder: Path, seed: int, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Texts of hostile names, tokenized where the name says: all that appears is below tokens/."""
    order = random.Random(seed)
    inside = folder / "outer" / "inside"
    inside.mkdir(parents=True)
    os.chdir(inside)
    for _ in range(count):
        name = hostile_name(order).replace("/", "_").replace("\0", "")[:200]
        file = inside / name
        if name in ("..", ".", "-") or file.exists():
            continue
        try:
            file.write_text(ENGLISH)
        except OSError:
            continue
        before = outside(folder, inside / "tokens")
        code = main(["tokenize", "--kind", "byte", "--", name])
        output = capsys.readouterr()
        assert code in (0, 1, 2), (name, output.err)
        assert "\x1b" not in output.err
        assert outside(folder, inside / "tokens") == before, name
        file.unlink()


def test_no_name_of_a_text_puts_anything_outside_its_folder(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    record_property("faults", 60)
    monkeypatch.chdir(tmp_path)  # and back, afterwards
    fuzz_names(tmp_path, seed=1, count=60, capsys=capsys)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 7))
def test_no_name_of_many_more_puts_anything_outside_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.chdir(tmp_path)
    fuzz_names(tmp_path, seed=seed, count=1000, capsys=capsys)


@pytest.mark.parametrize("out", ["link", "dangling", "loop", "link/", "file", "pipe", "locked/x", "link-to-store"])
def test_tokens_never_go_through_a_link_or_over_what_is_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.txt").write_text(ENGLISH)
    Path("elsewhere").mkdir()
    Path("link").symlink_to("elsewhere")
    Path("dangling").symlink_to("nowhere")
    Path("loop").symlink_to("loop")
    Path("file").write_text("mine")
    os.mkfifo("pipe")
    Path("locked").symlink_to("/proc/1")
    tokenize_corpus(Path("elsewhere-store"), DataConfig(source="x.txt"), TokenizerConfig(), note=pytest.fail)
    Path("link-to-store").symlink_to("elsewhere-store")
    before = tree(tmp_path), Path("elsewhere-store/tokens.json").read_bytes()
    assert main(["tokenize", "x.txt", "--kind", "byte", "--out", out]) in (1, 2)
    assert (tree(tmp_path), Path("elsewhere-store/tokens.json").read_bytes()) == before


def test_a_store_never_reads_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(ENGLISH)
    tokenize_corpus(tmp_path / "store", DataConfig(source=str(tmp_path / "x.txt")), TokenizerConfig(), note=pytest.fail)
    shard = tmp_path / "store" / "train-00000.npy"
    shutil.move(shard, tmp_path / "moved.npy")
    shard.symlink_to(tmp_path / "moved.npy")
    with pytest.raises(UserError, match=r"not a file|cannot be read"):
        TokenStore.open(tmp_path / "store").tokens("train")
