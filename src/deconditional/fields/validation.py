"""Blocked cross-validation on the coarse observations.

Neighbouring coarse cells tell about each other, so observations are held out in blocks: contiguous
regions, or stretches of time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from sklearn.cluster import KMeans

from deconditional.errors import UsageError
from deconditional.fields.fine_bags import FineBags
from deconditional.fields.pair import Pairing
from deconditional.inference.posterior import Gaussians
from deconditional.scores import crps_each, score
from deconditional.scores import pit as probabilities

__all__ = ["Comparison", "Folds", "HeldOut", "compared", "folds_of", "sharing"]

Ints = npt.NDArray[np.int64]

SCORES = ("rmse", "crps", "nll", "coverage95", "coverage50")
REGIONS_PER_FOLD = 4
PLAUSIBLE_GAP = 1.0
"""Bag means are off a regression by one standard deviation at most if both are right."""


@dataclass(frozen=True)
class HeldOut:
    """How one model predicts observations it has not seen, in standardised units.

    Attributes
    ----------
    bag_gap
        How far the field's means over the bags are from a regression of the observations on the
        mediators, root mean square in standard deviations of that regression. Where both are right
        it is one at most. Held-out observations cannot see this: where data is unmatched they have
        no fine covariates, and a field can explain all of them and still be absurd.
    """

    model: str
    posterior: Gaussians
    z: np.ndarray
    seconds: float
    bag_gap: float | None = None

    def of(self, kept: npt.NDArray[np.bool_]) -> HeldOut:
        """The same for some of the observations."""
        post = self.posterior
        part = Gaussians(post.component_means[:, kept], post.component_variances[:, kept])
        return replace(self, posterior=part, z=self.z[kept])


@dataclass(frozen=True)
class Comparison:
    """Scores of models on held-out coarse observations.

    Attributes
    ----------
    rows
        A mapping per model: its name, ``rmse``, ``crps``, ``nll``, coverage of the 95 % and 50 %
        intervals, for unmatched data the ``bag_gap`` (see :doc:`choosing`), and the seconds of
        its fit. ``rmse`` and ``crps`` are in the target's units, or those of its logarithm; so is
        the density behind ``nll``.
    chosen
        The first model, unless another one's CRPS is lower by two standard errors over the blocks.
        Models with a bag gap above one stand back; where all have one, that of the lowest is
        chosen.
    how
        The folds, in words.
    pit
        For every model the probabilities that predictions lie below what was observed: uniform
        where they are calibrated.

    Examples
    --------
    >>> table = Comparison(({"model": "cmp", "rmse": 1.0, "crps": 0.5},), "cmp", "5 blocks", {})
    >>> print(table)
    held-out coarse observations, 5 blocks
    model  rmse  crps
    cmp *     1   0.5
    """

    rows: tuple[Mapping[str, Any], ...]
    chosen: str
    how: str
    pit: Mapping[str, np.ndarray]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.rows[0])

    def cells(self) -> list[list[str]]:
        """The table as text, the chosen model marked."""
        return [
            [
                (f"{value} *" if value == self.chosen else str(value))
                if isinstance(value, str)
                else f"{value:.3g}"
                for value in row.values()
            ]
            for row in self.rows
        ]

    def __str__(self) -> str:
        table = [list(self.columns), *self.cells()]
        widths = [max(len(row[k]) for row in table) for k in range(len(self.columns))]
        lines = [
            "  ".join(
                cell.ljust(width) if k == 0 else cell.rjust(width)
                for k, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in table
        ]
        return "\n".join([f"held-out coarse observations, {self.how}", *lines])


def compared(held_out: Sequence[HeldOut], scale: float, folds: Folds) -> Comparison:
    """Score models against each other; `scale` turns standardised units into the target's."""
    rows: list[dict[str, Any]] = []
    pit = {}
    for each in held_out:
        found = score(each.posterior, each.z)
        found = {name: float(found[name]) for name in SCORES}
        found["rmse"] *= scale
        found["crps"] *= scale
        found["nll"] += float(np.log(scale))
        if each.bag_gap is not None:
            found["bag_gap"] = each.bag_gap
        rows.append({"model": each.model, **found, "seconds": round(each.seconds, 2)})
        pit[each.model] = probabilities(each.posterior, each.z)
    return Comparison(tuple(rows), _chosen(held_out, folds.region), folds.how, pit)


