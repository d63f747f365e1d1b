"""Figures of lines: coverage, PIT values, semivariograms, means over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deconditional.report.plots import BLUE, GREEN, VERMILION, new_figure, plain_text
from deconditional.scores import pit_coverage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["coverage_curve", "draw_coverage", "pit_histogram", "semivariograms", "time_series"]

LEVELS = np.array([0.05, *np.arange(0.1, 0.91, 0.1), 0.95, 0.99])

LINES = ((BLUE, "-", "o"), (VERMILION, "--", "s"), (GREEN, "-.", "^"), ("0.2", ":", "D"))
"""Colour, line and marker of every curve in turn: each alone tells the curves apart."""


def draw_coverage(axes: Axes, pit: npt.ArrayLike, title: str) -> None:
    """Draw the share of PIT values inside central intervals against their probability."""
    axes.plot([0, 1], [0, 1], color="0.3", linewidth=1, label="calibrated")
    inside = pit_coverage(pit, LEVELS)
    axes.plot(LEVELS, inside, "-", color=VERMILION, marker="s", ms=4, label="found")
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


def coverage_curve(pit: npt.ArrayLike, title: str = "coverage of central intervals") -> Figure:
    """Share of PIT values inside central intervals against the intervals' probability."""
    figure = new_figure(4.8, 4.4)
    draw_coverage(figure.add_subplot(), pit, title)
    return figure


def pit_histogram(pit: npt.ArrayLike, title: str = "PIT values") -> Figure:
    """Histogram of PIT values, flat where the distributions are calibrated."""
    figure = new_figure(4.8, 4.4)
    axes = figure.add_subplot()
    bins = list(np.linspace(0, 1, 11))
    axes.hist(np.asarray(pit, dtype=float), bins, density=True, color=BLUE, ec="white")
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
    """Semivariance against distance, one curve for each (distance, semivariance)."""
    figure = new_figure(5.6, 4.2)
    axes = figure.add_subplot()
    _lines(axes, curves)
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
    """
    when = np.asarray(times)
    dates = np.issubdtype(when.dtype, np.datetime64)
    known = dates or np.issubdtype(when.dtype, np.number)
    figure = new_figure(5.6, 3.2)
    axes = figure.add_subplot()
    x: Any = when if known else np.arange(1, len(when) + 1)
    for place, row in enumerate(() if samples is None else np.asarray(samples, dtype=float)):
        axes.plot(x, row, color="0.7", linewidth=0.8, label=None if place else "samples")
    _lines(axes, {name: (x, values) for name, values in curves.items()})
    axes.set(
        xlabel="time" if known else "time step",
        ylabel=plain_text(label, 40),
        title=plain_text(title),
    )
    if dates:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(minticks=2, maxticks=7)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.legend(fontsize=9)
    return figure


def _lines(axes: Axes, curves: Mapping[str, tuple[Any, Any]]) -> None:
    """Curves on a light grid, told apart by colour, line and marker."""
    for (name, (x, y)), (colour, line, marker) in zip(curves.items(), LINES, strict=False):
        axes.plot(x, y, line, color=colour, marker=marker, ms=4, label=plain_text(name))
    axes.grid(alpha=0.3)
