"""Named hyper-parameters: their starting values, priors and bounds, and the vector of those learnt.

Every parameter has a name a user can read in a fit report and use in ``fixed=`` and ``priors=``:
``noise_std``, ``fine_noise_std``, ``ridge``, and for kernels the path to the GPJax parameter, such
as ``kernel.lengthscale`` or ``mediator_kernel.1.variance`` for the second kernel of a sum.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gpjax.kernels.base import AbstractKernel, CombinationKernel
from gpjax.kernels.stationary import StationaryKernel
from gpjax.parameters import NonNegativeReal, PositiveReal, Real, SigmoidBounded, val
from jaxtyping import Array, Float
from paramax import AbstractUnwrappable, NonTrainable

from deconditional.fitting.priors import LogNormal, Normal, Prior, SplitLogNormal
from deconditional.kernels.radial import DeepKernel

__all__ = ["KernelTemplate", "Parameter", "ParameterSet", "kernel_template", "typical_distance"]


class Transform(Protocol):
    """A bijection between a parameter and the unconstrained number that is optimised."""

    def forward(self, u: Any) -> Any:
        """The parameter."""

    def inverse(self, v: Any) -> Any:
        """The unconstrained number."""

    def log_slope(self, u: Any) -> Any:
        """Log |d forward / d u|."""


@dataclass(frozen=True)
class Log:
    """Positive parameters by their logarithm."""

    def forward(self, u: Any) -> Any:
        """The parameter."""
        return jnp.exp(u)

    def inverse(self, v: Any) -> Any:
        """Its logarithm."""
        return jnp.log(v)

    def log_slope(self, u: Any) -> Any:
        """The logarithm of exp(u)."""
        return u


@dataclass(frozen=True)
class Identity:
    """Parameters of either sign as they are."""

    def forward(self, u: Any) -> Any:
        """The parameter."""
        return u

    def inverse(self, v: Any) -> Any:
        """The parameter."""
        return v

    def log_slope(self, u: Any) -> Any:
        """Zero."""
        return jnp.zeros_like(u)


@dataclass(frozen=True)
class Interval:
    """The logistic map onto (low, high)."""

    low: float
    high: float

    def __loaded__(self) -> Interval:
        """The interval itself, once it is known to be one."""
        if not -np.inf < self.low < self.high < np.inf:
            raise ValueError("an interval has no ends")
        return self

    def forward(self, u: Any) -> Any:
        """The parameter."""
        return self.low + (self.high - self.low) * jax.nn.sigmoid(u)

    def inverse(self, v: Any) -> Any:
        """The logit of its share of the interval."""
        share = (v - self.low) / (self.high - self.low)
        return jnp.log(share) - jnp.log1p(-share)

    def log_slope(self, u: Any) -> Any:
        """The logarithm of the logistic map's slope."""
        return jnp.log(self.high - self.low) + jax.nn.log_sigmoid(u) + jax.nn.log_sigmoid(-u)


LOG, IDENTITY = Log(), Identity()


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["start", "prior"],
    meta_fields=["name", "transform", "reach"],
)
@dataclass(frozen=True)
class Parameter:
    """One hyper-parameter, scalar or array.

    Attributes
    ----------
    start
        The value every fit tries first.
    reach
        How far from `start`, in unconstrained units, the optimiser may go: the bounds.
    """

    name: str
    start: np.ndarray
    prior: Prior
    transform: Transform = LOG
    reach: float = 9.0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return np.shape(self.start)

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(np.prod(self.shape, dtype=int))


def positive(name: str, median: Any, sigma: float = 1.0, reach: float = 9.0) -> Parameter:
    """A positive parameter with a log-normal prior that starts at its median."""
    start = np.asarray(median, dtype=float)
    return Parameter(name, start, LogNormal(start, sigma), LOG, reach)


def length_scale(
    name: str, mode: Any, prior: Callable[[np.ndarray], Prior] = SplitLogNormal
) -> Parameter:
    """A length scale, with a prior by its mode: short ones need evidence, long ones little."""
    start = np.asarray(mode, dtype=float)
    return Parameter(name, start, prior(start), LOG)


