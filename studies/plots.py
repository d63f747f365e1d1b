"""Figures of the studies: the roll, its bags, a posterior in a plane, curves with their range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deconditional.errors import UsageError
from deconditional.report.plots import (
    BLUE,
    DIVERGING,
    GAP,
    SEQUENTIAL,
    SPREAD,
    VERMILION,
    draw_coverage,
    new_figure,
    require_matplotlib,
    save,
)
from deconditional.scores import pit, rmse

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from deconditional.datasets.surfaces import CutSurface

__all__ = [
    "DIVERGING",
    "SEQUENTIAL",
    "can_draw",
    "curves",
    "new_figure",
    "points_panels",
    "posterior_panels",
    "require_matplotlib",
    "roll",
    "roll_bags",
    "save",
]


def can_draw() -> None:
    """Raise, with the remedies, where figures are asked for and matplotlib is missing."""
    try:
        require_matplotlib()
    except ImportError as error:
        raise UsageError(f"{error} Or leave figures out with --no-figures.") from None


def roll(data: CutSurface, title: str = "Swiss roll") -> Figure:
    """The roll coloured by its truth, in space and seen along its axis.

    Examples
    --------
    >>> from deconditional.datasets import swiss_roll
    >>> len(roll(swiss_roll(200, 8)).axes)
    3
    """
    figure = new_figure(10, 4.8, title)
    from matplotlib.ticker import MaxNLocator  # only once matplotlib is known to be there

    space: Any = figure.add_subplot(1, 2, 1, projection="3d")
    drawn = space.scatter(*data.x[:, [0, 1, 2]].T, c=data.f, cmap=SEQUENTIAL, s=4)
    space.set(xlabel="x₁", ylabel="x₂", zlabel="x₃", title="in space")
    space.view_init(elev=18, azim=-72)
    space.set_box_aspect(None, zoom=0.9)  # room for the label of the vertical axis
    for axis in (space.xaxis, space.yaxis, space.zaxis):
        axis.set_major_locator(MaxNLocator(4))
    side = figure.add_subplot(1, 2, 2)
    side.scatter(data.x[:, 0], data.x[:, 2], c=data.f, cmap=SEQUENTIAL, s=4)
    side.set(xlabel="x₁", ylabel="x₃", title="along its axis", aspect="equal")
    figure.colorbar(drawn, ax=side, label="f, position along the roll", shrink=0.9)
    return figure


def roll_bags(rolls: Sequence[CutSurface], title: str = "Bags") -> Figure:
    """The bags of one or more rolls, and the coarse observations against the mediator.

    Above, every point by its bag, grey where the bag's points are not given; below, the
    observations, with the true means of the bags as a line.

    Examples
    --------
    >>> from deconditional.datasets import swiss_roll
    >>> len(roll_bags([swiss_roll(200, 8), swiss_roll(200, 8, "indirect")]).axes)
    4
    """
    figure = new_figure(5.6 * len(rolls), 8.6, title)
    grid: Any = figure.subplots(
        2, len(rolls), squeeze=False, sharex="row", sharey="row", height_ratios=[1.25, 1]
    )
    for column, data in enumerate(rolls):
        _bag_members(grid[0, column], data)
        _observations(grid[1, column], data)
    return figure


def _bag_members(axes: Axes, data: CutSurface) -> None:
    # A permuted order of colours sets neighbouring bags apart.
    n_bags = int(data.bag_of.max()) + 1
    colour = np.random.default_rng(0).permutation(n_bags)[data.bag_of]
    kept = np.isin(data.bag_of, np.array(data.bags.ids))
    x, height = data.x[:, 0], data.x[:, 2]
    axes.scatter(x[~kept], height[~kept], color=GAP, s=4)
    axes.scatter(x[kept], height[kept], c=colour[kept], cmap=SEQUENTIAL, s=4)
    for edge in np.linspace(height.min(), height.max(), n_bags + 1):
        axes.axhline(edge, color="0.3", linewidth=0.3, zorder=0)
    title = f"{data.matching}: {data.bags.n_bags} of {n_bags} bags keep their points"
    if not kept.all():
        title += "\n(the others' are grey)"
    axes.set(xlabel="x₁", ylabel="x₃, cut into levels", title=title, aspect="equal")


def _observations(axes: Axes, data: CutSurface) -> None:
    counts = np.bincount(data.bag_of)
    means = np.bincount(data.bag_of, weights=data.f) / counts
    low, high = data.x[:, 2].min(), data.x[:, 2].max()
    middle = low + (np.arange(len(counts)) + 0.5) * (high - low) / len(counts)
    axes.plot(middle, means, color="0.6", linewidth=1, label="true mean of f")
    axes.plot(data.mediator[:, 0], data.z, "o", color=BLUE, markersize=4, label="z observed")
    keeps = np.isin(np.arange(len(counts)), np.array(data.bags.ids))
    if not keeps.all():
        floor = np.full(keeps.sum(), min(means.min(), data.z.min()) - 0.25)
        axes.plot(
            middle[keeps], floor, "|", color=VERMILION, markersize=9, label="points x given, no z"
        )
    axes.set(
        xlabel="y, mid-height of the bag",
        ylabel="mean of f over the bag",
        title=f"{data.matching}: {len(data.z)} observations",
    )
    axes.legend(loc="best", framealpha=0.9)


def posterior_panels(
    coordinates: npt.ArrayLike,
    truth: npt.ArrayLike,
    posterior: Any,
    title: str,
    axes: tuple[str, str] = ("first covariate", "second covariate"),
) -> Figure:
    """A posterior against the truth in a plane: mean, error, spread and calibration.

    Parameters
    ----------
    coordinates : (m, 2)
        Where each query point is drawn.
    truth : (m,)
        The true field there.
    posterior
        A :class:`~deconditional.Posterior` at the same points.
    title, axes
        Title of the figure and names of the two coordinates.

    Examples
    --------
    >>> from deconditional.inference.posterior import Gaussians
    >>> x = np.random.default_rng(0).normal(size=(50, 2))
    >>> figure = posterior_panels(x, x[:, 0], Gaussians(x[:, :1].T, np.ones((1, 50))), "example")
    >>> [panel.get_title() for panel in figure.axes[:3]]
    ['truth', 'posterior mean', 'mean − truth']
    """
    xy, f = np.asarray(coordinates), np.asarray(truth)
    mean, std = posterior.mean, posterior.std
    error = mean - f
    low, high = min(f.min(), mean.min()), max(f.max(), mean.max())
    largest = float(np.abs(error).max()) or 1.0
    figure = new_figure(12.5, 7.8, f"{title}: RMSE {rmse(mean, f):.3f}")
    grid: Any = figure.subplots(2, 3)
    shared = {"cmap": SEQUENTIAL, "vmin": low, "vmax": high}
    around_zero = {"cmap": DIVERGING, "vmin": -largest, "vmax": largest}
    for panel, colour, style, name in (
        (grid[0, 0], f, shared, "truth"),
        (grid[0, 1], mean, shared, "posterior mean"),
        (grid[0, 2], error, around_zero, "mean − truth"),
        (grid[1, 0], std, {"cmap": SPREAD, "vmin": 0.0}, "posterior standard deviation"),
    ):
        drawn = panel.scatter(xy[:, 0], xy[:, 1], c=colour, s=5, **style)
        panel.set(xlabel=axes[0], ylabel=axes[1], title=name, aspect="equal")
        if panel is not grid[0, 0]:  # truth and mean share one scale, drawn beside the mean
            figure.colorbar(drawn, ax=panel, shrink=0.85)
    _truth_against_mean(grid[1, 1], f, mean)
    draw_coverage(grid[1, 2], pit(posterior, f), "calibration")
    return figure


def _truth_against_mean(axes: Axes, truth: np.ndarray, mean: np.ndarray) -> None:
    ends = [min(truth.min(), mean.min()), max(truth.max(), mean.max())]
    axes.plot(ends, ends, color="0.3", linewidth=1)
    axes.plot(mean, truth, ".", color=BLUE, markersize=2, alpha=0.4, rasterized=True)
    axes.set(xlabel="posterior mean", ylabel="truth", title="truth against mean", aspect="equal")


def points_panels(
    panels: Sequence[tuple[npt.ArrayLike, npt.ArrayLike, str, str]], title: str = ""
) -> Figure:
    """Scatter plots side by side, from x, y and the names of both.

    Examples
    --------
    >>> len(points_panels([([1, 2], [3, 4], "a", "b")]).axes)
    1
    """
    figure = new_figure(4.6 * len(panels), 4.2, title)
    for place, (x, y, across, up) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), place + 1)
        axes.plot(x, y, ".", ms=2, alpha=0.5, color="C0")
        axes.set(xlabel=across, ylabel=up)
        axes.grid(alpha=0.3)
    return figure


def curves(
    panels: Sequence[Mapping[str, Any]], title: str = "", width: float = 4.6, height: float = 4.0
) -> Figure:
    """Panels of lines side by side.

    Parameters
    ----------
    panels
        Each with ``lines``, a mapping from label to (x, y), and what the axes understand, such as
        ``title``, ``xlabel``, ``ylabel``, ``xscale`` and ``yscale``. A y of several rows is drawn
        as its mean within the range of its rows. ``level`` draws a horizontal line.

    Examples
    --------
    >>> panel = {"lines": {"a": ([1, 2], [3.0, 4.0])}, "xlabel": "x", "level": ("goal", 5.0)}
    >>> len(curves([panel]).axes)
    1
    """
    figure = new_figure(width * len(panels), height, title)
    for place, panel in enumerate(panels):
        settings = dict(panel)
        axes = figure.add_subplot(1, len(panels), place + 1)
        for index, (label, (x, y)) in enumerate(settings.pop("lines").items()):
            rows = np.atleast_2d(np.asarray(y, dtype=float))
            colour = f"C{index}"
            many = rows.shape[1] > 30
            axes.plot(x, rows.mean(0), color=colour, marker="" if many else "o", ms=4, label=label)
            if len(rows) > 1:
                axes.fill_between(x, rows.min(0), rows.max(0), color=colour, alpha=0.2, lw=0)
        level = settings.pop("level", None)
        if level is not None:
            axes.axhline(level[1], color="0.3", ls="--", lw=1, label=level[0])
        axes.set(**settings)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure
