"""Parameters of any GPJax kernel: found by their path in it, with priors from the data.

Parameters wrapped in ``paramax.non_trainable`` and plain Python numbers stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import deconditional.kernels  # noqa: F401  before GPJax starts JAX

# isort: split
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gpjax.kernels.base import AbstractKernel, CombinationKernel
from gpjax.kernels.stationary import StationaryKernel
from gpjax.parameters import NonNegativeReal, PositiveReal, Real, SigmoidBounded, val
from jaxtyping import Array
from paramax import AbstractUnwrappable, NonTrainable
from scipy.spatial.distance import pdist

from deconditional.fitting.parameters import IDENTITY, Interval, Parameter, positive
from deconditional.fitting.priors import Normal, Prior, SplitLogNormal
from deconditional.kernels.radial import DeepKernel
from deconditional.kernels.tasks import TaskKernel


class KernelTemplate(eqx.Module):
    """A GPJax kernel opened up: its learnable leaves by name, and how to put values back."""

    kernel: AbstractKernel
    parameters: tuple[Parameter, ...]
    positions: tuple[int, ...] = eqx.field(static=True)

    def with_values(self, values: Mapping[str, Any]) -> AbstractKernel:
        """The kernel at named parameter values, as plain arrays."""
        leaves, structure = _leaves(self.kernel)
        leaves = [val(leaf) if isinstance(leaf, AbstractUnwrappable) else leaf for leaf in leaves]
        for parameter, position in zip(self.parameters, self.positions, strict=True):
            leaves[position] = values[parameter.name]
        return jax.tree_util.tree_unflatten(structure, leaves)

    @eqx.filter_jit
    def wrapped(self, values: Mapping[str, Any]) -> AbstractKernel:
        """The kernel at named values with GPJax's own parameter classes restored."""
        leaves, structure = _leaves(self.kernel)
        for parameter, position in zip(self.parameters, self.positions, strict=True):
            leaves[position] = _rewrap(leaves[position], jnp.asarray(values[parameter.name]))
        return jax.tree_util.tree_unflatten(structure, leaves)

    def own_values(self) -> dict[str, np.ndarray]:
        """The values the kernel came with."""
        leaves, _ = _leaves(self.kernel)
        values = _values(leaves)
        return {p.name: values[i] for p, i in zip(self.parameters, self.positions, strict=True)}


def _rewrap(leaf: Any, value: Array) -> Any:
    if isinstance(leaf, SigmoidBounded):
        return SigmoidBounded(value, low=leaf.low, high=leaf.high)
    return type(leaf)(value) if isinstance(leaf, AbstractUnwrappable) else value


@eqx.filter_jit
def _opened(leaves: list[Any]) -> list[Any]:
    """Leaves by their values: transforms are compiled as one, not operation by operation."""
    return [val(leaf) for leaf in leaves]


def _values(leaves: list[Any]) -> dict[int, np.ndarray]:
    """Values of the leaves that have any, by position."""
    return {
        i: np.asarray(value, dtype=float)
        for i, value in enumerate(_opened(leaves))
        if eqx.is_array_like(value)
    }


def _is_held(leaf: Any) -> bool:
    """Whether ``paramax.non_trainable`` was applied, to a parameter or to what is inside it."""
    nodes = jax.tree_util.tree_leaves(leaf, is_leaf=lambda node: isinstance(node, NonTrainable))
    return any(isinstance(node, NonTrainable) for node in nodes)


def _is_parameter(leaf: Any) -> bool:
    return isinstance(leaf, AbstractUnwrappable)


def _leaves(kernel: AbstractKernel) -> tuple[list[Any], Any]:
    return jax.tree_util.tree_flatten(kernel, is_leaf=_is_parameter)


