r"""A deconditioning problem on a circle, whose operators and risk are known exactly.

The paper's theorem bounds the excess of :math:`\mathcal{E}_d(D) = E\|\ell_Y - D\,C\,\ell_Y\|^2`,
C the conditional mean operator, over its least value. Here C, the minimiser and the excess are
matrices in closed form, and a sample of N pairs is a table of counts, so that N may be
:math:`10^{17}`.

X and Y are each one of 2q + 1 places on a circle and a sign. With :math:`e_j` the sines and cosines
of frequency :math:`j \le q`, orthonormal under the uniform law,

========================  ======================================================================
:math:`Y`                 place and sign uniform, independent
:math:`X \mid Y`          the place of Y plus a step with characteristic function
                          :math:`r_j = (1 + j)^{-1/4}`; a sign that is independent of all
:math:`\ell_y`            :math:`\sqrt{s_j}\,e_j(y_1)` and :math:`\nu y_2`, of dimension 2q + 1
:math:`k_x`               :math:`\sqrt{\kappa_j}\,e_j(x_1)`, and the same and a constant times
                          :math:`x_2`, of dimension 4q + 1
:math:`C`                 :math:`r_j\sqrt{\kappa_j/s_j}` where :math:`e_j(y_1)` meets
                          :math:`e_j(x_1)`, zero elsewhere
:math:`S = C C_{YY} C^*`  eigenvalues :math:`\sigma_j = \kappa_j r_j^2`, each twice, and zero
minimiser                 the pseudo-inverse of C; its risk is :math:`\nu^2`
========================  ======================================================================

The sign of Y is the noise of the second regression: a part of :math:`\ell_Y` that no D recovers.
With :math:`\sigma_j = A j^{-b}` and :math:`s_j = j^{-bc-1}` the problem behaves, as long as q is
not felt, like one with spectral exponent b and smoothness c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "MOST_POINTS",
    "Array",
    "Problem",
    "conditional_operator",
    "deconditional_operator",
    "draw_bags",
    "draw_mediators",
]

Array = npt.NDArray[np.floating[Any]]

MOST_POINTS = 2**58
"""Draws of more points show the rounding of NumPy's binomial sampler."""

STEP_DECAY = 0.25


@dataclass(frozen=True)
class Problem:
    """A deconditioning problem on a circle, in coordinates.

    Parameters
    ----------
    frequencies
        q; there are 2q + 1 places.
    decay, mediator_decay
        Exponents of σ_j = A j^(-decay) and s_j = j^(-mediator_decay).
    amplitude, noise
        A and ν.

    Examples
    --------
    C takes ℓ_y to the conditional mean of k_X. The minimiser inverts it, up to the sign of Y, which
    is lost:

    >>> problem = Problem(frequencies=2, decay=2.0, mediator_decay=2.0)
    >>> given = problem.joint[:, 3] / problem.joint[:, 3].sum()
    >>> mean = given @ problem.fine_features
    >>> bool(np.allclose(mean, problem.operator @ problem.mediator_features[3]))
    True
    >>> print(round(problem.risk(problem.minimiser), 12), problem.noise**2)
    0.25 0.25
    """

    frequencies: int
    decay: float
    mediator_decay: float
    amplitude: float = 4.0
    noise: float = 0.5

    def __post_init__(self) -> None:
        if self.frequencies < 1:
            raise ValueError(f"frequencies must be at least 1, not {self.frequencies}.")
        if not (self.amplitude > 0 and self.noise > 0):
            raise ValueError(
                f"amplitude and noise must be positive, not {self.amplitude} and {self.noise}."
            )

    @property
    def places(self) -> int:
        """Number of places on the circle."""
        return 2 * self.frequencies + 1

    @cached_property
    def of_wave(self) -> Array:
        """The frequency of each sine and cosine, (2q,)."""
        return np.arange(1.0, self.frequencies + 1).repeat(2)

    @cached_property
    def steps(self) -> Array:
        """r_j of each sine and cosine."""
        return (1.0 + self.of_wave) ** -STEP_DECAY

    @cached_property
    def spectrum(self) -> Array:
        """Eigenvalues σ_j of S other than zero, decreasing."""
        return self.amplitude * self.of_wave**-self.decay

    @cached_property
    def mediator_covariance(self) -> Array:
        """The diagonal of C_YY: every s_j, then ν²."""
        return np.append(self.of_wave**-self.mediator_decay, self.noise**2)

    @cached_property
    def waves(self) -> Array:
        """Values of the sines and cosines at every place, (2q + 1, 2q)."""
        angles = np.outer(2 * np.pi * np.arange(self.places) / self.places, self.of_wave[::2])
        values = np.empty((self.places, 2 * self.frequencies))
        values[:, 0::2], values[:, 1::2] = np.cos(angles), np.sin(angles)
        return math.sqrt(2) * values

    @cached_property
    def mediator_features(self) -> Array:
        """ℓ_y of every y, one per row: all places with sign +1, then with sign -1."""
        smooth = np.tile(self.waves * np.sqrt(self.mediator_covariance[:-1]), (2, 1))
        return np.column_stack([smooth, np.repeat([self.noise, -self.noise], self.places)])

    @cached_property
    def fine_features(self) -> Array:
        """k_x of every x, one per row, in the same order."""
        scale = np.sqrt(self.spectrum) / self.steps
        smooth = self.waves * scale
        detail = np.column_stack([np.full(self.places, scale[0]), smooth])
        return np.block([[smooth, detail], [smooth, -detail]])

    @cached_property
    def joint(self) -> Array:
        """Probability of every pair (x, y)."""
        # r is a constant plus a convex sequence that falls to zero: its series is non-negative.
        law = np.maximum(1 + math.sqrt(2) * self.waves[:, 0::2] @ self.steps[0::2], 0.0)
        place = np.arange(self.places)
        table = np.tile(law[(place[:, None] - place) % self.places], (2, 2))
        return table / table.sum()

    @cached_property
    def operator(self) -> Array:
        """C, (4q + 1, 2q + 1)."""
        count = 2 * self.frequencies
        matrix = np.zeros((2 * count + 1, count + 1))
        diagonal = np.sqrt(self.spectrum / self.mediator_covariance[:-1])
        matrix[np.arange(count), np.arange(count)] = diagonal
        return matrix

    @cached_property
    def minimiser(self) -> Array:
        """The D of least norm among those of least risk, (2q + 1, 4q + 1)."""
        with np.errstate(divide="ignore"):
            return np.where(self.operator > 0, 1 / self.operator, 0.0).T

    @cached_property
    def projection(self) -> Array:
        """DC at the minimiser."""
        return np.diag(np.append(np.ones(2 * self.frequencies), 0.0))

    def risk(self, decondition: Array) -> float:
        """E‖ℓ_Y - D C ℓ_Y‖²."""
        left = np.eye(len(self.mediator_covariance)) - decondition @ self.operator
        return float(np.sum(left**2 * self.mediator_covariance))

    def excess(self, decondition: Array) -> float:
        """The risk of D less the least risk, without their cancellation."""
        return self._excess(decondition @ self.operator)

    def _excess(self, composed: Array) -> float:
        return float(np.sum((composed - self.projection) ** 2 * self.mediator_covariance))

    def excess_of(self, covariance: Array, operator: Array, epsilon: float) -> float:
        """The excess of the D that ridge regression finds, in 2q + 1 dimensions throughout.

        Parameters
        ----------
        covariance, operator
            Estimates of C_YY and C, or these themselves.
        epsilon
            The ridge.
        """
        return self._excess(_composed(covariance, operator, epsilon, self.operator))


