r"""Warnings of answers that should not be trusted as they are, and the checks behind them.

Every class says what was found and what to do about it; :doc:`warnings` has a page on them. The
checks work on what a fit has computed anyway, or on a few hundred rows of the data, with NumPy:
they cost next to nothing and compile nothing.

- *Mediator.* Both links of an unmatched model are tested: from mediators to observations, and from
  mediators to bags, seen as means and standard deviations of their covariates. A kernel regression
  on the mediator predicts every row from the others. Its share of the variation explained,
  :math:`R^2 = 1 - \sum_i e_i^2 / \sum_i e_{0i}^2` with leave-one-out errors :math:`e_i` of the
  regression and :math:`e_{0i}` of the mean, is compared with that of shuffled rows. Several
  smoothnesses are tried and the best kept, for shuffled rows too, so that the level of the test
  holds.
- *Shift.* A mediator is outside those of the bags where it is beyond their range, and its distance
  to the nearest of them is over 1.5 times the 95 % quantile of the distances between each bag and
  its own nearest neighbour.
  A share of a tenth is a shift if none of 99 random ways to deal out the same mediators has more.
- *Degenerate fits.* Parameters on bounds; a field that explains nothing of the observations; a
  field whose length scales are so short that every point stands alone.
- *Jitter.* What had to be added to the diagonal of a covariance before it could be factorised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from deconditional.errors import (
    Caution,
    DegenerateFitWarning,
    ExtrapolationWarning,
    JitterWarning,
    LeakageWarning,
    MediatorShiftWarning,
    UselessMediatorWarning,
)

__all__ = ["Predictability", "outside", "predictability"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

FEWEST = 15
"""Rows below which neither a link nor a shift can be told from chance."""

MOST_ROWS = 150
"""Rows a link is tested on; more are sampled."""

SHUFFLES = 99
LEVEL = 0.02
"""A link that shuffled mediators match in more than this share of the cases is none."""

CLEARLY_EXPLAINED = 0.35
"""Of few rows even a good mediator is matched by some shuffles; this share is not by chance."""

SMOOTHNESS = (0.3, 1.0)
"""Length scales of the test, in median distances between mediators."""

WAVES = 40
"""Random functions of the covariates whose bag means a mediator may predict."""

RIDGES = (0.1, 1.0)
"""Noise of the test, in units of the variance of what it explains."""

REACH = 1.5
SHIFT_SHARE = 0.1
"""Share of observations outside the mediators of the bags that is worth a warning, if it is more
than chance gives."""

EXPLAINED = 0.05
"""Share of the variation of the observations below which a field explains nothing."""

FLAT = 0.01
"""Share of a field's prior variance that varies between bags, below which it is a constant."""

ALONE = 0.01
"""Prior correlation between a bag and its most similar one, below which it stands alone."""

HARMLESS_JITTER = 1e-8
"""Relative jitter that acts like noise of a ten-thousandth of the standard deviation."""

HARMLESS_BASIS_JITTER = 1e-4
"""Bounds stay bounds with jitter on inducing points, which only weakens them."""

EXTRAPOLATED_SHARE = 0.5
"""Share of predicted cells that are flagged which is worth a warning."""


# --------------------------------------------------------------------------- classes


MAY_BE_NARROW = "intervals of this fit may be too narrow"
PRIOR_IS_LEFT = "the posterior is the prior of the field, about the mean of the observations"


# --------------------------------------------------------------------------- links


class Predictability(NamedTuple):
    """What a mediator tells of something: share of its variation, and chance of as much."""

    share: float
    p_value: float

    @property
    def is_none(self) -> bool:
        """Whether it tells nothing."""
        return self.p_value > LEVEL and self.share < CLEARLY_EXPLAINED


