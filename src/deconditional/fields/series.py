"""Many times: learnt from at a few, then every time conditioned on its neighbours.

Exact inference costs the cube of the number of observations, so a series is not one problem. Its
hyper-parameters are learnt from a sample: a few runs of neighbouring times, which tell how fast the
field changes, far from each other, which tells what lasts. Then every time is conditioned, with
these hyper-parameters, on the observations of the times around it. A window that holds all times
gives the exact posterior; one of a single time is a fit of that time alone.

A window is two small datasets, paired like any others, so memory holds a few times whatever their
number, and windows are tasks of Dask where the data is chunked or large.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import xarray as xr

from deconditional.errors import DeconditionalWarning
from deconditional.fields.axes import Floats, Ints
from deconditional.fields.clock import Clock, years
from deconditional.fields.grids import values_on
from deconditional.fields.learn import Learner
from deconditional.fields.mixture import Mixture, drawn
from deconditional.fields.pair import Pairing, pair
from deconditional.fields.predict import Together, Wanted, parts_of
from deconditional.fields.recipes import condensed_size
from deconditional.fields.sides import CoarseSide, FineSide
from deconditional.fitting.progress import tell
from deconditional.saving.kinds import LeftBehind

LEARNT = 600
"""Observations that hyper-parameters are learnt from: a minute or so of exact inference."""

AT_ONCE, AT_ONCE_OF_MANY = 1200, 400
"""Observations that a time is conditioned on, its own and those around it, and the same where a
result is large: the variance of a fine cell costs their square."""

RUNS = 3
"""Runs of neighbouring times in the sample, each in a part of the series of its own."""

FEWEST_TIMES = 6
"""Times of the sample: two in each run, where cells are left out to make room for them."""

LARGE = 4_000_000
"""Fine cells at all times from which on windows are tasks, and nothing holds all of the result."""


@dataclass(frozen=True)
class Series:
    """Both sides at many times."""

    # fine, coarse: the sides.
    fine: FineSide
    coarse: CoarseSide
    times: Ints  # times of the coarse side at which there are covariates and observations
    known: Ints  # the number of observations at each of these
    reach: int  # how many of them a window has

    @property
    def is_short(self) -> bool:
        """Whether one window holds all times."""
        return self.reach == len(self.times)

    def sample(self, seed: int) -> tuple[FineSide, CoarseSide]:
        """Both sides at the times that are learnt from, some cells left out where need be."""
        rng = np.random.default_rng(seed)
        typical, n = max(int(np.median(self.known)), 1), len(self.times)
        wanted = int(np.clip(LEARNT // typical, min(FEWEST_TIMES, n), n))
        edges = np.linspace(0, n, min(RUNS, wanted) + 1).astype(int)
        chosen: list[int] = []
        for k, (low, high) in enumerate(pairwise(edges)):
            size = min(len(range(k, wanted, len(edges) - 1)), high - low)
            start = int(rng.integers(low, high - size + 1))
            chosen += range(start, start + size)
        places = self.times[chosen]
        coarse = self.coarse.at(places)
        values = values_on(coarse.grid, coarse.dataset, coarse.question.target)
        share = LEARNT / max(int(np.isfinite(values).sum()), 1)
        if share < 1.0:
            coarse = coarse.thinned(rng.uniform(size=coarse.grid.n_cells) < share)
        return self.fine.at(self._fine_places(places)), coarse

    def around(self, fine_times: np.ndarray) -> list[tuple[int, ...]]:
        """The coarse times on which every fine time is conditioned: the nearest ones."""
        assert self.coarse.times is not None
        at = years(fine_times)[:, None]
        low, high = self.clock.spans(self.coarse.times[self.times])
        apart = np.maximum(np.maximum(low - at, at - high), 0.0)
        near = np.argsort(apart, axis=1, kind="stable")[:, : self.reach]
        alone = self.fine.question.time == "independent"  # other times say nothing
        there = apart.min(1) == 0.0 if alone else np.ones(len(apart), dtype=bool)
        return [
            tuple(np.sort(self.times[row]).tolist()) if known else ()
            for row, known in zip(near, there, strict=True)
        ]

    @property
    def clock(self) -> Clock:
        """What times are, and which belong together."""
        return self.coarse.clock or Clock()

    def window(self, places: Sequence[int]) -> tuple[FineSide, CoarseSide]:
        """Both sides at some of the coarse times."""
        chosen = np.array(places, dtype=np.int64)
        return self.fine.at(self._fine_places(chosen)), self.coarse.at(chosen)

    def _fine_places(self, places: Ints) -> Ints:
        """The fine times that belong to some coarse times."""
        assert self.coarse.times is not None and self.fine.grid.times is not None
        among = self.clock.places(self.fine.grid.times, self.coarse.times[places])
        return np.flatnonzero(among >= 0)

    def overview(self, pairing: Pairing) -> Pairing:
        """A pairing whose units are all coarse times, of the one that was learnt from."""
        side, grid = self.coarse, self.coarse.grid
        target = values_on(grid, side.dataset, pairing.question.target).ravel()
        few = "all" if pairing.coarse.n_times == len(self.times) else pairing.coarse.n_times
        known = np.isfinite(target).sum()
        text = (
            f"parameters are learnt from {len(pairing.z)} of {known} observations, at {few} of "
            f"{len(self.times)} times (the lines above are of these); every time is conditioned on "
            f"the observations of {self.reach} time{'s' * (self.reach > 1)}, its own among them"
        )
        return replace(
            pairing,
            fine=self.fine.grid,
            coarse=grid,
            times=side.times,
            target=target,
            bag_unit=np.zeros(0, dtype=np.int64),
            understood=(*pairing.understood, ("series", text)),
        )


def series_of(fine: FineSide, coarse: CoarseSide) -> Series | None:
    """The series that two sides are, if they have more observations than one problem may have.

    Times that are independent are a series however few they are.
    """
    mode, times = fine.question.time, coarse.times
    if mode == "ignore" or fine.grid.times is None or times is None or len(times) < 2:
        return None
    values = np.isfinite(values_on(coarse.grid, coarse.dataset, fine.question.target)).sum(1)
    clock = coarse.clock or Clock()
    places = clock.places(fine.grid.times, times)
    common = np.isin(np.arange(len(times)), places) & (values > 0)
    if values[common].sum() <= values.sum() / 2:  # not matched in time
        return None
    if mode == "smooth" and values.sum() <= LEARNT:
        return None
    reach = 1
    if mode == "smooth":
        large = fine.grid.n_cells * fine.grid.n_times > LARGE
        most = AT_ONCE_OF_MANY if large else AT_ONCE
        reach = min(max(most // int(values[common].max()), 1), int(common.sum()))
        if reach < common.sum() and reach % 2 == 0:
            reach -= 1  # as many before as after
    return Series(fine, coarse, np.flatnonzero(common), values[common], int(reach))


# ---------------------------------------------------------------------- window by window


@dataclass(frozen=True)
class Conditioner:
    """What conditions windows: models with their parameters, and all that candidates share."""

    learner: Learner
    members: Sequence[tuple[str, Mapping[str, Any]]]

    def __call__(
        self, fine: FineSide, coarse: CoarseSide, where: FineSide, wanted: Wanted
    ) -> tuple[Floats, Floats]:
        """Layers (layers, times, y, x) of the posterior there, and area means (times, cells)."""
        if not coarse.grid.n_times or not np.any(where.known()):
            shape = (where.grid.n_times, *where.grid.shape)
            return wanted.nothing(shape), np.full((shape[0], coarse.grid.n_cells), np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeconditionalWarning)
            learner, model = self.conditioned(fine, coarse)
            source = Together(parts_of(where, learner.problem), model, learner.problem)
            stack, means = source.layers(wanted, lambda _: None)
        times = learner.problem.pairing.times
        assert times is not None and where.grid.times is not None
        place = learner.problem.pairing.clock.places(where.grid.times, times)
        by_time = means.reshape(len(times), -1)
        return stack, np.where(place[:, None] >= 0, by_time[place], np.nan)

    def conditioned(self, fine: FineSide, coarse: CoarseSide) -> tuple[Learner, Any]:
        """The model of a window, and the learner it comes from."""
        pairing, bags = pair(fine, coarse, few=True)
        problem = replace(self.learner.problem, pairing=pairing)
        learner = replace(self.learner, problem=problem, bags=bags, folds=None, matched=True)
        data = {name: learner.data(name) for name in dict(self.members)}
        models = {}
        for k, (name, values) in enumerate(self.members):
            one = replace(learner, recipe=replace(learner.recipe, held=values))
            model = one.fit(name, data[name], data[name].z)
            models[k] = one.corrected(name, model, data[name]) if problem.target.log else model
        alone = len(models) == 1
        return learner, models[0] if alone else Mixture(models, dict.fromkeys(models, 1))


@dataclass(frozen=True)
class Windows:
    """Where to predict, and the windows it takes."""

    series: Series
    conditioner: Conditioner
    where: FineSide  # the side to predict on

    @classmethod
    def of(
        cls, series: Series, learner: Learner, name: str, model: Any, where: FineSide
    ) -> Windows:
        """The windows of a fit, its parameters held."""
        members, recipe = drawn(name, model), learner.recipe
        gone = LeftBehind("the bags that were learnt from", "fit again")
        found = cls(series, Conditioner(learner, members), where)
        if found.lazy and recipe.points_per_bag == "auto":  # no more than it was learnt from
            sizes = learner.problem.pairing.n_bags, series.reach * int(series.known.max())
            size = min(condensed_size(name, n, in_time=True) for n in sizes for name, _ in members)
            recipe = replace(recipe, points_per_bag=size)
        bare = replace(learner, recipe=recipe, bags=gone, series=None)
        return replace(found, conditioner=Conditioner(bare, members))

    @property
    def lazy(self) -> bool:
        """Whether windows are tasks of Dask."""
        grid = self.where.grid
        return self.where.chunked or grid.n_cells * grid.n_times > LARGE

    def groups(self) -> list[tuple[Ints, tuple[int, ...]]]:
        """Times in a row that have one window, and the window."""
        assert self.where.grid.times is not None
        around = self.series.around(self.where.grid.times)
        found = groupby(range(len(around)), key=around.__getitem__)
        return [(np.array(list(rows)), places) for places, rows in found]

    def predicted(
        self, wanted: Wanted, stage: Callable[[str], None]
    ) -> tuple[dict[str, tuple[tuple[str, ...], Any]], Any]:
        """All that was asked for, and its area means over all cells at all coarse times."""
        groups, size = self.groups(), wanted.size
        jobs = [
            (*self.series.window(places), self.where.at(rows), wanted.for_window(int(rows[0])))
            for rows, places in groups
        ]
        if self.lazy:
            import dask.array as da
            from dask.delayed import delayed

            task = delayed(_in_task, pure=False)
            shared = delayed(self.conditioner, pure=False, traverse=False)
            shape = self.where.grid.shape
            layers = [
                da.from_delayed(task(shared, *job), (size, len(rows), *shape), dtype=float)
                for job, (rows, _) in zip(jobs, groups, strict=True)
            ]
            unknown = da.full(len(self._target_times) * self.series.coarse.grid.n_cells, np.nan)
            return wanted.named(da.concatenate(layers, axis=1)), unknown
        found = []
        for k, job in enumerate(jobs):
            found.append(self.conditioner(*job))
            tell("windows", k + 1, len(jobs))
        stack = np.concatenate([layers for layers, _ in found], axis=1)
        return wanted.named(stack), self._at_coarse_times(np.concatenate([m for _, m in found]))

    def area_means(self, mean: xr.DataArray) -> Floats:
        """Area means over all coarse cells and times of a field that was written."""
        pairing = self.conditioner.learner.problem.pairing
        found = np.full((self.where.grid.n_times, self.series.coarse.grid.n_cells), np.nan)
        for k in range(len(found)):
            side = self.where.at(np.array([k]))
            clock = replace(pairing.clock, windows=None)
            target = np.zeros(found.shape[1])
            here = replace(pairing, times=side.grid.times, target=target, clock=clock)
            problem = replace(self.conditioner.learner.problem, pairing=here)
            found[k] = parts_of(side, problem).area_means(mean[k : k + 1].values)
        return self._at_coarse_times(found)

    @property
    def _target_times(self) -> np.ndarray:
        assert self.series.coarse.times is not None
        return self.series.coarse.times

    def _at_coarse_times(self, means: Floats) -> Floats:
        """Means (times of `where`, cells) at the times of the coarse side, in one row."""
        assert self.where.grid.times is not None
        place = self.series.clock.places(self.where.grid.times, self._target_times)
        known = np.isfinite(means) & (place >= 0)[:, None]
        total, count = np.zeros((2, len(self._target_times), means.shape[1]))
        np.add.at(total, place, np.where(known, means, 0.0))  # a window holds several times
        np.add.at(count, place, known)
        return np.where(count > 0, total / np.maximum(count, 1), np.nan).ravel()


def _in_task(*given: Any) -> Floats:
    conditioner, *job = given
    return conditioner(*job)[0]
