"""OpenAI's JavaScript client and the AI SDK against a server: a program that prints JSON, run by node."""

import fcntl
import functools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import HANG

PACKAGES = ("openai@6.49.0", "ai@6.0.326", "@ai-sdk/openai@3.0.141")
NPM_OPTIONS = ("--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1", "--fetch-timeout=20000")
HEAD = """
import OpenAI from 'openai';
import { generateText, streamText } from 'ai';
import { createOpenAI } from '@ai-sdk/openai';
const [baseURL, apiKey, args] = [process.argv[2], 'none', JSON.parse(process.argv[3])];
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const sdk = createOpenAI({ baseURL, apiKey });
const all = async (stream) => { const items = []; for await (const item of stream) items.push(item); return items; };
const main = async () => {
"""
TAIL = """
};
console.log(JSON.stringify(await main()));
"""


@functools.cache
def _modules() -> Path | str:
    """The folder with the packages, which the first call on a machine installs, or why there is none."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "there is no node here"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "gpt-tests" / "+".join(name.replace("/", "_") for name in PACKAGES)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker finds what this one installs
        if not (folder / "installed").exists():
            command = ["npm", "install", *NPM_OPTIONS, "--prefix", folder, *PACKAGES]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                return f"npm cannot install {PACKAGES[0]}: {done.stderr.strip()[-200:]}"
            (folder / "installed").touch()
    return folder


def run_js(url: str, source: str, **args: Any) -> Any:
    """What `source`, the body of an async function, returns as JSON. Skips the test where node or a package is absent.

    It has `client` (openai), `sdk` with `generateText` and `streamText` (ai), `all` (a stream's items) and `args`.
    """
    if isinstance(modules := _modules(), str):
        pytest.skip(modules)
    program = HEAD + source + TAIL
    command = ["node", "--input-type=module", "-", f"{url}/v1", json.dumps(args)]
    done = subprocess.run(
        command, input=program, cwd=modules, capture_output=True, text=True, timeout=HANG, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
