"""Downscaling from datasets to a dataset: what comes out, and what must not matter."""

import json
import warnings
from types import SimpleNamespace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from sklearn.exceptions import NotFittedError

import deconditional as dc
from deconditional.bags import Bags
from deconditional.datasets import coarsen, split_cells, synthetic_fields
from deconditional.datasets.made_up import smooth
from deconditional.errors import UsageError
from deconditional.models import BaggGP, CentroidGP, PseudoTarget, VarCentroidGP, VarCMP, VBagg
from made_up_grids import projected_fields

xr = pytest.importorskip("xarray")
pytest.importorskip("cf_xarray")

import gpjax.kernels as gk  # noqa: E402

from deconditional.fields import learn  # noqa: E402
from deconditional.fields.default_kernels import Inputs, field_kernel  # noqa: E402
from deconditional.fields.description import meaning  # noqa: E402
from deconditional.fields.downscaling import select_time  # noqa: E402
from deconditional.fields.problem import FitData  # noqa: E402
from deconditional.fields.recipes import Recipe, candidates, condensed_size  # noqa: E402
from deconditional.fields.scaling import InputScaling, TargetScaling  # noqa: E402
from deconditional.fields.sides import FineSide, two_sides  # noqa: E402

BLOCK = 4
COVARIATES, MEDIATORS = ("altitude", "cloud"), ("water_vapour",)
SLOPES = (3, 4)  # the covariates follow three coordinates of position
DAYS = ["2000-01-01", "2000-01-06", "2000-01-11"]
KERNEL, LINK = gk.RBF(lengthscale=jnp.ones(5)), gk.RBF(lengthscale=jnp.ones(4))
FIXED = {"kernel.lengthscale": [0.7, 0.7, 0.7, 1.5, 1.1], "kernel.variance": 1.3, "noise_std": 0.1}
LINKED = FIXED | {"mediator_kernel.lengthscale": [0.9, 0.9, 0.9, 0.6], "ridge": 0.003}
CONDITIONAL = ("cmp", "s-cmp", "u-cmp", "varcmp")
VARIATIONAL = {"vbagg": 60, "varcmp": 60, "vargpr": 20}


def example(matched, n_lon=32, projected=False, **options):
    kind = projected_fields if projected else synthetic_fields
    fields = kind(16, n_lon, **options)
    return split_cells(fields, "tas", COVARIATES, MEDIATORS, BLOCK, matched=matched)


def model_options(name):
    inducing = {"n_inducing": VARIATIONAL[name]} if name in VARIATIONAL else {}
    return {"fixed": LINKED if name in CONDITIONAL else FIXED} | inducing


def asked(model, **changes):
    """Arguments of a downscaler whose parameters are all held, so that a fit is one evaluation."""
    return {
        "target": "tas",
        "covariates": COVARIATES,
        "mediators": MEDIATORS,
        "model": model,
        "kernel": KERNEL if isinstance(model, str) else None,
        "mediator_kernel": LINK if isinstance(model, str) else None,
        "n_restarts": 1,
        "model_options": model_options(model) if isinstance(model, str) else None,
    } | changes


def prepared(data, *model, **changes):
    """All that comes before learning."""
    downscaler = dc.Downscaler(**asked(*model, **changes))
    return downscaler.prepare(*two_sides(data.fine, data.coarse, downscaler.question()))


def fitted(model, data, **changes):
    return dc.Downscaler(**asked(model, **changes)).fit(data.fine, data.coarse)


class Fit(NamedTuple):
    data: dc.datasets.FieldsExample
    downscaler: dc.Downscaler


@pytest.fixture(scope="module")
def matched():
    data = example(1.0)
    data.coarse.attrs["history"] = "2001-01-01: coarse values made up"
    return Fit(data, fitted("bagg-gp", data))


@pytest.fixture(scope="module")
def partly():
    data = example(0.5)
    return Fit(data, fitted("cmp", data))


@pytest.fixture(scope="module")
def unmatched():
    data = example(0.0)
    return Fit(data, fitted("cmp", data))


@pytest.fixture(scope="module")
def in_time():
    """The first two of three days."""
    whole = example(1.0, n_lon=16, times=DAYS)
    data = whole._replace(
        fine=whole.fine.isel(time=[0, 1]),
        coarse=whole.coarse.isel(time=[0, 1]),
        everywhere=whole.everywhere.isel(time=[2]),
    )
    return Fit(data, fitted("bagg-gp", data, time="ignore"))


# --- plain arrays -------------------------------------------------------------------------------


def unit_vectors(lat, lon):
    lat, lon = np.meshgrid(np.radians(lat), np.radians(lon), indexing="ij")
    vectors = [np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)]
    return np.stack(vectors, -1).reshape(-1, 3)


ROWS = np.diff(np.sin(np.radians(np.linspace(-90.0, 90.0, 17))))
"""Areas of the fine cells of a row, up to a factor."""


def table(dataset, names):
    """Positions and variables, one row for every cell, times in turn."""
    n_times = dataset.sizes.get("time", 1)
    shape = (n_times, dataset.sizes["lat"], dataset.sizes["lon"])
    columns = [np.broadcast_to(dataset[name].values, shape).ravel() for name in names]
    positions = np.tile(unit_vectors(dataset.lat.values, dataset.lon.values), (n_times, 1))
    return np.column_stack([positions, *columns])


def standardised(values, learnt_from):
    """By mean and standard deviation, positions as they are."""
    centre, scale = learnt_from.mean(0), learnt_from.std(0)
    centre[:3], scale[:3] = 0.0, 1.0
    return (values - centre) / scale


class Arrays(NamedTuple):
    bags: Bags
    z: np.ndarray
    mediator: np.ndarray
    own_bag: np.ndarray
    query: np.ndarray