def kernel_template(
    kernel: AbstractKernel,
    prefix: str,  # "kernel" or "mediator_kernel"
    inputs: np.ndarray,  # points the kernel will see, for typical distances
    variance: float,  # a typical variance of what the kernel models
    unit_variance: bool = False,
    length_scale_prior: Callable[[np.ndarray], Prior] = SplitLogNormal,  # by its mode
) -> KernelTemplate:
    """Find the learnable parameters of a kernel and give them data-driven priors.

    The prior of a length scale is centred on the median distance between inputs over √2, where a
    Gaussian kernel has fallen to 1/e (times √d for a length scale per dimension). Weights of
    networks are learnt. With `unit_variance` the variance of a single stationary kernel is not: the
    scale of a mediator kernel is absorbed by the ridge.
    """
    pairs, _ = jax.tree_util.tree_flatten_with_path(kernel, is_leaf=_is_parameter)
    skip_variance = unit_variance and isinstance(kernel, StationaryKernel)
    typical = _typical_values(kernel, inputs, variance)
    values = _values([leaf for _, leaf in pairs])
    parameters, positions = [], []
    for position, (path, leaf) in enumerate(pairs):
        if _is_held(leaf) or not (_is_parameter(leaf) or eqx.is_array(leaf)):
            continue
        words = re.findall(r"[A-Za-z_]\w*|\d+", jax.tree_util.keystr(path))
        keys = [word for word in words if word != "kernels"]
        if skip_variance and keys == ["variance"]:
            continue
        name = ".".join([prefix, *keys])
        parameters.append(
            _kernel_parameter(name, keys, leaf, values[position], typical, length_scale_prior)
        )
        positions.append(position)
    return KernelTemplate(kernel, tuple(parameters), tuple(positions))


def _kernel_parameter(
    name: str,
    keys: list[str],
    leaf: Any,
    current: np.ndarray,
    typical: dict[str, np.ndarray],
    length_scale_prior: Callable[[np.ndarray], Prior],
) -> Parameter:
    if isinstance(leaf, SigmoidBounded):
        middle = Normal(0.5 * (leaf.low + leaf.high), 0.5 * (leaf.high - leaf.low))
        return Parameter(name, current, middle, Interval(leaf.low, leaf.high))
    if isinstance(leaf, PositiveReal | NonNegativeReal):
        median = np.broadcast_to(typical.get(".".join(keys), current), current.shape)
        if keys[-1] == "lengthscale":
            start = np.asarray(median, dtype=float)
            return Parameter(name, start, length_scale_prior(start))
        if keys[-1] == "variance" and keys[0].isdigit():
            # One of several kernels: a part that explains nothing may all but vanish, so the prior
            # is three times as wide below the variance of all as above.
            start = np.asarray(median, dtype=float)
            return Parameter(name, start, SplitLogNormal(start, below=3.0, above=1.0))
        return positive(name, median)
    if isinstance(leaf, Real) or eqx.is_array(leaf):
        sd = float(max(1.0, np.std(current))) if current.ndim else 1.0 + abs(float(current))
        return Parameter(name, current, Normal(0.0, sd), IDENTITY, reach=30.0)
    raise TypeError(
        f"{name} is a {type(leaf).__name__}, which cannot be learnt here. Wrap it in "
        "paramax.non_trainable to keep it fixed."
    )


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
    if isinstance(kernel, TaskKernel):
        inner = _typical_values(kernel.base, inputs[:, :-1], variance)
        return {f"base.{name}": value for name, value in inner.items()}
    typical = {"variance": np.asarray(variance)}
    scale = getattr(kernel, "lengthscale", None)
    if isinstance(kernel, StationaryKernel) and scale is not None:
        active = np.asarray(kernel.slice_input(inputs))
        shape = jax.eval_shape(val, scale).shape
        per_dimension = len(shape) == 1 and shape[0] > 1
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
    sample = np.asarray(x[np.random.default_rng(0).permutation(len(x))[:most]], dtype=float)
    return _median_distance(sample.tobytes(), sample.shape[1])


@lru_cache(maxsize=64)  # parts of a kernel, and models of the same data, ask for the same inputs
def _median_distance(sample: bytes, d: int) -> float:
    distances = pdist(np.frombuffer(sample).reshape(-1, d))
    if len(distances) == 0 or distances.max() == 0:
        return 1.0
    median = float(np.median(distances))
    return median if median > 0 else float(distances.mean())
