"""The corpora known by name: their URLs, checksums and paths.

Only `fetch_corpus` uses the network. The table is also in data/README.md.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from gpt_cli.config.synonyms import suggest
from gpt_cli.corpus.archives import labelled_json_lines, read_member, read_pairs
from gpt_cli.corpus.download import DownloadProgress, downloaded
from gpt_cli.corpus.stamps import Stamps
from gpt_cli.errors import RequestError
from gpt_cli.files import (
    DamagedError,
    DiskError,
    ExistsError,
    atomic_directory,
    cache_dir,
    make_directory,
    verify_directory,
    write_file,
)
from gpt_cli.files.atomic_dir import SUMS
from gpt_cli.files.os_errors import translate_os_errors


@dataclass(frozen=True)
class DatasetInfo:
    name: str
    about: str
    url: str
    size: int
    """Bytes of the download."""
    sha256: str
    """SHA-256 of the download."""
    licence: str
    split: str
    """The split that the literature uses."""
    zip_member: str | None = None
    """The file of a zip archive that is the text. None: the download is the text."""
    zip_pair: tuple[str, ...] = ()
    """The two files of a zip archive that have a prompt and its completion on each line: they become JSON lines."""
    tar_folder: str | None = None
    """The folder of a tar.gz archive whose folders are labels: their files become JSON lines with a text and a label.
    None: the download is no such archive."""
    labels: tuple[str, ...] = ()
    """The folders in `tar_folder` that are read."""
    text_limit: int = 0
    """The largest size in bytes of the member, or of all files together."""

    @property
    def file_name(self) -> str:
        return f"{self.name}.{'jsonl' if self.tar_folder or self.zip_pair else 'txt'}"


_MAHONEY = "https://mattmahoney.net/dc"
_WIKITEXT = (
    "https://huggingface.co/datasets/ggml-org/ci/resolve/927b3642933080f1b0e811e2f916e14c292992f9/wikitext-2-raw-v1.zip"
)
_TINYSTORIES = "https://huggingface.co/datasets/roneneldan/TinyStories/resolve/f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"

# fmt: off
CORPORA: tuple[DatasetInfo, ...] = (
    DatasetInfo(
        "tiny-shakespeare", "40,000 lines of Shakespeare",
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        1_115_394, "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        "public domain", "val_fraction 0.1: the last 111,540 characters validate",
    ),
    DatasetInfo(
        "enwik8", "the first 100,000,000 bytes of English Wikipedia in 2006, as XML", f"{_MAHONEY}/enwik8.zip",
        36_445_475, "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
        "GFDL", "90, 5 and 5 million bytes: train, validation, test", zip_member="enwik8", text_limit=100_000_000,
    ),
    DatasetInfo(
        "text8", "English Wikipedia in 2006, reduced to a-z and spaces: 100,000,000 characters",
        f"{_MAHONEY}/text8.zip",
        31_344_016, "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
        "GFDL", "90, 5 and 5 million characters: train, validation, test", zip_member="text8", text_limit=100_000_000,
    ),
    *(
        DatasetInfo(
            name, f"WikiText-2, {part} split, raw: good and featured Wikipedia articles", _WIKITEXT,
            4_721_645, "ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11",
            "CC BY-SA 3.0, GFDL", f"the published {part} split",
            zip_member=f"wikitext-2-raw/wiki.{member}.raw", text_limit=16_000_000,
        )
        for name, part, member in (
            ("wikitext-2", "training", "train"),
            ("wikitext-2-valid", "validation", "valid"),
            ("wikitext-2-test", "test", "test"),
        )
    ),
    DatasetInfo(
        "tinystories", "2.7 million short stories in a small child's words, by GPT-4: training split",
        f"{_TINYSTORIES}/TinyStoriesV2-GPT4-train.txt",
        2_227_753_162, "6418d412de72888f52b5142c761ac21a582f7d1166f0bfbdb5f03ccfdec90443",
        "CDLA-Sharing-1.0", "the published training split",
    ),
    DatasetInfo(
        "tinystories-valid", "the same kind of stories: validation split",
        f"{_TINYSTORIES}/TinyStoriesV2-GPT4-valid.txt",
        22_502_601, "6874bae9a4c1a4e7edcf0e53b86c17817e9cf881fc75ff2368da457b80c0585d",
        "CDLA-Sharing-1.0", "the published validation split",
    ),
    *(
        DatasetInfo(
            name, f"IMDb, {part} split: 25,000 reviews of films, with the label pos or neg (Maas et al., 2011)",
            "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
            84_125_825, "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
            "none stated: reviews by users of IMDb, published for research",
            f"the published {part} split of labelled reviews",
            tar_folder=f"aclImdb/{member}", labels=("neg", "pos"), text_limit=64_000_000,
        )
        for name, part, member in (("imdb", "training", "train"), ("imdb-test", "test", "test"))
    ),
    DatasetInfo(
        "opus-books-en-de",
        "51,467 sentences of old books, English and German, as prompts and completions (Tiedemann, 2012)",
        "https://object.pouta.csc.fi/OPUS-Books/v1/moses/de-en.txt.zip",
        5_124_458, "556f5f2d9a954ee84bfd617e7648ed526312233d55b7bfd4d99cb3adbb5c75a3",
        "free for personal, educational and research use",
        "none published: data.val_fraction and data.test_fraction, by a hash of the prompt",
        zip_pair=("Books.de-en.en", "Books.de-en.de"), text_limit=20_000_000,
    ),
)
# fmt: on


def find_corpus(name: str) -> DatasetInfo:
    """Return the corpus `name`. Raises RequestError, with the nearest names, if there is none."""
    corpora = {corpus.name: corpus for corpus in CORPORA}
    if name not in corpora:
        raise RequestError(f"there is no known corpus '{name}'", choices=suggest(name, corpora) or list(corpora))
    return corpora[name]


def corpora_dir() -> Path:
    return cache_dir() / "corpora"


def corpus_path(corpus: DatasetInfo, root: Path) -> Path:
    """Return the path of the text of `corpus` under `root`, downloaded or not."""
    return root / corpus.name / corpus.file_name


def local_path(name: str) -> Path:
    """Return the path of the text of a downloaded corpus, verified since it last changed; nothing is fetched.

    Raises RequestError if it was not downloaded, DamagedError if it was changed since.
    """
    path = corpus_path(find_corpus(name), corpora_dir())
    if not os.path.lexists(path.parent):
        raise RequestError(f"the corpus {name} is not on this machine", kind="no corpus", path=name)
    verified = Stamps(["verified", str(path)], [path, path.parent / SUMS])
    if verified.recall() is None:
        _verified(path)
        verified.remember(True)
    return path


def fetch_corpus(corpus: DatasetInfo, root: Path, *, progress: DownloadProgress) -> Path:
    """Return the path of the verified text of `corpus` under `root`, downloaded unless it is there.

    Raises DamagedError if the files there were changed, and as `downloaded` does.
    """
    path = corpus_path(corpus, root)
    if os.path.lexists(path.parent):
        return _verified(path)
    try:
        make_directory(root)
    except DiskError as error:
        if root == corpora_dir():
            error.message += " (GPT_CACHE names another folder)"
        raise
    part = root / f"{corpus.name}.part"
    try:
        with (
            downloaded(corpus.url, part, size=corpus.size, sha256=corpus.sha256, progress=progress) as file,
            atomic_directory(path.parent) as temporary,
        ):
            _write_text(corpus, file, temporary / corpus.file_name)
    except ExistsError:  # another process was faster
        return _verified(path)
    return path


def _write_text(corpus: DatasetInfo, file: Path, text: Path) -> None:
    if corpus.tar_folder is not None:
        write_file(text, labelled_json_lines(file, corpus.tar_folder, corpus.labels, corpus.text_limit))
    elif corpus.zip_pair:
        write_file(text, read_pairs(file, corpus.zip_pair, corpus.text_limit))
    elif corpus.zip_member is not None:
        write_file(text, read_member(file, corpus.zip_member, corpus.text_limit))
    else:
        with translate_os_errors("move", file):
            file.rename(text)


def _verified(path: Path) -> Path:
    """Verify the directory of `path` and return it. Raises DamagedError, and leaves the damaged files to the user."""
    try:
        verify_directory(path.parent)
        if not path.exists():
            raise DamagedError(f"{path} is missing")
    except DamagedError as error:
        error.message += f"; remove {path.parent} to download it again"
        error.kind, error.path = "no corpus", path.stem
        raise
    return path
