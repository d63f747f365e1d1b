"""Maps of gridded fields.

Functions take DataArrays, drawn by their coordinates whatever their order, or plain arrays with
rows from south to north. Cells without a value are grey.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import xarray as xr

from deconditional.fields.axes import Floats, Ints, Lattice
from deconditional.report.grids import Plane, plane
from deconditional.report.plots import (
    BLUE,
    DIVERGING,
    GAP,
    GREEN,
    ORANGE,
    SEQUENTIAL,
    SPREAD,
    new_figure,
    plain_text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
        """The borders that a result has; None where it has none."""
        names = ("coarse_node_x", "coarse_node_y", "coarse_ring_nodes", "coarse_ring_zone")
        if not all(name in result for name in names):
            return None
        x, y, nodes, zone = (np.asarray(result[name].values).ravel() for name in names)
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

        codes = np.full(len(x), Path.LINETO, dtype=np.uint8)
        codes[self.start[:-1]] = Path.MOVETO
        order = np.argsort(self.zone, kind="stable")
        owners, first = np.unique(self.zone[order], return_index=True)
        paths = []
        for rings in np.split(order, first[1:]):  # all rings of a zone, so that holes stay open
            rows = np.concatenate([np.arange(*self.start[k : k + 2]) for k in rings])
            paths.append(Path(np.stack([x[rows], y[rows]], axis=1), codes[rows]))
        style |= {"edgecolors": "0.35", "linewidths": 0.3}
        return _filled(axes, PathCollection, paths, shown[owners], **style)

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


Kind = Literal["value", "spread", "difference"]

COLOURS = {"value": SEQUENTIAL, "spread": SPREAD, "difference": DIVERGING}
CATEGORIES = (GAP, BLUE, ORANGE, GREEN)

MOST_CELLS = 1000
"""Cells drawn along an axis; of longer ones, every second, third, ... cell."""


@dataclass(frozen=True)
class Panel:
    """Map in a figure: its field, titles and colours."""

    field: Any  # dataArray, or array with rows from south to north
    # title, label: of the map and of its colour bar.
    title: str
    label: str = ""
    kind: Kind = "value"  # value, spread (from zero up) or difference (centred on zero)
    # Ends of the colour scale; left out, those of the field.
    limits: tuple[float, float] | None = None
    outlines: Outlines | None = None  # borders of zones, drawn over the field
    of_zones: Any = None  # a value of every zone, drawn in place of the field, on its map


def field_map(panel: Panel) -> Figure:
    """One map with its colour bar."""
    drawn = plane(panel.field)
    figure = new_figure(4.8, _height(drawn, 4.8))
    _draw(figure.add_subplot(), drawn, panel)
    return figure


def category_map(field: Any, names: Sequence[str], title: str) -> Figure:
    """A field of the values 0, 1, 2, ... as a map, with the name and number of each as legend."""
    drawn = plane(field)
    figure = new_figure(4.8, _height(drawn, 4.8) + 0.3)
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Patch

    colours = CATEGORIES[: len(names)]
    norm = BoundaryNorm(np.arange(len(names) + 1) - 0.5, len(names))
    axes = figure.add_subplot()
    _mesh(axes, drawn, cmap=ListedColormap(colours), norm=norm)
    axes.set_title(plain_text(title))
    counts = [int(np.sum(drawn.values == value)) for value in range(len(names))]
    patches = [
        Patch(facecolor=colour, edgecolor="0.3", label=plain_text(f"{name} ({count})"))
        for colour, name, count in zip(colours, names, counts, strict=True)
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return figure


def map_grid(panels: Sequence[Panel], columns: int, title: str = "") -> Figure:
    """Several maps, each with a colour bar of its own.

    Maps stand row by row, so many `columns` beside each other.
    """
    planes = [plane(panel.field) for panel in panels]
    rows = -(-len(panels) // columns)
    tall = float(np.clip(max(drawn.tallness for drawn in planes), 0.4, 1.6))
    height = rows * (7.5 / columns * tall + 0.65) + 0.4
    figure = new_figure(max(10.0, 3.6 * columns), height, title)
    for place, (panel, drawn) in enumerate(zip(panels, planes, strict=True)):
        axes = figure.add_subplot(rows, columns, place + 1)
        _draw(axes, drawn, panel)
        if place % columns:
            axes.set_ylabel("")
        if place < len(panels) - columns:
            axes.set_xlabel("")
    return figure


def demo_maps(
    truth: Any, coarse: Any, mean: Any, width: Any, error: Any, units: str, title: str
) -> Figure:
    """Truth, coarse input and posterior mean on one colour scale; interval width; error.

    The coarse observations are NaN in coarse cells without one; `width` is that of the 95%
    interval, `error` mean minus truth; the title is that of the figure.
    """
    common = _limits([plane(field) for field in (truth, coarse, mean)], "value")
    panels = [
        Panel(truth, "truth", units, limits=common),
        Panel(coarse, "coarse input", units, limits=common),
        Panel(mean, "posterior mean", units, limits=common),
        Panel(width, "width of the 95% interval", units, "spread"),
        Panel(error, "error (mean − truth)", units, "difference"),
    ]
    return map_grid(panels, 3, title)


# ---------------------------------------------------------------------- parts


def _draw(axes: Axes, drawn: Plane, panel: Panel) -> None:
    """A map with its title, and a colour bar as tall as the map beside it."""
    if panel.outlines is not None and panel.of_zones is not None:
        values = np.asarray(panel.of_zones, dtype=float)
        low, high = panel.limits or _limits([replace(drawn, values=values)], panel.kind)
        style = {"cmap": COLOURS[panel.kind], "vmin": low, "vmax": high}
        image = panel.outlines.fill(axes, drawn, values, **style)
        _frame(axes, drawn)
    else:
        low, high = panel.limits or _limits([drawn], panel.kind)
        image = _mesh(axes, drawn, cmap=COLOURS[panel.kind], vmin=low, vmax=high)
        if panel.outlines is not None:
            panel.outlines.lines(axes, drawn)
    axes.set_title(plain_text(panel.title))
    place = axes.inset_axes((1.03, 0.0, 0.05, 1.0))
    axes.figure.colorbar(image, cax=place, label=plain_text(panel.label, 40), extend=_extend(image))


def _mesh(axes: Axes, drawn: Plane, **style: Any) -> Any:
    if isinstance(drawn.grid, Lattice):
        (rows, y), (columns, x) = _thinned(drawn.y_edges), _thinned(drawn.x_edges)
        values = np.ma.masked_invalid(drawn.values[np.ix_(rows, columns)])
        image: Any = axes.pcolormesh(x, y, values, rasterized=True, **style)
    else:
        image = _scattered(axes, drawn, **style)
    _frame(axes, drawn)
    return image


def _frame(axes: Axes, drawn: Plane) -> None:
    """What is around a map: names of its axes, and its shape."""
    axes.set_facecolor(GAP)
    axes.set(xlabel=plain_text(drawn.names[0], 40), ylabel=plain_text(drawn.names[1], 40))
    if 0.2 <= drawn.tallness <= 5.0:
        axes.set_aspect(drawn.aspect)
    axes.locator_params(nbins=6)


def _scattered(axes: Axes, drawn: Plane, **style: Any) -> Any:
    """Cells by their outlines, or points as large as leaves no gaps between them."""
    from matplotlib.collections import PolyCollection

    there = drawn.grid.there
    outlines, values = drawn.outlines[there], np.ma.masked_invalid(drawn.values.ravel()[there])
    if outlines.shape[1] == 1:
        x, y = outlines[:, 0].T
        return axes.scatter(x, y, s=4e4 / max(len(values), 1), c=values, rasterized=True, **style)
    image = _filled(axes, PolyCollection, list(outlines), values, edgecolors="face", **style)
    axes.set(xlim=drawn.x_edges[[0, -1]], ylim=drawn.y_edges[[0, -1]])
    return image


def _filled(axes: Axes, kind: Any, shapes: Any, values: Any, **style: Any) -> Any:
    """Shapes filled by a value of each."""
    limits = {k: style.pop(k) for k in ("vmin", "vmax") if k in style}
    image = kind(shapes, rasterized=True, **style)
    image.set_array(values)
    image.set_clim(limits.get("vmin"), limits.get("vmax"))
    axes.add_collection(image, autolim=False)
    return image


def _thinned(edges: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], Any]:
    """Cells to draw along an axis, and the borders of what each stands for."""
    n = len(edges) - 1
    step = -(-n // MOST_CELLS)
    starts = np.arange(0, n, step)
    return np.minimum(starts + step // 2, n - 1), np.append(edges[starts], edges[-1])


def _limits(planes: Sequence[Plane], kind: Kind) -> tuple[float, float]:
    """Ends of a colour scale: of all values, or of most where a few are far out.

    Spreads and differences beyond the scale show as an arrow at the end of its bar.
    """
    known = np.concatenate([p.values[np.isfinite(p.values)] for p in planes])
    if not known.size:
        return (-1.0, 1.0) if kind == "difference" else (0.0, 1.0)
    low, high = float(known.min()), float(known.max())
    if kind == "difference":
        reach = without_outliers(np.abs(known)) or 1.0
        return -reach, reach
    if kind == "spread":
        low, high = min(low, 0.0), without_outliers(known)
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def without_outliers(values: np.ndarray) -> float:
    """The largest value, or one that half a per cent exceed if the largest is far beyond it."""
    largest, most = float(values.max()), float(np.quantile(values, 0.995))
    return most if 0 < 1.5 * most < largest else largest


def _extend(image: Any) -> Literal["neither", "min", "max", "both"]:
    """Which ends of the colour scale have values beyond them."""
    values = image.get_array().compressed()
    if not values.size:
        return "neither"
    low, high = image.get_clim()
    below, above = values.min() < low, values.max() > high
    return "both" if below and above else "min" if below else "max" if above else "neither"


def _height(drawn: Plane, width: float) -> float:
    """Height of a figure in which a map of this shape and a colour bar leave little blank."""
    tall = drawn.tallness if 0.2 <= drawn.tallness <= 5.0 else 0.8
    return float(np.clip(1.0 + (width - 1.5) * tall, 2.2, 6.5))
