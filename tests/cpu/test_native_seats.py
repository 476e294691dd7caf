"""Texts that join and leave a batch at any token: each is, to the last bit, the text that is written alone."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.cpu.decode.decoder import NativeDecoder
from gpt_cli.cpu.decode.numpy_sampler import TokenChoice
from gpt_cli.cpu.decode.seats import ContinuousBatch, Seat
from gpt_cli.cpu.decode.weight_formats import FORMATS
from tests.support.native import decode_with_logits
from tests.support.native_model import CONTEXT, VOCAB_SIZE, make_model, weights_of

CHOICES = [
    TokenChoice(1.0),
    TokenChoice(0.0),
    TokenChoice(0.7, top_k=5, banned_tokens=(3,)),
    TokenChoice(1.3, top_p=0.8, end_tokens=(4, 9)),
    TokenChoice(1.0, min_p=0.1, top_k=9),
]
MODEL = weights_of(make_model(n_layer=2))
LONGEST = 45  # twice the context, and more
PROMPTS = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=CONTEXT + 9)


@st.composite
def visits(draw: Any) -> list[dict[str, Any]]:
    """Texts with the round in which each joins, how many tokens it stays for, and how it is written."""
    visit = st.fixed_dictionaries(
        {
            "prompt": PROMPTS,
            "joins": st.integers(0, 30),
            "stays": st.integers(1, LONGEST),
            "seed": st.integers(0, 2**32 - 1),
            "choice": st.sampled_from(CHOICES),
            "mode": st.sampled_from(["free", "shown", "left"]),
        }
    )
    return list(draw(st.lists(visit, min_size=1, max_size=24)))


def alone(decoder: NativeDecoder, visit: dict[str, Any], steps: int) -> tuple[list[int], Any]:
    writing = decoder.start([visit["prompt"]], [visit["seed"]], visit["choice"])
    tokens, logits = decode_with_logits(writing, steps)
    return [step[0] for step in tokens], logits[: len(tokens), 0]


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=25)
@given(visits=visits(), data=st.data())
def test_a_text_is_the_same_whoever_joins_and_leaves_beside_it(
    format: Any, threads: int, visits: list[dict[str, Any]], data: st.DataObject
) -> None:
    decoder = NativeDecoder(MODEL, format=format, threads=threads)
    expected = [alone(decoder, visit, visit["stays"]) for visit in visits]
    batch, seats = ContinuousBatch(decoder), dict[int, Seat]()
    written: list[list[int]] = [[] for _ in visits]
    logit_rows: list[list[Any]] = [[] for _ in visits]
    for turn in range(10_000):
        for i, visit in enumerate(visits):
            if visit["joins"] == turn:
                mode = visit["mode"]
                seats[i] = Seat(
                    batch,
                    visit["prompt"],
                    visit["seed"],
                    visit["choice"],
                    keep_logits=mode == "shown",
                    caller_samples=mode == "left",
                )
        if not seats and all(visit["joins"] <= turn for visit in visits):
            break
        seated = list(seats)
        single = any(seats[i].keeps_logits for i in seated)
        steps = 1 if single or not seated else min(3, *(visits[i]["stays"] - len(written[i]) for i in seated))
        actual = batch.step([seats[i] for i in seated], steps, data.draw(st.integers(1, 40)) if turn < 40 else 40)
        for i, tokens in zip(seated, actual, strict=True):
            for token in tokens:
                if seats[i].keeps_logits:
                    logit_rows[i].append(seats[i].logits())
                if token is None:  # as whoever chooses finds it
                    token = expected[i][0][len(written[i])]
                    seats[i].accept(token)
                written[i].append(token)
            ends = visits[i]["choice"].end_tokens
            if written[i] and (len(written[i]) == visits[i]["stays"] or written[i][-1] in ends):
                del seats[i]
    assert written == [tokens for tokens, _ in expected]
    for i, logits in enumerate(logit_rows):
        if logits:
            np.testing.assert_array_equal(np.array(logits), expected[i][1])
