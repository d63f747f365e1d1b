"""Unmatched counts: mediators as measurements of links of mean rates."""

from dataclasses import replace

import numpy as np
import pytest

import deconditional as dc
from deconditional.models.families import fit_sources
from deconditional.models.sources import Source, given
from deconditional.observations.families import OfLink
from tests.helpers import assert_close

ELL = 0.8
HELD = {"kernel.lengthscale": ELL, "kernel.variance": 1.0, "noise_std": 0.1}
LINK = {"mediator_kernel.lengthscale": 1.0, "mediator_kernel.variance": 0.6}
QUICK = {"n_restarts": 1, "method": "map", "trend": "none"}


def gram(a, b):
    return np.exp(-0.5 * (a[:, None] - b) ** 2 / ELL**2)


def test_links_of_single_points_are_a_dense_regression():
    """Values of log rates with normal errors, though the rate has a log link."""
    rng = np.random.default_rng(0)
    x, at = np.sort(rng.uniform(0, 4, 12)), np.array([0.5, 2.2, 5.0])
    t, std = np.sin(x) - 1.0, rng.uniform(0.1, 0.5, 12)
    links = OfLink(of=dc.Poisson())
    source = given([Source(x, t, links, noise_std=std)])
    held = {name: HELD[name] for name in ("kernel.lengthscale", "kernel.variance")}
    model = dc.VBagg(n_inducing=12, fixed=held, trend="none")
    found = fit_sources(model, source, None).predict(at).latent
    gain = np.linalg.solve(gram(x, x) + np.diag(std**2), gram(x, at))
    assert_close(found.mean, gain.T @ t, tolerance=1e-4)
    variance = 1.0 - np.sum(gain * gram(x, at), 0)
    assert_close(found.std**2, variance, tolerance=1e-4)


def test_links_have_the_errors_of_means_to_first_order():
    links = OfLink(of=dc.Binomial())
    assert links.link == "logit" and "noise_std" in links.priors
    mean, trials, small = 3.0, 10.0, 1e-4
    moved = trials * links.g.rate(links.g.eta(mean / trials) + small)
    assert_close(
        links.variance(mean, trials, variance=small**2) ** 0.5, moved - mean, tolerance=1e-3
    )
    assert_close(links.g.eta(links.crude_rate(np.array([0.3]), 1.0)), [0.3])


@pytest.fixture(scope="module")
def unmatched():
    """Bags of one point beside a mediator, and other mediators with rates of their own."""
    rng = np.random.default_rng(1)
    y, other = rng.uniform(-2, 2, 60), rng.uniform(-2, 2, 80)
    bags = dc.Bags.from_points(y + 0.4 * rng.normal(size=60), np.arange(60), mediator=y)
    log_rate = np.sin(1.5 * (other + 0.4 * rng.normal(size=80)))
    return bags, other, log_rate, rng


def test_large_counts_are_normal_values_of_their_logarithms(unmatched):
    bags, other, log_rate, rng = unmatched
    counts = rng.poisson(1e6 * np.exp(log_rate))
    held = {**HELD, **LINK, "mediator_overdispersion_std": 0.3}
    model = dc.MediatedGP(family=dc.Poisson(), fixed=held, **QUICK)
    model.fit(bags, counts, mediator=other, exposure=1e6)
    held = {**HELD, **LINK, "mediator_noise_std": 0.3}
    normal = dc.MediatedGP(n_inducing=60, fixed=held, **QUICK)
    normal.fit(bags, log_rate, mediator=other)
    at = np.linspace(-2, 2, 9)
    regression = model.predict_coarse(at).latent, normal.predict_coarse(at)
    assert_close(regression[0].mean, regression[1].mean, tolerance=1e-3)
    # What the population is like is known from h here and from z there: a sampling error apart.
    found, expected = model.predict(at).latent, normal.predict(at)
    assert np.abs((found.mean - expected.mean) / expected.std).max() < 0.5
    np.testing.assert_allclose(found.std, expected.std, rtol=0.15)
    assert abs(model.explained_share_ - 1 + 0.3**2 / np.var(log_rate)) < 0.1


def test_draws_share_out_regressions_and_the_model_is_saved_whole(unmatched, tmp_path, monkeypatch):
    monkeypatch.setattr("deconditional.fitting.draws.PROPOSALS", 16)
    bags, other, log_rate, rng = unmatched
    family = dc.NegativeBinomial()
    counts = rng.poisson(50 * np.exp(log_rate) * rng.gamma(10.0, 0.1, 80))
    few = {"n_restarts": 1, "method_options": {"num_draws": 2}, "n_inducing": 12}
    model = dc.MediatedGP(family=family, **few).fit(bags, counts, mediator=other, exposure=50.0)
    assert len({float(p.sources[0].y[0]) for p in model.fitted_.problems}) > 1
    assert model.parameters_["dispersion"] == model.regressor_.parameters_["dispersion"]
    seen = model.predict_bags(bags, exposure=50.0, noise=True)
    rates = model.predict_bags(bags, exposure=50.0)
    assert (seen.draws == np.round(seen.draws)).all() and (seen.std > rates.std).all()
    again = dc.load(model.save(tmp_path / "counts.npz"))
    assert_close(again.predict([0.3]).mean, model.predict([0.3]).mean)


