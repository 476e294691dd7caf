"""The answers of `/v1/responses`: one message as OpenAI's newer API has it, whole or as events.

Read beside `openai.types.responses`, whose classes are the shapes that clients expect.
"""

import secrets
import time
from collections.abc import AsyncIterator
from itertools import count
from typing import Any, Literal

from gpt_cli.serve.answers import Answer
from gpt_cli.serve.api_errors import ApiError, dumps
from gpt_cli.serve.chat_schemas import ResponseRequest

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class ResponseFormat:
    """`response`, with one message as its output."""

    def __init__(self, body: ResponseRequest, answer: Answer) -> None:
        self._answer, (self._choice,) = answer, answer.choices
        self._body = body
        form = body.text and body.text.format
        self._text_format = form.model_dump(by_alias=True, exclude_none=True) if form else {"type": "text"}
        self._id, self._item_id = (prefix + secrets.token_hex(16) for prefix in ("resp_", "msg_"))
        self._numbers = count()

    async def whole(self) -> dict[str, Any]:
        async for _ in self._answer.deltas():
            pass
        return self._finished()

    async def events(self) -> AsyncIterator[bytes]:
        item, part = {"output_index": 0}, {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        started = self._response("in_progress", [])
        yield (
            self._event("response.created", response=started)
            + self._event("response.in_progress", response=started)
            + self._event("response.output_item.added", **item, item=self._message("in_progress", []))
            + self._event("response.content_part.added", **part, part=_text_part(""))
        )
        async for deltas in self._answer.deltas():
            if text := "".join(delta.text for delta in deltas):
                yield self._event("response.output_text.delta", **part, delta=text, logprobs=[])
        finished, text = self._finished(), self._choice.text
        yield (
            self._event("response.output_text.done", **part, text=text, logprobs=[])
            + self._event("response.content_part.done", **part, part=_text_part(text))
            + self._event("response.output_item.done", **item, item=finished["output"][0])
            + self._event(f"response.{finished['status']}", response=finished)
        )

    def failed(self, error: ApiError) -> bytes:
        cause = {"code": "server_error", "message": error.message}
        output = [self._message("incomplete", [_text_part(self._choice.text)])]
        return self._event("response.failed", response=self._response("failed", output) | {"error": cause})

    def _finished(self) -> dict[str, Any]:
        is_cut = self._choice.finish_reason == "length"
        status: Literal["incomplete", "completed"] = "incomplete" if is_cut else "completed"
        n_input, n_output = self._answer.prompt_tokens, self._answer.new_tokens
        return self._response(status, [self._message(status, [_text_part(self._choice.text)])]) | {
            "completed_at": None if is_cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "usage": {
                "input_tokens": n_input,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": n_output,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": n_input + n_output,
            },
        }

    def _response(self, status: Status, output: list[dict[str, Any]]) -> dict[str, Any]:
        request, model = self._answer.request, self._answer.request.model
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._answer.created,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "background": False,
            "instructions": self._body.instructions,
            "max_output_tokens": self._body.max_output_tokens,
            "metadata": {},
            "model": model.name,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": request.sampling.temperature,
            "text": {"format": self._text_format},
            "tool_choice": "auto",
            "tools": [],
            "top_p": request.sampling.top_p or 1.0,
            "truncation": "auto",
            "usage": None,
            "seed": request.sampling.seed,
            "step": model.step,
            "truncated": request.truncated,
        }

    def _message(self, status: Status, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._item_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _event(self, kind: str, **fields: Any) -> bytes:
        content = dumps({"type": kind, "sequence_number": next(self._numbers), **fields})
        return f"event: {kind}\ndata: {content}\n\n".encode("ascii")


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
