r"""Minibatches of coarse observations, all of one shape, and what observations of families say.

Matched observations with independent noises see their own bag and no other: their minibatch brings
the chunks of those bags along, and the problem shrinks to them.

*Families.* About q(v) = N(m, Σ) an observation with the most probable effect e, the score ℓ' and
the information Λ of its η is a linear one (:mod:`deconditional.inference.newton`), whitened

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

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from deconditional.inference.basis_field import Coefficients
from deconditional.inference.laplace import MOST_SPREAD, FamilyProblem
from deconditional.inference.newton import held, known_part
from deconditional.inference.seen import Nearest, View
from deconditional.inference.variational import AllPairs, SampledPairs, VariationalProblem
from deconditional.kernels.layout import Layout

ROUNDS = 6
"""Of levels and effects, each of which depends on the other."""


class Members(eqx.Module):
    """Rows of a table of chunks (or pairs of chunks), and the place in the batch of their bags.

    Rows whose place lies beyond the batch fill up the shape.
    """

    rows: Array
    place: Array


class Batch(eqx.Module):
    """Minibatch of observations and, where that is all they see, the chunks of their bags."""

    observations: Array
    chunks: Members | None = None
    pairs: Members | None = None


class Batches:
    """Draws minibatches, all of one shape."""

    def __init__(self, problem: VariationalProblem, size: int, seed: int = 0):
        self.n_observations = len(problem.z)
        self.size = min(size, self.n_observations)
        self._rng = np.random.default_rng(seed)
        self._local = problem.is_local
        if not self._local:
            return
        layout = problem.layout
        used = np.asarray(jnp.any(layout.weights.reshape(-1, layout.chunk) > 0, 1))
        self._chunks = _Table(np.asarray(layout.bag), used, layout.n_bags, self.size)
        self._pairs = None
        residual = getattr(problem, "residual", None)
        if isinstance(residual, AllPairs) and residual.pairs is not None:
            bag = np.asarray(residual.pairs.bag)
            self._pairs = _Table(bag, np.ones(len(bag), bool), layout.n_bags, self.size)

    def draw(self) -> Batch:
        """A uniform minibatch without replacement."""
        return self._batch(
            self._rng.choice(self.n_observations, self.size, replace=False, shuffle=False)
        )

    def epoch(self) -> Iterator[tuple[Batch, int]]:
        """All observations once; the last batch is filled up with others, which do not count."""
        order = self._rng.permutation(self.n_observations)
        for start in range(0, len(order), self.size):
            chosen = order[start : start + self.size]
            filled = np.concatenate([chosen, order[: self.size - len(chosen)]])
            yield self._batch(filled), len(chosen)

    def _batch(self, observations: np.ndarray) -> Batch:
        if not self._local:
            return Batch(jnp.asarray(observations))
        pairs = None if self._pairs is None else self._pairs.of(observations)
        return Batch(jnp.asarray(observations), self._chunks.of(observations), pairs)


class _Table:
    """Finds the chunks, or pairs of chunks, of any set of `size` bags, in one shape."""

    def __init__(self, bag: np.ndarray, used: np.ndarray, n_bags: int, size: int):
        rows = np.flatnonzero(used)
        rows = rows[np.argsort(bag[rows], kind="stable")]
        self._rows = rows
        self._counts = np.bincount(bag[rows], minlength=n_bags)
        self._starts = np.concatenate([[0], np.cumsum(self._counts)[:-1]])
        self._most = int(np.sort(self._counts)[::-1][:size].sum())

    def of(self, bags: np.ndarray) -> Members:
        """The rows of a set of bags, each with the place of its bag in the set."""
        counts = self._counts[bags]
        place = np.repeat(np.arange(len(bags)), counts)
        inside = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = self._rows[self._starts[bags][place] + inside]
        missing = self._most - len(rows)
        rows = np.concatenate([rows, np.zeros(missing, rows.dtype)])
        place = np.concatenate([place, np.full(missing, len(bags))])
        return Members(jnp.asarray(rows), jnp.asarray(place))


def part_of(layout: Layout, batch: Batch) -> Layout:
    """The bags of a batch."""
    assert batch.chunks is not None
    size = batch.observations.shape[0]
    points = layout.points.reshape(-1, layout.chunk, layout.points.shape[1])
    rows, place = batch.chunks.rows, batch.chunks.place
    inside = place < size
    weights = layout.weights.reshape(-1, layout.chunk)[rows]
    weights = jnp.where(inside[:, None], weights, 0.0)
    padding = (-(len(rows) * layout.chunk) % layout.block) // layout.chunk
    bag = jnp.pad(jnp.where(inside, place, 0), (0, padding))
    return replace(
        layout,
        points=points[jnp.pad(rows, (0, padding))].reshape(-1, points.shape[2]),
        weights=jnp.pad(weights, ((0, padding), (0, 0))).ravel(),
        bag=bag.astype(jnp.int32),
        n_bags=size,
        one_chunk_per_bag=False,
    )


def restricted(problem: VariationalProblem, batch: Batch) -> VariationalProblem:
    """The problem with the observations and bags of a batch alone."""
    size = batch.observations.shape[0]
    residual = problem.residual
    if isinstance(residual, SampledPairs):
        residual = replace(residual, sampler=residual.sampler.select(batch.observations))
    elif isinstance(residual, AllPairs) and residual.pairs is not None:
        assert batch.pairs is not None
        every, chosen = residual.pairs, batch.pairs.rows
        pairs = replace(
            every,
            rows=replace(every.rows, n_bags=size),
            cols=replace(every.cols, n_bags=size),
            first=every.first[chosen],
            second=every.second[chosen],
            bag=batch.pairs.place,
            count=every.count[chosen],
        )
        residual = AllPairs(pairs)
    return replace(
        problem,
        layout=part_of(problem.layout, batch),
        z=problem.z[batch.observations],
        known_noise=problem.known_noise[batch.observations],
        overlap=None if problem.overlap is None else problem.overlap[batch.observations],
        trend_means=problem.trend_means[batch.observations],
        residual=residual,
    )


# --------------------------------------------------------------------------- families


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
