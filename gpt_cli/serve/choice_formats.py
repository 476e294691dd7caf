"""The answers of `/v1/completions` and `/v1/chat/completions`: choices, whole or as the deltas of a stream."""

import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import Any

from gpt_cli.serve.answers import Answer
from gpt_cli.serve.api_errors import ApiError, dumps
from gpt_cli.serve.encoding import bytes_text, token_text
from gpt_cli.serve.model_registry import ServedModel
from gpt_cli.serve.text_sequence import ChoiceDelta
from gpt_cli.serve.token_logprobs import OffsetLogprob, TokenLogprob
from gpt_cli.serve.tools import CallFormat, ToolCall

_DONE = b"data: [DONE]\n\n"


class CompletionFormat:
    """`text_completion`."""

    id_prefix, object_type, chunk_type = "cmpl-", "text_completion", "text_completion"

    def __init__(self, answer: Answer, *, usage: bool = False) -> None:
        """With `usage` a stream ends with the number of tokens."""
        self._answer, self._usage = answer, usage
        self._id = self.id_prefix + secrets.token_hex(12)
        self._event_head = ""

    async def whole(self) -> dict[str, Any]:
        logprobs: list[list[OffsetLogprob]] = [[] for _ in self._answer.choices]
        async for deltas in self._answer.deltas():
            for delta in deltas:
                logprobs[delta.index] += delta.logprobs
        choices = [
            _choice(i, self._content(i), self._logprobs(logprobs[i]), self._finish_reason(i))
            for i in range(len(self._answer.choices))
        ]
        return self._envelope(self.object_type, choices) | {"usage": self._usage_json()}

    async def events(self) -> AsyncIterator[bytes]:
        async for deltas in self._answer.deltas():
            if events := [self._event(delta) for delta in deltas if self._is_sent(delta)]:
                yield b"".join(events)
        if self._usage:
            yield _event(self._envelope(self.chunk_type, []) | {"usage": self._usage_json()})
        yield _DONE

    def failed(self, error: ApiError) -> bytes:
        return _event(error.content()) + _DONE

    def _is_sent(self, delta: ChoiceDelta) -> bool:
        return bool(delta.text or delta.logprobs or delta.finish_reason)

    def _content(self, index: int) -> dict[str, Any]:
        choice = self._answer.choices[index]
        return {"text": choice.echo + choice.text}

    def _finish_reason(self, index: int) -> str | None:
        return self._answer.choices[index].finish_reason

    def _delta_content(self, delta: ChoiceDelta) -> dict[str, Any]:
        return {"text": delta.text}

    def _logprobs(self, logprobs: Sequence[OffsetLogprob]) -> dict[str, Any] | None:
        """None if the request does not want any."""
        n_top = self._answer.n_top
        return None if n_top is None else self._logprobs_json(logprobs, n_top)

    def _logprobs_json(self, logprobs: Sequence[OffsetLogprob], n_top: int) -> dict[str, Any]:
        model, entries = self._answer.request.model, [token.entry for token in logprobs]
        top_logprobs = [
            None if entry.logprob is None else {token_text(model, i): value for i, value in entry.top_logprobs}
            for entry in entries
        ]
        return {
            "tokens": [bytes_text(entry.new_bytes) or token_text(model, entry.token) for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": top_logprobs if n_top else None,
            "text_offset": [token.text_offset for token in logprobs],
            "ids": [entry.token for entry in entries],
            "likeliest": [_likeliest_json(model, entry) for entry in entries],
        }

    def _usage_json(self) -> dict[str, int]:
        prompt_tokens, new_tokens = self._answer.prompt_tokens, self._answer.new_tokens
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": new_tokens,
            "total_tokens": prompt_tokens + new_tokens,
        }

    def _envelope(self, object_type: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        request, model = self._answer.request, self._answer.request.model
        return {
            "id": self._id,
            "object": object_type,
            "created": self._answer.created,
            "model": model.name,
            "system_fingerprint": model.fingerprint,
            "seed": request.sampling.seed,
            "step": model.step,
            "truncated": request.truncated,
            "choices": choices,
        }

    def _event(self, delta: ChoiceDelta) -> bytes:
        """A server-sent event. All of an answer begin with the same text, which is encoded once."""
        if not self._event_head:
            self._event_head = dumps(self._envelope(self.chunk_type, [])).removesuffix("[]}")
        logprobs = None if delta.opening and not delta.logprobs else self._logprobs(delta.logprobs)
        reason = delta.finish_reason and self._finish_reason(delta.index)
        choice = _choice(delta.index, self._delta_content(delta), logprobs, reason)
        end = ',"usage":null}' if self._usage else "}"
        return f"data: {self._event_head}{dumps([choice])}{end}\n\n".encode("ascii")


class ChatFormat(CompletionFormat):
    """`chat.completion`."""

    id_prefix, object_type, chunk_type = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def _is_sent(self, delta: ChoiceDelta) -> bool:
        return delta.opening or super()._is_sent(delta)

    def _content(self, index: int) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": self._answer.choices[index].text}}

    def _delta_content(self, delta: ChoiceDelta) -> dict[str, Any]:
        if delta.opening:
            return {"delta": {"role": "assistant", "content": ""}}
        return {"delta": {"content": delta.text} if delta.text else {}}

    def _logprobs_json(self, logprobs: Sequence[OffsetLogprob], n_top: int) -> dict[str, Any]:
        model = self._answer.request.model
        return {"content": [_chat_logprob_json(model, token.entry) for token in logprobs], "refusal": None}


class ToolChatFormat(ChatFormat):
    """`chat.completion` with the tool calls that are in its text."""

    def __init__(self, answer: Answer, *, usage: bool = False) -> None:
        super().__init__(answer, usage=usage)
        self._call_format = CallFormat.of(answer.request.model.tokenizer)
        self._ids = defaultdict[tuple[int, int], str](lambda: f"call_{secrets.token_hex(12)}")
        self._sent = {i: ("", list[ToolCall]()) for i in range(len(answer.choices))}

    def _read(self, index: int) -> tuple[str, list[ToolCall]]:
        choice = self._answer.choices[index]
        return self._call_format.read(choice.text, ended=choice.finish_reason is not None)

    def _finish_reason(self, index: int) -> str | None:
        reason, (_, calls) = super()._finish_reason(index), self._read(index)
        return "tool_calls" if reason == "stop" and calls and calls[-1].complete else reason

    def _content(self, index: int) -> dict[str, Any]:
        content, calls = self._read(index)
        message = {"role": "assistant", "content": content or (None if calls else "")}
        return {
            "message": message
            | ({"tool_calls": [self._call(index, *one) for one in enumerate(calls)]} if calls else {})
        }

    def _delta_content(self, delta: ChoiceDelta) -> dict[str, Any]:
        if delta.opening:
            return super()._delta_content(delta)
        (content, calls), (sent, sent_calls) = self._read(delta.index), self._sent[delta.index]
        self._sent[delta.index] = content, calls
        added = []
        for number, call in enumerate(calls):
            if number >= len(sent_calls):
                added.append({"index": number} | self._call(delta.index, number, call))
            elif arguments := call.arguments.removeprefix(sent_calls[number].arguments):
                added.append({"index": number, "function": {"arguments": arguments}})
        new = content[len(sent) :]
        return {"delta": ({"content": new} if new else {}) | ({"tool_calls": added} if added else {})}

    def _call(self, index: int, number: int, call: ToolCall) -> dict[str, Any]:
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": self._ids[index, number], "type": "function", "function": function}


def _choice(
    index: int, content: dict[str, Any], logprobs: dict[str, Any] | None, finish_reason: str | None
) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish_reason}


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