def predictability(mediator: Floats, values: Floats, seed: int = 0) -> Predictability | None:
    """How well a mediator predicts what came with it; None where that cannot be told.

    Parameters
    ----------
    mediator : (n, p)
        One row for each case.
    values : (n, k)
        What is to be predicted; columns count equally.
    seed
        Of the shuffles.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(size=(40, 1))
    >>> [predictability(y, v).is_none for v in (np.sin(2 * y), rng.normal(size=(40, 1)))]
    [False, True]
    """
    rng = np.random.default_rng(seed)
    if len(mediator) > MOST_ROWS:
        kept = rng.choice(len(mediator), MOST_ROWS, replace=False)
        mediator, values = mediator[kept], values[kept]
    n = len(mediator)
    values = _standardised(values)
    mediator = _standardised(mediator)
    if n < FEWEST or not values.shape[1]:
        return None
    if not mediator.shape[1]:
        return Predictability(0.0, 1.0)
    gram = values @ values.T
    by_mean = float(np.trace(gram)) * (n / (n - 1)) ** 2
    orders = [np.arange(n), *(rng.permutation(n) for _ in range(SHUFFLES))]
    shuffled = np.stack([gram[np.ix_(order, order)].ravel() for order in orders])
    error = np.full(len(orders), np.inf)
    for errors in _leave_one_out(mediator):
        error = np.minimum(error, shuffled @ (errors.T @ errors).ravel())
    share = 1.0 - error / by_mean
    return Predictability(float(share[0]), float(np.mean(share >= share[0])))


def _standardised(values: Floats) -> Floats:
    """Columns that vary, with mean zero and variance one."""
    values = np.asarray(values, dtype=float)
    scale = values.std(0)
    varies = scale > 1e-12 * np.abs(values).max(0, initial=0.0)
    return (values[:, varies] - values[:, varies].mean(0)) / scale[varies]


def _leave_one_out(mediator: Floats) -> list[Floats]:
    r"""Matrices that map values to their leave-one-out errors, one for each smoothness and ridge.

    With :math:`P = (K + r I + c\,11^\top)^{-1}` and a large c, which leaves the mean free, the
    error of row i is :math:`(P v)_i / P_{ii}`.
    """
    squares = ((mediator[:, None] - mediator[None]) ** 2).sum(-1)
    distances = np.sqrt(squares[np.triu_indices(len(mediator), 1)])
    typical = float(np.median(distances)) or float(distances.mean())
    found = []
    for smoothness in SMOOTHNESS:
        kernel = np.exp(-squares / (smoothness * typical) ** 2)
        for ridge in RIDGES:
            precision = np.linalg.inv(kernel + ridge * np.eye(len(kernel)) + 1e3)
            found.append(precision / np.diag(precision)[:, None])
    return found


def bag_features(bags: Any) -> Floats:
    """Means and standard deviations of the covariates of every bag, (N, 2d)."""
    means = bags.means(bags.points)
    variances = bags.means((bags.points - means[bags.bag]) ** 2)
    return np.concatenate([means, np.sqrt(np.maximum(variances, 0.0))], axis=1)


def bag_waves(bags: Any, seed: int = 0) -> Floats:
    """Means over every bag of random waves about as long as the covariates spread, (N, waves).

    They see what moments miss: a mediator may follow a field that goes up and down.
    """
    rng = np.random.default_rng(seed)
    points = _standardised(bags.points)
    frequencies = rng.standard_normal((points.shape[1], WAVES)) * rng.uniform(0.5, 2.0, WAVES)
    return np.asarray(bags.means(np.cos(points @ frequencies + rng.uniform(0, 2 * np.pi, WAVES))))


def useless_mediator(
    bags: Any, mediator: Floats, z: Floats, seed: int = 0, outcome: str = MAY_BE_NARROW
) -> list[Caution]:
    """What the mediator does not tell, of the observations and of the bags."""
    remedy = (
        "Use a mediator that varies with both, and check that mediators are in the order of what "
        f"they belong to; {outcome}."
    )
    found = []
    links = (
        ("the observations", "their variation", mediator, np.asarray(z)[:, None]),
        ("the bags", "the variation of their covariates", bags.mediator, bag_features(bags)),
    )
    for what, variation, y, values in links:
        told = predictability(np.asarray(y), values, seed)
        if told is not None and told.is_none and what == "the bags":
            waves = predictability(np.asarray(y), bag_waves(bags, seed), seed)
            told = told if waves is None else min(told, waves, key=lambda each: each.p_value)
        if told is not None and told.is_none:
            text = (
                f"the mediator carries no information about {what}: held out, "
                f"{max(told.share, 0.0):.0%} of {variation} can be predicted from it, and shuffled "
                f"mediators do as well in {told.p_value:.0%} of the cases. {remedy}"
            )
            found.append(Caution(UselessMediatorWarning, text))
    return found


