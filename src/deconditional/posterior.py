r"""The posterior of the fine field: mean, variance, intervals, samples.

A :class:`Field` is one Gaussian posterior, at one value of the hyper-parameters:

.. math:: m_d(x) = \bar k(x)\,a + h(x)^\top\hat\beta, \qquad
          v_d(x) = k(x, x) - \lVert \bar k(x) F\rVert^2 + \lVert \Lambda^{-1/2} r(x)\rVert^2

with :math:`a = WA^{-1}(z - B\hat\beta)`, :math:`F = WA^{-1/2}` and
:math:`r(x) = h(x) - B^\top A^{-1} W^\top \bar k(x)^\top`. A :class:`Posterior` is a field at query
points, or an equal mixture of fields when the hyper-parameters have a posterior of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.scipy.linalg as jsl
import numpy as np
from gpjax.kernels.base import AbstractKernel
from jaxtyping import Array, Float
from scipy.special import ndtr, ndtri

from deconditional.bag_kernels import bag_cross
from deconditional.inference.exact import Conditioned
from deconditional.kernels import prior_variance, spectral_features
from deconditional.layout import Layout
from deconditional.linalg import whiten

__all__ = ["Field", "Gaussians", "Posterior", "Trend"]

BLOCK = 4096
"""Query points per block: what bounds memory, whatever the number of query points."""

JOINT_LIMIT = 2000
"""Most query points for which samples are drawn from the full covariance by default."""


class Trend(eqx.Module):
    """h(x): nothing, a constant, or a constant and the standardised covariates."""

    kind: str = eqx.field(static=True)
    centre: Array
    scale: Array

    def features(self, x: Float[Array, "m d"]) -> Float[Array, "m q"]:
        """H at every row of x."""
        if self.kind == "none":
            return jnp.zeros((x.shape[0], 0), x.dtype)
        ones = jnp.ones((x.shape[0], 1), x.dtype)
        if self.kind == "constant":
            return ones
        return jnp.concatenate([ones, (x - self.centre) / self.scale], axis=1)


class Field(eqx.Module):
    """The Gaussian posterior of f at one value of the hyper-parameters."""

    kernel: AbstractKernel
    layout: Layout
    weights: Float[Array, "N M"]
    noise: Float[Array, "M M"]
    z: Float[Array, " M"]
    conditioned: Conditioned
    trend: Trend
    trend_means: Float[Array, "N q"]
    fine_noise_variance: Float[Array, ""]
    dtype: Any = eqx.field(static=True)

    def _cross(self, x: Array) -> tuple[Array, Array, Array]:
        """k̄(x), k̄(x)F and r(x)."""
        cross = bag_cross(self.kernel, x, self.layout, dtype=self.dtype)
        explained = cross @ self.conditioned.projection
        residual = self.trend.features(x) - explained @ self.conditioned.whitened_trend
        return cross, explained, residual

    def _mean(self, x: Array, cross: Array) -> Array:
        return cross @ self.conditioned.coefficients + (
            self.trend.features(x) @ self.conditioned.trend
        )

    @eqx.filter_jit
    def moments(self, x: Float[Array, "m d"]) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        """Mean and variance of f at every row of x."""
        cross, explained, residual = self._cross(x)
        white = whiten(self.conditioned.trend_root, residual.T)
        variance = prior_variance(self.kernel, x) - jnp.sum(explained**2, 1) + jnp.sum(white**2, 0)
        return self._mean(x, cross), jnp.maximum(variance, 0.0)

    @eqx.filter_jit
    def covariance(self, x: Float[Array, "m d"]) -> Float[Array, "m m"]:
        """Covariance of f between all rows of x."""
        _, explained, residual = self._cross(x)
        white = whiten(self.conditioned.trend_root, residual.T)
        return self.kernel.cross_covariance(x, x) - explained @ explained.T + white.T @ white

    def path(self, key: Any, n_paths: int, n_features: int) -> Callable[[Array], Array]:
        r"""Draw functions from the posterior, to be evaluated anywhere.

        Matheron's rule: a prior draw from random Fourier features, corrected by the cross-
        covariance times the misfit of its own observations. Trend coefficients are drawn from
        their posterior first, so that their vague prior never enters.
        """
        keys = jr.split(key, 4)
        features = spectral_features(self.kernel, n_features, keys[0])
        bag_features = self._bag_means(features)
        loadings = jr.normal(keys[1], (bag_features.shape[1], n_paths))
        conditioned = self.conditioned
        deviation = jsl.solve_triangular(
            conditioned.trend_root,
            jr.normal(keys[2], (conditioned.trend.shape[0], n_paths)),
            lower=True,
            trans=1,
        )
        beta = conditioned.trend[:, None] + deviation
        error = _square_root(self.noise) @ jr.normal(keys[3], (len(self.z), n_paths))
        predicted = self.weights.T @ (bag_features @ loadings + self.trend_means @ beta) + error
        misfit = whiten(conditioned.root, self.z[:, None] - predicted)
        correction = conditioned.projection @ misfit

        @jax.jit
        def evaluate(x: Array) -> Array:
            cross = bag_cross(self.kernel, x, self.layout, dtype=self.dtype)
            return features(x) @ loadings + self.trend.features(x) @ beta + cross @ correction

        return evaluate

    def _bag_means(self, features: Callable[[Array], Array]) -> Array:
        """Pᵀφ(x), a block of points at a time."""
        layout = self.layout
        bag_of_slot = jnp.repeat(layout.bag, layout.chunk)
        total: Any = 0.0
        for start in range(0, layout.points.shape[0], BLOCK):
            block = slice(start, start + BLOCK)
            weighted = features(layout.points[block]) * layout.weights[block, None]
            total = total + jax.ops.segment_sum(weighted, bag_of_slot[block], layout.n_bags)
        return total


class Gaussians:
    """Normal marginals, or an equal mixture of such, with the questions one asks of them.

    Attributes
    ----------
    component_means, component_variances : (S, m)
        One row per component; S = 1 unless hyper-parameters were integrated over.
    """

    def __init__(self, component_means: np.ndarray, component_variances: np.ndarray):
        self._moments = (component_means, component_variances)

    @property
    def component_means(self) -> np.ndarray:
        """Means of the components, (S, m)."""
        return self._moments[0]

    @property
    def component_variances(self) -> np.ndarray:
        """Variances of the components, (S, m)."""
        return self._moments[1]

    @property
    def mean(self) -> np.ndarray:
        """Posterior mean."""
        return self.component_means.mean(0)

    @property
    def variance(self) -> np.ndarray:
        """Posterior variance, by the law of total variance."""
        return self.component_variances.mean(0) + self.component_means.var(0)

    @property
    def std(self) -> np.ndarray:
        """Posterior standard deviation."""
        return np.sqrt(self.variance)

    def cdf(self, value: Any) -> np.ndarray:
        """Probability that the field is below a value, at every point."""
        spread = np.sqrt(np.maximum(self.component_variances, 1e-300))
        return ndtr((np.asarray(value) - self.component_means) / spread).mean(0)

    def quantile(self, q: float | np.ndarray) -> np.ndarray:
        """Quantiles at every point: (m,) for one level, (levels, m) for several."""
        levels = np.atleast_1d(np.asarray(q, dtype=float))
        if not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"quantile levels lie strictly between 0 and 1, not {q!r}.")
        values = np.stack([self._quantile(level) for level in levels])
        return values if np.ndim(q) else values[0]

    def _quantile(self, level: float) -> np.ndarray:
        candidates = self.component_means + ndtri(level) * np.sqrt(self.component_variances)
        if len(candidates) == 1:
            return candidates[0]
        low, high = candidates.min(0), candidates.max(0)
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = self.cdf(middle) < level
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return 0.5 * (low + high)

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Central interval of the given probability, as (lower, upper)."""
        if not 0 < level < 1:
            raise ValueError(f"the level of an interval lies between 0 and 1, not {level!r}.")
        tail = 0.5 * (1.0 - level)
        return self._quantile(tail), self._quantile(1.0 - tail)


