"""The posterior of the fine field: mean, variance, intervals, samples.

A :class:`Posterior` is a field (:mod:`deconditional.inference.field`) at query points, or an equal
mixture of fields when the hyper-parameters have a posterior of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array
from scipy.special import ndtr, ndtri

from deconditional.inference.field import Field, square_root
from deconditional.progress import tell
from deconditional.tuning import is_accelerator

__all__ = ["CoarsePosterior", "Gaussians", "Paths", "Posterior", "blocks"]

BLOCK = 4096
"""Query points per block: what bounds memory, whatever the number of query points."""

BLOCK_ON_ACCELERATOR = 16384
"""The same where it takes many to be busy."""

JOINT_LIMIT = 2000
"""Most query points for which samples are drawn from the full covariance by default."""


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
            root = np.asarray(square_root(jnp.asarray(self._covariances[component])))
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

    def __init__(self, fields: Sequence[Field], x: np.ndarray, fine_noise: bool = False):
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
            quick = field.quick()
            for rows, block in blocks(self.x):
                mean, variance = quick.moments(block)
                size = rows.stop - rows.start
                means[s, rows] = np.asarray(mean)[:size]
                variances[s, rows] = np.asarray(variance)[:size] + extra
                tell("points", s * len(self.x) + rows.stop, means.size)
        return means, variances

    @property
    def log_evidence(self) -> float:
        """Log p(z), or a bound of it; under NUTS the mean over draws."""
        return float(np.mean([float(f.log_evidence) for f in self.fields]))

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
        if method == "joint":
            return self._joint(n, seed)
        paths = Paths(self.fields, n, seed, n_features)
        out = paths(self.x)
        if self.fine_noise:
            rng = np.random.default_rng([seed, 1])
            out += paths.noise_std[:, None] * rng.standard_normal(out.shape)
        return out

    def _joint(self, n: int, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        which = rng.integers(len(self.fields), size=n)
        out = np.empty((n, len(self.x)))
        x = jnp.asarray(self.x)
        for s in np.unique(which):
            rows = np.flatnonzero(which == s)
            field = self.fields[s]
            covariance = field.covariance(x)
            if self.fine_noise:
                covariance = covariance + field.fine_noise_variance * jnp.eye(len(x))
            root = np.asarray(square_root(covariance))
            mean, _ = field.moments(x)
            out[rows] = np.asarray(mean) + rng.standard_normal((len(rows), len(x))) @ root.T
        return out


class Paths:
    """Functions drawn from a posterior by Matheron's rule, to be evaluated anywhere.

    Attributes
    ----------
    noise_std : (n,)
        Of single fine values under each draw.
    """

    def __init__(self, fields: Sequence[Field], n: int, seed: int, n_features: int):
        rng = np.random.default_rng(seed)
        which = rng.integers(len(fields), size=n)
        self.noise_std = np.sqrt([float(fields[s].fine_noise_variance) for s in which])
        self._parts = []
        for s in np.unique(which):
            rows = np.flatnonzero(which == s)
            key = jr.key(int(rng.integers(2**31)))
            try:
                evaluate = fields[s].path(key, len(rows), n_features)
            except TypeError as error:
                raise TypeError(
                    f"{error} Ask for joint samples instead: post.sample(..., method='joint')."
                ) from None
            self._parts.append((rows, evaluate))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """The functions at the rows of x, (n, m)."""
        out = np.empty((len(self.noise_std), len(x)))
        for draws, evaluate in self._parts:
            for rows, block in blocks(x):
                out[draws, rows] = np.asarray(evaluate(block)).T[:, : rows.stop - rows.start]
        return out


def blocks(x: np.ndarray) -> Iterator[tuple[slice, Array]]:
    """Blocks of one size, the last padded, so that one compilation serves them all."""
    size = min(BLOCK_ON_ACCELERATOR if is_accelerator() else BLOCK, len(x))
    for start in range(0, len(x), size):
        rows = slice(start, min(start + size, len(x)))
        block = x[rows]
        if len(block) < size:
            block = np.concatenate([block, np.broadcast_to(x[:1], (size - len(block), x.shape[1]))])
        yield rows, jnp.asarray(block)
