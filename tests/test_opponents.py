"""The simplest answers against dense algebra and SciPy, and where all models are compared."""

import json
import warnings

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

import deconditional as dc
from deconditional.errors import DegenerateFitWarning, NoSkillWarning, UsageError
from deconditional.inference.held_out import from_means, held_out

xr = pytest.importorskip("xarray")
pytest.importorskip("cf_xarray")

from deconditional.fields.mixture import DRAWS  # noqa: E402
from deconditional.fields.opponents import detail, interpolated, others  # noqa: E402

ROWS, COLUMNS, BLOCK = 6, 8, 3


def axis(n, name):
    centres = 1000.0 * (np.arange(n) + 0.5)
    return {name: (name, centres, {"units": "m", "standard_name": f"projection_{name}_coordinate"})}


def fields(**values):
    """Fields on a plane of 18 x 24 cells."""
    shape = (ROWS * BLOCK, COLUMNS * BLOCK)
    coords = axis(shape[0], "y") | axis(shape[1], "x")
    return xr.Dataset({name: (("y", "x"), v) for name, v in values.items()}, coords)


def waves(rng):
    """A smooth field."""
    y, x = np.meshgrid(np.arange(ROWS * BLOCK), np.arange(COLUMNS * BLOCK), indexing="ij")
    return np.sin(y / 7.0 + rng.uniform(0, 6)) + np.cos(x / 6.0 + rng.uniform(0, 6))


@pytest.fixture(scope="module")
def answers():
    """What auto finds where the covariate is all there is to the field, and where it is noise."""
    rng = np.random.default_rng(0)
    covariate, noise = rng.standard_normal((2, ROWS * BLOCK, COLUMNS * BLOCK))
    told = waves(rng) + covariate + 0.05 * np.random.default_rng(5).standard_normal(covariate.shape)
    found = {}
    for name, truth, known in (("told", told, covariate), ("smooth", waves(rng), noise)):
        both = fields(target=truth, known=known)
        coarse = dc.datasets.coarsen(both[["target"]], BLOCK)
        asked = dc.Downscaler(
            *("target", ["known"]),
            **{"n_restarts": 1, "points_per_bag": None, "model_options": {"method": "map"}},
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegenerateFitWarning)  # nothing is left for some parts
            found[name] = both, coarse, asked.fit(both[["known"]], coarse)
    return found


def test_other_options_of_simple_models_are_refused(answers):
    both, coarse, _ = answers["told"]
    with pytest.raises(UsageError, match="for kriging are method and method_options, not trend"):
        dc.downscale(both, coarse, "target", model="kriging", model_options={"trend": "none"})


def test_means_over_single_observations_are_the_others():
    """Knowing the others one by one is holding out what is left."""
    rng = np.random.default_rng(0)
    root, z = rng.standard_normal((9, 12)), rng.standard_normal(9)
    covariance, fold = root @ root.T, np.arange(9) % 3
    mean, variance = held_out(covariance, z, fold)
    for trial in others(fold):
        again = from_means(covariance, z, trial.shares)
        np.testing.assert_allclose(again[0][trial.asked], mean[trial.asked], rtol=1e-9)
        np.testing.assert_allclose(again[1][trial.asked], variance[trial.asked], rtol=1e-9)


def test_means_are_conditioned_on_by_dense_algebra():
    rng = np.random.default_rng(1)
    root, z, shares = rng.standard_normal((8, 11)), rng.standard_normal(8), rng.random((3, 8))
    c = root @ root.T
    gain = c @ shares.T @ np.linalg.inv(shares @ c @ shares.T)
    mean, variance = from_means(c, z, shares)
    np.testing.assert_allclose(mean, gain @ shares @ z, rtol=1e-8)
    np.testing.assert_allclose(variance, np.diag(c - gain @ shares @ c), rtol=1e-8)
    np.testing.assert_allclose(shares @ mean, shares @ z, rtol=1e-9)  # what is known stays


def test_every_detail_is_asked_for_where_means_are_known(answers):
    pairing = answers["told"][2].pairing_
    trials = list(detail(pairing, np.arange(len(pairing.z)), 4, seed=0))
    asked = np.sum([trial.asked for trial in trials], 0)
    assert len(trials) == 4 and asked.mean() > 0.5
    for shares, inside in trials:
        np.testing.assert_allclose(shares.sum(1), 1.0)
        single = (shares > 0).sum(1) == 1
        assert not (shares[single][:, inside] > 0).any()  # known as a part of a mean alone
        assert (shares[~single].astype(bool).sum(1) <= 4).all()


