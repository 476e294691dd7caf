"""One text of an answer while it is sent: what of it can be sent now, and where its tokens begin."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpt_cli.serve.active_sequence import SequenceChunk, TokenLogprob
from gpt_cli.serve.model_registry import ServedModel
from gpt_cli.tokenizer import StreamDecoder


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
    """The text and log-probabilities that a chunk adds to the choice `index`. The first is its `opening`."""

    index: int
    text: str
    logprobs: list[OffsetLogprob]
    finish_reason: str | None
    opening: bool = False


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

    def opening(self, index: int, prompt_logprobs: Sequence[TokenLogprob]) -> ChoiceDelta:
        """The delta before any chunk: the prompt, if the request wants it, with its log-probabilities."""
        places = TokenPlaces(StreamDecoder(self.model.tokenizer, special=True))
        entries = [OffsetLogprob(places.place(entry.token), entry) for entry in prompt_logprobs]
        return ChoiceDelta(index, self.echo, entries, self.finish_reason, opening=True)

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
