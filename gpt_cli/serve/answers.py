"""A request that is being answered: its choices grow by the deltas of its sequences. A format writes them as JSON.

`choice_formats.py` has the formats of completions and chats, `responses.py` that of responses.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request

from gpt_cli.sampling.prompt import Opening
from gpt_cli.sampling.text_stream import first_samples
from gpt_cli.serve.api_errors import ApiError
from gpt_cli.serve.generation_request import GenerationRequest
from gpt_cli.serve.scheduler import DeltaQueue, Scheduler
from gpt_cli.serve.text_sequence import ChoiceDelta, TextSequence
from gpt_cli.serve.token_logprobs import OffsetLogprob, TokenLogprob, TokenPlaces
from gpt_cli.tokenizer import StreamDecoder


@dataclass
class Choice:
    """One text of an answer, as OpenAI calls it, as far as it has come."""

    echo: str
    """The prompt, which the text follows, if the request wants it."""
    finish_reason: str | None
    text: str = ""
    n_token: int = 0


class Answer:
    """A request that is being answered. `close` it in any case: that frees its slots."""

    def __init__(
        self, request: GenerationRequest, scheduler: Scheduler, prompt_logprobs: Sequence[Sequence[TokenLogprob]] = ()
    ) -> None:
        """`prompt_logprobs` are those of the tokens of each prompt, if the request wants them.

        Raises ApiError 429 where the queue is full.
        """
        self.request, self.n_top, self.created = request, request.n_top, int(time.time())
        self._scheduler, self._prompt_logprobs, self._queue = scheduler, prompt_logprobs, DeltaQueue()
        self.choices: list[Choice] = []
        self._sequences: list[TextSequence] = []
        is_empty = request.sampling.max_new_tokens == 0
        for prompt, first in zip(request.prompts, first_samples(request.prompts, request.n), strict=True):
            echo = request.model.tokenizer.decode(prompt) if request.echo else ""
            for sample in range(first, first + request.n):
                if not is_empty:
                    index, opening = len(self.choices), Opening(prompt)
                    self._sequences.append(TextSequence(request, opening, self._queue, index, sample, len(echo)))
                self.choices.append(Choice(echo, "length" if is_empty else None))
        if self._sequences:
            scheduler.submit(self._sequences)

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
        yield [self._opening(i) for i in range(len(self.choices))]
        unfinished = len(self._sequences)
        while unfinished:
            deltas = await self._queue.get()
            for delta in deltas:
                if delta.finish_reason == "time":
                    seconds = self._scheduler.limits.seconds
                    raise ApiError(504, f"the text was not done after {seconds:g} s", code="timeout")
                if delta.finish_reason == "error":
                    raise ApiError(500, "the text could not be written", code="engine_failed")
                choice = self.choices[delta.index]
                choice.text += delta.text
                choice.n_token += len(delta.tokens)
                choice.finish_reason = delta.finish_reason
                unfinished -= delta.finish_reason is not None
            yield deltas

    def _opening(self, index: int) -> ChoiceDelta:
        """The prompt of a choice, if the request wants it, with its log-probabilities."""
        choice, scored = self.choices[index], self._prompt_logprobs
        places = TokenPlaces(StreamDecoder(self.request.model.tokenizer, special=True))
        entries = scored[index // self.request.n] if scored else ()
        logprobs = [OffsetLogprob(places.place(entry.token), entry) for entry in entries]
        return ChoiceDelta(index, choice.echo, logprobs, choice.finish_reason, opening=True)


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
