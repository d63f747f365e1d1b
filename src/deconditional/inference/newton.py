r"""The mode of a log posterior by Gauss and Newton's method, and its gradients by the mode.

The unknowns are :math:`u = (v, e)`, both standard normal: coefficients of the field, and effects
that observations have of their own. Observation m sees :math:`\eta_m(v) + s_m e_m`. With the
Jacobian J of η and Fisher's information Λ of η, a step solves

.. math:: (I + J^\top\tilde\Lambda J)\,\Delta v = J^\top \ell' - v - J^\top\Lambda s\,h, \qquad
          \tilde\Lambda = \Lambda / (1 + s^2\Lambda), \quad h = (s\ell' - e) / (1 + s^2\Lambda),

since effects can be eliminated one by one. The matrix is a precision whatever v, so every step goes
up; it is halved until the log posterior does too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from deconditional.inference.basis_field import Coefficients
from deconditional.kernels.linalg import escalating_cholesky, log_determinant, whiten

MOST_STEPS = 60
MOST_PRODUCTS = 40
LEAST_STEP = 2.0**-25

SMALL = 1e-10
"""Nats that a step still promises where the search ends."""

RISE = 1e-4
"""Share of the promised rise that a step has to keep."""

LEAST_JITTER = 1e-15
"""Of a matrix whose eigenvalues are one or more."""


class Unknowns(NamedTuple):
    """Coefficients v, and effects e of single observations (none where there are none)."""

    v: Float[Array, " D"]
    e: Float[Array, " M"]


class Expansion(NamedTuple):
    """A log likelihood about one place: its value, J, ℓ', Fisher's information Λ by η, and s."""

    log_likelihood: Float[Array, ""]
    jacobian: Float[Array, "M D"]
    score: Float[Array, " M"]
    information: Float[Array, " M"]
    effect_std: Float[Array, " M"]

    def gradient(self, at: Unknowns) -> Unknowns:
        """Gradient of the log posterior."""
        slope = self.effect_std * self.score - at.e if at.e.size else at.e
        return Unknowns(self.score @ self.jacobian - at.v, slope)

    def curvature(self) -> Curvature:
        """What v is known by once effects are integrated out."""
        damped = self.information / (1.0 + self.effect_std**2 * self.information)
        return Curvature.of(jnp.sqrt(damped)[:, None] * self.jacobian)

    def solve(self, curvature: Curvature, right: Unknowns) -> Unknowns:
        """The Gauss-Newton step for a gradient."""
        if not right.e.size:
            return Unknowns(curvature.solve(right.v), right.e)
        own = 1.0 + self.effect_std**2 * self.information
        cross = self.effect_std * self.information
        v = curvature.solve(right.v - (cross * right.e / own) @ self.jacobian)
        return Unknowns(v, (right.e - cross * (self.jacobian @ v)) / own)

    def spread_of_links(self, explained: Float[Array, "D k"]) -> Float[Array, " M"]:
        """Variance of every η, its effect included, where v has the covariance I - EEᵀ."""
        level = jnp.sum(self.jacobian**2, 1) - jnp.sum((self.jacobian @ explained) ** 2, 1)
        left = 1.0 / (1.0 + self.effect_std**2 * self.information)
        return left**2 * level + self.effect_std**2 * left

    def log_volume(self, curvature: Curvature, has_effects: bool) -> Float[Array, ""]:
        """Log determinant of the whole precision."""
        own = jnp.log1p(self.effect_std**2 * self.information)
        return curvature.log_determinant() + (jnp.sum(own) if has_effects else 0.0)


class Curvature(eqx.Module):
    r"""The precision :math:`I + A^\top A`, factorised on the smaller side."""

    a: Float[Array, "M D"]
    root: Float[Array, "k k"]

    @classmethod
    def of(cls, a: Float[Array, "M D"]) -> Curvature:
        """The precision that rows of data lead to."""
        gram = a @ a.T if a.shape[0] <= a.shape[1] else a.T @ a
        root, _ = escalating_cholesky(jnp.eye(len(gram)) + gram, LEAST_JITTER)
        return cls(a, root)

    @property
    def is_of_rows(self) -> bool:
        """Whether there are fewer rows than coefficients."""
        return self.a.shape[0] <= self.a.shape[1]

    def solve(self, right: Float[Array, " D"]) -> Float[Array, " D"]:
        """Covariance times a vector."""
        if self.is_of_rows:
            return right - cho_solve((self.root, True), self.a @ right) @ self.a
        return cho_solve((self.root, True), right)

    def log_determinant(self) -> Float[Array, ""]:
        """Log determinant of the precision."""
        return log_determinant(self.root)

    def explained(self) -> Float[Array, "D k"]:
        r"""E, with the covariance :math:`I - EE^\top`."""
        if self.is_of_rows:
            return whiten(self.root, self.a).T
        return known_part(self.root)

    def coefficients(self, mean: Float[Array, " D"], skipped: int) -> Coefficients:
        """The normal distribution of all coefficients but the first few."""
        if self.is_of_rows:
            return Coefficients(mean[skipped:], self.explained()[skipped:], None)
        return Coefficients(mean[skipped:], None, self.root[skipped:, skipped:])


def known_part(root: Float[Array, "D D"]) -> Float[Array, "D D"]:
    r"""E, with the covariance :math:`I - EE^\top`, from the root of a precision above I."""
    inverse = whiten(root, jnp.eye(len(root)))
    return escalating_cholesky(jnp.eye(len(root)) - inverse.T @ inverse, 1e-12)[0]


class Climb(NamedTuple):
    """Where a search for the mode is: the unknowns, and the log posterior there.

    The last step promised so many nats, next to nothing at a mode. There were so many `steps`;
    `stuck` says that none went up any more.
    """

    at: Unknowns
    value: Array
    promise: Array
    steps: Array
    stuck: Array


def climb(likelihood: Any, start: Unknowns) -> Climb:
    """The mode from a start on, or from zero if the log posterior is higher there.

    A likelihood can `expand` about unknowns and has their `log_posterior`.
    """
    expand, value_of = likelihood.expand, likelihood.log_posterior
    ends = jax.tree.map(lambda each: jnp.stack([each, jnp.zeros_like(each)]), start)
    first, other = lax.map(value_of, ends)  # one compilation for both
    better = first >= jnp.where(jnp.isfinite(other), other, -jnp.inf)
    begin = jax.tree.map(lambda each: jnp.where(better, each[0], each[1]), ends)

    def step(state: Climb) -> Climb:
        expansion = expand(state.at)
        gradient = expansion.gradient(state.at)
        move = expansion.solve(expansion.curvature(), gradient)
        promise = gradient.v @ move.v + gradient.e @ move.e

        def at(size: Array) -> Unknowns:
            return Unknowns(state.at.v + size * move.v, state.at.e + size * move.e)

        def fails(trial: tuple[Array, Array]) -> Array:
            size, value = trial
            rises = value >= state.value + RISE * size * promise - SMALL
            return ~rises & (size > LEAST_STEP)

        def halve(trial: tuple[Array, Array]) -> tuple[Array, Array]:
            size = 0.5 * trial[0]
            return size, value_of(at(size))

        size, value = lax.while_loop(fails, halve, (jnp.array(2.0), jnp.array(-jnp.inf)))
        stuck = size <= LEAST_STEP
        there = jax.tree.map(lambda a, b: jnp.where(stuck, a, b), state.at, at(size))
        value = jnp.where(stuck, state.value, value)
        return Climb(there, value, promise, state.steps + 1, stuck)

    def goes_on(state: Climb) -> Array:
        return (state.promise > SMALL) & (state.steps < MOST_STEPS) & ~state.stuck

    value = jnp.where(better, first, other)
    state = Climb(begin, value, jnp.array(jnp.inf), jnp.zeros((), int), jnp.array(False))
    return lax.while_loop(goes_on, step, state)


@eqx.filter_custom_vjp
def follow(likelihood: Any, found: Unknowns) -> Unknowns:
    """The mode as a function of everything that the likelihood is made of.

    Its value is that of one exact step of Newton's from `found`. Its gradient is that of the
    implicit function theorem: where the gradient moves by dg, the mode moves by :math:`-H^{-1}dg`
    with the exact Hessian H of the log posterior, so a cotangent c becomes that of g along
    :math:`-H^{-1}c`.
    """
    gradient = jax.grad(likelihood.log_posterior)(found)
    return jax.tree.map(jnp.add, found, _newton(likelihood, found, gradient))


@follow.def_fwd
def _follow_forward(perturbed: Any, likelihood: Any, found: Unknowns) -> tuple[Unknowns, Unknowns]:
    at = follow(likelihood, found)
    return at, at


@follow.def_bwd
def _follow_backward(
    at: Unknowns, cotangent: Any, perturbed: Any, likelihood: Any, found: Unknowns
) -> Any:
    pairs = zip(at, cotangent, strict=True)  # None of what nothing hangs on
    right = [jnp.zeros_like(u) if by is None else by for u, by in pairs]
    along = _newton(likelihood, at, Unknowns(*right))
    return eqx.filter_grad(lambda moved: jax.jvp(moved.log_posterior, (at,), (along,))[1])(
        likelihood
    )


def _newton(likelihood: Any, at: Unknowns, right: Unknowns) -> Unknowns:
    """The step of Newton's method for a gradient.

    Products of H with vectors cost a pass over the points; the Gauss-Newton matrix is the
    preconditioner.
    """
    expansion = likelihood.expand(at)
    curvature = expansion.curvature()
    _, along = jax.linearize(jax.grad(likelihood.log_posterior), at)

    def apart(flat: Array) -> Unknowns:
        return Unknowns(flat[: len(at.v)], flat[len(at.v) :])

    return apart(
        _solved(
            lambda flat: -jnp.concatenate(along(apart(flat))),
            jnp.concatenate(right),
            lambda flat: jnp.concatenate(expansion.solve(curvature, apart(flat))),
        )
    )


def _solved(
    product: Callable[[Array], Array], right: Array, nearly: Callable[[Array], Array]
) -> Array:
    """A linear system solved by conjugate gradients from zero, with a solver that is nearly right.

    JAX's own compiles the product twice, and it is most of what an evaluation compiles.
    """
    rest = nearly(right)
    size = right @ rest
    least = jnp.maximum(1e-14 * size, 1e-18)

    def step(state: Any) -> Any:
        found, left, along, before, number = state
        image = product(along)
        far = before / (along @ image)
        found, left = found + far * along, left - far * image
        rest = nearly(left)
        now = left @ rest
        return found, left, rest + (now / before) * along, now, number + 1

    def goes_on(state: Any) -> Array:
        return (state[3] > least) & (state[4] < MOST_PRODUCTS)

    start = (jnp.zeros_like(right), right, rest, size, jnp.zeros((), int))
    return lax.while_loop(goes_on, step, start)[0]


def held(tree: Any) -> Any:
    """A tree of arrays as constants, through which no gradient goes."""
    return jax.tree.map(lambda x: lax.stop_gradient(x) if eqx.is_array(x) else x, tree)
