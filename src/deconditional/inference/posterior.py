"""The posterior of the fine field: mean, variance, intervals, samples.

A :class:`Posterior` is a field (:mod:`deconditional.inference.field`) at query points, or an equal
mixture of fields when the hyper-parameters have a posterior of their own.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from gpjax.kernels.base import AbstractKernel
from jaxtyping import Array

from deconditional.errors import SampleWarning
from deconditional.fitting.progress import tell
from deconditional.inference.field import Field, square_root
from deconditional.inference.paths import MOST_FEATURES, TOLERANCE
from deconditional.kernels.layout import is_accelerator
from deconditional.kernels.radial import RadialTerm, prior_variance, sum_of_products
from deconditional.scores.distributions import Gaussians as Gaussians

BLOCK = 4096
"""Query points per block: what bounds memory, whatever the number of query points."""

BLOCK_ON_ACCELERATOR = 16384
"""Query points per block of an accelerator, which takes many to be busy."""

JOINT_LIMIT = 2000
"""Most query points for which samples are drawn from the full covariance by default."""

MARGIN = 0.1
"""Share of the range of a covariate that counts as within it, on either side."""

ROUNDING = 1e-9
"""Margin relative to the largest value of a covariate whose range is none."""

UNTOLD = 0.95
"""Share of the prior variance from which on the data have said nothing of a point."""


class Joint(Gaussians):
    """Normal distributions, or equal mixtures of such, whose values are not independent."""

    def component_covariance(self, s: int) -> np.ndarray:
        """Joint covariance of component s, (m, m)."""
        raise NotImplementedError

    def covariance(self) -> np.ndarray:
        """Joint covariance of all values, (m, m): for few of them."""
        means = self.component_means - self.component_means.mean(0)
        within = np.mean([self.component_covariance(s) for s in range(len(means))], axis=0)
        return within + means.T @ means / len(means)

    def _joint_draws(self, n: int, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        which = rng.integers(len(self.component_means), size=n)
        out = np.empty((n, self.component_means.shape[1]))
        for s in np.unique(which):
            rows = np.flatnonzero(which == s)
            root = np.asarray(square_root(jnp.asarray(self.component_covariance(s))))
            draws = rng.standard_normal((len(rows), out.shape[1]))
            out[rows] = self.component_means[s] + draws @ root.T
        return out


class CoarsePosterior(Joint):
    """Posterior of conditional means at mediators, or of the means of bags; small and joint."""

    def __init__(self, component_means: np.ndarray, component_covariances: np.ndarray):
        variances = np.stack([np.diag(c) for c in component_covariances])
        super().__init__(component_means, np.maximum(variances, 0.0))
        self.component_covariances = component_covariances

    def component_covariance(self, s: int) -> np.ndarray:
        """Joint covariance of component s, (m, m)."""
        return self.component_covariances[s]

    def sample(self, n: int = 1, seed: int = 0) -> np.ndarray:
        """Joint samples, (n, m)."""
        return self._joint_draws(n, seed)


class Posterior(Joint):
    """The posterior of the fine field at query points.

    Nothing is computed until it is asked for; mean and variance come together, in blocks of
    query points, so memory does not grow with their number beyond the answers themselves.

    Attributes
    ----------
    x : (m, d) array
        The query points.
    support
        Least and greatest value of every covariate that was learnt from, if they are known.
    may_round
        Whether very many points may be predicted in single precision, where that is found as good.

    Examples
    --------
    >>> from deconditional import BaggGP, Bags
    >>> points = np.linspace(0, 3, 600)
    >>> bags = Bags.from_points(points, np.arange(600) // 10)
    >>> model = BaggGP(n_restarts=1).fit(bags, bags.means(np.sin(2 * points)), noise_std=0.01)
    >>> model.predict([1.0, 20.0]).extrapolating.tolist()
    [False, True]
    """

    def __init__(
        self,
        fields: Sequence[Field],
        x: np.ndarray,
        fine_noise: bool = False,
        support: tuple[np.ndarray, np.ndarray] | None = None,
        may_round: bool = False,
    ):
        self.fields = fields
        self.x = x
        self.fine_noise = fine_noise
        self.support = support
        self.may_round = may_round

    def __repr__(self) -> str:
        averaged = f", averaged over {len(self.fields)} draws" if len(self.fields) > 1 else ""
        return f"Posterior({len(self.x)} points{averaged})"

    @property
    def latent(self) -> Posterior:
        """The posterior of the field: itself; that of a rate has another."""
        return self

    @cached_property
    def _noise(self) -> np.ndarray:
        """Variance of single values about the smooth field, by field, if it is asked for."""
        return np.array([float(f.fine_noise_variance) * self.fine_noise for f in self.fields])

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[override]
        means = np.empty((len(self.fields), len(self.x)))
        variances = np.empty_like(means)
        first = {id(field): s for s, field in reversed(list(enumerate(self.fields)))}
        for s, field in enumerate(self.fields):
            if (same := first[id(field)]) < s:
                means[s], variances[s] = means[same], variances[same]
                tell("points", (s + 1) * len(self.x), means.size)
                continue
            quick = field.quick(self.x, len(first) if self.may_round else 0)
            for rows, block in blocks(self.x):
                mean, variance = quick.moments(block)
                size = rows.stop - rows.start
                means[s, rows] = np.asarray(mean)[:size]
                variances[s, rows] = np.asarray(variance)[:size] + self._noise[s]
                tell("points", s * len(self.x) + rows.stop, means.size)
        return means, variances

    @property
    def extrapolating(self) -> np.ndarray:
        """Whether a point lies where the data say nothing, or outside what was learnt from, (m,).

        See :attr:`extrapolation`.
        """
        return self.extrapolation > 0

    @cached_property
    def extrapolation(self) -> np.ndarray:
        """How far every point is from the data, (m,).

        The sum of 1, where a covariate lies outside the range that was learnt from by more than a
        tenth of it, and 2, where the variance of the smooth field is at least 95 % of its prior
        variance k(x, x): the observations have said nothing.
        """
        flags = np.zeros(len(self.x), dtype=np.int8)
        if self.support is not None:
            flags[outside_range(self.x, *self.support)] = 1
        prior = np.mean([_prior_variance(field.kernel, self.x) for field in self.fields], axis=0)
        smooth = np.mean(self.component_variances - self._noise[:, None], axis=0)
        return flags + 2 * (smooth >= UNTOLD * prior).astype(np.int8)

    @property
    def log_evidence(self) -> float:
        """Log p(z), or a bound of it; under NUTS the mean over draws."""
        return float(np.mean([float(f.log_evidence) for f in self.fields]))

    def component_covariance(self, s: int) -> np.ndarray:
        """Joint covariance of all query points under one of the fields, (m, m)."""
        covariance = np.asarray(self.fields[s].covariance(jnp.asarray(self.x)))
        return covariance + self._noise[s] * np.eye(len(self.x)) if self.fine_noise else covariance

    def sample(
        self,
        n: int = 1,
        seed: int = 0,
        method: Literal["auto", "joint", "pathwise"] = "auto",
        n_features: int | None = None,
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
            For pathwise samples. By default 2000, or as many, up to 16 000, as bring their
            variances near the bags within 10 % of the posterior's (root mean square); where that
            is not reached, a :class:`SampleWarning` says so. A number is taken as it is.
        """
        if n < 1:
            raise ValueError(f"asked for {n} samples; ask for at least one.")
        if n_features is not None and n_features < 2:
            raise ValueError(f"n_features must be at least 2, not {n_features}.")
        if method not in ("auto", "joint", "pathwise"):
            raise ValueError(f"method must be 'auto', 'joint' or 'pathwise', not {method!r}.")
        if method == "auto":
            method = "joint" if len(self.x) <= JOINT_LIMIT else "pathwise"
        if method == "joint":
            return self._joint_draws(n, seed)
        paths = Paths(self.fields, n, seed, n_features)
        out = paths(self.x)
        if self.fine_noise:
            rng = np.random.default_rng([seed, 1])
            out += paths.noise_std[:, None] * rng.standard_normal(out.shape)
        return out


def outside_range(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Rows with a value beyond its range by more than a tenth of the range.

    Examples
    --------
    >>> x = np.array([[0.5, 1.0], [1.05, 1.0], [1.2, 1.0], [0.5, 2.0]])
    >>> outside_range(x, np.array([0.0, 1.0]), np.array([1.0, 1.0])).tolist()
    [False, False, True, True]
    """
    margin = MARGIN * (high - low) + ROUNDING * np.maximum(np.abs(low), np.abs(high))
    return ((x < low - margin) | (x > high + margin)).any(1)


def _prior_variance(kernel: AbstractKernel, x: np.ndarray) -> np.ndarray:
    """k(x, x) at every row of x, block by block unless it is the same everywhere."""
    if all(isinstance(term, RadialTerm) for term in sum_of_products(kernel)):
        return np.broadcast_to(np.asarray(_prior(kernel, jnp.asarray(x[:1]))), len(x))
    out = np.empty(len(x))
    for rows, block in blocks(x):
        out[rows] = np.asarray(_prior(kernel, block))[: rows.stop - rows.start]
    return out


@eqx.filter_jit
def _prior(kernel: AbstractKernel, x: Array) -> Array:
    return prior_variance(kernel, x)


class Paths:
    """Functions drawn from a posterior by Matheron's rule, to be evaluated anywhere.

    They are drawn from `n_features` random Fourier features of the prior, or as many as it takes.
    `error` is the root mean square of the relative error of variances near the bags, given these.
    """

    def __init__(self, fields: Sequence[Field], n: int, seed: int, n_features: int | None = None):
        rng = np.random.default_rng(seed)
        self.which = which = rng.integers(len(fields), size=n)  # the field that each draw is of
        # The spread of single fine values under it.
        self.noise_std = np.sqrt([float(fields[s].fine_noise_variance) for s in which])
        self._parts = []
        errors = []
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
            errors.append(float(evaluate.error))
        self.error = float(np.sqrt(np.mean(np.square(errors))))
        if n_features is None and self.error > TOLERANCE:
            warnings.warn(
                f"variances of the samples differ by {self.error:.0%} from those of the posterior, "
                f"even with {MOST_FEATURES} random features. Use mean, std and quantiles, which do "
                "not depend on features, or joint samples of at most a few thousand points: "
                "post.sample(..., method='joint').",
                SampleWarning,
                stacklevel=3,
            )

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
