"""Named hyper-parameters: their starting values, priors and bounds, and the vector of those learnt.

Every parameter has a name a user can read in a fit report and use in ``fixed=`` and ``priors=``:
``noise_std``, ``fine_noise_std``, ``ridge``, and for kernels the path to the GPJax parameter, such
as ``kernel.lengthscale`` or ``mediator_kernel.1.variance`` for the second kernel of a sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from deconditional.fitting.priors import LogNormal, Prior


def library(*arrays: Any) -> Any:
    """NumPy for what is in this process's memory, which compiles nothing; JAX for what is JAX's."""
    return jnp if any(isinstance(array, jax.Array) for array in arrays) else np


@dataclass(frozen=True)
class Interval:
    """Where a parameter may be, and how an unconstrained number u becomes one.

    Between two ends by the logistic map, above zero (:data:`LOG`) by the exponential, and as it is
    where there are no ends (:data:`IDENTITY`).
    """

    low: float
    high: float

    def __loaded__(self) -> Interval:
        """The interval itself, once it is known to be one."""
        if self not in (LOG, IDENTITY) and not -np.inf < self.low < self.high < np.inf:
            raise ValueError("an interval has no ends")
        return self

    def forward(self, u: Any) -> Any:
        """Parameter from its unconstrained number."""
        if self in (LOG, IDENTITY):
            return u if self == IDENTITY else library(u).exp(u)
        return self.low + (self.high - self.low) * jax.nn.sigmoid(u)

    def inverse(self, v: Any) -> Any:
        """Unconstrained number of a parameter."""
        if self in (LOG, IDENTITY):
            return v if self == IDENTITY else library(v).log(v)
        share = (v - self.low) / (self.high - self.low)
        return library(v).log(share) - library(v).log1p(-share)

    def log_slope(self, u: Any) -> Any:
        """Log |d forward / d u|."""
        if self in (LOG, IDENTITY):
            return jnp.zeros_like(u) if self == IDENTITY else u
        return jnp.log(self.high - self.low) + jax.nn.log_sigmoid(u) + jax.nn.log_sigmoid(-u)


LOG, IDENTITY = Interval(0.0, np.inf), Interval(-np.inf, np.inf)


class Parameter(eqx.Module):
    """One hyper-parameter, scalar or array.

    Attributes
    ----------
    start
        The value every fit tries first.
    reach
        How far from `start`, in unconstrained units, the optimiser may go: the bounds.
    """

    name: str = eqx.field(static=True)
    start: np.ndarray
    prior: Prior
    transform: Interval = eqx.field(static=True, default=LOG)
    reach: float = eqx.field(static=True, default=9.0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return np.shape(self.start)

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(np.size(self.start))


def positive(name: str, median: Any, sigma: float = 1.0, reach: float = 9.0) -> Parameter:
    """A positive parameter with a log-normal prior that starts at its median."""
    start = np.asarray(median, dtype=float)
    return Parameter(name, start, LogNormal(start, sigma), LOG, reach)


class ParameterSet(eqx.Module):
    """The parameters of a model: which are learnt, which are fixed, and the vector between.

    The optimiser works in unconstrained coordinates (logarithms of positive parameters), where
    the log prior includes the change of variables. A log-normal prior then has its mode at its
    median, whatever else is learnt.
    """

    learnt: tuple[Parameter, ...]
    fixed: dict[str, Any]

    @classmethod
    def of(
        cls,
        parameters: Sequence[Parameter],
        fixed: Mapping[str, Any] | None = None,
        priors: Mapping[str, Prior] | None = None,
    ) -> ParameterSet:
        """Divide parameters into learnt and fixed, with the user's values and priors."""
        fixed, priors = fixed or {}, priors or {}
        names = [p.name for p in parameters]
        for option, given in (("fixed", fixed), ("priors", priors)):
            for name in given:
                if name not in names:
                    raise ValueError(
                        f"{option} names {name!r}, which is not a parameter of this model; its "
                        f"parameters are {', '.join(names)}."
                    )
        for name, prior in priors.items():
            if not (hasattr(prior, "log_prob") and hasattr(prior, "sample")):
                raise TypeError(
                    f"priors[{name!r}] must be a prior such as LogNormal(median=1.0, sigma=1.0) or "
                    f"a NumPyro distribution, not {prior!r}. To hold the parameter, use fixed."
                )
        return cls(
            # Numbers of priors are data to compiled functions: another number compiles nothing.
            learnt=tuple(
                replace(p, prior=jax.tree.map(_number, priors.get(p.name, p.prior)))
                for p in parameters
                if p.name not in fixed
            ),
            fixed={p.name: _fixed_value(p, fixed[p.name]) for p in parameters if p.name in fixed},
        )

    @property
    def size(self) -> int:
        """Length of the vector."""
        return sum(p.size for p in self.learnt)

    @property
    def priors(self) -> dict[str, Prior]:
        """The prior of every learnt parameter."""
        return {p.name: p.prior for p in self.learnt}

    def pack(self, values: Mapping[str, Any]) -> Any:
        """The unconstrained vector of named values; in NumPy where they are."""
        free = [p.transform.inverse(values[p.name]) for p in self.learnt]
        parts = [library(u).ravel(u) for u in free]
        return library(*parts).concatenate(parts) if parts else np.zeros(0)

    def unpack(self, vector: Float[Array, " size"]) -> dict[str, Array]:
        """Named values, the fixed ones included."""
        values: dict[str, Array] = {k: jnp.asarray(v) for k, v in self.fixed.items()}
        start = 0
        for p in self.learnt:
            values[p.name] = p.transform.forward(vector[start : start + p.size].reshape(p.shape))
            start += p.size
        return values

    def log_prior(self, vector: Float[Array, " size"]) -> Float[Array, ""]:
        """Log prior density of the unconstrained vector."""
        total, start = jnp.zeros(()), 0
        for p in self.learnt:
            u = vector[start : start + p.size].reshape(p.shape)
            total += jnp.sum(p.prior.log_prob(p.transform.forward(u)) + p.transform.log_slope(u))
            start += p.size
        return total

    def start(self) -> np.ndarray:
        """The unconstrained vector of starting values."""
        return np.asarray(self.pack({p.name: p.start for p in self.learnt}))

    def draws(self, seed: int, n: int, shrink: float = 1.0) -> np.ndarray:
        """Starts drawn from the priors, (n, size), pulled to `start` by 1 - shrink, in bounds."""
        centre = self.start()
        pulled = centre + shrink * (np.asarray(_draws(self, seed, n)) - centre)
        return np.clip(pulled, *self.bounds())

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of the unconstrained vector."""
        centre = self.start()
        sizes = np.array([p.size for p in self.learnt], dtype=int)
        reach = np.repeat([p.reach for p in self.learnt], sizes)
        return centre - reach, centre + reach

    def at_bounds(self, vector: np.ndarray) -> tuple[str, ...]:
        """Names of the entries of the vector that lie on a bound."""
        low, high = self.bounds()
        touching = (vector - low < 1e-3) | (high - vector < 1e-3)
        return tuple(name for name, on in zip(self.names(), touching, strict=True) if on)

    def names(self) -> list[str]:
        """One name per entry of the vector, with an index for arrays."""
        return [
            p.name if p.shape == () else f"{p.name}[{i}]"
            for p in self.learnt
            for i in range(p.size)
        ]


def _number(leaf: Any) -> Any:
    return np.float64(leaf) if type(leaf) is float else leaf


@partial(jax.jit, static_argnums=2)
def _draws(parameters: ParameterSet, seed: int, n: int) -> Array:
    """Unconstrained draws of the priors, all compiled as one."""

    def draw(key: Any) -> Array:
        keys = jax.random.split(key, max(1, len(parameters.learnt)))
        pairs = zip(parameters.learnt, keys, strict=False)
        return jnp.asarray(parameters.pack({p.name: _draw(p, k) for p, k in pairs}))

    return jax.vmap(draw)(jax.random.split(jax.random.key(seed), n))


def _draw(parameter: Parameter, key: Any) -> Array:
    """A draw from the prior; a prior of one number serves every entry of an array."""
    drawn = parameter.prior.sample(key)
    if np.shape(drawn) == parameter.shape:
        return drawn
    return parameter.prior.sample(key, parameter.shape)


def _fixed_value(parameter: Parameter, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"fixed[{parameter.name!r}] must be a number, not {value!r}.") from None
    try:
        array = np.broadcast_to(array, parameter.shape).copy()
    except ValueError:
        raise ValueError(
            f"fixed[{parameter.name!r}] has shape {array.shape}; the parameter has shape "
            f"{parameter.shape}."
        ) from None
    ends = parameter.transform
    if not np.isfinite(array).all() or (ends == LOG and (array < 0).any()):
        raise ValueError(
            f"fixed[{parameter.name!r}] = {value!r}: it must be finite"
            + (" and not negative." if ends == LOG else ".")
        )
    if ends != LOG and not ((ends.low < array) & (array < ends.high)).all():
        raise ValueError(
            f"fixed[{parameter.name!r}] = {value!r} lies outside the interval of the parameter."
        )
    return array
