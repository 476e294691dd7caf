"""A Hugging Face Hub on this machine: data sets with commits, branches and files, that can stop to answer."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest


class Hub(ThreadingHTTPServer):
    """Answers what huggingface_hub asks about data sets, and remembers what was asked."""

    def __init__(self) -> None:
        self.commits: dict[tuple[str, str], dict[str, bytes]] = {}
        self.refs: dict[tuple[str, str], str] = {}
        self.requests: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, repo: str, files: Mapping[str, str | bytes], branch: str = "main") -> str:
        """Make a new commit of `repo` with these files the newest of `branch`; returns its hash."""
        contents = {name: data.encode() if isinstance(data, str) else data for name, data in files.items()}
        commit = hashlib.sha1(repr((repo, sorted(contents.items()))).encode()).hexdigest()
        self.commits[repo, commit] = contents
        self.refs[repo, branch] = self.refs[repo, commit] = commit
        return commit

    def disconnect(self) -> None:
        """Refuse every connection from now on."""
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        kind, *parts = urlsplit(self.path).path.strip("/").split("/")
        if kind == "api":  # datasets/OWNER/NAME/revision/REVISION
            repo, revision = "/".join(parts[1:3]), unquote(parts[4])
            if (commit := self.server.refs.get((repo, revision))) is not None:
                files = self.server.commits[repo, commit].items()
                siblings = [{"rfilename": name, "size": len(data)} for name, data in files]
                self._send(json.dumps({"id": repo, "sha": commit, "siblings": siblings}).encode(), commit)
                return
        else:  # OWNER/NAME/resolve/REVISION/FILE
            repo, commit, name = "/".join(parts[:2]), parts[3], unquote("/".join(parts[4:]))
            if (data := self.server.commits.get((repo, commit), {}).get(name)) is not None:
                self._send(data, commit)
                return
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound" if kind == "api" else "EntryNotFound")
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()

    def _send(self, data: bytes, commit: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Connection", "close")
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def local_hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Have huggingface_hub, in this process and in those it starts, ask a new `Hub`, with its cache in `home`."""
    from huggingface_hub import constants

    with Hub() as hub:
        threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        for name, value in {"no_proxy": "127.0.0.1", "HF_ENDPOINT": hub.url, "HF_HOME": str(home)}.items():
            monkeypatch.setenv(name, value)
        yield hub
        hub.shutdown()
