"""Zones in the coordinates of fine cells: reprojected where they have others, and that is said."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from deconditional.errors import UsageError
from deconditional.fields.axes import FULL_CIRCLE, Floats
from deconditional.fields.frames import Frame
from deconditional.fields.zones.coverage import Rings

PIECES = 200
"""Sides are cut to at most this share of the extent of a zone before they are bent."""


@dataclass(frozen=True)
class Meeting:
    """How coordinates of a table become those of fine cells.

    `own` and `other` are their reference systems, None where neither has one; `same` says that
    coordinates stay as they are, `spherical` that those of the cells are degrees.
    """

    own: Any
    other: Any
    same: bool
    spherical: bool
    understood: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, frame: Frame, table: Any) -> Meeting:
        """The meeting of a table with cells; raises where it is not known how they lie."""
        own, other = table.crs, frame.crs
        if own is None and other is None:
            said = "neither the table nor the fine data has one: taken for one plane, in metres"
            return cls(None, None, True, frame.spherical, (("CRS", said),))
        if own is None:
            low = f"gdf = gdf.set_crs({_short(other)!r}), if its coordinates are those of the fine "
            raise UsageError(
                f"the zones have no CRS, so it is not known where they are; name it: {low}data, "
                "or gdf.set_crs('EPSG:4326') if they are longitude and latitude."
            )
        if other is None:
            raise UsageError(
                f"the zones are in {_short(own)}, but the fine data does not say where it is; "
                "give it a CRS, as in fine = fine.rio.write_crs('EPSG:32636')."
            )
        unstated = frame.geographic and not (
            frame.facts.get("crs_wkt") or frame.facts.get("spatial_ref")
        )
        same = bool(own == other or own.equals(other, ignore_axis_order=True))
        same = same or bool(unstated and own.is_geographic)
        said = f"{_short(own)}, as the fine data" if same else ""
        if not same:
            said = f"zones in {_short(own)}, reprojected to that of the fine data, {_short(other)}"
        return cls(own, other, same, frame.spherical, (("CRS", said),))

    @property
    def geographic(self) -> bool:
        """Whether coordinates of the table are longitude and latitude."""
        return self.own is not None and bool(self.own.is_geographic)

    @cached_property
    def _transformer(self) -> Any:
        from pyproj import Transformer

        return Transformer.from_crs(self.own, self.other, always_xy=True)

    def rings(self, shapes: npt.NDArray[Any], is_point: bool) -> Rings:
        """Borders of shapes, or points, in the coordinates of the cells."""
        import shapely

        if is_point:
            xy, owner = shapely.get_coordinates(shapes, return_index=True)
            return Rings(self._moved(xy), np.arange(len(xy) + 1), owner)
        if not self.same:
            bounds = shapely.bounds(shapes)
            extent = np.maximum(bounds[:, 2] - bounds[:, 0], bounds[:, 3] - bounds[:, 1])
            shapes = shapely.segmentize(shapes, extent / PIECES)
        parts, owner = shapely.get_parts(shapes, return_index=True)
        lines, part = shapely.get_rings(parts, return_index=True)
        is_hole = np.diff(part, prepend=-1) == 0
        xy, ring = shapely.get_coordinates(lines, return_index=True)
        start = np.concatenate([[0], np.cumsum(np.bincount(ring, minlength=len(lines)))])
        found = Rings(self._moved(xy), start, owner[part])
        if self.spherical and not self.same:
            found = self._unwound(found, lines)
        found = found.oriented(is_hole)
        return _together(found) if self.spherical else found

    def _moved(self, xy: Floats) -> Floats:
        """Points in the coordinates of the cells; raises where one has no place there."""
        if self.same:
            return xy
        moved = np.stack(self._transformer.transform(xy[:, 0], xy[:, 1]), axis=1)
        if not np.isfinite(moved).all():
            raise UsageError(
                f"{int((~np.isfinite(moved)).any(1).sum())} corners have no place in the CRS of "
                f"the fine data, {_short(self.other)}; cut the table to its region first, as in "
                "gdf.cx[x0:x1, y0:y1] or gdf.clip, or reproject the fine data."
            )
        return moved

    def _unwound(self, rings: Rings, lines: npt.NDArray[Any]) -> Rings:
        """Rings whose longitudes do not jump; one around a pole goes along it, edge to edge."""
        jumps = np.abs(np.diff(rings.xy[:, 0])) > 180.0
        jumps[rings.start[1:-1] - 1] = False
        if not jumps.any():
            return rings
        jumping = np.unique(np.searchsorted(rings.start, np.flatnonzero(jumps), "right") - 1)
        pieces = [rings.xy[a:b] for a, b in zip(rings.start[:-1], rings.start[1:], strict=True)]
        for k in jumping:
            x, y = pieces[k].T
            steps = np.mod(np.diff(x) + 180.0, FULL_CIRCLE) - 180.0
            x = x[0] + np.concatenate([[0.0], np.cumsum(steps)])
            line = np.stack([x, y], axis=1)
            if abs(x[-1] - x[0]) > 180.0:
                pole = self._pole_in(lines[k], y)
                line = np.concatenate([line, [[x[-1], pole], [x[0], pole], line[0]]])
            pieces[k] = line
        start = np.concatenate([[0], np.cumsum([len(p) for p in pieces])])
        return Rings(np.concatenate(pieces), start, rings.owner)

    def _pole_in(self, line: Any, latitudes: Floats) -> float:
        """The pole that a ring in the coordinates of the table goes around."""
        import shapely

        inside = shapely.polygons(line)
        for pole in (90.0, -90.0):
            x, y = self._transformer.transform(0.0, pole, direction="INVERSE")
            if np.isfinite([x, y]).all() and shapely.intersects_xy(inside, x, y):
                return pole
        return 90.0 if latitudes.mean() > 0 else -90.0


def _together(rings: Rings) -> Rings:
    """Rings of one zone on one side of the antimeridian, that of the largest."""
    low, high = rings.ends
    middle = 0.5 * (low + high)[:, 0]
    order = np.lexsort((-np.abs(rings.moments[0]), rings.owner))
    first = np.flatnonzero(np.diff(rings.owner[order], prepend=-1))
    anchor = np.zeros(int(rings.owner.max()) + 1)
    anchor[rings.owner[order[first]]] = middle[order[first]]
    turn = FULL_CIRCLE * np.round((anchor[rings.owner] - middle) / FULL_CIRCLE)
    shift = np.repeat(turn, rings.sizes)[:, None] * [1.0, 0.0]
    return Rings(rings.xy + shift, rings.start, rings.owner)


def _short(crs: Any) -> str:
    """A coordinate reference system as people write it."""
    code = crs.to_epsg() if hasattr(crs, "to_epsg") else None
    return f"EPSG:{code}" if code else str(getattr(crs, "name", crs))
