"""Answers to completion and chat requests, whole or streamed: the scheduler's chunks as OpenAI's JSON."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.requests import Request

from gpt_cli.sampling.heal import make_healer
from gpt_cli.sampling.prompt import Opening
from gpt_cli.serve.active_sequence import ActiveSequence, SequenceChunk, TokenLogprob
from gpt_cli.serve.api_errors import ApiError, dumps
from gpt_cli.serve.generation_request import GenerationRequest
from gpt_cli.serve.limits import Limits
from gpt_cli.serve.model_registry import ServedModel
from gpt_cli.serve.scheduler import ChunkQueue, Scheduler
from gpt_cli.serve.scoring import bytes_text, token_text
from gpt_cli.serve.text_engine import SequenceRequest
from gpt_cli.tokenizer import StreamDecoder

ObjectType = Literal["text_completion", "chat.completion"]


@dataclass(frozen=True)
class OffsetLogprob:
    """The log-probability of a token whose text begins at character `text_offset` of its choice."""

    text_offset: int
    entry: TokenLogprob


class TokenPlaces:
    """The places of tokens in the text of a choice: where the character begins in which the first byte lies."""

    def __init__(self, decoder: StreamDecoder, start: int = 0) -> None:
        self._decoder, self._n_character = decoder, start

    def begin(self, new_bytes: bytes) -> int:
        """The place of a first token that adds `new_bytes` to the prompt."""
        place = self._n_character
        self._n_character += len(self._decoder.push_bytes(new_bytes))
        return place

    def place(self, token: int, *, ends: bool = False) -> int:
        """The place of the next token; of one that `ends` the text, the end."""
        held = len(self._decoder.flush()) if ends else self._decoder.held_before(token)
        place = self._n_character + held
        self._n_character += held if ends else len(self._decoder.push(token))
        return place


@dataclass(frozen=True)
class ChoiceDelta:
    """The text and log-probabilities that a chunk adds to the choice `index`."""

    index: int
    text: str
    logprobs: list[OffsetLogprob]
    finish_reason: str | None


@dataclass
class StreamedChoice:
    """A choice, as OpenAI calls one text of an answer, as far as it has been sent.

    The log-probability of a token is withheld until its text is sent, which that of a stop string never is.
    """

    model: ServedModel
    echo: str = ""
    """The prompt, which the text follows, if the request wants it."""
    prompt: Sequence[int] = ()
    """The tokens of the prompt."""
    text: str = ""
    n_token: int = 0
    finish_reason: str | None = None
    _withheld: list[OffsetLogprob] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._places = TokenPlaces(StreamDecoder(self.model.tokenizer, self.prompt), len(self.echo))

    def append(self, chunk: SequenceChunk) -> ChoiceDelta:
        """Append a chunk. Returns what can be sent now."""
        self.text += chunk.text
        self.n_token += len(chunk.tokens)
        self.finish_reason = chunk.finish_reason
        ends = self.model.tokenizer.end_ids  # are reported, although they have no text
        for entry in chunk.logprobs:
            is_end = entry.token in ends
            begins = entry.new_bytes and not is_end
            place = self._places.begin(entry.new_bytes) if begins else self._places.place(entry.token, ends=is_end)
            self._withheld.append(OffsetLogprob(place, entry))
        end = len(self.echo) + len(self.text)
        ready = [token for token in self._withheld if token.text_offset < end or token.entry.token in ends]
        self._withheld = [] if chunk.finish_reason else self._withheld[len(ready) :]
        return ChoiceDelta(chunk.index, chunk.text, ready, chunk.finish_reason)


class Answer:
    """A request that is being answered. `close` it in any case: that frees its slots."""

    def __init__(
        self,
        object_type: ObjectType,
        request: GenerationRequest,
        scheduler: Scheduler,
        limits: Limits,
        n_top: int | None,
        deadline: float,
        echoes: Sequence[str] = (),
        *,
        streamed: bool = False,
    ) -> None:
        """`n_top` is the number of alternatives to each token, None without log-probabilities; `deadline` is a time of
        `time.monotonic`; `echoes` are the texts of the prompts, if the request wants them. Raises ApiError 429 where
        the queue is full."""
        self._object_type, self._request, self._scheduler, self._limits = object_type, request, scheduler, limits
        self._chunks = ChunkQueue()
        self._id = ("cmpl-" if object_type == "text_completion" else "chatcmpl-") + secrets.token_hex(12)
        self._created = int(time.time())
        self._n_top = n_top
        self._event_head = ""
        self._choices = [
            StreamedChoice(request.model, echoes[i // request.n] if echoes else "", prompt)
            for i, (prompt, _) in enumerate(request.sequences)
        ]
        healer, model = None, request.model
        if request.plain_text:
            rules = request.processor_factory or request.constraint
            healer = make_healer(model.tokenizer, request.sampling, model.engine.next_logits, rules)
        self._sequences = [
            ActiveSequence(
                index=i,
                engine=request.model.engine,
                tokenizer=request.model.tokenizer,
                request=SequenceRequest(
                    Opening(prompt),
                    request.sampling,
                    sample_index=sample,
                    return_logits=n_top is not None,
                    penalties=request.penalties,
                    processor_factory=request.processor_factory,
                    constraint=request.constraint,
                ),
                healer=healer,
                n_top=n_top,
                chunks=self._chunks,
                deadline=deadline,
                streamed=streamed,
            )
            for i, (prompt, sample) in enumerate(request.sequences)
            if request.sampling.max_new_tokens > 0
        ]
        if self._sequences:
            scheduler.submit(self._sequences)

    def close(self) -> None:
        """Cancel what is still being generated."""
        self._scheduler.cancel(self._sequences)

    async def whole(self, prompt_logprobs: Sequence[Sequence[TokenLogprob]] = ()) -> dict[str, Any]:
        """The answer as one JSON object. Raises ApiError."""
        logprobs = [self._prompt_logprobs(i, prompt_logprobs) for i in range(len(self._choices))]
        async for deltas in self._deltas():
            for delta in deltas:
                logprobs[delta.index] += delta.logprobs
        choices = []
        for i, choice in enumerate(self._choices):
            text, finish_reason = choice.echo + choice.text, choice.finish_reason or "length"
            choices.append(self._choice_json(i, text, finish_reason, self._logprobs_json(logprobs[i]), whole=True))
        return self._envelope(choices) | {"usage": self._usage()}

    async def stream(
        self, prompt_logprobs: Sequence[Sequence[TokenLogprob]] = (), *, usage: bool = False
    ) -> AsyncIterator[bytes]:
        """The answer as server-sent events. An error is sent as an event."""
        try:
            for i, choice in enumerate(self._choices):
                if choice.echo or self._object_type == "chat.completion" or not self._sequences:
                    logprobs = (
                        self._logprobs_json(self._prompt_logprobs(i, prompt_logprobs)) if prompt_logprobs else None
                    )
                    finish_reason = None if self._sequences else "length"
                    yield self._event([self._choice_json(i, choice.echo, finish_reason, logprobs, role=True)], usage)
            async for deltas in self._deltas():
                events = []
                for delta in deltas:
                    if delta.text or delta.logprobs or delta.finish_reason:
                        logprobs = self._logprobs_json(delta.logprobs)
                        choice_json = self._choice_json(delta.index, delta.text, delta.finish_reason, logprobs)
                        events.append(self._event([choice_json], usage))
                if events:
                    yield b"".join(events)
            if usage:
                yield _event(self._envelope([], chunk=True) | {"usage": self._usage()})
        except ApiError as error:
            yield _event(error.content())
        finally:
            self.close()
        yield b"data: [DONE]\n\n"

    async def _deltas(self) -> AsyncIterator[list[ChoiceDelta]]:
        """The deltas of all choices, as they come, until every sequence has finished. Raises ApiError."""
        unfinished = len(self._sequences)
        while unfinished:
            deltas = []
            for chunk in await self._chunks.get():
                if chunk.finish_reason == "time":
                    raise ApiError(504, f"the text was not done after {self._limits.seconds:g} s", code="timeout")
                if chunk.finish_reason == "error":
                    raise ApiError(500, "the text could not be written", code="engine_failed")
                deltas.append(self._choices[chunk.index].append(chunk))
                unfinished -= chunk.finish_reason is not None
            yield deltas

    def _prompt_logprobs(self, index: int, prompt_logprobs: Sequence[Sequence[TokenLogprob]]) -> list[OffsetLogprob]:
        """The log-probabilities of the prompt of choice `index`, with the offsets of its tokens."""
        if not prompt_logprobs:
            return []
        places = TokenPlaces(StreamDecoder(self._request.model.tokenizer, special=True))
        entries = prompt_logprobs[index // self._request.n]
        return [OffsetLogprob(places.place(entry.token), entry) for entry in entries]

    def _choice_json(
        self,
        index: int,
        text: str,
        finish_reason: str | None,
        logprobs: dict[str, Any] | None,
        *,
        whole: bool = False,
        role: bool = False,
    ) -> dict[str, Any]:
        content: dict[str, Any] = {"text": text}
        if self._object_type == "chat.completion":
            message = {"role": "assistant", "content": text} if whole or role else {"content": text}
            content = {"message" if whole else "delta": message if text or whole or role else {}}
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish_reason}

    def _logprobs_json(self, logprobs: Sequence[OffsetLogprob]) -> dict[str, Any] | None:
        """None if the request does not want any."""
        if self._n_top is None:
            return None
        model, entries = self._request.model, [token.entry for token in logprobs]
        if self._object_type == "chat.completion":
            return {"content": [_chat_logprob_json(model, entry) for entry in entries], "refusal": None}
        top_logprobs = [
            None if entry.logprob is None else {token_text(model, i): value for i, value in entry.top_logprobs}
            for entry in entries
        ]
        return {
            "tokens": [bytes_text(entry.new_bytes) or token_text(model, entry.token) for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": top_logprobs if self._n_top else None,
            "text_offset": [token.text_offset for token in logprobs],
            "ids": [entry.token for entry in entries],
            "likeliest": [_likeliest_json(model, entry) for entry in entries],
        }

    def _usage(self) -> dict[str, int]:
        prompt_tokens = sum(map(len, self._request.prompts))
        new_tokens = sum(choice.n_token for choice in self._choices)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": new_tokens,
            "total_tokens": prompt_tokens + new_tokens,
        }

    def _envelope(self, choices: list[dict[str, Any]], *, chunk: bool = False) -> dict[str, Any]:
        model = self._request.model
        is_chat_chunk = chunk and self._object_type == "chat.completion"
        return {
            "id": self._id,
            "object": f"{self._object_type}.chunk" if is_chat_chunk else self._object_type,
            "created": self._created,
            "model": model.name,
            "system_fingerprint": model.fingerprint,
            "seed": self._request.sampling.seed,
            "step": model.step,
            "truncated": self._request.truncated,
            "choices": choices,
        }

    def _event(self, choices: list[dict[str, Any]], usage: bool) -> bytes:
        """A server-sent event. All of an answer begin with the same text, which is encoded once."""
        if not self._event_head:
            self._event_head = dumps(self._envelope([], chunk=True)).removesuffix("[]}")
        end = ',"usage":null}' if usage else "}"
        return f"data: {self._event_head}{dumps(choices)}{end}\n\n".encode("ascii")


def _likeliest_json(model: ServedModel, entry: TokenLogprob) -> list[dict[str, Any]]:
    """The alternatives with ids and probabilities after temperature and filters: a field that OpenAI does not have."""
    filtered_probs: Sequence[float | None] = entry.filtered_probs or [None for _ in entry.top_logprobs]
    return [
        {"id": i, "text": token_text(model, i), "logprob": value, "after": after}
        for (i, value), after in zip(entry.top_logprobs, filtered_probs, strict=True)
    ]


def _chat_logprob_json(model: ServedModel, entry: TokenLogprob) -> dict[str, Any]:
    def token_json(token: int, logprob: float | None) -> dict[str, Any]:
        data = list(model.tokenizer.token_bytes(token))
        return {"token": token_text(model, token), "logprob": logprob, "bytes": data}

    top_logprobs = [token_json(i, value) for i, value in entry.top_logprobs]
    return token_json(entry.token, entry.logprob) | {"top_logprobs": top_logprobs}


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + dumps(content).encode("ascii") + b"\n\n"


async def while_connected(request: Request, answer: Answer, work: "asyncio.Task[dict[str, Any]]") -> dict[str, Any]:
    """The result of `work`. Frees the answer's slots as soon as the client disconnects. Raises ApiError."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    disconnect = asyncio.create_task(disconnected())
    try:
        await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ApiError(499, "the client went away")
        return work.result()
    finally:
        for task in (work, disconnect):
            task.cancel()
        answer.close()
