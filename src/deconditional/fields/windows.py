"""Windows of time: which fine times a coarse value is the mean over.

A monthly mean of daily covariates is a bag like any other, of points in space and time. Its window
is said by the bounds of its time, or by the user. Where two files have one time for every month and
date them differently, in the middle and on the first, say, the months are the windows.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.axes import Floats
from deconditional.fields.bounds import bounds_name
from deconditional.fields.clock import is_dates, time_places, years

PERIODS = {"day": 1.0, "month": 30.44, "year": 365.24}
"""Windows by name, and how many days they have."""

AT_THEIR_TIMES = "none"
"""What says that coarse values are values at their times."""

SAME = 0.2
"""Share by which the steps of times may be off a period: months have 28 to 31 days."""


def check_window(window: Any) -> None:
    """Raise unless this says which times a coarse value is the mean over."""
    if window not in (None, AT_THEIR_TIMES, *PERIODS):
        raise UsageError(
            f"window must be one of {', '.join((*PERIODS, AT_THEIR_TIMES))}, not {window!r}."
        )


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