def _chosen(held_out: Sequence[HeldOut], region: Ints) -> str:
    """See :class:`Comparison`."""
    plausible = [each for each in held_out if (each.bag_gap or 0.0) <= PLAUSIBLE_GAP]
    if not plausible:
        return min(held_out, key=lambda each: each.bag_gap or 0.0).model
    best = plausible[0]
    for other in plausible[1:]:
        gain = crps_each(best.posterior, best.z) - crps_each(other.posterior, other.z)
        per_region = np.bincount(region, gain) / np.maximum(np.bincount(region), 1)
        error = per_region.std(ddof=1) / np.sqrt(len(per_region))
        if gain.mean() > 2.0 * error:
            best = other
    return best.model


@dataclass(frozen=True)
class Folds:
    """Fold and region of every observation; regions are what folds are made of.

    Attributes
    ----------
    how
        How the observations were divided, in words.
    """

    fold: Ints
    region: Ints
    how: str

    def of(self, used: Ints) -> Folds:
        """The folds of some observations, regions numbered anew."""
        _, region = np.unique(self.region[used], return_inverse=True)
        return Folds(self.fold[used], region, self.how)


def folds_of(pairing: Pairing, by: str, folds: int, seed: int) -> Folds:
    """Divide the observations into folds.

    In space, observed cells are clustered into four times as many regions as folds, and regions
    are dealt to folds so that these have about the same size. In time, every fold is one stretch.
    """
    m = len(pairing.z)
    if by not in ("space", "time"):
        raise UsageError(f"blocks are made by 'space' or by 'time', not {by!r}.")
    if folds < 2 or folds > m:
        raise UsageError(f"{m} observations cannot be divided into {folds} folds; choose 2 to {m}.")
    if by == "time":
        time = pairing.observed_unit // pairing.coarse.n_cells
        order = np.unique(time)
        if len(order) < folds:
            raise UsageError(
                f"the target is known at {len(order)} time(s), too few for {folds} folds in time; "
                "use fewer folds, or by='space'."
            )
        # The units' times are in the order they were met; folds follow the calendar.
        assert pairing.times is not None
        calendar = order[np.argsort(pairing.times[order], kind="stable")]
        fold_of = np.empty(order.max() + 1, dtype=np.int64)
        fold_of[calendar] = np.arange(len(order)) * folds // len(order)
        return Folds(fold_of[time], fold_of[time], f"{folds} stretches of time")
    regions = _regions(pairing, min(REGIONS_PER_FOLD * folds, m), seed)
    sizes = np.bincount(regions)
    if len(sizes) < 2:
        raise UsageError("the target is known in one coarse cell; use by='time'.")
    fold_of, load = np.empty(len(sizes), dtype=np.int64), np.zeros(folds)
    for region in np.argsort(-sizes, kind="stable"):
        fold_of[region] = int(np.argmin(load))
        load[fold_of[region]] += sizes[region]
    return Folds(fold_of[regions], regions, f"{folds} folds of {len(sizes)} regions")


def sharing(pairing: Pairing, bags: FineBags, fold: Ints) -> csr_array:
    """Which observations share fine cells across folds, (M, M): what is learnt leaks from there.

    The cells are those of the observations' own bags. Neighbours share them where grids do not
    nest.
    """
    matched = np.flatnonzero(pairing.own_bag >= 0)
    shape = (len(fold), len(fold))
    if not matched.size:
        return csr_array(shape, dtype=np.int32)
    pairs = bags.sharing(pairing.own_bag[matched]).tocoo()
    rows, columns = (matched[index] for index in pairs.coords)
    apart = fold[rows] != fold[columns]
    rows, columns = rows[apart], columns[apart]
    return csr_array((np.ones(len(rows), dtype=np.int32), (rows, columns)), shape=shape)


def _regions(pairing: Pairing, n: int, seed: int) -> Ints:
    """Contiguous groups of observed cells; a cell is in one group at all its times."""
    cells, index = np.unique(pairing.observed_cell, return_inverse=True)
    positions = pairing.coarse.positions[cells]
    n = min(n, len(cells))
    labels = KMeans(n, n_init=1, random_state=seed).fit_predict(positions / positions.std())
    _, compact = np.unique(labels, return_inverse=True)
    return compact[index].astype(np.int64)
