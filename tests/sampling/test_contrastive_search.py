"""Contrastive search takes the tokens of its definition (Su et al., 2022), computed anew for each token."""

import asyncio
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gpt_cli.cli.main import main
from gpt_cli.config import Config, ModelConfig, SampleConfig
from gpt_cli.errors import RequestError
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import save
from gpt_cli.sampling import Sampler, SamplingParams, stream_batches
from gpt_cli.sampling.context_window import context_start
from gpt_cli.sampling.contrastive_search import contrastive_search
from gpt_cli.sampling.repetition import NoRepeatNgram, RepetitionPenalty
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer
from tests.support.command import Run
from tests.support.tiny_gpt import CONTEXT, OPTIONS, VOCAB_SIZE, make_model, reference_logits
from tests.support.untrained_run import make_checkpoint

PROMPTS = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=2 * CONTEXT)
ROUNDING = 1e-4


@torch.inference_mode()
def definition(model: GPT, text: list[int], alpha: float, k: int) -> dict[int, float]:
    """The candidates for the next token with their scores, by a pass without a cache for each of them.

    x_t = argmax over v of the k likeliest of (1 - alpha) p(v | x_<t) - alpha max_(j < t) s(h_v, h_xj), as in
    the paper: s is the cosine, h is what the head multiplies. Past the context, t counts in the window.
    """
    probability = reference_logits(model, [text])[0].softmax(-1)
    likeliest = sorted(range(len(probability)), key=lambda token: -float(probability[token]))[:k]
    start = context_start(len(text) + 1, model.config.context_length)
    states: list[torch.Tensor] = []
    hook = model.head.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
    model(torch.tensor([[*text[start:], token] for token in likeliest]))
    hook.remove()
    scores = {}
    for token, (*before, candidate) in zip(likeliest, states[0], strict=True):
        likeness = torch.cosine_similarity(candidate, torch.stack(before), dim=-1).max()
        scores[token] = (1 - alpha) * float(probability[token]) - alpha * float(likeness)
    return scores


def search(model: GPT, prompt: Sequence[int], alpha: float, k: int, n: int, rules: Sequence[Any] = ()) -> list[int]:
    sampling = SamplingParams(penalty_alpha=alpha, top_k=k, max_new_tokens=n)
    return [token for (token,) in contrastive_search(model, prompt, sampling, rules)]


def check(model: GPT, prompt: list[int], alpha: float, k: int, n: int) -> None:
    """Each token is the definition's, given those before it; of two that are equal up to rounding, one of them."""
    text = prompt[-model.config.context_length :]
    written = search(model, prompt, alpha, k, n)
    assert len(written) == n
    for token in written:
        scores = definition(model, text, alpha, k)
        probability = reference_logits(model, [text])[0].softmax(-1).tolist()
        if token not in scores:  # as likely as the last candidate
            assert probability[token] == pytest.approx(min(probability[other] for other in scores), abs=ROUNDING)
            scores |= {token: definition(model, text, alpha, VOCAB_SIZE)[token]}
        assert scores[token] >= max(scores.values()) - ROUNDING
        text.append(token)


@pytest.mark.system
@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope", "alibi", "none"])
@pytest.mark.parametrize(("alpha", "k"), [(0.6, 4), (0.1, 2), (1.0, 5), (0.5, 1), (0.5, 64)])
def test_it_writes_what_the_uncached_definition_writes_past_the_context_too(
    position: str, alpha: float, k: int
) -> None:
    model = make_model(position=position, window=4, n_kv_head=2)
    for prompt in ([1], [0, 1, 2], [2, 5] * CONTEXT):
        text = prompt[-CONTEXT:]
        for _ in range(2 * CONTEXT):
            scores = definition(model, text, alpha, min(k, VOCAB_SIZE))
            text.append(max(scores, key=scores.__getitem__))
        assert search(model, prompt, alpha, k, 2 * CONTEXT) == text[len(prompt[-CONTEXT:]) :]


