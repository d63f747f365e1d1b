r"""The paper's study of the shrinkage operator, and what it compares.

The standard conditional mean operator repeats the mediator of a bag for all its points and inverts
an n x n matrix; the shrinkage operator regresses bag means and inverts an N x N one. With c on
the diagonal of the former, the push-through identity turns it into

.. math:: \hat\mu_{X \mid y}(x) = \bar k(x) (L + c D^{-1})^{-1} \ell(\mathbf{y}, y),

a shrinkage operator with the ridge :math:`c / n_j`. Four studies measure what follows from that:

- senses: how far the two embeddings are apart for all that a common "regularisation of 0.1" can
  mean, and that nothing is left of it at matched ridges;
- choices: what the paper leaves open about data, grid and length scales;
- ridge: errors against the true embedding over λ, with bags of equal and of unequal sizes;
- times: the dense system, the same estimator from bags, and the shrinkage operator.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from threadpoolctl import threadpool_limits

from deconditional.errors import UsageError
from studies import plots
from studies.clock import best_seconds
from studies.command import option
from studies.data import shrinkage_toy
from studies.frame import Outcome, Part, Study
from studies.records import Record, Results
from studies.shrinkage_estimators import (
    KINDS,
    Embeddings,
    bag_means,
    dense_coefficients,
    embeddings,
    median_distance,
    operator_weights,
    rms,
    smallest,
)
from studies.tables import Cell, markdown, mean, values

__all__ = ["Shrinkage"]

SETTINGS = ((3, 50), (50, 3), (50, 500), (500, 50))
"""Number of bags and points of each, as in the paper."""

UNEQUAL = ((50, 2, 250), (500, 2, 100))
"""Number of bags, points of the smallest and of the largest; sizes grow geometrically between."""

RIDGE = 0.1
FACTORS = ("1", "N", "nj", "n")
"""What the 0.1 can be multiplied by before it is added to a diagonal."""

LAMBDAS = np.geomspace(1e-12, 1.0, 37)
FEW_POINTS = 3000
"""Points up to which the dense system is solved for every seed and sense, and whose time tells that
of larger ones."""

PAPER_RMSE = {(50, 500): 0.03, (500, 50): 0.02}
"""The paper's RMSE between the two embeddings, where it prints one."""

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

CHOICES = {
    "as in the first table": (2.0**0.5, "data", 1.0),
    "N(0, 2): a standard deviation of 2": (2.0, "data", 1.0),
    "fixed grid": (2.0**0.5, "fixed", 1.0),
    "length scales: median / √2": (2.0**0.5, "data", 0.5**0.5),
    "all three": (2.0, "fixed", 0.5**0.5),
}
"""Standard deviation of mediators, grid, and length scales over the median distance."""