def test_stations_beside_mediated_counts_are_one_dense_regression(unmatched):
    bags, other, log_rate, rng = unmatched
    at, z = np.array([-1.0, 0.3, 3.5]), np.array([-0.5, 0.4, 1.0])
    counts = dc.Source(bags, rng.poisson(50 * np.exp(log_rate)), dc.Poisson(), exposure=50.0)
    sources = [replace(counts, mediator=other), dc.Source(at, z, noise_std=0.05)]
    names = {"source0.noise_std" if name == "noise_std" else name: v for name, v in HELD.items()}
    held = {**names, **LINK, "mediator_overdispersion_std": 0.3}
    model = dc.MediatedGP(fixed=held, n_inducing=63, **QUICK).fit(sources)
    x = np.concatenate([bags.points[:, 0], at])
    noise = np.concatenate([model.measurements_.noise + 0.1**2, np.full(3, 0.05**2)])
    gain = np.linalg.solve(gram(x, x) + np.diag(noise), gram(x, at))
    found = model.predict(at).latent
    values = np.concatenate([model.measurements_.values, z])
    assert_close(found.mean, gain.T @ values, tolerance=1e-3)
    assert_close(found.variance, 1.0 - np.sum(gain * gram(x, at), 0), tolerance=1e-3)
    assert (model.predict(at, source=1).mean == found.mean).all()
    assert "source0.noise_std" in model.parameters_
    # Held out: the first source by the regression, a station by all links and the other stations.
    folds = np.concatenate([np.arange(80) % 2, [0, 1, 1]])
    held_out = model.predict_held_out(folds)
    regression = model.regressor_.predict_held_out(folds[:80])
    assert held_out.draws.shape[1] == 83
    assert_close(held_out.mean[:80], regression.mean)
    rest = np.r_[:60, 61, 62]
    gain = np.linalg.solve(gram(x[rest], x[rest]) + np.diag(noise[rest]), gram(x[rest], at[:1]))
    variance = 1.0 - np.sum(gain * gram(x[rest], at[:1])) + 0.05**2
    error = np.sqrt(variance / len(held_out.draws))
    assert abs(held_out.mean[80] - (gain.T @ values[rest])[0]) < 4 * error
    assert held_out.std[80] == pytest.approx(np.sqrt(variance), rel=0.1)
    for wrong in (np.arange(82) % 2, np.r_[np.zeros(80), 1, 1, 1]):
        with pytest.raises(ValueError, match="83 observations of all sources"):
            model.predict_held_out(wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"family": dc.Normal()}, "is for counts, shares and amounts"),
        ({"family": dc.Poisson(overdispersion=True)}, "without overdispersion"),
        ({"family": dc.Binomial()}, "successes in 1 trial"),
        ({"family": dc.Poisson(), "learn_noise": False}, "learn_noise is for normal"),
        ({}, "no family|family"),
    ],
)
def test_what_cannot_be_fitted(unmatched, wrong, message):
    bags, other, *_ = unmatched
    with pytest.raises(ValueError, match=message):
        exposure = {"exposure": 2.0} if wrong == {} else {}
        dc.MediatedGP(**wrong).fit(bags, np.full(80, 2.0), mediator=other, **exposure)


def test_sources_that_a_mediated_model_cannot_take(unmatched):
    bags, other, *_ = unmatched
    linked = dc.Source(bags, np.ones(80), dc.Poisson(), mediator=other)
    own = dc.Source([0.0, 1.0], [1.0, 2.0])
    for sources, message in (
        ([own, linked], "the bags have no mediator"),
        ([linked, linked], "the first source of a MediatedGP has mediators and the others"),
        ([replace(linked, task=0), replace(own, task=1)], "has one target"),
        ([replace(linked, family=None)], "leave it out, and the list"),
    ):
        with pytest.raises(ValueError, match=message):
            dc.MediatedGP().fit(sources)


def test_bags_that_were_observed_are_not_unmatched(unmatched):
    bags, other, *_ = unmatched
    own = {"own_bag": np.zeros(80, int), "mediator": other}
    with pytest.raises(ValueError, match="own_bag is for normal"):
        dc.MediatedGP(family=dc.Poisson()).fit(bags, np.full(80, 2.0), **own)
