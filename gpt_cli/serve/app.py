"""The routes: OpenAI's API, and a few of our own. A handler parses, asks the scheduler, and answers."""

import asyncio
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gpt_cli import __version__
from gpt_cli.errors import Notify, UserError
from gpt_cli.serve import pages
from gpt_cli.serve.access_control import AccessMiddleware, AccessPolicy
from gpt_cli.serve.answers import Answer, Kind, while_connected
from gpt_cli.serve.api_errors import ApiError, AsciiJSONResponse, to_api_error
from gpt_cli.serve.generation_request import (
    GenerationRequest,
    encode,
    encode_chat,
    encode_prompts,
    known_tokens,
    make_generation_request,
)
from gpt_cli.serve.limits import Limits
from gpt_cli.serve.model_registry import ModelRegistry
from gpt_cli.serve.request_body import read_object
from gpt_cli.serve.request_schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationFields,
    ScoreRequest,
    TokenizeRequest,
)
from gpt_cli.serve.scheduler import Scheduler
from gpt_cli.serve.scoring import prompt_logprobs, score_text, token_text
from gpt_cli.serve.server_metrics import ServerMetrics

_SSE = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # a proxy passes on what comes as it comes
Handler = Callable[[Request], Awaitable[Response]]


@dataclass
class ServerState:
    """All that the handlers share. Made inside the event loop."""

    shelf: ModelRegistry
    limits: Limits
    figures: ServerMetrics = field(default_factory=ServerMetrics)
    follow: float | None = None
    """Seconds between two looks for new checkpoints. None: never."""
    note: Notify = lambda _: None
    scheduler: Scheduler = field(init=False)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.limits, self.figures)
        self.figures.watch(self.scheduler)


