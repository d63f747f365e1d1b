"""Rows of a table by the zone and the time that each is of: one for every district, or many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from deconditional.errors import UsageError, one_line
from deconditional.fields.zones.grid import DIM

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

TIME = "time"
"""The dimension of the times of a table."""

MOST_NAMED = 5
"""Rows that a complaint names before it counts the rest."""


@dataclass(frozen=True)
class Rows:
    """Which zone and which time every row of a table is of."""

    first: Ints  # (zones,): a row of each zone, in the order in which they come
    # zone, time (rows,): the zone and the time of every row.
    zone: Ints
    time: Ints
    # In order; None of a table without times, where every row is a zone.
    times: np.ndarray | None = None

    @classmethod
    def of(cls, table: Any, column: str | None) -> Rows:
        """The rows of a table whose times are in a column, if one is named.

        Rows with one name are one zone at several times; where every row has a name of its own,
        those with one geometry are. Raises where a zone comes twice at a time.
        """
        n = np.arange(len(table))
        if column is None:
            _check_names(table)
            return cls(n, n, np.zeros_like(n))
        borders = table.geometry.to_wkb().to_numpy()
        called = table.index if table.index.has_duplicates else borders
        zone = pd.factorize(called)[0].astype(np.int64)
        first = np.unique(zone, return_index=True)[1].astype(np.int64)
        moved = borders != borders[first][zone]
        if moved.any():
            raise UsageError(
                f"the zones {named_rows(table.index, moved)} have another geometry at one time "
                "than at another; give zones that change names of their own, as in "
                "gdf.index.str.cat(gdf['year'].astype(str))."
            )
        times, time = np.unique(_moments(table, column), return_inverse=True)
        again = pd.DataFrame({"zone": zone, "time": time}).duplicated().to_numpy()
        if again.any():
            raise UsageError(
                f"the zones {named_rows(table.index, again)} come more than once at one "
                f"{column!r}; sum or average their rows first, as in gdf.dissolve(by=[...])."
            )
        return cls(first, zone, time.astype(np.int64), times)

    def laid_out(self, values: npt.NDArray[Any]) -> tuple[tuple[str, ...], npt.NDArray[Any]]:
        """Dimensions and values of a column, NaN where a zone has no row at a time."""
        if self.times is None:
            return (DIM,), values
        every = np.full((len(self.times), len(self.first)), np.nan)
        every[self.time, self.zone] = values
        return (TIME, DIM), every


def _check_names(table: Any) -> None:
    """Raise where two rows have one name."""
    again = table.index[table.index.duplicated()].unique()
    if len(again):
        raise UsageError(
            f"the zones {named_rows(again, np.ones(len(again), dtype=bool))} come more than once, "
            "so results could not be told apart; of a table of several times, name the column that "
            "says when, as in dims={'time': 'month'} (--dims time=month); else join their parts "
            "with gdf.dissolve, or number the rows with gdf.reset_index(drop=True)."
        )


def _moments(table: Any, column: str) -> npt.NDArray[Any]:
    """A column as dates, or as numbers; raises where it is neither."""
    if column not in table.columns:
        there = ", ".join(str(c) for c in table.columns if c != table.geometry.name)
        raise UsageError(
            f"dims names {column!r} as time, but the zones have no such column; they have {there}."
        )
    values = table[column]
    absent = values.isna().to_numpy()
    if absent.any():
        raise UsageError(
            f"the zones {named_rows(table.index, absent)} have no {column!r}; drop these rows, or "
            "say when they are of."
        )
    if values.dtype.kind in "iuf":
        return np.asarray(values)
    try:
        if isinstance(values.dtype, pd.PeriodDtype):
            values = values.dt.to_timestamp()
        dates = pd.to_datetime(values, utc=True).dt.tz_localize(None)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"the column {column!r} of the zones holds no times ({one_line(error)[:80]}); write "
            "dates such as 2001-07-01, or numbers."
        ) from None
    return np.asarray(dates, dtype="datetime64[ns]")


def named_rows(index: Any, which: Flags) -> str:
    """Some rows by the names that the table has for them."""
    rows = np.flatnonzero(which)
    names = [_plain(index[int(k)]) for k in rows[:MOST_NAMED]]
    more = f" and {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else ""
    return ", ".join(map(repr, names)) + more


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
