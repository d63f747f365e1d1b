"""The study of files that users have: its problems, and what it makes of them."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import deconditional as dc

xr = pytest.importorskip("xarray")
pytest.importorskip("cf_xarray")
if importlib.util.find_spec("itur") is None:
    pytest.skip("needs itur", allow_module_level=True)

from deconditional.errors import UsageError  # noqa: E402
from deconditional.fields.learn import Learner  # noqa: E402
from studies.first_files import FirstFiles  # noqa: E402
from studies.first_scenarios import SCENARIOS, Files, random_scenario  # noqa: E402
from test_downscale_command import Regression  # noqa: E402

EXCERPTS = Path(__file__).parent / "data" / "first-files"
FILES = Files(EXCERPTS)


def scenario(name):
    return next(each for each in SCENARIOS if each.name == name)


def test_there_are_many_and_each_has_a_name_of_its_own():
    names = [each.name for each in SCENARIOS]
    assert len(set(names)) == len(names) >= 20


def test_coarse_values_are_means_of_the_truth():
    given = scenario("sea, year before, 48").make(FILES)
    assert given.coarse.sst.shape == (3, 16) and given.covariates == ("before",)
    weights = np.cos(np.deg2rad(given.truth.lat))
    corner = (slice(0, 6), slice(0, 9))
    expected = given.truth[corner].weighted(weights[:6]).mean()
    assert float(given.coarse.sst[0, 0]) == pytest.approx(float(expected), rel=1e-5)
    assert given.truth.isnull().any() and not given.truth.isnull().all()


def test_covariates_come_before_the_target_where_time_divides_them():
    given = scenario("air, unmatched in time, 48").make(FILES)
    assert given.truth.time.equals(given.fine.time) and given.fine.sizes["time"] == 2
    known = given.coarse.a1b.notnull().any(("lat", "lon")).values
    assert known.tolist() == [False, False, True, True]
    assert given.coarse.coarse_e1.notnull().all()


@pytest.mark.parametrize("seed", range(6))
def test_random_problems_are_made_of_what_is_there(seed):
    found = random_scenario(seed, ["air", "sea"])
    given = found.make(FILES)
    assert found == random_scenario(seed, ["air", "sea"])
    cells = given.coarse[given.target].isel(time=0, missing_dims="ignore")
    assert 12 <= cells.size <= 450
    assert set(given.covariates) <= set(given.fine.data_vars)


def test_one_fit_scores_all_that_is_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Learner, "fit", lambda self, name, data, z: Regression(data, z))
    names = ("air, E1, 48", "rain, position, 12")
    results = FirstFiles(data=str(EXCERPTS), scenarios=names).run(tmp_path)
    assert (
        "left out, for want of rain/stage4_hourly.nc: rain, position, 12" in capsys.readouterr().out
    )
    models = [record["model"] for record in results.records]
    assert models == ["default", "bagg-gp", "regression-kriging", "kriging", "bilinear"]
    given = scenario("air, E1, 48").make(FILES)
    plain = dc.fields.interpolation.bilinear(given.coarse.a1b, given.truth)
    (record,) = results.where(model="bilinear")
    assert record["rmse"] == pytest.approx(float(np.sqrt(((plain - given.truth) ** 2).mean())))
    page = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "1 scenarios: RMSE at most 1.05 times the best simple answer in 1" in page


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="there is no folder"):
        FirstFiles(data=str(tmp_path / "nowhere")).tasks()
