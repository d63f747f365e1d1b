"""Units of observation: coarse cells, or coarse cells at times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deconditional.fields.axes import Floats, Grid, Ints
from deconditional.fields.clock import Clock, comparable, time_places


@dataclass(frozen=True)
class Units:
    """Cells, or cells at times: all times of either side, a window in place of the times in it.

    `clock` says what times are as inputs, `fine_time` the unit time that each time of the fine data
    belongs to, and `how`, in words, what was done about time. `amounts` is what rates are
    multiplied by, where the coarse data says it.
    """

    target: Floats
    mediator: Floats
    times: np.ndarray | None
    clock: Clock
    fine_time: Ints
    how: str | None
    amounts: Floats | None = None

    @property
    def size(self) -> int:
        """Number of units."""
        return len(self.target)

    def places(self, grid: Grid, position: bool) -> Floats:
        """Where all units are: cell centres, if these are asked for, and inputs of their times."""
        n_times = self.size // grid.n_cells
        where = np.tile(grid.positions, (n_times, 1)) if position else np.zeros((self.size, 0))
        if self.times is None:
            return where
        return np.concatenate([where, np.repeat(self.clock(self.times), grid.n_cells, 0)], 1)


def make_units(
    fine_times: np.ndarray | None,
    coarse_times: np.ndarray | None,
    target: Floats,
    mediator: Floats,
    lasting: Sequence[bool],
    clock: Clock | None = None,
) -> Units:
    """The units; `lasting` mediators have no time, so they belong to all times.

    `clock` says what times are as inputs, if they are some.
    """
    n_fine = 1 if fine_times is None else len(fine_times)
    if fine_times is None or coarse_times is None:
        how = None
        if coarse_times is not None and len(target) > 1:
            how = (
                f"the fine covariates have no time, so coarse values are averaged over "
                f"{len(target)} times into one field; choose a time to downscale that one alone"
            )
        elif n_fine > 1:
            how = (
                f"the coarse values have no time, so a bag holds its cell at all {n_fine} times "
                "of the fine covariates"
            )
        return Units(
            mean_over_times(target),
            mean_over_times(mediator),
            None,
            Clock(),
            np.zeros(n_fine, dtype=np.int64),
            how,
        )
    fine_times, coarse_times = comparable(fine_times, coarse_times)
    clock = clock or Clock()
    own = clock.places(fine_times, coarse_times)
    both = (
        f"{len(fine_times)} fine and {len(coarse_times)} coarse times, {(own >= 0).sum()} in common"
    )
    how = "; ".join(["a unit is a cell at a time: " + both, *([clock.said] if clock.said else [])])
    if clock.windows is None:
        times = np.concatenate(
            [fine_times, coarse_times[time_places(coarse_times, fine_times) < 0]]
        )
        fine_time = np.arange(len(fine_times), dtype=np.int64)
    else:
        times, how = np.concatenate([coarse_times, fine_times[own < 0]]), clock.said
        fine_time = np.where(own < 0, len(coarse_times) + np.cumsum(own < 0) - 1, own)
    rows = time_places(coarse_times, times)
    n_cells = target.shape[1]
    all_target = np.full((len(times), n_cells), np.nan)
    all_mediator = np.full((len(times), n_cells, mediator.shape[-1]), np.nan)
    all_target[rows], all_mediator[rows] = target, mediator
    all_mediator[..., lasting] = mediator[0][:, lasting]
    return Units(
        all_target.reshape(-1),
        all_mediator.reshape(len(times) * n_cells, mediator.shape[-1]),
        times,
        clock,
        fine_time,
        how,
    )


def mean_over_times(values: Floats) -> Floats:
    """Mean over times of what is there."""
    there = np.isfinite(values)
    total = np.where(there, values, 0.0).sum(0)
    count = there.sum(0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
