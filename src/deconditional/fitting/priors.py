"""Priors of hyper-parameters: readable, and replaceable by any NumPyro distribution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Key

import deconditional.kernels.jax_setup  # noqa: F401


class Prior(Protocol):
    """What a prior must offer; NumPyro's distributions do."""

    def log_prob(self, value: Any) -> Any:
        """Log density at a value."""

    def sample(self, key: Any, sample_shape: Any = ()) -> Any:
        """Draw values."""


@partial(jax.tree_util.register_dataclass, data_fields=["median", "sigma"], meta_fields=[])
@dataclass(frozen=True)
class LogNormal:
    """A positive quantity known up to a factor: 95% within ``median`` times or over e^(2 sigma).

    Examples
    --------
    >>> LogNormal(median=0.5, sigma=1.0)
    LogNormal(median=0.5, sigma=1.0)
    """

    median: Any
    sigma: float = 1.0

    def log_prob(self, value: Any) -> Array:
        """Log density at a value."""
        log = jnp.log(value)
        score = (log - jnp.log(jnp.asarray(self.median))) / self.sigma
        return -0.5 * score**2 - jnp.log(self.sigma * jnp.sqrt(2 * jnp.pi)) - log

    def sample(self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw values."""
        shape = (*sample_shape, *jnp.shape(self.median))
        return jnp.asarray(self.median) * jnp.exp(self.sigma * jr.normal(key, shape))


@partial(jax.tree_util.register_dataclass, data_fields=["mode", "below", "above"], meta_fields=[])
@dataclass(frozen=True)
class SplitLogNormal:
    """A log-normal with another width on either side of its mode.

    The prior of length scales: a field that is rougher than its covariates suggest needs evidence,
    a covariate that does not matter (a long length scale) needs little.

    Examples
    --------
    >>> import numpy as np
    >>> prior = SplitLogNormal(mode=1.0, below=0.3, above=2.5)
    >>> bool(prior.log_prob(10.0) + np.log(10.0) > prior.log_prob(0.5) + np.log(0.5))
    True
    """

    mode: Any
    below: float = 0.3
    above: float = 2.5

    def log_prob(self, value: Any) -> Array:
        """Log density at a value."""
        log = jnp.log(value)
        distance = log - jnp.log(jnp.asarray(self.mode))
        score = distance / jnp.where(distance < 0, self.below, self.above)
        return -0.5 * score**2 + jnp.log(jnp.sqrt(2 / jnp.pi) / (self.below + self.above)) - log

    def sample(self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw values."""
        shape = (*sample_shape, *jnp.shape(self.mode))
        side, size = jr.split(key)
        is_below = jr.bernoulli(side, self.below / (self.below + self.above), shape)
        steps = jnp.abs(jr.normal(size, shape)) * jnp.where(is_below, -self.below, self.above)
        return jnp.asarray(self.mode) * jnp.exp(steps)


@partial(jax.tree_util.register_dataclass, data_fields=["common", "ratio"], meta_fields=["size"])
@dataclass(frozen=True)
class Alike:
    r"""Several positive quantities that are much the same: one for all, times ratios near one.

    The prior of length scales of position. Winds, currents and the seasons make fields longer along
    one direction than along another, but only data can say which, and a few coarse cells cannot.

    Examples
    --------
    >>> prior = Alike(SplitLogNormal(1.0), size=2)
    >>> even, uneven = (prior.log_prob(jnp.array(v)).sum() for v in ([2.0, 2.0], [1.0, 4.0]))
    >>> bool(even > uneven)
    True
    """

    common: Any  # the prior of their geometric mean
    size: int
    # Standard deviation of the logarithm of each over the geometric mean, were they independent.
    ratio: float = 0.5

    def log_prob(self, value: Any) -> Array:
        """Log density at values, an equal share of it for each."""
        log = jnp.log(value)
        mean = jnp.mean(log, -1, keepdims=True)
        score = jnp.sum(((log - mean) / self.ratio) ** 2, -1, keepdims=True)
        width = 0.5 * (self.size - 1) * jnp.log(2 * jnp.pi * self.ratio**2)
        of_mean = self.common.log_prob(jnp.exp(mean)) + mean - 0.5 * jnp.log(self.size)
        return (of_mean - 0.5 * score - width) / self.size - log

    def sample(self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw values."""
        mean, ratios = jr.split(key)
        drawn = self.common.sample(mean, sample_shape)
        steps = self.ratio * jr.normal(ratios, (*sample_shape, self.size))
        return drawn[..., None] * jnp.exp(steps - steps.mean(-1, keepdims=True))


@partial(jax.tree_util.register_dataclass, data_fields=["mean", "sd"], meta_fields=[])
@dataclass(frozen=True)
class Normal:
    """A quantity of either sign, such as the weight of a network."""

    mean: Any = 0.0
    sd: float = 1.0

    def log_prob(self, value: Any) -> Array:
        """Log density at a value."""
        score = (value - jnp.asarray(self.mean)) / self.sd
        return -0.5 * score**2 - jnp.log(self.sd * jnp.sqrt(2 * jnp.pi))

    def sample(self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw values."""
        shape = (*sample_shape, *jnp.shape(self.mean))
        return jnp.asarray(self.mean) + self.sd * jr.normal(key, shape)


@partial(jax.tree_util.register_dataclass, data_fields=["start"], meta_fields=[])
@dataclass(frozen=True)
class Flat:
    """No preference: for inducing points, which belong to the approximation, not to the model."""

    start: Any

    def log_prob(self, value: Any) -> Array:
        """Zero everywhere."""
        return jnp.zeros_like(value)

    def sample(self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()) -> Array:
        """The start: restarts differ in the model's parameters."""
        return jnp.broadcast_to(jnp.asarray(self.start), (*sample_shape, *jnp.shape(self.start)))
