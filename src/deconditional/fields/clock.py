"""Times as inputs of a model, and the windows of time that coarse values are means over.

A time is a coordinate beside position. Where two years or more are there, and several times in
each, two more coordinates go round once a year: distances between them are those of the calendar,
so any kernel of them has the period of a year.

A monthly mean of daily covariates is a bag like any other, of points in space and time. Its window
is said by the bounds of its time, or by the user. Where two files have one time for every month and
date them differently, in the middle and on the first, say, the months are the windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import cftime
import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.axes import Floats, Ints
from deconditional.fields.bounds import bounds_name

MOMENT = 1e-6
"""A time that is too short to matter, in years: half a minute."""

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

    Examples
    --------
    >>> times = np.arange("2000-01", "2003-01", dtype="datetime64[M]").astype("datetime64[ns]")
    >>> clock = Clock.of(times, "smooth")
    >>> clock.n_inputs, clock(times)[[0, 12]].round(2).tolist()
    (3, [[0.0, 1.0, 0.0], [1.0, 1.0, 0.01]])
    """

    # "smooth" and "independent" make times inputs, "ignore" does not.
    mode: str = "ignore"
    season: bool = False  # whether there are two more inputs that go round once a year
    step: float = 1.0  # the median step between times, in years; one where times are numbered
    # Times that are independent are numbered: these, in years and in order.
    known: Floats | None = None
    # (3, n): coarse times that are means over windows, in order, and the begin and end of each;
    # None where all coarse values are at their times.
    windows: Floats | None = None
    said: str = ""  # what there is to say of windows

    @classmethod
    def of(
        cls, times: np.ndarray | None, mode: str, windows: Floats | None = None, said: str = ""
    ) -> Clock:
        """The clock of some times; one that makes no inputs where there are none, or one."""
        if times is None or len(times) < 2 or mode == "ignore":
            return cls(windows=windows, said=said)
        at = np.sort(years(times))
        if mode == "independent":
            return cls(mode, known=at, windows=windows, said=said)
        step = float(np.median(np.diff(at)))
        whole = at[-1] - at[0] + step >= YEARS_WITH_A_SEASON - 1e-2
        often = step <= 1.0 / TIMES_IN_A_YEAR + 1e-2
        seasonal = is_dates(times) and bool(whole and often)
        return cls(mode, seasonal, step, windows=windows, said=said)

    @property
    def n_inputs(self) -> int:
        """Number of inputs that a time becomes."""
        return 0 if self.mode == "ignore" else 3 if self.season else 1

    def spans(self, times: np.ndarray) -> tuple[Floats, Floats]:
        """Begin and end of what values at some coarse times are means over, in years."""
        at = years(times)
        if self.windows is None:
            return at, at
        stamp, low, high = self.windows
        k = np.abs(at[:, None] - stamp).argmin(1)
        found = np.abs(at - stamp[k]) < MOMENT
        return np.where(found, low[k], at), np.where(found, high[k] - MOMENT, at)

    def places(self, times: np.ndarray, among: np.ndarray) -> Ints:
        """For every time the coarse time among others that it belongs to; -1 where there is none.

        It is in the window of that, or, without windows, equal.
        """
        if self.windows is None:
            return time_places(times, among)
        times, among = comparable(times, among)
        low, high = self.spans(among)
        order, at = np.argsort(low), years(times)
        k = order[np.clip(np.searchsorted(low[order], at + 0.5 * MOMENT) - 1, 0, None)]
        inside = (at >= low[k] - 0.5 * MOMENT) & (at <= high[k] + 0.5 * MOMENT)
        return np.where(inside, k, -1)

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


def time_places(times: np.ndarray, among: np.ndarray) -> Ints:
    """The place of every time among others; -1 where it is not one of them."""
    times, among = comparable(times, among)
    return np.asarray(pd.Index(among).get_indexer(pd.Index(times)), dtype=np.int64)


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


def is_dates(times: np.ndarray) -> bool:
    """Whether times are dates, of NumPy or of a calendar."""
    return times.dtype.kind == "M" or hasattr(times.flat[0], "calendar")


