"""Models compared where the truth is known: on coarse observations that they have not seen.

Neighbouring coarse cells tell about each other, so observations are held out in blocks: contiguous
regions, or stretches of time. Where data is matched, the *detail* of regions is held out too, which
is what downscaling is about (:mod:`deconditional.fields.opponents`). Models are chosen by the
scores of held-out observations, which stay right where no model is: the evidence of a Gaussian
model of rain is worth nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from deconditional.bags.clusters import clusters
from deconditional.errors import Caution, NoSkillWarning, UsageError
from deconditional.fields.fine_bags import FineBags
from deconditional.fields.opponents import BILINEAR, REGRESSION
from deconditional.fields.pair import Pairing
from deconditional.inference.posterior import Gaussians
from deconditional.scores import mae, rmse, score
from deconditional.scores import pit as probabilities
from deconditional.scores.distributions import crps_each

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SCORES = ("rmse", "crps", "nll", "coverage95", "coverage50")
REGIONS_PER_FOLD = 4
MIXTURE = "mixture"
"""What all models together are called among models; see :mod:`deconditional.fields.mixture`."""

PLAUSIBLE_GAP = 1.0
"""Bag means are off a regression by one standard deviation at most if both are right."""

SIMPLE = {
    BILINEAR: "bilinear interpolation",
    REGRESSION: "a linear regression, its residuals interpolated,",
}
"""Simple answers in words, by their names."""

WHERE = {
    "rmse": "of held-out coarse cells",
    "crps": "of counts of held-out zones",
    "detail_rmse": "of coarse cells whose means over two by two are known",
}
"""What errors are of, by their column."""


class Predicted(NamedTuple):
    """Observations in standardised units, and what was predicted of them.

    Of a simple answer, which is a value and no distribution, variances are zero.
    """

    predicted: Gaussians
    z: Floats

    @property
    def is_value(self) -> bool:
        """Whether there are values alone, which have errors but neither density nor intervals."""
        return not self.predicted.component_variances.any()

    def scores(self, scale: float) -> dict[str, float | None]:
        """Scores in the target's units; of values alone, the error is all there is."""
        if self.is_value:
            mean = self.predicted.mean
            error = {"rmse": rmse(mean, self.z), "crps": mae(mean, self.z)}
            return dict.fromkeys(SCORES) | {name: scale * float(v) for name, v in error.items()}
        known = score(self.predicted, self.z)
        units = {"rmse": scale, "crps": scale}
        found = {name: units.get(name, 1.0) * float(known[name]) for name in SCORES}
        return {**found, "nll": found["nll"] + float(np.log(scale))}

    def crps(self) -> Floats:
        """The CRPS of every observation; of values alone, absolute errors."""
        return crps_each(self.predicted, self.z)

    def of(self, kept: npt.NDArray[np.bool_]) -> Predicted:
        """Predictions of some of the observations."""
        means, variances = self.predicted.component_means, self.predicted.component_variances
        return Predicted(Gaussians(means[:, kept], variances[:, kept]), self.z[kept])

    @classmethod
    def value(cls, values: Floats, z: Floats) -> Predicted:
        """Values alone."""
        return cls(Gaussians(values[None], np.zeros((1, len(values)))), z)

    @classmethod
    def joined(cls, parts: Sequence[Predicted]) -> Predicted | None:
        """Several together; None where there are none."""
        if not parts:
            return None
        means = np.concatenate([each.predicted.component_means for each in parts], axis=1)
        variances = np.concatenate([each.predicted.component_variances for each in parts], axis=1)
        return cls(Gaussians(means, variances), np.concatenate([each.z for each in parts]))


@dataclass(frozen=True)
class Tried:
    """How one model predicts observations.

    Attributes
    ----------
    held_out
        Those that it has not seen.
    detail
        Those that it has seen means over groups of, where observations have bags.
    bag_gap
        How far the field's means over the bags are from a regression of the observations on the
        mediators, root mean square in standard deviations of that regression. Where both are right
        it is one at most. Held-out observations cannot see this: where data is unmatched they have
        no fine covariates, and a field can explain all of them and still be absurd.
    simplicity
        A higher one is preferred where scores do not tell models apart.
    share
        Draws of the mixture that it gives.
    """

    model: str
    held_out: Predicted
    seconds: float
    detail: Predicted | None = None
    bag_gap: float | None = None
    simplicity: int = 0
    share: int | None = None


