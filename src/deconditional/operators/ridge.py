r"""Ridge regression between two spaces, with ridges chosen in closed form.

Kernel ridge regression of outputs :math:`v_j`, in any Hilbert space, on inputs with Gram matrix G
minimises :math:`\sum_j \pi_j \lVert v_j - \hat v(u_j)\rVert^2 + \lambda\lVert\hat v\rVert^2` with
shares :math:`\pi_j` that sum to one. Without example j the shares of the others grow by
:math:`1/(1 - \pi_j)`, so the fit has the ridge matrix :math:`R_j = (1 - \pi_j)\lambda\Pi^{-1}`, and

.. math:: v_j - \hat v_{-j}(u_j) = \frac{[(G + R_j)^{-1} v]_j}{[(G + R_j)^{-1}]_{jj}} .

Its squared norm needs only the Gram matrix of the outputs. One eigendecomposition of
:math:`\Pi^{1/2} G\, \Pi^{1/2}` and one of the outputs serve all ridges; each then costs the product
of an N x N matrix with one column for every direction in which outputs vary.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.linalg import cho_solve
from scipy.optimize import minimize_scalar

from deconditional.bags.inputs import Floats
from deconditional.errors import FitWarning
from deconditional.kernels.linalg import stable_cholesky
from deconditional.operators.functions import Features, FiniteRankOperator, Function

LEAVE_ONE_OUT = "leave-one-out"

REACH = (1e-10, 1e3)
"""Ridges searched, relative to the largest eigenvalue: from rounding to an estimate of zero."""

NEGLIGIBLE = 1e-14
"""Directions of the outputs with a smaller share of the largest variance are left out."""

PER_DECADE = 4
"""Ridges tried per decade before the best is refined."""


class RidgeScore:
    """A number for every ridge, the less the better, and the search for its least value."""

    largest: float
    """The largest eigenvalue, on whose scale ridges are to be seen."""

    def score(self, ridge: float) -> float:
        """Score of a ridge, the less the better."""
        raise NotImplementedError

    def search(self, name: str, bounds: tuple[float, float] | None = None) -> RidgeSearch:
        """The ridge with the least score; see :func:`search_ridge`."""
        if bounds is None:
            bounds = (REACH[0] * self.largest, REACH[1] * self.largest)
        return search_ridge(self.score, bounds, name)


class LeaveOneOut(RidgeScore):
    """Held-out squared errors of a kernel ridge regression, for any ridge.

    Parameters
    ----------
    inputs : (N, N)
        Gram matrix of the inputs.
    outputs : (N, N)
        Gram matrix of the outputs; the outer product of z with itself for numbers.
    shares : (N,)
        Weight of every example in the loss; they sum to one.
    drift : (N,), optional
        What a constant adds to every output. The constant is then fitted anew, without a penalty,
        each time an example is left out. Outputs must be numbers.

    Examples
    --------
    With inputs that have nothing in common, a held-out output is predicted as zero:

    >>> z = np.array([1.0, 2.0])
    >>> LeaveOneOut(np.eye(2), np.outer(z, z), np.full(2, 0.5)).errors(0.1).round(9).tolist()
    [1.0, 4.0]
    """

    def __init__(
        self, inputs: Floats, outputs: Floats, shares: Floats, drift: Floats | None = None
    ):
        root = np.sqrt(shares)
        values, vectors = np.linalg.eigh(root[:, None] * inputs * root)
        self.shares = shares
        self._values = np.maximum(values, 0.0)
        self.largest = float(self._values[-1])
        self._vectors = vectors
        sizes, directions = np.linalg.eigh(outputs)
        kept = sizes > NEGLIGIBLE * max(sizes[-1], 0.0)
        self._outputs = vectors.T @ (root[:, None] * directions[:, kept] * np.sqrt(sizes[kept]))
        self._drift = None if drift is None else vectors.T @ (root * drift)

    def errors(self, ridge: float) -> Floats:
        """Squared norm of the held-out error of every example."""
        u = self._vectors
        damped = 1.0 / (self._values + ridge * (1.0 - self.shares)[:, None])
        rows = u * damped
        diagonal = np.sum(u * rows, axis=1)
        if self._drift is not None:
            drift = self._drift * damped
            at_own = np.sum(u * drift, axis=1)
            strength = drift @ self._drift
            rows = rows - (at_own / strength)[:, None] * drift
            diagonal = diagonal - at_own**2 / strength
        squares = np.sum((rows @ self._outputs) ** 2, axis=1)
        return squares / (self.shares * diagonal**2)

    def score(self, ridge: float) -> float:
        """Mean held-out squared error, with the examples' shares."""
        return float(self.shares @ self.errors(ridge))


