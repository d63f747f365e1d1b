"""Held-out observations of families, against fits that never saw them."""

from dataclasses import replace

import numpy as np
import pytest

import deconditional as dc
from tests.helpers import assert_close
from tests.test_family_fits import FIXED, HELD, F, N, X, cells

BAGS = cells()
FOLDS = np.arange(8) % 3
PLACES = X[::3, None]


def fitted(family, bags, y, **options):
    model = dc.VBagg(family=family, inducing=PLACES, fixed=FIXED, **HELD)
    return model.fit(bags, y, **options)


def test_normal_observations_are_held_out_in_closed_form():
    z = BAGS.means(F) + 0.1 * np.random.default_rng(0).standard_normal(8)
    held = {**FIXED, "noise_std": 0.1}
    plain = dc.VBagg(fixed=held, inducing=X[:, None], **HELD).fit(BAGS, z)
    expected = plain.predict_held_out(FOLDS)
    model = dc.VBagg(family=dc.Normal(), fixed=held, inducing=X[:, None], **HELD).fit(BAGS, z)
    found = model.predict_held_out(FOLDS)
    error = expected.std / np.sqrt(len(found.draws))
    assert np.abs((found.mean - expected.mean) / error).max() < 4.5
    np.testing.assert_allclose(found.std, expected.std, rtol=0.1)
    known = dc.VBagg(fixed=FIXED, inducing=X[:, None], family=dc.Normal(), **HELD)
    again = known.fit(BAGS, z, noise_std=0.1).predict_held_out(FOLDS)
    assert_close(again.draws, found.draws, tolerance=1e-6)


@pytest.mark.parametrize("overdispersion", [True, "points"])
def test_counts_are_those_of_a_fit_that_never_saw_them(overdispersion):
    family = dc.Poisson(overdispersion=overdispersion)
    bags = replace(BAGS, exposure=None)
    counts = np.random.default_rng(1).poisson(20 * bags.means(np.exp(F)) * 1.3).astype(float)
    held = {**FIXED, "overdispersion_std": 0.3}
    model = dc.VBagg(family=family, inducing=PLACES, fixed=held, **HELD)
    found = model.fit(bags, counts, exposure=20.0).predict_held_out(FOLDS)
    rest, out = bags.select(FOLDS != 1), bags.select(FOLDS == 1)
    other = model.fit(rest, counts[FOLDS != 1], exposure=20.0)
    expected = other.predict_bags(out, exposure=20.0, noise=True, n_draws=1000, seed=0)
    error = expected.std * np.sqrt(2 / 1000)
    assert np.abs((found.mean[FOLDS == 1] - expected.mean) / error).max() < 4.5
    np.testing.assert_allclose(found.std[FOLDS == 1], expected.std, rtol=0.15)


def test_several_sources_and_mediators_are_held_out_in_order():
    own = np.arange(8.0)
    bags = dc.Bags.from_points(X, np.arange(N) // 5, mediator=own)
    counts = np.random.default_rng(2).poisson(50 * bags.means(np.exp(F))).astype(float)
    held = {**FIXED, "mediator_kernel.lengthscale": 0.1, "ridge": 1e-9}
    model = dc.VarCMP(family=dc.Poisson(), inducing=PLACES, fixed=held, **HELD)
    mediated = model.fit(bags, counts, mediator=own, exposure=50.0).predict_held_out(FOLDS)
    matched = fitted(dc.Poisson(), bags, counts, exposure=50.0).predict_held_out(FOLDS)
    error = matched.std / np.sqrt(len(matched.draws))
    assert np.abs((mediated.mean - matched.mean) / error).max() < 5
    survey = dc.Source(bags, np.full(8, 3.0), dc.Poisson(), exposure=2.0)
    two = dc.VBagg(inducing=PLACES, fixed=FIXED, **HELD)
    two.fit([dc.Source(bags, counts, dc.Poisson(), exposure=50.0), survey])
    found = two.predict_held_out(np.repeat([0, 1], 8))
    assert found.draws.shape[1] == 16 and found.mean[:8].mean() > 5 * found.mean[8:].mean()


def test_what_cannot_be_held_out():
    counts = np.arange(8.0)
    model = fitted(dc.Poisson(), BAGS, counts)
    with pytest.raises(ValueError, match="into two parts"):
        model.predict_held_out(np.zeros(8))
    with pytest.raises(ValueError, match="from means of observations"):
        model.predict_from_means(np.eye(8))
    sources = [
        dc.Source(BAGS, counts, dc.Poisson()),
        dc.Source(BAGS, counts, dc.Poisson(), bias="offset"),
    ]
    two = dc.VBagg(inducing=PLACES, fixed=FIXED, **HELD).fit(sources)
    with pytest.raises(ValueError, match="without a bias"):
        two.predict_held_out(np.arange(16) % 2)


def test_points_of_bags_are_those_that_the_model_takes():
    counts = np.arange(8.0)
    few = dc.VBagg(family=dc.Poisson(), points_per_bag=2, n_inducing=5, fixed=FIXED, **HELD)
    assert few.fit(BAGS, counts).bags_.sizes.max() == 2
    middles = dc.CentroidGP(family=dc.Poisson(), fixed=FIXED, **HELD).fit(BAGS, counts)
    assert_close(middles.bags_.points, BAGS.centroids().points)
