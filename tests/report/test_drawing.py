"""`gpt draw`: what a picture shows is what the code does, and the same config gives the same bytes."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from gpt_cli.cli.main import main
from gpt_cli.config import Config, ModelConfig
from gpt_cli.report import explain_plots

DEFAULT = Config()


@pytest.mark.system
@pytest.mark.parametrize("part", get_args(explain_plots.FigureName))
def test_every_part_is_drawn_and_the_same_config_gives_the_same_bytes(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["draw", part]) == main(["draw", part, "model.n_layer=3", "-o", "again.png"]) == 0
    assert Path(f"{part}.png").read_bytes() == Path("again.png").read_bytes()
    assert 5_000 < Path("again.png").stat().st_size < 150_000


def test_divided_scores_spread_by_one_at_every_width_and_others_by_its_root() -> None:
    scores, weights = explain_plots.scaling(DEFAULT).axes
    plain, divided = (np.array(line.get_xydata()) for line in scores.lines[:2])
    assert np.allclose(divided[:, 1], 1.0, atol=0.1)
    assert np.allclose(plain[:, 1], np.sqrt(plain[:, 0]), rtol=0.1)
    plain, divided = (np.array(line.get_xydata()) for line in weights.lines[:2])
    assert plain[-1, 1] > 0.8  # one key has it all
    assert divided[:, 1].max() < 0.2


def test_the_masks_hide_the_future_and_what_is_before_the_window() -> None:
    model = ModelConfig(window=3)
    full, window, cached = (
        np.array(axes.images[0].get_array()) == 0 for axes in explain_plots.mask(Config(model=model)).axes
    )
    for query, key in np.ndindex(16, 16):
        assert full[query, key] == (key <= query)
        assert window[query, key] == (query - 3 < key <= query)
    assert np.array_equal(cached, window[-3:])


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    *_, scores = [axes for axes in explain_plots.positions(DEFAULT).axes if axes.get_xlabel() == "tokens back"]
    late, early = ({round(x): y for x, y in np.array(line.get_xydata())} for line in scores.lines)
    assert late[0] == pytest.approx(1.0)
    assert len(early) == 65
    for distance, score in early.items():
        assert score == pytest.approx(late[distance], abs=1e-4)


def test_muon_lifts_singular_values_of_three_decades_to_near_one() -> None:
    (axes,) = explain_plots.muon(DEFAULT).axes
    first, *_, last = (np.array(line.get_ydata()) for line in axes.lines)
    assert first.max() / first.min() == pytest.approx(1000, rel=0.01)
    assert 0.8 < last[:100].min() <= last.max() < 1.3


def test_the_schedules_start_low_reach_their_peak_and_wsd_stays_there() -> None:
    (axes,) = explain_plots.schedule(DEFAULT).axes
    rates = {line.get_label(): np.array(line.get_ydata()) for line in axes.lines}
    assert list(rates) == ["constant", "linear", "cosine", "wsd"]
    assert all(rate[0] < 0.1 and rate.max() == pytest.approx(1.0, abs=0.01) for rate in rates.values())
    assert (rates["wsd"][30:500] == 1.0).all()
    assert rates["wsd"][-1] < 0.01


def test_filters_keep_the_likeliest_tokens_and_what_they_leave_sums_to_one() -> None:
    counts = {}
    for axes in explain_plots.filters(DEFAULT).axes:
        heights = [bar.get_height() for bar in axes.patches[12:]]
        assert sum(heights) == pytest.approx(1.0)
        assert heights == sorted(heights, reverse=True)
        counts[axes.get_title()] = sum(height > 0 for height in heights)
    assert (counts["temperature 1.5"], counts["top_k 4"]) == (12, 4)
    assert 1 < counts["min_p 0.25"] < counts["top_p 0.8"] < 12


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["everything"], "error: invalid value for 'WHAT'"),
        (["mask", "-o", "mask.gif"], "error: a picture is written as .png, .svg, .pdf, not as mask.gif\n"),
        (["mask", "a.yaml", "b.yaml"], "error: give one config, not 2\nhint: gpt draw --help\n"),
        (["mask", "model.windov=3"], "error: "),
    ],
)
def test_a_picture_that_cannot_be_is_one_clear_error(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["draw", *arguments]) == 2
    assert capsys.readouterr().err.startswith(error)
    assert list(tmp_path.iterdir()) == []