# ---------------------------------------------------------------------- estimates


def _composed(covariance: Array, operator: Array, epsilon: float, behind: Array) -> Array:
    """D times a matrix."""
    system = covariance @ (operator.T @ operator)
    system[np.diag_indices_from(system)] += epsilon
    return np.linalg.solve(system, covariance @ (operator.T @ behind))


def deconditional_operator(covariance: Array, operator: Array, epsilon: float) -> Array:
    r"""The estimate :math:`\hat D = A\hat C^\top(\hat C A\hat C^\top + \epsilon I)^{-1}`.

    A is the covariance of :math:`\ell` at the observations. The push-through identity gives
    :math:`(A\hat C^\top\hat C + \epsilon I)^{-1}A\hat C^\top`, of the size of A.

    Examples
    --------
    >>> deconditional_operator(np.array([[2.0]]), np.array([[3.0]]), epsilon=1.0).item() == 6 / 19
    True
    """
    return _composed(covariance, operator, epsilon, np.eye(len(operator)))


def conditional_operator(covariance: Array, cross: Array, ridge: float) -> Array:
    r"""The estimate :math:`\hat C = \hat C_{XY}(\hat C_{YY} + \lambda I)^{-1}`.

    Examples
    --------
    >>> conditional_operator(np.array([[2.0]]), np.array([[3.0]]), ridge=0.5).item()
    1.2
    """
    return np.linalg.solve(covariance + ridge * np.eye(len(covariance)), cross.T).T


# ---------------------------------------------------------------------- samples


def draw_mediators(problem: Problem, size: int, rng: np.random.Generator) -> Array:
    """The covariance of ℓ over a sample of mediators.

    Examples
    --------
    >>> problem = Problem(1, 2.0, 2.0)
    >>> estimate = draw_mediators(problem, 10**12, np.random.default_rng(0))
    >>> bool(np.allclose(estimate, np.diag(problem.mediator_covariance), atol=1e-5))
    True
    """
    features = problem.mediator_features
    share = rng.multinomial(size, np.full(len(features), 1 / len(features))) / size
    return features.T @ (share[:, None] * features)


def draw_bags(
    problem: Problem, size: int, rng: np.random.Generator, points: int = 1
) -> tuple[Array, Array]:
    """The covariance of ℓ, and that of k with ℓ, over a sample of bags.

    Parameters
    ----------
    size, points
        Number of bags, and of points in each. All points of a bag share its mediator. Bags of one
        point are the pairs of the theorem.

    Examples
    --------
    >>> problem = Problem(1, 2.0, 2.0)
    >>> exact = problem.operator @ np.diag(problem.mediator_covariance)
    >>> for points in (1, 10):
    ...     _, cross = draw_bags(problem, 10**12, np.random.default_rng(0), points)
    ...     print(bool(np.allclose(cross, exact, atol=1e-4)))
    True
    True
    """
    joint = problem.joint
    if points == 1:
        drawn = rng.multinomial(size, joint.ravel()).reshape(joint.shape) / size
        of_y = drawn.sum(0)
    else:
        given = joint.sum(0)
        number = rng.multinomial(size, given)
        drawn = rng.multinomial(points * number, (joint / given).T).T / (points * size)
        of_y = number / size
    features = problem.mediator_features
    covariance = features.T @ (of_y[:, None] * features)
    return covariance, problem.fine_features.T @ (drawn @ features)
