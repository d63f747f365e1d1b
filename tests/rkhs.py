"""Algebra of functions and finite-rank operators, in which the paper's statements are written.

Functions and operators that can be added, scaled, composed and measured, with features of the
package: what is left of them are small matrix products, exact up to rounding.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from deconditional.bags import Bags
from deconditional.bags.inputs import Floats
from deconditional.operators import Features
from deconditional.operators import Function as Plain
from deconditional.operators.ridge import RidgeOperator


def joined(one: Features, other: Features) -> Features:
    """Features of both, one after the other."""
    one._check_space(other)
    a, b = one.bags, other.bags
    return Features(
        one.kernel,
        Bags(
            points=np.concatenate([a.points, b.points]),
            bag=np.concatenate([a.bag, a.n_bags + b.bag]),
            weights=np.concatenate([a.weights, b.weights]),
            ids=tuple(range(a.n_bags + b.n_bags)),
            mediator=None,
            point=np.arange(a.n_points + b.n_points),
        ),
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


class Function(Plain, Vector):
    """A function of the package that can be added and scaled."""

    def __add__(self, other: Any) -> Function:
        if self.features is other.features:
            return Function(self.features, self.coefficients + other.coefficients)
        both = joined(self.features, other.features)
        return Function(both, np.concatenate([self.coefficients, other.coefficients]))

    def scaled(self, factor: float) -> Function:
        """Product of the function with a number."""
        return Function(self.features, factor * self.coefficients)


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
    """

    def __init__(self, into: Features, matrix: npt.ArrayLike, out_of: Features):
        self.into, self.out_of = into, out_of
        self.matrix = np.asarray(matrix, dtype=float)

    @classmethod
    def of(cls, estimate: RidgeOperator) -> Self:
        """An estimate of the package as an operator of this algebra."""
        return cls(estimate.into, estimate.matrix, estimate.out_of)

    def __call__(self, function: Plain) -> Function:
        """The image of a function, or of each of a family."""
        seen = self.out_of.cross(function.features) @ function.coefficients
        return Function(self.into, self.matrix @ seen)

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
        middle = self.matrix @ (self.out_of.cross(other.into) @ other.matrix)
        return FiniteRankOperator(self.into, middle, other.out_of)

    def __add__(self, other: Any) -> FiniteRankOperator:
        if self.into is other.into and self.out_of is other.out_of:
            return FiniteRankOperator(self.into, self.matrix + other.matrix, self.out_of)
        (a, b), (c, d) = self.matrix.shape, other.matrix.shape
        matrix = np.zeros((a + c, b + d))
        matrix[:a, :b], matrix[a:, b:] = self.matrix, other.matrix
        return FiniteRankOperator(
            joined(self.into, other.into), matrix, joined(self.out_of, other.out_of)
        )

    def scaled(self, factor: float) -> FiniteRankOperator:
        """Product of the operator with a number."""
        return FiniteRankOperator(self.into, factor * self.matrix, self.out_of)

    def squared_errors(self, targets: Features, inputs: Plain) -> Floats:
        r""":math:`\lVert t_j - T u_j\rVert^2` for features :math:`t_j` and a family :math:`u_j`."""
        images = self(inputs)
        overlaps = targets.cross(images.features).T * images.coefficients
        return np.diag(targets.gram) - 2.0 * np.sum(overlaps, axis=0) + images.norm**2


def function(given: Plain) -> Function:
    """A function of the package as one of this algebra."""
    return Function(given.features, given.coefficients)


def risk(estimate: RidgeOperator, operator: FiniteRankOperator, ridge: float) -> float:
    r"""The empirical risk that an estimate minimises, of any operator: eqs. (11) and (12).

    Less, for the standard conditional operator, the spread within bags, which no operator changes.
    """
    mix = np.eye(len(estimate.out_of)) if estimate._mix is None else estimate._mix
    errors = operator.squared_errors(estimate.into, Plain(estimate.out_of, mix))
    return float(estimate.shares @ errors) + ridge * operator.norm**2
