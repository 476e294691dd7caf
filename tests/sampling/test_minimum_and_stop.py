"""A text ends at the first stop string that is complete after `min_new_tokens` tokens, wherever it begins."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from gpt_cli.config import TokenizerConfig
from gpt_cli.sampling import SamplingParams, stream_batches
from gpt_cli.sampling.beam import Hypothesis, beam_search
from gpt_cli.sampling.prompt import Opening
from gpt_cli.sampling.text_stream import TextStream
from gpt_cli.tokenizer import CharTokenizer, Tokenizer, train_tokenizer
from tests.support.tiny_gpt import make_model

BPE = train_tokenizer(["abcabé bcaéc aabcab cabcba " * 5], TokenizerConfig(kind="bpe", vocab_size=266))
BYTES = [token for token in range(BPE.vocab_size) if BPE.token_bytes(token) in (b"\xc3", b"\xa9")]  # of é
LONG = [token for token in range(BPE.vocab_size) if len(BPE.token_bytes(token)) > 1]
TOKENS = st.lists(st.sampled_from([*LONG, *(int(BPE.encode(one)[0]) for one in "abc"), *BYTES]), max_size=12)
STOPS = st.lists(st.text("abcé\ufffd", min_size=1, max_size=5), max_size=3, unique=True)


def reference(tokenizer: Tokenizer, tokens: Sequence[int], stops: Sequence[str], least: int) -> tuple[str, int, bool]:
    """(the text, its number of tokens, whether a stop string ended it), tried at each token and each character."""
    before = ""
    for n in range(1, len(tokens) + 1):
        data = b"".join(map(tokenizer.token_bytes, tokens[:n]))
        whole = n == len(tokens)
        text = data.decode(errors="replace") if whole else data[: _complete(data)].decode(errors="replace")
        for end in range(len(before) + 1, len(text) + 1) if n > least else ():
            if found := [stop for stop in stops if text[:end].endswith(stop)]:
                return text[: end - max(map(len, found))], n, True
        before = text
    return before, len(tokens), False


def _complete(data: bytes) -> int:
    """The bytes of `data` without an é that has begun at its end."""
    return len(data) - data.endswith("é".encode()[:1])


@given(TOKENS, STOPS, st.integers(0, 8))
@example([*b"ababa"], ["aba"], 3)  # the second one overlaps the first, which is complete too early
@example([*b"abcx"], ["bc", "abcd"], 3)  # a short one that is complete too early lies within what is held back
@example([*b"abcd"], ["bc", "abcd"], 3)
def test_a_text_ends_at_the_first_stop_string_that_is_complete_after_the_minimum(
    tokens: list[int], stops: list[str], least: int
) -> None:
    expected, n, stopped = reference(BPE, tokens, stops, least)
    stream = TextStream(BPE, SamplingParams(stop=tuple(stops), min_new_tokens=least))
    taken = []
    for token in tokens:
        stream.push(token)
        taken.append(stream.take_new())
    stream.finish("length")
    taken.append(stream.take_new())
    assert ("".join(taken), stream.text(), len(stream.tokens)) == (expected, expected, n)
    assert stream.finish_reason == ("stop" if stopped else "length")
    together = TextStream(BPE, SamplingParams(stop=tuple(stops), min_new_tokens=least))
    together.extend(tokens)
    together.finish("length")
    assert (together.text(), together.tokens) == (stream.text(), stream.tokens)


@pytest.mark.parametrize("least", [0, 1, 3, 5])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_search_ends_its_texts_there_too(least: int, size: int) -> None:
    tokenizer, prompt = CharTokenizer("ab."), [0]
    model = make_model(tokenizer.vocab_size, init_std=0.3)
    endless = SamplingParams(max_new_tokens=9, beams=6, min_new_tokens=least)
    begin = max(0, least + 1 - size)
    stops = tuple(
        {text.text()[begin : begin + size] for text in next(stream_batches(model, tokenizer, [prompt], endless, 2))}
    )

    def ends(text: Hypothesis) -> bool:
        return reference(tokenizer, text.tokens, stops, least)[2]

    with torch.inference_mode():
        hypotheses = beam_search(model, [Opening(prompt)], endless, (), ends)
    expected = [reference(tokenizer, text.tokens, stops, least) for text in hypotheses]
    texts = next(stream_batches(model, tokenizer, [prompt], endless.replace({"stop": stops}), 6))
    assert [(text.text(), len(text.tokens), text.finish_reason == "stop") for text in texts] == expected
    assert [tuple(text.tokens) for text in texts] == [text.tokens for text in hypotheses]
    cut = [len(text) for text, _, stopped in expected if stopped]
    assert min(cut) <= begin
