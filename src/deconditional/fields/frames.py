"""What coordinates of cells mean: places on the globe, on a turned globe, or on a plane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from deconditional.errors import UsageError

Floats = npt.NDArray[np.float64]

EARTH_RADIUS = 6_371_000.0
"""Radius of the Earth, in metres."""

NAME = "grid_mapping_name"
PROJECTION = (
    "grid_north_pole_latitude",
    "grid_north_pole_longitude",
    "north_pole_grid_longitude",
    "standard_parallel",
    "longitude_of_central_meridian",
    "longitude_of_projection_origin",
    "latitude_of_projection_origin",
    "straight_vertical_longitude_from_pole",
)
"""Attributes of a grid mapping that say where it is put on the globe, in degrees."""


@dataclass(frozen=True)
class Frame:
    """The coordinate system of cells.

    `spherical` says that coordinates are degrees on a sphere; else they are metres on a plane.
    `facts` are attributes of the CF grid mapping, nothing where it is not known.
    """

    spherical: bool
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, attrs: Mapping[str, Any], spherical: bool, turned: bool) -> Frame:
        """Frame of a grid mapping's attributes; `turned` says that its pole is moved."""
        facts = {str(k): _plain(v) for k, v in attrs.items()}
        if NAME not in facts and spherical:
            facts[NAME] = "rotated_latitude_longitude" if turned else "latitude_longitude"
        return cls(spherical, facts)

    @property
    def geographic(self) -> bool:
        """Whether coordinates are latitude and longitude."""
        return self.facts.get(NAME) == "latitude_longitude"

    @property
    def known(self) -> bool:
        """Whether the facts say where on the globe a coordinate is."""
        turned = self.facts.get(NAME) == "rotated_latitude_longitude"
        return not turned or PROJECTION[0] in self.facts if self.facts else False

    def describe(self) -> str:
        """The frame in words."""
        name = "of unknown projection" if not self.facts else str(self.facts.get(NAME))
        return "in latitude and longitude" if self.geographic else name.replace("_", " ")

    def same_as(self, other: Frame) -> bool:
        """Whether nothing is known that tells two frames apart, figures of the Earth aside."""
        if self.spherical != other.spherical:
            return False
        one, two = self.facts, other.facts
        if NAME not in one or NAME not in two:
            return True
        both = [key for key in PROJECTION if key in one and key in two]
        return str(one[NAME]) == str(two[NAME]) and all(_same(one[k], two[k]) for k in both)

    def place(self, yx: Floats) -> Floats:
        """Places of coordinates (..., 2): on the unit sphere, (..., 3), or in metres, as given."""
        return unit_vectors(yx[..., 0], yx[..., 1]) if self.spherical else yx

    def into(self, other: Frame, yx: Floats) -> Floats:
        """Coordinates (..., 2) as those of another frame; NaN where there is no such place."""
        if self.same_as(other):
            return yx
        there = yx if self.geographic else self._turned(yx, "FORWARD")
        there = there if other.geographic else other._turned(there, "INVERSE")
        return np.where(np.isfinite(there), there, np.nan)

    def _turned(self, yx: Floats, direction: Any) -> Floats:
        x, y = self._transformer.transform(yx[..., 1], yx[..., 0], direction=direction)
        return np.stack([y, x], axis=-1)

    @cached_property
    def crs(self) -> Any:
        """The coordinate reference system of pyproj; None where nothing is known of it."""
        try:
            from pyproj import CRS
            from pyproj.exceptions import CRSError
        except ImportError:
            raise UsageError(
                "two grids in different projections meet through pyproj: pip install "
                "'deconditional[geo]'."
            ) from None
        text = self.facts.get("crs_wkt") or self.facts.get("spatial_ref")
        try:
            if text:
                return CRS.from_wkt(str(text))
            if self.geographic:
                return CRS.from_epsg(4326)
            return CRS.from_cf(dict(self.facts)) if self.facts else None
        except (CRSError, KeyError, TypeError, ValueError, AttributeError) as error:
            name = str(self.facts.get(NAME, "without a name"))
            raise UsageError(
                f"the grid mapping {name!r} cannot be understood ({str(error)[:100]}); correct its "
                "attributes, set it, as in ds.rio.write_crs('EPSG:32636'), or give latitude and "
                "longitude as coordinates with two dimensions."
            ) from None

    @cached_property
    def _transformer(self) -> Any:
        """Transformer from this frame to latitude and longitude on the same figure of the Earth."""
        from pyproj import Transformer

        return Transformer.from_crs(self.crs, self.crs.source_crs, always_xy=True)

    def __getstate__(self) -> dict[str, Any]:
        """The state without what cannot travel to another process."""
        return {"spherical": self.spherical, "facts": self.facts}


GEOGRAPHIC = Frame(True, {NAME: "latitude_longitude"})
"""Latitude and longitude."""

PLANE = Frame(False)
"""Metres of a plane of which nothing else is known."""


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value


def _same(one: Any, other: Any) -> bool:
    """Whether two angles are the same, be they numbers, lists of them, or words."""
    try:
        apart = np.abs(np.asarray(one, dtype=float) - np.asarray(other, dtype=float))
    except (TypeError, ValueError):
        return str(one) == str(other)
    return bool(np.all(np.minimum(apart % 360.0, -apart % 360.0) < 1e-4))


def unit_vectors(latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> Floats:
    """Places on the unit sphere, (..., 3), from degrees."""
    y, x = np.radians(latitude), np.radians(longitude)
    return np.stack([np.cos(y) * np.cos(x), np.cos(y) * np.sin(x), np.sin(y)], axis=-1)
