r"""Posteriors on the scale of the rate, :math:`g^{-1}(f)`: at points, and over bags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.sparse import coo_array

from deconditional.bags import Bags
from deconditional.inference.field import Field
from deconditional.inference.posterior import JOINT_LIMIT, Gaussians, Paths, Posterior
from deconditional.observations.families import Link
from deconditional.scores import Draws

BLOCK = 20_000
"""Points of new bags whose draws are held at a time."""


class RatePosterior(Gaussians):
    r"""The posterior of the rate :math:`g^{-1}(f)` at query points.

    Quantiles are exact, through the monotone link; so are the mean and the standard deviation, but
    for the integration of a logistic function. An effect of overdispersion is no part of them.

    Attributes
    ----------
    latent : Posterior
        The posterior of f.
    link
        g.

    Examples
    --------
    >>> import deconditional as dc
    >>> x = np.linspace(0, 3, 200)
    >>> bags = dc.Bags.from_points(x, np.arange(200) // 10)
    >>> cases = np.round(100 * bags.means(np.exp(np.sin(x))))
    >>> model = dc.VBagg(family=dc.Poisson(), n_inducing=15, n_restarts=1)
    >>> post = model.fit(bags, cases, exposure=100.0).predict(x)
    >>> bool(np.abs(post.mean / np.exp(np.sin(x)) - 1).max() < 0.2)
    True
    >>> bool(np.allclose(post.quantile(0.5), np.exp(post.latent.quantile(0.5))))
    True
    """

    def __init__(self, latent: Posterior, link: Link):
        self.latent, self.link = latent, link

    def __repr__(self) -> str:
        return f"RatePosterior({len(self.x)} points)"

    @property
    def x(self) -> np.ndarray:
        """The query points, (m, d)."""
        return self.latent.x

    @property
    def extrapolating(self) -> np.ndarray:
        """Whether a point lies where the data say nothing; see :class:`Posterior`."""
        return self.latent.extrapolating

    @cached_property
    def mean(self) -> np.ndarray:
        """Posterior mean of the rate."""
        return self._expected(self.link.expected)

    @cached_property
    def variance(self) -> np.ndarray:
        """Posterior variance of the rate."""
        return np.maximum(self._expected(self.link.expected_square) - self.mean**2, 0.0)

    def cdf(self, value: Any) -> np.ndarray:
        """Probability that the rate is below a value, at every point."""
        return self.latent.cdf(np.asarray(self.link.eta(jnp.asarray(value, dtype=float))))

    def _quantile(self, level: float) -> np.ndarray:
        return np.asarray(self.link.rate(self.latent.quantile(level)))

    def sample(self, n: int = 1, seed: int = 0, **options: Any) -> np.ndarray:
        """Joint samples of the rate, (n, m); `options` are those of :meth:`Posterior.sample`."""
        return np.asarray(self.link.rate(self.latent.sample(n, seed, **options)))

    def _expected(self, function: Any) -> np.ndarray:
        pairs = zip(self.latent.component_means, self.latent.component_variances, strict=True)
        return np.mean([np.asarray(function(*pair)) for pair in pairs], axis=0)


@dataclass(frozen=True)
class BagDraws(Draws):
    """Joint draws of what is predicted of new bags: rates, sums, or observations.

    A row for each draw and a column for each bag, with the moments, quantiles and scores of
    :class:`deconditional.scores.Draws`. Of observations, `rates` are the mean rates of the same
    draws, without scatter and effects of bags.

    Examples
    --------
    >>> found = BagDraws([[1.0, 2.0], [3.0, 2.0]])
    >>> found.mean.tolist(), found.exceedance(2.0).tolist(), found.crps([2.0, 2.0])
    ([2.0, 2.0], [0.5, 0.0], 0.0)
    """

    rates: np.ndarray | None = None

    @property
    def draws(self) -> np.ndarray:
        """The draws, (n, m)."""
        return self.values

    def covariance(self) -> np.ndarray:
        """Joint covariance of all bags."""
        return np.atleast_2d(np.cov(self.values, rowvar=False))

    def sample(self, n: int = 1, seed: int = 0) -> np.ndarray:
        """Draws chosen with replacement, (n, m)."""
        return self.values[np.random.default_rng(seed).integers(len(self.values), size=n)]


def bag_rates(
    fields: Sequence[Field], link: Link, bags: Bags, n: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Joint draws of the mean rates of bags, (n, N), and which field each is of.

    Points of bags that share them are drawn once. Up to 2000 draws are from the full covariance.
    """
    rows, inverse = np.unique(bags.points, axis=0, return_inverse=True)
    if len(rows) > JOINT_LIMIT:
        weights = coo_array((bags.weights, (np.arange(bags.n_points), bags.bag)))
        return _along_paths(fields, link, bags.points, weights.tocsr(), n, seed)
    which = np.sort(np.random.default_rng(seed).integers(len(fields), size=n))
    weights = coo_array((bags.weights, (inverse.ravel(), bags.bag))).tocsr()
    parts = []
    for k, count in zip(*np.unique(which, return_counts=True), strict=True):
        f = Posterior([fields[k]], rows).sample(int(count), seed + int(k), method="joint")
        parts.append((weights.T @ np.asarray(link.rate(f)).T).T)
    return np.concatenate(parts), which


def _along_paths(
    fields: Sequence[Field], link: Link, points: np.ndarray, weights: Any, n: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws of bags by functions from the posterior, evaluated block by block."""
    paths = Paths(fields, n, seed)
    total = np.zeros((n, weights.shape[1]))
    for start in range(0, len(points), BLOCK):
        rows = slice(start, start + BLOCK)
        total += (weights[rows].T @ np.asarray(link.rate(paths(points[rows]))).T).T
    return total, paths.which
