"""Figures of the benchmarks: bars of ratios, and growth on logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deconditional.errors import UsageError
from deconditional.report import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["bars", "can_plot", "growth", "save"]

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Okabe and Ito's, which colour-blind readers can tell apart."""

MARKERS = "osD^vP"


def can_plot(path: Path | None) -> None:
    """Complain before any measuring if a figure is asked for that cannot be drawn."""
    if path is None:
        return
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot writes PNG, and {str(path)!r} does not end in .png.")
    try:
        plots.require_matplotlib()
    except ImportError as error:
        raise UsageError(f"{error} Or leave --plot out.") from None


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure, with the folders it needs."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    plots.save(figure, path)


def bars(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    title: str,
    axis: str,
    level: tuple[str, float] | None = None,
    log: bool = False,
) -> Figure:
    """Horizontal bars, one group for each label and one bar for each series, with their values.

    Parameters
    ----------
    labels, series
        Names of the groups from top to bottom; values of every series in that order, NaN where
        there is none.
    title, axis
        Of the figure and of its horizontal axis.
    level
        Name and place of a vertical line, such as the limit.
    log
        A logarithmic axis.

    Examples
    --------
    >>> figure = bars(["a", "b"], {"share": [0.5, 2.0]}, "example", "of the limit", ("limit", 1.0))
    >>> [text.get_text() for text in figure.axes[0].get_yticklabels()]
    ['a', 'b']
    """
    plots.require_matplotlib()
    from matplotlib.figure import Figure

    height = 0.8 / len(series)
    figure = Figure(figsize=(8.0, 1.6 + 0.34 * len(labels) * max(1.0, 0.75 * len(series))))
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    places = np.arange(len(labels))
    for number, (name, values) in enumerate(series.items()):
        at = places + (number - 0.5 * (len(series) - 1)) * height
        drawn = axes.barh(at, values, height * 0.92, color=COLOURS[number], label=name)
        shown = [_short(value) for value in values]
        beside = axes.bar_label(drawn, shown, padding=3, fontsize=8, zorder=4)
        for text in beside:
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.6})
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set(title=title, xlabel=axis, xscale="log" if log else "linear")
    axes.margins(x=0.12)
    if level is not None:
        axes.axvline(level[1], color="0.25", linestyle="--", linewidth=1, label=level[0])
    if len(series) > 1 or level is not None:
        figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    return figure


def growth(
    panels: Sequence[Mapping[str, Any]],
    title: str,
    columns: int = 3,
    size: tuple[float, float] = (4.3, 3.7),
) -> Figure:
    """Seconds against size on logarithmic axes, one panel for every quantity that grows.

    Parameters
    ----------
    panels
        Each with ``lines``, a mapping from label to (sizes, seconds), ``xlabel`` and ``ylabel``;
        ``slope`` draws a thin line of that slope through the last point of the first line,
        ``level`` a horizontal one of that name and height.
    title, columns
        Of the figure.
    size
        Width and height of a panel.

    Examples
    --------
    >>> panel = {"lines": {"measured": ([1, 2, 4], [1.0, 4.0, 16.0])}, "xlabel": "n", "slope": 2}
    >>> figure = growth([panel], "example")
    >>> [line.get_label() for line in figure.axes[0].get_lines()]
    ['measured', 'slope 2']
    """
    plots.require_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows + 0.4))
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1)
    figure.suptitle(title, fontsize=12)
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, place + 1)
        for number, (label, (sizes, seconds)) in enumerate(panel["lines"].items()):
            axes.plot(
                sizes,
                seconds,
                color=COLOURS[number],
                marker=MARKERS[number],
                markersize=5,
                label=label,
            )
        slope = panel.get("slope")
        if slope is not None:
            sizes, seconds = (np.asarray(v, float) for v in next(iter(panel["lines"].values())))
            ideal = seconds[-1] * (sizes / sizes[-1]) ** slope
            axes.plot(sizes, ideal, color="0.35", lw=1, ls="--", label=f"slope {slope:g}")
        if "level" in panel:
            name, height = panel["level"]
            axes.axhline(height, color="0.35", linewidth=1, linestyle=":", label=name)
        axes.set(xscale="log", yscale="log", xlabel=panel["xlabel"], ylabel=panel.get("ylabel", ""))
        ticks = panel.get("ticks")
        if ticks is not None:
            axes.set_xticks(ticks)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
        if len(panel["lines"]) > 2:
            axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
        else:
            axes.legend(fontsize=8)
    return figure


def _short(value: float) -> str:
    """Three digits, and nothing where there is no value."""
    if np.isnan(value):
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
