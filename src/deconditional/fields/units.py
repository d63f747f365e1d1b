"""Units of observation: coarse cells, or coarse cells at times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deconditional.fields.axes import Floats, Grid, Ints
from deconditional.fields.clock import Clock, comparable, time_places


@dataclass(frozen=True)
class UnitTimes:
    """The times of units: all times of either side, a window in place of the times in it.

    `times` is None where units have none; `clock` says what times are as inputs, `rows` which times
    are those of the coarse data, `fine_time` the unit time that each time of the fine data belongs
    to, and `how`, in words, what was done about time.
    """

    times: np.ndarray | None
    clock: Clock
    rows: Ints
    fine_time: Ints
    how: str | None

    @classmethod
    def of(
        cls,
        fine_times: np.ndarray | None,
        coarse_times: np.ndarray | None,
        clock: Clock | None = None,
    ) -> UnitTimes:
        """The times of the units of two sides; `clock` says what times are as inputs, if they are.

        Times of one side alone are no times of units: the other is of all of them together.
        """
        if fine_times is None or coarse_times is None:
            n_fine, how = 1 if fine_times is None else len(fine_times), None
            if coarse_times is not None and len(coarse_times) > 1:
                how = (
                    f"the fine covariates have no time, so coarse values are averaged over "
                    f"{len(coarse_times)} times into one field; choose a time to downscale that "
                    "one alone"
                )
            elif n_fine > 1:
                how = (
                    f"the coarse values have no time, so a bag holds its cell at all {n_fine} "
                    "times of the fine covariates"
                )
            none = np.zeros(0, dtype=np.int64)
            return cls(None, Clock(), none, np.zeros(n_fine, dtype=np.int64), how)
        fine_times, coarse_times = comparable(fine_times, coarse_times)
        clock = clock or Clock()
        own = clock.places(fine_times, coarse_times)
        if clock.windows is not None:
            times, how = np.concatenate([coarse_times, fine_times[own < 0]]), clock.said
            fine_time = np.where(own < 0, len(coarse_times) + np.cumsum(own < 0) - 1, own)
            return cls(times, clock, time_places(coarse_times, times), fine_time, how)
        how = (
            f"a unit is a cell at a time: {len(fine_times)} fine and {len(coarse_times)} coarse "
            f"times, {(own >= 0).sum()} in common"
        )
        how = "; ".join([how, *([clock.said] if clock.said else [])])
        beyond = coarse_times[time_places(coarse_times, fine_times) < 0]
        times = np.concatenate([fine_times, beyond])
        rows = time_places(coarse_times, times)
        return cls(times, clock, rows, np.arange(len(fine_times), dtype=np.int64), how)

    def laid_out(self, values: Floats, is_lasting: bool) -> Floats:
        """Values (times, cells) of the coarse data at all units, NaN at times that it lacks.

        What is lasting has no time, so it belongs to all; units without times have means over time.
        """
        if self.times is None:
            there = np.isfinite(values)
            total, count = np.where(there, values, 0.0).sum(0), there.sum(0)
            return np.where(count > 0, total / np.maximum(count, 1), np.nan)
        every = np.full((len(self.times), values.shape[1]), np.nan)
        every[slice(None) if is_lasting else self.rows] = values
        return every.ravel()


@dataclass(frozen=True)
class Units:
    """Cells, or cells at times: what was observed of them and their mediators.

    `amounts` is what rates are multiplied by, where the coarse data says it.
    """

    target: Floats
    mediator: Floats
    at: UnitTimes
    amounts: Floats | None = None

    @property
    def size(self) -> int:
        """Number of units."""
        return len(self.target)

    def places(self, grid: Grid, position: bool) -> Floats:
        """Where all units are: cell centres, if these are asked for, and inputs of their times."""
        n_times, times = self.size // grid.n_cells, self.at.times
        where = np.tile(grid.positions, (n_times, 1)) if position else np.zeros((self.size, 0))
        if times is None:
            return where
        return np.concatenate([where, np.repeat(self.at.clock(times), grid.n_cells, 0)], 1)
