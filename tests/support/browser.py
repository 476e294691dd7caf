"""A headless Chromium, driven over its debugging pipe: what a test of a page clicks, types and sees."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until


def find_chromium() -> str | None:
    """Where it is, if it is here."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """One page. `problems` are errors of its scripts and breaches of its policy."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer, self._number, self._session = b"", 0, ""
        self.problems: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Go there, with a window of this size."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && document.querySelector('#model')?.value")

    def open_file(self, file: Path, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Go to a file, with a window of this size."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self._call("Page.navigate", url="about:blank")
        self.wait("location.protocol === 'about:'")
        self._call("Page.navigate", url=file.resolve().as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def open_on_paper(self, file: Path) -> None:
        """Go to a file as a printer does."""
        self._call("Emulation.setEmulatedMedia", media="print")
        self._call("Page.navigate", url=file.resolve().as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def run(self, script: str) -> Any:
        """The value of an expression."""
        response = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in response, response
        return response["result"].get("value")

    def wait(self, script: str) -> Any:
        """Until an expression is true; its value."""
        wait_until(lambda: self.run(f"Boolean({script})"))
        return self.run(script)

    def click(self, selector: str) -> None:
        """On the middle of an element, by the mouse."""
        position = self.run(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=position[0], y=position[1], button="left", clickCount=1)

    def key(self, name: str, modifiers: int = 0) -> None:
        """Press a key, such as Tab."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        text = {"text": "\r" if name == "Enter" else name} if name in ("Enter", " ") else {}
        for kind in ("keyDown", "keyUp"):
            self._call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=name,
                windowsVirtualKeyCode=codes[name],
                modifiers=modifiers,
                **(text if kind == "keyDown" else {}),
            )

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self._call("Input.insertText", text=text)

    def offline(self, yes: bool) -> None:
        """Lose the connection, or have it back."""
        self._call("Network.enable")
        self._call(
            "Network.emulateNetworkConditions", offline=yes, latency=0, downloadThroughput=-1, uploadThroughput=-1
        )

    def picture(self, path: Path) -> None:
        """Of all of the page."""
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._hear(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _hear(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(event["params"]["exceptionDetails"]))
        entry = event.get("params", {}).get("entry", {})
        if event.get("method") == "Log.entryAdded" and entry.get("level") == "error" and entry["source"] != "network":
            self.problems.append(entry["text"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._read, 1 << 20)
            assert data, "the browser is gone"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        actual: dict[str, Any] = json.loads(line)
        return actual


@contextmanager
def browsing(folder: Path) -> Iterator[Page]:
    """A browser, until the block is left; `folder` is its own."""
    program = find_chromium()
    assert program is not None
    theirs, ours = os.pipe()
    answers, tell = os.pipe()
    command = [
        *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"),
        *("--disable-dev-shm-usage", f"--user-data-dir={folder}", "about:blank"),
    ]
    shell = f'exec "$@" 3<&{theirs} 4>&{tell}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", *command], pass_fds=(theirs, tell), stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    os.close(tell)
    try:
        yield Page(ours, answers)
    finally:
        os.close(ours)
        process.terminate()
        process.wait()
        os.close(answers)