@pytest.mark.system
@settings(max_examples=40)
@given(OPTIONS, PROMPTS, st.floats(0.01, 1), st.integers(1, VOCAB_SIZE))
def test_every_model_option_writes_what_the_uncached_definition_writes(
    options: dict[str, Any], prompt: list[int], alpha: float, k: int
) -> None:
    try:
        model = make_model(**options)
    except ValidationError:
        reject()  # options that exclude each other
    check(model, prompt, alpha, k, 10)


def test_one_candidate_or_hardly_a_weight_is_greedy() -> None:
    sampler = Sampler(make_model(256), ByteTokenizer(), SamplingParams(max_new_tokens=30))
    greedy = sampler.generate("ab", temperature=0.0).text()
    assert sampler.generate("ab", penalty_alpha=0.6, top_k=1).text() == greedy
    assert sampler.generate("ab", penalty_alpha=1e-12, top_k=4).text() == greedy
    assert sampler.generate("ab", penalty_alpha=1.0, top_k=4).text() != greedy


def test_the_seed_the_temperature_and_other_filters_change_nothing() -> None:
    sampler = Sampler(make_model(256), ByteTokenizer(), SamplingParams(max_new_tokens=20, penalty_alpha=0.6, top_k=4))
    plain = sampler.generate("ab").text()
    for options in ({"seed": 5}, {"temperature": 3.0}, {"temperature": 0.0}, {"top_p": 0.1}, {"min_p": 0.9}):
        assert sampler.generate("ab", **options).text() == plain


def test_rules_come_before_the_candidates_and_what_they_forbid_is_never_written() -> None:
    model = make_model(4)
    prompt = [1]
    rules = (RepetitionPenalty(1.5, [prompt], 4, torch.device("cpu")), NoRepeatNgram(2, [prompt]))
    text = [*prompt, *search(model, prompt, 0.6, 3, 9, rules)]
    pairs = list(pairwise(text))
    assert len(set(pairs)) == len(pairs) == 9  # of the 16 that there are


def test_a_pattern_a_stop_string_and_log_probabilities_go_with_it() -> None:
    model, tokenizer = make_model(256), ByteTokenizer()
    sampler = Sampler(model, tokenizer, SamplingParams(max_new_tokens=30, penalty_alpha=0.6, top_k=4))
    assert sampler.generate("x", choices=["yes", "no"]).text() in ("yes", "no")
    assert set(sampler.generate("x", allow="ab").text()) <= set("ab")
    text = sampler.generate("ab", max_new_tokens=4, log_probs=True)
    for end, (token, log_prob) in enumerate(zip(text.tokens, (text.text(), text.log_probs)[1] or (), strict=True)):
        expected = reference_logits(model, [[*b"ab", *text.tokens[:end]]])[0].log_softmax(-1)[token]
        assert log_prob == pytest.approx(float(expected), abs=1e-4)
    letters = Sampler(make_model(3), CharTokenizer("ab."), SamplingParams(penalty_alpha=1.0, top_k=3, stop=(".",)))
    stopped = letters.generate("a")
    assert "." not in stopped.text()
    assert (stopped.finish_reason == "stop") == ("." in CharTokenizer("ab.").decode(stopped.tokens))


def test_a_text_does_not_depend_on_the_other_prompts_nor_on_the_batch_size() -> None:
    model, tokenizer = make_model(256), ByteTokenizer()
    prompts = [list(text.encode()) for text in ("a", "bcd", "efghijklmnop", "a")]
    sampling = SamplingParams(penalty_alpha=0.6, top_k=4, max_new_tokens=15)
    together = [texts[0].text() for texts in stream_batches(model, tokenizer, prompts, sampling, batch_size=3)]
    alone = [next(stream_batches(model, tokenizer, [prompt], sampling))[0].text() for prompt in prompts]
    assert together == alone


