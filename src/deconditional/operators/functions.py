r"""Elements of a reproducing kernel Hilbert space, and operators of finite rank between two.

Everything an estimator of this subject produces is a finite sum. A function is

.. math:: f = \sum_j c_j\,\bar k_j, \qquad \bar k_j = \sum_i w_j^{(i)} k_{x_j^{(i)}},

over kernel features averaged over bags of points (bags of one point where nothing is averaged), and
an operator is :math:`T = \Phi B \Psi^\top`, with features :math:`\Phi` of the space it maps into,
features :math:`\Psi` of the space it maps from, and a matrix B. Evaluations, inner products and
norms are then small matrix products, exact up to rounding.
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
from deconditional.models.checks import rows_of

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
        needed = f"points of this space have {self.n_inputs} variable(s)"
        x = rows_of(points, self.n_inputs, "point", needed, "Drop it.")
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

    def joined(self, other: Features) -> Features:
        """Features of both, one after the other."""
        self._check_space(other)
        return Features(self.kernel, self.bags.joined(other.bags))

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


class Vector:
    """Arithmetic of what can be added and scaled: `__add__` and `scaled` give the rest."""

    def __add__(self, other: Any) -> Any:
        raise NotImplementedError

    __array_ufunc__ = None  # so that NumPy's numbers leave the product to __rmul__

    def scaled(self, factor: float) -> Self:
        """Product of this vector with a number."""
        raise NotImplementedError

    def __mul__(self, factor: Any) -> Self:
        number = np.ndim(factor) == 0 and not isinstance(factor, Vector)
        return self.scaled(float(factor)) if number else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, factor: float) -> Self:
        return self * (1.0 / factor)

    def __neg__(self) -> Self:
        return self * -1.0

    def __sub__(self, other: Any) -> Any:
        return self + (-other) if isinstance(other, Vector) else NotImplemented


class Function(Vector):
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
    >>> round(f.norm**2, 4), round((f - f).norm, 4)
    (2.5739, 0.0)
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
        root = np.sqrt(np.maximum(self.squares, 0.0))
        return float(root) if np.ndim(root) == 0 else root

    @property
    def squares(self) -> Any:
        """Inner product with itself; of a family, that of each member."""
        return np.sum(self.coefficients * (self.features.gram @ self.coefficients), axis=0)

    def __add__(self, other: Any) -> Function:
        if not isinstance(other, Function):
            return NotImplemented
        if self.coefficients.shape[1:] != other.coefficients.shape[1:]:
            raise ValueError(
                f"a family of shape {self.coefficients.shape[1:]} cannot be added to one of shape "
                f"{other.coefficients.shape[1:]}; give both the same number of functions."
            )
        if self.features is other.features:
            return Function(self.features, self.coefficients + other.coefficients)
        both = self.features.joined(other.features)
        return Function(both, np.concatenate([self.coefficients, other.coefficients]))

    def scaled(self, factor: float) -> Function:
        """Product of the function with a number."""
        return Function(self.features, factor * self.coefficients)

    def __repr__(self) -> str:
        members = "" if self.coefficients.ndim == 1 else f", family of {self.coefficients.shape[1]}"
        return f"Function({self.features._space()}, {len(self.features)} features{members})"


class FiniteRankOperator(Vector):
    r"""An operator :math:`T = \Phi B \Psi^\top` between two spaces.

    Operators are applied to functions, added, scaled, composed with ``@``, and have an adjoint and
    a Hilbert-Schmidt inner product.

    Parameters
    ----------
    into
        :math:`\Phi`, features of the space that is mapped into.
    matrix
        B, one row per feature of `into` and one column per feature of `out_of`.
    out_of
        :math:`\Psi`, features of the space that is mapped from.

    Examples
    --------
    The projection onto one feature, applied twice, is itself:

    >>> import gpjax as gpx
    >>> one = Features.of_points(gpx.kernels.RBF(), [0.0])
    >>> projection = FiniteRankOperator(one, [[1.0]], one)
    >>> f = Function.from_points(gpx.kernels.RBF(), [0.0, 1.0], [2.0, -1.0])
    >>> round((projection(f) - (projection @ projection)(f)).norm, 12), round(projection.norm, 12)
    (0.0, 1.0)
    """

    def __init__(self, into: Features, matrix: npt.ArrayLike, out_of: Features):
        b = np.asarray(matrix, dtype=float)
        if b.shape != (len(into), len(out_of)):
            raise ValueError(
                f"matrix must have a row for each of the {len(into)} features of `into` and a "
                f"column for each of the {len(out_of)} of `out_of`; its shape is {b.shape}."
            )
        self.into = into
        self.out_of = out_of
        self._matrix = b

    @property
    def matrix(self) -> Floats:
        """The matrix B between the two sets of features."""
        return self._matrix

    def _times(self, b: Floats) -> Floats:
        """B times b; operators with a factorised B solve instead."""
        return self.matrix @ b

    def __call__(self, function: Function) -> Function:
        """The image of a function, or of each of a family."""
        if not isinstance(function, Function):
            raise TypeError(f"an operator maps a Function, not {type(function).__name__}.")
        seen = self.out_of.cross(function.features) @ function.coefficients
        return Function(self.into, self._times(seen))

    @property
    def adjoint(self) -> FiniteRankOperator:
        """The operator with ⟨T f, g⟩ = ⟨f, T* g⟩."""
        return FiniteRankOperator(self.out_of, self.matrix.T, self.into)

    def inner(self, other: FiniteRankOperator) -> float:
        r"""Hilbert-Schmidt inner product, :math:`\operatorname{tr}(T^\top T')`."""
        left = self.into.cross(other.into) @ other.matrix
        return float(np.sum(self.matrix * (left @ other.out_of.cross(self.out_of))))

    @property
    def norm(self) -> float:
        """Hilbert-Schmidt norm."""
        return float(np.sqrt(max(self.inner(self), 0.0)))

    def __matmul__(self, other: FiniteRankOperator) -> FiniteRankOperator:
        if not isinstance(other, FiniteRankOperator):
            return NotImplemented
        middle = self._times(self.out_of.cross(other.into) @ other.matrix)
        return FiniteRankOperator(self.into, middle, other.out_of)

    def __add__(self, other: Any) -> FiniteRankOperator:
        if not isinstance(other, FiniteRankOperator):
            return NotImplemented
        if self.into is other.into and self.out_of is other.out_of:
            return FiniteRankOperator(self.into, self.matrix + other.matrix, self.out_of)
        (a, b), (c, d) = self.matrix.shape, other.matrix.shape
        matrix = np.zeros((a + c, b + d))
        matrix[:a, :b], matrix[a:, b:] = self.matrix, other.matrix
        return FiniteRankOperator(
            self.into.joined(other.into), matrix, self.out_of.joined(other.out_of)
        )

    def scaled(self, factor: float) -> FiniteRankOperator:
        """Product of the operator with a number."""
        return FiniteRankOperator(self.into, factor * self.matrix, self.out_of)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.out_of._space()} -> {self.into._space()})"

    def squared_errors(self, targets: Features, inputs: Function) -> Floats:
        r""":math:`\lVert t_j - T u_j\rVert^2` for features :math:`t_j` and a family :math:`u_j`."""
        images = self(inputs)
        overlaps = targets.cross(images.features).T * images.coefficients
        return np.diag(targets.gram) - 2.0 * np.sum(overlaps, axis=0) + images.squares