def comparable(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fine and coarse times in one type, so that equal ones are found to be equal."""
    one, other = (
        (_plain_dates(a) if b.dtype.kind == "M" else a) for a, b in ((one, other), (other, one))
    )
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


def _plain_dates(times: np.ndarray) -> np.ndarray:
    """Dates of the calendar of every day as those of NumPy; others as they are."""
    if getattr(times.flat[0], "calendar", None) not in (
        "standard",
        "gregorian",
        "proleptic_gregorian",
    ):
        return times
    return np.array([time.isoformat() for time in times], dtype="datetime64[ns]")


def _kind(times: np.ndarray) -> str:
    if times.dtype.kind == "M":
        return "dates of NumPy"
    calendar = getattr(times[0], "calendar", None)
    return "plain values" if calendar is None else f"dates of the calendar {calendar!r}"


PERIODS = {"day": 1.0, "month": 30.44, "year": 365.24}
"""Windows by name, and how many days they have."""

AT_THEIR_TIMES = "none"
"""What says that coarse values are values at their times."""

SAME = 0.2
"""Share by which the steps of times may be off a period: months have 28 to 31 days."""


def windows_of(
    coarse: xr.Dataset,
    time: str,
    times: np.ndarray,
    fine_times: np.ndarray,
    window: str | None,
    least: float,
) -> tuple[Floats | None, str]:
    """Stamp, begin and end of every window, in years, (3, n), and what there is to say.

    None where coarse values are at their times. Windows of which fine times cover a share less than
    `least` are left out.
    """
    if window == AT_THEIR_TIMES or not (is_dates(times) and is_dates(fine_times)):
        return None, ""
    found, source = _found(coarse, time, times, fine_times, window)
    if found is None:
        return None, _doubt(times, fine_times)
    low, high = found
    inside = _held(low, high, fine_times)
    step = _step(fine_times) or np.inf
    expected = np.maximum((high - low) * 365.0 / step, 1.0)
    kept = inside >= np.maximum(least * expected - 1e-6, 1.0)
    if not kept.any():
        return None, ""
    order = np.argsort(low[kept])
    windows = np.stack([years(times), low, high])[:, kept][:, order]
    if np.any(windows[1, 1:] < windows[2, :-1] - 1e-6):
        raise UsageError(
            f"the windows of the coarse times ({source}) overlap; say window='none' if values are "
            "at their times, or select times whose windows do not."
        )
    some = inside[kept]
    many = f"{some.min()}" if np.ptp(some) == 0 else f"{some.min()} to {some.max()}"
    return windows, (
        f"a coarse value is the mean over its window of time ({source}), with {many} fine time(s) "
        f"in each; {kept.sum()} of {len(times)} windows have enough of them"
    )


def _found(
    coarse: xr.Dataset, time: str, times: np.ndarray, fine_times: np.ndarray, window: str | None
) -> tuple[tuple[Floats, Floats] | None, str]:
    """Begin and end of the window of every coarse time, and what says so."""
    if window is not None:
        return _periods(times, window), f"window={window!r}"
    equal = (time_places(times, fine_times) >= 0).mean()
    name = bounds_name(coarse, time) if time in coarse.variables else None
    if name is not None and coarse[name].shape == (len(times), 2):
        bounds = coarse[name].values
        if is_dates(bounds):
            ends = np.sort(np.stack([years(bounds[:, 0]), years(bounds[:, 1])]), axis=0)
            inside = _held(ends[0], ends[1], fine_times)
            if inside.max() > 1 or (inside.max() == 1 and equal == 0):
                return (ends[0], ends[1]), name
    if equal >= 0.5:
        return None, ""
    for period, days in PERIODS.items():
        if all(_regular(t, period, days) for t in (times, fine_times)):
            low, high = _periods(times, period)
            if _held(low, high, fine_times).any():
                return (low, high), f"both have one time for every {period}"
    return None, ""


def _held(low: Floats, high: Floats, times: np.ndarray) -> npt.NDArray[np.int64]:
    """The number of times in every window."""
    at = years(times)
    return np.asarray(((at >= low[:, None]) & (at < high[:, None])).sum(1), dtype=np.int64)


def _regular(times: np.ndarray, period: str, days: float) -> bool:
    """Whether there is one time in every period; of a single time all but years may be one."""
    step = _step(times)
    if step is None:
        return period != "year"
    low, _ = _periods(times, period)
    return len(np.unique(low)) == len(times) and abs(step / days - 1.0) <= SAME


def _step(times: np.ndarray) -> float | None:
    """The median step between times in days; None of a single one."""
    return float(np.median(np.diff(np.sort(years(times))))) * 365.0 if len(times) > 1 else None


def _periods(times: np.ndarray, period: str) -> tuple[Floats, Floats]:
    """Begin and end of the period that holds every time."""
    if times.dtype.kind == "M":
        low = times.astype(f"datetime64[{period[0].upper()}]")
        return years(low.astype(times.dtype)), years((low + 1).astype(times.dtype))
    ends = [_period(time, period) for time in times]
    return years(np.array([low for low, _ in ends])), years(np.array([high for _, high in ends]))


def _period(time: Any, period: str) -> tuple[Any, Any]:
    """Begin and end of a period of any calendar."""
    date, year, month = type(time), time.year, time.month
    if period == "year":
        return date(year, 1, 1), date(year + 1, 1, 1)
    if period == "month":
        return date(year, month, 1), date(year + month // 12, month % 12 + 1, 1)
    low = date(year, month, time.day)
    return low, low + timedelta(days=1)


def _doubt(times: np.ndarray, fine_times: np.ndarray) -> str:
    """What to say where coarse times are much farther apart than fine ones."""
    steps = _step(times), _step(fine_times)
    if steps[0] is None or steps[1] is None or steps[0] < 2.0 * steps[1]:
        return ""
    return (
        f"coarse values, {steps[0]:.3g} days apart, are taken for values at their times, fine ones "
        f"being {steps[1]:.3g} days apart; if they are means over longer, say so (window='month')"
    )
