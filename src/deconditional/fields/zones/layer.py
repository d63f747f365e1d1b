"""Tables with geometry, as a user has them: checked, and seen in the frame of the fine cells.

Nothing is repaired here. What is wrong is said with the rows it is wrong in, and how to mend it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.axes import Grid
from deconditional.fields.zones.crs import Meeting
from deconditional.fields.zones.grid import DIM, Zones
from deconditional.fields.zones.rows import TIME, Rows, named_rows

PLACES = {
    True: {
        "lat": {"units": "degrees_north", "standard_name": "latitude"},
        "lon": {"units": "degrees_east", "standard_name": "longitude"},
    },
    False: {"y": {"units": "m"}, "x": {"units": "m"}},
}
"""Coordinates of zones and what is said of them, on a sphere or not."""

POLYGONS, POINTS = ("Polygon", "MultiPolygon"), ("Point", "MultiPoint")


def is_table(data: Any) -> bool:
    """Whether this is a table rather than a dataset: with geometry, or meant to have one."""
    return hasattr(data, "columns") and hasattr(data, "iloc")


@dataclass(frozen=True)
class Layer:
    """A table of zones, checked.

    `values` has the columns that were asked for and where the zones are, `grid` the zones in the
    frame of the fine cells, and `understood` what was found and done, pairs of label and text.
    """

    values: xr.Dataset
    grid: Zones
    understood: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, table: Any, columns: Sequence[str], fine: Grid, time: str | None = None) -> Layer:
        """The layer of a GeoDataFrame; raises where it is none, and says which rows are wrong.

        `columns` must be there, as numbers; `fine` is the grid of the cells that the zones are seen
        with; `time` is a column that says when rows are of.
        """
        check_table(table)
        rows = Rows.of(table, time)
        meeting = Meeting.of(fine.frame, table)
        values = {name: rows.laid_out(numbers(table, name)) for name in columns}
        table = table.iloc[rows.first]
        is_point = bool(table.geom_type.isin(POINTS).all())
        check_geometry(table, is_point, meeting.geographic)
        rings = meeting.rings(table.geometry.to_numpy(), is_point)
        about = PLACES[fine.frame.spherical]
        y, x = about
        grid = Zones(len(table), rings, np.full(len(table), is_point), (y, x), fine.frame)
        lines = zip(about, grid.centres.T, about.values(), strict=True)
        coords: dict[str, Any] = {name: (DIM, line, attrs) for name, line, attrs in lines}
        coords[DIM] = (DIM, labels(table))
        if rows.times is not None:
            coords[TIME] = (TIME, rows.times, {"standard_name": "time"})
            grid = grid.at(TIME, rows.times)
        data = xr.Dataset(values, coords, dict(table.attrs))
        kind = "points" if is_point else "polygons"
        often = "" if rows.times is None else f" at {len(rows.times)} times"
        said = [("zones", f"{len(table)} {kind}{often}"), *meeting.understood]
        if twice := int(table.geometry.to_wkb().duplicated().sum()):
            many = f"{twice} {kind} lie on others, and all count, as of one time"
            said.append(("twice", f"{many}; of a table of times, dims={{'time': ...}} names them"))
        return cls(data, grid, tuple(said))


def labels(table: Any) -> np.ndarray:
    """The names of the rows: whole numbers, or words."""
    index = table.index
    return np.asarray(index) if index.dtype.kind in "iu" else np.asarray(index.map(str), dtype=str)


def check_table(table: Any) -> None:
    """Raise unless this is a table with geometry and rows."""
    if not (hasattr(table, "geometry") and hasattr(table, "crs")):
        raise UsageError(
            "the zones are a table without geometry; read the file with geopandas.read_file, or "
            "of columns with coordinates make geopandas.GeoDataFrame(df, "
            "geometry=geopandas.points_from_xy(df.lon, df.lat), crs='EPSG:4326')."
        )
    try:
        geometry = table.geometry
    except AttributeError:
        raise UsageError(
            "the zones have no active geometry column; name it: gdf.set_geometry('geometry')."
        ) from None
    if not len(table):
        raise UsageError("the zones have no rows at all; check how the table was cut.")
    absent = np.asarray(geometry.isna() | geometry.is_empty)
    if absent.any():
        raise UsageError(
            f"the zones {named_rows(table.index, absent)} have no geometry; drop these rows, or "
            "join the table with its geometry again."
        )


def check_geometry(table: Any, is_point: bool, geographic: bool) -> None:
    """Raise where geometry is of several kinds, of none that has cells, or not valid."""
    import shapely

    kinds = table.geom_type
    odd = np.asarray(~kinds.isin([*POLYGONS, *POINTS]))
    if odd.any():
        raise UsageError(
            f"the zones {named_rows(table.index, odd)} are {kinds[odd].iloc[0]}s; polygons or "
            "points are needed. Of lines make areas with gdf.buffer, say."
        )
    if not is_point and kinds.isin(POINTS).any():
        raise UsageError(
            "the zones are polygons and points in one table; give each as a source of its own: "
            "[dc.Source(polygons, ...), dc.Source(points, ...)]."
        )
    shapes = table.geometry.to_numpy()
    bounds = shapely.bounds(shapes)
    nowhere = ~np.isfinite(bounds).all(1)
    if geographic:
        nowhere |= (np.abs(bounds[:, [1, 3]]) > 90 + 1e-6).any(1)
        nowhere |= (np.abs(bounds[:, [0, 2]]) > 540).any(1)
    if nowhere.any():
        row = bounds[nowhere][0]
        raise UsageError(
            f"the zones {named_rows(table.index, nowhere)} lie nowhere on the globe (the first "
            f"runs from {row[0]:.6g}, {row[1]:.6g} to {row[2]:.6g}, {row[3]:.6g}), though the CRS "
            "of the table is one of longitude and latitude, in this order; correct it with "
            "gdf.set_crs(..., allow_override=True), or exchange the coordinates."
        )
    if is_point:
        return
    wrong = ~shapely.is_valid(shapes)
    if wrong.any():
        reason = shapely.is_valid_reason(shapes[wrong][0])
        raise UsageError(
            f"the geometry of the zones {named_rows(table.index, wrong)} is not valid ({reason}), "
            "so their areas are not known; mend it with gdf.geometry = gdf.make_valid(), and look "
            "at the result."
        )
    flat = shapely.area(shapes) <= 0
    if flat.any():
        raise UsageError(
            f"the zones {named_rows(table.index, flat)} have no area; drop them, or give points."
        )
    if geographic:
        _check_long_sides(table, shapes)


def _check_long_sides(table: Any, shapes: np.ndarray) -> None:
    """Raise where a side goes more than half around the globe: it may be meant the other way."""
    import shapely

    parts, owner = shapely.get_parts(shapes, return_index=True)
    lines, part = shapely.get_rings(parts, return_index=True)
    xy, ring = shapely.get_coordinates(lines, return_index=True)
    step = np.abs(np.diff(xy, axis=0))
    around = (step[:, 0] >= 359.0) & (step[:, 1] < 1e-9)  # along the edge of a map of the globe
    long = (step[:, 0] > 180.0) & ~around & (ring[1:] == ring[:-1])
    if not long.any():
        return
    rows = np.zeros(len(table), dtype=bool)
    rows[owner[part][ring[1:][long]]] = True
    raise UsageError(
        f"the zones {named_rows(table.index, rows)} have sides of more than 180° of longitude, so "
        "it is not clear which way around the globe they go. Where they cross the antimeridian, "
        "write longitudes beyond 180 (190 for -170) or cut them there; where they do go the long "
        "way, put points along their sides: gdf.segmentize(90)."
    )


def numbers(table: Any, name: str) -> npt.NDArray[np.float64]:
    """A column as numbers, NaN where missing; raises where it is not there or holds no numbers."""
    if name not in table.columns or name == table.geometry.name:
        there = ", ".join(str(c) for c in table.columns if c != table.geometry.name)
        raise UsageError(f"the zones have no column {name!r}; they have {there or 'none at all'}.")
    column = table[name]
    if getattr(column, "ndim", 1) != 1:
        raise UsageError(f"the zones have several columns {name!r}; rename all but one.")
    if column.dtype.kind not in "fiub":
        example = column.dropna()
        shown = repr(example.tolist()[0]) if len(example) else "nothing"
        raise UsageError(
            f"the column {name!r} of the zones holds {column.dtype} values ({shown}), not "
            f"numbers; convert it, as in gdf[{name!r}] = pandas.to_numeric(gdf[{name!r}])."
        )
    values = np.asarray(column, dtype=float)
    endless = np.isinf(values)
    if endless.any():
        raise UsageError(
            f"the column {name!r} of the zones is infinite in {named_rows(table.index, endless)}; "
            "correct it, or make it NaN where it is unknown."
        )
    return values
