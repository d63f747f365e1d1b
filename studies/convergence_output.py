"""What the convergence study shows: fitted slopes, the bags needed, their tables and pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from studies.convergence import (
    CASES,
    OBSERVATIONS,
    OWN_CASE,
    PROBLEMS,
    RULES,
    Case,
    Row,
    rates_name,
)
from studies.convergence_problem import Array
from studies.provenance import provenance_lines
from studies.records import table_head, table_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bags_needed", "draw", "fitted", "local_slopes", "needed", "slope", "table"]

WITHIN = 1.25
"""Bags are enough once the risk is at most this many times what it is with C known."""

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")
MARKS = "osD^"


# ---------------------------------------------------------------------- what the numbers say


def slope(sizes: npt.ArrayLike, mean: npt.ArrayLike, error: npt.ArrayLike) -> tuple[float, float]:
    """The rate at which means fall with size on logarithmic scales, and its standard error.

    Least squares of log mean on log size, with the standard errors of the means carried through.

    Examples
    --------
    >>> rate, spread = slope([1, 2, 4], [8.0, 4.0, 2.0], [0.8, 0.4, 0.2])
    >>> print(f"{rate:.2f} {spread:.3f}")
    1.00 0.102
    """
    x, y, spread = (np.asarray(values, dtype=float) for values in (sizes, mean, error))
    if len(x) < 2 or not (x > 0).all() or not (y > 0).all():
        raise ValueError("slope needs at least two sizes, and sizes and means that are positive.")
    centred = np.log(x) - np.log(x).mean()
    weights = centred / np.sum(centred**2)
    return -float(weights @ np.log(y)), float(np.sqrt(np.sum((weights * spread / y) ** 2)))


def bags_needed(bags: Sequence[int], ratio: Sequence[float], within: float = WITHIN) -> float:
    """The number of bags from which on a ratio stays below a bound, interpolated.

    NaN if the ratio is above the bound at the last number, or at none.

    Examples
    --------
    >>> bags_needed([1, 10, 100], [4.0, 2.0, 1.0], within=2.0)
    10.0
    """
    above = [index for index, value in enumerate(ratio) if value > within]
    if not above or above[-1] + 1 == len(bags):
        return math.nan
    crossing = slice(above[-1], above[-1] + 2)
    x, y = np.log(bags[crossing]), np.log(ratio[crossing])
    return float(np.exp(x[0] + (np.log(within) - y[0]) * (x[1] - x[0]) / (y[1] - y[0])))


def fitted(rows: Sequence[Row], part: str = "total") -> tuple[float, float]:
    """Slope over the upper half of the sizes, and its standard error."""
    return _slope(rows[len(rows) // 2 :], part)


def local_slopes(rows: Sequence[Row], part: str = "total") -> tuple[Array, Array, Array]:
    """Slopes between neighbouring sizes: where (geometric mean), value and standard error."""
    neighbours = list(pairwise(rows))
    where = np.array([math.sqrt(one["size"] * two["size"]) for one, two in neighbours])
    both = np.array([_slope(pair, part) for pair in neighbours])
    return where, both[:, 0], both[:, 1]


def _slope(rows: Sequence[Row], part: str) -> tuple[float, float]:
    return slope(*(_column(rows, name) for name in ("size", part, f"{part}_error")))


def _column(rows: Sequence[Row], name: str) -> Array:
    return np.array([row[name] for row in rows], dtype=float)


def needed(rows: Sequence[Row], rule: str) -> list[tuple[int, float, float]]:
    """For every M the N needed under one choice of λ, and its standard error."""
    found = []
    for size in OBSERVATIONS:
        mine = _measured(rows, rule, size)
        total = _column(mine, "total")
        ratio, error = total / _column(mine, "known"), _column(mine, "total_error") / total
        bags = [row["bags"] for row in mine]
        middle, high, low = (
            bags_needed(bags, (ratio * (1 + sign * error)).tolist()) for sign in (0, 1, -1)
        )
        found.append((size, middle, (high - low) / 2))
    return found


def _measured(rows: Sequence[Row], rule: str, size: int) -> list[Row]:
    return [row for row in rows if row["rule"] == rule and row["size"] == size]


def _growth(found: Sequence[tuple[int, float, float]]) -> tuple[float, float]:
    """The power of M with which the N needed grows, and its standard error."""
    size, number, error = zip(*found, strict=True)
    if not np.isfinite([*number, *error]).all():
        return math.nan, math.nan
    rate, spread = slope(size, number, error)
    return -rate, spread


# ---------------------------------------------------------------------- tables


def table(results: Mapping[str, Any], settings: Row, command: str | None) -> str:
    """The whole of ``table.md``."""
    lines = [
        "# Convergence of the deconditional mean operator",
        "",
        f"{settings['repetitions']} repetitions at every size, seed {settings['seed']}.",
        "",
        *_rates(results["rates"]),
        *_bags(results["bags"]),
        "## How this was made",
        "",
        *provenance_lines(command),
        "",
    ]
    return "\n".join(lines)


def _rates(rates: Mapping[str, Sequence[Row]]) -> list[str]:
    lines = [
        "## Rates",
        "",
        "N, λ and ε as the theorem prescribes, c' = 2, ι = 1. Measured: slope of the mean excess "
        "risk over the upper half of the sizes, with a 95% interval for sampling error; last: the "
        "slope between the two largest sizes; ε of the corner: measured with the same N and λ, and "
        "that ε. The last three columns are at the largest size: mean excess risk, and as shares "
        "of it the excess with C known and the bias of ε alone.",
        "",
        *table_head(
            "case",
            "read as",
            "a",
            "N",
            "M fitted",
            "predicted",
            "measured",
            "last",
            "ε of the corner",
            "excess",
            "C known",
            "bias",
        ),
    ]
    for name, case in CASES.items():
        for a in case.a:
            rows = rates[rates_name(name, a)]
            first, last = rows[len(rows) // 2], rows[-1]
            cells = [
                name,
                _exponents(case),
                f"{a:g} (corner)" if math.isclose(a, case.corner) else f"{a:g}",
                f"M^{3 * a:g}",
                f"{_power(first['size'])} to {_power(last['size'])}",
                f"{last['rate']:.3f}",
                _interval(*fitted(rows)),
                f"{local_slopes(rows)[1][-1]:.2f}",
                _interval(*fitted(rows, "corner")),
                f"{last['total']:.2e}",
                f"{last['known'] / last['total']:.2f}",
                f"{last['bias'] / last['total']:.2f}",
            ]
            lines.append(table_line(*cells))
    return [*lines, ""]


def _bags(bags: Mapping[str, Sequence[Row]]) -> list[str]:
    lines = [
        "## Bags needed",
        "",
        "Bags have one point unless the rule for λ says otherwise. The N from which on the mean "
        f"excess risk is at most {WITHIN:g} times that with C known, at the ε of the corner; the "
        "growth of N as a power of M, with a 95% interval; and the power of the theorem at its "
        "corner.",
        "",
        *table_head(
            "problem", "λ", *(f"M = {size}" for size in OBSERVATIONS), "power of M", "theorem"
        ),
    ]
    for name in PROBLEMS:
        theorem = f"{3 * CASES[OWN_CASE[name]].corner:g}"
        for rule in RULES:
            found = needed(bags[name], rule)
            counts = [_count(number) for _, number, _ in found]
            lines.append(table_line(name, rule, *counts, _interval(*_growth(found)), theorem))
    return [*lines, ""]


def _interval(estimate: float, error: float) -> str:
    if not math.isfinite(estimate):
        return "–"
    return f"{estimate:.3f} ({estimate - 1.96 * error:.3f} to {estimate + 1.96 * error:.3f})"


def _count(number: float) -> str:
    if not math.isfinite(number):
        return "–"
    return f"{number:.0f}" if number < 1e5 else f"{number:.1e}"


def _exponents(case: Case) -> str:
    return f"b = {'∞' if math.isinf(case.b) else f'{case.b:g}'}, c = {case.c:g}"


def _power(size: int) -> str:
    return f"2^{size.bit_length() - 1}" if size & (size - 1) == 0 else str(size)


# ---------------------------------------------------------------------- pictures


def draw(folder: Path, results: Mapping[str, Any]) -> None:
    """``convergence.png`` and ``convergence-bags.png``."""
    from matplotlib.figure import Figure

    from deconditional.report import plots

    figure = Figure(figsize=(4.4 * len(CASES), 7.4), layout="constrained")
    grid: Any = figure.subplots(2, len(CASES), squeeze=False, height_ratios=[1.4, 1])
    figure.suptitle("Excess risk against the number of observations; dashed: the theorem's slope")
    for name, (upper, lower) in zip(CASES, grid.T, strict=True):
        _draw_rates(upper, lower, name, results["rates"])
    plots.save(figure, folder / "convergence.png")

    figure = Figure(figsize=(9.4, 3.9 * len(PROBLEMS)), layout="constrained")
    grid = figure.subplots(len(PROBLEMS), 2, squeeze=False)
    figure.suptitle("How many bags are enough (of one point, unless said otherwise)")
    for name, (left, right) in zip(PROBLEMS, grid, strict=True):
        _draw_bags(left, right, name, results["bags"][name])
    plots.save(figure, folder / "convergence-bags.png")


def _draw_rates(upper: Axes, lower: Axes, name: str, rates: Mapping[str, Sequence[Row]]) -> None:
    case = CASES[name]
    for a, colour, mark in zip(case.a, COLOURS, MARKS, strict=False):
        rows = rates[rates_name(name, a)]
        size, mean = _column(rows, "size"), _column(rows, "total")
        rate = rows[0]["rate"]
        style: dict[str, Any] = {"color": colour, "marker": mark, "ms": 4}
        label = f"a = {a:g}, corner" if math.isclose(a, case.corner) else f"a = {a:g}"
        _curve(upper, size, mean, _column(rows, "total_error"), alpha=0.25, label=label, **style)
        upper.plot(size, mean[-1] * (size / size[-1]) ** -rate, color=colour, ls="--", lw=1)
        _curve(lower, *local_slopes(rows), **style)
        lower.axhline(rate, color=colour, ls="--", lw=1)
    upper.set(title=f"{name}: {_exponents(case)}", xscale="log", yscale="log", ylabel="excess risk")
    lower.set(xscale="log", xlabel="observations M", ylabel="local slope", ylim=(0, 1.4))
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    upper.legend(fontsize=8)


def _draw_bags(left: Axes, right: Axes, name: str, rows: Sequence[Row]) -> None:
    size = OBSERVATIONS[len(OBSERVATIONS) // 2]
    own = OWN_CASE[name]
    for rule, colour, mark in zip(RULES, COLOURS, MARKS, strict=False):
        mine = _measured(rows, rule, size)
        known = _column(mine, "known")
        ratio, error = _column(mine, "total") / known, _column(mine, "total_error") / known
        style: dict[str, Any] = {"color": colour, "marker": mark, "ms": 4, "label": f"λ = {rule}"}
        _curve(left, _column(mine, "bags"), ratio, error, **style)
        found = [entry for entry in needed(rows, rule) if math.isfinite(entry[1])]
        right.plot([entry[0] for entry in found], [entry[1] for entry in found], **style)
    observations = np.array(OBSERVATIONS, dtype=float)
    power = 3 * CASES[own].corner
    right.plot(observations, observations**power, "k--", lw=1, label=f"theorem, M^{power:g}")
    right.plot(observations, observations, "k:", lw=1, label="N = M")
    left.axhline(WITHIN, color="0.3", ls="--", lw=1, label=f"{WITHIN:g}")
    left.axvline(size, color="0.3", ls=":", lw=1, label="N = M")
    left.set(title=f"{own}, M = {size}", xlabel="bags N", ylabel="excess risk / that with C known")
    right.set(
        title=f"{own}, bags needed",
        xlabel="observations M",
        ylabel=f"N for a ratio of {WITHIN:g}",
    )
    for axes in (left, right):
        axes.set(xscale="log", yscale="log")
        axes.grid(alpha=0.3)
    right.set_ylim(top=1e5 * observations[-1] ** power)  # room for the legend
    left.legend(fontsize=8, loc="upper right")
    right.legend(fontsize=8, loc="upper left")


def _curve(axes: Axes, x: Array, y: Array, error: Array, alpha: float = 0.2, **style: Any) -> None:
    """A line in its 95% band."""
    axes.plot(x, y, **style)
    band = 1.96 * error
    axes.fill_between(x, y - band, y + band, color=style["color"], alpha=alpha, lw=0)
