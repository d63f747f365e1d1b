r"""Bag means as two models see them: k from the points, a regression of z from the mediators.

The field gives bag means a covariance, :math:`K = \bar K + \ldots` A Gaussian process regression of
z on its mediator gives them another. Under it a bag mean is :math:`\bar f_j = g(y_j) + \epsilon_j`
with a bag effect of variance s², and an observation is the same of a bag nobody has seen, so that

.. math:: \bar f \sim N(0, T), \quad T = L + s^2 I, \qquad
          z \mid \bar f \sim N(W^\top\bar f, S), \quad W = T^{-1} L_{y\tilde y},

and, having seen z, :math:`\bar f \sim N(\hat f, C)` (:class:`Regression`).

How do the two go together? Their product counts twice what both imply, that bags of like mediators
have like means. Taking :math:`z \mid \bar f` alone, as conditional mean processes do, forgets that
bag effects are no larger than those of the observations. In between lies

.. math:: p_\alpha(f) \propto p(f)\, N(R\bar f; 0, I)^\alpha, \qquad R^\top R = P T_P^{-1} P^\top,

P leaving the trend out. α = 0 are conditional mean processes, α = 1 is the product. The
distribution nearest to p(f) whose bag effects have the size that the regression expects,
:math:`\mathrm{E}\lVert R\bar f\rVert^2 = n^*`, is of this form; its α minimises the convex dual

.. math:: \Phi(\alpha) = \log N(z; W^\top A_\alpha W + S) - \tfrac12\log|I + \alpha M|
          + \tfrac12\alpha n^*, \qquad M = R K R^\top,

with :math:`A_\alpha = K - \alpha K R^\top(I + \alpha M)^{-1} R K`. At that α, Φ is also what the
hyper-parameters of k are learnt by; α needs no gradient (:class:`TiltedProblem`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import null_space

from deconditional.inference.exact import ExactProblem
from deconditional.kernels.linalg import (
    as_matrix,
    lifted_cholesky,
    log_determinant,
    stable_cholesky,
)
from deconditional.kernels.sweeps import bag_gram
from deconditional.observations.kinds import Weighted

__all__ = ["Regression", "TiltedProblem"]

MOST_TILT = 4.0
LEAST_TILT = 1e-4
TILT_TOLERANCE = 1e-5
"""Relative; a step of the search that is smaller was the last."""

MOST_STEPS = 40


class Regression(eqx.Module):
    """Bag means and observations, jointly normal, by a regression of z on its mediator.

    Attributes
    ----------
    covariance : (N, N)
        T, of bag means before z is seen.
    weights : (N, M), noise : (M, M)
        W and S, of z given bag means.
    mean : (N,), uncertainty : (N, N)
        Of bag means given z.
    """

    covariance: Float[Array, "N N"]
    weights: Float[Array, "N M"]
    noise: Float[Array, "M M"]
    mean: Float[Array, " N"]
    uncertainty: Float[Array, "N N"]

    @classmethod
    def of(cls, regressor: Any, mediator: np.ndarray, own_bag: np.ndarray | None) -> Self:
        """From a fitted regression of z on its mediator, at the mediators of the bags.

        An observation of a bag of its own has the mediator and the effect of that bag.
        """
        problem = regressor.fitted_.problem
        values = {name: jnp.asarray(value) for name, value in regressor.parameters_.items()}
        observed_at = np.asarray(regressor.bags_.points)
        if own_bag is not None:
            observed_at = np.where(own_bag[:, None] >= 0, mediator[own_bag], observed_at)
        y = jnp.asarray(np.concatenate([mediator, observed_at]))
        trend = np.asarray(problem.trend.whitened(problem.trend.features(y)))
        prior = np.asarray(problem.kernel.with_values(values).cross_covariance(y, y), dtype=float)
        effect = float(values.get("noise_std", 0.0)) ** 2
        return cls._joint(problem, prior + trend @ trend.T, effect, own_bag)

    @classmethod
    def without_link(cls, regressor: Any, n_bags: int, own_bag: np.ndarray | None) -> Self:
        """Bags and observations have one mean, and nothing else in common.

        Bag effects are all there is beside it, as large as observations have them.
        """
        problem = regressor.fitted_.problem
        z = np.asarray(problem.z)
        level = 0.0 if problem.trend.kind == "none" else float(problem.trend.prior_std[0]) ** 2
        effect = float(np.sum((z - (level > 0) * z.mean()) ** 2)) / max(len(z) - (level > 0), 1)
        effect = max(
            effect - float(np.mean(np.diag(as_matrix(problem.known_noise)))), 1e-6 * effect
        )
        size = n_bags + len(z)
        return cls._joint(problem, np.full((size, size), level), effect, own_bag)

    @classmethod
    def _joint(
        cls, problem: Any, prior: np.ndarray, effect: float, own_bag: np.ndarray | None
    ) -> Self:
        """From the covariance that bags and observations, in this order, have by mediators."""
        z, known = np.asarray(problem.z), np.asarray(as_matrix(problem.known_noise))
        n = len(prior) - len(z)
        same = np.zeros((n, len(z))) if own_bag is None else np.arange(n)[:, None] == own_bag
        shared = np.where(same.any(0), same.T @ same, np.eye(len(z)))
        covariance = prior[:n, :n] + effect * np.eye(n)
        cross = prior[:n, n:] + effect * same
        observed = prior[n:, n:] + effect * shared + known
        root, observed_root = lifted_cholesky(covariance), lifted_cholesky(observed)
        half = np.linalg.solve(root, cross)
        gain = np.linalg.solve(observed_root, cross.T)
        return cls(
            covariance=jnp.asarray(covariance),
            weights=jnp.asarray(np.linalg.solve(root.T, half)),
            noise=jnp.asarray(observed - half.T @ half),
            mean=jnp.asarray(gain.T @ np.linalg.solve(observed_root, z)),
            uncertainty=jnp.asarray(covariance - gain.T @ gain),
        )


class TiltedProblem(ExactProblem):
    """The hyper-parameters of k from a regression's view of bag means.

    Attributes
    ----------
    contrasts : (n, N)
        R.
    size
        n*, the size of bag effects that the regression expects.
    values, value_noise : (N,)
        Bag means as their mediators measure them, and the variances of their noise.
    value_power
        Of their likelihood.
    """

    regression: Regression
    contrasts: Float[Array, "n N"]
    size: Float[Array, ""]
    values: Float[Array, " N"]
    value_noise: Float[Array, " N"]
    value_power: Float[Array, ""]

    @classmethod
    def of(
        cls,
        problem: ExactProblem,
        regression: Regression,
        values: np.ndarray,
        value_noise: np.ndarray,
        value_power: float,
    ) -> Self:
        """A problem of the bags, with a regression in place of its observations."""
        parts = {f.name: getattr(problem, f.name) for f in fields(problem)}
        free = null_space(np.asarray(problem.trend_means).T)
        inner = free.T @ np.asarray(regression.covariance) @ free
        contrasts = np.linalg.solve(lifted_cholesky(inner), free.T)
        moved = contrasts @ np.asarray(regression.mean)
        spread = np.trace(contrasts @ np.asarray(regression.uncertainty) @ contrasts.T)
        return cls(
            **parts,
            regression=regression,
            contrasts=jnp.asarray(contrasts),
            size=jnp.asarray(moved @ moved + spread),
            values=jnp.asarray(values),
            value_noise=jnp.asarray(value_noise),
            value_power=jnp.asarray(value_power),
        )

    def more_data(self) -> tuple[Any, ...]:
        """Data that a checkpoint has to agree with, beside bags, mediators and observations."""
        r = self.regression
        return r.covariance, r.mean, r.noise, self.values, self.value_noise

    def bag_covariance(self, values: Mapping[str, Any], gram: Array) -> Float[Array, "N N"]:
        """K: of bag means by the field, with its trend and noise."""
        trend = self.trend.whitened(self.trend_means)
        own = self.overlap_and_noise(values)
        return gram + trend @ trend.T + own

    def overlap_and_noise(self, values: Mapping[str, Any]) -> Float[Array, "N N"]:
        """What bag means have beside the smooth field."""
        found = values["bag_noise_std"] ** 2 * jnp.eye(self.layout.n_bags)
        if self.overlap is not None:
            found = found + values["fine_noise_std"] ** 2 * as_matrix(self.overlap)
        return found

    def evaluate(self, vector: Float[Array, " size"]) -> tuple[Float[Array, ""], Any]:
        """Φ at its least, plus the likelihood of the measurements to its power, plus log prior."""
        values = self.parameters.unpack(vector)
        gram = bag_gram(self.kernel.with_values(values), self.layout, dtype=self.dtype)
        covariance = self.bag_covariance(values, gram)
        tilt = jax.lax.stop_gradient(self.tilt(jax.lax.stop_gradient(covariance)))
        found = self.dual(tilt, covariance) + self.parameters.log_prior(vector)
        measured = log_normal(self.values, covariance + jnp.diag(self.value_noise))
        found = found + self.value_power * measured
        if self.spread is not None:
            found = found + self.spread.log_density(gram)
        pieces = self.pieces(values, gram)
        return found, (pieces, self.field(values, pieces))

    def dual(self, tilt: Array, covariance: Float[Array, "N N"]) -> Float[Array, ""]:
        """Φ(α)."""
        w = self.regression.weights
        seen = self.contrasts @ covariance
        root = stable_cholesky(jnp.eye(len(self.contrasts)) + tilt * seen @ self.contrasts.T)
        half = jsl.solve_triangular(root, seen @ w, lower=True)
        observed = w.T @ covariance @ w + self.regression.noise - tilt * half.T @ half
        return log_normal(self.z, observed) - 0.5 * log_determinant(root) + 0.5 * tilt * self.size

    def tilt(self, covariance: Float[Array, "N N"]) -> Float[Array, ""]:
        """α, from 0 to 4, where Φ is least: its derivative is zero, or has one sign."""
        w = self.regression.weights
        seen = self.contrasts @ covariance
        eigenvalues, vectors = jnp.linalg.eigh(seen @ self.contrasts.T)
        eigenvalues = jnp.maximum(eigenvalues, 0.0)
        mediated = vectors.T @ seen @ w
        untilted = w.T @ covariance @ w + self.regression.noise

        def slope(tilt: Array) -> Array:
            shrink = 1.0 / (1.0 + tilt * eigenvalues)
            root = stable_cholesky(untilted - (mediated.T * (tilt * shrink)) @ mediated)
            half = jsl.solve_triangular(root, mediated.T, lower=True)
            pull = half.T @ jsl.solve_triangular(root, self.z, lower=True)
            change = jnp.sum(half**2, 0) - pull**2
            return 0.5 * (jnp.sum(change * shrink**2 - eigenvalues * shrink) + self.size)

        least = LEAST_TILT * jnp.minimum(1.0, 1.0 / jnp.max(eigenvalues))
        ends = jnp.stack([least, jnp.asarray(MOST_TILT)])
        at_zero, at_least, at_most = jax.lax.map(slope, jnp.concatenate([jnp.zeros(1), ends]))
        between = jnp.exp(_root(lambda log: slope(jnp.exp(log)), jnp.log(ends), at_least, at_most))
        found = jnp.where(at_most <= 0, MOST_TILT, jnp.where(at_least >= 0, least, between))
        return jnp.where(at_zero < 0, found, 0.0)

    # ------------------------------------------------------------------ posteriors

    @eqx.filter_jit
    def tilt_at(self, vector: Float[Array, " size"]) -> Float[Array, ""]:
        """α at given hyper-parameters."""
        values = self.parameters.unpack(vector)
        gram = bag_gram(self.kernel.with_values(values), self.layout, dtype=self.dtype)
        return self.tilt(self.bag_covariance(values, gram))

    def tilted(self, vector: Float[Array, " size"]) -> ExactProblem:
        """Observations that make the posterior that of f under p_α."""
        values = self.parameters.unpack(vector)
        r, n, m = self.regression, len(self.contrasts), len(self.z)
        weights = [r.weights, jnp.sqrt(self.tilt_at(vector)) * self.contrasts.T]
        noise = jnp.eye(n + m).at[:m, :m].set(r.noise)
        z = jnp.concatenate([self.z, jnp.zeros(n)])
        return self._observing(values, jnp.concatenate(weights, axis=1), noise, z)

    def conditional(self, vector: Float[Array, " size"]) -> ExactProblem:
        """Observations of the regression without a tilt: a conditional mean process."""
        values = self.parameters.unpack(vector)
        return self._observing(values, self.regression.weights, self.regression.noise, self.z)

    def _observing(
        self, values: Mapping[str, Any], weights: Array, noise: Array, z: Array
    ) -> ExactProblem:
        noise = noise + values["bag_noise_std"] ** 2 * weights.T @ weights
        parts = {f.name: getattr(self, f.name) for f in fields(ExactProblem)}
        parts.update(z=z, known_noise=0.5 * (noise + noise.T), mediation=Weighted(weights))
        return ExactProblem(**parts)


_Search = tuple[Array, Array, Array, Array, Array, Array]


def _root(
    function: Callable[[Array], Array], ends: Float[Array, " 2"], at_low: Array, at_high: Array
) -> Float[Array, ""]:
    """Where a function is zero, given its values of two signs at both ends.

    Secants, with the Illinois rule: an end that stays gets half its value, or it would stay.
    """

    def goes_on(state: _Search) -> Array:
        *_, moved, steps = state
        return (moved > TILT_TOLERANCE) & (steps < MOST_STEPS)

    def step(state: _Search) -> _Search:
        kept, at_kept, last, at_last, _, steps = state
        new = last - at_last * (last - kept) / (at_last - at_kept)
        at_new = function(new)
        crossed = at_new * at_last < 0
        kept, at_kept = jnp.where(crossed, last, kept), jnp.where(crossed, at_last, 0.5 * at_kept)
        return kept, at_kept, new, at_new, jnp.abs(new - last), steps + 1

    start = (ends[0], at_low, ends[1], at_high, jnp.asarray(jnp.inf), jnp.asarray(0))
    return jax.lax.while_loop(goes_on, step, start)[2]


def log_normal(x: Float[Array, " n"], covariance: Float[Array, "n n"]) -> Float[Array, ""]:
    """Log density at x of a normal distribution about zero."""
    root = stable_cholesky(covariance)
    white = jsl.solve_triangular(root, x, lower=True)
    return -0.5 * (white @ white + log_determinant(root) + len(x) * jnp.log(2.0 * jnp.pi))
