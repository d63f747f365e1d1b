r"""What can be wrong with mediators: that they say nothing, or lie outside those that are known.

*Saying nothing.* Both links of an unmatched model are tested: from mediators to observations, and
from mediators to bags, seen as means and standard deviations of their covariates. A kernel
regression on the mediator predicts every row from the others. Its share of the variation explained,
:math:`R^2 = 1 - \sum_i e_i^2 / \sum_i e_{0i}^2` with leave-one-out errors :math:`e_i` of the
regression and :math:`e_{0i}` of the mean, is compared with that of shuffled rows. Several
smoothnesses are tried and the best kept, for shuffled rows too, so that the level of the test
holds.

*Outside.* A mediator is outside those of the bags where it is beyond their range, and its distance
to the nearest of them is over 1.5 times the 95 % quantile of the distances between each bag and its
own nearest neighbour. A share of a tenth is a shift if none of 99 random ways to deal out the same
mediators has more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from deconditional.errors import Caution, MediatorShiftWarning, UselessMediatorWarning
from deconditional.kernels.linalg import suitable_threads

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

FEWEST = 15  # rows below which nothing can be told from chance
MOST_ROWS = 150  # that are tested; more are sampled
SHUFFLES = 99  # times the rows are shuffled
LEVEL = 0.02  # a link that shuffled mediators match in more than this share of the cases is none
CLEARLY_EXPLAINED = 0.35  # share that is not by chance, though some shuffles of few rows match it
SMOOTHNESS = (0.3, 1.0)  # length scales of the test, in median distances between mediators
RIDGES = (0.1, 1.0)  # noise of the test, in units of the variance of what it explains
WAVES = 40  # random functions of the covariates whose bag means a mediator may predict

MAY_BE_NARROW = "intervals of this fit may be too narrow"
PRIOR_IS_LEFT = "the posterior is the prior of the field, about the mean of the observations"

REACH = 1.5
"""Distances to the nearest neighbour, as far as most have theirs, that count as near."""

OUTSIDE = {
    "observations": (
        "lie outside the mediator range of the bags, where nothing is known of the link",
        "Drop them, add bags there, or count them as uncertain with uncertainty=True and "
        "centred=True.",
    ),
    "bags": (
        "lie outside the mediator range of the observations, so that their pseudo-targets are "
        "extrapolated",
        "Drop them, or add observations there.",
    ),
}
"""What is said of mediators outside those that are known, and what to do, by whose they are."""

SHIFT_SHARE = 0.1
"""Share of mediators outside the known ones that is worth a warning, if chance gives less."""


# ----------------------------------------------------------------------- mediators that say nothing


class Predictability(NamedTuple):
    """What a mediator tells of something: share of its variation, and chance of as much."""

    share: float
    p_value: float

    @property
    def is_none(self) -> bool:
        """Whether the mediator tells nothing."""
        return self.p_value > LEVEL and self.share < CLEARLY_EXPLAINED


def predictability(mediator: Floats, values: Floats) -> Predictability | None:
    """How well a mediator predicts what came with it; None where that cannot be told.

    Parameters
    ----------
    mediator : (n, p)
        One row for each case.
    values : (n, k)
        What is to be predicted; columns count equally.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(size=(40, 1))
    >>> [predictability(y, v).is_none for v in (np.sin(2 * y), rng.normal(size=(40, 1)))]
    [False, True]
    """
    rng = np.random.default_rng(0)
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
    with suitable_threads(n):
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


def bag_waves(bags: Any) -> Floats:
    """Means over every bag of random waves about as long as the covariates spread, (N, waves).

    They see what moments miss: a mediator may follow a field that goes up and down.
    """
    rng = np.random.default_rng(0)
    points = _standardised(bags.points)
    frequencies = rng.standard_normal((points.shape[1], WAVES)) * rng.uniform(0.5, 2.0, WAVES)
    return np.asarray(bags.means(np.cos(points @ frequencies + rng.uniform(0, 2 * np.pi, WAVES))))


def useless_mediator(
    bags: Any, mediator: Floats, z: Floats, outcome: str = MAY_BE_NARROW
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
        told = predictability(np.asarray(y), values)
        if told is not None and told.is_none and what == "the bags":
            waves = predictability(np.asarray(y), bag_waves(bags))
            told = told if waves is None else min(told, waves, key=lambda each: each.p_value)
        if told is not None and told.is_none:
            text = (
                f"the mediator carries no information about {what}: held out, "
                f"{max(told.share, 0.0):.0%} of {variation} can be predicted from it, and shuffled "
                f"mediators do as well in {told.p_value:.0%} of the cases. {remedy}"
            )
            found.append(Caution(UselessMediatorWarning, text))
    return found


# --------------------------------------------------------------------------- mediators outside


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
    known, asked = (_some(rows, rng) for rows in (known, asked))
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


def shifted(known: Floats, asked: Floats, what: str) -> list[Caution]:
    """A warning where many of the mediators asked for are outside those that are known.

    Those asked for are of `what`, a key of :data:`OUTSIDE`.
    """
    known, asked = np.asarray(known, dtype=float), np.asarray(asked, dtype=float)
    if min(len(known), len(asked)) < FEWEST:
        return []
    off = outside(known, asked)
    if off.mean() < SHIFT_SHARE or not _is_shift(known, asked):
        return []
    gaps = int((off & ~_beyond(known, asked)).sum()) if known.shape[1] == 1 else 0
    where = f" ({gaps} of them in a gap between these)" if gaps else ""
    finding, remedy = OUTSIDE[what]
    count = f"{int(off.sum())} of {len(off)} {what} ({off.mean():.0%})"
    return [Caution(MediatorShiftWarning, f"{count} {finding}{where}. {remedy}")]


def _some(rows: Floats, rng: np.random.Generator) -> Floats:
    """At most so many of the rows as are tested."""
    return rows[rng.permutation(len(rows))[:MOST_ROWS]] if len(rows) > MOST_ROWS else rows
