"""Area means that reproduce the observed coarse values, against dense Gaussian conditioning."""

import copy
import json
from typing import NamedTuple

import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csr_array

import deconditional as dc
from deconditional.datasets import split_cells, synthetic_fields
from deconditional.errors import UsageError
from deconditional.inference.posterior import Posterior

xr = pytest.importorskip("xarray")
pytest.importorskip("cf_xarray")

from deconditional.fields import consistency  # noqa: E402
from deconditional.fields.consistency import ConsistentPosterior  # noqa: E402

BLOCK = 4
FIXED = {"kernel.lengthscale": [0.5, 0.5, 0.5, 1.5], "kernel.variance": 1.0, "noise_std": 0.2}
WEIGHTS = np.diff(np.sin(np.radians(np.linspace(-90.0, 90.0, 17)))).reshape(4, BLOCK)


def example(matched, target="tas"):
    fields = synthetic_fields(16, 32, seed=2)
    return split_cells(fields, target, ["altitude"], ["water_vapour"], BLOCK, matched=matched)


def fitted(data, target="tas", **changes):
    options = {
        "model": "bagg-gp",
        "kernel": gk.RBF(lengthscale=jnp.ones(4)),
        "n_restarts": 1,
        "model_options": {"fixed": FIXED},
    } | changes
    return dc.Downscaler(target, "altitude", **options).fit(data.fine, data.coarse)


def exact(found):
    """The same fit, with consistent predictions."""
    return copy.copy(found).set_params(consistency="exact")


def area_means(values):
    """Means over the coarse cells, by the areas of the fine ones; leading axes are kept."""
    cells = values.reshape(*values.shape[:-2], 4, BLOCK, -1, BLOCK)
    return np.einsum("...irjc,ir->...ij", cells, WEIGHTS) / (BLOCK * WEIGHTS.sum(1)[:, None])


class Case(NamedTuple):
    data: dc.datasets.FieldsExample
    found: dc.Downscaler
    plain: "xr.Dataset"
    consistent: "xr.Dataset"

    @property
    def observed(self):
        return self.data.coarse[self.found.target].values


def case(data, **changes):
    found = fitted(data, **changes)
    return Case(data, found, found.predict(data.fine), exact(found).predict(data.fine))


@pytest.fixture(scope="module")
def identity():
    return case(example(1.0))


@pytest.fixture(scope="module")
def logarithmic():
    return case(example(1.0, "rain"), target="rain", transform="log")


@pytest.fixture(scope="module")
def bounded():
    """A dry field: the process is below zero in many cells."""
    data = example(1.0, "rain")
    dry = (data.coarse.rain / data.coarse.rain.max()) ** 3 + 1e-3
    data = data._replace(coarse=data.coarse.assign(rain=dry))
    return case(data, target="rain", bounds=(0, None))


@pytest.fixture(scope="module")
def west(identity):
    """A quarter of the globe."""
    return exact(identity.found).predict(identity.data.fine.isel(lon=slice(0, 8)), samples=200)


# --- means and spread ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["identity", "logarithmic", "bounded"])
def test_area_means_are_those_observed(kind, request):
    found = request.getfixturevalue(kind)
    observed = found.observed
    before = np.abs(area_means(found.plain["mean"].values) - observed).max()
    left = np.abs(area_means(found.consistent["mean"].values) - observed).max()
    assert left < 1e-8 * np.abs(observed).max() < 0.01 * before
    assert float(np.abs(found.consistent["coarse_residual"]).max()) == pytest.approx(left, abs=1e-9)
    if kind == "bounded":
        assert float(found.consistent["latent_mean"].min()) < 0
        assert float(found.consistent["mean"].min()) >= 0


