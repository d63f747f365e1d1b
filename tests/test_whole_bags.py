"""Means over all points of bags, for models that learnt from a few points of each."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import deconditional as dc
from deconditional.fields.question import Question
from deconditional.fields.scaling import InputScaling
from deconditional.fields.sides import two_sides
from pairs import pair
from tests.helpers import assert_close

NAMES = ("tas", ["altitude", "cloud"], ["water_vapour"])


@pytest.fixture(scope="module")
def data():
    fields = dc.datasets.synthetic_fields(48, 96)
    return dc.datasets.split_cells(fields, *NAMES, block=12, matched=0.5, seed=1)


def learner(downscaler, data):
    """All that comes before learning."""
    return downscaler.prepare(*two_sides(data.fine, data.coarse, downscaler.question()))


def squares(x):
    return x**2


@pytest.mark.parametrize("chunks", [None, {"lat": 12, "lon": 24}, {"lat": 17, "lon": 31}])
def test_means_of_functions_over_all_points(data, chunks):
    fine = data.fine if chunks is None else data.fine.chunk(chunks)
    question = Question("tas", ("altitude", "cloud"), ("water_vapour",))
    found = pair(fine, data.coarse, question)
    whole = pair(data.fine, data.coarse, question).bags
    scaling = InputScaling.of(found.spread, found.n_position, True)
    which = np.array([3, 0, 7])
    expected = whole.select(which)
    means = found.fine_bags.averages(which, scaling, squares)
    assert_close(means, expected.means(scaling(expected.points) ** 2))


def test_condensed_fit_ends_with_the_posterior_of_whole_bags(data):
    """At the same parameters, inducing points, W and S, all points give the same answer."""
    options = {"n_inducing": 20, "max_iter": 6, "precision": "float64"}
    downscaler = dc.Downscaler(
        *NAMES, model="varcmp", points_per_bag=5, n_restarts=1, model_options=options
    )
    with pytest.warns(dc.FitWarning), pytest.warns(dc.NoSkillWarning):  # of so few steps
        downscaler.fit(data.fine, data.coarse)
    inner = downscaler.model_
    x = np.random.default_rng(0).normal(size=(7, inner.n_features_in_))

    every = dc.Downscaler(*NAMES, model="varcmp", points_per_bag=None)
    bags = learner(every, data).data("varcmp").bags
    problem = inner.fitted_.problem
    values = problem.parameters.unpack(inner.fitted_.vectors[0])
    trend_means = bags.means(np.asarray(problem.trend.features(jnp.asarray(bags.points))))
    whole = replace(problem, layout=bags.layout, trend_means=jnp.asarray(trend_means))
    known = inner.fitted_.pieces[0]
    pieces = replace(whole.pieces(values), weights=known.weights, noise=known.noise, residual=None)
    expected = dc.Posterior([whole.field(values, pieces)], x, False)
    posterior = inner.predict(x)
    assert_close(posterior.mean, expected.mean, tolerance=1e-6)
    assert_close(posterior.std, expected.std, tolerance=1e-6)
    few = inner.bags_.n_points / bags.n_points
    assert few < 0.05
