"""`text_offset` of a token is where its first byte is in the text that is sent, whatever the bytes are."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fastapi")

from gpt_cli.sampling import SamplingParams
from gpt_cli.sampling.prompt import Opening
from gpt_cli.serve.generation_request import GenerationRequest
from gpt_cli.serve.text_sequence import ChoiceDelta, TextSequence, join_deltas
from gpt_cli.serve.token_logprobs import TokenPlaces
from gpt_cli.tokenizer import ByteTokenizer, StreamDecoder, Tokenizer
from tests.support.export_models import TOKENIZERS
from tests.support.foreign_gguf import foreign_tokenizer

TOKENIZER_OF: dict[str, Tokenizer] = {
    "byte": ByteTokenizer(),
    "bpe": TOKENIZERS["bpe"],
    "foreign": foreign_tokenizer("bpe"),
    "char": TOKENIZERS["char"],
}
BYTES = [*"aé€😀".encode(), *"\ufffd".encode(), 0x80, 0xBF, 0xC0, 0xE0, 0xED, 0xA0, 0xF0, 0xF4, 0x90, 0xFF]


def places(pieces: list[bytes]) -> tuple[str, list[int]]:
    """(the text of the pieces, the character in which each begins), by the strict decoder, character by character."""
    data, text, characters = b"".join(pieces), "", []
    while data:
        sizes = (size for size in range(1, 5) if _is_character(data[:size]))
        if (size := next(sizes, 0)) == 0:
            try:
                data.decode()
            except UnicodeDecodeError as error:
                size = error.end
        characters += [len(text)] * size
        text += data[:size].decode(errors="replace")
        data = data[size:]
    begins = (sum(map(len, pieces[:i])) for i in range(len(pieces)))
    return text, [[*characters, len(text)][begin] for begin in begins]


def _is_character(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


def tokens_of(kind: str) -> st.SearchStrategy[list[int]]:
    """Tokens whose bytes are mostly the parts of characters, and some of several characters."""
    tokenizer = TOKENIZER_OF[kind]
    if kind == "char":
        return st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12)
    single = {tokenizer.token_bytes(token): token for token in range(256)}
    parts = st.sampled_from([single[bytes([byte])] for byte in BYTES])
    others = st.sampled_from([token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token)])
    return st.lists(parts | others, max_size=12)


@pytest.mark.parametrize("kind", TOKENIZER_OF)
@given(data=st.data(), chunk=st.integers(1, 4))
def test_a_generated_token_is_where_its_first_byte_is(kind: str, data: st.DataObject, chunk: int) -> None:
    tokenizer, echo = TOKENIZER_OF[kind], "a prompt"
    tokens = [token for token in data.draw(tokens_of(kind)) if token not in tokenizer.end_ids]
    text, expected = places([tokenizer.streamed_bytes(token) for token in tokens])
    whole = generate(tokenizer, [tokens[i : i + chunk] for i in range(0, len(tokens), chunk)], len(echo))
    assert whole.text == text
    shown = [(token, len(echo) + place) for token, place in zip(tokens, expected, strict=True) if place < len(text)]
    assert [(one.entry.token, one.text_offset) for one in whole.logprobs] == shown


def generate(tokenizer: Tokenizer, chunks: list[list[int]], n_character: int) -> ChoiceDelta:
    """All deltas of a sequence that gets its tokens from the engine in these chunks, joined."""
    slot = SimpleNamespace(single_step=True, matcher=None)
    model: Any = SimpleNamespace(tokenizer=tokenizer, engine=SimpleNamespace(join=lambda _: slot))
    request, nowhere = GenerationRequest(model, [], SamplingParams(max_new_tokens=1000), n_top=0), cast("Any", None)
    sequence = TextSequence(request, Opening([]), nowhere, n_character=n_character)
    sequence.join_engine()
    logits = np.zeros(tokenizer.vocab_size, np.float32)
    deltas = []
    for chunk in chunks:
        sequence.append([(token, logits) for token in chunk])
        deltas.append(sequence.take_delta())
    (whole,) = join_deltas([*filter(None, deltas), sequence.abort("length")])
    return whole


@pytest.mark.parametrize("kind", TOKENIZER_OF)
@given(data=st.data())
def test_a_token_of_an_echoed_prompt_is_where_its_first_byte_is_special_ones_too(
    kind: str, data: st.DataObject
) -> None:
    tokenizer = TOKENIZER_OF[kind]
    special = st.sampled_from(sorted(tokenizer.end_ids)) if tokenizer.end_ids else st.nothing()
    drawn = data.draw(st.lists(tokens_of(kind) | special.map(lambda token: [token]), max_size=4))
    tokens = [token for part in drawn for token in part]
    pieces = [tokenizer.token_bytes(token) or tokenizer.decode([token]).encode() for token in tokens]
    text, expected = places(pieces)
    decoder = TokenPlaces(StreamDecoder(tokenizer, special=True))
    assert [decoder.place(token) for token in tokens] == expected
    assert text == tokenizer.decode(tokens)


def test_the_token_that_ends_a_text_is_at_its_end() -> None:
    tokenizer = TOKENIZER_OF["foreign"]
    end = min(tokenizer.end_ids)
    half = next(token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token) == "€".encode()[:1])
    whole = generate(tokenizer, [[half], [end]], 0)
    assert (whole.text, [one.text_offset for one in whole.logprobs]) == ("\ufffd", [0, 1])
