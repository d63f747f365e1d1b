"""How figures are made, look and are written, and those of lines; ``maps`` has the others.

Figures are made without pyplot, so no window opens and no global state changes. Colour maps keep
their order in grey and for colour-blind readers. Texts are drawn as they are given: a dollar sign
starts no formula. Matplotlib is an optional dependency and is imported when a figure is drawn.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deconditional.saving.outputs import write_atomically
from deconditional.scores import pit_coverage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SEQUENTIAL, SPREAD, DIVERGING = "viridis", "cividis", "PuOr"
"""Colour maps of values, of spreads from zero up, and of differences around zero."""

GAP = "0.75"
"""Grey of cells without a value."""

BLUE, ORANGE, GREEN, VERMILION = "#0072b2", "#e69f00", "#009e73", "#d55e00"


def require_matplotlib() -> None:
    """Raise ImportError, with the remedy, where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError(
            'figures need matplotlib: install it with pip install "deconditional[plots]".'
        ) from None


def new_figure(width: float, height: float, title: str = "") -> Figure:
    r"""An empty figure, in inches, whose panels make room for their labels."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    if title:
        figure.suptitle(plain_text(title, 110), fontsize=13)
    return figure


def png(figure: Figure, dpi: int = 150) -> bytes:
    """Bytes of a figure as PNG."""
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


def save(figure: Figure, path: str | os.PathLike[str], dpi: int = 130) -> Path:
    """Write a figure as PNG."""
    write_atomically(Path(path), png(figure, dpi))
    return Path(path)


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


# ---------------------------------------------------------------------- lines

LEVELS = np.array([0.05, *np.arange(0.1, 0.91, 0.1), 0.95, 0.99])

PIT_BINS = 10

LINES = ((BLUE, "-", "o"), (VERMILION, "--", "s"))
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


def coverage_curve(pit: npt.ArrayLike) -> Figure:
    """Share of PIT values inside central intervals against the intervals' probability."""
    figure = new_figure(4.8, 4.4)
    draw_coverage(figure.add_subplot(), pit, "coverage of central intervals")
    return figure


def pit_histogram(pit: npt.NDArray[np.float64]) -> Figure:
    """Where truth lies in its distributions, with the band of a calibrated forecast."""
    figure = new_figure(4.8, 4.4)
    axes, n, share = figure.add_subplot(), len(pit), 1.0 / PIT_BINS
    spread = 2.0 * np.sqrt(n * share * (1.0 - share))
    axes.axhspan(max(n * share - spread, 0.0), n * share + spread, color="0.9")
    axes.axhline(n * share, color="0.3", linewidth=1)
    axes.hist(pit, PIT_BINS, range=(0.0, 1.0), color=BLUE, alpha=0.7, rwidth=0.9)
    axes.set(xlabel="probability of less than the truth", ylabel="observations", xlim=(0, 1))
    axes.set_title("PIT histogram")
    return figure


def against(x: npt.NDArray[Any], y: npt.NDArray[Any], x_name: str, y_name: str) -> Figure:
    """Counts against what was expected of them, with the band of Poisson scatter."""
    figure = new_figure(4.8, 4.4)
    axes = figure.add_subplot()
    line = np.linspace(0.0, float(max(x.max(initial=1.0), y.max(initial=1.0))), 200)
    width = 2.0 * np.sqrt(line)
    axes.fill_between(line, np.maximum(line - width, 0.0), line + width, color="0.9")
    axes.plot(line, line, color="0.3", linewidth=1)
    axes.plot(x, y, "o", ms=3, color=BLUE, alpha=0.7)
    axes.set(xlabel=x_name, ylabel=y_name, title=f"{y_name} against {x_name}")
    axes.grid(alpha=0.3)
    return figure


def time_series(
    times: npt.ArrayLike,
    curves: Mapping[str, npt.ArrayLike],
    label: str,
    title: str,
    samples: npt.ArrayLike | None = None,
) -> Figure:
    """Curves over time, above thin lines of samples.

    Times that are neither dates nor numbers are counted. `curves` are values by name, `samples` (s,
    times) a line each.
    """
    when = np.asarray(times)
    dates = np.issubdtype(when.dtype, np.datetime64)
    known = dates or np.issubdtype(when.dtype, np.number)
    figure = new_figure(5.6, 3.2)
    axes = figure.add_subplot()
    x: Any = when if known else np.arange(1, len(when) + 1)
    for place, row in enumerate(() if samples is None else np.asarray(samples, dtype=float)):
        axes.plot(x, row, color="0.7", linewidth=0.8, label=None if place else "samples")
    for (name, values), (colour, line, marker) in zip(curves.items(), LINES, strict=False):
        axes.plot(x, values, line, color=colour, marker=marker, ms=4, label=plain_text(name))
    axes.grid(alpha=0.3)
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
