"""Text from tokens, piece by piece: whole characters only, and never a part of a stop string. Without torch."""

from collections.abc import Iterator, Sequence
from typing import Literal

from gpt_cli.sampling.constraint import Matcher
from gpt_cli.tokenizer import StreamDecoder, Tokenizer

FinishReason = Literal["length", "stop", "end_of_text", "match"]


class TextStream:
    """A text while it is being written.

    Iterating gives its pieces as they come, from the first one each time; `text()` and `str()` wait for all.
    Texts of one batch are written together: waiting for one also brings the others forward.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str],
        steps: Iterator[bool],
        *,
        min_new_tokens: int = 0,
        matcher: Matcher | None = None,
        log_probs: list[float] | None = None,
    ) -> None:
        self.tokens: list[int] = []
        """Generated so far; the tokens of the stop string and the end of the text are among them."""
        self.finish_reason: FinishReason | None = None
        """Why the text ended: `max_new_tokens`, a stop string, the model itself, or a pattern that it matches.
        None: it has not."""
        self._min_new_tokens = min_new_tokens
        self._matcher = matcher
        self._log_probs = log_probs
        self._end_of_text = tokenizer.eot_id
        self._decoder = StreamDecoder(tokenizer)
        self._stop = StopMatcher(stop)
        self._steps = steps
        self._pieces: list[str] = []
        self._taken = 0

    def __iter__(self) -> Iterator[str]:
        read, running = 0, True
        while running or read < len(self._pieces):
            if read < len(self._pieces):
                yield self._pieces[read]
                read += 1
            else:
                running = self.finish_reason is None and next(self._steps, False)

    def taken(self) -> str:
        """The text that became final since the last call, for the caller of `push`."""
        first, self._taken = self._taken, len(self._pieces)
        return "".join(self._pieces[first:])

    def text(self) -> str:
        """All of it, without the prompt."""
        return "".join(self)

    @property
    def log_probs(self) -> list[float] | None:
        """Log-probability of each of `tokens` in nats, before any filter. None: not requested."""
        return None if self._log_probs is None else self._log_probs[: len(self.tokens)]

    def __str__(self) -> str:
        return self.text()

    def push(self, token: int) -> None:
        """Continue with `token`; once the text has ended, nothing changes it."""
        if self.finish_reason is not None:
            return
        if self._matcher is not None and self._matcher.rejected_last:
            self.finish("end_of_text" if token == self._end_of_text else "match")
            return
        self.tokens.append(token)
        if token == self._end_of_text:
            self.finish("end_of_text")
            return
        piece = self._decoder.push(token)
        self._add(piece if len(self.tokens) <= self._min_new_tokens else self._stop.push(piece))
        if self._stop.found:
            self.finish_reason = "stop"
        elif self._matcher is not None and self._matcher.finished:
            self.finish("match")

    def extend(self, tokens: Sequence[int]) -> None:
        """Continue with several tokens; the text is that of pushing each, in fewer pieces."""
        if self.finish_reason is None and not self._stop.strings and self._end_of_text not in tokens:
            self.tokens.extend(tokens)
            self._add(self._decoder.extend(tokens))
            return
        for token in tokens:
            self.push(token)

    def finish(self, reason: FinishReason) -> None:
        """End the text, unless it has ended: what was held back belongs to it after all."""
        if self.finish_reason is None:
            self._add(self._stop.push(self._decoder.flush()) + self._stop.flush())
            self.finish_reason = "stop" if self._stop.found else reason

    def _add(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)


class StopMatcher:
    """Cuts a text before the first stop string to be complete, wherever the borders of its pieces are.

    Where two are complete at the same character, the longer one counts. What `push` and at the end `flush`
    return, joined, is the text up to there.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self.found = False
        self.strings = stop
        self._held = ""

    def push(self, piece: str) -> str:
        """The text that `piece` makes certain: neither part of a stop string nor, yet, the start of one."""
        if self.found:
            return ""
        text = self._held + piece
        begins = [(text.find(stop), stop) for stop in self.strings]
        ends = [(begin + len(stop), begin) for begin, stop in begins if begin >= 0]
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)[1]]
        certain = len(text) - self._longest_start(text)
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """The text held back, for a text that ends here."""
        held, self._held = self._held, ""
        return held

    def _longest_start(self, text: str) -> int:
        """The number of characters at the end of `text` that could become a stop string."""
        lengths = (k for stop in self.strings for k in range(len(stop) - 1, 0, -1) if text.endswith(stop[:k]))
        return max(lengths, default=0)