@pytest.mark.system
def test_past_the_context_a_token_costs_the_same_however_long_the_text() -> None:
    model = make_model(context_length=16)
    computed: list[int] = []
    model.embedding.register_forward_pre_hook(lambda _, inputs: computed.append(inputs[0].numel()))
    search(model, [1, 2, 3], 0.6, 4, 300)
    assert computed[:3] == [3, 4, 4]  # the prompt once
    assert sum(computed) <= 300 * (4 + 3)
    assert sum(computed[-100:]) <= sum(computed[100:200]) * 1.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"penalty_alpha": 0.0, "top_k": 4}, "penalty_alpha must be above 0 and at most 1, not 0.0"),
        ({"penalty_alpha": 1.1, "top_k": 4}, "penalty_alpha must be above 0 and at most 1, or 0 for off, not 1.1"),
        ({"penalty_alpha": math.nan, "top_k": 4}, "penalty_alpha must be above 0 and at most 1, or 0 for off, not nan"),
        ({"penalty_alpha": 0.6}, "penalty_alpha needs top_k, the number of its candidates"),
        ({"penalty_alpha": 0.6, "top_k": 4, "beams": 2}, "penalty_alpha does not go with beams"),
        ({"penalty_alpha": 0.6, "top_k": 65}, "penalty_alpha goes with a top_k of at most 64, not 65"),
    ],
)
def test_settings_that_it_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SamplingParams(**options)


def test_several_texts_of_a_prompt_are_refused_at_once() -> None:
    sampler = Sampler(make_model(256), ByteTokenizer(), SamplingParams(penalty_alpha=0.6, top_k=4))
    with pytest.raises(RequestError, match="penalty_alpha gives one text for a prompt, not 2"):
        sampler.generate_batch("a", 2)


def searching_run(tmp_path: Path, searches: dict[str, Any]) -> Path:
    """A checkpoint of an untrained model, whose config asks for a search."""
    config = Config(
        model=ModelConfig(n_layer=1, n_head=2, n_embd=16, context_length=16),
        sample=SampleConfig(prompt="ab", max_new_tokens=12, **searches),
    )
    torch.manual_seed(0)
    tokenizer = CharTokenizer("\nabcdefgh")
    weights = GPT(config.model, tokenizer.vocab_size).state_dict()
    return save(tmp_path / "searching", 3, weights, {}, {}, config, tokenizer)


@pytest.mark.system
def test_the_command_line_writes_it_and_0_takes_it_back(sample: Run, tmp_path: Path) -> None:
    char_run = make_checkpoint(tmp_path / "char", CharTokenizer("\nabcdefgh"))
    options = ("--run", char_run, "--prompt", "ab", "--max-new-tokens", 40)
    code, written, err = sample(*options, "--penalty-alpha", 0.6, "--top-k", 4)
    assert (code, "seed" in err) == (0, False)
    assert written == sample(*options, "--penalty-alpha", 0.6, "--top-k", 4, "--seed", 9)[1]
    assert written != sample(*options, "--temperature", 0)[1]
    drawn = sample(*options, "--top-k", 4, "--seed", 1)
    assert drawn == sample(*options, "--top-k", 4, "--seed", 1, "--penalty-alpha", 0)
    for flags, message in (
        (("--penalty-alpha", 0.6), "penalty_alpha needs top_k"),
        (("--penalty-alpha", 0.6, "--top-k", 4, "-n", 2), "not 2\nhint: leave out -n, or --penalty-alpha 0"),
        (("--penalty-alpha", 0.6, "--top-k", 4, "--top-p", 0.9), "--top-k alone counts, not --top-p"),
        (("--penalty-alpha", 0.6, "--top-k", 4, "--beams", 2), "penalty_alpha does not go with beams"),
        (("--penalty-alpha", 0.6, "--top-k", 65), "penalty_alpha goes with a top_k of at most 64, not 65"),
        (("--penalty-alpha", 0.6, "--top-k", 4, "--engine", "native"), "does not go with penalty_alpha"),
        (("--penalty-alpha", 2, "--top-k", 4), "penalty_alpha must be above 0 and at most 1, or 0 for off, not 2.0"),
    ):
        code, out, err = sample(*options, *flags)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")
        assert message in err