class Evidence(RidgeScore):
    r"""Evidence of a ridge: numbers z are a Gaussian vector with covariance τ²(G + MλI).

    The scale τ² takes its best value for every ridge. A constant with a flat prior is integrated
    out, which makes this the restricted likelihood.

    Parameters
    ----------
    inputs : (M, M)
        Gram matrix G of the inputs.
    z : (M,)
        Outputs.
    drift : (M,), optional
        What a constant adds to every output.

    Examples
    --------
    Where all inputs are strangers the scale is all there is, and every ridge is as good:

    >>> evidence = Evidence(np.eye(3), np.array([1.0, -2.0, 1.0]))
    >>> round(evidence.score(0.1) - evidence.score(10.0), 12)
    0.0
    """

    def __init__(self, inputs: Floats, z: Floats, drift: Floats | None = None):
        values, vectors = np.linalg.eigh(inputs)
        self._values = np.maximum(values, 0.0)
        self.largest = float(self._values[-1]) / len(z)
        self._z = vectors.T @ z
        self._drift = None if drift is None else vectors.T @ drift

    def score(self, ridge: float) -> float:
        """Minus twice the log evidence over the number of its degrees of freedom."""
        m = len(self._z)
        variances = self._values + m * ridge
        misfit = np.sum(self._z**2 / variances)
        log_determinant = np.sum(np.log(variances))
        if self._drift is not None:
            strength = np.sum(self._drift**2 / variances)
            misfit -= np.sum(self._drift * self._z / variances) ** 2 / strength
            log_determinant += np.log(strength)
            m -= 1
        return float(np.log(misfit / m) + log_determinant / m + 1.0 + np.log(2.0 * np.pi))


@dataclass(frozen=True)
class RidgeSearch:
    """What a search for a ridge has seen.

    Attributes
    ----------
    best
        The ridge chosen.
    score
        Its held-out error, or :meth:`Evidence.score`.
    ridges, scores
        Everything that was tried, in increasing order of the ridge.
    at_edge
        ``"lower"`` or ``"upper"`` where the best lies on an edge of what was searched, else "".
    """

    best: float
    score: float
    ridges: Floats = field(repr=False)
    scores: Floats = field(repr=False)
    at_edge: str = ""


def search_ridge(
    score: Callable[[float], float], bounds: tuple[float, float], name: str = "ridge"
) -> RidgeSearch:
    """The ridge with the least score between two bounds.

    Ridges are tried at four per decade from one bound to the other; the neighbourhood of the best
    is then searched by Brent's method in the logarithm, to a relative precision of 0.1%. A best
    ridge on a bound gives a :class:`~deconditional.FitWarning`.

    Examples
    --------
    >>> found = search_ridge(lambda r: (np.log10(r) + 2.3) ** 2, (1e-6, 1.0))
    >>> round(found.best, 4), found.at_edge, len(found.ridges) > 24
    (0.005, '', True)
    """
    low, high = bounds
    if not (0.0 < low < high < np.inf):
        raise ValueError(
            f"the bounds of {name} must be two positive numbers in increasing order, not {bounds}."
        )
    steps = max(2, int(np.ceil(PER_DECADE * np.log10(high / low))) + 1)
    grid = np.log(np.geomspace(low, high, steps))
    tried: dict[float, float] = {}

    def scored(u: float) -> float:
        tried[float(u)] = score(float(np.exp(u)))
        return tried[float(u)]

    best = int(np.argmin([scored(u) for u in grid]))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, steps - 1)])
    minimize_scalar(scored, bounds=around, method="bounded", options={"xatol": 1e-3})
    logs = np.array(sorted(tried))
    scores = np.array([tried[u] for u in logs])
    chosen = int(np.argmin(scores))
    margin = 2e-3  # as near to a bound as Brent's method comes
    at_edge = ""
    if logs[chosen] <= grid[0] + margin:
        at_edge, meaning = "lower", "less regularisation is better as far as it was tried"
    elif logs[chosen] >= grid[-1] - margin:
        at_edge, meaning = "upper", "the inputs say nothing about the outputs"
    ridges = np.clip(np.exp(logs), low, high)
    best_ridge = float(ridges[chosen])
    if at_edge:
        warnings.warn(
            f"{name} = {best_ridge:.3g} lies on the {at_edge} edge of the ridges searched "
            f"({low:.3g} to {high:.3g}): {meaning}. Give {name} a value, other bounds, or the "
            "kernels other length scales.",
            FitWarning,
            stacklevel=3,
        )
    return RidgeSearch(best_ridge, float(scores[chosen]), ridges, scores, at_edge)


