"""Yields of districts from covariates of two resolutions, as tables of crops have them.

The published tables (MODIS and weather by county) cannot be had here; these are made up in their
shape. A district has 20 to 60 fields, each with two covariates of its own (a satellite's pixels)
and two that neighbouring fields share (a weather cell). Its yield is the mean of a nonlinear
function over its fields. Half of the districts are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gpjax.kernels as gk
import numpy as np
import numpy.typing as npt
from sklearn.linear_model import RidgeCV

import deconditional as dc
from deconditional.scores.marginals import Marginals
from studies.records import Record

__all__ = ["TABLE_MODELS", "Tables", "table_scores", "tables"]

Floats = npt.NDArray[np.float64]

DISTRICTS = 160
SHARED = 8
"""Fields of a weather cell."""

NOISE = 0.1


class Tables(NamedTuple):
    """Districts with yields, and as many without."""

    bags: dc.Bags
    z: Floats
    hidden: dc.Bags
    truth: Floats


def tables(seed: int) -> Tables:
    """Districts with covariates of two resolutions."""
    rng = np.random.default_rng(seed)
    district = np.repeat(np.arange(DISTRICTS), rng.integers(20, 61, DISTRICTS))
    level = rng.normal(size=(DISTRICTS, 4))[district]
    own = 0.7 * level[:, :2] + rng.normal(size=(len(district), 2))
    cell = np.arange(len(district)) // SHARED
    weather = level[:, 2:] + 0.5 * rng.normal(size=(cell[-1] + 1, 2))[cell]
    f = (
        np.sin(1.5 * own[:, 0])
        + 0.5 * own[:, 1] * np.tanh(weather[:, 0])
        - 0.3 * weather[:, 1] ** 2
    )
    z = np.bincount(district, f) / np.bincount(district) + NOISE * rng.normal(size=DISTRICTS)
    x, half = np.concatenate([own, weather], 1), DISTRICTS // 2
    seen = district < half
    parts = [
        dc.Bags.from_points(x[rows], district[rows] - first)
        for rows, first in ((seen, 0), (~seen, half))
    ]
    return Tables(parts[0], z[:half], parts[1], z[half:])


def _field(given: Tables, seed: int) -> Marginals:
    """A field over the covariates of both resolutions."""
    model = dc.VBagg(n_inducing=300, n_restarts=2, seed=seed)
    model.fit(given.bags, given.z)
    post = model.predict_bags(given.hidden)
    return _noisy(post.mean, post.std, model)


def _two_fields(given: Tables, seed: int) -> Marginals:
    """A field for each resolution, added."""
    kernel = gk.RBF(active_dims=[0, 1]) + gk.RBF(active_dims=[2, 3])
    model = dc.VBagg(kernel, n_inducing=300, n_restarts=2, seed=seed).fit(given.bags, given.z)
    post = model.predict_bags(given.hidden)
    return _noisy(post.mean, post.std, model)


def _centroid(given: Tables, seed: int) -> Marginals:
    """A Gaussian process on the means of covariates."""
    model = dc.CentroidGP(n_restarts=2, seed=seed)
    post = model.fit(given.bags, given.z).predict(given.hidden.centroids().points)
    return _noisy(post.mean, post.std, model)


def _noisy(mean: Floats, std: Floats, model: Any) -> Marginals:
    """Predictions of observations, which have noise."""
    return Marginals("normal", mean, np.sqrt(std**2 + float(model.parameters_["noise_std"]) ** 2))


def _ridge(given: Tables, seed: int) -> Marginals:
    """Ridge regression on the means of covariates, with the spread of its held-out residuals."""
    x = given.bags.centroids().points
    model = RidgeCV(np.logspace(-3, 3, 13), store_cv_results=True).fit(x, given.z)
    column = int(np.argmin(model.cv_results_.mean(0)))
    spread = np.sqrt(model.cv_results_[:, column].mean())
    found = model.predict(given.hidden.centroids().points)
    return Marginals("normal", found, np.full(len(found), spread))


TABLE_MODELS: dict[str, Callable[[Tables, int], Marginals]] = {
    "field": _field,
    "field of each resolution": _two_fields,
    "centroid GP": _centroid,
    "ridge regression": _ridge,
}


def table_scores(model: str, seed: int) -> Record:
    """Scores of the yields of hidden districts."""
    given = tables(seed)
    found = TABLE_MODELS[model](given, seed)
    return found.score(found.location, given.truth)
