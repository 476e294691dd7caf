"""Prompts that end anywhere: every engine writes what a brute force over the whole vocabulary writes.

The reference compares the bytes of all tokens, computes without a cache, and knows no prompts in tokens.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gpt_cli
from gpt_cli.cli.main import main
from gpt_cli.config import ModelConfig, TokenizerConfig
from gpt_cli.literals import Pattern
from gpt_cli.model.gpt import GPT
from gpt_cli.sampling import Sampler, SamplingParams
from gpt_cli.sampling.filters import GumbelNoise, filter_logits, next_token
from gpt_cli.serve.limits import Limits
from gpt_cli.serve.model_registry import EngineOptions
from gpt_cli.shuffle import derive_seed
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.tokenizer.base import TokenPrefixes
from gpt_cli.tokenizer.trainer import train_tokenizer
from tests.support.live_server import make_run, serving
from tests.support.tiny_gpt import reference_logits

SHAPE = ModelConfig(n_layer=2, n_embd=16, n_head=2, context_length=16, zero_init=False, init_std=0.5)
SEED, LENGTH, PER_VOCABULARY = 4, 6, 21
WORDS = ("a", "ab", "abc", "cab", "bca", "aé", "éa", "b", "bb", "    ", "\n", "\n\n", "ca", "é")
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 3},
    {"temperature": 1.5, "top_p": 0.8, "min_p": 0.02},
]


SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.system) for seed in range(2, 25))]


@dataclass
class Written:
    """What the reference writes."""

    new_bytes: bytes = b""
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    def text(self) -> str:
        return self.new_bytes.decode(errors="replace")


def taken_back(pieces: Sequence[bytes], ids: Sequence[int]) -> int:
    """The largest number of last tokens whose bytes a longer token begins with."""
    ends = {count: b"".join(pieces[token] for token in ids[-count:]) for count in range(1, len(ids) + 1)}
    return max(
        (n for n, end in ends.items() if any(len(piece) > len(end) and piece.startswith(end) for piece in pieces)),
        default=0,
    )


def agrees(piece: bytes, rest: bytes) -> bool:
    return bool(piece) and (piece.startswith(rest) or rest.startswith(piece))


def logits_after(model: GPT, tokenizer: Tokenizer, tokens: Sequence[int]) -> Tensor:
    """(1, V), in the window that sampling sees: of a prompt the last tokens; what is healed begins anew."""
    assert tokenizer.eot_id is not None
    window = list(tokens)[-model.config.context_length :] or [tokenizer.eot_id]
    return reference_logits(model, [window])


def heal_noise(sample: int, vocab_size: int, steps: int) -> Tensor:
    generator = torch.Generator().manual_seed(derive_seed(SEED, "heal", sample))
    exponential = -torch.log1p(-torch.rand(steps, vocab_size, generator=generator))
    return -exponential.clamp_min(2.0**-25).log()


def reference(
    model: GPT, tokenizer: Tokenizer, prompt: str, sampling: SamplingParams, sample: int, *, healing: bool = True
) -> Written:
    pieces = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    tokens = [int(token) for token in tokenizer.encode(prompt)]
    count = taken_back(pieces, tokens) if healing else 0
    rest, tokens = b"".join(pieces[token] for token in tokens[len(tokens) - count :]), tokens[: len(tokens) - count]
    written = Written()
    noise = heal_noise(sample, len(pieces), 50)
    for step in range(50):
        if not rest:
            break
        logits = logits_after(model, tokenizer, tokens)
        masked = logits.masked_fill(torch.tensor([not agrees(piece, rest) for piece in pieces]), -math.inf)
        scores = masked if sampling.greedy else filter_logits(masked, sampling) + noise[step]
        token = int(scores.argmax())
        tokens.append(token)
        if len(pieces[token]) > len(rest):
            written = Written(pieces[token][len(rest) :], [token], [float(logits.log_softmax(-1)[0, token])])
        rest = rest[len(pieces[token]) :]
    window = tokens[-model.config.context_length :]
    stream = None if sampling.greedy else GumbelNoise(sampling.seed, [sample], len(pieces), torch.device("cpu"))
    while len(written.tokens) < sampling.max_new_tokens:
        logits = reference_logits(model, [window])
        token = int(next_token(logits, sampling, None if stream is None else stream.draw()))
        window.append(token)
        written.tokens.append(token)
        written.log_probs.append(float(logits.log_softmax(-1)[0, token]))
        if token in tokenizer.end_ids:
            break
        written.new_bytes += pieces[token]
    return written


def make_case(seed: int) -> tuple[GPT, Tokenizer, list[str]]:
    """A model with a random vocabulary of learned pieces, and prompts that end anywhere."""
    random_ = random.Random(seed)

    def text(words: int) -> str:
        return "".join(random_.choice(("", " ", " ")) + random_.choice(WORDS) for _ in range(words))

    patterns: list[Pattern] = ["gpt2", "gpt4", "o200k"]
    pattern, corpus = random_.choice(patterns), text(3000)
    config = TokenizerConfig(kind="bpe", vocab_size=random_.randrange(262, 330), pattern=pattern)
    tokenizer = train_tokenizer([corpus], config)
    torch.manual_seed(seed)
    model = GPT(SHAPE, tokenizer.vocab_size).eval()
    prompts = [text(random_.randrange(1, 25))[: -random_.randrange(1, 3)] or "a" for _ in range(PER_VOCABULARY)]
    return model, tokenizer, [*dict.fromkeys(prompts)]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_engine_heals_a_prompt_as_a_brute_force_over_all_tokens_does(tmp_path: Path, seed: int) -> None:
    model, tokenizer, prompts = make_case(seed)
    run = make_run(tmp_path / "run", tokenizer, seed=seed, shape=SHAPE)  # the same weights
    settings = {"seed": SEED, "max_new_tokens": LENGTH, **SETTINGS[seed % len(SETTINGS)]}
    sampling = SamplingParams(**settings)
    expected = [[reference(model, tokenizer, prompt, sampling, sample) for sample in range(2)] for prompt in prompts]
    unhealed = [reference(model, tokenizer, prompt, sampling, 0, healing=False) for prompt in prompts]
    assert any(one.tokens != other[0].tokens for one, other in zip(unhealed, expected, strict=True))

    engines = {name: gpt_cli.load(run, engine=name) for name in ("native", "torch")}
    for name, sampler in engines.items():
        for prompt, wanted, as_it_is in zip(prompts, expected, unhealed, strict=True):
            text = sampler.generate(prompt, **settings)
            assert "".join(text) == wanted[0].text(), (name, prompt)
            assert text.tokens == wanted[0].tokens
            assert sampler.generate(prompt, heal=False, **settings).text() == as_it_is.text()
        together = sampler.generate_many(prompts, 2, batch_size=7, **settings)
        assert [[text.text() for text in texts] for texts in together] == [[one.text() for one in e] for e in expected]
    recorded = engines["torch"].generate_many(prompts, log_probs=True, **settings)
    for (text,), (one, _) in zip(recorded, expected, strict=True):
        assert text.text() == one.text()
        assert text.log_probs == pytest.approx(one.log_probs, abs=1e-3)


def reference_search(
    model: GPT, tokenizer: Tokenizer, prompt: str, width: int, penalty: float
) -> list[tuple[bytes, tuple[int, ...]]]:
    """(text, tokens) of the likeliest: first a beam search for the end of the prompt, then one for what follows."""
    pieces = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    ids = [int(token) for token in tokenizer.encode(prompt)]
    count = taken_back(pieces, ids)
    kept, end = ids[: len(ids) - count], b"".join(pieces[token] for token in ids[len(ids) - count :])

    def log_probs(tokens: Sequence[int], begun: int) -> Tensor:
        """After a prompt and `begun` tokens of text: the window begins with the last tokens of the prompt."""
        window = list(tokens[: len(tokens) - begun])[-model.config.context_length :] + list(
            tokens[len(tokens) - begun :]
        )
        return reference_logits(model, [window or [tokenizer.eot_id or 0]])[0].log_softmax(-1)

    healed = [(0.0, tuple(kept), end)] if end else []  # and what is still to be written of the prompt
    done = [] if end else [(0.0, tuple(kept), b"")]  # and what was written beyond it
    while healed:
        grown = []
        for total, tokens, rest in healed:
            scores = log_probs(tokens, 0)
            for token, piece in enumerate(pieces):
                if agrees(piece, rest):
                    grown.append((total + float(scores[token]), (*tokens, token), rest, piece))
        candidates = [(total, tokens, b"", new) for total, tokens, new in done] + [
            (total, tokens, rest[len(piece) :], piece[len(rest) :]) for total, tokens, rest, piece in grown
        ]
        likeliest: dict[Any, tuple[float, tuple[int, ...], bytes, bytes]] = {}  # one for each text
        for one in sorted(candidates, key=lambda one: -one[0]):
            likeliest.setdefault(one[1] if one[2] else (one[3], one[1][-1] if one[3] else None), one)
        candidates = list(likeliest.values())[:width]
        done = [(total, tokens, new) for total, tokens, rest, new in candidates if not rest]
        healed = [(total, tokens, rest) for total, tokens, rest, _ in candidates if rest]
    live = [(total, tokens, len(tokens) - bool(new), new) for total, tokens, new in done]  # and where the text begins
    complete = []
    for _ in range(LENGTH):
        full = [one for one in live if len(one[1]) - one[2] == LENGTH]
        complete += full
        grown_texts = []
        for total, tokens, begin, new in live:
            if len(tokens) - begin < LENGTH:
                scores = log_probs(tokens, len(tokens) - begin - bool(new))
                grown_texts += [(total + float(p), (*tokens, token), begin, new) for token, p in enumerate(scores)]
        live = []
        for one in sorted(grown_texts, key=lambda one: -one[0]):
            (complete if one[1][-1] in tokenizer.end_ids else live).append(one)
            if len(live) == width:
                break
    found = sorted(complete + live, key=lambda one: -one[0] / (len(one[1]) - one[2]) ** penalty)[:width]
    texts = []
    for _, tokens, begin, new in found:
        shown = tokens[begin + bool(new) :]
        texts.append((new + b"".join(pieces[token] for token in shown), tokens[begin:]))
    return texts


@pytest.mark.parametrize("seed", SEEDS)
def test_beams_begin_with_the_likeliest_ends_of_the_prompt(seed: int) -> None:
    model, tokenizer, prompts = make_case(seed)
    width, penalty = 1 + seed % 4, (1.0, 0.0, 0.6)[seed % 3]
    sampler = Sampler(model, tokenizer, SamplingParams(max_new_tokens=LENGTH, beams=width, length_penalty=penalty))
    for prompt in prompts:
        expected = reference_search(model, tokenizer, prompt, width, penalty)
        texts = sampler.generate_batch(prompt, width)
        assert [text.text() for text in texts] == [data.decode(errors="replace") for data, _ in expected]
        assert [tuple(text.tokens) for text in texts] == [tokens for _, tokens in expected]


@pytest.mark.system
@pytest.mark.parametrize("engine", ["native", "torch"])
def test_the_server_heals_text_and_leaves_tokens_and_chats_as_they_are(tmp_path: Path, engine: Any) -> None:
    cases = [make_case(seed) for seed in range(25)]
    runs = [make_run(tmp_path / f"run{i}", one[1], seed=i, shape=SHAPE) for i, one in enumerate(cases)]
    with serving(*runs, options=EngineOptions(engine=engine)) as client:
        for i, (model, tokenizer, prompts) in enumerate(cases):
            options = SETTINGS[i % len(SETTINGS)]
            sampling = SamplingParams(**options, seed=SEED, max_new_tokens=LENGTH)
            expected = [
                reference(model, tokenizer, prompt, sampling, sample) for prompt in prompts for sample in (0, 1)
            ]
            body = {"model": runs[i].name, "seed": SEED, "max_tokens": LENGTH, **options}
            answer = client.ask("/v1/completions", prompt=prompts, n=2, **body)[1]
            assert [choice["text"] for choice in answer["choices"]] == [one.text() for one in expected]
            n_prompt = sum(len(tokenizer.encode(prompt)) for prompt in prompts)
            written = sum(len(one.tokens) for one in expected)
            assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (n_prompt, written)

            prompt, wanted = prompts[0], expected[0]
            (choice,) = client.ask("/v1/completions", prompt=prompt, echo=True, logprobs=2, **body)[1]["choices"]
            assert choice["text"] == prompt + wanted.text()
            ids = tokenizer.encode(prompt).tolist()
            assert choice["logprobs"]["ids"] == ids + wanted.tokens
            assert choice["logprobs"]["token_logprobs"][len(ids) :] == pytest.approx(wanted.log_probs, abs=1e-3)
            assert choice["logprobs"]["text_offset"][len(ids)] == len(prompt)
            if not set("".join(choice["logprobs"]["tokens"])) & {"\\", "\ufffd"}:
                assert "".join(choice["logprobs"]["tokens"]).removesuffix("<|endoftext|>") == choice["text"]
            events = client.events("/v1/completions", prompt=prompt, **body)
            assert "".join(part["text"] for event in events for part in event["choices"]) == wanted.text()

            as_it_is = reference(model, tokenizer, prompt, sampling, 0, healing=False).text()
            assert client.text(prompt=ids, **body) == client.text(prompt=prompt, heal=False, **body) == as_it_is


@pytest.mark.system
def test_a_prompt_is_healed_where_nothing_may_wait(tmp_path: Path) -> None:
    model, tokenizer, prompts = make_case(0)
    run = make_run(tmp_path / "run", tokenizer, shape=SHAPE)
    sampling = SamplingParams(seed=SEED, max_new_tokens=LENGTH, temperature=1.0)
    with serving(run, limits=Limits(seats=2, queue=0)) as client:
        expected = reference(model, tokenizer, prompts[0], sampling, 0).text()
        assert client.text(prompt=prompts[0], seed=SEED, max_tokens=LENGTH) == expected
        assert client.ask("/v1/completions", prompt=prompts[:3], max_tokens=LENGTH)[0] == 400


@pytest.mark.parametrize("seed", range(5))
def test_a_choice_is_written_with_the_token_that_the_end_of_the_prompt_begins(seed: int) -> None:
    """Greedy; no choice begins another, so a text ends with its choice."""
    model, tokenizer, prompts = make_case(seed)
    pieces = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    choices = ("ab ca", "b", "éa", "cab")
    sampler = Sampler(model, tokenizer, SamplingParams(max_new_tokens=9, temperature=0.0, choices=choices))

    def begins_one(written: bytes) -> bool:
        return any(choice.encode().startswith(written) for choice in choices)

    for prompt in prompts:
        ids = [int(token) for token in tokenizer.encode(prompt)]
        count = taken_back(pieces, ids)
        tokens, rest = ids[: len(ids) - count], b"".join(pieces[token] for token in ids[len(ids) - count :])
        written = b""
        begin = 0 if rest else len(tokens)
        while written.decode(errors="replace") not in choices:
            if rest or not begin:
                logits = logits_after(model, tokenizer, tokens)
            else:
                window = tokens[:begin][-model.config.context_length :] + tokens[begin:]
                logits = reference_logits(model, [window])
            allowed = [
                agrees(piece, rest) and begins_one(piece[len(rest) :])
                if rest
                else bool(piece) and begins_one(written + piece)
                for piece in pieces
            ]
            token = int(logits[0].masked_fill(~torch.tensor(allowed), -math.inf).argmax())
            tokens.append(token)
            written += pieces[token][len(rest) :]
            if rest and len(pieces[token]) >= len(rest):
                begin = len(tokens)
            rest = rest[len(pieces[token]) :]
        assert sampler.generate(prompt).text() == written.decode()


def test_a_pattern_that_matches_no_text_ends_it_before_a_first_token_that_breaks_it() -> None:
    model, tokenizer, prompts = make_case(0)
    pieces = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    options: dict[str, Any] = {"max_new_tokens": 5, "temperature": 0.0}
    for prompt in prompts:
        first = Sampler(model, tokenizer, SamplingParams()).generate(prompt, **options)
        text = Sampler(model, tokenizer, SamplingParams()).generate(prompt, regex="[xyz]*", **options)
        assert not set(first.text()[:1]) & set("xyz")  # so the text ends where it begins
        assert (text.text(), text.tokens, text.finish_reason) == ("", [], "match")
    assert any(taken_back(pieces, tokenizer.encode(prompt).tolist()) for prompt in prompts)


def test_an_end_that_the_bias_forbids_is_left_as_it_is() -> None:
    model, tokenizer, _ = make_case(0)
    forbidden = [(token, -math.inf) for token in range(tokenizer.vocab_size) if b"a" in tokenizer.token_bytes(token)]
    options: dict[str, Any] = {"logit_bias": forbidden, "temperature": 0.0, "max_new_tokens": 5}
    for beams in (None, 2):
        sampler = Sampler(model, tokenizer, SamplingParams())
        healed, as_it_is = (
            sampler.generate("cb a", beams=beams, heal=heal, **options).text() for heal in (True, False)
        )
        assert healed == as_it_is


@given(st.lists(st.binary(max_size=4).map(lambda data: bytes(byte % 3 for byte in data)), min_size=1), st.data())
def test_prefix_searches_equal_a_scan_of_all_tokens(pieces: list[bytes], data: st.DataObject) -> None:
    prefixes = TokenPrefixes(pieces)
    sought = bytes(byte % 3 for byte in data.draw(st.binary(min_size=1, max_size=6)))
    assert sorted(prefixes.starting_with(sought)) == [
        i for i, piece in enumerate(pieces) if piece and piece.startswith(sought)
    ]
    shorter = [i for i, piece in enumerate(pieces) if piece and sought.startswith(piece) and piece != sought]
    assert sorted(prefixes.inside(sought)) == shorter
    ids = data.draw(st.lists(st.integers(0, len(pieces) - 1), max_size=6))
    textless = max((place for place, token in enumerate(ids) if not pieces[token]), default=-1)
    assert prefixes.extensible_end(ids) == taken_back(pieces, ids[textless + 1 :])


def test_the_command_shows_the_prompt_and_goes_on_inside_its_last_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer, prompts = make_case(3)
    run = make_run(tmp_path / "run", tokenizer, seed=3, shape=SHAPE)
    sampling = SamplingParams(seed=SEED, max_new_tokens=LENGTH, temperature=0.0)
    command = ["sample", "--run", str(run), "--temperature", "0", "--max-new-tokens", str(LENGTH)]
    for prompt in prompts[:5]:
        for flags, healing in ((), True), (("--no-heal",), False):
            assert main([*command, "--prompt", prompt, *flags]) == 0
            text = reference(model, tokenizer, prompt, sampling, 0, healing=healing).text()
            assert capsys.readouterr().out.rstrip("\n") == (prompt + text).rstrip("\n")


def test_prompts_that_training_encodes_apart_from_what_follows_are_not_healed(tmp_path: Path) -> None:
    _, tokenizer, prompts = make_case(5)
    options: dict[str, Any] = {"seed": SEED, "max_new_tokens": LENGTH, "temperature": 0.0}
    runs = {
        kind: make_run(tmp_path / kind, tokenizer, 5, {"format": kind}, SHAPE) for kind in ("text", "pairs", "chat")
    }
    for kind, run in runs.items():
        sampler = gpt_cli.load(run)
        healed, as_they_are = (
            [sampler.generate(prompt, heal=heal, **options).text() for prompt in prompts] for heal in (True, False)
        )
        assert (healed == as_they_are) == (kind != "text")
