r"""Warnings of answers that should not be trusted as they are, and the checks behind them.

Every class of warning says what was found and what to do about it; :doc:`warnings` has a page on
them. The checks work on what a fit has computed anyway, or on a few hundred rows of the data, with
NumPy: they cost next to nothing and compile nothing.

- *Mediators* that say nothing, or that lie outside those that are known
  (:mod:`~deconditional.models.mediator_checks`).
- *Degenerate fits.* Parameters on bounds; a field that explains nothing of the observations; a
  field whose length scales are so short that every point stands alone.
- *Jitter.* What had to be added to the diagonal of a covariance before it could be factorised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from deconditional.bags import Bags
from deconditional.errors import (
    Caution,
    DegenerateFitWarning,
    ExtrapolationWarning,
    JitterWarning,
    LeakageWarning,
    UselessMediatorWarning,
)
from deconditional.inference.field import Field
from deconditional.inference.laplace import FamilyProblem
from deconditional.inference.learn import Fitted
from deconditional.inference.problem import BagProblem
from deconditional.inference.variational import VariationalProblem
from deconditional.kernels.radial import prior_variance
from deconditional.models.mediator_checks import (
    FEWEST,
    MAY_BE_NARROW,
    shifted,
    useless_mediator,
)
from deconditional.observations.kinds import Mediated

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

EXPLAINED = 0.05
"""Share of the variation of the observations below which a field explains nothing."""

FLAT = 0.01
"""Share of a field's prior variance that varies between bags, below which it is a constant."""

ALONE = 0.01
"""Prior correlation between a bag and its most similar one, below which it stands alone."""

FEW_WEIGHTS = 0.05
"""Mean absolute sum of mediation weights below which the mediator carries almost nothing."""

HARMLESS_JITTER = 1e-8
"""Relative jitter that acts like noise of a ten-thousandth of the standard deviation."""

HARMLESS_BASIS_JITTER = 1e-4
"""Bounds stay bounds with jitter on inducing points, which only weakens them."""

LEFT_TO_CLIMB = 1e-2
"""Nats below the mode that are worth a warning."""

MOST_ROWS = 64
"""Rows of the Gram matrix of bags that are looked at."""

EXTRAPOLATED_SHARE = 0.5
"""Share of predicted cells that are flagged which is worth a warning."""


def of_fit(fitted: Fitted, bags: Bags, bound: Sequence[str]) -> list[Caution]:
    """What should be said about a fitted model of bags, convergence apart."""
    if isinstance(fitted.problem, FamilyProblem):
        return [*on_bounds(bound), *unsolved(fitted)]
    problem, pieces, field = fitted.problem, fitted.pieces[0], fitted.fields[0]
    found, mediation = on_bounds(bound), problem.mediation
    useless: list[Caution] = []
    if isinstance(mediation, Mediated) and (needs_it := np.asarray(mediation.mediated) > 0).any():
        y = np.asarray(mediation.observed_mediator)
        useless = useless_mediator(bags, y, fitted.z)
        useless = useless or weak_weights(mediation, pieces, needs_it)
        found += useless
        found += shifted(np.asarray(bags.mediator), y[needs_it], "observations")
    if problem.parameters.size:
        found += isolated(bags, problem, pieces, field)
        if not useless:
            found += unexplained(problem, pieces, field)
    return found + too_much_jitter(problem, pieces, field)


def of_pseudo_targets(
    bags: Bags,
    mediator: Floats,
    z: Floats,
    has_own: Bools | None,
    outcome: str = MAY_BE_NARROW,
) -> list[Caution]:
    """What should be said about pseudo-targets; `has_own` are bags that need none.

    `outcome` is what comes of a useless mediator.
    """
    needs_one = np.ones(bags.n_bags, dtype=bool) if has_own is None else ~has_own
    if not needs_one.any():
        return []
    assert bags.mediator is not None
    found = useless_mediator(bags, mediator, z, outcome=outcome)
    return found + shifted(mediator, bags.mediator[needs_one], "bags")


def unsolved(fitted: Fitted) -> list[Caution]:
    """Posteriors of families whose mode was not found."""
    promise = max(float(getattr(pieces, "promise", 0.0)) for pieces in fitted.pieces)
    if promise < LEFT_TO_CLIMB:
        return []
    text = (
        f"the most probable field was not found: the last step of its search still promised "
        f"{promise:.2g} nats. Check observations and exposures for values far from all others, or "
        "use the family's overdispersion."
    )
    return [Caution(DegenerateFitWarning, text)]


def on_bounds(bound: Sequence[str]) -> list[Caution]:
    """Parameters on their bounds."""
    if not bound:
        return []
    text = (
        f"{', '.join(bound)} ended on a bound, so the fit is degenerate there. Check the "
        "scale of that input, give it a prior with priors={...}, or fix it."
    )
    return [Caution(DegenerateFitWarning, text)]


def weak_weights(mediation: Mediated, pieces: Any, needs_it: Bools) -> list[Caution]:
    """Weights of the conditional mean operator that are nearly zero."""
    reach = np.abs(np.asarray(pieces.weights))[:, needs_it].sum(0).mean()
    if mediation.centred or reach >= FEW_WEIGHTS:
        return []
    text = (
        f"the mediation weights are close to zero (mean absolute sum {reach:.3f}): the "
        "mediator carries almost no information about the bags. Use a mediator that "
        "varies with the covariates, or centred=True."
    )
    return [Caution(UselessMediatorWarning, text)]