@partial(jax.tree_util.register_dataclass, data_fields=["learnt", "fixed"], meta_fields=[])
@dataclass(frozen=True)
class ParameterSet:
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
            learnt=tuple(
                replace(p, prior=_as_data(priors.get(p.name, p.prior)))
                for p in parameters
                if p.name not in fixed
            ),
            fixed={p.name: _fixed_value(p, fixed[p.name]) for p in parameters if p.name in fixed},
        )

    @property
    def _sizes(self) -> list[int]:
        return [p.size for p in self.learnt]

    @property
    def size(self) -> int:
        """Length of the vector."""
        return sum(self._sizes)

    @property
    def priors(self) -> dict[str, Prior]:
        """The prior of every learnt parameter."""
        return {p.name: p.prior for p in self.learnt}

    def pack(self, values: Mapping[str, Any]) -> Float[Array, " size"]:
        """The unconstrained vector of named values."""
        parts = [jnp.ravel(p.transform.inverse(jnp.asarray(values[p.name]))) for p in self.learnt]
        return jnp.concatenate(parts) if parts else jnp.zeros(0)

    def unpack(self, vector: Float[Array, " size"]) -> dict[str, Array]:
        """Named values, the fixed ones included."""
        values: dict[str, Array] = {k: jnp.asarray(v) for k, v in self.fixed.items()}
        start = 0
        for p, size in zip(self.learnt, self._sizes, strict=True):
            values[p.name] = p.transform.forward(vector[start : start + size].reshape(p.shape))
            start += size
        return values

    def log_prior(self, vector: Float[Array, " size"]) -> Float[Array, ""]:
        """Log prior density of the unconstrained vector."""
        total, start = jnp.zeros(()), 0
        for p, size in zip(self.learnt, self._sizes, strict=True):
            u = vector[start : start + size].reshape(p.shape)
            total += jnp.sum(p.prior.log_prob(p.transform.forward(u)) + p.transform.log_slope(u))
            start += size
        return total

    def start(self) -> np.ndarray:
        """The unconstrained vector of starting values."""
        return np.asarray(self.pack({p.name: p.start for p in self.learnt}))

    def draw(self, key: Any, shrink: float = 1.0) -> np.ndarray:
        """A start drawn from the priors, pulled towards `start` by 1 - shrink, within bounds."""
        keys = jax.random.split(key, max(1, len(self.learnt)))
        drawn = {p.name: _draw(p, k) for p, k in zip(self.learnt, keys, strict=False)}
        low, high = self.bounds()
        centre = self.start()
        return np.clip(centre + shrink * (np.asarray(self.pack(drawn)) - centre), low, high)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of the unconstrained vector."""
        centre = self.start()
        reach = np.concatenate(
            [np.full(s, p.reach) for p, s in zip(self.learnt, self._sizes, strict=True)]
            or [np.zeros(0)]
        )
        return centre - reach, centre + reach

    def names(self) -> list[str]:
        """One name per entry of the vector, with an index for arrays."""
        return [
            p.name if p.shape == () else f"{p.name}[{i}]"
            for p, size in zip(self.learnt, self._sizes, strict=True)
            for i in range(size)
        ]


def _as_data(prior: Prior) -> Prior:
    """A prior whose numbers are data to compiled functions: another number compiles nothing."""
    return jax.tree.map(lambda leaf: np.float64(leaf) if type(leaf) is float else leaf, prior)


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
    inside = np.isfinite(np.asarray(parameter.transform.inverse(np.maximum(array, 1e-300)))).all()
    if parameter.transform not in (LOG, IDENTITY) and not inside:
        raise ValueError(
            f"fixed[{parameter.name!r}] = {value!r} lies outside the interval of the parameter."
        )
    if not np.isfinite(array).all() or (parameter.transform == LOG and (array < 0).any()):
        raise ValueError(
            f"fixed[{parameter.name!r}] = {value!r}: it must be finite"
            + (" and not negative." if parameter.transform == LOG else ".")
        )
    return array


# --------------------------------------------------------------------------- kernels


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["kernel", "parameters"],
    meta_fields=["_positions"],
)
@dataclass(frozen=True)
class KernelTemplate:
    """A GPJax kernel opened up: its learnable leaves by name, and how to put values back."""

    kernel: AbstractKernel
    parameters: tuple[Parameter, ...]
    _positions: tuple[int, ...]

    def with_values(self, values: Mapping[str, Any]) -> AbstractKernel:
        """The kernel at named parameter values, as plain arrays."""
        leaves, structure = _leaves(self.kernel)
        leaves = [val(leaf) if isinstance(leaf, AbstractUnwrappable) else leaf for leaf in leaves]
        for parameter, position in zip(self.parameters, self._positions, strict=True):
            leaves[position] = values[parameter.name]
        return jax.tree_util.tree_unflatten(structure, leaves)

    def wrapped(self, values: Mapping[str, Any]) -> AbstractKernel:
        """The kernel at named values with GPJax's own parameter classes restored."""
        leaves, structure = _leaves(self.kernel)
        for parameter, position in zip(self.parameters, self._positions, strict=True):
            leaves[position] = _rewrap(leaves[position], jnp.asarray(values[parameter.name]))
        return jax.tree_util.tree_unflatten(structure, leaves)

    def own_values(self) -> dict[str, np.ndarray]:
        """The values the kernel came with."""
        leaves, _ = _leaves(self.kernel)
        return {
            p.name: np.asarray(val(leaves[i]), dtype=float)
            for p, i in zip(self.parameters, self._positions, strict=True)
        }