@dataclass(frozen=True)
class Shrinkage(Study):
    """Two estimators of conditional mean embeddings, with each other and with the truth."""

    name: ClassVar[str] = "shrinkage"
    help: ClassVar[str] = "standard and shrinkage conditional mean operators (appendix C)"
    title: ClassVar[str] = "Standard and shrinkage embeddings"
    task: ClassVar[type[Any]] = Part
    takes_jobs: ClassVar[bool] = False  # it measures times

    seeds: int = option(10, "draws of every setting; times are of the first", quick=2)
    dense_points: int = option(
        30_000, "points up to which dense systems are solved, not extrapolated", quick=3000
    )

    def settings(self) -> Record:
        """The sizes of the draws, and the ridges tried."""
        return {
            "sizes": SETTINGS,
            "unequal": UNEQUAL,
            "lambdas": _lambdas(),
            "dense_points": self.dense_points,
        }

    def tasks(self) -> list[Part]:
        """One task for every part, setting and seed."""
        if self.seeds < 1:
            raise UsageError(f"take at least 1 seed, not {self.seeds}.")
        seeds, cases, unequal = range(self.seeds), [*_cases()], [*_unequal()]
        return [
            *(Part("senses", case, seed) for case in cases for seed in seeds),
            *(Part("choices", case, seed) for case in cases for seed in seeds),
            *(Part("ridge", case, seed) for case in (*cases, *unequal) for seed in seeds),
            *(Part("times", case, 0) for case in cases),
        ]

    def fit(self, task: Part) -> list[Outcome]:
        """The rows of one part for one draw."""
        # Threads of BLAS that wait for a busy core slow small systems down tenfold.
        with threadpool_limits(1, user_api="blas"):
            if task.part == "ridge":
                rows = [_ridge((_cases() | _unequal())[task.case], task.seed)]
            elif task.part == "times":
                rows = [_times(*_cases()[task.case], self.dense_points)]
            else:
                part = {"senses": _senses, "choices": _choices}[task.part]
                rows = part(*_cases()[task.case], task.seed)
        return [Outcome(task, rows)]

    def table(self, results: Results) -> list[str]:
        """A table for every part, with the paper's numbers."""
        return [
            f"Means over {self.seeds} seed(s), smallest and largest in brackets; true embeddings "
            "lie between 0 and 1.",
            "",
            *_senses_table(results),
            *_choices_table(results),
            *_ridge_table(results),
            *_times_table(results),
        ]

    def figures(self, results: Results) -> None:
        """``shrinkage-equal.png``, ``shrinkage-unequal.png`` and ``shrinkage-ridge.png``."""
        equal = {case: embeddings(shrinkage_toy(*size, seed=0)) for case, size in _cases().items()}
        figure = _heat_maps(
            "0.1 added to both diagonals: the standard operator has the smaller ridge, 0.1/nj",
            [(case, one, *one.with_diagonal(RIDGE)) for case, one in equal.items()],
        )
        plots.save(figure, results.folder / "shrinkage-equal.png", dpi=100)
        unequal = {
            case: embeddings(shrinkage_toy(size[0], unequal_sizes(*size, seed=0), seed=0))
            for case, size in _unequal().items()
        }
        figure = _heat_maps(
            "Unequal bags, the paper's formulas with λ = 0.1",
            [(case, one, *one.with_lambda(RIDGE)) for case, one in unequal.items()],
        )
        plots.save(figure, results.folder / "shrinkage-unequal.png", dpi=100)
        panels = []
        for case in _unequal():
            mine = results.where(part="ridge", case=case)
            lines = {kind: (_lambdas(), [row[f"{kind}_curve"] for row in mine]) for kind in KINDS}
            text = {"title": case, "xlabel": "λ", "ylabel": "RMSE against the true embedding"}
            panels.append({"lines": lines, **text, "xscale": "log", "yscale": "log"})
        figure = plots.curves(panels, "Unequal bags (line: mean, band: range over seeds)", 5.0)
        plots.save(figure, results.folder / "shrinkage-ridge.png", dpi=100)


def _cases() -> dict[str, tuple[int, int]]:
    return {f"{n_bags} bags of {size}": (n_bags, size) for n_bags, size in SETTINGS}


def _unequal() -> dict[str, tuple[int, int, int]]:
    return {
        f"{n} bags of {smallest} to {largest}": (n, smallest, largest)
        for n, smallest, largest in UNEQUAL
    }


def _lambdas() -> list[float]:
    return [float(f"{value:.6g}") for value in LAMBDAS]


def unequal_sizes(n_bags: int, smallest: int, largest: int, seed: int) -> np.ndarray:
    """Sizes that grow geometrically from the smallest to the largest, in random order.

    Examples
    --------
    >>> sorted(unequal_sizes(4, 2, 16, seed=0).tolist())
    [2, 4, 8, 16]
    """
    sizes = np.geomspace(smallest, largest, n_bags).round().astype(np.int64)
    return np.random.default_rng(seed).permutation(sizes)


# ---------------------------------------------------------------------- the parts


