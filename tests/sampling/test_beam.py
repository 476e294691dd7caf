"""Beam search equals its definition without a cache, and, wide enough, the search of every text there is."""

import asyncio
import math
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpt_cli.config import Config, ModelConfig, SampleConfig
from gpt_cli.errors import RequestError
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import save
from gpt_cli.sampling import Sampler, SamplingParams
from gpt_cli.sampling.beam import Hypothesis, beam_search
from gpt_cli.sampling.logits_processors import NoRepeatNgram, RepetitionPenalty
from gpt_cli.sampling.prompt import Opening
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer
from tests.support.command import Run
from tests.support.tiny_gpt import CONTEXT, make_model, reference_logits

V = 4
END = 3  # the token with which a text is complete


def ends(text: Hypothesis) -> bool:
    return text.tokens[-1] == END


@torch.inference_mode()
def log_probs(model: GPT, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """Of what follows, without a cache."""
    result: list[float] = reference_logits(model, [[*prompt, *tokens]])[0].log_softmax(-1).tolist()
    return result


def reference_search(model: GPT, prompt: list[int], width: int, limit: int, penalty: float) -> list[tuple[int, ...]]:
    """The definition, written out; it never stops early, which must not change the result."""
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    complete: list[tuple[tuple[int, ...], float]] = []
    for _ in range(limit):
        candidates = [
            ((*tokens, token), total + log_prob)
            for tokens, total in live
            for token, log_prob in enumerate(log_probs(model, prompt, tokens))
        ]
        candidates.sort(key=lambda candidate: -candidate[1])
        live = []
        for candidate in candidates:
            (complete if candidate[0][-1] == END else live).append(candidate)
            if len(live) == width:
                break
    actual = sorted(complete + live, key=lambda text: -text[1] / len(text[0]) ** penalty)
    return [tokens for tokens, _ in actual[:width]]


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope", "none"])
@pytest.mark.parametrize("penalty", [0.0, 1.0, -0.5, 2.0])
def test_it_finds_what_the_uncached_definition_finds_past_the_context_too(position: str, penalty: float) -> None:
    model = make_model(V, position=position, window=4, n_kv_head=2)
    model.head.weight.data[END] -= 0.3
    for width, prompt in ((1, [1]), (2, [0, 1, 2]), (5, [2] * CONTEXT)):
        sampling = SamplingParams(beams=width, length_penalty=penalty, max_new_tokens=9)
        actual = beam_search(model, [Opening(prompt)], sampling, (), ends)
        assert [text.tokens for text in actual] == reference_search(model, prompt, width, 9, penalty)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 3.0])
def test_wide_enough_it_is_the_best_of_all_texts(penalty: float) -> None:
    model = make_model(V)
    prompt, limit = [1, 2], 4

    def score(tokens: tuple[int, ...]) -> float:
        total = sum(log_probs(model, prompt, tokens[:i])[token] for i, token in enumerate(tokens))
        return total / len(tokens) ** penalty

    candidates = [
        tokens
        for n in range(1, limit + 1)
        for tokens in product(range(V), repeat=n)
        if END not in tokens[:-1] and (n == limit or tokens[-1] == END)
    ]
    best = sorted(candidates, key=lambda tokens: -score(tokens))[:10]
    sampling = SamplingParams(beams=V**limit, length_penalty=penalty, max_new_tokens=limit)
    actual = beam_search(model, [Opening(prompt)], sampling, (), ends)
    assert [text.tokens for text in actual[:10]] == best
    assert len(actual) == len(candidates)
    for text in actual[:10]:
        assert text.score(penalty) == pytest.approx(score(text.tokens), abs=1e-4)
        assert text.log_probs == pytest.approx(
            [log_probs(model, prompt, text.tokens[:i])[token] for i, token in enumerate(text.tokens)], abs=1e-4
        )


def test_one_beam_is_greedy() -> None:
    sampler = Sampler(make_model(256), ByteTokenizer(), SamplingParams(max_new_tokens=30))
    beam = sampler.generate("ab", beams=1, log_probs=True)
    greedy = sampler.generate("ab", temperature=0.0, log_probs=True)
    assert beam.text() == greedy.text()
    assert beam.log_probs == pytest.approx(greedy.log_probs, abs=1e-4)


