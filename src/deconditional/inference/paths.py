r"""Draws of the prior for Matheron's rule, accurate where the posterior is narrow.

A path of the posterior is a draw of the prior from cosines and sines of random frequencies, less
what its own bag means say about it: every frequency :math:`\omega` leaves

.. math:: e_\omega(x) = e^{i\omega\cdot x} - t(x)^\top P^\top e^{i\omega\cdot x_{1 \dots n}},

and the variance of the paths is the mean of :math:`|e_\omega(x)|^2` over the spectral measure p,
times the prior's, plus parts without frequencies. Where observations determine the field to a
small share v of its prior variance, :math:`|e_\omega|^2` is near zero for all but a share v of the
frequencies, and near one for those. Of F draws from p only about vF then matter; with vF below
one, paths are far too narrow or, once in a while, far too wide.

Frequencies are therefore drawn by importance, half of them in proportion to
:math:`p(\omega)\,\langle|e_\omega|^2 / v\rangle`, the mean being over reference points in and
between the bags, and half in proportion to p, for places that no bag tells about. The error of
variances is then about one over the root of the number of frequencies, however small v is.

1. *Pilot.* Few candidates, from p and from p stretched by several factors, so that high
   frequencies occur. Their :math:`|e_\omega|^2` say which stretches are useful, and how the
   candidates should be shared out to the terms of a sum (one step of population Monte Carlo).
2. *Pool.* Many candidates from that mixture, weighted by the ratio of densities.
3. *Choice.* As many as are wanted, by systematic sampling with unequal probabilities: a candidate
   that deserves more than one place is taken once, with its whole weight.
4. *Check.* At other reference points, the variance of paths against that of the posterior. Where
   they disagree by more than :data:`TOLERANCE`, twice as many, up to :data:`MOST_FEATURES`.

Everything depends on the key alone, not on where the paths will be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from gpjax.kernels.base import AbstractKernel
from jaxtyping import Array, Float

from deconditional.inference.waves import GROUP, Waves, feature_means
from deconditional.kernels.layout import Layout
from deconditional.kernels.radial import RadialTerm, radial_terms, wave_features

FEATURES = 2000
"""Cosines and sines to begin with."""

MOST_FEATURES = 16_000
"""Cosines and sines beyond which accuracy is given up."""

TOLERANCE = 0.1
"""Root mean square of the relative error of variances that is good enough."""

DEFENCE = 0.5
"""Share of the frequencies that is drawn from the spectral measure itself."""

STRETCHES = (1.0, 1.4, 2.0, 2.8, 4.0, 8.0, 16.0, 32.0)
"""Factors by which candidates are stretched."""

LEAST_SHARE = 0.02
"""Least share of the pool that every stretch and every term has."""

PILOT = 2048
POOL = 8
"""Candidates of the pilot, and of the pool for each frequency wanted."""

REFERENCES = 128
"""Reference points, for the choice and as many for the check."""

LEAST_VARIANCE = 1e-10
"""Share of the prior variance below which rounding decides."""

AT_ONCE = 1024
"""Candidates at a time."""


class References(eqx.Module):
    """Bag means that paths are corrected by, and reference points at which that is looked at."""

    layout: Layout  # the bags
    # x, shares: reference points, and the share of every bag mean in the correction there: t(x).
    x: Float[Array, "m d"]
    shares: Float[Array, "m N"]
    # variance, residual: posterior variance there, and the part of it that prior draws account for.
    variance: Float[Array, " m"]
    residual: Float[Array, " m"]

    def rows(self, rows: slice) -> References:
        """What is conditioned on, at a part of the reference points."""
        return References(
            self.layout, self.x[rows], self.shares[rows], self.variance[rows], self.residual[rows]
        )


@eqx.filter_jit
def _left(
    kernel: AbstractKernel, term: int, omegas: Sequence[Array], weights: Array, seen: References
) -> tuple[Array, Array]:
    r"""Means of :math:`|e_\omega(x)|^2 / v` over reference points, and weighted sums at each."""
    radial = radial_terms(kernel)[term]

    def features(x: Array) -> Array:
        return wave_features(radial, omegas, x, len(weights), None)

    left = features(seen.x) - seen.shares @ feature_means(features, seen.layout)
    squares = left[:, : len(weights)] ** 2 + left[:, len(weights) :] ** 2
    return jnp.mean(squares / seen.variance[:, None], axis=0), squares @ weights


def near(points: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    """Points, each moved up to half of the way towards one of its neighbours."""
    spread = points.std(0)
    scaled = points / np.where(spread > 0, spread, 1.0)
    chosen = rng.integers(len(points), size=number)
    others = rng.integers(len(points), size=(number, 8))
    distances = ((scaled[others] - scaled[chosen, None]) ** 2).sum(2)
    # A point that coincides with the chosen one is no neighbour.
    distances = np.where(distances > 0, distances, np.inf)
    neighbour = others[np.arange(number), distances.argmin(1)]
    share = rng.uniform(0.0, 0.5, size=(number, 1))
    return points[chosen] + share * (points[neighbour] - points[chosen])


@dataclass
class Candidates:
    """Candidate frequencies of one term."""

    frequencies: list[np.ndarray]  # by factor, (n, inputs of the factor)
    # (n,), their shares of the prior variance: the spectral density over that of the draws.
    weights: np.ndarray
    # By factor, (stretches, n): of the draws, each relative to the spectral density.
    densities: list[np.ndarray]

    @classmethod
    def drawn(
        cls, term: RadialTerm, d: int, number: int, mixtures: Sequence[np.ndarray], key: Any
    ) -> Candidates:
        """Candidates whose factors are stretched by draws from a mixture; ordered by length."""
        frequencies, densities = [], []
        log_ratio = np.zeros(number)
        rng = np.random.default_rng(np.asarray(jr.key_data(jr.fold_in(key, len(term.factors)))))
        for index, (factor, mixture) in enumerate(zip(term.factors, mixtures, strict=True)):
            size = jax.eval_shape(factor.scaled, jax.ShapeDtypeStruct((1, d), float)).shape[1]
            # Few different numbers, so that few are compiled for.
            drawn = 1 << max(8, (number - 1).bit_length())
            plain = factor.profile.frequencies(jr.fold_in(key, index), drawn, size, factor.shape)
            counts = _shared_out(number, mixture)
            stretch = rng.permutation(np.repeat(STRETCHES[: len(mixture)], counts))
            omega = np.asarray(plain)[:number] * stretch[:, None]
            each = _relative_densities(factor, omega, len(mixture))
            log_ratio -= np.log((counts / number) @ each)
            frequencies.append(omega)
            densities.append(each)
        length = sum((omega**2).sum(1) for omega in frequencies) + np.zeros(number)
        order = np.argsort(length, kind="stable")
        weights = float(term.variance) / number * np.exp(log_ratio)
        return cls(
            [omega[order] for omega in frequencies],
            weights[order],
            [each[:, order] for each in densities],
        )

    def mixtures(self, scores: np.ndarray, before: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Mixtures of stretches that would draw candidates in proportion to their scores."""
        after = []
        for each, mixture in zip(self.densities, before, strict=True):
            share = mixture[:, None] * each
            share = share / share.sum(0)
            total = max(float(scores.sum()), 1e-300)
            after.append(_at_least(share @ scores / total, LEAST_SHARE))
        return after


