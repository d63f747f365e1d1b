"""Figures of gridded fields, for the report and the demonstration.

Functions take DataArrays, drawn by their coordinates whatever their order, or plain arrays with
rows from south to north. Texts are drawn as they are given: a dollar sign starts no formula. Cells
without a value are grey.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from deconditional.report.grids import Plane, plane
from deconditional.report.marginals import actual_coverage
from deconditional.report.plots import (
    DIVERGING,
    GAP,
    LEVELS,
    SEQUENTIAL,
    SPREAD,
    require_matplotlib,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Panel",
    "category_map",
    "coverage_curve",
    "demo_maps",
    "field_map",
    "map_grid",
    "pit_histogram",
    "plain_text",
    "png",
    "semivariograms",
    "time_series",
]

Kind = Literal["value", "spread", "difference"]

BLUE, ORANGE, GREEN, VERMILION = "#0072b2", "#e69f00", "#009e73", "#d55e00"
CATEGORIES = (GAP, BLUE, ORANGE, GREEN)
LINES = ((BLUE, "-", "o"), (VERMILION, "--", "s"), (GREEN, "-.", "^"), ("0.2", ":", "D"))
"""Colour, line and marker of every curve in turn: each alone tells the curves apart."""

MOST_CELLS = 1000
"""Cells drawn along an axis; of longer ones, every second, third, ... cell."""

_MAPS = {"value": SEQUENTIAL, "spread": SPREAD, "difference": DIVERGING}


def png(figure: Figure, dpi: int = 150) -> bytes:
    """A figure as PNG.

    Examples
    --------
    >>> png(field_map(np.eye(3), "example"))[1:4]
    b'PNG'
    """
    file = io.BytesIO()
    with warnings.catch_warnings():
        # Names may be in any script; what the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        # Cut to what is drawn: maps of fixed aspect leave room on one side and lack it on another.
        figure.savefig(
            file,
            dpi=dpi,
            format="png",
            metadata={"Software": None},
            bbox_inches="tight",
            pad_inches=0.1,
        )
    return file.getvalue()


def plain_text(text: Any, width: int = 60) -> str:
    r"""Text for a figure, on one line, shortened, with no sign taken for the start of a formula.

    Examples
    --------
    >>> plain_text("price in $ or $")
    'price in \\$ or \\$'
    """
    line = " ".join(str(text).split())
    line = line if len(line) <= width else line[: width - 1] + "…"
    return line.replace("$", r"\$")


# ---------------------------------------------------------------------- maps


def field_map(
    field: Any,
    title: str,
    label: str = "",
    kind: Kind = "value",
    limits: tuple[float, float] | None = None,
) -> Figure:
    r"""One field as a map with its colour bar.

    Parameters
    ----------
    field
        DataArray, or array with rows from south to north.
    title, label
        Of the map and of its colour bar.
    kind
        ``value``, ``spread`` (from zero up) or ``difference`` (centred on zero).
    limits
        Ends of the colour scale; left out, those of the field.

    Examples
    --------
    >>> figure = field_map(np.eye(3), "cost in $ per $", "EUR")
    >>> figure.axes[0].get_title(), len(figure.axes)
    ('cost in \\$ per \\$', 1)
    """
    drawn = plane(field)
    figure = _figure(4.8, _height(drawn, 4.8))
    axes = figure.add_subplot()
    image = _draw(axes, drawn, kind, limits or _limits([drawn], kind))
    axes.set_title(plain_text(title))
    _colour_bar(axes, image, label)
    return figure


def category_map(
    field: Any, names: Sequence[str], title: str, colours: Sequence[str] = CATEGORIES
) -> Figure:
    """A field of the values 0, 1, 2, ... as a map, with the name and number of each as legend.

    Examples
    --------
    >>> figure = category_map(np.eye(3), ["off", "on"], "example")
    >>> [text.get_text() for text in figure.legends[0].get_texts()]
    ['off (6)', 'on (3)']
    """
    drawn = plane(field)
    figure = _figure(4.8, _height(drawn, 4.8) + 0.3)
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Patch

    colours = tuple(colours[: len(names)])
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


@dataclass(frozen=True)
class Panel:
    """One map of a figure; `limits` are the ends of its colour scale if not those of the field."""

    field: Any
    title: str
    label: str = ""
    kind: Kind = "value"
    limits: tuple[float, float] | None = None


def map_grid(
    panels: Sequence[Panel],
    columns: int,
    extent: tuple[float, float, float, float] | None = None,
    title: str = "",
) -> Figure:
    """Several maps, each with a colour bar of its own.

    Parameters
    ----------
    panels
        The maps, row by row.
    columns
        Maps beside each other.
    extent
        West, east, south and north ends of plain arrays.
    title
        Of the figure.

    Examples
    --------
    >>> figure = map_grid([Panel(np.eye(3), "one"), Panel(np.eye(3), "two")], 2, title="both")
    >>> [axes.get_title() for axes in figure.axes]
    ['one', 'two']
    """
    planes = [plane(panel.field, extent) for panel in panels]
    rows = -(-len(panels) // columns)
    width = 10.0 / columns
    tall = float(np.clip(max(drawn.tallness for drawn in planes), 0.4, 1.6))
    figure = _figure(10.0, rows * (0.75 * width * tall + 0.65) + 0.4, title)
    for place, (panel, drawn) in enumerate(zip(panels, planes, strict=True)):
        axes = figure.add_subplot(rows, columns, place + 1)
        image = _draw(axes, drawn, panel.kind, panel.limits or _limits([drawn], panel.kind))
        axes.set_title(plain_text(panel.title))
        if place % columns:
            axes.set_ylabel("")
        if place < len(panels) - columns:
            axes.set_xlabel("")
        _colour_bar(axes, image, panel.label)
    return figure


def demo_maps(
    truth: Any, coarse: Any, mean: Any, width: Any, error: Any, units: str, title: str
) -> Figure:
    """Truth, coarse input and posterior mean on one colour scale; interval width; error.

    Plain arrays of different shapes are drawn over the same extent.

    Parameters
    ----------
    truth, mean
        The fine field and its posterior mean.
    coarse
        The observations, NaN in coarse cells without one.
    width
        Width of the 95% interval.
    error
        Mean minus truth.
    units, title
        Of the field and of the figure.

    Examples
    --------
    >>> fine, coarse = np.random.default_rng(0).normal(size=(6, 6)), np.full((2, 2), np.nan)
    >>> figure = demo_maps(fine, coarse, fine, fine**2, 0 * fine, "K", "example")
    >>> [panel.get_title() for panel in figure.axes[:3]]
    ['truth', 'coarse input', 'posterior mean']
    """
    rows, columns = plane(truth).values.shape
    extent = (0.0, float(columns), 0.0, float(rows))
    planes = [plane(field, extent) for field in (truth, coarse, mean, width, error)]
    names = (
        "truth",
        "coarse input",
        "posterior mean",
        "width of the 95% interval",
        "error (mean − truth)",
    )
    kinds: tuple[Kind, ...] = ("value", "value", "value", "spread", "difference")
    tall = float(np.clip(planes[0].tallness, 0.4, 1.6))
    figure = _figure(11.0, 2.3 + 5.4 * tall, title)
    rows_of_panels: Any = figure.subfigures(2, 1)
    common = _limits(planes[:3], "value")
    panels = [
        row.add_subplot(1, n, place + 1)
        for row, n in zip(rows_of_panels, (3, 2), strict=True)
        for place in range(n)
    ]
    images = []
    for panel, drawn, name, kind in zip(panels, planes, names, kinds, strict=True):
        images.append(
            _draw(panel, drawn, kind, common if kind == "value" else _limits([drawn], kind))
        )
        panel.set_title(name)
    for panel in (panels[1], panels[2], panels[4]):
        panel.set_ylabel("")
    for place in (2, 3, 4):  # the first three share a scale
        _colour_bar(panels[place], images[place], units)
    return figure


# ---------------------------------------------------------------------- curves


def coverage_curve(pit: npt.ArrayLike, title: str = "coverage of central intervals") -> Figure:
    """Share of PIT values inside central intervals against the intervals' probability.

    Examples
    --------
    >>> len(coverage_curve(np.linspace(0, 1, 50)).axes)
    1
    """
    figure = _figure(4.8, 4.4)
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="0.3", linewidth=1, label="calibrated")
    colour, _, marker = LINES[1]
    axes.plot(
        LEVELS, actual_coverage(pit, LEVELS), "-", color=colour, marker=marker, ms=4, label="found"
    )
    axes.set(
        xlabel="probability of the interval",
        ylabel="share of truth inside",
        title=plain_text(title),
        xlim=(0, 1),
        ylim=(0, 1.02),
        aspect="equal",
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
    return figure


def pit_histogram(pit: npt.ArrayLike, title: str = "PIT values") -> Figure:
    """Histogram of PIT values, flat where the distributions are calibrated.

    Examples
    --------
    >>> len(pit_histogram(np.linspace(0, 1, 50)).axes[0].patches)
    10
    """
    figure = _figure(4.8, 4.4)
    axes = figure.add_subplot()
    axes.hist(
        np.asarray(pit, dtype=float),
        list(np.linspace(0, 1, 11)),
        density=True,
        color=BLUE,
        ec="white",
    )
    axes.axhline(1.0, color="0.3", linewidth=1, label="calibrated")
    axes.set(
        xlabel="PIT: probability given to values below the truth",
        ylabel="density",
        title=plain_text(title),
        xlim=(0, 1),
    )
    axes.legend(loc="lower center")
    return figure


def semivariograms(
    curves: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]], distance_unit: str, units: str
) -> Figure:
    """Semivariance against distance, one curve for each (distance, semivariance).

    Examples
    --------
    >>> figure = semivariograms({"mean": ([1, 2], [0.1, 0.3])}, "km", "K")
    >>> figure.axes[0].get_xlabel()
    'distance (km)'
    """
    figure = _figure(5.6, 4.2)
    axes = figure.add_subplot()
    for (name, (x, y)), (colour, line, marker) in zip(curves.items(), LINES, strict=False):
        axes.plot(x, y, line, color=colour, marker=marker, ms=4, label=plain_text(name))
    axes.set(
        xscale="log",
        xlabel=plain_text(f"distance ({distance_unit})" if distance_unit else "distance"),
        ylabel=plain_text(f"semivariance ({units})²" if units else "semivariance", 40),
        title="semivariogram",
    )
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(bottom=0.0)
    axes.grid(alpha=0.3)
    if curves:
        axes.legend()
    return figure


def time_series(
    times: npt.ArrayLike,
    curves: Mapping[str, npt.ArrayLike],
    label: str,
    title: str,
    samples: npt.ArrayLike | None = None,
) -> Figure:
    """Curves over time, above thin lines of samples.

    Parameters
    ----------
    times
        Dates or numbers; of any other kind, steps are counted.
    curves
        Values by name.
    label, title
        Of the axis of values and of the figure.
    samples : (s, times)
        One line each.

    Examples
    --------
    >>> figure = time_series([1.0, 2.0], {"mean": [3.0, 4.0]}, "K", "example", [[3, 5], [2, 4]])
    >>> len(figure.axes[0].lines)
    3
    """
    when = np.asarray(times)
    known = np.issubdtype(when.dtype, np.datetime64) or np.issubdtype(when.dtype, np.number)
    figure = _figure(5.6, 3.2)
    axes = figure.add_subplot()
    x: Any = when if known else np.arange(1, len(when) + 1)
    if samples is not None:
        for place, row in enumerate(np.asarray(samples, dtype=float)):
            axes.plot(x, row, color="0.7", linewidth=0.8, label=None if place else "samples")
    for (name, values), (colour, line, marker) in zip(curves.items(), LINES, strict=False):
        axes.plot(x, values, line, color=colour, marker=marker, ms=4, label=plain_text(name))
    axes.set(
        xlabel="time" if known else "time step",
        ylabel=plain_text(label, 40),
        title=plain_text(title),
    )
    if np.issubdtype(when.dtype, np.datetime64):
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(minticks=2, maxticks=7)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)
    return figure


# ---------------------------------------------------------------------- parts


def _draw(axes: Axes, drawn: Plane, kind: Kind, limits: tuple[float, float]) -> Any:
    return _mesh(axes, drawn, cmap=_MAPS[kind], vmin=limits[0], vmax=limits[1])


def _mesh(axes: Axes, drawn: Plane, **style: Any) -> Any:
    (rows, y), (columns, x) = _thinned(drawn.y_edges), _thinned(drawn.x_edges)
    values = np.ma.masked_invalid(drawn.values[np.ix_(rows, columns)])
    image = axes.pcolormesh(x, y, values, rasterized=True, **style)
    axes.set_facecolor(GAP)
    axes.set(xlabel=plain_text(drawn.names[0], 40), ylabel=plain_text(drawn.names[1], 40))
    if 0.2 <= drawn.tallness <= 5.0:
        axes.set_aspect(drawn.aspect)
    axes.locator_params(nbins=6)
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
    found = np.concatenate([p.values[np.isfinite(p.values)] for p in planes])
    if not found.size:
        return (-1.0, 1.0) if kind == "difference" else (0.0, 1.0)
    low, high = float(found.min()), float(found.max())
    if kind == "difference":
        reach = _without_outliers(np.abs(found)) or 1.0
        return -reach, reach
    if kind == "spread":
        low, high = min(low, 0.0), _without_outliers(found)
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _without_outliers(values: np.ndarray) -> float:
    """The largest value, or one that half a per cent exceed if the largest is far beyond it."""
    largest, most = float(values.max()), float(np.quantile(values, 0.995))
    return most if 0 < 1.5 * most < largest else largest


def _colour_bar(axes: Axes, image: Any, label: str) -> None:
    """A bar as tall as the map beside it."""
    place = axes.inset_axes((1.03, 0.0, 0.05, 1.0))
    axes.figure.colorbar(image, cax=place, label=plain_text(label, 40), extend=_extend(image))


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


def _figure(width: float, height: float, title: str = "") -> Figure:
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    if title:
        figure.suptitle(plain_text(title, 110), fontsize=13)
    return figure
