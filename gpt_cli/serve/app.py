"""The routes: OpenAI's API, and some that it does not have. A handler parses the request and asks the scheduler."""

import asyncio
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache, partial

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gpt_cli import __version__
from gpt_cli.errors import Notify, UserError
from gpt_cli.serve import pages
from gpt_cli.serve.access_control import AccessMiddleware, AccessPolicy
from gpt_cli.serve.answers import Answer, AnswerFormat, stream, while_connected
from gpt_cli.serve.api_errors import ApiError, AsciiJSONResponse, to_api_error
from gpt_cli.serve.chat_prompt import encode_chat
from gpt_cli.serve.chat_schemas import ChatRequest, ResponseRequest
from gpt_cli.serve.choice_formats import ChatFormat, CompletionFormat, ToolChatFormat
from gpt_cli.serve.encoding import check_tokens, encode, encode_prompts, is_plain_text, token_text
from gpt_cli.serve.generation_request import GenerationRequest, make_generation_request
from gpt_cli.serve.limits import Limits, check_limit
from gpt_cli.serve.model_registry import ModelRegistry, created_at
from gpt_cli.serve.request_body import read_object
from gpt_cli.serve.request_schemas import (
    CompletionRequest,
    DetokenizeRequest,
    ScoreRequest,
    TokenizeRequest,
)
from gpt_cli.serve.responses import ResponseFormat
from gpt_cli.serve.scheduler import Scheduler
from gpt_cli.serve.scoring import prompt_logprobs, score_text
from gpt_cli.serve.server_metrics import ServerMetrics
from gpt_cli.serve.tools import ToolChoice

_EVENT_STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # a proxy must not buffer events
Handler = Callable[[Request], Awaitable[Response]]


@dataclass
class ServerState:
    """The objects that all handlers share. Construct it in the event loop."""

    registry: ModelRegistry
    limits: Limits
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    follow: float | None = None
    """Seconds between two looks for new checkpoints. None: the server does not look."""
    note: Notify = lambda _: None
    note_once: Notify = field(init=False)
    """For texts that come with every request alike."""
    scheduler: Scheduler = field(init=False)

    def __post_init__(self) -> None:
        self.note_once = cache(self.note)
        self.scheduler = Scheduler(self.limits, self.metrics)
        self.metrics.watch(self.scheduler)


def make_app(state: ServerState, policy: AccessPolicy) -> FastAPI:
    """The ASGI application. Its shutdown closes the scheduler."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        following = None if state.follow is None else asyncio.create_task(_follow(state, state.follow))
        try:
            yield
        finally:
            if following is not None:
                following.cancel()
            await asyncio.to_thread(state.scheduler.close)

    app = FastAPI(
        title="gpt serve", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None
    )
    app.state.server = state
    routes: list[tuple[str, str, Callable[[ServerState, Request], Awaitable[Response]]]] = [
        ("GET", "/health", health),
        ("GET", "/metrics", metrics),
        ("GET", "/v1/models", list_models),
        ("GET", "/v1/models/{name:path}", retrieve_model),
        ("POST", "/v1/completions", completions),
        ("POST", "/v1/chat/completions", chat),
        ("POST", "/v1/responses", responses),
        ("POST", "/tokenize", tokenize),
        ("POST", "/detokenize", detokenize),
        ("POST", "/score", score),
        *pages.ROUTES,
    ]
    for method, path, handler in routes:
        app.add_route(path, _endpoint(state, path, handler), methods=[method])
    app.add_exception_handler(HTTPException, _http_error)
    if policy.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=policy.origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    app.add_middleware(AccessMiddleware, policy=policy)
    return app


def _endpoint(state: ServerState, path: str, handler: Callable[[ServerState, Request], Awaitable[Response]]) -> Handler:
    """Wrap `handler` so that its errors become answers, and its answers are counted."""

    async def endpoint(request: Request) -> Response:
        try:
            response = await handler(state, request)
        except ApiError as error:
            response = error.response()
        except UserError as error:
            response = to_api_error(error).response()
        except asyncio.CancelledError:  # at the end of --drain
            response = ApiError(503, "the server is ending", headers={"Retry-After": "1"}).response()
        except Exception:
            traceback.print_exc(file=sys.stderr)
            response = ApiError(500, "a bug in gpt; the server's log has more").response()
        state.metrics.count_request(path, response.status_code)
        return response

    return endpoint


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    elsewhere = "a text is asked for at /v1/chat/completions, /v1/responses or /v1/completions"
    messages = {404: f"there is nothing at this path: {elsewhere}", 405: "this path takes another method"}
    message = messages.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, message, headers=error.headers).response()


async def _follow(state: ServerState, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            for model in await state.registry.refresh():
                state.note(f"{model.name}: step {model.step:,} is served now")
        except Exception:
            traceback.print_exc(file=sys.stderr)


async def health(state: ServerState, _: Request) -> Response:
    """`GET /health`: whether the scheduler runs, and how many sequences it has."""
    scheduler = state.scheduler
    status = "ok" if scheduler.alive else "ending"
    content = {"status": status, "writing": scheduler.running, "waiting": scheduler.waiting}
    return AsciiJSONResponse(content, 200 if scheduler.alive else 503)


async def metrics(state: ServerState, _: Request) -> Response:
    """`GET /metrics`: for Prometheus."""
    return Response(state.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def list_models(state: ServerState, _: Request) -> Response:
    """`GET /v1/models`: the runs that are served."""
    data = [_model_json(name, created_at(path)) for name, path in state.registry.paths.items()]
    return AsciiJSONResponse({"object": "list", "data": data})


async def retrieve_model(state: ServerState, request: Request) -> Response:
    """`GET /v1/models/NAME`: one run, which this opens, with its context length and vocabulary."""
    model = await state.registry.get(request.path_params["name"])
    details = {"context_length": model.context_length, "vocab_size": model.tokenizer.vocab_size, "step": model.step}
    return AsciiJSONResponse(_model_json(request.path_params["name"], model.created) | details)


def _model_json(name: str, created: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": created, "owned_by": "gpt"}


async def completions(state: ServerState, request: Request) -> Response:
    """`POST /v1/completions`."""
    body = CompletionRequest.read(await read_object(request, state.limits))
    _check_top("logprobs", body.logprobs, state.limits)
    model = await state.registry.get(body.model)
    generation = await make_generation_request(
        model,
        await encode_prompts(model, body.prompt, parse_special=bool(body.parse_special)),
        body,
        state.limits,
        n=body.n or 1,
        n_top=body.logprobs,
        echo=bool(body.echo),
        plain_text=is_plain_text(model, body.prompt),
    )
    return await _answer(state, request, generation, partial(CompletionFormat, usage=body.wants_usage))


async def chat(state: ServerState, request: Request) -> Response:
    """`POST /v1/chat/completions`."""
    body = ChatRequest.read(await read_object(request, state.limits))
    _check_top("top_logprobs", body.top_logprobs, state.limits)
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise ApiError(400, "give max_tokens or max_completion_tokens, not both", param="max_tokens")
    n_top = (body.top_logprobs or 0) if body.logprobs else None
    generation = await _chat_generation(state, body, body.n or 1, n_top, body.tool_use())
    form = ChatFormat if generation.tools is None else ToolChatFormat
    return await _answer(state, request, generation, partial(form, usage=body.wants_usage))


async def responses(state: ServerState, request: Request) -> Response:
    """`POST /v1/responses`: a chat in OpenAI's newer shape. Nothing is stored."""
    body = ResponseRequest.read(await read_object(request, state.limits))
    return await _answer(state, request, await _chat_generation(state, body), partial(ResponseFormat, body))


