"""What the shrinkage study shows: its tables next to the paper's numbers, and its pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deconditional.datasets.shrinkage_toy import shrinkage_toy
from studies.provenance import provenance_lines
from studies.records import table_head, table_line
from studies.shrinkage import (
    CHOICES,
    FACTORS,
    KINDS,
    RIDGE,
    Embeddings,
    Row,
    embeddings,
    rms,
    unequal_sizes,
)

__all__ = ["PAPER", "SENSES", "draw", "table"]

PAPER = {
    (3, 50): "about 0.01 s both, RMSE negligible",
    (50, 3): "about 0.03 s both, RMSE small",
    (50, 500): "600x, RMSE 0.03",
    (500, 50): "200x, RMSE 0.02",
}
"""What the paper says of a number of bags and of points of each."""

SENSES = {
    ("n", "N"): "the paper's formulas: 0.1 n and 0.1 N",
    ("1", "1"): "0.1 added to both diagonals",
    ("N", "N"): "0.1 N added to both",
    ("n", "n"): "0.1 n added to both",
}
"""Readings of "the regularisation for both is set to 0.1"; all 16 pairs are measured."""


def table(results: Mapping[str, Any], settings: Row, command: str | None) -> str:
    """The whole of ``table.md``."""
    lines = [
        "# Standard and shrinkage embeddings",
        "",
        f"Means over {settings['seeds']} seed(s), smallest and largest in brackets; true "
        "embeddings lie between 0 and 1.",
        "",
        *_senses(results["senses"], settings["sizes"]),
        *_choices(results["choices"], settings["sizes"]),
        *_ridges(results["ridge"], settings["lambdas"]),
        *_times(results["times"]),
        "## How this was made",
        "",
        *provenance_lines(command),
        "",
    ]
    return "\n".join(lines)


def _senses(rows: Sequence[Row], sizes: Sequence[Any]) -> list[str]:
    lines = [
        "## What 0.1 can mean",
        "",
        "RMSE between the standard and the shrinkage embedding on the grid.",
        "",
        *table_head("what is added to the diagonals", *_bags(sizes)),
    ]
    for (one, other), words in SENSES.items():
        cells = _by_size(_range, rows, sizes, "rmse", standard=one, shrinkage=other)
        lines.append(table_line(words, *cells))
    cells = _by_size(_range, rows, sizes, "rmse_matched_dense")
    lines.append(table_line("matched ridges, dense system against shrinkage", *cells))
    cells = _by_size(_range, rows, sizes, "ridge_ratio_of_paper", ".2f")
    lines += [
        table_line("ratio of ridges that gives the paper's RMSE", *cells),
        "",
        "All 16 pairs, what multiplies 0.1 for the standard and for the shrinkage operator (N bags "
        "of nj points, n in all), means:",
        "",
        *table_head("standard", "shrinkage", *_bags(sizes)),
    ]
    for one in FACTORS:
        for other in FACTORS:
            cells = _by_size(_mean, rows, sizes, "rmse", ".2g", standard=one, shrinkage=other)
            lines.append(table_line(one, other, *cells))
    lines += ["", "RMSE against the true embedding:", "", *table_head("estimate", *_bags(sizes))]
    for (one, other), words in list(SENSES.items())[:2]:
        for kind in KINDS:
            cells = _by_size(_mean, rows, sizes, f"{kind}_error", standard=one, shrinkage=other)
            lines.append(table_line(f"{kind}, {words}", *cells))
    return [*lines, ""]


def _choices(rows: Sequence[Row], sizes: Sequence[Any]) -> list[str]:
    lines = ["## What the paper leaves open", "", *table_head("choice", *_bags(sizes))]
    for name, words in (
        ("rmse_direct", "0.1 added to both diagonals"),
        ("rmse_own_median", "the formulas, each operator with the median of its own mediators"),
    ):
        for choice in CHOICES:
            cells = _by_size(_range, rows, sizes, name, ".4f", choice=choice)
            lines.append(table_line(f"{words}; {choice}", *cells))
    return [*lines, ""]


def _ridges(rows: Sequence[Row], lambdas: Sequence[float]) -> list[str]:
    lines = [
        "## Errors against the truth over λ",
        "",
        f"The paper's formulas, 0.1 and the best λ of {len(lambdas)} between {min(lambdas):g} and "
        f"{max(lambdas):g} for each operator, its median in brackets. Dense: RMSE of the n x n "
        "system against the standard form from bags.",
        "",
        *table_head(
            "bags",
            "points of each",
            "points",
            "RMSE between",
            "dense",
            "standard, 0.1",
            "shrinkage, 0.1",
            "standard, best (λ)",
            "shrinkage, best (λ)",
            "seeds on which standard is better: 0.1, best",
        ),
    ]
    for (n_bags, smallest, largest), mine in _draws(rows):
        best = [
            f"{_mean(mine, f'{kind}_best', '.4f')} "
            f"({np.median(_values(mine, f'{kind}_best_lambda')):.1g})"
            for kind in KINDS
        ]
        better = [
            sum(row[f"shrinkage_{which}"] - row[f"standard_{which}"] > 1e-9 for row in mine)
            for which in ("error", "best")
        ]
        cells = [
            str(n_bags),
            str(smallest) if smallest == largest else f"{smallest} to {largest}",
            _mean(mine, "n_points", ".0f"),
            _range(mine, "rmse", ".4f"),
            _range(mine, "rmse_dense"),
            *(_mean(mine, f"{kind}_error", ".4f") for kind in KINDS),
            *best,
            f"{better[0]}, {better[1]} of {len(mine)}",
        ]
        lines.append(table_line(*cells))
    return [*lines, ""]


def _times(rows: Sequence[Row]) -> list[str]:
    lines = [
        "## Times",
        "",
        "Seconds for the coefficients at the 41 mediators of the grid, seed 0, float64, one "
        "thread of BLAS, compilation excluded: the n x n system by Cholesky in NumPy and SciPy, "
        "the others by the package. Bag means, the embeddings of the bags at the 41 points of the "
        "grid, are needed by all three and are timed apart. RMSE: of the dense standard "
        "embedding against both.",
        "",
        *table_head(
            "bags",
            "points of each",
            "dense",
            "standard from bags",
            "shrinkage",
            "bag means",
            "dense / standard from bags",
            "dense / shrinkage",
            "RMSE",
            "RMSE",
            "the paper",
        ),
    ]
    for row in rows:
        dense = row["dense_seconds"]
        star = "" if row["dense"] == "measured" else " (extrapolated)"
        cells = [
            str(row["n_bags"]),
            str(row["bag_size"]),
            f"{dense:.3g} s{star}",
            *(f"{1e3 * row[f'{name}_seconds']:.3g} ms" for name in (*KINDS, "bag_means")),
            *(f"{dense / row[f'{kind}_seconds']:.3g}{star}" for kind in KINDS),
            *(_mean([row], f"rmse_dense_{kind}", ".1e") for kind in KINDS),
            PAPER.get((row["n_bags"], row["bag_size"]), "–"),
        ]
        lines.append(table_line(*cells))
    return [*lines, ""]


# ---------------------------------------------------------------------- cells


def _bags(sizes: Sequence[Any]) -> list[str]:
    return [f"{n_bags} bags of {size}" for n_bags, size in sizes]


def _by_size(
    show: Callable[..., str], rows: Sequence[Row], sizes: Sequence[Any], *what: str, **where: str
) -> list[str]:
    return [show(rows, *what, **where, n_bags=n, bag_size=size) for n, size in sizes]


def _values(rows: Sequence[Row], name: str, **where: Any) -> np.ndarray:
    chosen = [row[name] for row in rows if all(row[k] == v for k, v in where.items())]
    return np.array([value for value in chosen if value is not None], dtype=float)


def _mean(rows: Sequence[Row], name: str, digits: str = ".3f", **where: Any) -> str:
    values = _values(rows, name, **where)
    return f"{values.mean():{digits}}" if len(values) else "–"


def _range(rows: Sequence[Row], name: str, digits: str = ".3f", **where: Any) -> str:
    values = _values(rows, name, **where)
    if not len(values):
        return "–"
    if values.max() < 1e-9:
        return f"< {10.0 ** np.ceil(np.log10(values.max())):.0e}" if values.any() else "0"
    return f"{values.mean():{digits}} ({values.min():{digits}} to {values.max():{digits}})"


def _draws(rows: Sequence[Row]) -> Iterator[tuple[tuple[int, int, int], list[Row]]]:
    """Number of bags, smallest and largest size, and the records of all seeds."""
    keys = [(row["n_bags"], row["smallest"], row["largest"]) for row in rows]
    for key in dict.fromkeys(keys):
        yield key, [row for row, its in zip(rows, keys, strict=True) if its == key]


# ---------------------------------------------------------------------- pictures


def draw(folder: Path, results: Mapping[str, Any], settings: Row) -> None:
    """``shrinkage-equal.png``, ``shrinkage-unequal.png`` and ``shrinkage-ridge.png``."""
    from deconditional.report import plots

    equal = [embeddings(shrinkage_toy(*size, seed=0)) for size in settings["sizes"]]
    figure = _heat_maps(
        "0.1 added to both diagonals: the standard operator has the smaller ridge, 0.1/nj",
        _bags(settings["sizes"]),
        [(problem, *problem.with_diagonal(RIDGE)) for problem in equal],
    )
    plots.save(figure, folder / "shrinkage-equal.png", dpi=100)
    unequal = [
        embeddings(shrinkage_toy(n, unequal_sizes(n, smallest, largest, seed=0), seed=0))
        for n, smallest, largest in settings["unequal"]
    ]
    figure = _heat_maps(
        "Unequal bags, the paper's formulas with λ = 0.1",
        [_spread(*size) for size in settings["unequal"]],
        [(problem, *problem.with_lambda(RIDGE)) for problem in unequal],
    )
    plots.save(figure, folder / "shrinkage-unequal.png", dpi=100)
    panels = [
        {
            "lines": {
                kind: (settings["lambdas"], [row[f"{kind}_curve"] for row in mine])
                for kind in KINDS
            },
            "title": _spread(*size),
            "xlabel": "λ",
            "ylabel": "RMSE against the true embedding",
            "xscale": "log",
            "yscale": "log",
        }
        for size, mine in _draws(results["ridge"])
        if size[1] != size[2]
    ]
    figure = plots.curves(panels, "Unequal bags (line: mean, band: range over seeds)", 5.0)
    plots.save(figure, folder / "shrinkage-ridge.png", dpi=100)


def _spread(n_bags: int, smallest: int, largest: int) -> str:
    return f"{n_bags} bags of {smallest} to {largest}"


def _heat_maps(
    title: str, names: Sequence[str], rows: Sequence[tuple[Embeddings, np.ndarray, np.ndarray]]
) -> Any:
    """Data, truth, both embeddings and their difference, a row for every setting."""
    from matplotlib.figure import Figure

    from deconditional.report.plots import DIVERGING, SEQUENTIAL

    figure = Figure(figsize=(15.5, 2.9 * len(rows) + 0.7))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    figure.suptitle(title, fontsize=13)
    grid: Any = figure.subplots(len(rows), 5, squeeze=False, sharey="row", sharex="row")
    for line, name, (problem, standard, shrinkage) in zip(grid, names, rows, strict=True):
        bags, y, x = problem.toy.bags, problem.y, problem.x
        many = bags.n_points > 3000
        line[0].plot(
            problem.repeated,
            bags.points[:, 0],
            ".",
            color="#0072b2",
            markersize=1 if many else 3,
            alpha=0.15 if many else 0.6,
            rasterized=True,
        )
        line[0].plot(y, problem.toy.conditional_mean(y), color="#d55e00", linewidth=1)
        line[0].set(title=f"data, {name}", ylabel="x")
        maps = {"true embedding": problem.truth, "standard": standard, "shrinkage": shrinkage}
        shared = {
            "cmap": SEQUENTIAL,
            "vmin": min(values.min() for values in maps.values()),
            "vmax": max(values.max() for values in maps.values()),
        }
        for place, (what, values) in zip(line[1:4], maps.items(), strict=True):
            image = place.pcolormesh(y, x, values, shading="nearest", rasterized=True, **shared)
            place.set_title(what)
        figure.colorbar(image, ax=line[3], shrink=0.9)
        gap = standard - shrinkage
        largest = float(np.abs(gap).max()) or 1.0
        image = line[4].pcolormesh(
            y, x, gap, cmap=DIVERGING, vmin=-largest, vmax=largest, shading="nearest"
        )
        line[4].set_title(f"standard − shrinkage, RMSE {rms(gap):.3f}")
        figure.colorbar(image, ax=line[4], shrink=0.9)
    for place in grid[-1]:
        place.set_xlabel("y")
    return figure
