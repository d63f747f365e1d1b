"""What a posterior of the field can be asked for, whatever made it.

:class:`~deconditional.inference.exact.ExactField` and
:class:`~deconditional.inference.basis_field.BasisField` are the two that there are. Everything
above (predictions, samples, areas, cautions) knows a posterior by :class:`Field` alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from gpjax.kernels.base import AbstractKernel
from jaxtyping import Array, Float

from deconditional.bags import Bags
from deconditional.fitting.parameters import library
from deconditional.inference.moments import Functionals
from deconditional.inference.waves import Waves
from deconditional.kernels.layout import Layout
from deconditional.kernels.radial import prior_variance
from deconditional.kernels.sweeps import bag_cross, bag_gram


class Trend(eqx.Module):
    """h(x): nothing, a constant, or a constant and the standardised covariates."""

    kind: str = eqx.field(static=True)  # `"none"`, `"constant"` or `"linear"`
    # centre, scale: of the covariates.
    centre: Array
    scale: Array
    # One for every covariate that a linear trend has a slope in, zero for others: so trends in more
    # and in fewer covariates share what is compiled.
    sloped: Array
    prior_std: Float[Array, " q"]  # b, the prior standard deviation of every coefficient

    def __loaded__(self) -> Trend:
        """The trend itself, once its parts are known to have a size for each other."""
        q = {"none": 0, "constant": 1, "linear": 1 + len(self.centre)}[self.kind]
        shapes = {self.centre.shape, self.scale.shape, self.sloped.shape}
        if self.prior_std.shape != (q,) or len(shapes) > 1:
            raise ValueError(f"it has no {self.kind} trend")
        return self

    def features(self, x: Any) -> Any:
        """H at every row of x, (m, q); in NumPy where x is."""
        of = library(x)
        if self.kind == "none":
            return of.zeros((x.shape[0], 0), x.dtype)
        ones = of.ones((x.shape[0], 1), x.dtype)
        if self.kind == "constant":
            return ones
        centre, scale, sloped = map(of.asarray, (self.centre, self.scale, self.sloped))
        return of.concatenate([ones, sloped * ((x - centre) / scale)], axis=1)

    def whitened(self, features: Float[Array, "m q"]) -> Float[Array, "m q"]:
        """Features whose coefficients have unit prior variance."""
        return features * self.prior_std


Moments = tuple[Array, Array]
"""A mean, (m,), and a covariance, (m, m)."""


class PointMoments(Protocol):
    """Means and variances of f at points."""

    def moments(self, x: Float[Array, "m d"]) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        """Mean and variance of f at every row of x."""


class Field(eqx.Module):
    """A Gaussian posterior of f, asked for linear functionals: values, means over new bags.

    A subclass says what it knows of values at points, :meth:`at`, and of means over bags,
    :meth:`over`.
    """

    if TYPE_CHECKING:  # fields of one subclass, properties of another

        @property
        def kernel(self) -> AbstractKernel:
            """The kernel of the prior, at the hyper-parameters of this posterior."""

        @property
        def trend(self) -> Trend:
            """The trend."""

        @property
        def log_evidence(self) -> Array:
            """Log p(z), or a bound of it."""

        @property
        def fine_noise_variance(self) -> Array:
            """ς², the variance of single fine values about f."""

        @property
        def dtype(self) -> Any:
            """The type of kernel tiles."""

    @abstractmethod
    def at(self, x: Float[Array, "m d"]) -> Functionals:
        """The values of f at every row of x."""

    @abstractmethod
    def over(self, new: Layout, h: Float[Array, "N q"]) -> Functionals:
        """The means of f over new bags, those of the trend functions being h."""

    @eqx.filter_jit
    def moments(self, x: Float[Array, "m d"]) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        """Mean and variance of f at every row of x."""
        at = self.at(x)
        return at.mean, jnp.maximum(at.variance(prior_variance(self.kernel, x)), 0.0)

    @abstractmethod
    def quick(self, x: np.ndarray, rounded: int) -> PointMoments:
        """Means and variances, in the form that is quickest for as many points as x.

        So many posteriors, which share what is compiled, may be `rounded` to single precision at x
        where that is found as good; zero for none.
        """

    @eqx.filter_jit
    def covariance(self, x: Float[Array, "m d"]) -> Float[Array, "m m"]:
        """Covariance of f between all rows of x."""
        return self.at(x).covariance(self.kernel.cross_covariance(x, x))

    def bag_moments(self, new: Bags) -> Moments:
        """Mean and covariance of the means of f over new bags."""
        return self._bag_moments(new.layout, trend_means(self.trend, new))

    @eqx.filter_jit
    def _bag_moments(self, new: Layout, h: Array) -> Moments:
        over = self.over(new, h)
        return over.mean, over.covariance(bag_gram(self.kernel, new, dtype=self.dtype))

    def covariance_with(self, new: Bags) -> Callable[[Array], Array]:
        """A function of x: covariance of f(x) with the means of f over new bags, (m, N)."""
        over = eqx.filter_jit(type(self).over)(self, new.layout, trend_means(self.trend, new))
        return partial(self._covariance_with, new.layout, over)

    @eqx.filter_jit
    def _covariance_with(self, new: Layout, over: Functionals, x: Array) -> Array:
        return self.at(x).covariance(bag_cross(self.kernel, x, new, dtype=self.dtype), over)

    @abstractmethod
    def regressors(self, x: Float[Array, "m d"]) -> Float[Array, "m k"]:
        """What corrections of paths are linear in, at every row of x."""

    @abstractmethod
    def path(self, key: Any, n_paths: int, n_features: int | None) -> Path:
        """Functions drawn from the posterior, from `n_features` features or as many as it takes."""

    @abstractmethod
    def combined(self, pieces: Any, weights: Array, shared: Array, own: Array) -> Moments:
        """Mean and covariance of combinations of the bag means of the fit, with noise of their own.

        By `pieces`, what the posterior was made of, the weights of the combinations, (N, m), and
        the covariance of their noise with that of the observations, (m, M), and with itself.
        """

    @abstractmethod
    def left_over(self, pieces: Any) -> Float[np.ndarray, " M"]:
        """Observations less their posterior means."""

    @abstractmethod
    def jitter(self, pieces: Any) -> float:
        """Jitter that a factorisation needed, relative to the mean of the diagonal."""


class Path(eqx.Module):
    """Functions drawn from a posterior: draws of the prior, corrected by what was observed."""

    field: Field  # the posterior
    # waves, loadings: the draws of the prior; None where the correction is all.
    waves: Waves | None
    loadings: tuple[Array, ...]
    trend_draws: Float[Array, "q S"]  # coefficients of the trend functions
    correction: Float[Array, "k S"]  # coefficients of the field's `regressors`
    error: Float[Array, ""]  # root mean square of the relative error of variances, near the bags

    @eqx.filter_jit
    def __call__(self, x: Float[Array, "m d"]) -> Float[Array, "m S"]:
        """The functions at every row of x."""
        drawn = self.field.trend.features(x) @ self.trend_draws
        drawn += self.field.regressors(x) @ self.correction
        return drawn if self.waves is None else drawn + self.waves.draws(self.loadings, x)


def square_root(covariance: Array) -> Array:
    """The symmetric root of a covariance that may be singular, or zero.

    Unlike a root made of eigenvectors, which equal eigenvalues leave undetermined, it changes
    little when the covariance does: so do samples made with it.
    """
    values, vectors = jnp.linalg.eigh(covariance)
    return (vectors * jnp.sqrt(jnp.maximum(values, 0.0))) @ vectors.T


def trend_means(trend: Trend, bags: Bags) -> Float[Array, "N q"]:
    """Means of the trend functions over bags."""
    return jnp.asarray(bags.means(trend.features(bags.points)))