def _rewrap(leaf: Any, value: Array) -> Any:
    if isinstance(leaf, SigmoidBounded):
        return SigmoidBounded(value, low=leaf.low, high=leaf.high)
    return type(leaf)(value) if isinstance(leaf, AbstractUnwrappable) else value


def _is_held(leaf: Any) -> bool:
    """Whether ``paramax.non_trainable`` was applied, to a parameter or to what is inside it."""

    def is_wrapped(node: Any) -> bool:
        return isinstance(node, NonTrainable)

    return any(map(is_wrapped, jax.tree_util.tree_leaves(leaf, is_leaf=is_wrapped)))


def _is_parameter(leaf: Any) -> bool:
    return isinstance(leaf, AbstractUnwrappable)


def _leaves(kernel: AbstractKernel) -> tuple[list[Any], Any]:
    return jax.tree_util.tree_flatten(kernel, is_leaf=_is_parameter)


def kernel_template(
    kernel: AbstractKernel,
    prefix: str,
    inputs: np.ndarray,
    variance: float,
    unit_variance: bool = False,
    length_scale_prior: Callable[[np.ndarray], Prior] = SplitLogNormal,
) -> KernelTemplate:
    """Find the learnable parameters of a kernel and give them data-driven priors.

    The prior of a length scale is centred on the median distance between inputs over √2, where a
    Gaussian kernel has fallen to 1/e (times √d for a length scale per dimension).

    Parameters
    ----------
    kernel
        Any GPJax kernel. Parameters wrapped in ``paramax.non_trainable`` and plain Python numbers
        stay as they are; network weights are learnt.
    prefix
        ``"kernel"`` or ``"mediator_kernel"``.
    inputs
        Points the kernel will see, for typical distances.
    variance
        A typical variance of what the kernel models.
    unit_variance
        Leave out the variance of a kernel that is a single stationary one: the scale of a mediator
        kernel is absorbed by the ridge.
    length_scale_prior
        The prior of a length scale, given its mode.
    """
    pairs, _ = jax.tree_util.tree_flatten_with_path(kernel, is_leaf=_is_parameter)
    skip_variance = unit_variance and isinstance(kernel, StationaryKernel)
    typical = _typical_values(kernel, inputs, variance)
    parameters, positions = [], []
    for position, (path, leaf) in enumerate(pairs):
        if _is_held(leaf) or not (_is_parameter(leaf) or eqx.is_array(leaf)):
            continue
        keys = _readable(path)
        if skip_variance and keys == ["variance"]:
            continue
        name = ".".join([prefix, *keys])
        parameters.append(_kernel_parameter(name, keys, leaf, typical, length_scale_prior))
        positions.append(position)
    return KernelTemplate(kernel, tuple(parameters), tuple(positions))


