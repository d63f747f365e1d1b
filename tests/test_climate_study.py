"""The climate experiment on small files of the published layout."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from deconditional import scores
from deconditional.errors import UsageError
from deconditional.inference.posterior import Gaussians

xr = pytest.importorskip("xarray")
pytest.importorskip("cf_xarray")
pytest.importorskip("netCDF4")

from deconditional.cli import main as cli  # noqa: E402
from studies import climate, climate_output  # noqa: E402
from studies.records import Results  # noqa: E402

pytestmark = pytest.mark.usefixtures("quick_compilation")
QUIET = Console(quiet=True)
BLOCK = climate.PUBLISHED.block


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
    data = climate.fields(file)
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
    one, other = climate.fields(file), climate.fields(path)
    for name in ("lat", "lon", "covariates", "truth", "target", "mediator"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_means_over_blocks_are_of_what_is_known():
    values = np.array([[1.0, 2.0, 9.0], [3.0, np.nan, 9.0], [5.0, 7.0, 9.0], [np.nan, 9.0, 9.0]])
    np.testing.assert_allclose(climate._block_means(values, (2, 1))[:, 0], [2.0, 5.0])
    np.testing.assert_allclose(climate._block_means(values, (1, 3))[:, 0], [4, 6, 7, 9])
    assert np.isnan(climate._block_means(np.full((2, 2), np.nan), (2, 2))).all()
    holed = np.random.default_rng(0).normal(size=(7, 9))
    holed[holed < -0.5] = np.nan
    expected = [[np.nanmean(holed[i : i + 2, j : j + 3]) for j in (0, 3, 6)] for i in (0, 2, 4)]
    np.testing.assert_allclose(climate._block_means(holed, (2, 3)), expected)


def test_a_split_halves_the_cells_and_standardises(file):
    data = climate.fields(file)
    drawn = climate.split(data, seed=3)
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
    assert not np.array_equal(climate.split(data, 4).gives_covariates, drawn.gives_covariates)


def test_cells_without_covariates_are_in_no_bag_and_not_predicted(tmp_path):
    holed = published()
    holed.clt[:5, :5] = np.nan
    holed.to_netcdf(tmp_path / "holed.nc")
    data = climate.fields(tmp_path / "holed.nc")
    drawn = climate.split(data, 0)
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
        climate.run(1, out=tmp_path / "out", data=tmp_path / "odd.nc", figures=False, console=QUIET)
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


def test_the_command_on_a_file_of_the_published_layout(tmp_path, file, capsys):
    pytest.importorskip("matplotlib")
    given = ["reproduce", "climate", "--data", str(file), "--seeds", "1", "--inducing", "20"]
    given += ["--models", "oracle", "varcmp", "u-cmp, centred", "--exact-points", "4"]
    given += ["--out", str(tmp_path)]
    assert cli.main(given) == 0
    assert "3 records and tables in" in capsys.readouterr().out
    records = json.loads((tmp_path / "results.json").read_text())
    assert [record["model"] for record in records] == ["oracle", "varcmp", "u-cmp, centred"]
    assert all(0 < record["crps"] < record["mae"] < 60 for record in records)
    data = climate.fields(file)
    drawn = climate.split(data, 0)
    model = climate.MODELS["oracle"](5, 20).fit(drawn.matched, drawn.z)
    mean = drawn.z_mean + drawn.z_std * model.predict(drawn.x).mean.reshape(data.truth.shape)
    assert records[0]["rmse"] == pytest.approx(scores.rmse(mean, data.truth), rel=1e-6)
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["source"] == "march.nc" and settings["coarse cells"] == [3, 4]
    text = (tmp_path / "table.md").read_text()
    assert "8.02 ± 0.28" in text and "--data" in text and "51 x 68 fine cells" in text
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert pictures == {
        "data.png",
        "posterior-oracle.png",
        "posterior-varcmp.png",
        "posterior-u-cmp-centred.png",
    }
    before = (tmp_path / "results.json").read_text()
    assert cli.main(given) == 0 and (tmp_path / "results.json").read_text() == before


def test_exact_models_learn_from_condensed_bags(file, monkeypatch):
    seen = []

    class Flat:
        fit_report_ = SimpleNamespace(log_evidence=0.0)

        def fit(self, bags, z, mediator=None):
            seen.append((bags.n_points, mediator is not None))

        def predict(self, x, fine_noise):
            seen.append(fine_noise)
            return Gaussians(np.zeros((1, len(x))), np.ones((1, len(x))))

    for name in ("cmp", "vbagg", "oracle"):
        monkeypatch.setitem(climate.MODELS, name, lambda d, inducing: Flat())
        task = climate.Task("half", name, 1)
        record, _ = climate._worked(task, (file, 3, 1), 20, 5, None)
    assert seen == [(6 * 5, True), False, (6 * BLOCK**2, True), True, (6 * BLOCK**2, False), True]
    drawn = climate.split(climate.fields(file), 1)
    truth = climate.fields(file).truth
    assert record["rmse"] == pytest.approx(np.sqrt(np.mean((truth - drawn.z_mean) ** 2)))


def test_scores_of_maps(file):
    data = climate.fields(file)
    rng = np.random.default_rng(1)
    mean = data.truth + rng.standard_normal(data.truth.shape)
    maps = {"mean": mean, "std": np.ones_like(mean)}
    found = climate._scores(data, maps)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((mean - data.truth) ** 2)))
    assert found["coverage95"] == pytest.approx(np.mean(np.abs(mean - data.truth) < 1.96), abs=1e-3)
    assert found["pearson"] == pytest.approx(np.corrcoef(mean.ravel(), data.truth.ravel())[0, 1])
    assert found["ssim"] == scores.ssim(mean, data.truth)
    assert found["ssim_unit_range"] == scores.ssim(mean, data.truth, 1.0) < found["ssim"]
    lone = {"mean": np.where(np.indices(mean.shape).sum(0) % 7, mean, np.nan), "std": maps["std"]}
    assert np.isnan(climate._scores(data, lone)["ssim"])  # no window is whole
    # What is not predicted is not scored.
    mean[:7] = np.nan
    rest = climate._scores(data, maps)
    assert rest["rmse"] == pytest.approx(np.sqrt(np.mean((mean - data.truth)[7:] ** 2)))


def test_wrong_questions(tmp_path, file):
    for changes, message in (
        ({"models": ["varcpm"]}, "unknown model 'varcpm'; choose from 'vargpr'"),
        ({"seeds": 0}, "at least 1, not 0"),
        ({"data": None, "month": 13}, "months run from 1 to 12, not 13"),
        ({"month": 3}, "a file of fields has its own"),
    ):
        options = {"seeds": 1, "data": file, "out": tmp_path / "out"} | changes
        with pytest.raises(UsageError, match=message):
            climate.run(**options, console=QUIET)
    assert not (tmp_path / "out").exists()


def test_the_table_names_ours_and_the_papers(tmp_path):
    results = Results.open(tmp_path, {})
    for seed, rmse in enumerate((2.0, 3.0)):
        record = {"matching": "half", "model": "varcmp", "seed": seed, "rmse": rmse}
        record |= dict.fromkeys(("mae", "pearson", "spearman", "ssim", "ssim_unit_range"), 0.5)
        record |= dict.fromkeys(("crps", "coverage95", "fit_seconds"), 1.0)
        results.add(record, {"warnings": [], "code": "abc"})
    settings = {"fine cells": [51, 68], "coarse cells": [3, 4], "source": "march.nc"}
    settings |= {"inducing": 20, "exact_points": None}
    text = climate_output.table(results, list(climate.MODELS), settings, "the command")
    assert "| varcmp | 2 | 2.50 ± 0.71 | 0.50 ± 0.00 |" in text
    assert "| varcmp | 7.40 ± 0.25 | 5.34 ± 0.22 | 0.848 ± 0.011 | 0.212 ± 0.013 |" in text
    assert "exact models learn from all points" in text and "| vbagg | 2" not in text