def no_link(share: float, enough: float) -> list[Caution]:
    """Mediators that predict too little of the observations to stand for bag means."""
    if share >= enough:
        return []
    text = (
        f"the mediator predicts {share:.0%} of the variance of the observations, each left out "
        f"once, and noise would do as well (up to {enough:.0%}): it does not stand for the means "
        "of bags here, and the posterior is hardly more than the prior of the field. Use a "
        "mediator that says more, or more observations."
    )
    return [Caution(UselessMediatorWarning, text)]


# --------------------------------------------------------------------------- shift


def outside(known: Floats, asked: Floats) -> Bools:
    """Which rows of `asked` lie outside those that are known.

    They are far from all of these, and beyond the range of a variable or of a principal axis; of a
    single variable, gaps count too.

    Examples
    --------
    >>> known = np.linspace(0, 3, 20)[:, None]
    >>> outside(known, np.array([[1.5], [3.1], [3.5], [-2.0]])).tolist()
    [False, False, True, True]
    """
    from scipy.spatial import cKDTree

    known, asked = np.asarray(known, dtype=float), np.asarray(asked, dtype=float)
    scale = known.std(0)
    both = np.concatenate([known, asked]).std(0)
    scale = np.where(scale > 1e-12 * both, scale, np.where(both > 0, both, 1.0))
    tree = cKDTree(known / scale)
    between, _ = tree.query(known / scale, k=2)
    reach = REACH * float(np.quantile(between[:, 1], 0.95))
    distance, _ = tree.query(asked / scale)
    far = np.asarray(distance > max(reach, 1e-9), dtype=bool)
    return far if known.shape[1] == 1 else far & _beyond(known / scale, asked / scale)


def _beyond(known: Floats, asked: Floats) -> Bools:
    """Rows outside the range of the known ones, of a variable or along a principal axis."""
    centre = known.mean(0)
    _, _, axes = np.linalg.svd(known - centre, full_matrices=False)
    directions = np.concatenate([np.eye(known.shape[1]), axes])
    inside, there = (known - centre) @ directions.T, (asked - centre) @ directions.T
    slack = 1e-9 * np.abs(inside).max()
    low, high = inside.min(0) - slack, inside.max(0) + slack
    return np.asarray(((there < low) | (there > high)).any(1), dtype=bool)


def _is_shift(known: Floats, asked: Floats) -> bool:
    """Whether more rows are outside than where the same rows are dealt out at random.

    Rows of one group, such as the times of a place, are dealt out together.
    """
    rng = np.random.default_rng(0)
    known, asked = (
        rows[rng.permutation(len(rows))[:MOST_ROWS]] if len(rows) > MOST_ROWS else rows
        for rows in (known, asked)
    )
    both, n = np.concatenate([known, asked]), len(known)
    share = outside(known, asked).mean()
    group = _groups(both)
    for _ in range(SHUFFLES):
        dealt = both[np.argsort(rng.permutation(len(both))[group], kind="stable")]
        if outside(dealt[:n], dealt[n:]).mean() >= share:
            return False
    return True


def _groups(rows: Floats) -> npt.NDArray[np.intp]:
    """The group of every row: rows that agree in all variables in which values come up again."""
    repeats = [len(np.unique(column)) < 0.7 * len(rows) for column in rows.T]
    if not any(repeats):
        return np.arange(len(rows))
    return np.unique(rows[:, repeats], axis=0, return_inverse=True)[1].ravel()


def shifted(known: Floats, asked: Floats, words: str, remedy: str) -> list[Caution]:
    """A warning where many of the mediators asked for are outside those that are known.

    `words` says what lies outside what, with its share to be filled in.
    """
    known, asked = np.asarray(known, dtype=float), np.asarray(asked, dtype=float)
    if min(len(known), len(asked)) < FEWEST:
        return []
    off = outside(known, asked)
    if off.mean() < SHIFT_SHARE or not _is_shift(known, asked):
        return []
    gaps = int((off & ~_beyond(known, asked)).sum()) if known.shape[1] == 1 else 0
    where = f" ({gaps} of them in a gap between these)" if gaps else ""
    count = f"{int(off.sum())} of {len(off)}"
    text = f"{words.format(count=count, share=f'{off.mean():.0%}')}{where}. {remedy}"
    return [Caution(MediatorShiftWarning, text)]


def observations_outside(bag_mediator: Floats, observed: Floats) -> list[Caution]:
    """Observations whose mediators no bag is near to."""
    return shifted(
        bag_mediator,
        observed,
        "{count} observations ({share}) lie outside the mediator range of the bags, where nothing "
        "is known of the link",
        "Drop them, add bags there, or count them as uncertain with uncertainty=True and "
        "centred=True.",
    )


