"""Routes of the page at /: the page itself, the runs with their curves, and where heads look."""

import asyncio
import base64
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from gpt_cli.config import Config, changed_keys, load_config
from gpt_cli.errors import UserError
from gpt_cli.report import html
from gpt_cli.run.checkpoint import CONFIG
from gpt_cli.run.directory import RUN
from gpt_cli.run.log import read_metrics, read_samples
from gpt_cli.serve.api_errors import ApiError, AsciiJSONResponse
from gpt_cli.serve.generation_request import encode
from gpt_cli.serve.model_registry import ModelRegistry, ServedModel
from gpt_cli.serve.request_body import read_object
from gpt_cli.serve.request_schemas import AttentionRequest
from gpt_cli.serve.scoring import token_text

if TYPE_CHECKING:
    from gpt_cli.serve.app import ServerState

_TEMPLATES = Path(__file__).parent / "templates"
_SCRIPTS = ("api.js", "write.js", "read.js", "watch.js")
_ROWS = 600  # of metrics that a curve is drawn from
_SAMPLES = 20
_SEEN = 128  # tokens whose attention is told
_LIVE = 60.0  # seconds without a line in the metrics, after which nobody trains


async def page(serving: "ServerState", request: Request) -> Response:
    """The page: one file, which may ask this server and nobody else."""
    text, policy = _page()
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return HTMLResponse(text, headers=headers)


@cache
def _page() -> tuple[str, str]:
    """The page and its policy, which lets its own script and style through by their hashes."""
    script = "".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    style = html.stylesheet() + (_TEMPLATES / "page.css").read_text(encoding="utf-8")
    text = (_TEMPLATES / "page.html").read_text(encoding="utf-8")
    text = text.replace("/*STYLE*/", style).replace("/*SCRIPT*/", script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


async def runs(serving: "ServerState", request: Request) -> Response:
    """All runs, their checkpoints, and what differs in their configs."""
    return AsciiJSONResponse(await asyncio.to_thread(_list, serving.shelf))


def _list(shelf: ModelRegistry) -> dict[str, Any]:
    configs = {name: _config(path) for name, path in shelf.paths.items()}
    known = [config for config in configs.values() if config is not None]
    differing: dict[str, Any] = {}  # key -> the value of the first
    for other in known[1:]:
        differing |= {key: old for key, old, _ in changed_keys(known[0], other) if key != "run_dir"}
    told = []
    for name, config in configs.items():
        changed = {} if config is None else {key: new for key, _, new in changed_keys(known[0], config)}
        values = {} if config is None else {key: str(changed.get(key, old)) for key, old in differing.items()}
        told.append({"name": name, "steps": shelf.steps(name), "config": values})
    return {"runs": told, "differing": sorted(differing)[:12]}


def _config(path: Path) -> Config | None:
    try:
        return load_config(path / CONFIG) if (path / RUN).is_file() else None
    except UserError:
        return None


async def run(serving: "ServerState", request: Request) -> Response:
    """The curves and samples of one."""
    name = request.path_params["name"]
    if name not in serving.shelf.paths:
        raise ApiError(404, "there is no such run", code="model_not_found")
    return AsciiJSONResponse(await asyncio.to_thread(_tell, serving.shelf, name))


def _tell(shelf: ModelRegistry, name: str) -> dict[str, Any]:
    path = shelf.paths[name]
    config = _config(path)
    metrics = read_metrics(path) if config is not None else []
    samples = read_samples(path)[-_SAMPLES:] if config is not None else []
    steps = config.train.steps if config is not None else 0
    last = metrics[-1]["step"] if metrics else 0
    log = path / "metrics.jsonl"
    live = last < steps and log.is_file() and time.time() - log.stat().st_mtime < _LIVE
    rows = [{key: row.get(key) for key in ("step", "time", "tokens", "loss", "val_loss")} for row in _thinned(metrics)]
    return {
        "name": name,
        "steps": shelf.steps(name),
        "of": steps,
        "live": live,
        "metrics": rows,
        "samples": [{key: sample[key] for key in ("step", "prompt", "text")} for sample in samples],
    }


def _thinned(metrics: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most so many lines, evaluations and the last among them."""
    every = -(-len(metrics) // _ROWS)
    return [row for i, row in enumerate(metrics) if not (len(metrics) - 1 - i) % every or "val_loss" in row]


async def attention(serving: "ServerState", request: Request) -> Response:
    """Attention of one head on a text."""
    asked = AttentionRequest.read(await read_object(request, serving.limits))
    model = await serving.shelf.get(asked.model)
    tokens = encode(model, asked.text)[: min(_SEEN, model.context_length)]
    return AsciiJSONResponse(await asyncio.to_thread(_attention, model, tokens, asked.layer, asked.head))


def _attention(model: ServedModel, tokens: list[int], layer: int, head: int) -> dict[str, Any]:
    from gpt_cli.evaluation.attention_capture import capture_attention  # noqa: PLC0415 - it imports torch

    layers, heads = model.config.model.n_layer, model.config.model.n_head
    for name, value, most in (("layer", layer, layers), ("head", head, heads)):
        if value > most:
            raise ApiError(400, f"{name} must be at most {most}, not {value}", param=name)
    weights = capture_attention(model.network, tokens)[layer - 1].weights()[head - 1].tolist()
    return {
        **{"layer": layer, "layers": layers, "head": head, "heads": heads},
        "tokens": [token_text(model, token) for token in tokens],
        "weights": [[round(weight, 4) for weight in row[: i + 1]] for i, row in enumerate(weights)],
    }


ROUTES: list[tuple[str, str, Callable[["ServerState", Request], Awaitable[Response]]]] = [
    ("GET", "/", page),
    ("GET", "/runs", runs),
    ("GET", "/runs/{name}", run),
    ("POST", "/attention", attention),
]
