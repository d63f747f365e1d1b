"""Forecasts of counts in zones: the models of the package, and what a user has without them.

Each is a function of :class:`~studies.count_problems.Zones`, a seed and the size of a basis, and
returns the counts of the hidden zones as :class:`~deconditional.scores.Counts`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gpjax.kernels as gk
import numpy as np

import deconditional as dc
from deconditional.models.baselines import (
    Baseline,
    areal_weighting,
    dasymetric,
    poisson_regression,
)
from deconditional.scores import Counts
from studies.count_problems import Zones

__all__ = ["FORECASTS", "field", "kernel_of", "pycnophylactic"]

DRAWS = 500
"""Of rates, which the counts of the package's models are mixtures over."""


def kernel_of(zones: Zones) -> Any:
    """A rough function of position plus a smooth one of the covariates.

    One length scale serves all covariates: those of fifty zones do not tell more of them.
    """
    n = zones.x.shape[1]
    return gk.Matern32(active_dims=[0, 1]) + gk.RBF(active_dims=list(range(2, n)))


def field(zones: Zones, seed: int, basis: int, family: Any) -> Counts:
    """A field under a family: mixtures of Poisson counts over draws of the means of zones."""
    model = dc.VBagg(kernel_of(zones), family=family, n_inducing=basis, n_restarts=2, seed=seed)
    effects = {"effects": True} if family.overdispersion else {}
    found: Any = model.fit(zones.bags, zones.z).predict_bags(
        zones.hidden_bags, n_draws=DRAWS, seed=seed, **effects
    )
    return Counts(found.draws)


def areal(zones: Zones, seed: int, basis: int) -> Counts:
    """The rate of a zone for all its points."""
    return areal_weighting(zones.amounts, zones.z).predict(zones.hidden_amounts)


def regression(zones: Zones, seed: int, basis: int) -> Counts:
    """A Poisson regression on the means of zones."""
    fitted = poisson_regression(zones.amounts, zones.z, zones.covariates, seed)
    return fitted.predict(zones.hidden_amounts)


def dasymetric_regression(zones: Zones, seed: int, basis: int) -> Counts:
    """The same, scaled to the totals of zones."""
    fitted = poisson_regression(zones.amounts, zones.z, zones.covariates, seed)
    return dasymetric(zones.amounts, zones.z, fitted).predict(zones.hidden_amounts)


def centroid(zones: Zones, seed: int, basis: int) -> Counts:
    """Log rates of zones as noisy values of a Gaussian process at their centroids."""
    exposure = zones.amounts.sum(1)
    log_rate = np.log((zones.z + 0.5) / exposure)
    model = dc.CentroidGP(kernel_of(zones), n_restarts=2, seed=seed).fit(zones.bags, log_rate)
    post = model.predict(zones.hidden_bags.centroids().points)
    spread = np.sqrt(post.std**2 + model.parameters_["noise_std"] ** 2)
    normal = np.random.default_rng(seed).normal(size=(DRAWS, len(post.mean)))
    rates = np.exp(post.mean + spread * normal)
    return Counts(rates * zones.hidden_amounts.sum(1))


def pycnophylactic(zones: Zones, rounds: int = 100) -> Baseline:
    """Tobler's smooth map of rates on a grid: neighbours averaged, totals of zones restored."""
    assert zones.grid is not None
    start = areal_weighting(zones.amounts, zones.z)
    rate, n = start.rate, zones.grid[0] * zones.grid[1]
    for _ in range(rounds):
        cells = np.full(n, np.nan)
        cells[: len(rate)] = rate
        padded = np.pad(cells.reshape(zones.grid), 1, constant_values=np.nan)
        near = np.stack([padded[1:-1, 1:-1], padded[:-2, 1:-1], padded[2:, 1:-1]])
        near = np.concatenate([near, [padded[1:-1, :-2], padded[1:-1, 2:]]]).reshape(5, -1)
        smooth = np.nanmean(near[:, : len(rate)], axis=0)
        rate = dasymetric(zones.amounts, zones.z, Baseline(smooth, start.dispersion)).rate
    return Baseline(rate, start.dispersion)


def smooth_map(zones: Zones, seed: int, basis: int) -> Counts:
    """Counts from Tobler's map."""
    return pycnophylactic(zones).predict(zones.hidden_amounts)


FORECASTS: dict[str, Callable[[Zones, int, int], Counts]] = {
    "field": partial(field, family=dc.Poisson(overdispersion="points")),
    "field, effects of zones": partial(field, family=dc.Poisson(overdispersion=True)),
    "field, no effects": partial(field, family=dc.Poisson()),
    "areal weighting": areal,
    "Poisson regression": regression,
    "dasymetric by regression": dasymetric_regression,
    "centroid GP": centroid,
    "pycnophylactic": smooth_map,
}
"""Name in tables -> forecast."""
