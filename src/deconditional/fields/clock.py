"""Times as inputs of a model: years, and where in the year they are.

A time is a coordinate beside position. Where two years or more are there, and several times in
each, two more coordinates go round once a year: distances between them are those of the calendar,
so any kernel of them has the period of a year.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cftime
import numpy as np
import numpy.typing as npt

from deconditional.errors import UsageError

__all__ = ["MODES", "Clock", "check_mode", "comparable", "years"]

Floats = npt.NDArray[np.float64]

MODES = ("smooth", "independent", "ignore")
"""How times can hang together."""

ORIGIN = "days since 2000-01-01"
DAYS_PER_YEAR = {
    **dict.fromkeys(("standard", "gregorian", "proleptic_gregorian"), 365.2425),
    **dict.fromkeys(("noleap", "365_day"), 365.0),
    **dict.fromkeys(("all_leap", "366_day"), 366.0),
    "360_day": 360.0,
    "julian": 365.25,
}
"""The mean length of a year in every calendar."""

YEARS_WITH_A_SEASON = 2.0
"""Years from which on a season can be told from a slow change: it has to come back."""

TIMES_IN_A_YEAR = 3.0
"""Least number of times in a year that has a season: fewer say nothing of what is between."""


@dataclass(frozen=True)
class Clock:
    """What times become as inputs.

    Attributes
    ----------
    mode
        ``"smooth"`` and ``"independent"`` make times inputs, ``"ignore"`` does not.
    season
        Whether there are two more inputs that go round once a year.
    step
        The median step between times, in years; one where times are numbered.
    known
        Times that are independent are numbered: these, in years and in order.

    Examples
    --------
    >>> times = np.arange("2000-01", "2003-01", dtype="datetime64[M]").astype("datetime64[ns]")
    >>> clock = Clock.of(times, "smooth")
    >>> clock.n_inputs, clock(times)[[0, 12]].round(2).tolist()
    (3, [[0.0, 1.0, 0.0], [1.0, 1.0, 0.01]])
    """

    mode: str = "ignore"
    season: bool = False
    step: float = 1.0
    known: Floats | None = None

    @classmethod
    def of(cls, times: np.ndarray | None, mode: str) -> Clock:
        """The clock of some times; one that makes no inputs where there are none, or one."""
        if times is None or len(times) < 2 or mode == "ignore":
            return cls()
        at = np.sort(years(times))
        if mode == "independent":
            return cls(mode, known=at)
        step = float(np.median(np.diff(at)))
        whole = at[-1] - at[0] + step >= YEARS_WITH_A_SEASON - 1e-2
        often = step <= 1.0 / TIMES_IN_A_YEAR + 1e-2
        return cls(mode, _dates(times) and bool(whole and often), step)

    @property
    def n_inputs(self) -> int:
        """Number of inputs that a time becomes."""
        return 0 if self.mode == "ignore" else 3 if self.season else 1

    def __call__(self, times: np.ndarray) -> Floats:
        """The inputs, (times, inputs)."""
        if not self.n_inputs:
            return np.zeros((len(times), 0))
        at = years(times)
        if self.known is not None:
            at = np.searchsorted(self.known, at).astype(float)
        if not self.season:
            return at[:, None]
        angle = 2.0 * np.pi * at
        return np.stack([at, np.cos(angle), np.sin(angle)], 1)


def check_mode(mode: Any) -> None:
    """Raise unless this says how times hang together."""
    if mode not in MODES:
        raise UsageError(f"time must be one of {', '.join(MODES)}, not {mode!r}.")


def years(times: np.ndarray) -> Floats:
    """Times in years of their calendar since 2000; values that are no dates stay as they are.

    Examples
    --------
    >>> years(np.array(["2000-01-01", "2001-01-01"], "datetime64[ns]")).round(3).tolist()
    [0.0, 1.002]
    >>> years(np.array([cftime.Datetime360Day(2001, 1, 1)])).tolist()
    [1.0]
    """
    if times.dtype.kind == "M":
        days = (times - np.datetime64("2000-01-01")) / np.timedelta64(1, "s") / 86400.0
        return np.asarray(days / DAYS_PER_YEAR["standard"], dtype=float)
    calendar = getattr(times.flat[0], "calendar", None)
    if calendar is None:
        return np.asarray(times, dtype=float)
    days = cftime.date2num(times, ORIGIN, calendar)
    return np.asarray(days, dtype=float) / DAYS_PER_YEAR[calendar]


def _dates(times: np.ndarray) -> bool:
    return times.dtype.kind == "M" or hasattr(times.flat[0], "calendar")


def comparable(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fine and coarse times in one type, so that equal ones are found to be equal."""
    kinds = [_kind(times) for times in (one, other)]
    if kinds[0] != kinds[1]:
        raise UsageError(
            f"the times of the fine data are {kinds[0]}, those of the coarse data {kinds[1]}; "
            "convert one of them, as in ds.convert_calendar('standard', use_cftime=False)."
        )
    if one.dtype.kind == "M":
        common = np.promote_types(one.dtype, other.dtype)
        return one.astype(common), other.astype(common)
    return one, other


def _kind(times: np.ndarray) -> str:
    if times.dtype.kind == "M":
        return "dates of NumPy"
    calendar = getattr(times[0], "calendar", None)
    return "plain values" if calendar is None else f"dates of the calendar {calendar!r}"