def _kernel_parameter(
    name: str,
    keys: list[str],
    leaf: Any,
    typical: dict[str, np.ndarray],
    length_scale_prior: Callable[[np.ndarray], Prior],
) -> Parameter:
    current = np.asarray(val(leaf), dtype=float)
    if isinstance(leaf, SigmoidBounded):
        middle = Normal(0.5 * (leaf.low + leaf.high), 0.5 * (leaf.high - leaf.low))
        return Parameter(name, current, middle, Interval(leaf.low, leaf.high))
    if isinstance(leaf, PositiveReal | NonNegativeReal):
        median = np.broadcast_to(typical.get(".".join(keys), current), current.shape)
        if keys[-1] == "lengthscale":
            return length_scale(name, median, length_scale_prior)
        return positive(name, median)
    if isinstance(leaf, Real) or eqx.is_array(leaf):
        sd = float(max(1.0, np.std(current))) if current.ndim else 1.0 + abs(float(current))
        return Parameter(name, current, Normal(0.0, sd), IDENTITY, reach=30.0)
    raise TypeError(
        f"{name} is a {type(leaf).__name__}, which cannot be learnt here. Wrap it in "
        "paramax.non_trainable to keep it fixed."
    )


def _readable(path: tuple[Any, ...]) -> list[str]:
    text = re.findall(r"[A-Za-z_]\w*|\d+", jax.tree_util.keystr(path))
    return [word for word in text if word != "kernels"]


def _typical_values(
    kernel: AbstractKernel, inputs: np.ndarray, variance: float
) -> dict[str, np.ndarray]:
    """Typical length scales and variances for every part of a kernel, by path."""
    if isinstance(kernel, CombinationKernel):
        parts = {}
        for index, child in enumerate(kernel.kernels):
            inner = _typical_values(child, inputs, variance)
            parts.update({f"{index}.{name}": value for name, value in inner.items()})
        return parts
    if isinstance(kernel, DeepKernel):
        features = np.asarray(kernel.features(jnp.asarray(inputs)))
        inner = _typical_values(kernel.base, features, variance)
        return {f"base.{name}": value for name, value in inner.items()}
    typical = {"variance": np.asarray(variance)}
    scale = getattr(kernel, "lengthscale", None)
    if isinstance(kernel, StationaryKernel) and scale is not None:
        active = np.asarray(kernel.slice_input(jnp.asarray(inputs)))
        per_dimension = np.ndim(val(scale)) == 1 and np.size(val(scale)) > 1
        typical["lengthscale"] = (
            np.array([typical_distance(column[:, None]) for column in active.T])
            * np.sqrt(active.shape[1] / 2)
            if per_dimension
            else np.asarray(typical_distance(active) / np.sqrt(2))
        )
    elif not isinstance(kernel, StationaryKernel) and hasattr(kernel, "variance"):
        sample = jnp.asarray(inputs[:: max(1, len(inputs) // 200)])
        own = float(jnp.mean(jax.vmap(lambda p: kernel(p, p))(sample)) / val(kernel.variance))
        typical["variance"] = np.asarray(variance / max(own, 1e-12))
    return typical


def typical_distance(x: np.ndarray, most: int = 1000) -> float:
    """Median distance between points; the mean, then 1, where the median is zero."""
    sample = x[np.random.default_rng(0).permutation(len(x))[:most]]
    distances = np.sqrt(((sample[:, None, :] - sample[None, :, :]) ** 2).sum(-1))
    distances = distances[np.triu_indices(len(sample), 1)]
    if len(distances) == 0 or distances.max() == 0:
        return 1.0
    median = float(np.median(distances))
    return median if median > 0 else float(distances.mean())
