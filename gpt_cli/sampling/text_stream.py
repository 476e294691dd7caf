"""A stream of text from tokens: whole characters, and no part of a stop string. Without torch."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple

from gpt_cli.sampling.constraint import Matcher
from gpt_cli.sampling.prompt import Opening
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.tokenizer import StreamDecoder, Tokenizer

if TYPE_CHECKING:
    from gpt_cli.sampling.heal import PromptHealer

FinishReason = Literal["length", "stop", "end_of_text", "match", "dead_end"]


class TextStream:
    """A text that is being generated.

    Iterating yields its pieces as they come, from the first one each time; `text()` and `str()` wait for all. Texts of
    one batch are generated together: waiting for one also advances the others.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: SamplingParams,
        prompt: Sequence[int] = (),
        steps: Iterator[bool] | None = None,
    ) -> None:
        """Each of `steps` advances the text. None: the caller does, by `push` or `extend`."""
        self.tokens: list[int] = []
        """Tokens generated so far, including those of a stop string and end-of-text."""
        self.finish_reason: FinishReason | None = None
        """`max_new_tokens`, a stop string, end-of-text, a constraint that is satisfied, or one that no token of the
        vocabulary can go on to satisfy; None while it is generated."""
        self._min_new_tokens, self._max_new_tokens = sampling.min_new_tokens, sampling.max_new_tokens
        self._matcher: Matcher | None = None
        self._log_probs: list[float] | None = [] if sampling.log_probs else None
        self._ends = tokenizer.end_ids
        self._decoder = StreamDecoder(tokenizer, prompt)
        self._stop = StopMatcher(sampling.stop)
        self._steps = steps or iter(())
        self._pieces: list[str] = []
        self._n_taken = 0

    def __iter__(self) -> Iterator[str]:
        read, running = 0, True
        while running or read < len(self._pieces):
            if read < len(self._pieces):
                yield self._pieces[read]
                read += 1
            else:
                running = self.finish_reason is None and next(self._steps, False)

    def take_new(self) -> str:
        """The text that became final since the last call."""
        first, self._n_taken = self._n_taken, len(self._pieces)
        return "".join(self._pieces[first:])

    def text(self) -> str:
        """The whole text, without the prompt."""
        return "".join(self)

    @property
    def log_probs(self) -> list[float] | None:
        """Log-probability of each of `tokens` in nats, before any filter. None: not requested."""
        return None if self._log_probs is None else self._log_probs[: len(self.tokens)]

    def __str__(self) -> str:
        return self.text()

    def begin(self, opening: Opening, matcher: Matcher | None = None, log_probs: list[float] | None = None) -> None:
        """Begin with `opening`, which may have the first token; `log_probs` are to grow with the tokens.

        The text advances its `matcher` by each token.
        """
        self._matcher, self._log_probs = matcher, log_probs
        if matcher is not None:
            matcher.begin(opening.new_bytes)
        for token in opening.new_tokens:
            self._append(token, self._decoder.push_bytes(opening.new_bytes))

    def push(self, token: int) -> None:
        """Append `token`; does nothing once the text has ended."""
        if self.finish_reason is None:
            if self._matcher is not None:
                self._matcher.accept(token)
            self._append(token, None)

    def _append(self, token: int, piece: str | None) -> None:
        """Append `token`, with the text `piece`; None: what the decoder makes of it."""
        if self._matcher is not None and self._matcher.rejected_last:
            self.finish("dead_end" if self._matcher.stuck else "end_of_text" if token in self._ends else "match")
            return
        self.tokens.append(token)
        if token in self._ends:
            self.finish("end_of_text")
            return
        piece = self._decoder.push(token) if piece is None else piece
        self._add(self._stop.push(piece, counts=self._may_stop))
        if self._stop.found:
            self.finish_reason = "stop"
        elif self._matcher is not None and self._matcher.finished:
            self.finish("match")
        elif len(self.tokens) == self._max_new_tokens:
            self.finish("length")

    def extend(self, tokens: Sequence[int]) -> None:
        """Append several tokens, like `push` for each, but in fewer pieces."""
        plain = self._matcher is None and not self._stop.strings
        if self.finish_reason is None and plain and self._ends.isdisjoint(tokens):
            left = self._max_new_tokens - len(self.tokens)
            self.tokens.extend(tokens[:left])
            self._add(self._decoder.extend(tokens[:left]))
            if len(self.tokens) == self._max_new_tokens:
                self.finish("length")
            return
        for token in tokens:
            self.push(token)

    def finish(self, reason: FinishReason) -> None:
        """End the text, unless it has ended, and release what was held back as a possible stop string."""
        if self.finish_reason is None:
            self._add(self._stop.push(self._decoder.flush(), counts=self._may_stop) + self._stop.flush())
            self.finish_reason = "stop" if self._stop.found else reason

    @property
    def _may_stop(self) -> bool:
        """True if a stop string that is complete with the last token ends the text: of a constrained one, a match."""
        return len(self.tokens) > self._min_new_tokens and (self._matcher is None or self._matcher.matches)

    def _add(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)


