"""`train.budget`: the choice follows from the measurements alone, and a run keeps it."""

import itertools
import json
import random
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.cli.main import main
from gpt_cli.config import Config, DataConfig, TokenizerConfig, load_config, parse_config
from gpt_cli.config.keys import get_key
from gpt_cli.config.section import parse_duration
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.cpu.common.kernel import COMPILING
from gpt_cli.errors import Notify, RequestError
from gpt_cli.model.sizing import num_parameters
from gpt_cli.runtime.device import Runtime, setup_runtime
from gpt_cli.search import budget_choice, text_difficulty, time_budget, timing
from gpt_cli.search.budget_choice import (
    CHOSEN,
    BudgetCandidate,
    best_choice,
    chosen_values,
    explain_choice,
    predict_choice,
)
from gpt_cli.search.budget_law import BUDGET_LAW
from gpt_cli.search.recurrence import NOTHING_RECURS, Recurrence
from gpt_cli.search.regularization import regularization
from gpt_cli.search.time_budget import time_candidate, with_values
from gpt_cli.training import loop

SMALL = BudgetCandidate((2, 2, 64), 64, 12, 100_000, 0.01)
MIDDLE = BudgetCandidate((4, 4, 128), 128, 16, 800_000, 0.05)
LARGE = BudgetCandidate((4, 4, 256), 256, 8, 3_200_000, 0.2)
TEXT, VAL = 1_000_000, 110_000
RATE = 0.014
LINE = "It was the best of times, it was the worst of times, it was the age of wisdom.\n"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1h1m1s", 3661), ("0m5s", 5), ("", None), ("0s", None), ("10", None)],
)
def test_a_time_is_hours_minutes_and_seconds(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["m", "-5m", "5 m", "5m3h", "1.5h", "five", "9999999s", "1h1h"])
def test_anything_else_is_no_time(text):
    assert parse_duration(text) is None


def predictions(measured, seconds, *sizes, **how):
    return [(one, predict_choice(one, seconds, *sizes, **how)) for one in measured]


def pick(measured, seconds, *sizes, **how):
    return best_choice(predictions(measured, seconds, *sizes, **how), seconds)


@given(st.permutations([SMALL, MIDDLE, LARGE]), st.floats(10, 10_000))
def test_the_choice_does_not_depend_on_the_order_of_the_measurements(measured, seconds):
    assert pick(measured, seconds, TEXT, VAL) == best_choice(
        predictions([SMALL, MIDDLE, LARGE], seconds, TEXT, VAL), seconds
    )


@given(st.floats(10, 10_000))
def test_the_choice_is_within_0_003_of_the_lowest_expected_loss_and_ends_in_time(seconds):
    choice = pick([SMALL, MIDDLE, LARGE], seconds, TEXT, VAL)
    losses = [w.loss for c in (SMALL, MIDDLE, LARGE) if (w := predict_choice(c, seconds, TEXT, VAL))]
    assert choice.loss <= min(losses) + 0.003
    evaluations = choice.evaluations * VAL / choice.candidate.tokens_per_step * choice.candidate.seconds_per_step / 3
    assert choice.steps * choice.candidate.seconds_per_step + evaluations <= seconds


@given(st.floats(30, 1_000), st.floats(0.9, 1.1))
def test_of_two_choices_of_about_the_same_loss_the_smaller_model_is_taken(seconds, slower):
    larger = replace(
        MIDDLE, parameters=int(1.02 * MIDDLE.parameters), seconds_per_step=slower * MIDDLE.seconds_per_step
    )
    losses = [predict_choice(one, seconds, TEXT, VAL).loss for one in (MIDDLE, larger)]
    chosen = pick([larger, MIDDLE], seconds, TEXT, VAL).candidate
    assert chosen == (MIDDLE if losses[0] <= losses[1] + 0.003 else larger)


@given(st.floats(10, 10_000), st.integers(1_000, 10_000_000))
def test_evaluations_take_a_twentieth_of_the_time_or_there_is_only_the_last(seconds, val_tokens):
    choice = predict_choice(MIDDLE, seconds, TEXT, val_tokens)
    if choice is None:
        return
    evaluation = val_tokens / MIDDLE.tokens_per_step * MIDDLE.seconds_per_step / 3
    assert choice.evaluations == (3 if 3 * evaluation <= 0.05 * seconds else 1)
    assert (chosen_values(choice, seconds, TEXT, RATE)["eval.every"] is None) == (choice.evaluations == 1)