def make_app(serving: ServerState, guard: AccessPolicy) -> FastAPI:
    """The application; its scheduler ends with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        following = None if serving.follow is None else asyncio.create_task(_follow(serving, serving.follow))
        try:
            yield
        finally:
            if following is not None:
                following.cancel()
            await asyncio.to_thread(serving.scheduler.close)

    app = FastAPI(
        title="gpt serve", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None
    )
    app.state.serving = serving
    routes: list[tuple[str, str, Callable[[ServerState, Request], Awaitable[Response]]]] = [
        ("GET", "/health", health),
        ("GET", "/metrics", metrics),
        ("GET", "/v1/models", models),
        ("GET", "/v1/models/{name:path}", model),
        ("POST", "/v1/completions", completions),
        ("POST", "/v1/chat/completions", chat),
        ("POST", "/tokenize", tokenize),
        ("POST", "/detokenize", detokenize),
        ("POST", "/score", score),
        *pages.ROUTES,
    ]
    for method, path, handler in routes:
        app.add_route(path, _counted(serving, path, handler), methods=[method])
    app.add_exception_handler(HTTPException, _http_error)
    if guard.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=guard.origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    app.add_middleware(AccessMiddleware, guard=guard)
    return app


def _counted(
    serving: ServerState, path: str, handler: Callable[[ServerState, Request], Awaitable[Response]]
) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            response = await handler(serving, request)
        except ApiError as problem:
            response = problem.response()
        except UserError as error:
            response = to_api_error(error).response()
        except Exception:
            traceback.print_exc(file=sys.stderr)
            response = ApiError(500, "a bug in gpt; the server's log has more").response()
        serving.figures.answered(path, response.status_code)
        return response

    return handle


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = {404: "there is nothing at this path", 405: "this path takes another method"}
    return ApiError(error.status_code, what.get(error.status_code, str(error.detail)), headers=error.headers).response()


async def _follow(serving: ServerState, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            for fresh in await serving.shelf.refresh():
                serving.note(f"{fresh.name}: step {fresh.step:,} is served now")
        except Exception:
            traceback.print_exc(file=sys.stderr)


async def health(serving: ServerState, _: Request) -> Response:
    """Health: whether the scheduler runs, and how many texts are being written."""
    here = serving.scheduler
    status = {"status": "ok" if here.alive else "ending", "writing": here.writing, "waiting": here.waiting}
    return AsciiJSONResponse(status, 200 if here.alive else 503)


async def metrics(serving: ServerState, _: Request) -> Response:
    """For Prometheus."""
    return Response(serving.figures.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def models(serving: ServerState, _: Request) -> Response:
    """The runs."""
    return AsciiJSONResponse({"object": "list", "data": [_model(name) for name in serving.shelf.paths]})


async def model(serving: ServerState, request: Request) -> Response:
    """One of them, open: with what clients ask a server of a model for."""
    found = await serving.shelf.get(request.path_params["name"])
    more = {"context_length": found.context_length, "vocab_size": found.tokenizer.vocab_size, "step": found.step}
    return AsciiJSONResponse(_model(request.path_params["name"]) | {"created": found.created, **more})


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "gpt"}


async def completions(serving: ServerState, request: Request) -> Response:
    """Text that goes on."""
    asked = CompletionRequest.read(await read_object(request, serving.limits))
    _check_top("logprobs", asked.logprobs, serving.limits)
    found = await serving.shelf.get(asked.model)
    prompts = await encode_prompts(found, asked.prompt)
    order = await make_generation_request(found, prompts, asked, serving.limits)
    echoes = [found.tokenizer.decode(tokens) for tokens in prompts] if asked.echo else []
    return await _answer(serving, request, "text_completion", order, asked, asked.logprobs, echoes)


async def chat(serving: ServerState, request: Request) -> Response:
    """An answer to messages."""
    asked = ChatRequest.read(await read_object(request, serving.limits))
    _check_top("top_logprobs", asked.top_logprobs, serving.limits)
    if asked.top_logprobs is not None and not asked.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    if asked.max_tokens is not None and asked.max_completion_tokens is not None:
        raise ApiError(400, "give max_tokens or max_completion_tokens, not both", param="max_tokens")
    found = await serving.shelf.get(asked.model)
    tokens = await asyncio.to_thread(encode_chat, found, asked.messages)
    order = await make_generation_request(found, [tokens], asked, serving.limits, asked.max_completion_tokens)
    top = (asked.top_logprobs or 0) if asked.logprobs else None
    return await _answer(serving, request, "chat.completion", order, asked, top, [])


async def _answer(
    serving: ServerState,
    request: Request,
    kind: Kind,
    order: GenerationRequest,
    asked: GenerationFields,
    top: int | None,
    echoes: list[str],
) -> Response:
    if asked.stream_options is not None and not asked.stream:
        raise ApiError(400, "stream_options needs stream: true", param="stream_options")
    read = []
    if echoes and top is not None:
        read = [await prompt_logprobs(serving.scheduler, order.model, tokens, top) for tokens in order.prompts]
    answer = Answer(kind, order, serving.scheduler, serving.limits, top, echoes, streamed=bool(asked.stream))
    if asked.stream:
        usage = asked.stream_options is not None and asked.stream_options.include_usage
        return StreamingResponse(answer.stream(read, usage=usage), media_type="text/event-stream", headers=_SSE)
    return AsciiJSONResponse(await while_connected(request, answer, asyncio.create_task(answer.whole(read))))


def _check_top(name: str, value: int | None, limits: Limits) -> None:
    if value is not None and value > limits.logprobs:
        raise ApiError(400, f"{name} must be at most {limits.logprobs} here, not {value}", param=name)


async def tokenize(serving: ServerState, request: Request) -> Response:
    """The tokens of a text."""
    asked = TokenizeRequest.read(await read_object(request, serving.limits))
    found = await serving.shelf.get(asked.model)
    tokens = await asyncio.to_thread(encode, found, asked.text) if asked.text else []
    pieces = [token_text(found, token) for token in tokens]
    return AsciiJSONResponse(
        {"tokens": tokens, "count": len(tokens), "pieces": pieces, "max_model_len": found.context_length}
    )


async def detokenize(serving: ServerState, request: Request) -> Response:
    """The text of tokens."""
    asked = DetokenizeRequest.read(await read_object(request, serving.limits))
    found = await serving.shelf.get(asked.model)
    return AsciiJSONResponse({"prompt": found.tokenizer.decode(known_tokens(found, asked.tokens))})


async def score(serving: ServerState, request: Request) -> Response:
    """Log-probability of each token of a text."""
    asked = ScoreRequest.read(await read_object(request, serving.limits))
    _check_top("top_logprobs", asked.top_logprobs, serving.limits)
    found = await serving.shelf.get(asked.model)
    tokens = await asyncio.to_thread(encode, found, asked.text)
    if len(tokens) > serving.limits.prompt_tokens:
        message = f"the text must have at most {serving.limits.prompt_tokens:,} tokens here, not {len(tokens):,}"
        raise ApiError(400, message, param="text", code="limit_exceeded")
    return AsciiJSONResponse(await score_text(serving.scheduler, found, asked.text, tokens, asked.top_logprobs))
