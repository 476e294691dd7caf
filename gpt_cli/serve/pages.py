"""Routes of the page at /: the page, the runs with their metrics and samples, and attention weights."""

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
from gpt_cli.errors import Notify, UserError
from gpt_cli.report import html
from gpt_cli.run.checkpoint import CONFIG
from gpt_cli.run.log import read_metrics, read_samples
from gpt_cli.run.run_files import RUN
from gpt_cli.serve.api_errors import ApiError, AsciiJSONResponse
from gpt_cli.serve.encoding import encode, token_text
from gpt_cli.serve.model_registry import ModelRegistry, ServedModel
from gpt_cli.serve.request_body import read_object
from gpt_cli.serve.request_schemas import AttentionRequest

if TYPE_CHECKING:
    from gpt_cli.serve.app import ServerState

_TEMPLATES = Path(__file__).parent / "templates"
_SCRIPTS = ("api.js", "write.js", "read.js", "watch.js")
_MAX_ROWS = 600  # of metrics, for a curve
_MAX_SAMPLES = 20
_MAX_ATTENTION_TOKENS = 128
_LIVE_SECONDS = 60.0  # a run whose metrics have not grown for longer is not being trained


async def page(state: "ServerState", request: Request) -> Response:
    """`GET /`: the page, one file whose content security policy lets it send requests to this server only."""
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
    """The page and its content security policy, which allows its script and style by their hashes."""
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


async def runs(state: "ServerState", request: Request) -> Response:
    """`GET /runs`: all runs, their checkpoints, and the config keys in which they differ."""
    return AsciiJSONResponse(await asyncio.to_thread(_runs_json, state.registry))


def _runs_json(registry: ModelRegistry) -> dict[str, Any]:
    configs = {name: _config(path) for name, path in registry.paths.items()}
    known = [config for config in configs.values() if config is not None]
    differing: dict[str, Any] = {}  # key -> the value of the first
    for other in known[1:]:
        differing |= {key: old for key, old, _ in changed_keys(known[0], other) if key != "run_dir"}
    rows = []
    for name, config in configs.items():
        changed = {} if config is None else {key: new for key, _, new in changed_keys(known[0], config)}
        values = {} if config is None else {key: str(changed.get(key, old)) for key, old in differing.items()}
        has_template = config is not None and bool(config.sample.prefix or config.sample.suffix)
        row = {"name": name, "path": str(registry.paths[name]), "steps": registry.steps(name), "config": values}
        rows.append(row | {"has_template": has_template})
    return {"runs": rows, "differing": sorted(differing)[:12], "flags": registry.options.flags()}


def _config(path: Path) -> Config | None:
    try:
        return load_config(path / CONFIG) if (path / RUN).is_file() else None
    except UserError:
        return None


async def run(state: "ServerState", request: Request) -> Response:
    """`GET /runs/NAME`: metrics and samples of one run."""
    name = request.path_params["name"]
    if name not in state.registry.paths:
        raise ApiError(404, "there is no such run", code="model_not_found")
    return AsciiJSONResponse(await asyncio.to_thread(_run_json, state.registry, name, state.note_once))


def _run_json(registry: ModelRegistry, name: str, note: Notify) -> dict[str, Any]:
    path = registry.paths[name]
    config = _config(path)
    metrics = read_metrics(path, note) if config is not None else []
    samples = read_samples(path, note)[-_MAX_SAMPLES:] if config is not None else []
    steps = config.train.steps if config is not None else 0
    last = metrics[-1]["step"] if metrics else 0
    log = path / "metrics.jsonl"
    live = last < steps and log.is_file() and time.time() - log.stat().st_mtime < _LIVE_SECONDS
    rows = [{key: row.get(key) for key in ("step", "time", "tokens", "loss", "val_loss")} for row in _thinned(metrics)]
    return {
        "name": name,
        "steps": registry.steps(name),
        "of": steps,
        "live": live,
        "metrics": rows,
        "samples": samples,
    }


def _thinned(metrics: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most `_MAX_ROWS` rows, the last among them, and all evaluations."""
    every = -(-len(metrics) // _MAX_ROWS)
    return [row for i, row in enumerate(metrics) if not (len(metrics) - 1 - i) % every or "val_loss" in row]


async def attention(state: "ServerState", request: Request) -> Response:
    """`POST /attention`: attention weights of one head on a text."""
    body = AttentionRequest.read(await read_object(request, state.limits))
    model = await state.registry.get(body.model)
    tokens = await asyncio.to_thread(encode, model, body.text, "text")
    seen = tokens[-min(_MAX_ATTENTION_TOKENS, model.context_length) :]
    weights = await asyncio.to_thread(_attention_json, model, seen, body.layer, body.head)
    return AsciiJSONResponse(weights | {"text_tokens": len(tokens)})


def _attention_json(model: ServedModel, tokens: list[int], layer: int, head: int) -> dict[str, Any]:
    from gpt_cli.evaluation.attention_capture import capture_attention  # noqa: PLC0415 - it imports torch

    layers, heads = model.config.model.n_layer, model.config.model.n_head
    for name, value, count in (("layer", layer, layers), ("head", head, heads)):
        if value >= count:
            raise ApiError(400, f"{name} must be at most {count - 1}, not {value}", param=name)
    weights = capture_attention(model.network, tokens)[layer].weights()[head].tolist()
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