@pytest.mark.parametrize("kind", ["identity", "logarithmic", "bounded"])
def test_the_process_is_not_less_certain(kind, request):
    """The spread of the process; that of its exponential also moves with its mean."""
    found = request.getfixturevalue(kind)
    if kind == "logarithmic":
        levels = {"quantiles": [0.1, 0.9]}
        widths = []
        for each in (found.found, exact(found.found)):
            low, high = np.log(each.predict(found.data.fine, **levels)["quantiles"].values)
            widths.append(high - low)
    else:
        name = "std" if kind == "identity" else "latent_std"
        widths = [each[name].values for each in (found.plain, found.consistent)]
    assert (widths[1] <= widths[0] * (1 + 1e-9)).all()
    assert (widths[1] < 0.99 * widths[0]).any()


def membership():
    """Weights of the 512 fine cells in the means over the 32 coarse ones."""
    cells = np.arange(512).reshape(4, BLOCK, 8, BLOCK)
    weights = np.zeros((32, 512))
    for k in range(32):
        i, j = divmod(k, 8)
        share = np.repeat(WEIGHTS[i], BLOCK)
        weights[k, cells[i, :, j].ravel()] = share / share.sum()
    return weights


def positions_and_altitude(fine):
    lat, lon = np.meshgrid(np.radians(fine.lat), np.radians(fine.lon), indexing="ij")
    columns = [np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)]
    altitude = fine.altitude.values
    columns.append((altitude - altitude.mean()) / altitude.std())
    return np.stack(columns, -1).reshape(-1, 4)


def dense(found, weights, observed):
    """Mean and variance of the field given its area means, by the textbook formula."""
    prior = found.found.model_.predict(positions_and_altitude(found.data.fine))
    scaling = found.found.target_scaling_
    mean = scaling.centre + scaling.scale * prior.mean
    covariance = scaling.scale**2 * prior.covariance()
    cross = covariance @ weights.T
    gain = np.linalg.solve(weights @ cross, cross.T).T
    return mean + gain @ (observed - weights @ mean), np.diag(covariance - gain @ cross.T)


def test_dense_conditioning_gives_the_same(identity):
    mean, variance = dense(identity, membership(), identity.observed.ravel())
    found = identity.consistent
    spread = found["std"].values.max()
    np.testing.assert_allclose(found["mean"].values.ravel(), mean, rtol=0, atol=1e-6 * spread)
    np.testing.assert_allclose(
        found["std"].values.ravel() ** 2, variance, rtol=1e-6, atol=1e-6 * spread**2
    )


def test_only_cells_that_are_predicted_are_made_consistent(identity, west):
    residual = west["coarse_residual"].values
    assert np.abs(residual[:, :2]).max() < 1e-8 * identity.observed.max()
    assert np.isnan(residual[:, 2:]).all()
    plain = identity.found.predict(identity.data.fine.isel(lon=slice(0, 8)))
    assert np.abs(plain["coarse_residual"].values[:, :2]).max() > 0.01


def test_nothing_to_be_consistent_with(identity):
    found = exact(identity.found)
    sliver = identity.data.fine.isel(lon=slice(0, 1))  # no coarse cell is covered by half
    with pytest.raises(UsageError, match="found no observed coarse cell that the predicted cells"):
        found.predict(sliver)
    apart = example(0.0)
    options = {"mediators": ["water_vapour"], "mediator_kernel": gk.RBF(lengthscale=jnp.ones(4))}
    linked = FIXED | {"mediator_kernel.lengthscale": 1.0, "ridge": 0.01}
    unmatched = fitted(apart, **options, model="cmp", model_options={"fixed": linked})
    with pytest.raises(UsageError, match="leave it out"):
        exact(unmatched).predict(apart.fine)
    out = exact(unmatched).predict(apart.everywhere)
    observed = apart.coarse.tas.values
    seen = np.isfinite(observed)
    np.testing.assert_allclose(area_means(out["mean"].values)[seen], observed[seen], rtol=1e-9)


# --- samples ------------------------------------------------------------------------------------