def _senses(n_bags: int, size: int, seed: int) -> list[Record]:
    """Both embeddings for every pair of factors that 0.1 can be multiplied by."""
    factor = dict(zip(FACTORS, (1, n_bags, size, n_bags * size), strict=True))
    problem = embeddings(shrinkage_toy(n_bags, size, seed=seed))
    standard, shrinkage, left = {}, {}, {}
    for name, times in factor.items():
        diagonal = RIDGE * times
        standard[name], shrinkage[name] = problem.with_diagonal(diagonal)
        if n_bags * size <= FEW_POINTS:
            matched = problem.from_bags(problem.shrinkage_ridge(diagonal / size))
            left[name] = rms(problem.dense(diagonal) - matched)
    wanted = PAPER_RMSE.get((n_bags, size))
    ratio = None if wanted is None else _ridge_ratio(problem, RIDGE * n_bags, wanted)
    return [
        {
            "standard": one,
            "shrinkage": other,
            "rmse": rms(standard[one] - shrinkage[other]),
            "rmse_matched_dense": left.get(one),
            "ridge_ratio_of_paper": ratio,
            "standard_error": rms(standard[one] - problem.truth),
            "shrinkage_error": rms(shrinkage[other] - problem.truth),
        }
        for one in FACTORS
        for other in FACTORS
    ]


def _ridge_ratio(problem: Embeddings, ridge: float, rmse: float) -> float:
    """How much larger than `ridge` another one is whose embedding is that far away."""
    start = problem.from_bags(problem.shrinkage_ridge(ridge))

    def far(log_ratio: float) -> bool:
        other = problem.from_bags(problem.shrinkage_ridge(ridge * np.exp(log_ratio)))
        return rms(other - start) >= rmse

    return float(np.exp(smallest(far, 10.0, steps=25)))


def _choices(n_bags: int, size: int, seed: int) -> list[Record]:
    """The RMSE of 0.1 on both diagonals, and of two median heuristics, under other choices."""
    rows = []
    for name, (std, grid, scale) in CHOICES.items():
        toy = shrinkage_toy(n_bags, size, mediator_std=std, seed=seed)
        problem = embeddings(toy, grid, scale)
        standard, shrinkage = problem.with_diagonal(RIDGE)
        formula = problem.shrinkage_ridge(RIDGE * n_bags)
        own = scale * median_distance(problem.repeated)
        apart = problem.from_bags(formula, own) - problem.from_bags(formula)
        rows.append(
            {
                "choice": name,
                "rmse_direct": rms(standard - shrinkage),
                "rmse_own_median": rms(apart),
                "median_ratio": own / problem.l_scale,
            }
        )
    return rows


def _ridge(size: Sequence[int], seed: int) -> Record:
    """Errors against the truth over λ, with the paper's formulas for both operators."""
    sizes = unequal_sizes(size[0], size[1], size[-1], seed)
    problem = embeddings(shrinkage_toy(size[0], sizes, seed=seed))
    n = problem.toy.bags.n_points
    both, lambdas = problem.with_lambda(RIDGE), _lambdas()
    dense = rms(problem.dense(RIDGE * n) - both[0]) if n <= FEW_POINTS else None
    row: Record = {"n_points": n, "rmse": rms(both[0] - both[1]), "rmse_dense": dense}
    over = [problem.with_lambda(value) for value in lambdas]
    for kind, estimate, others in zip(KINDS, both, zip(*over, strict=True), strict=True):
        curve = [rms(other - problem.truth) for other in others]
        row |= {
            f"{kind}_error": rms(estimate - problem.truth),
            f"{kind}_best": min(curve),
            f"{kind}_best_lambda": lambdas[int(np.argmin(curve))],
            f"{kind}_curve": curve,
        }
    return row


