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
from deconditional.fields import learn  # noqa: E402
from deconditional.fields.learn import Learner  # noqa: E402
from studies.first_files import FirstFiles, _simple  # noqa: E402
from studies.first_scenarios import SCENARIOS, Files, random_scenario  # noqa: E402
from studies.package_files import LOOKED_AT, SCORED_ONCE  # noqa: E402
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
    monkeypatch.setattr(learn, "mixed", list)  # of such models there is no mixture
    names = ("air, E1, 48", "rain, position, 12")
    results = FirstFiles(data=str(EXCERPTS), scenarios=names).run(tmp_path)
    assert (
        "left out, for want of rain/stage4_hourly.nc: rain, position, 12" in capsys.readouterr().out
    )
    models = [record["model"] for record in results.records]
    ours = ["bagg-gp", "regression-kriging", "kriging"]
    assert models == ["default", *ours, "bilinear", "regression"]
    given = scenario("air, E1, 48").make(FILES)
    plain = dc.fields.opponents.bilinear(given.coarse.a1b, given.truth)
    (record,) = results.where(model="bilinear")
    assert record["rmse"] == pytest.approx(float(np.sqrt(((plain - given.truth) ** 2).mean())))
    page = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "1 scenarios: RMSE at most 1.05 times the best simple answer in 0" in page


def test_the_simple_regression_finds_what_is_linear():
    found = scenario("air, E1, 12 years of 48")
    given, block = found.make(FILES), found.cut.block
    linear = 2.0 + 3.0 * dc.datasets.coarsen(given.fine, block).e1
    given = given._replace(coarse=given.coarse.assign(a1b=linear.where(given.coarse.lat > 30)))
    simple = _simple(given, block)
    expected = 2.0 + 3.0 * given.everywhere.e1
    np.testing.assert_allclose(simple["regression"], expected.transpose(*given.truth.dims), 1e-4)
    assert float(np.abs(simple["bilinear"] - expected).max()) > 1.0


def test_the_oracle_has_what_unmatched_data_lacks():
    found = scenario("air, unmatched in time, 48")
    assert found.matched.make(FILES).coarse.a1b.notnull().all()
    assert scenario("air, E1, 48").matched == scenario("air, E1, 48")


def test_cells_of_a_curvilinear_ocean_keep_their_corners(tmp_path):
    y, x = np.mgrid[0:330, 0:360]
    lat, lon = 0.5 * (y - 165.0) + 0.01 * x, x - 180.0 + 0.02 * y
    around = np.array([[-1, -1], [-1, 1], [1, 1], [1, -1]]) / 2.0
    corners = {
        "bounds_lat": lat[..., None] + 0.5 * around[:, 0] + 0.01 * around[:, 1],
        "bounds_lon": lon[..., None] + around[:, 1] + 0.02 * around[:, 0],
    }
    named = {
        n: (("y", "x"), v, {"standard_name": s, "units": u, "bounds": f"bounds_{n[-3:]}"})
        for n, v, s, u in (
            ("nav_lat", lat, "latitude", "degrees_north"),
            ("nav_lon", lon, "longitude", "degrees_east"),
        )
    }
    cells = {name: (("y", "x", "nvertex"), values) for name, values in corners.items()}
    sst = xr.Dataset({"tos": (("time_counter", "y", "x"), lat[None]), **cells}, coords=named)
    (tmp_path / "climate").mkdir()
    sst.to_netcdf(tmp_path / "climate" / "nemo_1m_20150101-20150201_grid-T.nc")
    given = scenario("ocean, air, 20").make(Files(tmp_path))
    assert given.coarse.tos.shape == (4, 5) and given.coarse.nav_lat_bnds.ndim == 3
    flat = dc.fields.opponents.bilinear(given.coarse.tos, given.truth)
    inside = (slice(12, -12), slice(12, -12))
    np.testing.assert_allclose(flat[inside], given.truth[inside], atol=1.0)  # of 40


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="there is no folder"):
        FirstFiles(data=str(tmp_path / "nowhere")).tasks()


def test_files_of_packages_are_found_below_a_folder(tmp_path):
    folder = tmp_path / "libncarg-data/usr/share/ncarg/data/nug"
    folder.mkdir(parents=True)
    values = np.random.default_rng(0).standard_normal((2, 64, 128))
    axes = {"lat": np.linspace(-88, 88, 64), "lon": np.linspace(-180, 177, 128)}
    winds = xr.Dataset({name: (("time", *axes), values) for name in "UV"}, axes)
    winds.to_netcdf(folder / "uv300.nc")
    study = FirstFiles(packages=str(tmp_path), scenarios=("winds, 64", "coads, air, 60"))
    assert [each.name for each in study.chosen()] == ["coads, air, 60", "winds, 64"]
    given = next(each for each in SCORED_ONCE if each.name == "winds, 64").make(study.files)
    assert given.coarse.U.shape == (8, 8) and given.covariates == ("V",)
    with pytest.raises(UsageError, match="no ferret-vis/data/coads_climatology"):
        LOOKED_AT[0].make(study.files)
    assert len({each.name for each in LOOKED_AT + SCORED_ONCE + SCENARIOS}) == 19 + len(SCENARIOS)
