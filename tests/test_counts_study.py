"""The study of counts: its problems, its opponents, and what its tables say."""

import numpy as np
import pytest
from rich.console import Console
from scipy.special import ndtr

import deconditional as dc

xr = pytest.importorskip("xarray")

from deconditional.errors import UsageError  # noqa: E402
from studies.count_fields import cells, log_transform, normal  # noqa: E402
from studies.count_models import FORECASTS, pycnophylactic  # noqa: E402
from studies.count_problems import simulated  # noqa: E402
from studies.count_tables import DISTRICTS, TABLE_MODELS, table_scores, tables  # noqa: E402
from studies.counts import Counts  # noqa: E402
from studies.records import Results  # noqa: E402


@pytest.fixture(scope="module")
def zones():
    return simulated(600, 15, seed=0)


def test_a_simulated_problem_is_a_partition_twice(zones):
    assert zones.x.shape == (600, 5) and len(zones.z) == 15 and 50 < len(zones.truth) <= 60
    np.testing.assert_allclose(zones.amounts.sum(0), zones.exposure)
    np.testing.assert_allclose(zones.hidden_amounts.sum(0), zones.exposure)
    np.testing.assert_allclose(zones.bags.exposure, zones.amounts.sum(1))
    expected = zones.amounts @ zones.rate
    assert (np.abs(zones.z - expected) < 5 * np.sqrt(expected + 1)).all()
    again = simulated(600, 15, seed=0)
    np.testing.assert_array_equal(again.z, zones.z)


def test_opponents_score_and_the_smooth_map_keeps_totals(zones):
    found = pycnophylactic(zones, rounds=5)
    np.testing.assert_allclose(zones.amounts @ found.rate, zones.z)
    rough = pycnophylactic(zones, rounds=0).rate
    apart = [
        np.square(np.diff(rate.reshape(zones.grid[0], -1))).mean() for rate in (rough, found.rate)
    ]
    assert apart[1] < apart[0]


def test_records_and_tables(tmp_path):
    names = ("areal weighting", "Poisson regression", "pycnophylactic")
    study = Counts(problems=("simulated",), models=names, seeds=1, points=600, zones=15)
    results = study.run(tmp_path, console=Console(quiet=True))
    assert [r["model"] for r in results.records] == [*names]
    (record,) = results.where(model="areal weighting")
    zones = simulated(600, 15, 0)
    expected = FORECASTS["areal weighting"](zones, 0, 0).score(zones.truth)
    assert record["log_score"] == pytest.approx(expected["log_score"])
    page = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "## Simulated" in page and f"| areal weighting | {expected['log_score']:.3f} |" in page


def test_decades_are_won_in_both_scores_or_not(tmp_path):
    results = Results(tmp_path, ("matching", "model", "seed"))
    for decade, mine in ((1960, 1.0), (1970, 3.0)):
        for model, score in (("field", mine), ("areal weighting", 2.0)):
            key = {"matching": f"counties, {decade}", "model": model, "seed": 0}
            values = {"log_score": score, "crps": 1.0 + 0.1 * score, "coverage95": 0.95}
            results.records.append(key | values)
    text = "\n".join(Counts().table(results))
    assert "| 1960 | 1.000 | 2.000 | 1.100 | 1.200 | 0.950 | better in both |" in text
    assert "| 1970 | 3.000 | 2.000 | 1.300 | 1.200 | 0.950 | not better in both |" in text
    assert "1960 (looked at while it was developed)" in text and "1970\n" in text


def test_what_needs_files_is_left_out_without_them(tmp_path, capsys):
    tasks = Counts(seeds=1).tasks()
    assert {task.matching for task in tasks} == {"calibration", "simulated", "tables"}
    assert "for want of --data: counties, rain, stations" in capsys.readouterr().out
    with pytest.raises(UsageError, match="there is no folder"):
        Counts(data=str(tmp_path / "nowhere")).tasks()
    with pytest.raises(UsageError, match="too few for 109 zones"):
        Counts(points=400).tasks()
    with pytest.raises(UsageError, match="hours must be 1 to 22"):
        Counts(hours=30).tasks()
    study = Counts(data=str(tmp_path), problems=("stations", "rain"), hours=1, seeds=1)
    task = study.tasks()[0]
    with pytest.raises(UsageError, match="--data names its folder"):
        study.fit(task)


def test_families_are_calibrated_one_by_one():
    study = Counts(problems=("calibration",), models=("binomial",), draws=12)
    (task,) = study.tasks()
    found = study.fit(task)[0].records[0]
    assert found["draws"] == 12 and 0.5 < found["coverage95"] <= 1


def test_tables_have_two_resolutions_and_ridge_regression_is_scored():
    given = tables(0)
    assert len(given.z) == len(given.truth) == DISTRICTS // 2
    own, weather = given.bags.points[:, 0], given.bags.points[:, 2]
    assert np.mean(np.diff(weather) == 0) > 0.75 and not (np.diff(own) == 0).any()
    assert list(TABLE_MODELS)[-1] == "ridge regression"
    found = table_scores("ridge regression", 0)
    assert 0.1 < found["rmse"] < given.truth.std() and 0.8 < found["coverage95"] <= 1.0


def test_cells_are_blocks_and_gaussian_rain_is_not_negative(monkeypatch):
    field = xr.DataArray(np.arange(13.0 * 20).reshape(13, 20) % 7)
    given = cells(field)
    assert len(given.means) == 6 and len(given.x) == 12 * 18
    assert given.means[0] == field.values[:6, :6].mean()
    assert given.means[4] == pytest.approx(field.values[6:12, 6:12].mean())

    class Fitted:
        mean, std = np.full(216, -1.0), np.ones(216)

    monkeypatch.setattr(dc.VBagg, "fit", lambda self, bags, z: self)
    monkeypatch.setattr(dc.VBagg, "predict", lambda self, x, fine_noise: Fitted)
    for model, below in ((normal, ndtr(1.03)), (log_transform, ndtr(1 + np.log(0.13)))):
        draws = model(given, 0)
        assert (draws.values >= 0).all()
        assert draws.below(0.03).mean() == pytest.approx(below, abs=0.01)