def _times(n_bags: int, size: int, dense_points: int) -> Record:
    """Seconds for the coefficients on the grid, compilation excluded, and how far they agree."""
    n = n_bags * size
    problem = embeddings(shrinkage_toy(n_bags, size, seed=0))
    scale, y = problem.l_scale, problem.y
    ridges = {
        "standard": problem.standard_ridge(RIDGE * n),
        "shrinkage": problem.shrinkage_ridge(RIDGE * n_bags),
    }
    row: Record = {}
    for kind, ridge in ridges.items():
        solve = partial(operator_weights, scale, problem.mediator, ridge, y)
        row[f"{kind}_seconds"] = best_seconds(solve, budget=1.0)
    means = partial(bag_means, problem.k_scale, problem.x, problem.toy.bags.layout)
    row["bag_means_seconds"] = best_seconds(means, budget=1.0)
    if n <= dense_points and _fits_memory(n):
        seconds, dense = _timed_dense(problem, RIDGE * n)
        row |= {"dense": "measured", "dense_seconds": seconds}
        for kind, ridge in ridges.items():
            row[f"rmse_dense_{kind}"] = rms(dense - problem.from_bags(ridge))
    else:
        few = problem.repeated[:: -(-n // FEW_POINTS)]
        seconds = best_seconds(partial(dense_coefficients, few, y, scale, RIDGE * len(few)))
        row |= {"dense": "extrapolated", "dense_seconds": seconds * (n / len(few)) ** 3}
        row |= {f"rmse_dense_{kind}": None for kind in KINDS}
    return row


def _timed_dense(problem: Embeddings, diagonal: float) -> tuple[float, np.ndarray]:
    solve = partial(dense_coefficients, problem.repeated, problem.y, problem.l_scale, diagonal)
    began = time.perf_counter()
    coefficients = solve()
    seconds = time.perf_counter() - began
    if seconds < 1.0:
        seconds = best_seconds(solve, budget=1.0)
    return seconds, problem.from_points(coefficients)


def _fits_memory(n: int) -> bool:
    """Whether an n x n matrix fits beside what else is in memory."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return n <= FEW_POINTS
    return 1.2 * 8 * n**2 < free


# ---------------------------------------------------------------------- tables


def _range(name: str, digits: str = ".3f") -> Cell:
    """The mean of a number with its range, as a cell."""

    def cell(rows: Sequence[Record]) -> str:
        numbers = values(rows, name)
        numbers = numbers[np.isfinite(numbers)]
        if not len(numbers):
            return "–"
        low, high = numbers.min(), numbers.max()
        if high < 1e-9:
            return f"< {10.0 ** np.ceil(np.log10(high)):.0e}" if numbers.any() else "0"
        return f"{numbers.mean():{digits}} ({low:{digits}} to {high:{digits}})"

    return cell


def _by_case(results: Results, cell: Cell, part: str, **where: str) -> list[str]:
    return [cell(results.where(part=part, case=case, **where)) for case in _cases()]


def _senses_table(results: Results) -> list[str]:
    rows = [
        [words, *_by_case(results, _range("rmse"), "senses", standard=one, shrinkage=other)]
        for (one, other), words in SENSES.items()
    ]
    for name, digits, words in (
        ("rmse_matched_dense", ".3f", "matched ridges, dense system against shrinkage"),
        ("ridge_ratio_of_paper", ".2f", "ratio of ridges that gives the paper's RMSE"),
    ):
        rows.append([words, *_by_case(results, _range(name, digits), "senses")])
    pairs = [
        [
            one,
            other,
            *_by_case(results, mean("rmse", ".2g"), "senses", standard=one, shrinkage=other),
        ]
        for one in FACTORS
        for other in FACTORS
    ]
    errors = [
        [
            f"{kind}, {words}",
            *_by_case(results, mean(f"{kind}_error"), "senses", standard=one, shrinkage=other),
        ]
        for (one, other), words in list(SENSES.items())[:2]
        for kind in KINDS
    ]
    return [
        "## What 0.1 can mean",
        "",
        "RMSE between the standard and the shrinkage embedding on the grid.",
        "",
        *markdown(["what is added to the diagonals", *_cases()], rows),
        "",
        "All 16 pairs, what multiplies 0.1 for the standard and for the shrinkage operator (N bags "
        "of nj points, n in all), means:",
        "",
        *markdown(["standard", "shrinkage", *_cases()], pairs),
        "",
        "RMSE against the true embedding:",
        "",
        *markdown(["estimate", *_cases()], errors),
        "",
    ]


def _choices_table(results: Results) -> list[str]:
    rows = [
        [f"{words}; {choice}", *_by_case(results, _range(name, ".4f"), "choices", choice=choice)]
        for name, words in (
            ("rmse_direct", "0.1 added to both diagonals"),
            ("rmse_own_median", "the formulas, each operator with the median of its own mediators"),
        )
        for choice in CHOICES
    ]
    return ["## What the paper leaves open", "", *markdown(["choice", *_cases()], rows), ""]


def _ridge_table(results: Results) -> list[str]:
    rows = []
    for case in (*_cases(), *_unequal()):
        mine = results.where(part="ridge", case=case)
        if not mine:  # they failed
            continue
        best = [
            f"{mean(f'{kind}_best', '.4f')(mine)} "
            f"({np.median(values(mine, f'{kind}_best_lambda')):.1g})"
            for kind in KINDS
        ]
        better = [
            sum(row[f"shrinkage_{which}"] - row[f"standard_{which}"] > 1e-9 for row in mine)
            for which in ("error", "best")
        ]
        rows.append(
            [
                case,
                mean("n_points", ".0f")(mine),
                _range("rmse", ".4f")(mine),
                _range("rmse_dense")(mine),
                *(mean(f"{kind}_error", ".4f")(mine) for kind in KINDS),
                *best,
                f"{better[0]}, {better[1]} of {len(mine)}",
            ]
        )
    head = ["bags", "points", "RMSE between", "dense", "standard, 0.1", "shrinkage, 0.1"]
    head += ["standard, best (λ)", "shrinkage, best (λ)"]
    return [
        "## Errors against the truth over λ",
        "",
        f"The paper's formulas, 0.1 and the best λ of {len(LAMBDAS)} between {min(LAMBDAS):g} and "
        f"{max(LAMBDAS):g} for each operator, its median in brackets. Dense: RMSE of the n x n "
        "system against the standard form from bags.",
        "",
        *markdown([*head, "seeds on which standard is better: 0.1, best"], rows),
        "",
    ]


def _times_table(results: Results) -> list[str]:
    rows = []
    for row in results.where(part="times"):
        dense = row["dense_seconds"]
        star = "" if row["dense"] == "measured" else " (extrapolated)"
        rows.append(
            [
                row["case"],
                f"{dense:.3g} s{star}",
                *(f"{1e3 * row[f'{name}_seconds']:.3g} ms" for name in (*KINDS, "bag_means")),
                *(f"{dense / row[f'{kind}_seconds']:.3g}{star}" for kind in KINDS),
                *(mean(f"rmse_dense_{kind}", ".1e")([row]) for kind in KINDS),
                PAPER.get(_cases()[row["case"]], "–"),
            ]
        )
    head = ["bags", "dense", "standard from bags", "shrinkage", "bag means"]
    head += ["dense / standard from bags", "dense / shrinkage", "RMSE", "RMSE", "the paper"]
    return [
        "## Times",
        "",
        "Seconds for the coefficients at the 41 mediators of the grid, seed 0, float64, one "
        "thread of BLAS, compilation excluded: the n x n system by Cholesky in NumPy and SciPy, "
        "the others by the package. Bag means, the embeddings of the bags at the 41 points of the "
        "grid, are needed by all three and are timed apart. RMSE: of the dense standard "
        "embedding against both.",
        "",
        *markdown(head, rows),
    ]


# ---------------------------------------------------------------------- pictures


def _heat_maps(title: str, rows: Sequence[tuple[str, Embeddings, np.ndarray, np.ndarray]]) -> Any:
    """Data, truth, both embeddings and their difference, a row for every setting."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15.5, 2.9 * len(rows) + 0.7))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    figure.suptitle(title, fontsize=13)
    grid: Any = figure.subplots(len(rows), 5, squeeze=False, sharey="row", sharex="row")
    for line, (name, problem, standard, shrinkage) in zip(grid, rows, strict=True):
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
            "cmap": plots.SEQUENTIAL,
            "vmin": min(field.min() for field in maps.values()),
            "vmax": max(field.max() for field in maps.values()),
        }
        for place, (what, field) in zip(line[1:4], maps.items(), strict=True):
            image = place.pcolormesh(y, x, field, shading="nearest", rasterized=True, **shared)
            place.set_title(what)
        figure.colorbar(image, ax=line[3], shrink=0.9)
        gap = standard - shrinkage
        largest = float(np.abs(gap).max()) or 1.0
        image = line[4].pcolormesh(
            y, x, gap, cmap=plots.DIVERGING, vmin=-largest, vmax=largest, shading="nearest"
        )
        line[4].set_title(f"standard − shrinkage, RMSE {rms(gap):.3f}")
        figure.colorbar(image, ax=line[4], shrink=0.9)
    for place in grid[-1]:
        place.set_xlabel("y")
    return figure