def test_interpolation_is_that_of_scipy(answers):
    """Of a plane, whatever the triangles; between the centres of a grid with a hole."""
    pairing = answers["told"][2].pairing_
    grid, n = pairing.coarse, len(pairing.z)
    z = 2.0 * pairing.coarse.positions[:, 0] - 3.0 * pairing.coarse.positions[:, 1]
    inner = np.zeros(grid.shape, dtype=bool)
    inner[1:-1, 1:-1] = True
    fold = np.where(inner.ravel() & (np.arange(n) % 2 == 0), 0, 1)
    trial = next(others(fold))
    found = interpolated(pairing, np.arange(n), z, trial)
    plane = RegularGridInterpolator((grid.y.centres, grid.x.centres), z.reshape(grid.shape))
    centres = np.stack(np.meshgrid(grid.y.centres, grid.x.centres, indexing="ij"), -1)
    expected = plane(centres.reshape(-1, 2))[trial.asked]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_kriging_equals_dense_algebra(answers):
    """Area-to-point kriging with a known mean of vague prior, cell by cell."""
    both, _, downscaler = answers["told"]
    one = downscaler.using("kriging")
    model, problem = one.model_, one.learner_.problem
    x = problem.inputs(
        np.concatenate(
            [grid.ravel()[:, None] for grid in np.meshgrid(both.y, both.x, indexing="ij")]
            + [both.known.values.ravel()[:, None]],
            1,
        )
    )
    k = np.asarray(model.kernel_.cross_covariance(x, x))
    cell = (np.arange(ROWS * BLOCK)[:, None] // BLOCK) * COLUMNS
    cell = (cell + np.arange(COLUMNS * BLOCK) // BLOCK).ravel()
    p = (cell[:, None] == np.arange(ROWS * COLUMNS)) / BLOCK**2
    vague, *_ = np.asarray(model.fitted_.problem.trend.prior_std)
    k = k + vague**2
    noise = float(model.parameters_["noise_std"]) ** 2
    c = p.T @ k @ p + noise * np.eye(p.shape[1])
    mean = k @ p @ np.linalg.solve(c, problem.z)
    expected = problem.target.centre + problem.target.scale * mean
    found = one.predict(both[["known"]])["mean"].values.ravel()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_regression_interpolates_what_is_left():
    """Where the field is linear in a covariate it has no error, and its error is a doubt."""
    rng = np.random.default_rng(3)
    known = rng.standard_normal((ROWS * BLOCK, COLUMNS * BLOCK))
    both = fields(target=2.0 + 3.0 * known, known=known)
    coarse = dc.datasets.coarsen(both[["target"]], BLOCK)
    fixed = {"model_options": {"fixed": {"noise_std": 30.0}}, "trend": "constant"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        asked = dc.Downscaler("target", ["known"], model="bagg-gp", n_restarts=1, **fixed)
        table = asked.fit(both[["known"]], coarse).comparison_
    (row,) = (row for row in table.rows if row["model"] == "regression")
    assert row["rmse"] < 1e-9 and row["detail_rmse"] < 1e-9 and row["coverage95"] is None
    assert table.doubt().startswith("a linear regression, its residuals interpolated, would have")
    assert "bilinear interpolation" in table.skill()


def test_a_covariate_that_is_all_prefers_the_regression(answers):
    both, _, downscaler = answers["told"]
    table = downscaler.comparison_
    draws = table.shares(downscaler.model_name_)
    assert draws["regression-kriging"] + draws["bagg-gp"] == DRAWS and "kriging" not in draws
    errors = table.errors
    assert errors["regression-kriging"] < 0.7 * min(errors["kriging"], errors["bilinear"])
    assert table.doubt() is None
    result = downscaler.predict(both[["known"]])
    assert "doubt" not in result.attrs and result.attrs["skill"] == table.skill()
    error = result["mean"] - both.target
    assert float(np.sqrt((error**2).mean())) < 0.5 * float(both.target.std())


def test_a_covariate_of_noise_does_no_harm(answers):
    """Kriging, which does not see it, is better by a few hundredths of the field's spread."""
    both, _, downscaler = answers["smooth"]
    assert downscaler.comparison_.shares("mixture")["kriging"] >= DRAWS / 3
    errors = {}
    for name in ("kriging", downscaler.model_name_):
        error = downscaler.using(name).predict(both[["known"]])["mean"] - both.target
        errors[name] = float(np.sqrt((error**2).mean()))
    assert errors[downscaler.model_name_] < errors["kriging"] + 0.03 * float(both.target.std())


@pytest.mark.filterwarnings("ignore::deconditional.errors.DeconditionalWarning")
def test_no_skill_is_said_everywhere():
    """The field is a plane, which interpolation has exactly, seen through a blunt model."""
    y, x = np.meshgrid(np.arange(ROWS * BLOCK), np.arange(COLUMNS * BLOCK), indexing="ij")
    rng = np.random.default_rng(2)
    both = fields(target=1.0 * y + x, known=rng.standard_normal(y.shape))
    coarse = dc.datasets.coarsen(both[["target"]], BLOCK)
    with pytest.warns(NoSkillWarning, match="bilinear interpolation would have been as good: RMSE"):
        result = dc.downscale(
            both[["known"]],
            coarse,
            "target",
            ["known"],
            model="bagg-gp",
            trend="constant",
            n_restarts=1,
            model_options={"fixed": {"noise_std": 30.0}},
        )
    assert result.attrs["doubt"].startswith("bilinear interpolation would have been as good")
    table = json.loads(result.attrs["deconditional"])["comparison"]
    assert table["doubt"] == result.attrs["doubt"] and table["skill"] == result.attrs["skill"]
    assert [row[0] for row in table["rows"]] == ["bagg-gp", "regression", "bilinear"]