def _relative_densities(factor: Any, omega: np.ndarray, stretches: int) -> np.ndarray:
    """Density of p stretched by every factor, over that of p, at every frequency."""
    if stretches == 1:
        return np.ones((1, len(omega)))
    size = omega.shape[1]
    squared = (omega**2).sum(1)
    log_spectrum = factor.profile.log_spectrum
    plain = log_spectrum(squared, size)
    stretched = [log_spectrum(squared / s**2, size) - size * np.log(s) - plain for s in STRETCHES]
    return np.exp(np.minimum(stretched, 600.0))


def _at_least(shares: np.ndarray, least: float) -> np.ndarray:
    shares = np.maximum(shares, min(least, 0.5 / len(shares)))
    return shares / shares.sum()


def _shared_out(number: int, shares: np.ndarray) -> np.ndarray:
    """Whole numbers in proportion to shares that sum to one."""
    edges = np.round(np.cumsum(shares) * number).astype(int)
    edges[-1] = number
    return np.diff(edges, prepend=0)


def _energies(
    kernel: AbstractKernel, term: int, candidates: Candidates, weights: np.ndarray, seen: References
) -> tuple[np.ndarray, np.ndarray]:
    """Energies of every candidate and every reference point, a few candidates at a time."""
    energies, sums = [], np.zeros(len(seen.x))
    for start in range(0, len(weights), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        missing = AT_ONCE - len(weights[rows])
        omegas = [jnp.asarray(_padded(o[rows], missing)) for o in candidates.frequencies]
        padded = jnp.asarray(_padded(weights[rows], missing))
        of_each, of_points = _left(kernel, term, omegas, padded, seen)
        energies.append(np.asarray(of_each)[: AT_ONCE - missing])
        sums += np.asarray(of_points)
    return np.concatenate(energies), sums


def _padded(array: np.ndarray, missing: int) -> np.ndarray:
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]))])


# --------------------------------------------------------------------------- the choice