class CoarsePosterior(Gaussians):
    """Posterior of conditional means at mediators, or of the means of bags; small and joint."""

    def __init__(self, component_means: np.ndarray, component_covariances: np.ndarray):
        variances = np.stack([np.diag(c) for c in component_covariances])
        super().__init__(component_means, np.maximum(variances, 0.0))
        self._covariances = component_covariances

    def covariance(self) -> np.ndarray:
        """Joint covariance of all values."""
        between = np.cov(self.component_means, rowvar=False, bias=True)
        return self._covariances.mean(0) + np.reshape(between, self._covariances.shape[1:])

    def sample(self, n: int = 1, seed: int = 0) -> np.ndarray:
        """Joint samples, (n, m)."""
        rng = np.random.default_rng(seed)
        which = rng.integers(len(self._covariances), size=n)
        out = np.empty((n, self.component_means.shape[1]))
        for component in np.unique(which):
            rows = which == component
            root = np.asarray(_square_root(jnp.asarray(self._covariances[component])))
            draws = rng.standard_normal((rows.sum(), out.shape[1]))
            out[rows] = self.component_means[component] + draws @ root.T
        return out


class Posterior(Gaussians):
    """The posterior of the fine field at query points.

    Nothing is computed until it is asked for; mean and variance come together, in blocks of
    query points, so memory does not grow with their number beyond the answers themselves.

    Attributes
    ----------
    x : (m, d) array
        The query points.
    """

    def __init__(self, fields: list[Field], x: np.ndarray, fine_noise: bool = False):
        self.fields = fields
        self.x = x
        self.fine_noise = fine_noise

    def __repr__(self) -> str:
        averaged = f", averaged over {len(self.fields)} draws" if len(self.fields) > 1 else ""
        return f"Posterior({len(self.x)} points{averaged})"

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[override]
        means = np.empty((len(self.fields), len(self.x)))
        variances = np.empty_like(means)
        for s, field in enumerate(self.fields):
            extra = float(field.fine_noise_variance) if self.fine_noise else 0.0
            for rows, block in _blocks(self.x):
                mean, variance = field.moments(block)
                size = rows.stop - rows.start
                means[s, rows] = np.asarray(mean)[:size]
                variances[s, rows] = np.asarray(variance)[:size] + extra
        return means, variances

    @property
    def log_evidence(self) -> float:
        """Log p(z), averaged over components in the way of a harmonic-free mean of log values."""
        return float(np.mean([float(f.conditioned.log_evidence) for f in self.fields]))

    def covariance(self) -> np.ndarray:
        """Full covariance between all query points, (m, m): for small queries."""
        x = jnp.asarray(self.x)
        within = np.mean([np.asarray(f.covariance(x)) for f in self.fields], axis=0)
        if self.fine_noise:
            noise = np.mean([float(f.fine_noise_variance) for f in self.fields])
            within = within + noise * np.eye(len(self.x))
        means = self.component_means - self.component_means.mean(0)
        return within + means.T @ means / len(means)

    def sample(
        self,
        n: int = 1,
        seed: int = 0,
        method: Literal["auto", "joint", "pathwise"] = "auto",
        n_features: int = 2000,
    ) -> np.ndarray:
        """Joint samples of the field, (n, m).

        Parameters
        ----------
        n
            How many.
        seed
            The same seed gives the same samples.
        method
            ``"joint"`` factorises the full covariance and is exact; ``"pathwise"`` draws functions
            by Matheron's rule over `n_features` random Fourier features and evaluates them block
            by block; ``"auto"`` takes the first up to 2000 points and the second beyond.
        n_features
            For pathwise samples: the error of prior draws falls as one over its square root.
        """
        if n < 1:
            raise ValueError(f"asked for {n} samples; ask for at least one.")
        if method not in ("auto", "joint", "pathwise"):
            raise ValueError(f"method must be 'auto', 'joint' or 'pathwise', not {method!r}.")
        if method == "auto":
            method = "joint" if len(self.x) <= JOINT_LIMIT else "pathwise"
        rng = np.random.default_rng(seed)
        which = rng.integers(len(self.fields), size=n)
        out = np.empty((n, len(self.x)))
        for s in np.unique(which):
            rows = np.flatnonzero(which == s)
            draw = self._joint if method == "joint" else self._pathwise
            out[rows] = draw(self.fields[s], len(rows), int(rng.integers(2**31)), n_features)
            if self.fine_noise:
                scale = float(np.sqrt(self.fields[s].fine_noise_variance))
                out[rows] += scale * rng.standard_normal((len(rows), len(self.x)))
        return out

    def _joint(self, field: Field, n: int, seed: int, _: int) -> np.ndarray:
        x = jnp.asarray(self.x)
        mean, _variance = field.moments(x)
        root = np.asarray(_square_root(field.covariance(x)))
        draws = np.random.default_rng(seed).standard_normal((n, len(self.x)))
        return np.asarray(mean) + draws @ root.T

    def _pathwise(self, field: Field, n: int, seed: int, n_features: int) -> np.ndarray:
        evaluate = field.path(jr.key(seed), n, n_features)
        out = np.empty((n, len(self.x)))
        for rows, block in _blocks(self.x):
            out[:, rows] = np.asarray(evaluate(block)).T[:, : rows.stop - rows.start]
        return out


def _square_root(covariance: Array) -> Array:
    """A factor of a covariance that may be singular, or zero."""
    values, vectors = jnp.linalg.eigh(covariance)
    return vectors * jnp.sqrt(jnp.maximum(values, 0.0))


def _blocks(x: np.ndarray) -> Iterator[tuple[slice, Array]]:
    """Blocks of one size, the last padded, so that one compilation serves them all."""
    size = min(BLOCK, len(x))
    for start in range(0, len(x), size):
        rows = slice(start, min(start + size, len(x)))
        block = x[rows]
        if len(block) < size:
            block = np.concatenate([block, np.broadcast_to(x[:1], (size - len(block), x.shape[1]))])
        yield rows, jnp.asarray(block)
