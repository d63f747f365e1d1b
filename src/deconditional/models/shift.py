"""Whether mediators lie outside those that are known.

A mediator is outside those of the bags where it is beyond their range, and its distance to the
nearest of them is over 1.5 times the 95 % quantile of the distances between each bag and its own
nearest neighbour. A share of a tenth is a shift if none of 99 random ways to deal out the same
mediators has more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from deconditional.errors import Caution, MediatorShiftWarning

__all__ = ["bags_outside", "observations_outside", "outside", "shifted"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

FEWEST = 15
"""Rows below which a shift cannot be told from chance."""

MOST_ROWS = 150
"""Rows a shift is tested on; more are sampled."""

SHUFFLES = 99
"""Times the rows are dealt out at random."""

REACH = 1.5
"""Distances to the nearest neighbour, as far as most have theirs, that count as near."""

SHIFT_SHARE = 0.1
"""Share of mediators outside the known ones that is worth a warning, if chance gives less."""


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
