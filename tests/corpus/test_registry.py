"""A download is what was published, or nothing: shown against a server on this machine that serves every fault."""

import hashlib
import io
import json
import re
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpt_cli.cli.main import main
from gpt_cli.corpus import download as download_module
from gpt_cli.corpus import registry
from gpt_cli.corpus.registry import CORPORA, DatasetInfo, fetch_corpus, find_corpus, local_path
from gpt_cli.corpus.sources import read_documents
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import atomic_directory, write_file
from tests.support.command import ROOT
from tests.support.hub import Hub, local_hub
from tests.support.waiting import HANG

TEXT = b"The quick brown fox jumps over the lazy dog.\n" * 5_000

Reply = Callable[[BaseHTTPRequestHandler], None]


class Server(ThreadingHTTPServer):
    """Answers each path by its function in `replies`, and remembers what was asked."""

    def __init__(self) -> None:
        self.replies: dict[str, Reply] = {}
        self.requests: list[tuple[str, str | None]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers["Range"]))
        self.close_connection = True
        self.server.replies[self.path](self)

    def log_message(self, *_: object) -> None:
        pass


def send(data: bytes, status: int = 200, **headers: str) -> Reply:
    def reply(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in {"Content_Length": str(len(data)), **headers}.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(data)

    return reply


def send_without_length(data: bytes) -> Reply:
    def reply(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(data)

    return reply


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        monkeypatch.setattr(download_module, "TRUSTED", ("https://", server.url("/")))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def corpus(server: Server) -> DatasetInfo:
    return DatasetInfo(
        name="fox",
        about="a fox",
        url=server.url("/fox.txt"),
        size=len(TEXT),
        sha256=hashlib.sha256(TEXT).hexdigest(),
        licence="none",
        split="none",
    )


def fetch(corpus: DatasetInfo, root: Path) -> Path:
    return fetch_corpus(corpus, root, progress=lambda n_bytes, total: None)


def refusal(corpus: DatasetInfo, root: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        fetch(corpus, root)
    assert caught.value.exit_code == 1
    return caught.value


def files_in(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_a_download_ends_with_the_verified_text_and_nothing_else(
    server: Server, corpus: DatasetInfo, tmp_path: Path
) -> None:
    server.replies["/fox.txt"] = send(TEXT)
    reports: list[tuple[int, int]] = []
    path = fetch_corpus(corpus, tmp_path, progress=lambda *report: reports.append(report))
    assert path.read_bytes() == TEXT
    assert files_in(tmp_path) == {"fox/fox.txt", "fox/SHA256SUMS"}
    assert reports[0] == (0, len(TEXT))
    assert reports[-1] == (len(TEXT), len(TEXT))
    assert reports == sorted(reports)


def test_what_is_there_is_verified_and_not_fetched_again(server: Server, corpus: DatasetInfo, tmp_path: Path) -> None:
    server.replies["/fox.txt"] = send(TEXT)
    path = fetch(corpus, tmp_path)
    assert fetch(corpus, tmp_path) == path
    assert len(server.requests) == 1


@pytest.mark.parametrize("name", ["fox.txt", "notes.txt", "SHA256SUMS"])
def test_a_directory_that_is_not_as_downloaded_is_told_and_left_alone(
    server: Server, corpus: DatasetInfo, tmp_path: Path, name: str
) -> None:
    server.replies["/fox.txt"] = send(TEXT)
    path = fetch(corpus, tmp_path)
    (path.parent / name).write_bytes(b"mine")
    error = refusal(corpus, tmp_path)
    assert f"remove {path.parent}" in error.message
    assert (error.kind, error.path) == ("no corpus", "fox")
    assert (path.parent / name).read_bytes() == b"mine"
    assert len(server.requests) == 1


def test_nothing_is_written_through_a_link(server: Server, corpus: DatasetInfo, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "fox.part").symlink_to(tmp_path / "precious")
    server.replies["/fox.txt"] = send(TEXT)
    refusal(corpus, tmp_path)
    assert (tmp_path / "precious").read_text() == "mine"


def test_wrong_bytes_are_refused_and_deleted(server: Server, corpus: DatasetInfo, tmp_path: Path) -> None:
    server.replies["/fox.txt"] = send(TEXT[:-1] + b"?")
    assert corpus.sha256 in refusal(corpus, tmp_path).message
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize("reply", [send(TEXT + b"more"), send(TEXT[:-1]), send(b"", 200)])
def test_a_length_that_is_not_the_expected_one_is_refused_before_anything_is_kept(
    server: Server, corpus: DatasetInfo, tmp_path: Path, reply: Reply
) -> None:
    server.replies["/fox.txt"] = reply
    assert f"the expected {len(TEXT):,} bytes" in refusal(corpus, tmp_path).message
    assert files_in(tmp_path) == set()


def test_a_server_that_sends_without_end_is_cut_off(server: Server, corpus: DatasetInfo, tmp_path: Path) -> None:
    server.replies["/fox.txt"] = send_without_length(TEXT * 20)
    assert "more than the expected" in refusal(corpus, tmp_path).message
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize("status", [403, 404, 416, 500, 503])
def test_a_refusing_server_leaves_nothing(server: Server, corpus: DatasetInfo, tmp_path: Path, status: int) -> None:
    server.replies["/fox.txt"] = send(b"no", status)
    assert str(status) in refusal(corpus, tmp_path).message
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize(
    "broken", [send(TEXT[:70_000], Content_Length=str(len(TEXT))), send_without_length(TEXT[:70_000])]
)
def test_a_broken_connection_leaves_nothing_and_the_next_call_begins_anew(
    server: Server, corpus: DatasetInfo, tmp_path: Path, broken: Reply
) -> None:
    server.replies["/fox.txt"] = broken
    refusal(corpus, tmp_path)
    assert files_in(tmp_path) == set()
    server.replies["/fox.txt"] = send(TEXT)
    assert fetch(corpus, tmp_path).read_bytes() == TEXT


def test_a_server_that_is_not_there_is_an_error_in_words(server: Server, corpus: DatasetInfo, tmp_path: Path) -> None:
    server.shutdown()
    server.server_close()
    assert "cannot download" in refusal(corpus, tmp_path).message
    assert files_in(tmp_path) == set()


def test_a_silent_server_is_given_up(
    server: Server, corpus: DatasetInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "TIMEOUT", 0.1)
    stop_event = threading.Event()
    server.replies["/fox.txt"] = lambda request: (stop_event.wait(HANG), None)[1]
    try:
        assert "timed out" in refusal(corpus, tmp_path).message
    finally:
        stop_event.set()


def test_a_redirect_is_followed_within_what_is_trusted(server: Server, corpus: DatasetInfo, tmp_path: Path) -> None:
    server.replies["/fox.txt"] = send(b"", 302, Location=server.url("/elsewhere"))
    server.replies["/elsewhere"] = send(TEXT)
    assert fetch(corpus, tmp_path).read_bytes() == TEXT


@pytest.mark.parametrize("target", ["http://example.com/fox.txt", "file:///etc/passwd", "ftp://127.0.0.1/fox.txt"])
def test_a_redirect_out_of_what_is_trusted_is_refused(
    server: Server, corpus: DatasetInfo, tmp_path: Path, target: str
) -> None:
    server.replies["/fox.txt"] = send(b"", 302, Location=target)
    refusal(corpus, tmp_path)
    assert files_in(tmp_path) == set()


def test_an_endless_redirect_is_refused(server: Server, corpus: DatasetInfo, tmp_path: Path) -> None:
    server.replies["/fox.txt"] = send(b"", 302, Location="/fox.txt")
    refusal(corpus, tmp_path)
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "http://example.com/x", "file:///etc/passwd", "fox.txt"])
def test_only_https_is_trusted(corpus: DatasetInfo, tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError, match="only https"):
        fetch_corpus(replace(corpus, url=url), tmp_path, progress=lambda n_bytes, total: None)


# On the Hugging Face Hub


@pytest.fixture
def on_hub(corpus: DatasetInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Hub, DatasetInfo]]:
    with local_hub(tmp_path / "huggingface", monkeypatch) as hub:
        url = (
            f"https://huggingface.co/datasets/owner/name/resolve/{hub.commit('owner/name', {'fox.txt': TEXT})}/fox.txt"
        )
        yield hub, replace(corpus, url=url)


def test_a_corpus_on_the_hub_is_the_verified_text_and_nothing_else(
    on_hub: tuple[Hub, DatasetInfo], tmp_path: Path
) -> None:
    hub, corpus = on_hub
    root = tmp_path / "corpora"
    assert fetch(corpus, root).read_bytes() == TEXT
    assert {path.name for path in root.rglob("*")} == {"fox", "fox.txt", "SHA256SUMS"}
    hub.disconnect()
    assert fetch(corpus, root).read_bytes() == TEXT


def test_other_bytes_on_the_hub_are_refused_and_deleted(on_hub: tuple[Hub, DatasetInfo], tmp_path: Path) -> None:
    hub, corpus = on_hub
    for commit in hub.commits.values():
        commit["fox.txt"] = TEXT[:-1] + b"?"
    assert corpus.sha256 in refusal(corpus, tmp_path / "corpora").message
    assert list((tmp_path / "corpora").iterdir()) == []


def test_every_corpus_on_the_hub_is_downloaded_by_the_library_of_the_hub(
    on_hub: tuple[Hub, DatasetInfo], tmp_path: Path
) -> None:
    hub, _ = on_hub
    hosted = [corpus for corpus in CORPORA if "huggingface" in corpus.url]
    for corpus in hosted:
        assert "cannot get" in refusal(corpus, tmp_path / "corpora").message
        assert hub.requests[-1].partition("/datasets/")[2] == corpus.url.partition("/datasets/")[2]
    assert len(hosted) == 5


# Archives


def archive_of(**members: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return archive.getvalue()


def zip_corpus(corpus: DatasetInfo, server: Server, archive: bytes, member: str = "fox") -> DatasetInfo:
    server.replies["/fox.txt"] = send(archive)
    digest = hashlib.sha256(archive).hexdigest()
    return replace(corpus, size=len(archive), sha256=digest, zip_member=member, text_limit=len(TEXT))


def test_one_member_of_an_archive_is_read_and_the_others_are_not(
    server: Server, corpus: DatasetInfo, tmp_path: Path
) -> None:
    archive = archive_of(**{"fox": TEXT, "../evil": b"x", "/etc/evil": b"x", "bomb": b"0" * 10_000_000})
    assert fetch(zip_corpus(corpus, server, archive), tmp_path / "root").read_bytes() == TEXT
    assert files_in(tmp_path) == {"root/fox/fox.txt", "root/fox/SHA256SUMS"}


@pytest.mark.parametrize(
    ("archive", "member"),
    [
        (archive_of(fox=TEXT + b"!"), "fox"),  # larger than it may be
        (archive_of(fox=TEXT), "cat"),
        (b"PK not an archive" * 100, "fox"),
        (archive_of(fox=TEXT)[:-30], "fox"),
        (archive_of(fox=TEXT).replace(TEXT[:0] + b"fox", b"fux", 1), "fox"),  # two names for one member
    ],
)
def test_an_archive_that_is_not_as_expected_leaves_no_text(
    server: Server, corpus: DatasetInfo, tmp_path: Path, archive: bytes, member: str
) -> None:
    refusal(zip_corpus(corpus, server, archive, member), tmp_path)
    assert not (tmp_path / "fox").exists()


# As sources


def test_a_corpus_that_was_not_downloaded_names_the_command_that_does() -> None:
    with pytest.raises(RequestError) as caught:
        list(read_documents("corpus:enwik8", note=lambda _: None))
    assert (caught.value.kind, caught.value.path) == ("no corpus", "enwik8")


def test_a_downloaded_corpus_is_a_source_until_it_is_damaged(
    server: Server, corpus: DatasetInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "CORPORA", (corpus,))
    server.replies["/fox.txt"] = send(TEXT)
    path = fetch(corpus, registry.corpora_dir())
    assert local_path("fox") == path
    [document] = read_documents("corpus:fox", note=lambda _: None)
    assert document.text == TEXT.decode()
    path.write_bytes(b"altered")
    with pytest.raises(UserError, match="damaged"):
        local_path("fox")


# The commands


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return main(["data", *arguments]), *capsys.readouterr()


def test_get_prints_the_path_and_how_to_train_on_it(
    server: Server,
    corpus: DatasetInfo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(registry, "CORPORA", (corpus,))
    server.replies["/fox.txt"] = send(TEXT)
    for folder, options, source in (
        (registry.corpora_dir(), [], "corpus:fox"),
        (tmp_path, ["--to", str(tmp_path)], str(tmp_path / "fox" / "fox.txt")),
    ):
        path = fetch(corpus, folder)
        code, out, err = run(capsys, "get", "fox", *options)
        assert (code, out) == (0, f"{path}\n")
        assert f"gpt train {source}\n" in err
        code, out, err = run(capsys, "get", "fox", *options, "--json")
        assert (json.loads(out)["path"], json.loads(out)["source"]) == (str(path), source)


def test_list_shows_every_corpus_and_what_is_here(
    server: Server, corpus: DatasetInfo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "CORPORA", (corpus, *CORPORA))
    server.replies["/fox.txt"] = send(TEXT)
    path = fetch(corpus, registry.corpora_dir())
    code, out, _ = run(capsys, "list")
    assert code == 0
    names = [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]  # else a row goes on
    assert names == ["name", "fox", *(entry.name for entry in CORPORA)]
    assert [line.split()[0] for line in out.splitlines() if " yes " in line] == ["fox"]
    _, out, _ = run(capsys, "list", "--json")
    assert [entry["path"] for entry in json.loads(out)["corpora"]] == [str(path)] + [None] * len(CORPORA)


def test_an_unknown_name_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "get", "../../etc")
    assert (code, out) == (2, "")
    assert "tiny-shakespeare" in err


# The table


def test_a_name_that_is_nearly_right_is_guessed() -> None:
    with pytest.raises(RequestError) as caught:
        find_corpus("tinyshakespeare")
    assert caught.value.choices == ("tiny-shakespeare",)


@pytest.mark.parametrize("corpus", CORPORA, ids=lambda corpus: corpus.name)
def test_every_known_corpus_is_pinned_and_told_in_the_readme(corpus: DatasetInfo) -> None:
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", corpus.name)
    assert re.fullmatch(r"[0-9a-f]{64}", corpus.sha256)
    assert corpus.url.startswith("https://")
    forms = (corpus.zip_member, corpus.tar_folder, corpus.zip_pair)
    assert (corpus.text_limit > 0) == any(forms)
    assert sum(map(bool, forms)) <= 1
    assert len(corpus.zip_pair) in (0, 2)
    assert (corpus.tar_folder is None) == (corpus.labels == ())
    readme = (ROOT / "data" / "README.md").read_text()
    for fact in (corpus.name, corpus.url, f"{corpus.size:,}", corpus.sha256, corpus.licence, corpus.split):
        assert fact in readme


def test_no_two_known_corpora_share_a_name() -> None:
    assert len({corpus.name for corpus in CORPORA}) == len(CORPORA)


def tar_archive(members: dict[str, bytes]) -> bytes:
    """A tar.gz archive of these files, with a folder and a link among them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for number, (name, data) in enumerate(members.items()):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
            link = tarfile.TarInfo(f"set/train/pos/{number}_link.txt")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(link)
    return buffer.getvalue()


MEMBERS = {
    "set/train/pos/1.txt": "gut\nund schön".encode(),
    "set/train/neg/2.txt": b"bad",
    "set/train/unsup/3.txt": b"unknown",
    "set/test/pos/4.txt": b"other split",
    "set/train/pos/../../../5.txt": b"out of the way",
}


def tar_corpus(server: Server, data: bytes, **changes: object) -> DatasetInfo:
    server.replies["/set.tar.gz"] = send(data)
    digest = hashlib.sha256(data).hexdigest()
    info = {"name": "reviews", "about": "", "licence": "", "split": "", "tar_folder": "set/train"}
    download = {"url": server.url("/set.tar.gz"), "size": len(data), "sha256": digest, "labels": ("neg", "pos")}
    return DatasetInfo(**{**info, **download, "text_limit": 1000, **changes})


def test_the_folders_of_a_labelled_archive_become_json_lines_and_nothing_else_of_it_is_read(server, tmp_path):
    path = fetch_corpus(tar_corpus(server, tar_archive(MEMBERS)), tmp_path, progress=lambda *_: None)
    assert path.name == "reviews.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines == [{"text": "gut\nund schön", "label": "pos"}, {"text": "bad", "label": "neg"}]
    assert sorted(actual.name for actual in path.parent.iterdir()) == ["SHA256SUMS", "reviews.jsonl"]


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        (tar_archive(MEMBERS), {"text_limit": 5}, "more than the expected"),
        (tar_archive(MEMBERS), {"tar_folder": "elsewhere"}, "no texts in elsewhere"),
        (tar_archive(MEMBERS)[:60], {}, "cannot read set/train"),
        (tar_archive({"set/train/pos/1.txt": b"\xff"}), {}, "cannot read set/train"),
        (b"no archive", {}, "cannot read set/train"),
    ],
    ids=["too much", "none", "cut", "damaged", "no archive"],  # an archive as an id would tell when it was made
)
def test_a_labelled_archive_that_is_not_as_expected_is_one_error_and_leaves_nothing(
    server, tmp_path, data, changes, message
):
    with pytest.raises(UserError, match=message):
        fetch_corpus(tar_corpus(server, data, **changes), tmp_path, progress=lambda *_: None)
    assert not (tmp_path / "reviews").exists()


def pair_corpus(server, data, **changes):
    server.replies["/pairs.zip"] = send(data)
    info = {"name": "pairs", "about": "", "licence": "", "split": "", "zip_pair": ("x.en", "x.de"), "text_limit": 1000}
    download = {"url": server.url("/pairs.zip"), "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return DatasetInfo(**{**info, **download, **changes})


ENGLISH = b" good night\nempty\nyes\xe2\x80\xa8no\n"
GERMAN = "Gute Nacht\r\n\nja\u2028nein".encode()
PAIRS = {"x.en": ENGLISH, "x.de": GERMAN, "../evil": b"x", "README": b"x"}


def test_the_lines_of_two_files_become_prompts_and_completions_and_nothing_else_is_read(server, tmp_path):
    path = fetch_corpus(pair_corpus(server, archive_of(**PAIRS)), tmp_path, progress=lambda *_: None)
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert lines == [
        {"prompt": "good night", "completion": "Gute Nacht"},
        {"prompt": "yes\u2028no", "completion": "ja\u2028nein"},
    ]
    assert sorted(actual.name for actual in path.parent.iterdir()) == ["SHA256SUMS", "pairs.jsonl"]


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        (archive_of(**PAIRS), {"text_limit": 20}, "more than the expected"),
        (archive_of(**{"x.en": b"a" * 10_000_000, "x.de": b"b"}), {}, "more than the expected"),
        (archive_of(**{**PAIRS, "x.de": GERMAN + b"\nmehr"}), {}, "different numbers of lines"),
        (archive_of(**{**PAIRS, "x.en": b"one\n"}), {}, "different numbers of lines"),
        (archive_of(**{**PAIRS, "x.de": b"\xff\n"}), {}, "cannot read x.en and x.de"),
        (archive_of(**PAIRS), {"zip_pair": ("x.en", "x.fr")}, "cannot read x.en and x.fr"),
        (archive_of(**PAIRS)[:60], {}, "cannot read x.en and x.de"),
    ],
    ids=["too much", "a long line", "more completions", "more prompts", "no text", "another language", "cut"],
)
def test_an_archive_of_pairs_that_is_not_as_expected_is_one_error_and_leaves_nothing(
    server, tmp_path, data, changes, message
):
    with pytest.raises(UserError, match=message):
        fetch_corpus(pair_corpus(server, data, **changes), tmp_path, progress=lambda *_: None)
    assert not (tmp_path / "pairs").exists()


@pytest.mark.parametrize(
    ("form", "command"),
    [
        ({}, "gpt train corpus:known"),
        ({"tar_folder": "x", "labels": ("a", "b")}, "gpt train corpus:known task.kind=classes"),
        ({"zip_pair": ("a", "b")}, "gpt train corpus:known data.format=pairs"),
    ],
)
def test_the_command_that_data_get_ends_with_trains_on_that_kind_of_corpus(
    monkeypatch, tmp_path, capsys, form, command
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPT_CACHE", str(tmp_path / "cache"))
    corpus = DatasetInfo(name="known", about="", url="", size=0, sha256="", licence="", split="", **form)
    monkeypatch.setattr("gpt_cli.corpus.registry.CORPORA", (corpus,))
    words = "It was the best of times, it was the worst of times."
    lines = {
        (): [{"text": words}],
        corpus.labels: [{"text": f"{words} {n}", "label": "ab"[n % 2]} for n in range(40)],
        corpus.zip_pair: [{"prompt": f"{n}", "completion": words} for n in range(40)],
    }
    kind = corpus.labels or corpus.zip_pair
    text = "\n".join(json.dumps(line) for line in lines[kind]) if kind else words * 40
    with atomic_directory(tmp_path / "cache" / "corpora" / "known") as folder:
        write_file(folder / corpus.file_name, [text.encode()])
    assert main(["data", "get", "known"]) == 0
    assert command in capsys.readouterr().err
    sizes = ["model.n_layer=1", "model.n_embd=16", "model.n_head=1", "model.context_length=64", "train.batch_size=2"]
    once = ["train.steps=1", "sample.every=null", "run_dir=run"]
    assert main([*command.split()[1:], *sizes, *once]) == 0, capsys.readouterr().err
