"""Priors of hyper-parameters: readable, and replaceable by any NumPyro distribution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Key

__all__ = ["LogNormal", "Normal", "Prior"]


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
        log = jnp.log(value)
        score = (log - jnp.log(jnp.asarray(self.median))) / self.sigma
        return -0.5 * score**2 - jnp.log(self.sigma * jnp.sqrt(2 * jnp.pi)) - log

    def sample(self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()) -> Array:
        shape = (*sample_shape, *jnp.shape(self.median))
        return jnp.asarray(self.median) * jnp.exp(self.sigma * jr.normal(key, shape))


@partial(jax.tree_util.register_dataclass, data_fields=["mean", "sd"], meta_fields=[])
@dataclass(frozen=True)
class Normal:
    """A quantity of either sign, such as the weight of a network."""

    mean: Any = 0.0
    sd: float = 1.0

    def log_prob(self, value: Any) -> Array:
        score = (value - jnp.asarray(self.mean)) / self.sd
        return -0.5 * score**2 - jnp.log(self.sd * jnp.sqrt(2 * jnp.pi))

    def sample(self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()) -> Array:
        shape = (*sample_shape, *jnp.shape(self.mean))
        return jnp.asarray(self.mean) + self.sd * jr.normal(key, shape)