def chosen_waves(
    kernel: AbstractKernel,
    d: int,  # inputs of the kernel
    look: Callable[[Array], References],  # what is conditioned on, with reference points
    points: np.ndarray,  # of the bags, near which paths are to be right
    n_features: int | None,  # cosines and sines; as many as it takes if None
    key: Any,  # the same key gives the same frequencies
    dtype: Any = None,  # in which the paths are evaluated
) -> tuple[Waves, float]:
    """Frequencies for paths that are corrected at bag means, and their error.

    That is the root mean square of the relative error of variances at reference points.
    """
    terms = radial_terms(kernel)
    rng = np.random.default_rng(np.asarray(jr.key_data(key)))
    seen = look(jnp.asarray(near(points, 2 * REFERENCES, rng)))
    chooser = _Chooser(kernel, terms, d, seen.rows(slice(REFERENCES)), key)
    wanted = FEATURES if n_features is None else n_features
    while True:
        pairs = max(1, wanted // 2)
        waves, error = chooser.choose(pairs, seen.rows(slice(REFERENCES, None)), rng, dtype)
        if n_features is not None or error <= TOLERANCE or wanted >= MOST_FEATURES:
            return waves, error
        wanted *= 2


class _Chooser:
    """Candidates and their scores."""

    def __init__(
        self, kernel: AbstractKernel, terms: list[RadialTerm], d: int, seen: References, key: Any
    ):
        self.kernel, self.terms, self.d, self.seen, self.key = kernel, terms, d, seen, key
        self.rounds = 0
        even = np.full(len(terms), 1.0 / len(terms))
        self.mixtures = [
            [np.full(n, 1.0 / n) for n in map(_n_stretches, term.factors)] for term in terms
        ]
        pilot, scores = self._scored(PILOT, even)
        total = np.array([each.sum() for each in scores])
        self.shares = _at_least(total / total.sum(), LEAST_SHARE)
        self.mixtures = [
            candidates.mixtures(score, mixture)
            for candidates, score, mixture in zip(pilot, scores, self.mixtures, strict=True)
        ]

    def _scored(self, number: int, shares: np.ndarray) -> tuple[list[Candidates], list[np.ndarray]]:
        """Candidates of every term, and what each deserves."""
        keys = jr.split(jr.fold_in(self.key, self.rounds), len(self.terms))
        self.rounds += 1
        counts = np.maximum(_shared_out(number, shares), 1)
        pool = [
            Candidates.drawn(term, self.d, int(count) if term.factors else 1, mixture, each)
            for term, count, mixture, each in zip(
                self.terms, counts, self.mixtures, keys, strict=True
            )
        ]
        energies = [
            each.weights * _energies(self.kernel, t, each, each.weights, self.seen)[0]
            for t, each in enumerate(pool)
        ]
        energy = max(sum(e.sum() for e in energies), 1e-300)
        weight = max(sum(each.weights.sum() for each in pool), 1e-300)
        scores = [
            (1.0 - DEFENCE) * e / energy + DEFENCE * each.weights / weight
            for e, each in zip(energies, pool, strict=True)
        ]
        return pool, scores

    def choose(
        self, pairs: int, others: References, rng: np.random.Generator, dtype: Any
    ) -> tuple[Waves, float]:
        """Chosen frequencies, `pairs` of them, and their error at other reference points."""
        pool, scores = self._scored(POOL * pairs, self.shares)
        chances = inclusion(np.concatenate(scores), pairs)
        kept = systematic(chances, rng.uniform())
        residual, start = np.zeros(len(others.x)), 0
        frequencies, amplitudes = [], []
        for t, each in enumerate(pool):
            rows = kept[(kept >= start) & (kept < start + len(each.weights))]
            weights = each.weights[rows - start] / chances[rows]
            some = Candidates([o[rows - start] for o in each.frequencies], weights, [])
            start += len(each.weights)
            if len(rows):
                residual += _energies(self.kernel, t, some, weights, others)[1]
            missing = -len(rows) % GROUP if len(rows) else GROUP
            frequencies.append(
                tuple(
                    jnp.asarray(_padded(o, missing).reshape(-1, GROUP, o.shape[1]))
                    for o in some.frequencies
                )
            )
            amplitudes.append(jnp.asarray(np.sqrt(_padded(weights, missing)).reshape(-1, GROUP)))
        relative = (residual - np.asarray(others.residual)) / np.asarray(others.variance)
        waves = Waves(self.kernel, tuple(frequencies), tuple(amplitudes), dtype)
        return waves, float(np.sqrt(np.mean(relative**2)))


def _n_stretches(factor: Any) -> int:
    return 1 if factor.profile.log_spectrum is None else len(STRETCHES)


def inclusion(scores: np.ndarray, number: int) -> np.ndarray:
    """Chances in proportion to scores, none above one, that sum to `number`.

    Examples
    --------
    >>> inclusion(np.array([8.0, 1.0, 1.0]), 2).tolist()
    [1.0, 0.5, 0.5]
    """
    if number >= len(scores):
        return np.ones(len(scores))
    ordered = np.sort(scores)[::-1]
    rest = np.cumsum(ordered[::-1])[::-1]
    # With the k largest certain, the others share number - k places.
    for k in range(number):
        level = rest[k] / (number - k)
        if ordered[k] <= level:
            return np.minimum(scores / level, 1.0)
    return np.where(scores >= ordered[number - 1], 1.0, 0.0)


def systematic(chances: np.ndarray, offset: float) -> np.ndarray:
    """Indices drawn with given chances: one for every whole number the running sum passes.

    Examples
    --------
    >>> systematic(np.array([1.0, 0.5, 0.5]), offset=0.3).tolist()
    [0, 1]
    """
    running = np.cumsum(chances)
    number = round(float(running[-1]))
    marks = np.minimum(offset + np.arange(number), running[-1] * (1.0 - 1e-15))
    return np.unique(np.searchsorted(running, marks, side="right"))