def arrays_of(data):
    """What a user of plain NumPy would make of the data: standardised bags and observations."""
    points, coarse = table(data.fine, COVARIATES), table(data.coarse, MEDIATORS)
    n_lat, n_lon = data.fine.altitude.shape
    row, column = np.divmod(np.arange(len(points)), n_lon)  # rows of all days, one after another
    unit = (row // BLOCK) * (n_lon // BLOCK) + column // BLOCK
    known = np.isfinite(points).all(1)
    units, bag = np.unique(unit[known], return_inverse=True)
    z = data.coarse.tas.values.ravel()
    observed = np.flatnonzero(np.isfinite(z))
    links = np.concatenate([coarse[units], coarse[observed]])
    place = np.full(len(z), -1)
    place[units] = np.arange(len(units))
    bags = Bags.from_points(
        standardised(points[known], points[known]),
        bag,
        mediator=standardised(coarse[units], links),
        weights=ROWS[row % n_lat][known],
    )
    return Arrays(
        bags,
        z[observed],
        standardised(coarse[observed], links),
        place[observed],
        standardised(table(data.everywhere, COVARIATES), points[known]),
    )


@pytest.mark.parametrize("kind", ["matched", "partly", "unmatched", "in_time"])
def test_plain_arrays_give_the_same_posterior(kind, request):
    data, downscaler = request.getfixturevalue(kind)
    given = arrays_of(data)
    centre, scale = given.z.mean(), given.z.std()
    z = (given.z - centre) / scale
    if kind in ("matched", "in_time"):
        model = BaggGP(KERNEL, trend=SLOPES, fixed=FIXED, n_restarts=1).fit(given.bags, z)
    else:
        model = dc.CMP(KERNEL, LINK, centred=True, fixed=LINKED, n_restarts=1)
        own = given.own_bag if kind == "partly" else None
        model.fit(given.bags, z, given.mediator, own_bag=own)
    expected = model.predict(given.query)
    out = downscaler.predict(data.everywhere)
    assert out["mean"].dims == data.everywhere.cloud.dims
    np.testing.assert_allclose(out["mean"].values.ravel(), centre + scale * expected.mean, 1e-8)
    np.testing.assert_allclose(out["std"].values.ravel(), scale * expected.std, 1e-8)
    words = {"matched": "matched", "in_time": "matched", "partly": "partly matched"}
    assert downscaler.pairing_.matching == words.get(kind, "unmatched")
    assert len(given.z) == len(downscaler.pairing_.z)


# --- what comes out -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result(partly):
    """A prediction where covariates are known, with all that can be asked for."""
    return partly.downscaler.predict(
        partly.data.fine, quantiles=[0.9, 0.1, 0.5, 0.9], samples=300, command="by somebody"
    )


def test_function_and_class_give_the_same(partly, result):
    quantiles = [0.1, 0.5, 0.9]
    given = asked("cmp")
    found = dc.downscale(
        partly.data.fine, partly.data.coarse, **given, quantiles=quantiles, samples=300
    )
    xr.testing.assert_equal(found, result)
    assert "dc.downscale" in found.attrs["history"]
    assert "by somebody" in result.attrs["history"]
    elsewhere = dc.downscale(
        partly.data.fine, partly.data.coarse, **given, on=partly.data.everywhere
    )
    xr.testing.assert_equal(elsewhere, partly.downscaler.predict(partly.data.everywhere))


def test_output_is_on_the_fine_cells_with_covariates(partly, result):
    fine = partly.data.fine
    known = fine.altitude.notnull() & fine.cloud.notnull()
    assert 0 < int(known.sum()) < known.size
    for name in ("mean", "std", "quantiles", "samples"):
        assert bool((result[name].notnull() == known).all())
    assert result["mean"].dims == result["std"].dims == ("lat", "lon")
    assert result["quantiles"].dims == ("quantile", "lat", "lon")
    assert result["samples"].dims == ("sample", "lat", "lon")
    np.testing.assert_array_equal(result["quantile"], [0.1, 0.5, 0.9])
    for name in ("lat", "lon"):
        xr.testing.assert_identical(result[name], fine[name])
        xr.testing.assert_identical(result[f"{name}_bnds"], fine[f"{name}_bnds"])


def test_quantiles_and_samples_are_those_of_mean_and_spread(result):
    mean, std = result["mean"], result["std"]
    for level in (0.1, 0.5, 0.9):
        expected = mean + ndtri(level) * std
        np.testing.assert_allclose(result["quantiles"].sel(quantile=level), expected, rtol=1e-12)
    known = mean.notnull().values
    deviation = ((result["samples"] - mean) / std).values[:, known]
    assert np.abs(deviation.mean(0)).max() < 5 / np.sqrt(300)
    np.testing.assert_allclose(deviation.std(0), 1.0, atol=0.25)


def test_a_hole_in_one_covariate_is_a_hole_in_the_result(matched):
    fine = matched.data.fine.copy(deep=True)
    fine.cloud[3, 5] = np.nan
    out, whole = matched.downscaler.predict(fine), matched.downscaler.predict(matched.data.fine)
    assert np.isnan(out["mean"][3, 5]) and int(out["std"].isnull().sum()) == 1
    np.testing.assert_allclose(out["mean"], whole["mean"].where(fine.cloud.notnull()), 1e-12)


def test_what_the_fit_knows_of_cells_serves_predictions_unless_the_data_has_changed(matched):
    known, question = matched.downscaler.learner_.bags.parts, matched.downscaler.question()

    def parts(fine):
        side = FineSide.of(fine, question)
        return matched.downscaler._answer(side, "").source.parts

    assert parts(matched.data.fine) is known and parts(matched.data.fine.copy(deep=True)) is known
    changed, moved = matched.data.fine.copy(deep=True), matched.data.fine
    changed.cloud[3, 5] += 1.0
    moved = moved.assign_coords(lon=moved.lon + 1.0).drop_vars("lon_bnds")
    for other in (changed, moved, matched.data.fine.isel(lat=slice(8)), matched.data.fine.chunk()):
        assert parts(other) is not known


def test_attributes_follow_the_conventions(matched):
    out = matched.downscaler.predict(matched.data.fine, quantiles=[0.5])
    assert out.attrs["Conventions"] == "CF-1.11"
    new, old = out.attrs["history"].split("\n")
    assert f"deconditional {dc.__version__}: dc.Downscaler.predict" in new
    assert old == "2001-01-01: coarse values made up"
    for name in ("mean", "std", "quantiles", "coarse_observed", "coarse_residual"):
        assert out[name].attrs["units"] == "K"
        assert out[name].attrs["cell_methods"] == "area: mean"
        assert "temperature near the surface" in out[name].attrs["long_name"]
    assert out["mean"].attrs["standard_name"] == "air_temperature"
    assert out["std"].attrs["standard_name"] == "air_temperature standard_error"
    assert "standard_name" not in out["coarse_residual"].attrs
    assert "grid_mapping" not in out["mean"].attrs


def test_what_was_learnt_is_written_down(matched):
    data, downscaler = matched
    out = downscaler.predict(data.fine)
    scale = data.coarse.tas.values.std()
    assert out.attrs["fit_noise_std"] == pytest.approx(0.1 * scale, abs=1e-6)
    for row in downscaler.parameters_:
        assert out.attrs[f"fit_{row['name'].replace('.', '_')}"] == row["value"]
    facts = json.loads(out.attrs["deconditional"])
    assert facts["target"] == "tas" and facts["units"] == "K"
    assert facts["covariates"] == list(COVARIATES) and facts["mediators"] == list(MEDIATORS)
    assert facts["model"] == "bagg-gp" and facts["distribution"] == "normal"
    assert facts["bounds"] == [None, None] and facts["options"]["n_restarts"] == 1
    assert facts["mediation"].startswith("matched: every observation is the mean over its own bag")
    assert facts["parameters"] == downscaler.parameters_
    assert facts["fit"]["log_evidence"] == pytest.approx(downscaler.model_.log_evidence_)
    assert facts["versions"]["deconditional"] == dc.__version__
    assert {"pairing", "learning bagg-gp", "predicting"} <= set(facts["timings"])
    assert ["observations", "32 of 32 coarse cells have tas"] in facts["understood"]


def test_roles_of_coarse_cells(partly):
    out = partly.downscaler.predict(partly.data.fine)
    assert out["coarse_role"].attrs["flag_meanings"].split() == [
        "nothing",
        "covariates_only",
        "target_only",
        "both",
    ]
    blocks = partly.data.fine.altitude.notnull().values.reshape(4, BLOCK, 8, BLOCK).any((1, 3))
    expected = blocks + 2 * partly.data.coarse.tas.notnull().values
    np.testing.assert_array_equal(out["coarse_role"], expected)
    assert np.bincount(expected.ravel()).tolist() == [0, 8, 8, 16]
    np.testing.assert_array_equal(out["coarse_lat"], partly.data.coarse.lat)


def test_mediation_is_put_into_words(partly, unmatched):
    for fit, word in ((partly, "partly matched"), (unmatched, "unmatched")):
        facts = json.loads(fit.downscaler.predict(fit.data.fine).attrs["deconditional"])
        words = "a conditional mean operator links observations to bags"
        assert facts["mediation"] == f"{word}: {words}"


# --- other grids and times ----------------------------------------------------------------------


def test_times_are_kept(in_time):
    fine = in_time.data.fine
    out = in_time.downscaler.predict(fine, quantiles=[0.5])
    assert out["mean"].dims == ("time", "lat", "lon")
    assert out["quantiles"].dims == ("quantile", "time", "lat", "lon")
    xr.testing.assert_identical(out["time"], fine["time"])
    np.testing.assert_array_equal(out["coarse_time"], in_time.data.coarse.time)
    np.testing.assert_array_equal(out["coarse_observed"], in_time.data.coarse.tas)
    # One time at a time, in any order, is the same.
    alone = in_time.downscaler.predict(fine.isel(time=[1]))
    np.testing.assert_allclose(alone["mean"][0], out["mean"][1], rtol=1e-10)
    np.testing.assert_array_equal(np.isnan(alone["coarse_mean"][0]), True)
    np.testing.assert_allclose(alone["coarse_mean"][1], out["coarse_mean"][1], rtol=1e-10)


def test_another_time_has_no_residuals(in_time):
    out = in_time.downscaler.predict(in_time.data.everywhere)
    np.testing.assert_array_equal(out["time"], in_time.data.everywhere.time)
    assert out["coarse_residual"].isnull().all()
    assert json.loads(out.attrs["deconditional"])["residuals"] == {
        "n": 0,
        "mean": None,
        "rmse": None,
        "largest": None,
    }


def test_another_grid(matched):
    finer = synthetic_fields(16, 64, extent=(-90, 90, -180, 180))[list(COVARIATES)]
    out = matched.downscaler.predict(finer)
    points = table(matched.data.fine, COVARIATES)
    query = standardised(table(finer, COVARIATES), points)
    expected = matched.downscaler.model_.predict(query)
    scaling = matched.downscaler.target_scaling_
    mean = scaling.centre + scaling.scale * expected.mean
    np.testing.assert_allclose(out["mean"].values.ravel(), mean, rtol=1e-10)
    weights = np.repeat(ROWS, 64).reshape(4, 4, 8, 8)
    sums = (mean.reshape(4, 4, 8, 8) * weights).sum((1, 3))
    np.testing.assert_allclose(out["coarse_mean"], sums / weights.sum((1, 3)), rtol=1e-10)
    far = finer.isel(lon=slice(0, 2))  # covers no coarse cell by half
    assert matched.downscaler.predict(far)["coarse_mean"].isnull().all()


@pytest.fixture(scope="module")
def projected():
    data = example(1.0, projected=True, extent=(30, 60, 0, 60))
    fixed = {"kernel.lengthscale": 0.8, "kernel.variance": 1.0, "noise_std": 0.1}
    kernel = gk.Matern32(active_dims=[0, 1])
    options = {"covariates": "altitude", "mediators": (), "kernel": kernel}
    return Fit(data, fitted("bagg-gp", data, **options, model_options={"fixed": fixed}))


def test_grid_mapping_of_projected_grids(projected):
    out = projected.downscaler.predict(projected.data.fine)
    assert out["mean"].dims == ("y", "x")
    assert out["mean"].attrs["grid_mapping"] == out["std"].attrs["grid_mapping"] == "crs"
    assert "grid_mapping" not in out["coarse_mean"].attrs
    assert "crs" in out.coords and out["crs"].attrs == projected.data.fine["crs"].attrs


def test_lengths_of_projected_grids_are_kilometres(projected):
    y, x = np.meshgrid(projected.data.fine.y, projected.data.fine.x, indexing="ij")
    side = np.sqrt((y.var() + x.var()) / 2)  # one scale for both directions
    found = {row["name"]: row for row in projected.downscaler.parameters_}
    assert found["kernel.lengthscale"]["unit"] == "km"
    assert found["kernel.lengthscale"]["value"] == pytest.approx(0.8 * side / 1000, rel=1e-8)
    assert "position, altitude" in dict(projected.downscaler.pairing_.understood)["covariates"]


# --- what must not matter -----------------------------------------------------------------------


def turned(dataset):
    """From another meridian, from the north, columns first, under other names."""
    rolled = dataset.roll(lon=3 * dataset.sizes["lon"] // 8, roll_coords=True)
    transposed = rolled.isel(lat=slice(None, None, -1)).transpose("lon", ..., "lat")
    return transposed.rename(lat="north", lon="east")


def in_order(out):
    """Rows from the south, columns from the date line, under their usual names."""
    names = {f"{c}{a}": f"{c}{b}" for c in ("", "coarse_") for a, b in NAMES.items()}
    out = out.rename({a: b for a, b in names.items() if a in out.dims})
    turned = {n: np.mod(out[n] + 180.0, 360.0) - 180.0 for n in ("lon", "coarse_lon")}
    return out.assign_coords(turned).sortby(["lat", "lon", "coarse_lat", "coarse_lon"])


NAMES = {"north": "lat", "east": "lon"}


@pytest.mark.parametrize("side", ["fine", "coarse", "both"])
def test_layout_changes_nothing(partly, side):
    """What pairs do not depend on (see test_pairing), predictions do not depend on either."""
    data = partly.data
    fine, coarse = (
        turned(dataset) if side in (name, "both") else dataset
        for name, dataset in (("fine", data.fine), ("coarse", data.coarse))
    )
    on = turned(data.everywhere) if side != "coarse" else data.everywhere
    found = in_order(dc.Downscaler(**asked("cmp")).fit(fine, coarse).predict(on))
    expected = partly.downscaler.predict(data.everywhere)
    for name in ("mean", "std", "coarse_mean", "coarse_observed"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
    np.testing.assert_array_equal(found["coarse_role"], expected["coarse_role"])


# --- models -------------------------------------------------------------------------------------

GIVEN = {"fixed": FIXED, "trend": SLOPES, "n_restarts": 1}
CENTRED = {"fixed": LINKED, "centred": True, "trend": "constant", "n_restarts": 1}
ESTIMATORS = {
    "cmp": dc.CMP(KERNEL, LINK, **CENTRED),
    "s-cmp": dc.CMP(KERNEL, LINK, cmo="shrinkage", **CENTRED),
    "u-cmp": dc.CMP(KERNEL, LINK, uncertainty=True, **CENTRED),
    "varcmp": VarCMP(KERNEL, LINK, uncertainty=True, n_inducing=60, **CENTRED),
    "bagg-gp": BaggGP(KERNEL, method="draws", **GIVEN),
    "vbagg": VBagg(KERNEL, n_inducing=60, **GIVEN),
    "gpr": CentroidGP(KERNEL, method="draws", **GIVEN),
    "vargpr": VarCentroidGP(KERNEL, n_inducing=20, **GIVEN),
}


@pytest.mark.filterwarnings("ignore::deconditional.errors.NoSkillWarning")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_models_by_name(name, matched):
    data = matched.data
    downscaler = fitted(name, data)
    assert type(downscaler.model_) is type(ESTIMATORS[name])
    assert downscaler.model_.get_params() == ESTIMATORS[name].get_params()
    error = (downscaler.predict(data.fine)["mean"] - data.truth).values
    assert np.sqrt(np.mean(error**2)) < 0.5 * data.truth.values.std()
    assert downscaler.model_name_ == downscaler.comparison_.chosen == name
    assert list(downscaler.candidates_) == [name]


def test_models_by_instance(matched):
    estimator = ESTIMATORS["bagg-gp"]
    downscaler = fitted(estimator, matched.data)
    found, expected = (d.predict(matched.data.fine) for d in (downscaler, matched.downscaler))
    assert downscaler.model_name_ == "BaggGP"
    np.testing.assert_allclose(found["mean"], expected["mean"], rtol=1e-12)
    np.testing.assert_allclose(found["std"], expected["std"], rtol=1e-12)
    # The estimator given is a recipe; it is not fitted itself.
    assert not hasattr(estimator, "bags_") and downscaler.model_ is not estimator


@pytest.mark.parametrize("name", ["cmp", "bagg-gp", "vargpr"])
def test_data_of_models_by_instance_is_that_of_their_names(name, matched):
    found = []
    for model in (name, ESTIMATORS[name]):
        learner = prepared(matched.data, model)
        found.append(learner.data(*learner.names))
    for one, other in zip(*([d.bags.points, d.bags.weights, d.z] for d in found), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (found[0].mediator is None) == (found[1].mediator is None) == (name not in CONDITIONAL)


def recipe(**changes):
    options = {
        "kernel": "rough",
        "mediator_kernel": None,
        "inputs": Inputs(3, 2),
        "mediators": Inputs(3, 1),
        "trend": "auto",
        "fine_noise": False,
        "n_restarts": 1,
        "seed": 0,
        "options": {},
    }
    return Recipe(**(options | changes))


@pytest.mark.parametrize("name", ["bagg-gp", "vbagg", "gpr", "vargpr"])
def test_models_of_bags_get_pseudo_targets_where_data_is_not_matched(name):
    model = recipe(seed=5).estimator(name, matched=False)
    assert isinstance(model, PseudoTarget) and model.propagate
    assert type(model.base) is type(ESTIMATORS[name])
    assert (model.trend, model.base.trend) == ("linear", SLOPES)
    assert model.seed == model.base.seed == 5
    assert type(recipe().estimator(name, matched=True)) is type(ESTIMATORS[name])


def test_default_kernels():
    x, y = np.array([0.1, 0.2, -0.4, 1.0, -0.3]), np.array([0.4, -0.2, 0.1, 0.2, 0.5])
    distance = np.linalg.norm(x[:3] - y[:3])
    smooth_part = (1 + np.sqrt(3) * distance) * np.exp(-np.sqrt(3) * distance)
    rest = np.exp(-0.5 * np.sum((x[3:] - y[3:]) ** 2))
    model = recipe().estimator("u-cmp", matched=False)
    value = model.kernel(jnp.asarray(x), jnp.asarray(y))
    assert float(value) == pytest.approx(smooth_part + rest + np.exp(-distance), rel=1e-12)
    value = model.mediator_kernel(jnp.asarray(x[:4]), jnp.asarray(y[:4]))
    rest = np.exp(-0.5 * (x[3] - y[3]) ** 2)
    assert float(value) == pytest.approx(smooth_part + rest, rel=1e-12)
    smooth = recipe(kernel="smooth").estimator("bagg-gp", matched=True)
    value = smooth.kernel(jnp.asarray(x), jnp.asarray(y))
    rest = np.exp(-0.5 * np.sum((x[3:] - y[3:]) ** 2))
    assert float(value) == pytest.approx(smooth_part + rest, rel=1e-12)
    # Without position, or without anything else, a kernel has the parts that are left.
    assert type(field_kernel(Inputs(0, 2))) is gk.RBF
    assert [type(part) for part in field_kernel(Inputs(2, 0)).kernels] == [gk.Matern32, gk.Matern12]


def test_means_over_cells_have_little_noise_a_priori():
    for name in ("bagg-gp", "kriging", "regression-kriging"):
        prior = recipe().estimator(name, matched=True).priors["noise_std"]
        assert (prior.median, prior.sigma) == (0.02, 1.0)
    told = recipe(options={"learn_noise": False}).estimator("bagg-gp", matched=True)
    others = [recipe().estimator("gpr", matched=True), told]
    others.append(recipe().estimator("bagg-gp", matched=False).base)
    assert all("noise_std" not in (model.priors or {}) for model in others)


def test_kernels_by_name_are_checked():
    with pytest.raises(UsageError, match="no kernel 'rouhg'; choose one of rough, smooth"):
        dc.Downscaler("tas", ["altitude"], kernel="rouhg").question()
    with pytest.raises(UsageError, match="give the estimator its own"):
        dc.Downscaler("tas", ["altitude"], model=BaggGP(), kernel="smooth").question()
    with pytest.raises(UsageError, match="mediator_kernel belongs to named models"):
        dc.Downscaler("tas", ["altitude"], model=BaggGP(), mediator_kernel=gk.RBF()).question()
    with pytest.raises(UsageError, match="it has no names"):
        dc.Downscaler("tas", ["altitude"], mediator_kernel="smooth").question()


def test_trend_and_options_reach_the_models():
    for name in CONDITIONAL:
        assert recipe().estimator(name, matched=True).trend == "constant"
    model = recipe(trend="none", options={"max_iter": 7}, fine_noise=True).estimator("cmp", True)
    assert (model.trend, model.max_iter, model.fine_noise) == ("none", 7, True)
    assert (model.n_restarts, model.centred) == (1, True)
    # Matched bags need nothing to link them.
    bare = recipe(inputs=Inputs(0, 2), mediators=Inputs(0, 0))
    assert type(bare.estimator("bagg-gp", matched=True).kernel) is gk.RBF
    with pytest.raises(UsageError, match="cmp needs mediators: name some, or use position"):
        bare.estimator("cmp", matched=True)


def test_kernels_given_are_used(unmatched):
    """Beyond the numbers, which are those of plain arrays with the same kernels."""
    model = unmatched.downscaler.model_
    assert type(model.kernel_) is gk.RBF and type(model.mediator_kernel_) is gk.RBF
    for name, value in LINKED.items():
        np.testing.assert_array_equal(model.parameters_[name], value)


def test_sizes_decide_what_is_compared():
    simple = ("regression-kriging", "kriging")
    assert candidates("matched", 3000, 3000, True) == ("bagg-gp", *simple)
    assert candidates("matched", 3000, 3000, False) == ("bagg-gp",)
    assert candidates("partly matched", 3000, 10, True) == ("mediated", "bagg-gp", "kriging")
    assert candidates("unmatched", 10, 3001, True) == ("vbagg", "varcmp")
    assert candidates("matched", 3001, 3001, True) == ("vbagg",)
    assert [condensed_size("cmp", n) for n in (1, 200, 10_000)] == [64, 40, 4]
    assert condensed_size("vbagg", 10_000) == 64


def test_bags_are_condensed_only_where_asked(matched):
    def sizes(model, points_per_bag):
        learner = prepared(matched.data, model, points_per_bag=points_per_bag)
        return set(learner.data(model).bags.sizes.tolist())

    assert sizes("bagg-gp", None) == sizes("gpr", "auto") == sizes("cmp", "auto") == {16}
    assert max(sizes("cmp", 5)) <= 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": ""}, "target must be the name of a variable"),
        ({"model": "cpm"}, "there is no model 'cpm'; choose auto or one of mediated, cmp, s-cmp"),
        ({"covariates": ("cloud", "cloud")}, "'cloud' is named twice among the covariates"),
        ({"covariates": 5}, "covariates must be names of variables, not 5; write covariates="),
        ({"mediators": 3.0}, "mediators must be names of variables, not 3.0"),
        ({"mediators": ["depth"]}, "the coarse data has no variable 'depth'"),
        ({"min_cover": 1.5}, "min_cover is a share of a coarse cell, between 0 and 1, not 1.5"),
        ({"consistency": "soft"}, "consistency must be 'exact' or nothing, not 'soft'"),
        ({"transform": "sqrt"}, "transform must be 'log' or nothing, not 'sqrt'"),
        ({"bounds": (0, 250)}, "observed values lie outside the bounds"),
        ({"folds": 1}, "cannot be divided into 1 folds"),
        ({"points_per_bag": 0}, "points_per_bag must be 'auto', None or a number, not 0"),
        ({"model_options": {"inducing_points": 3}}, "model_options for bagg-gp: .*inducing_points"),
        ({"model_options": {"kernel": KERNEL}}, "model_options for bagg-gp: .*'kernel'"),
        (
            {"model_options": {"fixed": {"kernel.scale": 1.0}}},
            "bagg-gp: fixed names 'kernel.scale', which is not a parameter of this model; its",
        ),
        ({"trend": "cubic"}, "bagg-gp: trend must be one of none, constant, linear, not 'cubic'"),
        ({"kernel": gk.RBF(lengthscale=jnp.ones(3))}, "bagg-gp: kernel does not fit inputs of 5"),
        ({"colour": "red"}, "unexpected keyword argument 'colour'"),
        ({"quantiles": ["half"]}, "quantiles must be numbers between 0 and 1, not"),
        ({"quantiles": [0.5, 1.0]}, r"quantiles lie strictly between 0 and 1, not \[0.5, 1.0\]"),
    ],
)
def test_what_cannot_be_done_is_said(matched, changes, message):
    given = asked("bagg-gp") | changes
    with pytest.raises(UsageError, match=message) as error:
        dc.downscale(matched.data.fine, matched.data.coarse, **given)
    assert "\n" not in str(error.value)


def test_models_of_bags_do_not_fit_unmatched_data(unmatched):
    with pytest.raises(UsageError, match=r"BaggGP: .*mediator"):
        fitted(ESTIMATORS["bagg-gp"], unmatched.data)


@pytest.mark.parametrize("samples", [-1, 1.5, True])
def test_samples_are_counted(matched, samples):
    with pytest.raises(UsageError, match="samples must be a whole number from 0 on"):
        matched.downscaler.predict(matched.data.fine, samples=samples)


def test_nothing_before_the_fit(matched):
    unfitted = dc.Downscaler("tas", COVARIATES)
    with pytest.raises(NotFittedError, match="call fit first"):
        unfitted.predict(matched.data.fine)
    with pytest.raises(NotFittedError, match="call fit first"):
        unfitted.using("cmp")


def test_times_can_be_chosen(in_time):
    whole = example(1.0, n_lon=16, times=DAYS)
    options = asked("bagg-gp", time="ignore")
    days = {"times": "2000-01-01/2000-01-06", "on": whole.everywhere}
    found = dc.downscale(whole.fine, whole.coarse, **options, **days)
    xr.testing.assert_equal(found, in_time.downscaler.predict(in_time.data.fine))
    one = select_time(whole.coarse, "2000-01-06", "coarse")
    xr.testing.assert_equal(one, whole.coarse.isel(time=[1]))
    still = example(1.0).fine
    assert select_time(still, "2000-01-06", "fine") is still
    with pytest.raises(UsageError, match="the fine data has no time '2001'; its times are from"):
        dc.downscale(whole.fine, whole.coarse, **options, times="2001")
    with pytest.raises(UsageError, match="cannot select time 'today' of the fine data"):
        dc.downscale(whole.fine, whole.coarse, **options, times="today")
    alone = (data.isel(time=0, drop=True) for data in (whole.fine, whole.coarse))
    with pytest.raises(UsageError, match="times 2000-01 was given, but nothing has times"):
        dc.downscale(*alone, **options, times="2000-01")


# --- the choice of a model ----------------------------------------------------------------------


TWO = ("bagg-gp", "u-cmp")


@pytest.fixture(scope="module")
def auto(unmatched):
    """Two candidates; of their parameters, only those of the regression are learnt."""
    estimator = Recipe.estimator

    def held(recipe, name, matched):
        fixed = {"fixed": LINKED} if name == "u-cmp" else {"base__fixed": FIXED}
        return estimator(recipe, name, matched).set_params(**fixed)

    data = unmatched.data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recipe, "estimator", held)
        patch.setattr("deconditional.fields.learn.candidates", lambda *_: TWO)
        options = asked("auto", model_options=None, folds=4)
        return Fit(data, dc.Downscaler(**options).fit(data.fine, data.coarse))


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_auto_takes_measurements_where_data_is_not_matched(share):
    data = example(share)
    options = asked("auto", model_options={"max_iter": 12}, points_per_bag=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        downscaler = dc.Downscaler(**options).fit(data.fine, data.coarse)
        given = arrays_of(data)
        own = {"own_bag": given.own_bag} if share else {}
        alone = dc.MediatedGP(KERNEL, LINK, trend="linear", n_restarts=1, max_iter=12)
        z = (given.z - given.z.mean()) / given.z.std()
        alone.fit(given.bags, z, given.mediator, **own)
    assert list(downscaler.candidates_) == ["mediated", "bagg-gp", "kriging"]
    downscaler = downscaler.using("mediated")
    out = downscaler.predict(data.everywhere)
    post = alone.predict(given.query)
    expected = given.z.mean() + given.z.std() * post.mean
    np.testing.assert_allclose(out["mean"].values.ravel(), expected, rtol=1e-4)
    spread = given.z.std() * post.std
    np.testing.assert_allclose(out["std"].values.ravel(), spread, rtol=1e-2)
    facts = json.loads(out.attrs["deconditional"])
    assert "mediators measure means over coarse cells" in facts["mediation"]
    found = {row["name"]: row for row in downscaler.parameters_}
    assert {"mediator_kernel.std", "kernel.std"} <= set(found)
    learnt = downscaler.model_.parameters_.get("noise_std")
    assert (learnt is None) == ("measurement_noise_std" not in found) == (not share)
    if share:
        value = found["measurement_noise_std"]["value"]
        assert value == pytest.approx(float(learnt) * given.z.std(), abs=1e-5)


def test_auto_compares_and_keeps_the_table(auto):
    data, downscaler = auto
    assert list(downscaler.candidates_) == ["bagg-gp", "u-cmp"]
    comparison = downscaler.comparison_
    assert [row["model"] for row in comparison.rows] == ["bagg-gp", "u-cmp", "bilinear"]
    assert downscaler.model_name_ == comparison.chosen
    assert downscaler.model_ is downscaler.candidates_[comparison.chosen]
    assert comparison.how == "4 folds of 16 regions, parameters held"
    folds, z = downscaler.learner_.folds.fold, data.coarse.tas.values
    z = z[np.isfinite(z)]
    for row in comparison.rows[:2]:
        predicted = downscaler.candidates_[row["model"]].predict_held_out(folds)
        error = z.mean() + z.std() * predicted.mean - z
        assert row["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-9)
        inside = np.abs(error) < ndtri(0.975) * z.std() * predicted.std
        assert row["coverage95"] == pytest.approx(inside.mean())
    facts = json.loads(downscaler.predict(data.fine).attrs["deconditional"])["comparison"]
    assert facts["columns"] == list(comparison.columns)
    assert facts["rows"] == [list(row.values()) for row in comparison.rows]
    assert facts["chosen"] == comparison.chosen and facts["folds"] == comparison.how
    assert facts["pit"] == pytest.approx(comparison.pit[comparison.chosen].tolist())


def test_gap_of_bags_is_that_to_the_regression_on_mediators(auto):
    data, downscaler = auto
    given = arrays_of(data)
    regressor = downscaler.candidates_["bagg-gp"].regressor_
    expected = regressor.predict(given.bags.mediator)
    spread = np.sqrt(expected.variance + regressor.parameters_["noise_std"] ** 2)
    for row in downscaler.comparison_.rows[:2]:
        field = downscaler.candidates_[row["model"]].predict(given.bags.points).mean
        gap = (given.bags.means(field) - expected.mean) / spread
        assert row["bag_gap"] == pytest.approx(np.sqrt(np.mean(gap**2)), rel=1e-6)


@pytest.mark.parametrize("name", ["bagg-gp", "u-cmp"])
def test_another_candidate_can_be_used(auto, name):
    data, downscaler = auto
    before = downscaler.model_name_
    other = downscaler.using(name)
    assert (other.model_name_, downscaler.model_name_) == (name, before)
    assert other.fit_report_ is downscaler.candidates_[name].fit_report_
    x = arrays_of(data).query
    scaling = downscaler.target_scaling_
    expected = scaling.centre + scaling.scale * downscaler.candidates_[name].predict(x).mean
    out = other.predict(data.everywhere)
    np.testing.assert_allclose(out["mean"].values.ravel(), expected, rtol=1e-9)
    assert json.loads(out.attrs["deconditional"])["model"] == name
    with pytest.raises(UsageError, match="'gpr' was not fitted; the candidates are bagg-gp, u-cmp"):
        downscaler.using("gpr")


def test_pseudo_targets_say_what_their_parameters_mean(auto):
    data, downscaler = auto
    found = {row["name"]: row for row in downscaler.using("bagg-gp").parameters_}
    z = data.coarse.tas.values
    regressor = downscaler.candidates_["bagg-gp"].regressor_
    row = found["mediator.noise_std"]
    learnt = float(regressor.parameters_["noise_std"]) * np.nanstd(z)
    assert row["value"] == pytest.approx(learnt, abs=1e-6) and row["unit"] == "K"
    assert "noise" in row["meaning"] and "kernel" not in row["meaning"]
    spread = np.sqrt(float(regressor.parameters_["kernel.variance"])) * np.nanstd(z)
    row = found["mediator_kernel.std"]
    assert row["value"] == pytest.approx(spread, abs=1e-6) and row["unit"] == "K"


def test_few_observations_are_compared_in_fewer_folds(matched):
    learner = prepared(matched.data, "bagg-gp", folds=17)
    n = len(learner.problem.pairing.z)
    assert n < 34 and learner.n_folds == n // 2
    assert learner.folds.how.startswith(f"{n // 2} folds") and learner.folds.fold.max() < n // 2


def test_one_place_at_many_times_has_nothing_to_hold_out():
    days = [f"2000-01-{day:02d}" for day in range(1, 12)]
    fields = synthetic_fields(4, 4, times=days, extent=(40, 50, 0, 10))
    data = split_cells(fields, "tas", ["cloud"], MEDIATORS, BLOCK, matched=1.0)
    learner = prepared(data, "bagg-gp", covariates="cloud")
    assert len(learner.problem.pairing.z) == 11 and learner.folds is None


# --- meanings of parameters ---------------------------------------------------------------------


def test_parameters_are_in_the_units_of_the_data(unmatched):
    """The default kernels, their parameters held."""
    data = unmatched.data
    held = {
        "kernel.0.lengthscale": 0.4,
        "kernel.0.variance": 0.25,
        "kernel.1.lengthscale": [1.5, 0.5],
        "kernel.1.variance": 4.0,
        "kernel.2.lengthscale": 0.1,
        "kernel.2.variance": 0.01,
        "mediator_kernel.0.lengthscale": 0.3,
        "mediator_kernel.0.variance": 0.5,
        "mediator_kernel.1.lengthscale": [0.7],
        "mediator_kernel.1.variance": 2.0,
        "ridge": 0.01,
        "noise_std": 0.2,
    }
    given = {"kernel": None, "mediator_kernel": None, "model_options": {"fixed": held}}
    found = {row["name"]: row for row in fitted("cmp", data, **given).parameters_}
    known = table(data.fine, COVARIATES)
    altitude, cloud = np.nanstd(known[:, 3:], axis=0)
    vapour = data.coarse.water_vapour.values.std()
    target = np.nanstd(data.coarse.tas.values)
    expected = {
        "kernel.0.lengthscale": (0.4 * 6371.0, "km"),  # the whole globe has no directions
        "kernel.0.std": (0.5 * target, "K"),
        "kernel.1.lengthscale": ([1.5 * altitude, 0.5 * cloud], "units of each"),
        "kernel.1.std": (2.0 * target, "K"),
        "kernel.2.lengthscale": (0.1 * 6371.0, "km"),
        "kernel.2.std": (0.1 * target, "K"),
        "mediator_kernel.0.lengthscale": (0.3 * 6371.0, "km"),
        "mediator_kernel.0.variance": (0.5, "1"),
        "mediator_kernel.1.lengthscale": ([0.7 * vapour], "units of each"),
        "mediator_kernel.1.variance": (2.0, "1"),
        "ridge": (0.01, "1"),
        "noise_std": (0.2 * target, "K"),
    }
    assert set(found) == set(expected)
    for name, (value, unit) in expected.items():
        assert found[name]["value"] == pytest.approx(value, abs=2e-6)
        assert found[name]["unit"] == unit
    assert found["kernel.0.lengthscale"]["meaning"] == "length scale of the smooth part in position"
    assert found["kernel.1.lengthscale"]["meaning"].endswith("Gaussian part in altitude, cloud")
    assert found["mediator_kernel.1.lengthscale"]["meaning"].endswith("in water_vapour")


def test_parameters_of_other_kernels_and_of_logarithms():
    kernel = gk.RBF() + gk.Linear(active_dims=[3])
    values = {"kernel.0.lengthscale": 2.0, "kernel.1.variance": 4.0, "kernel.other": 1.0}
    values |= {"fine_noise_std": 0.5}
    scaling = InputScaling(np.zeros(4), np.array([1.0, 1.0, 1.0, 9.0]))
    target = TargetScaling(0.0, 3.0, True, (-np.inf, np.inf))
    question, coarse = SimpleNamespace(inputs=["slope"]), SimpleNamespace(spherical=True)
    pairing = SimpleNamespace(n_position=3, n_time=0, coarse=coarse, question=question)
    problem = SimpleNamespace(inputs=scaling, target=target, units="mm", pairing=pairing)
    rows = [meaning(name, values, {"kernel": kernel}, problem) for name in values]
    found = {row["name"]: (row["value"], row["unit"]) for row in rows}
    assert found == {
        "kernel.0.lengthscale": (2.0, "standard deviations"),
        "kernel.1.std": (6.0, "log mm"),
        "kernel.other": (1.0, ""),
        "fine_noise_std": (1.5, "log mm"),
    }
    assert rows[2]["meaning"].startswith("parameter of a kernel of your own")


# --- positive and bounded fields ----------------------------------------------------------------

SPREAD, LENGTH = 0.7, 0.15


@pytest.fixture(scope="module")
def skewed():
    """The logarithm follows a covariate, with a remainder whose covariance is known."""
    fields = synthetic_fields(16, 32)
    rng = np.random.default_rng(1)
    relief = rng.standard_normal((16, 32))
    sphere = unit_vectors(fields.lat, fields.lon).reshape(16, 32, 3)
    rain = np.exp(1.0 + 0.8 * relief + SPREAD * smooth(rng, sphere, LENGTH))
    dims = ("lat", "lon")
    fields = fields.assign(rain=(dims, rain, {"units": "mm"}), relief=(dims, relief))
    return split_cells(fields, "rain", ["relief"], ["water_vapour"], BLOCK, matched=1.0)


def skewed_fit(data, **changes):
    """A logarithmic field with the parameters it was made with."""
    scale = np.log(data.coarse.rain.values).std()
    fixed = {"kernel.lengthscale": LENGTH, "noise_std": 0.03 / scale}
    fixed["kernel.variance"] = (SPREAD / scale) ** 2
    given = {"target": "rain", "covariates": "relief", "mediators": (), "transform": "log"}
    given |= {"kernel": gk.RBF(active_dims=[0, 1, 2]), "model_options": {"fixed": fixed}}
    return fitted("bagg-gp", data, **given, **changes)


@pytest.fixture(scope="module")
def rainfall(skewed):
    return Fit(skewed, skewed_fit(skewed))


def area_means(values):
    weights = ROWS.reshape(4, BLOCK)
    sums = np.einsum("irjc,ir->ij", values.reshape(4, BLOCK, 8, BLOCK), weights)
    return sums / (BLOCK * weights.sum(1)[:, None])


def test_logarithmic_fields_are_exponentials_of_the_process(rainfall):
    data, downscaler = rainfall
    out = downscaler.predict(data.fine, quantiles=[0.05, 0.5, 0.95])
    x = standardised(table(data.fine, ["relief"]), table(data.fine, ["relief"]))
    latent = downscaler.model_.predict(x)
    z = np.log(data.coarse.rain.values)
    mean, std = z.mean() + z.std() * latent.mean, z.std() * latent.std
    for level in (0.05, 0.5, 0.95):
        expected = np.exp(mean + ndtri(level) * std).reshape(16, 32)
        np.testing.assert_allclose(out["quantiles"].sel(quantile=level), expected, rtol=1e-9)
    expected = np.exp(mean + 0.5 * std**2).reshape(16, 32)
    np.testing.assert_allclose(out["mean"], expected, rtol=1e-9)
    spread = np.sqrt(np.expm1(std**2)).reshape(16, 32)
    np.testing.assert_allclose(out["std"], expected * spread, rtol=1e-9)
    assert (out["mean"] >= out["quantiles"].sel(quantile=0.5)).all()
    assert out["mean"].attrs["units"] == "mm"
    facts = json.loads(out.attrs["deconditional"])
    assert facts["distribution"] == "lognormal"
    assert "correcting for the logarithm" in facts["timings"]


def test_logarithmic_fields_keep_their_area_means(rainfall, monkeypatch):
    data, downscaler = rainfall
    observed = data.coarse.rain.values
    out = downscaler.predict(data.fine, quantiles=[0.5])
    of_mean = area_means(out["mean"].values) / observed
    of_median = area_means(out["quantiles"].values[0]) / observed
    assert abs(of_mean.mean() - 1) < 0.03 and np.abs(of_mean - 1).max() < 0.06
    assert of_median.mean() < 0.85
    # Taking the logarithm of a mean for the mean of logarithms gives far too much.
    monkeypatch.setattr(learn, "LOG_PASSES", 1)
    naive = skewed_fit(data).predict(data.fine)
    assert (area_means(naive["mean"].values) / observed).mean() > 1.3


def test_correction_of_the_logarithm_where_data_is_not_matched(skewed):
    """Per observation it is that of its own bag, or an average of bags with similar mediators."""
    bags = Bags.from_list([[[0.0]], [[1.0]], [[2.0]]], mediator=[[0.0], [1.0], [5.0]])
    data = FitData(
        bags, np.zeros(3), np.array([[1.0], [5.0], [0.5]]), np.array([2, -1, -1]), None, None
    )
    found = data.at_observations(np.array([1.0, 2.0, 4.0]))
    nearness = 1 / np.abs(0.5 - np.array([0.0, 1.0, 5.0]))
    blend = nearness @ [1.0, 2.0, 4.0] / nearness.sum()
    np.testing.assert_allclose(found, [4.0, 4.0, blend])


@pytest.fixture(scope="module")
def bounded(skewed):
    """Near zero, so that the process falls below it in many cells."""
    coarse = skewed.coarse.assign(rain=0.3 * (skewed.coarse.rain - skewed.coarse.rain.min()))
    data = skewed._replace(coarse=coarse)
    fixed = {"kernel.lengthscale": 0.4, "kernel.variance": 1.0, "noise_std": 0.1}
    given = {"target": "rain", "covariates": "relief", "mediators": (), "bounds": (0, None)}
    given |= {"kernel": gk.RBF(active_dims=[0, 1, 2]), "model_options": {"fixed": fixed}}
    return Fit(data, fitted("bagg-gp", data, **given))


@pytest.fixture(scope="module")
def near_zero(bounded):
    fine = bounded.data.fine.isel(lon=slice(0, 8))
    return bounded.downscaler.predict(fine, quantiles=[0.01, 0.5], samples=4000)


def test_bounds_hold(near_zero):
    out = near_zero
    assert float(out["latent_mean"].min()) < 0
    for name in ("mean", "quantiles", "samples"):
        assert float(out[name].min()) >= 0
    assert float(out["quantiles"].min()) == 0
    np.testing.assert_allclose(out["quantiles"][1], np.maximum(out["latent_mean"], 0), atol=1e-12)
    facts = json.loads(out.attrs["deconditional"])
    assert facts["bounds"] == [0.0, None] and facts["distribution"] == "rectified normal"


def test_moments_of_bounded_fields_are_those_of_their_samples(near_zero):
    out = near_zero
    at_zero = (out["samples"] == 0).mean("sample")
    np.testing.assert_allclose(
        at_zero, ndtr(-(out["latent_mean"] / out["latent_std"])), atol=5 * 0.5 / np.sqrt(4000)
    )
    error = (out["samples"].mean("sample") - out["mean"]) / out["std"]
    assert float(np.abs(error).max()) < 5 / np.sqrt(4000)
    often = (at_zero < 0.9).values
    ratio = (out["samples"].std("sample") / out["std"]).values
    np.testing.assert_allclose(ratio[often], 1.0, atol=0.1)


def test_coarse_fields_of_the_example_are_area_means(matched):
    """What the other tests rely on."""
    fields = matched.data.truth.to_dataset(name="tas").merge(matched.data.fine)
    np.testing.assert_allclose(coarsen(fields, BLOCK).tas, area_means(matched.data.truth.values))