def test_a_run_that_may_stop_early_is_evaluated_on_its_way():
    choice = pick([MIDDLE], 60, TEXT, 500_000, is_evaluated=True)
    assert pick([MIDDLE], 60, TEXT, 500_000).evaluations == 1
    assert choice.evaluations == 3
    config = with_values(Config(), {"train.patience": 2, **chosen_values(choice, 60, TEXT, RATE)})
    assert config.eval.every is not None


@given(st.integers(1, 2_000), st.floats(20, 1_000))
def test_evaluations_that_are_asked_for_are_paid_from_the_time(eval_every, seconds):
    choice = predict_choice(MIDDLE, seconds, TEXT, VAL, eval_every=eval_every)
    if choice is None:
        return
    step = MIDDLE.seconds_per_step
    evaluation = VAL / MIDDLE.tokens_per_step * step / 3
    assert choice.steps * step + (2 + choice.steps // eval_every) * evaluation <= seconds


def test_more_time_buys_a_larger_model_and_a_slower_machine_a_smaller_one():
    measured = [SMALL, MIDDLE, LARGE]
    sizes = [pick(measured, seconds, TEXT, VAL).candidate.parameters for seconds in (15, 60, 600, 6000)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    slow = [replace(c, seconds_per_step=10 * c.seconds_per_step) for c in measured]
    assert pick(slow, 600, TEXT, VAL).candidate.parameters <= pick(measured, 600, TEXT, VAL).candidate.parameters


SHAKESPEARE, PYTHON, CHINESE = (
    {128: 0.0009, 256: 0.0018, 512: 0.0026, 1024: 0.0038},
    {128: 0.0359, 256: 0.0578, 512: 0.0893, 1024: 0.1195},
    {128: 0.0049, 256: 0.0086, 512: 0.0116, 1024: 0.0138},
)
"""What recurs in 1 MB of each, within these contexts (`measure_recurrence`)."""


class Recurring(Recurrence):
    def __init__(self, shares: dict[int, float]) -> None:
        shares = {0: 0.0, **shares}
        super().__init__(np.interp(range(max(shares) + 1), list(shares), list(shares.values())))


@pytest.mark.parametrize(
    ("factor", "unique", "recurring", "runs"),
    [
        (
            *(1.0, 1_003_854, SHAKESPEARE),
            [  # parameters, context, tokens of a step, steps, validation loss
                (98_816, 128, 2_048, 200, 1.7911),
                (98_816, 128, 2_048, 400, 1.6973),
                (98_816, 128, 2_048, 2_000, 1.5628),
                (395_264, 128, 1_024, 300, 1.7329),
                (790_528, 128, 1_024, 200, 1.7846),
                (790_528, 256, 4_096, 520, 1.4662),
                (3_162_112, 256, 2_048, 3_000, 1.3993),
                (4_743_168, 512, 2_048, 4_400, 1.3586),
            ],
        ),
        (
            *(1.014, 807_423, PYTHON),
            [
                (98_816, 128, 2_048, 400, 1.6818),
                (790_528, 128, 2_048, 1_040, 1.4632),
                (790_528, 256, 4_096, 520, 1.4141),
                (1_779_000, 1024, 2_048, 4_050, 1.1460),
                (2_668_000, 1024, 2_048, 2_750, 1.1247),
            ],
        ),
    ],
)
def test_the_law_reproduces_the_runs_it_comes_from(factor, unique, recurring, runs):
    for parameters, context, of_step, steps, loss in runs:
        expected = BUDGET_LAW.expected_loss(parameters, context, steps, steps * of_step, unique, recurring[context])
        assert factor * expected == pytest.approx(loss, abs=0.02)


@given(st.integers(10_000, 10**8), st.integers(1, 10**5), st.integers(10**4, 10**9), st.floats(0, 1))
def test_more_steps_are_never_expected_to_be_worse_and_no_loss_to_be_negative(parameters, steps, unique, recurring):
    more = (2 * steps, steps + 1, steps)
    losses = [BUDGET_LAW.expected_loss(parameters, 64, n, n * 768, unique, recurring) for n in more]
    assert losses == sorted(losses)
    assert losses[0] > 0


@pytest.mark.parametrize(
    ("seconds", "unique", "recurring", "candidates", "reached"),
    [
        (60, 90_000, {}, "short", {128: 2.096, 256: 2.108}),
        (60, 1_003_854, SHAKESPEARE, "short", {128: 2.145, 256: 2.115}),
        (60, 807_423, PYTHON, "short", {128: 2.111, 256: 2.040}),
        (60, 980_989, CHINESE, "short", {128: 2.128, 256: 2.112}),
        (60, 9_277_702, PYTHON, "short", {128: 1.847, 256: 1.753}),
        (600, 807_423, PYTHON, "long", {512: 1.730, 1024: 1.653}),
        (600, 980_989, CHINESE, "long", {512: 1.916, 1024: 1.947}),
    ],
)
def test_of_an_equal_time_the_context_is_within_0_02_bits_per_byte_of_the_best_on_texts_of_all_kinds(
    seconds, unique, recurring, candidates, reached
):
    """The losses that were measured are in docs/recipes.md, What a budget chooses."""
    short = [BudgetCandidate((4, 4, 128), context, 16, 807_552, 0.062 * context / 128) for context in (128, 256)]
    long = [
        BudgetCandidate((4, 4, 192), 512, 4, 1_779_000, 0.125),
        BudgetCandidate((4, 4, 192), 1024, 2, 1_779_000, 0.14),
    ]
    measured = short if candidates == "short" else long
    chosen = pick(measured, seconds, unique, unique // 9, recurrence=Recurring(recurring))
    assert reached[chosen.candidate.context_length] <= min(reached.values()) + 0.02


@pytest.mark.parametrize(
    ("train_tokens", "epochs", "tokens_per_step", "lr", "dropout", "decay"),
    [
        (9_278_000, 0.2, 4_096, 0.014, 0.0, 0.1),
        (418_543, 2.9, 2_048, 0.02, 0.0, 0.2),
        (418_543, 11.8, 2_048, 0.02, 0.0, 0.6),
        (1_003_854, 5.3, 2_048, 0.015, 0.0, 0.35),
        (1_003_854, 9.0, 2_048, 0.015, 0.0, 0.4),
        (1_003_854, 9.8, 8_192, 0.015, 0.0, 1.6),
        (1_003_854, 9.1, 16_384, 0.015, 0.0, 3.2),
        (90_000, 13.7, 2_048, 0.02, 0.1, 1.6),
        (90_000, 21.4, 2_048, 0.02, 0.1, 1.6),
    ],
)
def test_repeated_texts_have_the_dropout_and_within_a_quarter_the_decay_that_were_measured_as_best(
    train_tokens, epochs, tokens_per_step, lr, dropout, decay
):
    """The losses that were measured are in docs/recipes.md, Weight decay and dropout by number of epochs."""
    chosen = regularization(epochs, tokens_per_step, train_tokens, lr, chooses_decay=True)
    assert chosen == {"model.dropout": dropout, "optim.weight_decay": pytest.approx(decay, rel=0.25)}


@given(st.integers(64, 10**6), st.integers(1_000, 10**8), st.floats(10, 10**5))
def test_a_run_reads_its_text_no_more_often_than_was_measured(tokens_per_step, train_tokens, seconds):
    candidate = replace(MIDDLE, tokens_read=tokens_per_step)
    if (choice := predict_choice(candidate, seconds, train_tokens, train_tokens // 9)) is not None:
        limit = budget_choice.MOST_EPOCHS_OF_LARGE_STEPS if tokens_per_step >= 8_192 else budget_choice.MOST_EPOCHS
        assert choice.steps == 20 or choice.steps * tokens_per_step <= limit * train_tokens


def test_a_gpu_has_a_ladder_of_its_own_and_loads_its_libraries_before_anything_is_measured(book, monkeypatch):
    monkeypatch.chdir(book.parent)
    measurements, now = pretend_to_measure(monkeypatch), [0.0]
    monkeypatch.setattr(time_budget, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    measure = time_budget.time_candidate

    def loading(config, *rest):
        now[0] += 0.1 if measurements else 5.0  # more than the tenth of 40 s that measuring may take
        return replace(measure(config, *rest), seconds_per_step=0.02)

    monkeypatch.setattr(time_budget, "time_candidate", loading)
    monkeypatch.setattr(time_budget, "setup_runtime", lambda _: Runtime(torch.device("cuda"), "bf16", 1))
    corpus = prepare_corpus(DataConfig(source="book.txt"), TokenizerConfig(kind="char"), note=lambda _: None)
    config = parse_config("", "t", ["data.source=book.txt", "tokenizer.kind=char"])
    notes: list[str] = []
    chosen, _ = time_budget.config_for_budget(config, 40.0, corpus, frozenset(), notes.append)
    shapes = [(c.model.n_layer, c.model.n_head, c.model.n_embd) for c in measurements]
    assert shapes[0] == shapes[1]
    assert list(dict.fromkeys(shapes)) == list(dict.fromkeys(shape for shape, _, _ in budget_choice.GPU_LADDER))
    assert chosen.train.steps * chosen.train.batch_size * chosen.model.context_length <= 24 * len(corpus.train)
    assert "more passes over this text would overfit" in notes[-1]


@given(st.floats(0, 100), st.floats(0, 100), st.integers(1, 10**6), st.integers(1, 10**9))
def test_a_text_that_is_read_more_often_is_never_regularized_less(few, many, tokens, unique):
    few, many = sorted((few, many))
    for epochs_decide, is_text in itertools.product((True, False), repeat=2):
        less, more = (
            regularization(epochs, tokens, unique, RATE, chooses_decay=epochs_decide, is_text=is_text)
            for epochs in (few, many)
        )
        assert less.keys() == more.keys() == {"model.dropout", *(["optim.weight_decay"] if epochs_decide else [])}
        assert all(less[key] <= more[key] for key in less)


@pytest.mark.system
@pytest.mark.parametrize("own", [["recipe=classic"], ["optim.name=adamw"], ["optim.weight_decay=0.05"], []])
def test_a_recipe_another_optimizer_and_a_decay_that_is_asked_for_keep_theirs(book, monkeypatch, own):
    monkeypatch.chdir(book.parent)
    for budget in ([], ["train.budget=1m"]):
        pretend_to_measure(monkeypatch)
        set_clock(monkeypatch, 1e-4)
        run_dir = f"runs/{len(budget)}"
        often = [] if budget else ["train.steps=2000", "train.max_minutes=0.0001"]
        assert main(["train", "book.txt", *CHEAP, *own, *budget, *often, f"run_dir={run_dir}"]) == 0
        decay = load_config(Path(run_dir, "config.yaml")).optim.weight_decay
        plain = parse_config("", "defaults", [one for one in own if not one.startswith("run_dir")]).optim.weight_decay
        assert (decay == plain) == bool(own), (decay, plain)


def test_too_little_time_is_told():
    with pytest.raises(RequestError, match=r"train\.budget leaves 0\.1 s"):
        pick([SMALL], 0.1, TEXT, VAL)


@pytest.mark.parametrize("compiles", [True, False])
def test_where_compiling_took_the_time_the_error_says_so(book, monkeypatch, capsys, compiles):
    monkeypatch.chdir(book.parent)

    def measure(config: Config, corpus: object, runtime: object, note: Notify) -> BudgetCandidate:
        if compiles:
            note(f"{COMPILING}train.c for this processor")
        return BudgetCandidate((1, 2, 16), 8, 1, 10_000, 1e9)

    monkeypatch.setattr(time_budget, "time_candidate", measure)
    assert main(["train", "book.txt", "train.budget=10s", *CHEAP]) == 2
    error = capsys.readouterr().err
    assert ("start it again: this time it also compiled its C code, once on a machine" in error) == compiles
    assert "train.budget=10m" in error


def test_every_chosen_key_is_set_and_makes_a_valid_config():
    choice = pick([SMALL, MIDDLE, LARGE], 300, TEXT, VAL)
    values = chosen_values(choice, 300, TEXT, RATE)
    assert set(values) == set(CHOSEN)
    config = with_values(Config(), values)
    assert {key: get_key(config, key) for key in CHOSEN} == values
    measured = predictions([SMALL, MIDDLE, LARGE], 300, TEXT, VAL)
    for is_predicted in (True, False):
        lines = explain_choice(choice, measured, 300, is_predicted=is_predicted)
        assert sum(line.startswith("->") for line in lines) == 1


@pytest.fixture
def book(tmp_path: Path) -> Path:
    text = tmp_path / "book.txt"
    text.write_text(LINE * 200)
    return text


CLOCKED = ("search.time_budget", "search.timing", "training.metrics_logger", "training.console")
CLOCKED += ("cli.verbs.train",)


def set_clock(monkeypatch: pytest.MonkeyPatch, tick: float) -> None:
    """A clock that moves by so many seconds whenever somebody looks at it, and not otherwise."""
    looks = itertools.count()
    clock = SimpleNamespace(**{**vars(time), "perf_counter": lambda: tick * next(looks)})
    for module in CLOCKED:
        monkeypatch.setattr(f"gpt_cli.{module}.time", clock)


def pretend_to_measure(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Have every candidate take a second a step; the configs that are measured."""
    measurements: list[Config] = []

    def measure(config: Config, *_: object) -> BudgetCandidate:
        measurements.append(config)
        model = config.model
        shape = (model.n_layer, model.n_head, model.n_embd)
        return BudgetCandidate(shape, model.context_length, config.train.batch_size, 10_000, 1.0)

    monkeypatch.setattr(time_budget, "time_candidate", measure)
    monkeypatch.setattr(time_budget, "measure_difficulty", lambda *_: 1.0)
    return measurements


CHEAP = ["runtime.threads=1", "runtime.device=cpu", "model.n_layer=1", "model.n_embd=16", "model.n_head=2"]


@pytest.mark.system
def test_a_batch_of_a_bpe_has_half_as_many_tokens_as_one_of_characters(book, monkeypatch, capsys):
    monkeypatch.chdir(book.parent)
    measured = {}
    for kind in ("char", "bpe"):
        measurements = pretend_to_measure(monkeypatch)
        set_clock(monkeypatch, 1e-4)
        keys = [*CHEAP, f"tokenizer.kind={kind}", f"run_dir=runs/{kind}"]
        assert main(["train", "book.txt", "train.budget=1m", *keys, "--dry-run"]) == 0
        measured[kind] = [config.train.batch_size for config in measurements[:2]]
        assert (", loss " in capsys.readouterr().err) == (kind == "char")  # the law is of characters
    assert [2 * batch for batch in measured["bpe"]] == measured["char"]


def test_a_batch_of_a_candidate_is_a_multiple_of_the_micro_batch_that_is_asked_for(book, monkeypatch):
    monkeypatch.chdir(book.parent)
    measurements = pretend_to_measure(monkeypatch)
    set_clock(monkeypatch, 1e-4)
    keys = [*CHEAP, "tokenizer.kind=bpe", "train.micro_batch_size=4"]
    assert main(["train", "book.txt", "train.budget=1m", *keys, "--dry-run"]) == 0
    assert measurements
    assert all(config.train.batch_size % 4 == 0 for config in measurements)


@pytest.mark.system
def test_a_run_keeps_the_choice_and_what_is_written_is_not_chosen(book, monkeypatch, capsys):
    monkeypatch.chdir(book.parent)
    measurements = pretend_to_measure(monkeypatch)
    set_clock(monkeypatch, 1e-4)
    command = ["train", "book.txt", "train.budget=1m", *CHEAP, "train.batch_size=4", "--json"]
    assert main(command) == 0
    first = json.loads(capsys.readouterr().out)
    config = load_config(Path("runs/book/config.yaml"))
    assert (config.train.budget, config.model.n_embd, config.train.batch_size) == ("1m", 16, 4)
    assert 50 <= config.train.steps == first["steps"] < 60  # of a second each, and what is evaluated takes some, too
    assert {(c.model.n_embd, c.train.batch_size) for c in measurements} == {(16, 4)}
    before = len(measurements)
    assert main(command) == 0  # goes on with the choice: nothing is measured again, so nothing differs
    assert len(measurements) == before
    assert json.loads(capsys.readouterr().out)["weights_sha256"] == first["weights_sha256"]
    assert main(["train", "book.txt", "train.budget=2m", *CHEAP, "train.batch_size=4"]) == 2
    error = capsys.readouterr().err
    assert "error: runs/book was planned for train.budget=1m" in error
    assert "hint: run_dir=runs/NAME starts a new run" in error


@pytest.mark.system
def test_a_run_of_a_budget_ends_with_the_loss_that_was_expected_of_it_and_no_other_run_does(book, monkeypatch, capsys):
    monkeypatch.chdir(book.parent)
    pretend_to_measure(monkeypatch)
    set_clock(monkeypatch, 1e-4)
    losses = []
    for command in (["book.txt", "train.budget=1m", *CHEAP], ["runs/book"]):  # and when it is asked for again
        assert main(["train", *command, "--json"]) == 0
        captured = capsys.readouterr()
        summary = json.loads(captured.out)
        losses.append(summary["expected_loss"])
        assert f"expected {summary['expected_loss']:.2f}, reached {summary['val_loss']:.2f}" in captured.err
    assert losses[0] == losses[1] > 0
    assert main(["train", "book.txt", *CHEAP, "train.steps=1", "run_dir=runs/plain", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["expected_loss"] is None
    assert "expected" not in captured.err


@pytest.mark.system
def test_a_text_is_the_more_difficult_the_less_of_it_can_be_predicted(tmp_path, monkeypatch):
    monkeypatch.setattr(text_difficulty, "FEWEST_STEPS", ((text_difficulty.SMALLEST, 1),))
    monkeypatch.setattr(text_difficulty, "MOST_STEPS", 40)
    draw = random.Random(0)
    found = []
    for letters in (1, 2, 8, 64):
        (tmp_path / f"{letters}.txt").write_text("".join(chr(48 + draw.randrange(letters)) for _ in range(20_000)))
        config = parse_config("", "t", [f"data.source={tmp_path}/{letters}.txt", "runtime.threads=1"])
        corpus = prepare_corpus(config.data, TokenizerConfig(kind="byte"), cache=False, note=lambda _: None)
        found.append(
            text_difficulty.measure_difficulty(config, 60.0, corpus, setup_runtime(config.runtime), NOTHING_RECURS)
        )
    assert found == sorted(found)
    assert found[0] < 0.2 * found[-1]


@pytest.mark.system
def test_the_difficulty_of_a_text_is_measured_on_all_parts_of_a_long_validation_split(tmp_path, monkeypatch):
    monkeypatch.setattr(text_difficulty, "FEWEST_STEPS", ((text_difficulty.SMALLEST, 1),))
    monkeypatch.setattr(text_difficulty, "MOST_STEPS", 40)
    monkeypatch.setattr(text_difficulty, "_VALIDATION_TOKENS", 500)
    draw = random.Random(0)
    easy, hard = "a" * 1_000, "".join(chr(48 + draw.randrange(64)) for _ in range(1_000))
    found = []
    for name, parts in (("easy-first", easy + hard), ("hard-first", hard + easy)):
        (tmp_path / name).write_text((easy + hard) * 9 + parts)
        config = parse_config("", "t", [f"data.source={tmp_path}/{name}", "runtime.threads=1"])
        corpus = prepare_corpus(config.data, TokenizerConfig(kind="byte"), cache=False, note=lambda _: None)
        assert len(corpus.val) == 2_000
        found.append(
            text_difficulty.measure_difficulty(config, 60.0, corpus, setup_runtime(config.runtime), NOTHING_RECURS)
        )
    assert found[0] == pytest.approx(found[1], rel=0.1)


def test_a_text_whose_difficulty_there_is_no_time_to_measure_is_not_predicted(book, monkeypatch):
    monkeypatch.chdir(book.parent)
    pretend_to_measure(monkeypatch)
    monkeypatch.setattr(time_budget, "measure_difficulty", lambda *_: None)
    corpus = prepare_corpus(DataConfig(source="book.txt"), TokenizerConfig(kind="char"), note=lambda _: None)
    config = parse_config("", "t", ["data.source=book.txt", "tokenizer.kind=char", "runtime.device=cpu"])
    notes: list[str] = []
    chosen = time_budget.config_for_budget(config, 60.0, corpus, frozenset(), notes.append)
    assert chosen.expected_loss is None
    assert ", loss " not in "".join(notes)


def test_one_candidate_that_was_disturbed_does_not_end_the_search(book, monkeypatch):
    monkeypatch.chdir(book.parent)
    measurements = pretend_to_measure(monkeypatch)
    undisturbed = time_budget.time_candidate

    def measure(config, *rest):
        candidate = undisturbed(config, *rest)
        return replace(candidate, seconds_per_step=100.0 if len(measurements) == 2 else 0.01)

    monkeypatch.setattr(time_budget, "time_candidate", measure)
    set_clock(monkeypatch, 1e-4)
    corpus = prepare_corpus(DataConfig(source="book.txt"), TokenizerConfig(kind="char"), note=lambda _: None)
    config = parse_config("", "t", ["data.source=book.txt", "tokenizer.kind=char", "runtime.device=cpu"])
    time_budget.config_for_budget(config, 60.0, corpus, frozenset(), lambda _: None)
    assert len(measurements) > 2


@pytest.mark.system
@pytest.mark.parametrize("stop", [None, "train.patience=3", "train.until_loss=0.001"])
def test_evaluations_that_cost_too_much_are_left_out_but_where_one_may_end_the_run(book, monkeypatch, stop):
    monkeypatch.chdir(book.parent)
    pretend_to_measure(monkeypatch)
    set_clock(monkeypatch, 1e-4)
    stops = [] if stop is None else [stop]
    assert main(["train", "book.txt", "train.budget=1m", *CHEAP, "train.batch_size=1", *stops]) == 0
    assert (load_config(Path("runs/book/config.yaml")).eval.every is None) == (stop is None)


@pytest.mark.system
def test_a_budget_keeps_the_model_of_the_run_whose_weights_are_taken(book, monkeypatch):
    monkeypatch.chdir(book.parent)
    assert main(["train", "book.txt", *CHEAP, "model.context_length=24", "train.steps=1", "run_dir=runs/base"]) == 0
    pretend_to_measure(monkeypatch)
    set_clock(monkeypatch, 1e-4)
    overrides = ["train.init_from=runs/base", "train.budget=1m", "run_dir=runs/tuned", "runtime.threads=1"]
    assert main(["train", "book.txt", *overrides]) == 0
    base, tuned = (load_config(Path(f"runs/{name}/config.yaml")) for name in ("base", "tuned"))
    assert tuned.model.model_copy(update={"dropout": base.model.dropout}) == base.model
    assert tuned.train.steps > 1


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["train.budget=soon"], "train.budget (soon) must be a time such as 90s, 10m or 1h30m"),
        (["train.budget=1m", "train.steps=5"], "train.steps and train.budget contradict each other"),
        (["train.budget=1m", "train.max_minutes=0.5"], "train.max_minutes and train.budget contradict each other"),
        (["train.budget=1s"], "train.budget leaves"),
    ],
)
def test_a_wrong_budget_is_one_error(gpt_here, book, overrides, error, monkeypatch):
    set_clock(monkeypatch, 0.5)
    outcome = gpt_here("train", book, *overrides, "runtime.device=cpu")
    assert outcome.rc == 2
    assert error in outcome.stderr
    assert not (book.parent / "runs").exists()


@pytest.mark.system
def test_a_run_ends_within_its_budget_by_a_quarter(book, monkeypatch, capsys):
    """By a clock that only training moves: a step takes as long as its work would take at 10 GFLOP/s."""
    book.write_text(LINE * 5_000)
    monkeypatch.chdir(book.parent)
    now = [0.0]
    clock = SimpleNamespace(**{**vars(time), "perf_counter": lambda: now[0]})
    for module in CLOCKED:
        monkeypatch.setattr(f"gpt_cli.{module}.time", clock)
    steps = []

    def step(state, micro_batches, config, *_):
        steps.append(config)
        parameters = sum(p.numel() for p in state.model.parameters())
        now[0] += 6 * parameters * config.train.batch_size * config.model.context_length / 1e10
        norms = torch.ones(sum(1 for _ in state.model.parameters()))
        return torch.tensor(1.0), norms

    monkeypatch.setattr(timing, "train_step", step)
    monkeypatch.setattr(loop, "train_step", step)
    assert main(["train", "book.txt", "train.budget=20s", "runtime.device=cpu", "runtime.threads=1"]) == 0
    assert 15 <= now[0] <= 25
    assert f"all {len([config for config in steps if config == steps[-1]]):,} steps are done" in capsys.readouterr().err


def test_the_size_of_a_candidate_does_not_depend_on_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(LINE * 40)
    data = DataConfig(source=str(tmp_path / "text.txt"))
    overrides = ["model.n_layer=1", "model.n_head=1", "model.n_embd=8", "model.context_length=8", "train.batch_size=1"]
    config = parse_config("", "t", [*overrides, "runtime.device=cpu", "runtime.engine=torch", "runtime.threads=1"])
    runtime = setup_runtime(config.runtime)
    sizes = set()
    for kind in ("char", "byte"):
        corpus = prepare_corpus(data, TokenizerConfig(kind=kind), cache=False, note=lambda _: None)
        sizes.add(time_candidate(config, corpus, runtime, lambda _: None).parameters)
    assert len(sizes) == 1
    assert 0 < sizes.pop() < num_parameters(config.model, 27)
