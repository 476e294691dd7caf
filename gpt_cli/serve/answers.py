"""A request that is being answered: its choices grow by the scheduler's chunks. A format writes them as JSON.

`choice_formats.py` has the formats of completions and chats, `responses.py` that of responses.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from starlette.requests import Request

from gpt_cli.sampling.heal import PromptHealer, make_healer
from gpt_cli.sampling.prompt import Opening
from gpt_cli.serve.active_sequence import ActiveSequence, TokenLogprob
from gpt_cli.serve.api_errors import ApiError
from gpt_cli.serve.generation_request import GenerationRequest
from gpt_cli.serve.limits import Limits
from gpt_cli.serve.scheduler import ChunkQueue, Scheduler
from gpt_cli.serve.streamed_choice import ChoiceDelta, StreamedChoice
from gpt_cli.serve.text_engine import SequenceRequest


class Answer:
    """A request that is being answered. `close` it in any case: that frees its slots."""

    def __init__(
        self,
        request: GenerationRequest,
        scheduler: Scheduler,
        limits: Limits,
        deadline: float,
        n_top: int | None = None,
        echoes: Sequence[str] = (),
        prompt_logprobs: Sequence[Sequence[TokenLogprob]] = (),
        *,
        streamed: bool = False,
    ) -> None:
        """`deadline` is a time of `time.monotonic`; `n_top` is the number of alternatives to each token, None without
        log-probabilities; `echoes` are the texts of the prompts, and `prompt_logprobs` the log-probabilities of their
        tokens, if the request wants them. Raises ApiError 429 where the queue is full."""
        self.request, self.n_top, self.created = request, n_top, int(time.time())
        self._scheduler, self._limits, self._prompt_logprobs = scheduler, limits, prompt_logprobs
        self._chunks = ChunkQueue()
        is_empty = request.sampling.max_new_tokens == 0
        self.choices = [
            StreamedChoice(
                request.model,
                echoes[i // request.n] if echoes else "",
                prompt,
                finish_reason="length" if is_empty else None,
            )
            for i, (prompt, _) in enumerate(request.sequences)
        ]
        self._sequences = [] if is_empty else self._make_sequences(deadline, streamed)
        if self._sequences:
            scheduler.submit(self._sequences)

    def _make_sequences(self, deadline: float, streamed: bool) -> list[ActiveSequence]:
        request, model = self.request, self.request.model
        healer: PromptHealer | None = None
        if request.plain_text:
            rules = request.processor_factory or request.constraint
            healer = make_healer(model.tokenizer, request.sampling, model.engine.next_logits, rules)
        return [
            ActiveSequence(
                index=i,
                engine=model.engine,
                tokenizer=model.tokenizer,
                request=SequenceRequest(
                    Opening(prompt),
                    request.sampling,
                    sample_index=sample,
                    return_logits=self.n_top is not None,
                    penalties=request.penalties,
                    processor_factory=request.processor_factory,
                    constraint=request.constraint,
                ),
                healer=healer,
                n_top=self.n_top,
                chunks=self._chunks,
                deadline=deadline,
                streamed=streamed,
            )
            for i, (prompt, sample) in enumerate(request.sequences)
        ]

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens of all prompts."""
        return sum(map(len, self.request.prompts))

    @property
    def new_tokens(self) -> int:
        """The number of tokens generated so far."""
        return sum(choice.n_token for choice in self.choices)

    def close(self) -> None:
        """Cancel what is still being generated."""
        self._scheduler.cancel(self._sequences)

    async def deltas(self) -> AsyncIterator[list[ChoiceDelta]]:
        """The deltas of all choices, openings first, until every sequence has finished. Raises ApiError."""
        scored = self._prompt_logprobs
        yield [
            choice.opening(i, scored[i // self.request.n] if scored else []) for i, choice in enumerate(self.choices)
        ]
        unfinished = len(self._sequences)
        while unfinished:
            deltas = []
            for chunk in await self._chunks.get():
                if chunk.finish_reason == "time":
                    raise ApiError(504, f"the text was not done after {self._limits.seconds:g} s", code="timeout")
                if chunk.finish_reason == "error":
                    raise ApiError(500, "the text could not be written", code="engine_failed")
                deltas.append(self.choices[chunk.index].append(chunk))
                unfinished -= chunk.finish_reason is not None
            yield deltas


class AnswerFormat(Protocol):
    """Writes one answer as an API has it. Each method is called at most once."""

    async def whole(self) -> dict[str, Any]:
        """The answer as one JSON object. Raises ApiError."""

    def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events. Raises ApiError."""

    def failed(self, error: ApiError) -> bytes:
        """The last event of an answer that fails after its stream has begun."""


async def stream(answer: Answer, form: AnswerFormat) -> AsyncIterator[bytes]:
    """The events of an answer. An error is an event, too."""
    try:
        async for event in form.events():
            yield event
    except ApiError as error:
        yield form.failed(error)
    finally:
        answer.close()


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
