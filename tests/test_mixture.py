"""Mixtures of models: weights against quadrature, answers against sums over their parts."""

import warnings

import numpy as np
import pytest
from scipy.stats import norm

import deconditional as dc
from deconditional.errors import DeconditionalWarning, UsageError
from deconditional.inference.posterior import Gaussians

xr = pytest.importorskip("xarray")
pytest.importorskip("cf_xarray")

from deconditional.fields.mixture import DRAWS, Mixture, mixed, stacked_weights  # noqa: E402
from deconditional.fields.validation import MIXTURE, Predicted, Tried, compared  # noqa: E402


def test_weights_are_posterior_means_under_a_uniform_prior():
    """Of two models by quadrature; of three by the moments of a Dirichlet."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal(30)
    densities = norm.logpdf(z[None], [[0.0], [0.4]], [[1.0], [1.3]])
    w = (np.arange(20_000) + 0.5) / 20_000
    likelihood = np.exp(
        np.log(w[:, None] * np.exp(densities[0]) + (1 - w)[:, None] * np.exp(densities[1])).sum(1)
    )
    expected = (w * likelihood).sum() / likelihood.sum()
    assert stacked_weights(densities)[0] == pytest.approx(expected, abs=0.01)
    # Each observation that one model alone can explain adds one to its Dirichlet parameter.
    alone = np.full((3, 7), -800.0)
    alone[[0, 0, 0, 0, 1, 1, 2], np.arange(7)] = 0.0
    np.testing.assert_allclose(stacked_weights(alone), [0.5, 0.3, 0.2], atol=0.01)


def tried(name, error, std, z):
    both = Predicted(Gaussians((z + error)[None], np.full((1, len(z)), std**2)), z)
    return Tried(name, both, 1.0, both)


def test_scores_of_a_mixture_are_those_of_its_draws():
    z = np.random.default_rng(0).standard_normal(40)
    models = [tried("one", 0.3, 1.0, z), tried("two", -0.4, 1.0, z), tried("off", 9.0, 1.0, z)]
    simple = Tried("bilinear", Predicted.value(z + 1.0, z), 0.0, Predicted.value(z + 1.0, z))
    table = compared([*mixed(models), simple], 2.0, "folds")
    assert table.rows[-1]["crps"] == pytest.approx(2.0) and "bilinear" not in table.pit
    shares = table.shares(table.chosen)
    assert table.chosen == MIXTURE and sum(shares.values()) == DRAWS and "off" not in shares
    offset = (0.3 * shares["one"] - 0.4 * shares["two"]) / DRAWS
    row = table.rows[0]
    assert row["rmse"] == pytest.approx(2.0 * abs(offset))
    density = sum(n * norm.pdf(0.0, {"one": 0.3, "two": -0.4}[k], 1.0) for k, n in shares.items())
    assert row["nll"] == pytest.approx(-np.log(density / DRAWS / 2.0))
    assert [r["draws"] for r in table.rows][1:] == [shares["one"], shares["two"], 0, None]
    assert table.shares("one") == {"one": 1}


@pytest.fixture(scope="module")
def asked():
    """A field of a covariate and of position, and what auto makes of it."""
    rng = np.random.default_rng(1)
    axes = {
        name: (name, 1000.0 * (np.arange(n) + 0.5), {"units": "m"})
        for name, n in (("y", 15), ("x", 18))
    }
    y, x = np.meshgrid(np.arange(15), np.arange(18), indexing="ij")
    known = rng.standard_normal((15, 18))
    values = 5.0 + np.sin(y / 5) + np.cos(x / 4) + 0.3 * known
    both = xr.Dataset({"target": (("y", "x"), values), "known": (("y", "x"), known)}, axes)
    coarse = dc.datasets.coarsen(both[["target"]], 3)
    options = {"n_restarts": 1, "model_options": {"method": "map"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconditionalWarning)
        plain = dc.Downscaler("target", ["known"], **options).fit(both[["known"]], coarse)
    return both[["known"]], plain


def test_answers_are_sums_over_models(asked):
    fine, downscaler = asked
    assert downscaler.model_name_ == MIXTURE
    shares = downscaler.comparison_.shares(MIXTURE)
    weights = np.array([n / DRAWS for n in shares.values()])[:, None, None]
    found = downscaler.predict(fine, quantiles=[0.5], exceedance=[5.0])
    parts = [downscaler.using(name).predict(fine, exceedance=[5.0]) for name in shares]
    means, stds = (np.stack([p[v].values for p in parts]) for v in ("mean", "std"))
    mean = (weights * means).sum(0)
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-9)
    variance = (weights * (stds**2 + means**2)).sum(0) - mean**2
    np.testing.assert_allclose(found["std"], np.sqrt(variance), rtol=1e-6)
    above = sum(w * p["exceedance"].values[0] for w, p in zip(weights, parts, strict=True))
    np.testing.assert_allclose(found["exceedance"][0], above, atol=1e-9)
    middle = found["quantiles"].values[0]
    below = sum(w * norm.cdf(middle, m, s) for w, m, s in zip(weights, means, stds, strict=True))
    np.testing.assert_allclose(below, 0.5, atol=1e-6)


def test_means_over_bags_are_sums_over_models(asked):
    _, downscaler = asked
    model = downscaler.model_
    assert isinstance(model, Mixture)
    bags = model.heaviest.bags_
    post = model.predict_bags(bags)
    parts = [(n, model.models[k].predict_bags(bags).mean) for k, n in model.shares.items()]
    np.testing.assert_allclose(post.mean, sum(n * m for n, m in parts) / DRAWS, rtol=1e-9)
    assert post.covariance().shape == (len(post.mean),) * 2


def test_a_saved_mixture_answers_the_same(asked, tmp_path):
    fine, downscaler = asked
    again = dc.load(downscaler.save(tmp_path / "both.npz"))
    assert again.model_name_ == MIXTURE
    xr.testing.assert_allclose(again.predict(fine)["mean"], downscaler.predict(fine)["mean"])
    with pytest.raises(UsageError, match="'cmp' was not fitted; the candidates are"):
        downscaler.using("cmp")


def test_hyper_parameters_of_few_cells_are_averaged(asked, monkeypatch):
    pairing, plain = asked[1].pairing_, dc.Downscaler("target", ["known"])
    few, sample = plain.recipe(pairing), plain.recipe(pairing, sampled=True)
    n_cells = len(np.unique(pairing.observed_cell))
    monkeypatch.setattr("deconditional.fields.options.MOST_AVERAGED", n_cells - 1)
    many = plain.recipe(pairing)
    for recipe, method in ((few, "draws"), (sample, "map"), (many, "map")):
        assert recipe.estimator("kriging", matched=True).method == method
        assert recipe.estimator("bagg-gp", matched=True).method == method
