r"""Condition a posterior so that its area means reproduce the observed coarse values.

With :math:`c(x)` the posterior covariance of f(x) with the means over the observed cells, the
posterior mean given those means is :math:`m(x) + c(x)^\top a` and its variance
:math:`v(x) - c(x)^\top G^{-1} c(x)`, with :math:`G` the covariance of the means themselves. For a
field that is f itself, a solves one linear system. For one that is a function of f, such as its
exponential, the area means of the *field's* mean are a function of a, and Newton's method finds
the a that makes them equal to what was observed.
"""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_array

from deconditional.bags import Bags
from deconditional.errors import FitWarning, UsageError
from deconditional.fields.axes import Floats
from deconditional.fields.part import Part
from deconditional.fields.problem import Problem
from deconditional.fields.recipes import condensed_size
from deconditional.fields.scaling import TargetScaling
from deconditional.fitting.progress import tell
from deconditional.inference.posterior import Gaussians, Posterior, blocks
from deconditional.kernels.linalg import lifted_cholesky

MOST_BYTES = 4e9
TOLERANCE = 1e-9
NEWTON_STEPS = 50


class ConsistentPosterior(Gaussians):
    """A posterior whose area means over some cells are as observed."""

    def __init__(
        self,
        posterior: Posterior,  # at the fine points
        # The observed cells as bags of these points: the directions the field may be moved in.
        cells: Bags,
        shares: csr_array,  # (cells, points): the weights of all points in the area means
        observed: Floats,  # (cells,): what the area means must be, in the target's units
        scaling: TargetScaling,  # from the process to the field
    ):
        size = 4.0 * len(posterior.x) * cells.n_bags * len(posterior.fields)
        if size > MOST_BYTES:
            raise UsageError(
                f"consistency='exact' over {cells.n_bags} cells and {len(posterior.x)} points "
                f"would need {size / 1e9:.0f} GB; predict a part of the grid at a time."
            )
        self._posterior, self._shares = posterior, shares
        self._cross: list[np.ndarray] = []
        self._grams: list[Floats] = []
        means, variances = [], []
        for k, field in enumerate(posterior.fields):
            cross = _cross(field, cells, posterior.x)
            gram = np.asarray(shares @ cross, dtype=float)
            root = _root(gram)
            inverse, parts = np.linalg.inv(root), np.array_split(cross, len(cross) // 8192 + 1)
            explained = np.concatenate([((part @ inverse.T) ** 2).sum(1) for part in parts])
            variance = np.maximum(posterior.component_variances[k] - explained, 0.0)
            mean = posterior.component_means[k]
            move = _move(mean, variance, cross, shares, observed, scaling)
            self._cross.append(cross)
            self._grams.append(gram)
            means.append(mean + cross @ move)
            variances.append(variance)
        super().__init__(np.stack(means), np.stack(variances))

    def sample(self, n: int = 1, seed: int = 0) -> np.ndarray:
        """Joint samples of the process; their cell means are those of the corrected mean."""
        if len(self._posterior.fields) > 1:
            raise UsageError("samples with consistency='exact' need method='map'.")
        draws = self._posterior.sample(n, seed)
        deviation = draws - self._posterior.component_means[0]
        pulls = np.asarray((self._shares @ deviation.T).T)
        # Not the symmetric one: where cells are condensed it would leave a part of the pulls.
        gain = np.linalg.lstsq(self._grams[0], pulls.T, rcond=1e-12)[0]
        return self.component_means[0] + deviation - (self._cross[0] @ gain).T


def consistent(
    posterior: Posterior, part: Part, problem: Problem, seed: int
) -> ConsistentPosterior:
    """A posterior whose area means are as observed, wherever cells cover enough of a unit.

    `posterior` is that of the process at all points of the part that is predicted, `seed` that of
    the points that stand for the observed cells.
    """
    pairing, reader, members = problem.pairing, part.reader, part.memberships
    area = np.bincount(members.unit, members.area, minlength=reader.n_units).astype(float)
    wanted = reader.enough(area, part.masked) & np.isfinite(pairing.target)
    if not wanted.any():
        raise UsageError(
            "consistency='exact' found no observed coarse cell that the predicted cells cover; "
            "leave it out."
        )
    members = members.take(wanted[members.unit] & (members.amount > 0))
    units, cell = np.unique(members.unit, return_inverse=True)
    weights = members.amount / np.bincount(cell, members.amount)[cell]
    observed = Bags(
        points=posterior.x[members.row],
        bag=cell.astype(np.int64),
        weights=weights,
        ids=tuple(units.tolist()),
        mediator=None,
        point=members.row,
    )
    few = observed.condense(condensed_size("bagg-gp", len(units)), seed)
    shares = csr_array((weights, (cell, members.row)), shape=(len(units), len(posterior.x)))
    return ConsistentPosterior(posterior, few, shares, pairing.target[units], problem.target)


def _cross(field: Any, cells: Bags, x: Floats) -> np.ndarray:
    evaluate = field.covariance_with(cells)
    out = np.empty((len(x), cells.n_bags), dtype=np.float32)
    for rows, block in blocks(x):
        out[rows] = np.asarray(evaluate(jnp.asarray(block)))[: rows.stop - rows.start]
        tell("points", rows.stop, len(x))
    return out


def _root(gram: Floats) -> Floats:
    """Cholesky factor of the covariance of cell means, which rounding may leave indefinite."""
    try:
        return lifted_cholesky(0.5 * (gram + gram.T))
    except ValueError:
        raise UsageError(
            "the observed cells are so well determined already that they cannot be made "
            "consistent; leave consistency out."
        ) from None


def _move(
    mean: Floats,
    variance: Floats,
    cross: np.ndarray,
    shares: csr_array,
    observed: Floats,
    scaling: TargetScaling,
) -> Floats:
    """The combination of directions that brings the area means to what was observed."""

    def moved(a: Floats) -> Floats:
        return (mean + cross @ a)[None]

    def gap(a: Floats) -> Floats:
        field, _ = scaling.moments(moved(a), variance[None])
        return observed - shares @ field

    a = np.zeros(cross.shape[1])
    missing = gap(a)
    enough = TOLERANCE * float(np.abs(observed).max())
    for _ in range(NEWTON_STEPS):
        if np.abs(missing).max() <= enough:
            break
        slope = scaling.slope(moved(a), variance[None])
        jacobian = np.asarray((shares * slope[None]) @ cross, dtype=float)
        step = np.linalg.lstsq(jacobian, missing, rcond=1e-12)[0]
        for shorter in range(8):
            tried = a + 0.5**shorter * step
            left = gap(tried)
            if np.abs(left).max() < np.abs(missing).max():
                a, missing = tried, left
                break
        else:
            break
    off = float(np.abs(missing).max())
    if off > 1e3 * enough:
        warnings.warn(
            f"consistency='exact' leaves area means up to {off:.3g} off what was observed, which "
            "is out of this field's reach (a mean on a bound, say); see coarse_residual.",
            FitWarning,
            stacklevel=2,
        )
    return a
