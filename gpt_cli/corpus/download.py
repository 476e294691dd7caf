"""Download one file over https, bounded in size and verified by its SHA-256."""

import http.client
import os
import re
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import IO

from gpt_cli.corpus.hub import translate_errors
from gpt_cli.errors import UserError
from gpt_cli.files import DiskError, require_space, sha256_file, write_file
from gpt_cli.files.os_errors import translate_os_errors

DownloadProgress = Callable[[int, int], None]
"""Called with the bytes received so far and the bytes of the whole file."""

TIMEOUT = 30.0  # seconds without a byte
TRUSTED = ("https://",)
_CHUNK = 1 << 18
_ON_HUB = re.compile(r"https://huggingface\.co/datasets/([^/]+/[^/]+)/resolve/([0-9a-f]{40})/(.+)")


@contextmanager
def downloaded(url: str, folder: Path, *, size: int, sha256: str, progress: DownloadProgress) -> Iterator[Path]:
    """Yield the path of the verified file at `url`, in `folder`, which is removed at the end.

    Raises UserError. Of a file on the Hugging Face Hub what was received then stays, and the next call resumes.
    """
    if folder.is_file() and not folder.is_symlink():  # the beginning of a download by an older version
        folder.unlink()
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
        raise DiskError(f"cannot write {folder}: something else is in its place, which is never replaced")
    require_space(folder.parent, size)
    if hosted := _ON_HUB.fullmatch(url):
        repo, commit, name = hosted.groups()
        with translate_errors(url) as hub:
            file = Path(hub.hf_hub_download(repo, name, repo_type="dataset", revision=commit, local_dir=folder))
    else:
        with translate_os_errors("create", folder):
            folder = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        file = folder / "download"
    try:
        if not hosted:
            write_file(file, _receive(url, size, progress))
        if (digest := sha256_file(file)) != sha256:
            raise UserError(f"{url} is not the expected file: its sha256 is {digest}, not {sha256}; it was deleted")
        yield file
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _receive(url: str, size: int, progress: DownloadProgress) -> Iterator[bytes]:
    """Yield the `size` bytes at `url`. Raises UserError, also for more or fewer of them."""
    _require_https(url)
    received = 0
    request = urllib.request.Request(url, headers={"User-Agent": "gpt-cli", "Accept-Encoding": "identity"})
    try:
        with urllib.request.build_opener(_HttpsRedirects).open(request, timeout=TIMEOUT) as response:
            progress(0, size)
            while data := response.read1(_CHUNK):
                received += len(data)
                if received > size:
                    break
                yield data
                progress(received, size)
    except (http.client.HTTPException, OSError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise UserError(f"cannot download {url}: {error}") from error
    if received != size:
        amount = "more than" if received > size else f"{received:,} bytes of"
        raise UserError(f"cannot download {url}: it sent {amount} the expected {size:,} bytes")


class _HttpsRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        try:
            _require_https(newurl)
        except UserError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _require_https(url: str) -> None:
    if not url.startswith(TRUSTED):
        raise UserError(f"refused to download {url}: only https is trusted")
