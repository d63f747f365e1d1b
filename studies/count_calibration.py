"""Simulation-based calibration of families: truths from the prior, their places in the posterior.

Hyper-parameters are held. f is drawn from its prior at points of a line, and observations of bags
from the family; where prior, likelihood and posterior belong together, the quantile of the truth
under the posterior is uniform. Three points far from one another are looked at, and the mean rate
of a bag that was observed, whose scatter a normal distribution of f overstates where f is rough.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import kstest, norm

import deconditional as dc
from deconditional.inference.laplace import settled, solution_of
from deconditional.models.families import pose
from deconditional.models.sources import Source, given
from deconditional.scores import pit_coverage
from studies.records import Record

__all__ = ["CALIBRATED", "calibration_scores", "places"]

POINTS, IN_BAG, AMOUNT, LENGTH = 40, 4, 20.0, 1.0
LOOKED_AT = (3, 18, 33)
BAG = 2
"""The bag whose mean rate is looked at."""

RANKED_AMONG = 400
"""Draws of the mean rate of a bag."""

CALIBRATED: dict[str, tuple[Any, dict[str, float]]] = {
    "Poisson": (dc.Poisson(), {}),
    "Poisson, effects of bags": (dc.Poisson(overdispersion=True), {"overdispersion_std": 0.3}),
    "negative binomial": (dc.NegativeBinomial(), {"dispersion": 0.2}),
    "binomial": (dc.Binomial(), {}),
    "beta-binomial": (dc.BetaBinomial(), {"correlation": 0.1}),
    "Tweedie": (dc.Tweedie(), {"dispersion": 1.0, "power": 1.5}),
}
"""Name in tables -> family, and its parameters."""


def places(name: str, draws: int, seed: int = 0, inference: str = "collapsed") -> np.ndarray:
    """Quantiles of truths under their posteriors, (draws, 4): three points, then a bag."""
    family, own = CALIBRATED[name]
    x = np.linspace(0, 6, POINTS)
    bags = dc.Bags.from_points(x, np.arange(POINTS) // IN_BAG)
    held = {"kernel.lengthscale": LENGTH, "kernel.variance": 1.0, **own}
    options: Any = {"n_inducing": POINTS, "trend": "none", "fixed": held, "inference": inference}
    model = dc.VBagg(family=family, **options)
    amounts: Any = {family.amount: AMOUNT}
    zeros = Source(bags, np.zeros(len(bags)), family, **amounts)
    problem = pose(model, given([zeros])).problem
    gram = np.exp(-0.5 * (x[:, None] - x) ** 2 / LENGTH**2) + 1e-9 * np.eye(POINTS)
    root, rng = np.linalg.cholesky(gram), np.random.default_rng(seed)
    inside, points = jnp.asarray(x[BAG * IN_BAG :][:IN_BAG, None]), jnp.asarray(x[:, None])
    spread, found = own.get("overdispersion_std", 0.0), np.empty((draws, len(LOOKED_AT) + 1))
    scatter = {k: v for k, v in own.items() if k != "overdispersion_std"}
    looked_at = np.array(LOOKED_AT)
    for k in range(draws):
        f = root @ rng.standard_normal(POINTS)
        rates = bags.means(np.asarray(family.g.rate(f)))
        eta = np.asarray(family.g.eta(rates)) + spread * rng.standard_normal(len(rates))
        key = jax.random.fold_in(jax.random.key(seed), k)
        mean, amount = AMOUNT * family.g.rate(eta), jnp.full(len(rates), AMOUNT)
        y = family.simulate(key, mean, amount, **scatter)
        seen = replace(problem.sources[0], y=jnp.asarray(y))
        posed = replace(problem, sources=(seen,))
        if problem.variational:
            posed = settled(posed, np.zeros(0), solution_of)[0]
        _, field = solution_of(posed, np.zeros(0))
        m, v = (np.asarray(each) for each in field.moments(points))
        found[k, :-1] = norm.cdf((f[looked_at] - m[looked_at]) / np.sqrt(v[looked_at]))
        low = np.linalg.cholesky(np.asarray(field.covariance(inside)) + 1e-9 * np.eye(IN_BAG))
        drawn = m[BAG * IN_BAG :][:IN_BAG] + rng.standard_normal((RANKED_AMONG, IN_BAG)) @ low.T
        found[k, -1] = np.mean(np.asarray(family.g.rate(drawn)).mean(1) < rates[BAG])
    return found


def calibration_scores(name: str, draws: int) -> Record:
    """Coverage of central intervals of f and of the rate of a bag, and whether f's is uniform."""
    found = places(name, draws)
    at_points = found[:, :-1].ravel()
    half, most = pit_coverage(at_points, [0.5, 0.95])
    of_bag = pit_coverage(found[:, -1], [0.95])[0]
    return {
        "draws": float(draws),
        "p_uniform": float(kstest(at_points, "uniform").pvalue),
        "coverage50": float(half),
        "coverage95": float(most),
        "bag95": float(of_bag),
    }