@dataclass(frozen=True)
class Comparison:
    """Scores of models on coarse observations, bilinear interpolation among them.

    Attributes
    ----------
    rows
        A mapping per model: its name; ``rmse``, ``crps``, ``nll``, coverage of the 95 % and 50 %
        intervals on held-out observations; for matched data ``detail_rmse`` and ``detail_crps`` of
        cells predicted from means over groups of them, and its ``draws`` in the mixture; for
        unmatched data the ``bag_gap`` (see :doc:`choosing`); and the seconds of its fit. Errors are
        in the target's units, or those of its logarithm; so is the density behind ``nll``.
    chosen
        The mixture, or, where there is none, the simplest model whose CRPS on held-out observations
        is within a standard error of the lowest.
    how
        The folds, in words.
    pit
        For every model the probabilities that predictions lie below what was observed: uniform
        where they are calibrated.
    units
        Of the target, or of its logarithm.
    opponent
        The simple answer that has to be beaten.
    judge
        The column that counts; by default that of errors of detail, or else of held-out cells.

    Examples
    --------
    >>> row = {"model": "cmp", "rmse": 1.0, "crps": 0.5}
    >>> table = Comparison(
    ...     (row, {"model": "bilinear", "rmse": 0.9, "crps": 0.7}), "cmp", "5 blocks"
    ... )
    >>> print(table)
    held-out coarse observations, 5 blocks
    model     rmse  crps
    cmp *        1   0.5
    bilinear   0.9   0.7
    >>> print(table.doubt())
    bilinear interpolation would have been as good: RMSE 0.9 against 1 (of held-out coarse cells).
    """

    rows: tuple[Mapping[str, Any], ...]
    chosen: str
    how: str
    pit: Mapping[str, np.ndarray] = field(default_factory=dict)
    units: str = ""
    opponent: str = BILINEAR
    judge: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of the comparison."""
        return tuple(self.rows[0])

    @property
    def judged_by(self) -> str:
        """The column with the errors that count."""
        if self.judge:
            return self.judge
        return "detail_rmse" if "detail_rmse" in self.columns else "rmse"

    @property
    def errors(self) -> dict[str, float]:
        """The error of every model that counts, in the target's units."""
        return {row["model"]: row[self.judged_by] for row in self.rows}

    def shares(self, model: str) -> dict[str, int]:
        """Models that a model is made of, itself but for a mixture, and the draws of each."""
        if model != MIXTURE:
            return {model: 1}
        return {row["model"]: row["draws"] for row in self.rows if row["draws"]}

    def skill(self, model: str | None = None) -> str | None:
        """How a model, by default the chosen one, does beside bilinear interpolation, in words."""
        errors = self.errors
        mine, theirs = errors.get(model or self.chosen), errors.get(self.opponent)
        if mine is None or theirs is None:
            return None
        return (
            f"{self._kind} {mine:.3g}{self._unit}, {self._theirs} {theirs:.3g} "
            f"({WHERE[self.judged_by]})"
        )

    def doubt(self, model: str | None = None) -> str | None:
        """A sentence where a model is no better than the best of the simple answers."""
        errors = self.errors
        simple = [name for name in (self.opponent, REGRESSION) if name in errors]
        mine = errors.get(model or self.chosen)
        best = min(simple, key=lambda name: errors[name], default=None)
        if mine is None or best is None or mine < (theirs := errors[best]):
            return None
        return (
            f"{SIMPLE.get(best, best)} would have been as good: {self._kind} {theirs:.3g} against "
            f"{mine:.3g}{self._unit} ({WHERE[self.judged_by]})."
        )

    @property
    def cautions(self) -> list[Caution]:
        """A warning where there is a doubt."""
        found = self.doubt()
        return [] if found is None else [Caution(NoSkillWarning, found)]

    @property
    def _theirs(self) -> str:
        return SIMPLE.get(self.opponent, self.opponent)

    @property
    def _kind(self) -> str:
        return self.judged_by.removeprefix("detail_").upper()

    @property
    def _unit(self) -> str:
        return f" {self.units}" if self.units else ""

    def cells(self) -> list[list[str]]:
        """The table as text, the chosen model marked."""
        return [[self._cell(value) for value in row.values()] for row in self.rows]

    def _cell(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{value} *" if value == self.chosen else value
        return "" if value is None else f"{value:.3g}"

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


def compared(tried: Sequence[Tried], scale: float, how: str, units: str = "") -> Comparison:
    """Score models against each other; `scale` turns standardised units into the target's."""
    rows, pit = [], {}
    for each in tried:
        row: dict[str, Any] = {"model": each.model, **each.held_out.scores(scale)}
        if each.detail is not None:
            found = each.detail.scores(scale)
            row |= {f"detail_{name}": found[name] for name in ("rmse", "crps")}
        if any(other.bag_gap is not None for other in tried):
            row["bag_gap"] = each.bag_gap
        if any(other.share is not None for other in tried):
            row["draws"] = each.share
        rows.append({**row, "seconds": round(each.seconds, 2)})
        if not each.held_out.is_value:
            pit[each.model] = probabilities(each.held_out.predicted, each.held_out.z)
    return Comparison(tuple(rows), _chosen(tried), how, pit, units)


def _chosen(tried: Sequence[Tried]) -> str:
    """Name of the chosen model, by the rules of :class:`Comparison`."""
    if any(each.model == MIXTURE for each in tried):
        return MIXTURE
    models = [each for each in tried if not each.held_out.is_value]
    plausible = [each for each in models if (each.bag_gap or 0.0) <= PLAUSIBLE_GAP]
    if not plausible:
        return min(models, key=lambda each: each.bag_gap or 0.0).model

    scores = [each.held_out.crps() for each in plausible]
    lowest = int(np.argmin([score.mean() for score in scores]))
    worse = [score - scores[lowest] for score in scores]
    order = [
        (-each.simplicity if found.mean() <= found.std() / np.sqrt(len(found)) else 1, found.mean())
        for each, found in zip(plausible, worse, strict=True)
    ]
    return plausible[order.index(min(order))].model


@dataclass(frozen=True)
class Folds:
    """The fold of every observation.

    Attributes
    ----------
    how
        How the observations were divided, in words.
    """

    fold: Ints
    how: str


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
        return Folds(fold_of[time], f"{folds} stretches of time")
    regions = _regions(pairing, min(REGIONS_PER_FOLD * folds, m), seed)
    sizes = np.bincount(regions)
    if len(sizes) < 2:
        raise UsageError("the target is known in one coarse cell; use by='time'.")
    fold_of, load = np.empty(len(sizes), dtype=np.int64), np.zeros(folds)
    for region in np.argsort(-sizes, kind="stable"):
        fold_of[region] = int(np.argmin(load))
        load[fold_of[region]] += sizes[region]
    return Folds(fold_of[regions], f"{folds} folds of {len(sizes)} regions")


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
    labels = clusters(positions / positions.std(), n, seed)
    _, compact = np.unique(labels, return_inverse=True)
    return compact[index].astype(np.int64)