class StartedBatch(NamedTuple):
    """A batch of texts as an engine generates it."""

    matchers: Sequence[Matcher | None]
    log_probs: Sequence[list[float] | None]
    """Lists that grow with the tokens. None: not requested."""
    chunks: Iterator[Sequence[Sequence[int]]]
    """Some steps at a time, each the next token of each text; of one that has ended it is meaningless."""


Start = Callable[[Sequence[Opening], Sequence[int], Set[int]], StartedBatch]
"""Openings, sample numbers, and the rows of the texts that have not ended, kept up to date -> a batch."""


def stream_batch(
    tokenizer: Tokenizer,
    sampling: SamplingParams,
    start: Start,
    healer: "PromptHealer | None",
    prompts: Sequence[Sequence[int]],
    samples: Sequence[int],
) -> list[TextStream]:
    """A continuation of each prompt, generated as one batch while they are being read.

    Row i is sample samples[i] of its prompt. `healer` heals the ends of the prompts.
    """

    def steps() -> Iterator[bool]:
        openings = [Opening(prompt) for prompt in prompts] if healer is None else healer.draw(prompts, samples)
        running = set(range(len(texts)))
        batch = start(openings, samples, running)
        for text, opening, matcher, log_probs in zip(texts, openings, *batch[:2], strict=True):
            text.begin(opening, matcher, log_probs)
        for chunk in chain([()], batch.chunks):
            for row in sorted(running):
                texts[row].extend([step[row] for step in chunk])
                if texts[row].finish_reason is not None:
                    running.remove(row)
            yield True
            if not running:
                return
        for text in texts:
            text.finish("length")

    shared = steps()
    texts = [TextStream(tokenizer, sampling, prompt, shared) for prompt in prompts]
    return texts


def in_batches(
    prompts: Sequence[Sequence[int]],
    n: int,
    limit: int,
    sample: Callable[[Sequence[Sequence[int]], Sequence[int]], list[TextStream]],
) -> Iterator[list[TextStream]]:
    """`n` texts of each prompt, generated in batches of at most `limit`: of several prompts, or of a part of the `n`.

    `sample(rows, samples)` returns the texts of a batch, of which row i is sample samples[i] of its prompt. Equal
    prompts share one numbering: see `first_samples`.
    """
    size, numbers = max(1, limit // n), first_samples(prompts, n)
    for first in range(0, len(prompts), size):
        group = prompts[first : first + size]
        rows = [prompt for prompt in group for _ in range(n)]
        samples = [number + i for number in numbers[first : first + size] for i in range(n)]
        texts: list[TextStream] = []
        for start in range(0, len(rows), limit):
            texts += sample(rows[start : start + limit], samples[start : start + limit])
        for start in range(0, len(texts), n):
            yield texts[start : start + n]


def first_samples(prompts: Sequence[Sequence[int]], n: int) -> list[int]:
    """The number of the first of the `n` samples of each prompt: k * n after k equal prompts, which so are drawn
    independently."""
    seen = Counter[tuple[int, ...]]()
    numbers = []
    for prompt in prompts:
        tokens = tuple(prompt)
        numbers.append(n * seen[tokens])
        seen[tokens] += 1
    return numbers


class StopMatcher:
    """Cuts a text before the first stop string that is complete, however the text is cut into pieces.

    If two are complete at the same character, the longer one counts. The results of `push` and, at the end, `flush`,
    joined, are the text up to there.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self.found = False
        self.strings = stop
        self._held = ""

    def push(self, piece: str, *, counts: bool = True) -> str:
        """Add `piece`; returns the text that can no longer become part of a stop string.

        A stop string that is complete within a piece that does not count is text like any other.
        """
        if self.found:
            return ""
        n_before, text = len(self._held), self._held + piece
        begins = [(text.find(stop, max(0, n_before - len(stop) + 1)), stop) for stop in self.strings if counts]
        ends = [(begin + len(stop), begin) for begin, stop in begins if begin >= 0]
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)[1]]
        certain = len(text) - self._longest_start(text)
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """The text held back, when no more comes."""
        held, self._held = self._held, ""
        return held

    def _longest_start(self, text: str) -> int:
        """The number of characters at the end of `text` that could become a stop string."""
        lengths = (k for stop in self.strings for k in range(len(stop) - 1, 0, -1) if text.endswith(stop[:k]))
        return max(lengths, default=0)
