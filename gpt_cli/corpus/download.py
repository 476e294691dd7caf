"""Download one file over https: resumable, bounded in size, verified by its SHA-256."""

import http.client
import ipaddress
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from gpt_cli.errors import UserError
from gpt_cli.files import require_space, sha256_file
from gpt_cli.files.durable import require_regular_file
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.terminal.words import format_size

DownloadProgress = Callable[[int, int], None]
"""Called with the bytes received so far and the bytes of the whole file."""

TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 1 << 18


def download(
    url: str, part: Path, *, size: int, sha256: str, progress: DownloadProgress, loopback: bool = False
) -> None:
    """Download `url` to `part` and verify its size and SHA-256.

    A download that was interrupted is resumed from the bytes in `part`. Raises UserError; `part` then holds the
    beginning of the file, which the next call resumes, or was deleted. `loopback` allows http to this machine.
    """
    _require_https(url, loopback)
    require_regular_file(part)
    with translate_os_errors("read", part):
        start = part.stat().st_size if part.exists() else 0
    if start < size:
        require_space(part.parent, size - start)
        _fetch(url, part, start, size, progress, loopback)
    with translate_os_errors("read", part):
        received = part.stat().st_size
    if received < size:
        raise UserError(
            f"the connection to {_host(url)} ended after {format_size(received)} of {format_size(size)}",
            hint="run the same command again: it continues from there",
        )
    if (digest := sha256_file(part)) != sha256:
        _delete(part)
        raise UserError(f"{url} is not the expected file: its sha256 is {digest}, not {sha256}; it was deleted")


def _fetch(url: str, part: Path, start: int, size: int, progress: DownloadProgress, loopback: bool) -> None:
    """Append the bytes of `url` from `start` on to `part`, up to `size` bytes in all."""
    headers = {"User-Agent": "gpt-cli", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    opener = urllib.request.build_opener(_HttpsRedirects(loopback))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as response:
            start = _response_start(response, start)
            content_length = response.headers.get("Content-Length", "")
            if content_length.isdigit() and start + int(content_length) != size:
                _delete(part)
                raise UserError(f"{url} is {format_size(start + int(content_length))} long, not {format_size(size)}")
            _append(response, part, start, size, progress)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            _delete(part)
        raise UserError(f"{_host(url)} answers {error.code} {error.reason} for {url}") from error
    except (http.client.HTTPException, OSError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise UserError(
            f"cannot download {url}: {reason}",
            hint="run the same command again: it continues where it stopped"
            if part.exists()
            else f"this needs the network, and {_host(url)} must be reachable",
        ) from error


def _response_start(response: http.client.HTTPResponse, requested: int) -> int:
    """The file offset at which the response starts: 0 from a server that ignores the range header."""
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return 0
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    if match is None or int(match[1]) != requested:
        raise http.client.HTTPException("the server continues at another place than it was asked to")
    return requested


def _append(response: http.client.HTTPResponse, part: Path, start: int, size: int, progress: DownloadProgress) -> None:
    with translate_os_errors("write", part), part.open("ab") as file:
        file.truncate(start)
        received = start
        progress(received, size)
        while data := _read_chunk(response):
            received += len(data)
            if received > size:
                break
            file.write(data)
            progress(received, size)
    if received > size:
        _delete(part)
        raise UserError(f"{response.url} sends more than the expected {format_size(size)}; it was deleted")


def _read_chunk(response: http.client.HTTPResponse) -> bytes:
    """The next bytes; b"" at the end, and when the connection breaks: the download can be resumed."""
    try:
        return response.read1(_CHUNK)
    except (http.client.HTTPException, OSError):
        return b""


class _HttpsRedirects(urllib.request.HTTPRedirectHandler):
    def __init__(self, loopback: bool) -> None:
        self._loopback = loopback

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        try:
            _require_https(newurl, self._loopback)
        except UserError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _require_https(url: str, loopback: bool) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (loopback and parts.scheme == "http" and _is_loopback(parts.hostname or "")):
        raise UserError(f"refused to download {url}: only https is trusted")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host(url: str) -> str:
    return urlsplit(url).hostname or url


def _delete(part: Path) -> None:
    with translate_os_errors("remove", part):
        part.unlink(missing_ok=True)
