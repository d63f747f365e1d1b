"""The two datasets of one call, each read once: its grid, and its variables as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.axes import Flags, Floats, Grid, Ints
from deconditional.fields.between import means_over_time, same_means
from deconditional.fields.clock import MOMENT, Clock, comparable, windows_of, years
from deconditional.fields.frames import GEOGRAPHIC, Frame
from deconditional.fields.grids import check_names, find_grid, values_on
from deconditional.fields.overlap import check_cells
from deconditional.fields.part import Reader, check_marks
from deconditional.fields.parts import Parts
from deconditional.fields.question import Question, check_dims, resolved
from deconditional.fields.regridding import together
from deconditional.fields.several import AMOUNTS, Told, as_table, joined, questions
from deconditional.fields.units import Units, UnitTimes
from deconditional.fields.zones.grid import DIM
from deconditional.fields.zones.layer import Layer, is_table
from deconditional.fields.zones.rows import named_rows
from deconditional.models.sources import Source


class Side:
    """A dataset and its grid."""

    dataset: xr.Dataset
    grid: Grid

    def at(self, times: Ints) -> Self:
        """The side at some of its times."""
        data, moments = self.dataset.isel({str(self.grid.time): times}), self.grid.times
        grid = self.grid.at(self.grid.time, None if moments is None else moments[times])
        return replace(self, dataset=data, grid=grid)  # type: ignore[type-var]


# ---------------------------------------------------------------------- fine


@dataclass(frozen=True)
class FineSide(Side):
    """A dataset with covariates, and its grid.

    `lasting` says that its covariates have no time and were repeated; `means` are those over time,
    of covariates that are divided, None before that is known; `understood` says in words what was
    done to bring several datasets together.
    """

    dataset: xr.Dataset
    question: Question
    grid: Grid
    lasting: bool = False
    means: xr.Dataset | None = None
    understood: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, data: Any, question: Question) -> FineSide:
        """The side of a dataset, or of several; raises where its covariates lie on no grid."""
        several = isinstance(data, list | tuple) and len(data) > 0
        dataset, said = together(data, (question.exposure,)) if several else (data, ())
        grid = find_grid(dataset, question.covariates, "fine", question.dims)
        return cls(dataset, question, grid, understood=said)

    def beside(self, coarse: Grid) -> FineSide:
        """The side with positions and areas in the frame of those of a coarse grid."""
        grid = seen_from(coarse.view, self, "fine")
        return replace(self, grid=grid.sized_by(coarse))

    @property
    def chunked(self) -> bool:
        """Whether a covariate is a Dask array."""
        return any(self.dataset[name].chunks is not None for name in self.question.covariates)

    def repeated(self, coarse: Grid) -> FineSide:
        """Covariates without times, the same at all times of a coarse grid; others as they are."""
        if self.grid.times is not None or coarse.times is None or len(coarse.times) < 2:
            return self
        name, times = coarse.time, coarse.times
        data = self.dataset.drop_vars(str(name), errors="ignore")
        values = {
            covariate: data[covariate].expand_dims({name: times})
            for covariate in self.question.covariates
        }
        data = data.assign(values).assign_coords({name: (name, times, {"standard_name": "time"})})
        return replace(self, dataset=data, grid=self.grid.at(name, times), lasting=True)

    def split(self) -> FineSide:
        """Covariates that vary in space and in time, divided: see :mod:`.between`."""
        if self.lasting:
            return self
        means = means_over_time(self.dataset, self.grid, self.question.covariates)
        names = tuple(map(str, means.data_vars))
        return replace(self, question=replace(self.question, split=names), means=means)

    def split_as(self, means: xr.Dataset | None, learnt: Grid) -> FineSide:
        """Covariates divided as they were where a model learnt."""
        if not self.question.split or self.means is not None or means is None:
            return self
        return replace(self, means=same_means(self.dataset, self.grid, means, learnt))

    def known(self) -> Flags:
        """Where all covariates are known, (times, cells), one of each where none has more."""
        known = np.ones((1, 1), dtype=bool)
        for name in self.question.covariates:
            known = known & np.isfinite(values_on(self.grid, self.dataset, name))
        return known

    def parts(
        self,
        coarse: Grid,
        unit_time: Ints,
        n_unit_times: int,
        clock: Clock,
        more: Mapping[str, xr.DataArray],
    ) -> Parts:
        """Covariates, more variables and the mask, to be worked on beside a coarse grid.

        `unit_time` is the unit time that each time of the fine data belongs to, or -1.
        """
        if not self.chunked:
            check_cells(self.grid, len(self.question.covariates), "fine")
        question = self.question
        variables = {name: self.dataset[name] for name in question.covariates}
        if self.means is not None:
            variables |= {f"{name}, mean over time": self.means[name] for name in question.split}
        variables |= dict(more)
        if question.exposure:
            self._check_beside(question.exposure, "exposure")
            variables["exposure"] = self.dataset[question.exposure]
        if question.mask:
            self._check_beside(question.mask, "mask")
            variables["mask"] = self.dataset[question.mask]
        reader = Reader(self.grid, coarse, question, unit_time, n_unit_times, clock)
        return Parts.of(variables, reader, self.chunked)

    def mediators(self) -> dict[str, xr.DataArray]:
        """The mediators that the fine data has: bags that lack one take its mean from there."""
        arrays = {}
        for name in self.question.mediators:
            array = self._mediator(name)
            if array is not None:
                arrays[f"mediator {name}"] = array
        return arrays

    def _mediator(self, name: str) -> xr.DataArray | None:
        grid, data = self.grid, self.dataset
        if name not in data.data_vars or not set(grid.spatial) <= set(data[name].dims):
            return None
        own = find_grid(data, [name], "fine", self.question.dims)
        array = data[name]
        if grid.times is None and own.time is not None:
            return array.where(np.isfinite(array)).mean(own.time)  # as coarse values are
        return None if own.time not in (None, grid.time) else array

    def _check_beside(self, name: str, role: str) -> None:
        """Raise where an exposure or a mask is no variable, or lies on another grid."""
        check_names(self.dataset, [name], "fine")
        own = find_grid(self.dataset, [name], "fine", self.question.dims)
        if own.spatial != self.grid.spatial:
            raise UsageError(
                f"the {role} {name!r} and the covariates lie on different dimensions; give them as "
                "several datasets, fine=[covariates, others], and they are brought together."
            )
        if own.n_times > 1 and (role == "mask" or own.time != self.grid.time):
            why = "a mask has none" if role == "mask" else "the covariates have none"
            raise UsageError(
                f"the {role} {name!r} has {own.n_times} times, where {why}; give one of them, "
                f"as in ds[{name!r}].isel({own.time}=0)."
            )


# ---------------------------------------------------------------------- coarse


@dataclass(frozen=True)
class CoarseSide(Side):
    """A dataset with target and mediators, and its grid.

    `clock` says what times are as inputs, of all times of both sides, None where they are none;
    `understood`, in words, what was found in a table of zones and done with it; `sources` how zones
    were observed, source by source, nothing where all are of one kind.
    """

    dataset: xr.Dataset
    question: Question
    grid: Grid
    clock: Clock | None = None
    understood: tuple[tuple[str, str], ...] = ()
    sources: tuple[Told, ...] = ()

    @classmethod
    def of(cls, dataset: xr.Dataset, question: Question) -> CoarseSide:
        """The side of a dataset; raises where its variables lie on no grid."""
        grid = find_grid(dataset, question.coarse_names, "coarse", question.dims)
        if grid.corners() is None:
            y, x = grid.coordinates
            raise UsageError(
                f"coarse data: {y!r} and {x!r} are places of points, so nothing is known of the "
                f"size of cells; give the corners of each, as in {y}_bnds on "
                f"{(*grid.spatial, 'corner')}, and the same of {x!r}."
            )
        return cls(dataset, question, grid)

    @classmethod
    def of_table(cls, table: Any, question: Question, fine: FineSide) -> CoarseSide:
        """The side of a table of polygons or points, seen in the frame of the fine cells."""
        more = () if question.amounts is None else (question.amounts,)
        time = (question.dims or {}).get("time")
        time = time if time in table.columns else None
        layer = Layer.of(table, [*question.coarse_names, *more], fine.grid, time=time)
        said = list(layer.understood)
        if layer.grid.is_point.all():
            said.append(("points", "each stands for the fine cell that it lies in"))
            question.check_points()
        elif question.kind is None and question.amounts is None:
            raise UsageError(
                f"is {question.target!r} the mean over each polygon, or the sum? Say kind='mean' "
                "(a temperature, a share) or kind='sum' (a total, such as a harvest); counts of "
                "cases take family=dc.Poisson(exposure=...) instead."
            )
        elif question.kind == "sum":
            per = question.exposure or "square kilometre"
            said.append(("sums", f"{question.target} is summed: the map is of it per {per}"))
        return cls(layer.values, question, layer.grid, understood=tuple(said))

    @classmethod
    def of_sources(cls, given: Sequence[tuple[Source, Question]], fine: FineSide) -> CoarseSide:
        """The side of several sources: the zones of all of them, one source after the other."""
        tables = [as_table(source, question) for source, question in given]
        sides = [cls.of_table(t, q, fine) for t, (_, q) in zip(tables, given, strict=True)]
        if any(side.grid.times is not None for side in sides):
            raise UsageError(
                "sources are of one time; leave the column of times out of dims, and downscale one "
                "time after the other."
            )
        for side in sides:
            side._check_values(side.question.target, side.dataset[side.question.target].values)
        data, grid, said, told = joined([source for source, _ in given], tables, sides)
        return cls(data, given[0][1], grid, None, said, told)

    @property
    def told(self) -> tuple[Told, ...]:
        """How cells were observed, source by source."""
        n = self.grid.n_cells
        return self.sources or (Told(n, self.question, np.full(n, np.nan)),)

    @property
    def times(self) -> np.ndarray | None:
        """Times of the target; None where it has none."""
        has_time = self.grid.time in self.dataset[self.question.target].dims
        return self.grid.times if has_time else None

    def names(self, units: Ints, times: np.ndarray | None) -> list[Any]:
        """Some units in words: by the names of zones, or else by their places; and their times."""
        cells, moments = np.divmod(units, self.grid.n_cells)[::-1]
        y, x = self.grid.coordinates
        called = [f"{y} {a:.6g}, {x} {b:.6g}" for a, b in self.grid.centres[cells]]
        if DIM in self.dataset.coords:
            called = self.dataset[DIM].values[cells].tolist()
        if times is None or len(times) < 2:
            return called
        return [f"{c} at {str(times[k])[:10]}" for c, k in zip(called, moments, strict=True)]

    def named(self, which: Flags, times: np.ndarray | None = None) -> str:
        """The first of some units in words, and how many more there are."""
        names = self.names(np.flatnonzero(which), times)
        text = named_rows(names, np.ones(len(names), dtype=bool))
        return text if DIM in self.dataset.coords else f"at {text}"

    def thinned(self, cells: Flags) -> CoarseSide:
        """The side with the target in some of its cells."""
        name, dims = self.question.target, self.grid.spatial
        kept = xr.DataArray(cells.reshape([self.dataset.sizes[d] for d in dims]), dims=dims)
        return replace(self, dataset=self.dataset.assign({name: self.dataset[name].where(kept)}))

    def units(self, fine_times: np.ndarray | None) -> Units:
        """Target, mediators and amounts of all cells, or all cells at times."""
        question, grid = self.question, self.grid
        check_cells(grid, len(question.coarse_names), "coarse")
        at = UnitTimes.of(fine_times, self.times, self.clock)
        amounts, columns = AMOUNTS if self.sources else question.amounts, {}
        for name in (*question.coarse_names, *([amounts] if amounts else [])):
            values = values_on(grid, self.dataset, name)
            if name in question.coarse_names:
                self._check_values(name, values)
            columns[name] = at.laid_out(values, grid.time not in self.dataset[name].dims)
        target = columns[question.target]
        mediators = [columns[name] for name in question.mediators]
        mediator = np.stack(mediators, 1) if mediators else np.zeros((len(target), 0))
        return Units(target, mediator, at, columns[amounts] if amounts else None)

    def _check_values(self, name: str, values: Floats) -> None:
        check_marks(values, name)
        role = "target" if name == self.question.target else "mediator"
        if np.isnan(values).all():
            raise UsageError(f"the {role} {name!r} is missing in every coarse cell; check it.")


# ---------------------------------------------------------------------- both


def two_sides(fine: Any, coarse: Any, question: Question) -> tuple[FineSide, CoarseSide]:
    """Both sides; raises where a dataset lacks what is asked for, or they are of two worlds."""
    several = questions(coarse, question, fine) if isinstance(coarse, list | tuple) else None
    question = several[0][1] if several else resolved(question, fine, coarse)
    given = [each.where for each, _ in several] if several else [coarse]
    check_dims(question, [*(fine if isinstance(fine, list | tuple) else [fine]), *given])
    met = FineSide.of(fine, question)
    if several or is_table(coarse):
        of = CoarseSide
        other = of.of_sources(several, met) if several else of.of_table(coarse, question, met)
        return at_times(met.beside(other.grid), other)
    if hasattr(coarse, "crs") and not hasattr(coarse, "data_vars"):
        raise UsageError(
            "the coarse data must be an xarray Dataset or a GeoDataFrame with the target as a "
            f"column, not {type(coarse).__name__}."
        )
    return at_times(*_meeting(met, CoarseSide.of(coarse, question)))


def at_times(fine: FineSide, coarse: CoarseSide) -> tuple[FineSide, CoarseSide]:
    """Both sides at the times that they have, which are inputs unless they are to be ignored."""
    question, times = coarse.question, coarse.times
    if times is None:
        return fine, coarse
    if question.time == "ignore":
        if question.family is not None and len(times) > 1:
            raise UsageError(
                f"time='ignore' takes means over {len(times)} times, and means of counts are no "
                "counts; sum them over time first, choose one time, or leave time='ignore' out."
            )
        return fine, coarse
    fine = fine.repeated(coarse.grid)
    if fine.grid.times is None:
        return fine, coarse
    clock = _clock(fine, coarse)
    return fine.split() if clock.mode == "smooth" else fine, replace(coarse, clock=clock)


def _clock(fine: FineSide, coarse: CoarseSide) -> Clock:
    """What times of both sides are as inputs, and which belong together."""
    assert fine.grid.times is not None and coarse.times is not None
    times, others = comparable(fine.grid.times, coarse.times)
    question, said, windows = fine.question, "", None
    if not fine.lasting:
        line, least = str(coarse.grid.time), question.min_cover
        windows, said = windows_of(coarse.dataset, line, others, times, question.window, least)
    if windows is not None:  # of a coarse time in a window the fine times say when it is
        others = others[np.abs(years(others)[:, None] - windows[0]).min(1) > MOMENT]
    every = np.unique(np.concatenate([times, others]))
    return Clock.of(every, question.time, windows, said)


def _meeting(fine: FineSide, coarse: CoarseSide) -> tuple[FineSide, CoarseSide]:
    """Two sides in one frame: their own if it is the same, else latitude and longitude."""
    if not fine.grid.frame.same_as(coarse.grid.frame):
        coarse = replace(coarse, grid=seen_from(GEOGRAPHIC, coarse, "coarse"))
    return fine.beside(coarse.grid), coarse


def seen_from(frame: Frame, side: FineSide | CoarseSide, which: str) -> Grid:
    """The grid of a side with its positions and areas in a frame."""
    grid, own = side.grid, side.grid.frame
    if own.same_as(frame) or (own.known and frame.known):
        seen = None if own.same_as(frame) else frame
        return replace(grid, seen=seen)  # type: ignore[type-var]
    names = side.question.covariates if which == "fine" else side.question.coarse_names
    globe = find_grid(side.dataset, names, which, side.question.dims, globe=True)
    if not globe.frame.geographic or not frame.known:
        raise UsageError(
            f"the {which} grid is {own.describe()}, the other one {frame.describe()}, and nothing "
            "says where on the globe both are; give a CF grid mapping, or latitude and longitude "
            "as coordinates with two dimensions."
        )
    return replace(globe, seen=None if frame.geographic else frame)  # type: ignore[type-var]