def test_samples_have_the_observed_area_means(identity, west):
    means = area_means(west["samples"].values)
    observed = np.broadcast_to(identity.observed[:, :2], means.shape)
    np.testing.assert_allclose(means, observed, rtol=1e-8)
    deviation = ((west["samples"] - west["mean"]) / west["std"]).values
    assert np.abs(deviation.mean(0)).max() < 5 / np.sqrt(200)
    np.testing.assert_allclose(deviation.std(0), 1.0, atol=0.3)


def test_condensed_cells_keep_the_area_means(identity, monkeypatch):
    """Cells of many points are condensed to find directions; the means are over all of them."""
    monkeypatch.setattr(consistency, "condensed_size", lambda name, n_bags: 5)
    fine = identity.data.fine.isel(lon=slice(0, 8))
    out = exact(identity.found).predict(fine, samples=5)
    observed = identity.observed[:, :2]
    np.testing.assert_allclose(area_means(out["mean"].values), observed, rtol=1e-9)
    assert (out["std"] <= identity.found.predict(fine)["std"] * (1 + 1e-9)).all()
    means = area_means(out["samples"].values)
    np.testing.assert_allclose(means, np.broadcast_to(observed, means.shape), rtol=1e-8)


def test_mixtures_are_made_consistent_part_by_part(identity):
    x = positions_and_altitude(identity.data.fine)
    single = identity.found.model_.predict(x)
    weights = membership()
    cells = dc.Bags.from_membership(x, weights.T)
    rest = (cells, csr_array(weights), identity.observed.ravel(), identity.found.target_scaling_)
    mixed = ConsistentPosterior(Posterior([*single.fields] * 2, x), *rest)
    alone = ConsistentPosterior(single, *rest)
    np.testing.assert_allclose(mixed.mean, alone.mean, rtol=1e-12)
    np.testing.assert_allclose(mixed.variance, alone.variance, rtol=1e-12)
    with pytest.raises(UsageError, match="need method='map'"):
        mixed.sample(2)


def test_what_is_out_of_reach_is_said():
    """The area mean of a bounded field cannot lie on its bound."""
    data = example(1.0, "rain")
    dry = data.coarse.rain.where(data.coarse.rain > data.coarse.rain.median(), 0.0)
    data = data._replace(coarse=data.coarse.assign(rain=dry))
    found = exact(fitted(data, target="rain", bounds=(0, None)))
    with pytest.warns(dc.FitWarning, match=r"leaves area means up to .* off what was") as caught:
        out = found.predict(data.fine)
    left = np.abs(area_means(out["mean"].values) - dry.values).max()
    assert f"up to {left:.3g} off" in str(caught[0].message)


def test_too_large_to_be_made_consistent(identity, monkeypatch):
    monkeypatch.setattr(consistency, "MOST_BYTES", 1.0)
    with pytest.raises(UsageError, match="over 32 cells and 512 points would need"):
        exact(identity.found).predict(identity.data.fine)


def test_cells_that_leave_no_room():
    with pytest.raises(UsageError, match="so well determined already"):
        consistency._root(np.array([[1.0, 2.0], [2.0, 1.0]]))


# --- residuals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["identity", "logarithmic", "bounded"])
def test_residuals_are_always_there_and_right(kind, request):
    found = request.getfixturevalue(kind)
    for out in (found.plain, found.consistent):
        means = area_means(out["mean"].values)
        np.testing.assert_array_equal(out["coarse_observed"], found.observed)
        np.testing.assert_allclose(out["coarse_mean"], means, rtol=1e-12)
        left = found.observed - means
        np.testing.assert_allclose(out["coarse_residual"], left, rtol=1e-9, atol=1e-12)
        facts = json.loads(out.attrs["deconditional"])["residuals"]
        assert facts["n"] == 32
        assert facts["mean"] == pytest.approx(left.mean(), abs=1e-12)
        assert facts["rmse"] == pytest.approx(np.sqrt(np.mean(left**2)), abs=1e-12)
        assert abs(facts["largest"]) == pytest.approx(np.abs(left).max(), abs=1e-12)