def share_explained(z: Floats, pieces: Any, field: Field) -> float:
    """Share of the variation of z that the posterior mean of the field explains."""
    spread = float(((z - z.mean()) ** 2).sum())
    if spread == 0:
        return 1.0
    return 1.0 - float((np.asarray(field.left_over(pieces)) ** 2).sum()) / spread


def unexplained(problem: BagProblem, pieces: Any, field: Field) -> list[Caution]:
    """A field that explains nothing of the observations: all of them are taken for noise."""
    z = np.asarray(problem.z)
    if len(z) < FEWEST or (share := share_explained(z, pieces, field)) >= EXPLAINED:
        return []
    known = np.asarray(problem.known_noise)
    known = known if known.ndim == 1 else np.diag(known)
    if known.sum() >= ((z - z.mean()) ** 2).sum():
        return []  # the noise they are known to have explains them
    rows = _some_rows(problem, pieces)
    between = 1.0 - float(rows.gram[:, rows.bags].mean()) / float(rows.variance[rows.bags].mean())
    why = " Its length scales are so long that it is a constant." if between < FLAT else ""
    text = (
        f"the field explains {max(share, 0.0):.0%} of the variation of the observations, and the "
        f"rest is taken for noise.{why} Check that observations and bags belong together and are "
        "in the same order, use covariates that matter, or give noise_std if it is known."
    )
    return [Caution(DegenerateFitWarning, text)]


def isolated(bags: Bags, problem: BagProblem, pieces: Any, field: Field) -> list[Caution]:
    r"""A field whose length scales are so short that every fine point stands alone.

    Bags are uncorrelated, and the variance of a bag mean is that of independent points,
    :math:`\bar K_{jj} \approx k / n_j` with the effective number of points :math:`n_j`.
    """
    if bags.n_bags < FEWEST:
        return []
    rows = _some_rows(problem, pieces)
    nearest = np.abs(rows.gram / np.sqrt(np.outer(rows.variance[rows.bags], rows.variance)))
    nearest[np.arange(len(nearest)), rows.bags] = 0.0
    if np.median(nearest.max(1)) >= ALONE:
        return []
    points = bags.points[:: max(1, len(bags.points) // 64)]
    prior = float(np.mean(np.asarray(prior_variance(field.kernel, jnp.asarray(points)))))
    flatness = rows.variance * bags.effective_sizes / prior
    if np.median(flatness) > 1.5:
        return []
    text = (
        "the length scales are so short that every fine point stands alone: between them the "
        "answer is the trend. Give the length scales priors with priors={...}, fix them, or use "
        "fewer covariates."
    )
    return [Caution(DegenerateFitWarning, text)]


class _Rows(NamedTuple):
    """Rows of the Gram matrix of bags, which rows they are, and its whole diagonal."""

    gram: Floats
    bags: npt.NDArray[np.intp]
    variance: Floats


def _some_rows(problem: BagProblem, pieces: Any) -> _Rows:
    n = int(problem.layout.n_bags)
    index = np.sort(np.random.default_rng(0).permutation(n)[:MOST_ROWS])
    gram, variance = pieces.gram_rows(index)
    return _Rows(gram, index, np.maximum(variance, 1e-300))


def too_much_jitter(problem: BagProblem, pieces: Any, field: Field) -> list[Caution]:
    """Jitter that changes answers."""
    level = field.jitter(pieces)
    in_a_basis = isinstance(problem, VariationalProblem)
    if level <= (HARMLESS_BASIS_JITTER if in_a_basis else HARMLESS_JITTER):
        return []
    what, remedy = (
        (
            "the covariance of the inducing points",
            "Use fewer inducing points, points that do not coincide, or precision='float64'.",
        )
        if in_a_basis
        else (
            "the covariance of the observations",
            "Let noise_std be learnt or give a larger one, drop observations that are given twice, "
            "or use precision='float64'.",
        )
    )
    text = (
        f"{what} could be factorised only with a jitter of {level:.0e} of its variance, which acts "
        f"like noise of {np.sqrt(level):.1%} of the standard deviation. {remedy}"
    )
    return [Caution(JitterWarning, text)]


# --------------------------------------------------------------------------- predictions


def leaking(shared: int, held_out: int) -> list[Caution]:
    """A warning of held-out observations that share fine cells with others that were used."""
    if not shared:
        return []
    text = (
        f"{shared} of {held_out} observations were predicted with the help of others that share "
        "fine cells with them, so scores are too good. Learn without those (refit=True), or use "
        "fewer folds or grids that nest."
    )
    return [Caution(LeakageWarning, text)]


def extrapolated(n: int, share: float | None) -> list[Caution]:
    """A warning where much of a prediction is flagged; `share` is that of n cells."""
    if share is None or share < EXTRAPOLATED_SHARE:
        return []
    text = (
        f"{share:.0%} of {n} predicted cells lie where the data say nothing, or outside the range "
        "of the covariates that were learnt from (the variable extrapolation has them). Mask them, "
        "or fit with covariates that reach as far."
    )
    return [Caution(ExtrapolationWarning, text)]