def bags_outside(bag_mediator: Floats, observed: Floats) -> list[Caution]:
    """Bags whose pseudo-targets are extrapolated."""
    return shifted(
        observed,
        bag_mediator,
        "{count} bags ({share}) lie outside the mediator range of the observations, so that their "
        "pseudo-targets are extrapolated",
        "Drop them, or add observations there.",
    )


# --------------------------------------------------------------------------- fits


def of_fit(model: Any, bound: Sequence[str]) -> list[Caution]:
    """What should be said about a fitted model of bags, convergence apart."""
    problem, (pieces, field) = model._problem_, model._solved_[0]
    found = on_bounds(bound)
    mediation = getattr(problem.mediation, "observed_mediator", None)
    useless: list[Caution] = []
    if mediation is not None:
        needs_it = np.asarray(problem.mediation.mediated) > 0
        if needs_it.any():
            y = np.asarray(mediation)
            useless = useless_mediator(model.bags_, y, np.asarray(problem.z))
            useless = useless or weak_weights(problem.mediation, pieces, needs_it)
            found += useless
            found += observations_outside(model.bags_.mediator, y[needs_it])
    if problem.parameters.size:
        found += isolated(model.bags_, problem, pieces, field)
        if not useless and not hasattr(problem.mediation, "matrix"):
            found += unexplained(*model._learnt_by())
    return found + too_much_jitter(pieces, field)


def check_finite(log_evidence: float) -> None:
    """Raise where a fit has no answer."""
    if not np.isfinite(log_evidence):
        raise ValueError(
            "the fit has no finite answer: the covariance of the observations is not one, whatever "
            "is added to its diagonal. Check the values of fixed={...}, noise_std and noise_cov, "
            "and that observations and covariates are of a sensible size."
        )


