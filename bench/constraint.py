"""Measure constrained text: the time of a mask, and what constrained texts cost a free one beside them.

    python -m bench.constraint --tokenizer FOLDER

FOLDER has a tokenizer, such as GPT-2's encoder.json and vocab.bpe. The first table has the microseconds of a mask and
of the advance by a token, on average over `--tokens` random tokens. The second has the tokens/s of one free text that
is generated in the server's batch beside 15 others, free ones or constrained ones, with an untrained model of about
5M parameters and 256 tokens; medians of `--rounds` rounds in turn. A constrained text that ends is followed by
another, with a shorter context than that of a free text.
"""

import argparse
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.common import in_turn, medians, show, write_record
from gpt_cli.config import ModelConfig
from gpt_cli.cpu.decode.decoder import NativeDecoder
from gpt_cli.cpu.decode.numpy_sampler import TokenChoice
from gpt_cli.cpu.decode.seats import ContinuousBatch, Seat
from gpt_cli.cpu.decode.weights import read_weights
from gpt_cli.model.gpt import GPT
from gpt_cli.run.arrays import unpack_arrays
from gpt_cli.run.tensors import pack_tensors
from gpt_cli.sampling import SamplingParams
from gpt_cli.sampling.constraint import Constraint, Matcher, compile_constraint, write_masks
from gpt_cli.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "JSON schema": {"json_schema": {"type": "array", "items": PERSON}},
    "regex": {"regex": r"([A-Z][a-z]{1,9}( [a-z]{1,9}){2,12}[.!?] )*"},
}
BESIDE = 15
ROUND = 8  # steps of free texts alone, about the 25 ms that the scheduler gives a round
SHAPE = ModelConfig(n_layer=6, n_head=4, n_embd=256, context_length=256, zero_init=False)


def constraint_of(tokenizer: Tokenizer, options: dict[str, Any]) -> Constraint:
    """Compile a constraint."""
    constraint = compile_constraint(tokenizer, SamplingParams().replace(options))  # type: ignore[arg-type]
    assert constraint is not None
    return constraint


def mask_microseconds(tokenizer: Tokenizer, constraint: Constraint, tokens: int) -> float:
    """Return the mean time of a mask and the advance by a random allowed token; a text that ends begins anew."""
    random = np.random.default_rng(0)
    matcher, spent, measured = constraint.matcher(), 0.0, 0
    while measured < tokens:
        started = time.perf_counter()
        mask = matcher.mask()
        spent += time.perf_counter() - started
        bits = np.ones(tokenizer.vocab_size) if mask is None else np.unpackbits(mask.view(np.uint8), bitorder="little")
        token = int(random.choice(np.flatnonzero(bits)))
        started = time.perf_counter()
        matcher.accept(token)
        spent += time.perf_counter() - started
        measured += 1
        if matcher.finished or matcher.stuck:
            matcher = constraint.matcher()
    return 1e6 * spent / measured


def free_text_rate(batch: ContinuousBatch, constraint: Constraint | None, tokens: int) -> float:
    """Return tokens/s of a free text beside `BESIDE` texts under `constraint`, None: free ones, as the server steps."""
    numbers = count()

    def join(constraint: Constraint | None) -> tuple[Seat, Matcher | None]:
        mask, matcher = (None, None) if constraint is None else (constraint.masks(1)[0], constraint.matcher())
        return Seat(batch, [1, 2, 3, 4], next(numbers), TokenChoice(1.0), mask=mask), matcher

    texts, written = [join(None), *(join(constraint) for _ in range(BESIDE))], 0
    started = time.perf_counter()
    while written < tokens:
        masked = [(seat.mask, matcher) for seat, matcher in texts if seat.mask is not None]
        write_masks([mask for mask, _ in masked], [matcher for _, matcher in masked])
        steps = 1 if masked else min(ROUND, tokens - written)
        columns = batch.step([seat for seat, _ in texts], steps, 256)
        written += len(columns[0])
        for i, column in enumerate(columns):
            if (matcher := texts[i][1]) is not None:
                for token in (token for token in column if token is not None):
                    matcher.accept(token)
                if matcher.finished or matcher.stuck:
                    texts[i] = join(constraint)
    return tokens / (time.perf_counter() - started)


def batch_of(tokenizer: Tokenizer) -> ContinuousBatch:
    """The batch of the server's engine, with an untrained model."""
    torch.manual_seed(0)
    model = GPT(SHAPE, tokenizer.vocab_size)
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
    arrays = unpack_arrays(pack_tensors(model.state_dict()), "model")
    return ContinuousBatch(NativeDecoder(read_weights(SHAPE, tokenizer.vocab_size, arrays)))


def main() -> None:
    """Measure, print two tables, write a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    tokenizer = ByteTokenizer() if options.tokenizer is None else load_tokenizer(options.tokenizer)
    compiled = {name: constraint_of(tokenizer, given) for name, given in CONSTRAINTS.items()}
    masks = {name: mask_microseconds(tokenizer, constraint, options.tokens) for name, constraint in compiled.items()}
    show(f"a mask of {tokenizer.vocab_size:,} tokens", "us", masks)

    small = ByteTokenizer()
    batch = batch_of(small)

    def beside(constraint: Constraint | None) -> Callable[[], float]:
        return lambda: free_text_rate(batch, constraint, options.tokens)

    ways = {"free": beside(None)} | {name: beside(constraint_of(small, given)) for name, given in CONSTRAINTS.items()}
    rates = in_turn(ways, options.rounds, warm_up=True)
    show(f"a free text beside {BESIDE}", "tokens/s", medians(rates))
    write_record("constraint", None, {"masks": masks, "rates": rates})


if __name__ == "__main__":
    main()
