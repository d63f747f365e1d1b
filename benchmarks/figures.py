"""Bars of ratios, with their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["bars"]

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Okabe and Ito's, which colour-blind readers can tell apart."""


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


def _short(value: float) -> str:
    """Three digits, and nothing where there is no value."""
    if np.isnan(value):
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
