"""The climate experiment on small files of the published layout."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from rich.console import Console

from deconditional import scores
from deconditional.errors import UsageError
from deconditional.inference.posterior import Gaussians

xr = pytest.importorskip("xarray")
pytest.importorskip("cf_xarray")
pytest.importorskip("netCDF4")

from studies import climate, climate_fields  # noqa: E402
from studies.climate import Climate  # noqa: E402
from studies.climate_fields import PUBLISHED, fields, split  # noqa: E402
from studies.frame import Task  # noqa: E402
from studies.records import Results  # noqa: E402

QUIET = Console(quiet=True)
BLOCK = PUBLISHED.block


def published(rows=3 * BLOCK + 3, columns=4 * BLOCK + 6):
    """A made-up month in the layout of the published file, margins past the last block included."""
    rng = np.random.default_rng(0)
    lat = np.linspace(60, -60, rows)
    lon = np.linspace(0, 170, columns)
    north, east = np.meshgrid(np.radians(lat), np.radians(lon), indexing="ij")
    orog = np.maximum(0, 2000 * np.sin(5 * north) * np.cos(3 * east))
    clt = 50 + 30 * np.cos(4 * east) * np.cos(2 * north)
    albedo = 0.4 + 0.1 * np.sin(6 * east + north) + 0.01 * rng.standard_normal(orog.shape)
    ttop = 240 + 40 * np.cos(north) - 0.006 * orog + 0.1 * clt
    pressure = 300 + 4 * (ttop - 240)
    names = {"orog": orog, "clt": clt, "albisccp": albedo, "pctisccp": pressure, "ttop": ttop}
    return xr.Dataset(
        {name: (("lat", "lon"), values) for name, values in names.items()},
        coords={
            "lat": ("lat", lat, {"units": "degrees_north", "standard_name": "latitude"}),
            "lon": ("lon", lon, {"units": "degrees_east", "standard_name": "longitude"}),
        },
    ).assign(ttop=lambda data: data.ttop.assign_attrs(units="K"))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("climate") / "march.nc"
    published().to_netcdf(path)
    return path


# --- data -----------------------------------------------------------------------------------------


def test_fields_are_cut_to_whole_blocks_and_averaged(file):
    data = fields(file)
    assert (data.truth.shape, data.target.shape, data.unit) == ((51, 68), (3, 4), "K")
    rising = published().sortby("lat")
    np.testing.assert_allclose(data.lat, rising.lat[:51])
    np.testing.assert_allclose(data.truth, rising.ttop[:51, :68])
    blocks = rising.pctisccp.values[:51, :68].reshape(3, BLOCK, 4, BLOCK)
    np.testing.assert_allclose(data.mediator, blocks.mean((1, 3)), rtol=1e-12)
    np.testing.assert_allclose(data.covariates[..., 2], rising.albisccp[:51, :68])
    assert data.layout.covariates == ("orog", "clt", "albisccp")


def test_the_order_of_latitude_changes_nothing(tmp_path, file):
    path = tmp_path / "rising.nc"
    turned = published().isel(lat=slice(None, None, -1), lon=slice(None, None, -1))
    turned.expand_dims(time=1).to_netcdf(path)
    one, other = fields(file), fields(path)
    for name in ("lat", "lon", "covariates", "truth", "target", "mediator"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_means_over_blocks_are_of_what_is_known():
    values = np.array([[1.0, 2.0, 9.0], [3.0, np.nan, 9.0], [5.0, 7.0, 9.0], [np.nan, 9.0, 9.0]])
    np.testing.assert_allclose(climate_fields._block_means(values, (2, 1))[:, 0], [2.0, 5.0])
    np.testing.assert_allclose(climate_fields._block_means(values, (1, 3))[:, 0], [4, 6, 7, 9])
    assert np.isnan(climate_fields._block_means(np.full((2, 2), np.nan), (2, 2))).all()
    holed = np.random.default_rng(0).normal(size=(7, 9))
    holed[holed < -0.5] = np.nan
    expected = [[np.nanmean(holed[i : i + 2, j : j + 3]) for j in (0, 3, 6)] for i in (0, 2, 4)]
    np.testing.assert_allclose(climate_fields._block_means(holed, (2, 3)), expected)


def test_a_split_halves_the_cells_and_standardises(file):
    data = fields(file)
    drawn = split(data, seed=3)
    assert drawn.gives_covariates.sum() == drawn.bags.n_bags == drawn.matched.n_bags == 6
    np.testing.assert_array_equal(drawn.gives_target, ~drawn.gives_covariates)
    assert len(drawn.z) == 6 and abs(drawn.z.mean()) < 1e-12 and drawn.z.std() == pytest.approx(1)
    # Bags hold the standardised inputs of their own cells, in the order of the cells.
    cells = np.flatnonzero(drawn.gives_covariates)
    place = np.unravel_index(cells[2], data.target.shape)
    window = tuple(slice(BLOCK * k, BLOCK * (k + 1)) for k in place)
    x = drawn.x.reshape(*data.truth.shape, -1)[window].reshape(-1, 5)
    np.testing.assert_allclose(np.sort(drawn.bags.points[drawn.bags.bag == 2], 0), np.sort(x, 0))
    np.testing.assert_allclose(drawn.bags.points.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(drawn.bags.points.std(0), 1)
    # The observations are the coarse values of the other cells, with their own bags beside them.
    others = np.flatnonzero(~drawn.gives_covariates)
    z = drawn.z_mean + drawn.z_std * drawn.z
    np.testing.assert_allclose(z, data.target.ravel()[others])
    truth = (data.truth.ravel() - drawn.z_mean) / drawn.z_std
    cell_of = np.arange(12).reshape(3, 4).repeat(BLOCK, 0).repeat(BLOCK, 1).ravel()
    means = [truth[cell_of == cell].mean() for cell in others]
    np.testing.assert_allclose(drawn.z, means, atol=1e-12)
    pressure = data.mediator.ravel()
    expected = (pressure[others] - pressure.mean()) / pressure.std()
    np.testing.assert_allclose(drawn.mediator[:, 2], expected)
    np.testing.assert_allclose(drawn.matched.mediator, drawn.mediator)
    assert not np.array_equal(split(data, 4).gives_covariates, drawn.gives_covariates)


def test_cells_without_covariates_are_in_no_bag_and_not_predicted(tmp_path):
    holed = published()
    holed.clt[:5, :5] = np.nan
    holed.to_netcdf(tmp_path / "holed.nc")
    data = fields(tmp_path / "holed.nc")
    drawn = split(data, 0)
    # Latitude descends in the file; three rows past the last block are cut at its northern end.
    assert (~drawn.known).sum() == 2 * 5 and drawn.x.shape == (51 * 68 - 10, 5)
    assert drawn.bags.n_points + drawn.matched.n_points == len(drawn.x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.drop_vars("orog"), "has no variable 'orog'; the experiment reads ttop, orog"),
        (lambda d: d.isel(lat=slice(20), lon=slice(20)), "fewer than four blocks"),
        (
            lambda d: d.expand_dims(time=np.arange(3.0)),
            "3 steps of time; the experiment takes a single one",
        ),
        (lambda d: d.assign(clt=0 * d.clt), "clt is constant where covariates are given"),
        (lambda d: d.assign(pctisccp=np.nan * d.pctisccp), "only 0 coarse cells"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, change, message):
    change(published()).to_netcdf(tmp_path / "odd.nc")
    with pytest.raises(UsageError, match=message):
        study = Climate(seeds=1, data=str(tmp_path / "odd.nc"))
        study.run(tmp_path / "out", figures=False, console=QUIET)
    assert not (tmp_path / "out").exists()


# --- models ---------------------------------------------------------------------------------------


def test_models_are_those_of_the_paper():
    made = {name: make(5, 30) for name, make in climate.MODELS.items()}
    for name in ("vargpr", "vbagg"):
        assert not made[name].propagate and made[name].trend == made[name].base.trend == "none"
        assert made[name].base.n_inducing == 30 and made[name].base.fine_noise
        fair = made[f"{name}, fair"]
        assert fair.propagate and fair.trend == fair.base.trend == "linear"
    assert made["varcmp"].n_inducing == 30 and made["varcmp"].fine_noise
    assert (made["cmp"].uncertainty, made["u-cmp"].uncertainty) == (False, True)
    assert made["u-cmp, centred"].centred
    assert not any(made[name].fine_noise for name in climate.EXACT)
    x, y = np.array([0.3, -0.2, 0.5, 1.0, -0.4]), np.array([-0.1, 0.4, 0.2, 0.3, 0.6])
    near = np.linalg.norm(x[:2] - y[:2]) * np.sqrt(3)
    expected = (1 + near) * np.exp(-near) + np.exp(-0.5 * np.sum((x[2:] - y[2:]) ** 2))
    assert float(made["cmp"].kernel(x, y)) == pytest.approx(expected, rel=1e-12)


# --- the whole of it ------------------------------------------------------------------------------


class Flat:
    """A model that predicts its first observation everywhere, and notes what it is given."""

    seen: ClassVar[list] = []
    fit_report_ = SimpleNamespace(log_evidence=0.0)

    def fit(self, bags, z, mediator=None):
        self.seen.append((bags.n_points, mediator is not None))
        self.level = z[0]

    def predict(self, x, fine_noise):
        self.seen.append(fine_noise)
        return Gaussians(np.full((1, len(x)), self.level), np.ones((1, len(x))))


@pytest.fixture
def flat(monkeypatch):
    monkeypatch.setattr(Flat, "seen", [])
    for name in climate.MODELS:
        monkeypatch.setitem(climate.MODELS, name, lambda d, inducing: Flat())
    return Flat.seen


def test_a_run_on_a_file_of_the_published_layout(tmp_path, file, flat):
    pytest.importorskip("matplotlib")
    models = ("oracle", "vbagg", "u-cmp, centred")
    study = Climate(data=str(file), seeds=1, models=models, exact_points=5)
    results = study.run(tmp_path, command="it --data", console=QUIET)
    # Exact models learn from condensed bags; the oracle from the bags of the cells observed.
    every = 6 * BLOCK**2
    assert flat == [(every, False), True, (every, True), True, (6 * 5, True), False]
    data = fields(file)
    drawn = split(data, 0)
    level = drawn.z_mean + drawn.z_std * drawn.z[0]
    for record, model in zip(results.records, models, strict=True):
        assert record["model"] == model
        assert record["rmse"] == pytest.approx(np.sqrt(np.mean((data.truth - level) ** 2)))
        assert record["mae"] == pytest.approx(np.mean(np.abs(data.truth - level)))
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["source"] == "march.nc" and settings["coarse cells"] == [3, 4]
    text = (tmp_path / "table.md").read_text()
    rmse, mae = (f"{record[name]:.2f}" for name in ("rmse", "mae"))
    assert f"| vbagg | 1 | {rmse} | {mae} |" in text and "| cmp |" not in text
    assert "| varcmp | 7.40 ± 0.25 | 5.34 ± 0.22 | 0.848 ± 0.011 | 0.212 ± 0.013 |" in text
    assert "it --data" in text and "51 x 68 fine cells" in text
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "data.png",
        "posterior-oracle.png",
        "posterior-vbagg.png",
        "posterior-u-cmp-centred.png",
    }
    assert study.picture(Task("half", "cmp", 1)) is None


def test_scores_of_maps(file):
    data = fields(file)
    rng = np.random.default_rng(1)
    mean = data.truth + rng.standard_normal(data.truth.shape)
    maps = {"mean": mean, "std": np.ones_like(mean)}
    found = climate.map_scores(data, maps)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((mean - data.truth) ** 2)))
    assert found["coverage95"] == pytest.approx(np.mean(np.abs(mean - data.truth) < 1.96), abs=1e-3)
    assert found["pearson"] == pytest.approx(np.corrcoef(mean.ravel(), data.truth.ravel())[0, 1])
    assert found["ssim"] == scores.ssim(mean, data.truth)
    assert found["ssim_unit_range"] == scores.ssim(mean, data.truth, 1.0) < found["ssim"]
    lone = {"mean": np.where(np.indices(mean.shape).sum(0) % 7, mean, np.nan), "std": maps["std"]}
    assert np.isnan(climate.map_scores(data, lone)["ssim"])  # no window is whole
    # What is not predicted is not scored.
    mean[:7] = np.nan
    rest = climate.map_scores(data, maps)
    assert rest["rmse"] == pytest.approx(np.sqrt(np.mean((mean - data.truth)[7:] ** 2)))


def test_the_table_sums_up_over_draws(file):
    results = Results(Path("nowhere"), Task._fields)
    names = ("mae", "pearson", "spearman", "ssim", "ssim_unit_range", "crps", "coverage95")
    for seed, rmse in enumerate((2.0, 3.0)):
        record = {"matching": "half", "model": "varcmp", "seed": seed, "rmse": rmse}
        results.records.append(record | dict.fromkeys(names, 0.5) | {"fit_seconds": 7.0})
    text = "\n".join(Climate(data=str(file), exact_points=None).table(results))
    assert "| varcmp | 2 | 2.50 ± 0.71 | 0.50 ± 0.00 |" in text
    assert "exact models learn from all points" in text and "| vbagg | 2" not in text