def check_positive(name: str, value: Any, *ways: str) -> float:
    """Raise unless a ridge is a positive finite number."""
    number = np.ndim(value) == 0 and not isinstance(value, bool | str)
    if not number or not (0.0 < float(value) < np.inf):
        others = "".join(f" or {way!r}" for way in ways)
        raise ValueError(f"{name} must be a positive number{others}, not {value!r}.")
    return float(value)


def check_bounds(name: str, value: Any, bounds: tuple[float, float] | None) -> None:
    """Raise where bounds were given for a ridge that is not searched for."""
    if bounds is not None and not isinstance(value, str):
        raise ValueError(
            f"{name}_bounds are for a {name} that is searched for, but {name} is {value!r}."
        )


def factorised(matrix: Floats, name: str) -> Floats:
    """Lower Cholesky factor of a Gram matrix with its ridge."""
    root = np.asarray(stable_cholesky(jnp.asarray(matrix)))
    if not np.isfinite(root).all():
        raise ValueError(
            f"the regularised Gram matrix is singular in double precision; raise {name}."
        )
    return root


class RidgeOperator(FiniteRankOperator):
    """The operator that regresses features on elements of another space, with a ridge."""

    def __init__(
        self,
        targets: Features,  # t, what is regressed
        out_of: Features,  # Ψ of the other space: what it is regressed on, u
        mix: Floats | None,  # with a matrix, u are Ψ times its columns
        shares: Floats,  # π, the weights of the examples, which sum to one
        name: str,  # what the ridge is called
        ridge: float | str,  # or "leave-one-out"
        bounds: tuple[float, float] | None,  # where to search for it
    ):
        self.into = targets
        self.out_of = out_of
        self.shares = shares
        self.search: RidgeSearch | None = None
        self._name = name
        self._mix = mix
        self._gram = out_of.gram if mix is None else mix.T @ out_of.gram @ mix
        if ridge == LEAVE_ONE_OUT:
            self.search = self._held_out(targets.gram).search(name, bounds)
            ridge = self.search.best
        self._ridge = check_positive(name, ridge, LEAVE_ONE_OUT)
        self._root = factorised(self._gram + np.diag(self._ridge / shares), name)

    @property
    def matrix(self) -> Floats:
        """The matrix between the features of the two spaces."""
        return self._times(np.eye(len(self.out_of)))

    def solve(self, b: Floats) -> Floats:
        """The regularised Gram matrix solved for columns."""
        return cho_solve((self._root, True), b)

    def _times(self, b: Floats) -> Floats:
        return self.solve(b if self._mix is None else self._mix.T @ b)

    def _risk(self, operator: FiniteRankOperator | None, ridge: float | None) -> float:
        """What the estimate minimises, for any operator."""
        operator = self if operator is None else operator
        ridge = self._ridge if ridge is None else ridge
        mix = np.eye(len(self.out_of)) if self._mix is None else self._mix
        errors = operator.squared_errors(self.into, Function(self.out_of, mix))
        return float(self.shares @ errors) + ridge * operator.norm**2

    def _left_out(self, ridge: float | None, outputs: Floats) -> Floats:
        """Squared error of every example under the operator of the others."""
        ridge = self._ridge if ridge is None else check_positive(self._name, ridge)
        return self._held_out(outputs).errors(ridge)

    def _held_out(self, outputs: Floats) -> LeaveOneOut:
        if len(self.shares) < 2:
            raise ValueError(
                f"leaving one out needs two bags or more, or two observations; give {self._name} "
                "a value instead."
            )
        return LeaveOneOut(self._gram, outputs, self.shares)
