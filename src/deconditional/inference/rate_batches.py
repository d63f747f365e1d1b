r"""Minibatches of observations of a family: the variational posterior, a few bags at a time.

About q(v) = N(m, Σ) an observation with the most probable effect e, the score ℓ' and the
information Λ of its η is a linear one (:mod:`deconditional.inference.newton`), whitened

.. math:: \sqrt{\tilde\Lambda}\,J, \qquad
          \sqrt{\tilde\Lambda}\,(J m + \ell' / \tilde\Lambda) .

Convex steps of the natural parameters towards what these add up to end at the posterior of
:mod:`deconditional.inference.laplace`, :math:`m = J^\top\ell'`. There the sum of the terms

.. math:: \mathrm{E}_q\ell_m - \tfrac12\bigl(e^2 + \log(1 + s^2\Lambda)
          - s^2\tilde\Lambda\,(1 - \tilde\Lambda\,(J\Sigma J^\top)_{mm})\bigr)

less KL(q || p) is its evidence, and anywhere a uniform minibatch, scaled up, estimates that sum
without bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from deconditional.inference.collapsed import Coefficients
from deconditional.inference.laplace import MOST_SPREAD, FamilyProblem
from deconditional.inference.minibatches import Batch, part_of
from deconditional.inference.newton import held, known_part
from deconditional.inference.seen import Nearest, View

ROUNDS = 6
"""Of levels and effects, each of which depends on the other."""


class RateBatch(eqx.Module):
    """What steps of q(v) and the bound need of a batch, about one q(v)."""

    white: Float[Array, "D B"]
    white_z: Float[Array, " B"]
    each: Float[Array, " B"]
    n_observations: int = eqx.field(static=True)

    def terms(self, coefficients: Coefficients) -> Float[Array, " B"]:
        """What every observation adds to the bound, at the q(v) that the batch is about."""
        return self.each

    @property
    def constant(self) -> Array:
        """What does not depend on the batch: nothing."""
        return jnp.zeros(())


def rate_batch(
    problem: FamilyProblem, values: Mapping[str, Any], batch: Batch, q: Coefficients | None
) -> RateBatch:
    """The linear problem of a batch about q(v); about crude rates, if there is none yet."""
    part = restricted_rates(problem, batch)
    basis = part.basis(values)
    view, m = part.views(values, basis).views[0], len(problem.z)
    near = view.seen.nearest
    if q is None:
        known = near.information / (1.0 + view.effect_std**2 * near.information)
        root = jnp.sqrt(known)
        rows = view.jacobian(near.slopes, near.gain)
        return RateBatch((root[:, None] * rows).T, root * near.target, jnp.zeros(len(root)), m)
    view, rows = _about(view, values, q)
    s, level = view.effect_std, view.level
    e, left = _effects(view, q.mean, level)
    view = replace(view, own_spread=jnp.clip(left**2 * level + s**2 * left, 0.0, MOST_SPREAD))
    eta = view.predictor(q.mean, e)[2]
    score, information = view.slopes(eta)
    known = information / (1.0 + s**2 * information)
    cost = e**2 + jnp.log1p(s**2 * information) - s**2 * known * (1.0 - known * level)
    root = jnp.sqrt(jnp.maximum(known, 1e-12))
    return RateBatch(
        (root[:, None] * rows).T,
        root * (rows @ q.mean) + score / root,
        view.log_likelihoods(eta) - 0.5 * cost,
        m,
    )


def _about(view: View, values: Mapping[str, Any], q: Coefficients) -> tuple[View, Array]:
    """The view with expectations under q(v), and J."""
    assert q.precision_root is not None
    explained = known_part(q.precision_root)
    variance = view.points.prior_variance() - view.points.squares(explained)
    view = replace(view, spread=jnp.clip(variance, 0.0, MOST_SPREAD))
    f, r, _ = view.predictor(q.mean, jnp.zeros(len(view.seen.y)))
    slopes = view.at(f, r)[0]
    seen = replace(view.seen, nearest=replace(view.seen.nearest, slopes=held(slopes)))
    view = replace(view, seen=seen, effect_std=seen.effect_std(values, view.points))
    means = view.points.feature_means(slopes)
    unit = jnp.sum(means**2, 1) - jnp.sum((means @ explained) ** 2, 1)
    gain = view.at(f, r)[1]
    for _ in range(ROUNDS):
        view = replace(view, level=jnp.clip(gain**2 * unit, 0.0, MOST_SPREAD))
        gain = view.at(f, r)[1]
    return view, gain[:, None] * means


def _effects(view: View, mean: Array, level: Array) -> tuple[Array, Array]:
    """The most probable effects given q(v), and 1 / (1 + s²Λ)."""
    e, s = jnp.zeros(len(level)), view.effect_std
    own, left = level, jnp.ones(len(level))
    for _ in range(ROUNDS if view.seen.family.overdispersion else 0):
        view = replace(view, own_spread=jnp.clip(own, 0.0, MOST_SPREAD))
        score, information = view.slopes(view.predictor(mean, e)[2])
        left = 1.0 / (1.0 + s**2 * information)
        e = e + left * (s * score - e)
        own = left**2 * level + s**2 * left
    return e, left


def restricted_rates(problem: FamilyProblem, batch: Batch) -> FamilyProblem:
    """The problem with the observations and bags of a batch alone."""
    (seen,), chosen = problem.sources, batch.observations
    layout = part_of(seen.layout, batch)
    near = seen.nearest
    crude = (each[chosen] for each in (near.gain, near.information, near.target))
    part = replace(
        seen,
        layout=layout,
        nearest=Nearest(jnp.ones(len(layout.points)), *crude),
        **{k: getattr(seen, k)[chosen] for k in ("y", "amount", "known", "counted", "shares")},
    )
    return replace(problem, sources=(part,))
