r"""Elements of a reproducing kernel Hilbert space: finite sums of kernel features.

.. math:: f = \sum_j c_j\,\bar k_j, \qquad \bar k_j = \sum_i w_j^{(i)} k_{x_j^{(i)}},

with features averaged over bags of points (bags of one point where nothing is averaged).
Evaluations, inner products and norms are then small matrix products, exact up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel

from deconditional.bags import Bags
from deconditional.bags.inputs import Floats, points_array
from deconditional.kernels.layout import layout_points
from deconditional.kernels.radial import prior_variance
from deconditional.kernels.sweeps import bag_gram, between_bags

BLOCK_ENTRIES = 20_000_000
"""Kernel values held at once while a function is evaluated: 160 MB."""

_gram = eqx.filter_jit(bag_gram)
_between = eqx.filter_jit(between_bags)
_variance = eqx.filter_jit(prior_variance)


class Features:
    r"""Finitely many features of one kernel, each averaged over a bag of points.

    Parameters
    ----------
    kernel
        Any GPJax kernel: the space is the one it reproduces.
    bags
        One feature :math:`\bar k_j` per bag; :meth:`of_points` makes one per point.

    Examples
    --------
    >>> import gpjax as gpx
    >>> features = Features.of_points(gpx.kernels.RBF(), [0.0, 1.0])
    >>> features.gram.round(4).tolist()
    [[1.0, 0.6065], [0.6065, 1.0]]
    """

    def __init__(self, kernel: AbstractKernel, bags: Bags):
        self.kernel = kernel
        self.bags = bags

    @classmethod
    def of_points(cls, kernel: AbstractKernel, points: npt.ArrayLike) -> Self:
        """The canonical features k_x at every point."""
        x = points_array(points)
        return cls(kernel, Bags.from_points(x, np.arange(len(x))))

    def __len__(self) -> int:
        return self.bags.n_bags

    @property
    def n_inputs(self) -> int:
        """Number of variables that a point of this space has."""
        return self.bags.points.shape[1]

    @cached_property
    def gram(self) -> Floats:
        """Gram matrix: inner products of all pairs of the features."""
        return np.asarray(_gram(self.kernel, self.bags.layout))

    @cached_property
    def scatter(self) -> Floats:
        r""":math:`\sum_i w_j^{(i)}\lVert k_{x_j^{(i)}} - \bar k_j\rVert^2` of every bag."""
        norms = np.asarray(_variance(self.kernel, jnp.asarray(self.bags.points)))
        return np.maximum(self.bags.means(norms) - np.diag(self.gram), 0.0)

    def at(self, points: npt.ArrayLike) -> Floats:
        """Values of all features at points, (m, N)."""
        return np.concatenate(list(self.blocks_at(points)))

    def blocks_at(self, points: npt.ArrayLike) -> Iterator[Floats]:
        """Values of all features at points, a block of points at a time."""
        x = self._checked_points(points)
        rows = max(256, BLOCK_ENTRIES // len(self))
        for block in np.split(x, range(rows, len(x), rows)):
            layout = layout_points(jnp.asarray(block))
            yield np.asarray(_between(self.kernel, self.bags.layout, layout)).T

    def cross(self, other: Features) -> Floats:
        """Inner products with other features of the same space."""
        self._check_space(other)
        if other is self:
            return self.gram
        return np.asarray(_between(self.kernel, self.bags.layout, other.bags.layout))

    def _checked_points(self, points: npt.ArrayLike) -> Floats:
        x = points_array(points)
        if x.shape[1] != self.n_inputs:
            raise ValueError(
                f"points of this space have {self.n_inputs} variable(s); points of shape "
                f"{np.shape(points)} do not."
            )
        if not np.isfinite(x).all():
            raise ValueError(
                f"point {int(np.argmin(np.isfinite(x).all(1)))} is missing or infinite. Drop it."
            )
        return x

    def _check_space(self, other: Features) -> None:
        same = self.kernel is other.kernel or bool(eqx.tree_equal(self.kernel, other.kernel))
        if not same or self.n_inputs != other.n_inputs:
            raise ValueError(
                f"these belong to different spaces: {self._space()} and {other._space()}. Both "
                "need the same kernel with the same parameters."
            )

    def _space(self) -> str:
        return (
            f"{type(self.kernel).__name__} of {self.n_inputs} variable{'s' * (self.n_inputs > 1)}"
        )


class Function:
    r"""An element of a reproducing kernel Hilbert space, or a family of them side by side.

    Parameters
    ----------
    features
        The features it is a sum of.
    coefficients : (N,) or (N, M)
        Their coefficients; with two axes, one column per function of the family.

    Examples
    --------
    >>> import gpjax as gpx
    >>> kernel = gpx.kernels.RBF()
    >>> f = Function.from_points(kernel, [0.0, 1.0], [2.0, -1.0])
    >>> f([0.0]).round(4).tolist()
    [1.3935]

    Evaluation is the inner product with a canonical feature, and the norm follows from it:

    >>> k_x = Function.canonical(kernel, [0.0])
    >>> k_x.inner(f).round(4).tolist()
    [1.3935]
    >>> round(f.norm**2, 4)
    2.5739
    """

    def __init__(self, features: Features, coefficients: npt.ArrayLike):
        c = np.asarray(coefficients, dtype=float)
        if c.ndim not in (1, 2) or len(c) != len(features):
            raise ValueError(
                f"{len(features)} features came with coefficients of shape {c.shape}; give one "
                "coefficient, or one row, per feature."
            )
        self.features = features
        self.coefficients = c

    @classmethod
    def from_points(
        cls, kernel: AbstractKernel, points: npt.ArrayLike, coefficients: npt.ArrayLike
    ) -> Self:
        """A sum of kernel features at points."""
        return cls(Features.of_points(kernel, points), coefficients)

    @classmethod
    def canonical(cls, kernel: AbstractKernel, points: npt.ArrayLike) -> Self:
        """The family of canonical features k_x, one per point."""
        features = Features.of_points(kernel, points)
        return cls(features, np.eye(len(features)))

    @property
    def kernel(self) -> AbstractKernel:
        """Kernel of the space that the function belongs to."""
        return self.features.kernel

    def __call__(self, points: npt.ArrayLike) -> Floats:
        """Values at points: (m,), or (m, M) of a family."""
        blocks = self.features.blocks_at(points)
        return np.concatenate([block @ self.coefficients for block in blocks])

    def inner(self, other: Function) -> Any:
        """Inner product with another element; of families, all pairs of their members."""
        value = self.coefficients.T @ self.features.cross(other.features) @ other.coefficients
        return float(value) if np.ndim(value) == 0 else value

    @cached_property
    def norm(self) -> Any:
        """Norm in the space; of a family, that of each member."""
        squares = np.sum(self.coefficients * (self.features.gram @ self.coefficients), axis=0)
        root = np.sqrt(np.maximum(squares, 0.0))
        return float(root) if np.ndim(root) == 0 else root

    def __repr__(self) -> str:
        members = "" if self.coefficients.ndim == 1 else f", family of {self.coefficients.shape[1]}"
        return f"Function({self.features._space()}, {len(self.features)} features{members})"