def test_rules_go_with_the_beams() -> None:
    """A history that stayed behind when beams change places would repeat, or forbid what is new."""
    model = make_model(V)
    rules = (RepetitionPenalty(1.5, [[1]], V, torch.device("cpu")), NoRepeatNgram(2, [[1]]))
    sampling = SamplingParams(beams=6, max_new_tokens=5)  # too short to run out of pairs
    for text in beam_search(model, [Opening([1])], sampling, rules, lambda text: False):
        sequence = (1, *text.tokens)
        pairs = list(pairwise(sequence))
        assert len(pairs) == len(set(pairs))
        history, total = [1], 0.0
        for token in text.tokens:
            logits = torch.tensor(log_logits(model, history))
            used = torch.tensor(sorted(set(history)))
            logits[used] = torch.where(logits[used] > 0, logits[used] / 1.5, logits[used] * 1.5)
            bigrams = set(pairwise(history))
            logits[[t for t in range(V) if (history[-1], t) in bigrams]] = -math.inf
            total += float(logits.log_softmax(-1)[token])
            history.append(token)
        assert text.total == pytest.approx(total, abs=1e-3)


@torch.inference_mode()
def log_logits(model: GPT, tokens: list[int]) -> list[float]:
    result: list[float] = reference_logits(model, [tokens])[0].tolist()
    return result


def test_stop_strings_complete_a_text_and_the_best_n_are_given() -> None:
    tokenizer = CharTokenizer("ab.")
    sampler = Sampler(make_model(3), tokenizer, SamplingParams(max_new_tokens=6, beams=5, stop=(".",)))
    texts = sampler.generate_batch("a", 3)
    assert len({text.text() for text in texts}) == 3
    for text in texts:
        assert "." not in text.text()
        assert text.finish_reason == ("stop" if "." in tokenizer.decode(text.tokens) else "length")
    assert [t.text() for t in sampler.generate_batch("a", 3, seed=1)] == [text.text() for text in texts]


@pytest.mark.parametrize(("options", "n", "message"), [({"beams": 2}, 3, "2 beams cannot give 3 texts")])
def test_more_texts_than_beams_are_refused(options: dict[str, Any], n: int, message: str) -> None:
    sampler = Sampler(make_model(256), ByteTokenizer(), SamplingParams())
    with pytest.raises(RequestError, match=message):
        sampler.generate_batch("a", n, **options)


@pytest.mark.system
@pytest.mark.parametrize(("option", "value"), [("--top-k", 2), ("--temperature", 2)])
def test_a_search_of_the_config_notes_options_of_drawing_which_leave_its_text_as_it_is(
    sample: Run, tmp_path: Path, option: str, value: int
) -> None:
    config = Config(
        model=ModelConfig(n_layer=1, n_head=2, n_embd=16, context_length=16),
        sample=SampleConfig(prompt="ab", max_new_tokens=12, beams=2),
    )
    torch.manual_seed(0)
    tokenizer = CharTokenizer("\nabcdefgh")
    weights = GPT(config.model, tokenizer.vocab_size).state_dict()
    run = save(tmp_path / "searching", 3, weights, {}, {}, config, tokenizer)
    _, searched, _ = sample("--run", run)
    code, out, err = sample("--run", run, option, value)
    assert (code, out) == (0, searched)
    assert f"no effect with beam search: {option}" in err
    code, out, err = sample("--run", run, "--beams", 0, option, value)
    assert (code, out != "") == (0, True)
    assert "no effect" not in err


def test_a_server_draws_its_tokens_whatever_the_config_of_the_run_and_refuses_it_by_name() -> None:
    pytest.importorskip("fastapi")
    from gpt_cli.serve.api_errors import ApiError
    from gpt_cli.serve.generation_request import make_generation_request
    from gpt_cli.serve.limits import Limits
    from gpt_cli.serve.request_schemas import CompletionRequest

    engine = SimpleNamespace(needs_processors=lambda sampling: False)
    model: Any = SimpleNamespace(defaults=SampleConfig(beams=2, top_k=4), engine=engine, context_length=8)
    request = asyncio.run(make_generation_request(model, [[1]], CompletionRequest.read({"max_tokens": 5}), Limits()))
    assert (request.sampling.beams, request.sampling.top_k) == (None, 4)
    with pytest.raises(ApiError, match="there is no parameter beams here"):
        CompletionRequest.read({"prompt": "a", "beams": 2})
