"""`python -m bench.budget`: the runs around a chosen one."""

import pytest

from bench.budget import HELD, RATES, describe, neighbours
from gpt_cli.config import Config, parse_config
from gpt_cli.config.keys import get_key
from gpt_cli.search.time_budget import LADDER, SHAPE, with_values

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