def of_pseudo_targets(
    bags: Any,
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
    found = useless_mediator(bags, mediator, z, outcome=outcome)
    return found + bags_outside(bags.mediator[needs_one], mediator)


def on_bounds(bound: Sequence[str]) -> list[Caution]:
    """Parameters on their bounds."""
    if not bound:
        return []
    text = (
        f"{', '.join(bound)} ended on a bound, so the fit is degenerate there. Check the "
        "scale of that input, give it a prior with priors={...}, or fix it."
    )
    return [Caution(DegenerateFitWarning, text)]


def weak_weights(mediation: Any, pieces: Any, needs_it: Bools) -> list[Caution]:
    """Weights of the conditional mean operator that are nearly zero."""
    reach = np.abs(np.asarray(pieces.weights))[:, needs_it].sum(0).mean()
    if mediation.centred or reach >= 0.05:
        return []
    text = (
        f"the mediation weights are close to zero (mean absolute sum {reach:.3f}): the "
        "mediator carries almost no information about the bags. Use a mediator that "
        "varies with the covariates, or centred=True."
    )
    return [Caution(UselessMediatorWarning, text)]


def explained_share(problem: Any, pieces: Any, field: Any) -> float:
    r"""Share of the variation of z that the posterior mean of the field explains.

    Exactly, what it leaves is :math:`z - \mathrm{E}[W^\top\bar f] = S A^{-1}(z - B\hat\beta)`.
    """
    from scipy.linalg import solve_triangular

    z = np.asarray(problem.z)
    spread = float(((z - z.mean()) ** 2).sum())
    if spread == 0:
        return 1.0
    if hasattr(field, "conditioned"):
        c = field.conditioned
        root, trend = np.asarray(c.root), np.asarray(c.whitened_trend) @ np.asarray(c.trend)
        white = solve_triangular(root, z, lower=True) - trend
        left = np.asarray(pieces.noise) @ solve_triangular(root, white, lower=True, trans=1)
    else:
        means = np.asarray(pieces.means).T @ np.asarray(field.coefficients.mean)
        left = z - (means if pieces.weights is None else np.asarray(pieces.weights).T @ means)
    return 1.0 - float((left**2).sum()) / spread


def unexplained(problem: Any, pieces: Any, field: Any) -> list[Caution]:
    """A field that explains nothing of the observations: all of them are taken for noise."""
    z = np.asarray(problem.z)
    if len(z) < FEWEST or (share := explained_share(problem, pieces, field)) >= EXPLAINED:
        return []
    rows = _some_rows(problem, pieces)
    between = 1.0 - float(rows.gram[:, rows.bags].mean()) / float(rows.variance[rows.bags].mean())
    why = " Its length scales are so long that it is a constant." if between < FLAT else ""
    text = (
        f"the field explains {max(share, 0.0):.0%} of the variation of the observations, and the "
        f"rest is taken for noise.{why} Check that observations and bags belong together and are "
        "in the same order, use covariates that matter, or give noise_std if it is known."
    )
    return [Caution(DegenerateFitWarning, text)]


def isolated(bags: Any, problem: Any, pieces: Any, field: Any) -> list[Caution]:
    r"""A field whose length scales are so short that every fine point stands alone.

    Bags are uncorrelated, and the variance of a bag mean is that of independent points,
    :math:`\bar K_{jj} \approx k / n_j` with the effective number of points :math:`n_j`.
    """
    from deconditional.kernels.radial import prior_variance

    if bags.n_bags < FEWEST:
        return []
    rows = _some_rows(problem, pieces)
    nearest = np.abs(rows.gram / np.sqrt(np.outer(rows.variance[rows.bags], rows.variance)))
    nearest[np.arange(len(nearest)), rows.bags] = 0.0
    if np.median(nearest.max(1)) >= ALONE:
        return []
    kernel = field.kernel if hasattr(field, "kernel") else field.basis.kernel
    points = bags.points[:: max(1, len(bags.points) // 64)]
    prior = float(np.mean(np.asarray(prior_variance(kernel, points))))
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
    """Some rows of the Gram matrix of bags, which rows, and its whole diagonal."""

    gram: Floats
    bags: npt.NDArray[np.intp]
    variance: Floats


def _some_rows(problem: Any, pieces: Any, most: int = 64) -> _Rows:
    n = int(problem.layout.n_bags)
    index = np.sort(np.random.default_rng(0).permutation(n)[:most])
    if hasattr(pieces, "gram"):
        gram = np.asarray(pieces.gram)
        return _Rows(gram[index], index, np.maximum(np.diag(gram), 1e-300))
    size = len(pieces.means) - problem.trend.prior_std.shape[0]
    basis = np.asarray(pieces.means)[:size]
    rows, variance = basis[:, index].T @ basis, np.einsum("ij,ij->j", basis, basis)
    if pieces.residual is not None:
        residual = np.asarray(pieces.residual.covariance)
        if residual.ndim == 2:
            rows, residual = rows + residual[index], np.diag(residual)
        else:
            rows[np.arange(len(index)), index] += residual[index]
        variance = variance + residual
    return _Rows(rows, index, np.maximum(variance, 1e-300))


# --------------------------------------------------------------------------- jitter


def jitter_level(pieces: Any, field: Any) -> float:
    r"""Jitter that the factorisation of the posterior needed, relative to the mean diagonal.

    Exactly it is what the Cholesky factor has on the diagonal beyond :math:`W^\top\bar K W + S`,
    to the nearest power of ten.
    """
    from deconditional.kernels.linalg import JITTER

    if not hasattr(field, "conditioned"):
        return float(getattr(field.basis, "jitter", 0.0))
    gram, noise = np.asarray(pieces.gram), np.diag(np.asarray(pieces.noise))
    lifted = (np.asarray(field.conditioned.root) ** 2).sum(1)
    some = slice(None, None, -(-len(lifted) // MOST_ROWS))
    if pieces.weights is None:
        diagonal = np.diag(gram)[some]
    else:
        weights = np.asarray(pieces.weights)[:, some]
        diagonal = ((gram @ weights) * weights).sum(0)
    level = float(np.mean(lifted[some] - diagonal - noise[some]) / np.mean(lifted))
    # Rounding of the two sums hides levels near the least one.
    return JITTER if level < 1e-10 else float(10.0 ** np.round(np.log10(level)))


def too_much_jitter(pieces: Any, field: Any) -> list[Caution]:
    """Jitter that changes answers."""
    level = jitter_level(pieces, field)
    exact = hasattr(field, "conditioned")
    if level <= (HARMLESS_JITTER if exact else HARMLESS_BASIS_JITTER):
        return []
    what, remedy = (
        (
            "the covariance of the observations",
            "Let noise_std be learnt or give a larger one, drop observations that are given twice, "
            "or use precision='float64'.",
        )
        if exact
        else (
            "the covariance of the inducing points",
            "Use fewer inducing points, points that do not coincide, or precision='float64'.",
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
