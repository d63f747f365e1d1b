r"""What a user of counts in zones has already: areal weighting, regression, dasymetric maps.

Zones have the amounts :math:`a_{mi}` of fine points, in general people: (M, n), dense or sparse.
Each method is a rate at every fine point, and so a mean :math:`\sum_i a_{mi} r_i` of the count of
any zone, new ones included. As a distribution it is negative binomial: a rate without scatter would
lose every comparison of scores. The dispersion is that of zones which were not fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_array
from sklearn.linear_model import PoissonRegressor
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from deconditional.scores import Counts

Floats = npt.NDArray[np.float64]

RIDGES = np.logspace(-4, 1, 6)
"""Penalties of the regression among which held-out zones choose."""


@dataclass(frozen=True)
class Baseline:
    """A rate per unit of amount at every fine point, and the dispersion of counts about it."""

    rate: Floats
    dispersion: float

    def predict(self, amounts: Any) -> Counts:
        """Counts of zones with these amounts of the fine points, (K, n)."""
        return Counts(csr_array(amounts) @ self.rate, self.dispersion)


def areal_weighting(amounts: Any, z: npt.ArrayLike) -> Baseline:
    """Every zone has its own rate throughout: its count goes where its people are.

    Points in no zone have the rate of all zones together. The dispersion is that of zones about it.
    `amounts` and `z` are those of :func:`poisson_regression`.

    Examples
    --------
    >>> people = np.array([[10.0, 30.0, 0.0, 0.0], [0.0, 0.0, 20.0, 0.0]])
    >>> areal_weighting(people, [4.0, 6.0]).rate
    array([0.1   , 0.1   , 0.3   , 0.1667])
    """
    a, counts = _zones(amounts, z)
    common = np.full(a.shape[1], counts.sum() / a.sum())
    return dasymetric(a, counts, Baseline(common, _dispersion(counts, a @ common)))


def dasymetric(amounts: Any, z: npt.ArrayLike, density: Baseline | npt.ArrayLike) -> Baseline:
    """Counts spread within their zones in proportion to a density per unit of amount.

    The total of every zone is kept. Points in no zone have the density on the scale of all zones:
    relative rates of fine points, such as those of classes of land use, or a regression. `amounts`
    and `z` are those of :func:`poisson_regression`.

    Examples
    --------
    >>> people = np.array([[10.0, 30.0, 0.0], [0.0, 0.0, 20.0]])
    >>> dasymetric(people, [5.0, 6.0], [2.0, 1.0, 1.0]).rate
    array([0.2, 0.1, 0.3])
    """
    a, counts = _zones(amounts, z)
    given = density.rate if isinstance(density, Baseline) else np.asarray(density, dtype=float)
    if given.shape != a.shape[1:] or not np.all(np.isfinite(given) & (given >= 0)):
        raise ValueError(
            f"the density must have a number that is not negative for each of the {a.shape[1]} "
            f"fine points; it has shape {given.shape}."
        )
    expected = a @ given
    empty = (expected == 0) & (counts > 0)
    if empty.any():
        raise ValueError(
            f"zone {int(np.argmax(empty))} has a count of {counts[empty][0]:g} and density zero at "
            "all its points; give some of them a density."
        )
    factor = np.divide(counts, expected, out=np.zeros_like(counts), where=expected > 0)
    held, overall = a.sum(0), counts.sum() / expected.sum()
    scale = np.divide(a.T @ factor, held, out=np.full(len(held), overall), where=held > 0)
    rate = given * scale
    if isinstance(density, Baseline):
        return Baseline(rate, density.dispersion)
    return Baseline(rate, _dispersion(counts, expected * overall))


def poisson_regression(
    amounts: Any, z: npt.ArrayLike, covariates: npt.ArrayLike, seed: int = 0
) -> Baseline:
    """Poisson regression of counts on the means of covariates over zones, applied to fine points.

    It is scikit-learn's, with standardised covariates; ten-fold cross-validation over zones chooses
    its ridge and gives the dispersion.

    `amounts`, (M, n), says how much of every fine point every zone has: weights of means, and
    exposure. `z` are counts, `covariates` those of fine points, (n, p), `seed` that of the folds.

    Examples
    --------
    Rates that double with every unit of a covariate:

    >>> x = np.linspace(0.0, 3.0, 40)[:, None]
    >>> fit = poisson_regression(1000 * np.eye(40), 1000 * 2 ** x[:, 0], x)
    >>> bool(1.95 < fit.rate[x[:, 0] == 3.0][0] / fit.rate[0] * 2**-2 < 2.05)
    True
    """
    a, counts = _zones(amounts, z)
    fine, exposure = np.asarray(covariates, dtype=float), a.sum(1)
    if fine.ndim != 2 or len(fine) != a.shape[1] or not np.isfinite(fine).all():
        raise ValueError(
            f"covariates must be finite, a row for each of the {a.shape[1]} fine points; their "
            f"shape is {fine.shape}."
        )
    if (exposure <= 0).any():
        raise ValueError(f"zone {int(np.argmax(exposure <= 0))} has no amount at all; drop it.")
    scaler = StandardScaler()
    means = scaler.fit_transform((a @ fine) / exposure[:, None])
    common = counts.sum() / exposure.sum()

    def fitted(ridge: float, among: Any) -> PoissonRegressor:
        model = PoissonRegressor(alpha=ridge, solver="newton-cholesky")
        rates = counts[among] / exposure[among] / common
        return model.fit(means[among], rates, exposure[among] / exposure.mean())

    def held_out(ridge: float) -> Floats:
        expected = np.empty_like(counts)
        folds = KFold(min(10, len(counts)), shuffle=True, random_state=seed)
        for rest, fold in folds.split(means):
            expected[fold] = fitted(ridge, rest).predict(means[fold])
        return expected * common * exposure

    with threadpool_limits(1):  # threads only hinder each other in matrices of this size
        tried = [held_out(ridge) for ridge in RIDGES]
        dispersions = [_dispersion(counts, expected) for expected in tried]
        scores = [_log_score(counts, *each) for each in zip(tried, dispersions, strict=True)]
        best = int(np.argmin(scores))
        rate = fitted(RIDGES[best], slice(None)).predict(scaler.transform(fine)) * common
    return Baseline(rate, dispersions[best])


def _zones(amounts: Any, z: npt.ArrayLike) -> tuple[Any, Floats]:
    """Amounts as a sparse matrix and counts, once they fit."""
    a, counts = csr_array(amounts, dtype=float), np.asarray(z, dtype=float)
    if counts.shape != a.shape[:1] or not np.all(np.isfinite(counts) & (counts >= 0)):
        raise ValueError(
            f"there must be a count that is not negative for each of the {a.shape[0]} zones; they "
            f"have shape {counts.shape}."
        )
    if not np.isfinite(a.data).all() or (a.data < 0).any() or not a.sum() > 0:
        raise ValueError("amounts must be finite, not negative, and not all zero.")
    return a, counts


def _dispersion(z: Floats, expected: Floats) -> float:
    """The most likely dispersion of counts about what was expected of them."""
    found = minimize_scalar(
        lambda log: _log_score(z, expected, float(np.exp(log))),
        bounds=(-12.0, 4.0),
        method="bounded",
    )
    return float(np.exp(found.x))


def _log_score(z: Floats, expected: Floats, dispersion: float) -> float:
    return Counts(np.maximum(expected, 1e-12), dispersion).log_score(np.round(z))
