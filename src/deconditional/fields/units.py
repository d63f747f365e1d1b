"""Units of observation: coarse cells, or coarse cells at times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deconditional.errors import UsageError
from deconditional.fields.axes import Grid

__all__ = ["Units", "make_units", "mean_over_times", "time_places"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Units:
    """Cells, or cells at times: all times of either side, the fine ones first.

    Attributes
    ----------
    fine_time : (times of the fine data,)
        The unit time each belongs to.
    how
        What was done about time, in words.
    """

    target: Floats
    mediator: Floats
    times: np.ndarray | None
    fine_time: Ints
    how: str | None

    @property
    def size(self) -> int:
        """Number of units."""
        return len(self.target)

    def positions(self, grid: Grid) -> Floats:
        """Cell centres of all units."""
        return np.tile(grid.positions, (self.size // grid.n_cells, 1))


def make_units(
    fine_times: np.ndarray | None,
    coarse_times: np.ndarray | None,
    target: Floats,
    mediator: Floats,
    lasting: Sequence[bool],
) -> Units:
    """The units; `lasting` mediators have no time, so they belong to all times."""
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
            np.zeros(n_fine, dtype=np.int64),
            how,
        )
    fine_times, coarse_times = _comparable(fine_times, coarse_times)
    later = coarse_times[~np.isin(coarse_times, fine_times)]
    times = np.concatenate([fine_times, later])
    place = {_key(t): k for k, t in enumerate(times)}
    n_cells = target.shape[1]
    all_target = np.full((len(times), n_cells), np.nan)
    all_mediator = np.full((len(times), n_cells, mediator.shape[-1]), np.nan)
    rows = [place[_key(t)] for t in coarse_times]
    all_target[rows], all_mediator[rows] = target, mediator
    all_mediator[..., lasting] = mediator[0][:, lasting]
    both = len(fine_times) + len(coarse_times) - len(times)
    how = (
        f"a unit is a cell at a time: {len(fine_times)} fine and {len(coarse_times)} coarse times, "
        f"{both} in common"
    )
    return Units(
        all_target.reshape(-1),
        all_mediator.reshape(len(times) * n_cells, mediator.shape[-1]),
        times,
        np.arange(len(fine_times), dtype=np.int64),
        how,
    )


def _comparable(fine: np.ndarray, coarse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Times in one type, so that equal ones are found to be equal."""
    kinds = [_time_kind(times) for times in (fine, coarse)]
    if kinds[0] != kinds[1]:
        raise UsageError(
            f"the times of the fine data are {kinds[0]}, those of the coarse data {kinds[1]}; "
            "convert one of them, as in ds.convert_calendar('standard', use_cftime=False)."
        )
    if fine.dtype.kind == "M":
        common = np.promote_types(fine.dtype, coarse.dtype)
        return fine.astype(common), coarse.astype(common)
    return fine, coarse


def _time_kind(times: np.ndarray) -> str:
    if times.dtype.kind == "M":
        return "dates of NumPy"
    calendar = getattr(times[0], "calendar", None)
    return "plain values" if calendar is None else f"dates of the calendar {calendar!r}"


def time_places(times: np.ndarray, among: np.ndarray) -> Ints:
    """The place of every time among others; -1 where it is not one of them."""
    times, among = _comparable(times, among)
    place = {_key(t): k for k, t in enumerate(among)}
    return np.array([place.get(_key(t), -1) for t in times], dtype=np.int64)


def _key(time: Any) -> Any:
    return time.item() if isinstance(time, np.generic) else time


def mean_over_times(values: Floats) -> Floats:
    """Mean over times of what is there."""
    there = np.isfinite(values)
    total = np.where(there, values, 0.0).sum(0)
    count = there.sum(0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
