"""Completions and chat: an order is submitted, and its pieces become OpenAI's answers, whole or streamed."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.requests import Request

from gpt_cli.serve.active_sequence import ActiveSequence, SequenceChunk, TokenLogprob
from gpt_cli.serve.api_errors import ApiError, dumps
from gpt_cli.serve.generation_request import GenerationRequest
from gpt_cli.serve.limits import Limits
from gpt_cli.serve.model_registry import ServedModel
from gpt_cli.serve.scheduler import ChunkQueue, Scheduler
from gpt_cli.serve.scoring import token_text
from gpt_cli.serve.text_engine import SequenceRequest
from gpt_cli.tokenizer import StreamDecoder

Kind = Literal["text_completion", "chat.completion"]


@dataclass
class StreamedChoice:
    """A text as far as the client knows it, with the costs of tokens whose text it has not been sent."""

    model: ServedModel
    echo: str = ""
    told: str = ""
    tokens: int = 0
    finish: str | None = None
    costs: list[tuple[int, TokenLogprob]] = field(default_factory=list)
    _decoder: StreamDecoder | None = None
    _at: int = 0

    def hear(self, piece: SequenceChunk) -> tuple[str, list[tuple[int, TokenLogprob]]]:
        """The text of `piece`, and the costs that may be told with it, each with where its token begins."""
        if self._decoder is None:
            self._decoder = StreamDecoder(self.model.tokenizer)
        self.told += piece.text
        self.tokens += len(piece.tokens)
        self.finish = piece.finish
        for cost in piece.costs:
            self.costs.append((self._at, cost))
            self._at += len(self._decoder.push(cost.token))
        end = self.model.tokenizer.eot_id  # which has no text; tokens of a stop string are not told
        ready = [(len(self.echo) + at, cost) for at, cost in self.costs if at < len(self.told) or cost.token == end]
        self.costs = [] if piece.finish else self.costs[len(ready) :]
        return piece.text, ready


class Answer:
    """One request that is being answered. `close` it, whatever happens: its seats are free then."""

    def __init__(
        self,
        kind: Kind,
        order: GenerationRequest,
        scheduler: Scheduler,
        limits: Limits,
        top: int | None,
        echoes: Sequence[str] = (),
        *,
        streamed: bool = False,
    ) -> None:
        """Raises ApiError 429 where there is no room. `echoes` are the texts of the prompts, where these are wanted."""
        self._kind, self._order, self._scheduler, self._limits = kind, order, scheduler, limits
        self._mailbox = ChunkQueue()
        self._id = ("cmpl-" if kind == "text_completion" else "chatcmpl-") + secrets.token_hex(12)
        self._created = int(time.time())
        self._top = top
        self._head = ""  # of every event
        n, count = order.n, len(order.prompts) * order.n
        self._spoken = [StreamedChoice(order.model, echoes[i // n] if echoes else "") for i in range(count)]
        deadline = time.monotonic() + limits.seconds
        self._lines = [
            ActiveSequence(
                index=i,
                engine=order.model.engine,
                tokenizer=order.model.tokenizer,
                request=SequenceRequest(
                    order.prompts[i // n], order.sampling, i % n, top is not None, order.penalties, order.book
                ),
                top=top,
                mailbox=self._mailbox,
                deadline=deadline,
                streamed=streamed,
            )
            for i in range(count)
            if order.sampling.max_new_tokens > 0
        ]
        if self._lines:
            scheduler.submit(self._lines)

    def close(self) -> None:
        """Nobody waits any more."""
        self._scheduler.cancel(self._lines)

    async def whole(self, read: Sequence[Sequence[TokenLogprob]] = ()) -> dict[str, Any]:
        """The answer in one piece; `read` are the costs of the prompts. Raises ApiError."""
        costs: list[list[tuple[int, TokenLogprob]]] = [[] for _ in self._spoken]
        async for heard in self._heard():
            for _, piece, told in heard:
                costs[piece.index] += told
        choices = []
        for i, spoken in enumerate(self._spoken):
            all_costs = self._read(i, read) + costs[i]
            logprobs = None if self._top is None else self._logprobs(all_costs)
            choices.append(self._choice(i, spoken.echo + spoken.told, spoken.finish or "length", logprobs, whole=True))
        return self._envelope(choices) | {"usage": self._usage()}

    async def stream(self, read: Sequence[Sequence[TokenLogprob]] = (), *, usage: bool = False) -> AsyncIterator[bytes]:
        """The same as server-sent events. What goes wrong now is an event, too."""
        try:
            for i, spoken in enumerate(self._spoken):
                if spoken.echo or self._kind == "chat.completion" or not self._lines:
                    logprobs = self._logprobs(self._read(i, read)) if read else None
                    finish = None if self._lines else "length"
                    yield self._event([self._choice(i, spoken.echo, finish, logprobs, role=True)], usage)
            async for heard in self._heard():
                events = []
                for spoken, piece, told in heard:
                    if piece.text or told or piece.finish:
                        logprobs = None if self._top is None else self._logprobs(told)
                        choice = self._choice(piece.index, piece.text, spoken.finish, logprobs)
                        events.append(self._event([choice], usage))
                if events:
                    yield b"".join(events)
            if usage:
                yield _event(self._envelope([]) | {"usage": self._usage()})
        except ApiError as problem:
            yield _event(problem.content())
        finally:
            self.close()
        yield b"data: [DONE]\n\n"

    async def _heard(self) -> AsyncIterator[list[tuple[StreamedChoice, SequenceChunk, list[tuple[int, TokenLogprob]]]]]:
        """The pieces of all texts, as many at a time as have come, until each has ended. Raises ApiError."""
        waiting = len(self._lines)
        while waiting:
            heard = []
            for piece in await self._mailbox.taken():
                if piece.finish == "time":
                    raise ApiError(504, f"the text was not done after {self._limits.seconds:g} s", code="timeout")
                if piece.finish == "error":
                    raise ApiError(500, "the text could not be written", code="engine_failed")
                spoken = self._spoken[piece.index]
                _, told = spoken.hear(piece)
                heard.append((spoken, piece, told))
                waiting -= piece.finish is not None
            yield heard

    def _read(self, index: int, read: Sequence[Sequence[TokenLogprob]]) -> list[tuple[int, TokenLogprob]]:
        """The costs of the prompt of text `index`, with where its tokens begin."""
        if not read:
            return []
        decoder, at, found = StreamDecoder(self._order.model.tokenizer), 0, []
        for cost in read[index // self._order.n]:
            found.append((at, cost))
            at += len(decoder.push(cost.token))
        return found

    def _choice(
        self,
        index: int,
        text: str,
        finish: str | None,
        logprobs: dict[str, Any] | None,
        *,
        whole: bool = False,
        role: bool = False,
    ) -> dict[str, Any]:
        said: dict[str, Any] = {"text": text}
        if self._kind == "chat.completion":
            content = {"role": "assistant", "content": text} if whole or role else {"content": text}
            said = {"message" if whole else "delta": content if text or whole or role else {}}
        return {"index": index, **said, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, costs: Sequence[tuple[int, TokenLogprob]]) -> dict[str, Any]:
        model, top = self._order.model, self._top or 0
        if self._kind == "chat.completion":
            return {"content": [_chat_cost(model, cost) for _, cost in costs], "refusal": None}
        names = [token_text(model, cost.token) for _, cost in costs]
        alternatives = [
            None if cost.log_prob is None else {token_text(model, i): value for i, value in cost.likeliest}
            for _, cost in costs
        ]
        likeliest = [_likeliest(model, cost) for _, cost in costs]
        return {
            "tokens": names,
            "token_logprobs": [cost.log_prob for _, cost in costs],
            "top_logprobs": alternatives if top else None,
            "text_offset": [at for at, _ in costs],
            "ids": [cost.token for _, cost in costs],
            "likeliest": likeliest,
        }

    def _usage(self) -> dict[str, int]:
        prompt, written = sum(map(len, self._order.prompts)), sum(spoken.tokens for spoken in self._spoken)
        return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}

    def _envelope(self, choices: list[dict[str, Any]], *, chunk: bool = False) -> dict[str, Any]:
        model = self._order.model
        return {
            "id": self._id,
            "object": f"{self._kind}.chunk" if chunk and self._kind == "chat.completion" else self._kind,
            "created": self._created,
            "model": model.name,
            "system_fingerprint": model.fingerprint,
            "seed": self._order.sampling.seed,
            "step": model.step,
            "choices": choices,
        }

    def _event(self, choices: list[dict[str, Any]], usage: bool) -> bytes:
        if not self._head:
            self._head = dumps(self._envelope([], chunk=True)).removesuffix("[]}")
        end = ',"usage":null}' if usage else "}"
        return f"data: {self._head}{dumps(choices)}{end}\n\n".encode("ascii")


def _likeliest(model: ServedModel, cost: TokenLogprob) -> list[dict[str, Any]]:
    """Our own: the alternatives with their ids, and their probabilities after temperature and filters."""
    after: Sequence[float | None] = cost.after or [None for _ in cost.likeliest]
    return [
        {"id": i, "text": token_text(model, i), "logprob": value, "after": left}
        for (i, value), left in zip(cost.likeliest, after, strict=True)
    ]


def _chat_cost(model: ServedModel, cost: TokenLogprob) -> dict[str, Any]:
    def one(token: int, log_prob: float | None) -> dict[str, Any]:
        data = list(model.tokenizer.token_bytes(token))
        return {"token": token_text(model, token), "logprob": log_prob, "bytes": data}

    return one(cost.token, cost.log_prob) | {"top_logprobs": [one(i, value) for i, value in cost.likeliest]}


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + dumps(content).encode("ascii") + b"\n\n"


async def while_connected(request: Request, answer: Answer, work: "asyncio.Task[dict[str, Any]]") -> dict[str, Any]:
    """The result of `work`; if the client leaves meanwhile its seats are freed at once. Raises ApiError."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    leaving = asyncio.create_task(gone())
    try:
        await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ApiError(499, "the client went away")
        return work.result()
    finally:
        for task in (work, leaving):
            task.cancel()
        answer.close()