async def _chat_generation(
    state: ServerState,
    body: ChatRequest | ResponseRequest,
    n: int = 1,
    n_top: int | None = None,
    tools: ToolChoice | None = None,
) -> GenerationRequest:
    model = await state.registry.get(body.model)
    tokens, truncated = await asyncio.to_thread(encode_chat, model, body.messages, tools)
    if body.stop is not None and (end := model.config.data.learned_end):
        stops = [body.stop] if isinstance(body.stop, str) else body.stop
        body = body.model_copy(update={"stop": [*stops, end]})
    return await make_generation_request(
        model, [tokens], body, state.limits, n=n, n_top=n_top, truncated=truncated, tools=tools
    )


async def _answer(
    state: ServerState,
    request: Request,
    generation: GenerationRequest,
    make_format: Callable[[Answer], AnswerFormat],
) -> Response:
    scored = []
    if generation.echo and (n_top := generation.n_top) is not None:
        for prompt in generation.prompts:
            entries = prompt_logprobs(state.scheduler, generation.model, prompt, n_top, generation.deadline)
            scored.append(await entries)
    answer = Answer(generation, state.scheduler, scored)
    form = make_format(answer)
    if generation.streamed:
        return StreamingResponse(stream(answer, form), media_type="text/event-stream", headers=_EVENT_STREAM_HEADERS)
    return AsciiJSONResponse(await while_connected(request, answer, asyncio.create_task(form.whole())))


def _check_top(name: str, value: int | None, limits: Limits) -> None:
    check_limit(name, value or 0, limits.logprobs, code=None)


async def tokenize(state: ServerState, request: Request) -> Response:
    """`POST /tokenize`."""
    body = TokenizeRequest.read(await read_object(request, state.limits))
    model = await state.registry.get(body.model)
    tokens = []
    if body.text:
        tokens = await asyncio.to_thread(encode, model, body.text, "text", parse_special=bool(body.parse_special))
    pieces = [token_text(model, token) for token in tokens]
    return AsciiJSONResponse(
        {"tokens": tokens, "count": len(tokens), "pieces": pieces, "max_model_len": model.context_length}
    )


async def detokenize(state: ServerState, request: Request) -> Response:
    """`POST /detokenize`."""
    body = DetokenizeRequest.read(await read_object(request, state.limits))
    model = await state.registry.get(body.model)
    return AsciiJSONResponse({"prompt": model.tokenizer.decode(check_tokens(model, body.tokens, "tokens"))})


async def score(state: ServerState, request: Request) -> Response:
    """`POST /score`: the log-probability of each token of a text."""
    body = ScoreRequest.read(await read_object(request, state.limits))
    _check_top("top_logprobs", body.top_logprobs, state.limits)
    model = await state.registry.get(body.model)
    tokens = await asyncio.to_thread(encode, model, body.text, "text", parse_special=bool(body.parse_special))
    if len(tokens) > state.limits.prompt_tokens:
        message = f"the text must have at most {state.limits.prompt_tokens:,} tokens here, not {len(tokens):,}"
        raise ApiError(400, message, param="text", code="limit_exceeded")
    deadline = time.monotonic() + state.limits.seconds
    return AsciiJSONResponse(await score_text(state.scheduler, model, body, tokens, deadline))