@pytest.mark.system
@pytest.mark.parametrize(
    ("searches", "flags", "message"),
    [
        (
            {"penalty_alpha": 0.6, "top_k": 4},
            ("--temperature", 2),
            "leave --temperature out, or draw: --penalty-alpha 0",
        ),
        ({"beams": 2}, ("--top-k", 2), "hint: leave --top-k out, or draw: --beams 0"),
        ({"penalty_alpha": 0.6, "top_k": 4}, ("-n", 2), "hint: leave out -n, or --penalty-alpha 0"),
        ({"penalty_alpha": 0.6, "top_k": 4}, ("--top-k", 0), "penalty_alpha needs top_k"),
        ({"penalty_alpha": 0.6, "top_k": 4}, ("--beams", 2), "penalty_alpha does not go with beams"),
    ],
)
def test_a_search_of_the_config_refuses_options_of_drawing_and_the_hint_leads_out(
    sample: Run, tmp_path: Path, searches: dict[str, Any], flags: tuple[object, ...], message: str
) -> None:
    run = searching_run(tmp_path, searches)
    code, out, err = sample("--run", run, *flags)
    assert (code, out) == (2, "")
    assert message in err
    code, out, err = sample("--run", run, "--penalty-alpha", 0, "--beams", 0, *flags)
    assert (code, out != "") == (0, True)


def test_a_config_that_it_cannot_be_is_refused_before_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, run = tmp_path / "a.txt", tmp_path / "run"
    text.write_text("abcd efgh\n" * 100)
    config = tmp_path / "a.yaml"
    config.write_text("train:\n  steps: 1\n")
    arguments = (str(config), f"data.source={text}", f"run_dir={run}", "sample.penalty_alpha=0.6")
    for verb in (("train",), ("config", "show")):
        for overrides, message in (
            ((), "sample.penalty_alpha needs sample.top_k, the number of its candidates"),
            (("sample.top_k=4", "sample.beams=2"), "sample.penalty_alpha does not go with sample.beams"),
            (("sample.top_k=65",), "sample.penalty_alpha goes with a sample.top_k of at most 64, not 65"),
        ):
            assert main([*verb, *arguments, *overrides]) == 2
            assert message in capsys.readouterr().err
    assert not list(run.glob("checkpoints/step*"))


def test_a_server_draws_its_tokens_whatever_the_config_of_the_run_and_refuses_it_by_name() -> None:
    pytest.importorskip("fastapi")
    from gpt_cli.serve.api_errors import ApiError
    from gpt_cli.serve.generation_request import make_generation_request
    from gpt_cli.serve.limits import Limits
    from gpt_cli.serve.request_schemas import CompletionRequest

    engine = SimpleNamespace(needs_processors=lambda sampling: False)
    model: Any = SimpleNamespace(defaults=SampleConfig(penalty_alpha=0.6, top_k=4), engine=engine)
    request = asyncio.run(make_generation_request(model, [[1]], CompletionRequest.read({}), Limits(), max_tokens=5))
    assert (request.sampling.penalty_alpha, request.sampling.top_k) == (None, 4)
    with pytest.raises(ApiError, match="penalty_alpha is not supported here"):
        CompletionRequest.read({"prompt": "a", "penalty_alpha": 0.6})


def test_a_run_keeps_it_as_a_default_that_a_call_takes_back() -> None:
    sampling = SamplingParams.from_config(SampleConfig(penalty_alpha=0.6, top_k=4, max_new_tokens=8), seed=1)
    assert (sampling.penalty_alpha, sampling.top_k, sampling.searches) == (0.6, 4, True)
    assert not SamplingParams().searches
    assert sampling.replace({"beams": 2, "penalty_alpha": None}).searches
