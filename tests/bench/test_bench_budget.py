"""`python -m bench.budget`: the runs around a chosen one."""

import pytest

from bench import budget
from bench.budget import CHOSEN, HELD, RATES, describe, make_plan, neighbours
from gpt_cli.config import Config, parse_config
from gpt_cli.config.keys import get_key
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.search.time_budget import LADDER, SHAPE, BudgetCandidate, with_values

RUNGS = list(dict.fromkeys(shape for shape, _, _ in LADDER))


def chosen(shape: tuple[int, int, int], dropout: float) -> Config:
    values = dict(zip(SHAPE, shape, strict=True)) | {"model.dropout": dropout}
    return with_values(parse_config("", "t", []), values)


@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("shape", RUNGS)
def test_a_neighbour_changes_one_thing_and_holds_the_rest(shape, dropout):
    config = chosen(shape, dropout)
    actual = neighbours(config)
    for name, values in actual.items():
        neighbour = with_values(config, values)
        changed = {key for key in (*HELD, *RATES) if get_key(neighbour, key) != get_key(config, key)}
        if name.startswith("model: "):
            assert changed <= set(SHAPE)
            assert abs(RUNGS.index(tuple(get_key(neighbour, key) for key in SHAPE)) - RUNGS.index(shape)) == 1
        else:
            assert changed == {name.partition("=")[0]}
        assert set(HELD) <= values.keys()  # what a budget would choose anew is written down
    assert len(actual) == 10 + (0 < RUNGS.index(shape) < len(RUNGS) - 1) + (dropout > 0)


def test_the_verdict_is_the_distance_of_the_choice_to_the_best(tmp_path):
    runs = {"chosen": [(2.0, 10), (2.2, 10)], "optim.lr=0.1": [(2.05, 10)]}
    lines = describe(tmp_path / "x.txt", runs).splitlines()
    assert lines[1].split() == ["optim.lr=0.1", "2.050", "-0.050", "10"]
    assert lines[2].split() == ["chosen", "2.100", "+0.000", "10"]
    assert lines[3].startswith("0.050 above the best")


def test_a_neighbour_is_trained_for_as_long_as_the_choice_however_busy_the_machine_is(tmp_path, monkeypatch):
    (tmp_path / "x.txt").write_text("the king and the queen\n" * 9000)
    config = parse_config("", "t", [f"data.source={tmp_path / 'x.txt'}", "tokenizer.kind=char"])
    corpus = prepare_corpus(config.data, config.tokenizer, cache=False, note=lambda _: None)
    busy = 1.0

    def measure(config, corpus, runtime, note):
        nonlocal busy
        busy *= 1.01  # slower and slower
        tokens = config.train.batch_size * config.model.context_length
        model, seconds = config.model, 1e-9 * busy * tokens * config.model.n_layer * config.model.n_embd**2
        shape = (model.n_layer, model.n_head, model.n_embd)
        return BudgetCandidate(shape, model.context_length, config.train.batch_size, 1, seconds)

    monkeypatch.setattr(budget, "time_candidate", measure)
    monkeypatch.setattr(budget, "config_for_budget", lambda config, *_: config)
    plan = make_plan(config, 60.0, corpus)
    steps = {name: values["train.steps"] for name, values in plan.items()}
    half, twice = config.train.batch_size // 2, config.train.batch_size * 2
    assert steps[f"train.batch_size={half}"] == pytest.approx(2 * steps[CHOSEN], rel=0.05)
    assert steps[f"train.batch_size={twice}"] == pytest.approx(steps[CHOSEN] / 2, rel=0.05)
    assert {steps[name] for name in steps if name.startswith(RATES)} == {steps[CHOSEN]}
