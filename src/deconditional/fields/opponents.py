r"""Where models are compared with simple answers, and these: linear interpolation, regression.

Both kinds of :class:`Trial` say some linear functions of the observations and ask for others.

*Held-out cells.* The other cells are known. That tells how well a model extrapolates.

*Held-out detail.* Downscaling is something else: the mean over a cell is known and the detail
within it is not. With groups of two by two coarse cells for a cell the same can be done with known
truth. In one region after the other the means over groups are known in place of the cells, which
are asked for; elsewhere the cells are known, so that what covariates have to do with the target can
be learnt as well as from all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from sklearn.cluster import KMeans

from deconditional.fields.axes import Flags, Floats, Ints, Lattice
from deconditional.fields.interpolation import scattered
from deconditional.fields.pair import Pairing

BILINEAR = "bilinear"
"""What linear interpolation is called among models."""

REGRESSION = "regression"
"""What a linear regression on covariates, its residuals interpolated, is called."""

SIDE = 2
"""Coarse cells of a group along both axes."""


class Trial(NamedTuple):
    """What is known of the observations, and which of them are asked for.

    Attributes
    ----------
    shares : (K, M)
        The weights of the observations in each mean that is known.
    asked : (M,)
        Those to predict.
    """

    shares: Floats
    asked: Flags


def others(fold: Ints) -> Iterator[Trial]:
    """Every fold from the observations of the other folds."""
    single = np.eye(len(fold))
    for label in np.unique(fold):
        yield Trial(single[fold != label], fold == label)


def detail(pairing: Pairing, used: Ints, regions: int, seed: int) -> Iterator[Trial]:
    """The cells of every region from means over groups of them, and from the cells elsewhere.

    Points in no order have no neighbours, so there is nothing to ask.
    """
    grid, unit = pairing.coarse, pairing.observed_unit[used]
    if 1 in grid.shape and not isinstance(grid, Lattice):
        return
    time, cell = np.divmod(unit, grid.n_cells)
    row, column = np.divmod(cell, grid.shape[1])
    places, single = grid.positions[cell], np.eye(len(unit))
    for region in range(regions):  # groups begin elsewhere in each
        down, right = divmod(region, SIDE)
        pair = (row + down) // SIDE, (column + right) // SIDE, time
        _, group = np.unique(np.stack(pair), axis=1, return_inverse=True)
        shares = np.zeros((group.max() + 1, len(unit)))
        shares[group, np.arange(len(unit))] = grid.areas[cell]
        shares /= shares.sum(1, keepdims=True)
        centres = shares @ places
        n = min(regions, len(np.unique(centres, axis=0)))
        inside = KMeans(n, n_init=1, random_state=seed).fit_predict(centres) == region
        asked = inside[group] & (np.bincount(group)[group] > 1)
        if asked.any():
            yield Trial(np.concatenate([shares[inside], single[~inside[group]]]), asked)


def interpolated(
    pairing: Pairing, used: Ints, z: Floats, trial: Trial, covariates: Floats | None = None
) -> Floats:
    """Values asked for, interpolated linearly between what is known, each time by itself.

    Of a time at which nothing is known, cells have their mean over all times. With means of
    `covariates`, (M, c), what a linear regression on them leaves is interpolated.
    """
    if covariates is not None:
        x = np.column_stack([np.ones(len(z)), covariates])
        slopes = np.linalg.lstsq(trial.shares @ x, trial.shares @ z, rcond=None)[0]
        left = interpolated(pairing, used, z - x @ slopes, trial)
        return np.asarray(x[trial.asked] @ slopes + left)
    grid, unit = pairing.coarse, pairing.observed_unit[used]
    time, cell = np.divmod(unit, grid.n_cells)
    places = grid.positions[cell]
    centres, values = trial.shares @ places, trial.shares @ z
    moment = time[trial.shares.argmax(1)]
    out = np.empty(int(trial.asked.sum()))
    for now in np.unique(time[trial.asked]):
        here = moment == now if (moment == now).any() else np.ones(len(moment), dtype=bool)
        asked = trial.asked & (time == now)
        found, index = np.unique(centres[here], axis=0, return_inverse=True)
        means = np.bincount(index, values[here]) / np.bincount(index)
        out[(time == now)[trial.asked]] = scattered(found, means, places[asked])
    return out
