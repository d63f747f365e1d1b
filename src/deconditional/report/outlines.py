"""Zones of a result on its maps: filled by a value, or as thin lines over a field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from deconditional.fields.axes import Floats, Ints
from deconditional.report.grids import Plane

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MOST_LINES = 200_000
"""Corners of outlines that are drawn over a field; of more, every second, third, ..."""


@dataclass(frozen=True)
class Outlines:
    """Borders of zones: corners `x` and `y`, ring after ring, and whose each ring is.

    `start` says where each ring begins, `zone` whose it is.
    """

    x: Floats
    y: Floats
    start: Ints
    zone: Ints

    @classmethod
    def of(cls, result: xr.Dataset) -> Outlines | None:
        """The borders that a result has; None where it has none, or what it has does not fit."""
        names = ("coarse_node_x", "coarse_node_y", "coarse_ring_nodes", "coarse_ring_zone")
        if not all(name in result for name in names):
            return None
        x, y, nodes, zone = (np.asarray(result[name].values).ravel() for name in names)
        numbers = all(a.dtype.kind in "fiu" for a in (x, y, nodes, zone))
        if not numbers or not len(nodes) or len(nodes) != len(zone) or not np.isfinite(x).all():
            return None
        n_zones = result.sizes.get("coarse_zone", 0)
        if nodes.min() < 1 or int(nodes.sum()) != len(x) or len(x) != len(y):
            return None
        if zone.min() < 0 or zone.max() >= n_zones:
            return None
        start = np.concatenate([[0], np.cumsum(nodes)]).astype(np.int64)
        return cls(x.astype(float), y.astype(float), start, zone.astype(np.int64))

    @property
    def is_point(self) -> bool:
        """Whether zones are points."""
        return bool((np.diff(self.start) == 1).all())

    def fill(self, axes: Axes, drawn: Plane, values: Floats, **style: Any) -> Any:
        """Zones filled by a value of each, on the map of a field."""
        x, y = self._on(drawn)
        shown = np.ma.masked_invalid(np.asarray(values, dtype=float))
        if self.is_point:
            image = axes.scatter(x, y, c=shown[self.zone], s=18, edgecolors="0.2", lw=0.4, **style)
        else:
            image = self._patches(axes, x, y, shown, **style)
        axes.set(xlim=drawn.x_edges[[0, -1]], ylim=drawn.y_edges[[0, -1]])
        return image

    def _patches(self, axes: Axes, x: Floats, y: Floats, shown: Any, **style: Any) -> Any:
        from matplotlib.collections import PathCollection
        from matplotlib.path import Path

        limits = {k: style.pop(k) for k in ("vmin", "vmax") if k in style}
        codes = np.full(len(x), Path.LINETO, dtype=np.uint8)
        codes[self.start[:-1]] = Path.MOVETO
        order = np.argsort(self.zone, kind="stable")
        owners, first = np.unique(self.zone[order], return_index=True)
        paths = []
        for rings in np.split(order, first[1:]):  # all rings of a zone, so that holes stay open
            rows = np.concatenate([np.arange(*self.start[k : k + 2]) for k in rings])
            paths.append(Path(np.stack([x[rows], y[rows]], axis=1), codes[rows]))
        image = PathCollection(paths, edgecolors="0.35", linewidths=0.3, rasterized=True, **style)
        image.set_array(shown[owners])
        image.set_clim(limits.get("vmin"), limits.get("vmax"))
        axes.add_collection(image, autolim=False)
        return image

    def lines(self, axes: Axes, drawn: Plane) -> None:
        """Borders as thin lines over a field."""
        from matplotlib.collections import LineCollection

        x, y = self._on(drawn)
        if self.is_point:
            axes.plot(x, y, ".", ms=2, color="0.2")
            return
        step = -(-len(x) // MOST_LINES)
        ends = zip(self.start[:-1], self.start[1:], strict=True)
        rings = [np.stack([x[a:b:step], y[a:b:step]], axis=1) for a, b in ends]
        axes.add_collection(LineCollection(rings, colors="0.25", linewidths=0.3, alpha=0.7), False)

    def _on(self, drawn: Plane) -> tuple[Floats, Floats]:
        """Corners in the coordinates of a map, turned to where it is where it goes round."""
        x, y = self.x * drawn.scale, self.y * drawn.scale
        if drawn.grid.spherical:
            middle = 0.5 * (drawn.x_edges[0] + drawn.x_edges[-1])
            sizes = np.diff(self.start)
            centre = np.add.reduceat(x, self.start[:-1]) / sizes
            x = x + np.repeat(360.0 * np.round((middle - centre) / 360.0), sizes)
        return x, y
