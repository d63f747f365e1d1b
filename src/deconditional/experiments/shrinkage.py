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

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from deconditional.benchmarks.timing import best_seconds
from deconditional.datasets.shrinkage_toy import ShrinkageToy, shrinkage_toy
from deconditional.outputs import UsageError, can_draw, output_folder, write_atomically
from deconditional.provenance import machine, provenance_lines

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["STUDIES", "Embeddings", "dense_coefficients", "embeddings", "median_distance", "run"]

SETTINGS = ((3, 50), (50, 3), (50, 500), (500, 50))
"""Number of bags and points of each, as in the paper."""

UNEQUAL = ((50, 2, 250), (500, 2, 100))
"""Number of bags, points of the smallest and of the largest; sizes grow geometrically between."""

RIDGE = 0.1
GRID = 41
FIXED_GRID = ((-4.0, 3.0), (-4.0, 4.0))
"""Ends in x and in y of the grid that does not follow the data."""

FACTORS = ("1", "N", "nj", "n")
"""What the 0.1 can be multiplied by before it is added to a diagonal."""

SENSES = {
    ("n", "N"): "the paper's formulas: 0.1 n and 0.1 N",
    ("1", "1"): "0.1 added to both diagonals",
    ("N", "N"): "0.1 N added to both",
    ("n", "n"): "0.1 n added to both",
}
"""Readings of "the regularisation for both is set to 0.1"; all 16 pairs are measured."""

LAMBDAS = np.geomspace(1e-12, 1.0, 37)
DENSE_UP_TO, DENSE_UP_TO_QUICK = 30_000, 3000
"""Points up to which the dense system is solved and timed."""

DENSE_BLOCK = 2048
DENSE_CHECKS_UP_TO = 3000
"""Points up to which it is solved for every seed and sense."""

PAPER_RMSE = {(50, 500): 0.03, (500, 50): 0.02}
PAPER = {
    (3, 50): "about 0.01 s both, RMSE negligible",
    (50, 3): "about 0.03 s both, RMSE small",
    (50, 500): "600x, RMSE 0.03",
    (500, 50): "200x, RMSE 0.02",
}

Row = dict[str, Any]
Tell = Callable[[str], None]


# ---------------------------------------------------------------------- estimators


def median_distance(values: np.ndarray) -> float:
    """Median distance between pairs of numbers, the lower one of two, without holding the pairs.

    Examples
    --------
    >>> median_distance(np.array([0.0, 1.0, 3.0]))
    2.0
    >>> median_distance(np.array([0.0, 0.0, 1.0, 5.0]))
    1.0
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    n = len(ordered)
    if n < 2:
        raise ValueError(f"values must hold at least two numbers, not {n}.")
    middle = (n * (n - 1) // 2 + 1) // 2
    place = np.arange(1, n + 1)

    def within(distance: float) -> int:
        return int((np.searchsorted(ordered, ordered + distance, side="right") - place).sum())

    low, high = 0.0, float(ordered[-1] - ordered[0])
    if within(low) >= middle:
        return low
    for _ in range(60):
        half = 0.5 * (low + high)
        low, high = (low, half) if within(half) >= middle else (half, high)
    return float(f"{high:.12g}")


def dense_coefficients(
    mediators: np.ndarray, at: np.ndarray, lengthscale: float, diagonal: float
) -> np.ndarray:
    """A of the paper's standard operator: the n x n system of repeated mediators, solved.

    Parameters
    ----------
    mediators : (n,)
        The mediator of every point.
    at : (m,)
        Where the conditional mean is wanted.
    lengthscale
        Of the Gaussian mediator kernel.
    diagonal
        What is added to the diagonal.

    Returns
    -------
    (n, m) array

    Examples
    --------
    Two points of one bag share its weight:

    >>> dense_coefficients(np.array([0.0, 0.0]), np.array([0.0]), 1.0, 0.5).round(4).tolist()
    [[0.4], [0.4]]
    """
    n = len(mediators)
    gram = np.empty((n, n))
    np.subtract.outer(mediators, mediators, out=gram)
    gram *= gram
    gram *= -0.5 / lengthscale**2
    np.exp(gram, out=gram)
    gram.flat[:: n + 1] += diagonal
    cross = np.exp(-0.5 * (np.subtract.outer(mediators, at) / lengthscale) ** 2)
    return _solve_in_place(gram, cross)


def _solve_in_place(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Solve a x = b for a positive definite a by Cholesky; both are overwritten.

    In blocks of rows, with LAPACK for blocks and matrix products for the rest: LAPACK's own
    factorisation, as SciPy 1.17 brings it with OpenBLAS, crashed at 25 000 rows.
    """
    n = len(a)
    blocks = [slice(k, min(k + DENSE_BLOCK, n)) for k in range(0, n, DENSE_BLOCK)]
    for here in blocks:
        first, last = here.start, here.stop
        if first:
            a[first:, here] -= a[first:, :first] @ a[here, :first].T
            b[here] -= a[here, :first] @ b[:first]
        root = cholesky(a[here, here], lower=True, check_finite=False)
        a[here, here] = root
        b[here] = solve_triangular(root, b[here], lower=True, check_finite=False)
        if last < n:
            below = solve_triangular(root, a[last:, here].T, lower=True, check_finite=False)
            a[last:, here] = below.T
    for here in reversed(blocks):
        if here.stop < n:
            b[here] -= a[here.stop :, here].T @ b[here.stop :]
        b[here] = solve_triangular(a[here, here].T, b[here], lower=False, check_finite=False)
    return b


@dataclass(frozen=True)
class Embeddings:
    """Conditional mean embeddings of one draw, evaluated on a grid.

    Attributes
    ----------
    toy
        The draw.
    x, y
        The grid: points and mediators.
    k_scale, l_scale
        Length scales of the Gaussian kernels on points and mediators.
    """

    toy: ShrinkageToy
    x: np.ndarray
    y: np.ndarray
    k_scale: float
    l_scale: float

    @property
    def mediator(self) -> np.ndarray:
        """Of every bag."""
        assert self.toy.bags.mediator is not None
        return self.toy.bags.mediator[:, 0]

    @cached_property
    def bag_means(self) -> np.ndarray:
        """The empirical embedding of every bag, (grid in x, N)."""
        return np.asarray(_bag_means(self.k_scale, self.x, self.toy.bags.layout))

    @cached_property
    def truth(self) -> np.ndarray:
        """The true embedding, (grid in x, grid in y)."""
        return self.toy.embedding(self.x, self.y, self.k_scale)

    def from_bags(self, ridge: np.ndarray, l_scale: float | None = None) -> np.ndarray:
        """The estimate with a ridge for every bag, from an N x N system."""
        scale = self.l_scale if l_scale is None else l_scale
        return self.bag_means @ np.asarray(_weights(scale, self.mediator, ridge, self.y))

    def dense(self, diagonal: float) -> np.ndarray:
        """The standard estimate from the n x n system, with something on its diagonal."""
        bags = self.toy.bags
        repeated = self.mediator[bags.bag]
        coefficients = dense_coefficients(repeated, self.y, self.l_scale, diagonal)
        away = np.subtract.outer(self.x, bags.points[:, 0]) / self.k_scale
        return np.exp(-0.5 * away**2) @ coefficients

    def standard_ridge(self, diagonal: float) -> np.ndarray:
        """What a diagonal of the n x n system is to the bags: c / n_j."""
        return diagonal / self.toy.bags.sizes

    def shrinkage_ridge(self, diagonal: float) -> np.ndarray:
        """The same number for every bag."""
        return np.full(self.toy.bags.n_bags, float(diagonal))


def embeddings(toy: ShrinkageToy, grid: str = "data", scale: float = 1.0) -> Embeddings:
    """Length scales by the median heuristic, and a grid of 41 x 41.

    Parameters
    ----------
    toy
        The draw.
    grid
        ``"data"``: the ranges of points and mediators; ``"fixed"``: the same for all draws.
    scale
        Length scales are this times the median distance.

    Examples
    --------
    >>> from deconditional.datasets.shrinkage_toy import shrinkage_toy
    >>> problem = embeddings(shrinkage_toy(4, 5, seed=0))
    >>> same = problem.from_bags(problem.shrinkage_ridge(0.1 * 4))
    >>> bool(np.abs(problem.dense(0.1 * 20) - same).max() < 1e-12)
    True
    """
    points, mediator = toy.bags.points[:, 0], toy.bags.mediator
    assert mediator is not None
    if grid == "data":
        ends = [(v.min(), v.max()) for v in (points, mediator[:, 0])]
    elif grid == "fixed":
        ends = list(FIXED_GRID)
    else:
        raise ValueError(f"grid must be 'data' or 'fixed', not {grid!r}.")
    x, y = (np.linspace(*end, GRID) for end in ends)
    scales = (scale * median_distance(v) for v in (points, mediator[:, 0]))
    return Embeddings(toy, x, y, *scales)


def _bag_means(k_scale: float, x: np.ndarray, layout: Any) -> Any:
    return _compiled()[0](k_scale, x[:, None], layout)


def _weights(l_scale: float, mediator: np.ndarray, ridge: np.ndarray, y: np.ndarray) -> Any:
    return _compiled()[1](l_scale, mediator[:, None], ridge, y[:, None])


@cache
def _compiled() -> tuple[Any, Any]:
    """The package's bag averages and operator, compiled once for all length scales."""
    import gpjax.kernels as gk
    import jax

    from deconditional.bag_kernels import bag_cross
    from deconditional.mediation import CMO

    def means(k_scale: Any, x: Any, layout: Any) -> Any:
        return bag_cross(gk.RBF(lengthscale=k_scale), x, layout)

    def weights(l_scale: Any, mediator: Any, ridge: Any, y: Any) -> Any:
        return CMO(gk.RBF(lengthscale=l_scale), mediator, ridge).weights(y)

    return jax.jit(means), jax.jit(weights)


def _rms(difference: np.ndarray) -> float:
    return float(np.sqrt(np.mean(difference**2)))


def unequal_sizes(n_bags: int, smallest: int, largest: int, seed: int) -> np.ndarray:
    """Sizes that grow geometrically from the smallest to the largest, in random order.

    Examples
    --------
    >>> sorted(unequal_sizes(4, 2, 16, seed=0).tolist())
    [2, 4, 8, 16]
    """
    sizes = np.geomspace(smallest, largest, n_bags).round().astype(np.int64)
    return np.random.default_rng(seed).permutation(sizes)


# ---------------------------------------------------------------------- studies


def senses_study(settings: Row, tell: Tell) -> list[Row]:
    """Both embeddings for every pair of factors that 0.1 can be multiplied by."""
    rows = []
    for n_bags, size in settings["sizes"]:
        factor = dict(zip(FACTORS, (1, n_bags, size, n_bags * size), strict=True))
        for seed in range(settings["seeds"]):
            tell(f"{n_bags} bags of {size}, seed {seed}")
            problem = embeddings(shrinkage_toy(n_bags, size, seed=seed))
            standard, shrinkage, left = {}, {}, {}
            for name, times in factor.items():
                diagonal = RIDGE * times
                standard[name] = problem.from_bags(problem.standard_ridge(diagonal))
                shrinkage[name] = problem.from_bags(problem.shrinkage_ridge(diagonal))
                if n_bags * size <= DENSE_CHECKS_UP_TO:
                    matched = problem.from_bags(problem.shrinkage_ridge(diagonal / size))
                    left[name] = _rms(problem.dense(diagonal) - matched)
            wanted = PAPER_RMSE.get((n_bags, size))
            ratio = None if wanted is None else _ridge_ratio(problem, RIDGE * n_bags, wanted)
            rows += [
                {
                    "n_bags": n_bags,
                    "bag_size": size,
                    "seed": seed,
                    "standard": one,
                    "shrinkage": other,
                    "rmse": _rms(standard[one] - shrinkage[other]),
                    "rmse_matched_dense": left.get(one),
                    "ridge_ratio_of_paper": ratio,
                    "standard_error": _rms(standard[one] - problem.truth),
                    "shrinkage_error": _rms(shrinkage[other] - problem.truth),
                }
                for one in FACTORS
                for other in FACTORS
            ]
    return rows


def _ridge_ratio(problem: Embeddings, ridge: float, rmse: float) -> float:
    """How much larger than `ridge` another one is whose embedding is that far away."""
    start = problem.from_bags(problem.shrinkage_ridge(ridge))
    low, high = 0.0, 10.0
    for _ in range(25):
        half = 0.5 * (low + high)
        other = problem.from_bags(problem.shrinkage_ridge(ridge * np.exp(half)))
        low, high = (half, high) if _rms(other - start) < rmse else (low, half)
    return float(np.exp(high))


CHOICES: dict[str, Row] = {
    "as in the first table": {},
    "N(0, 2): a standard deviation of 2": {"mediator_std": 2.0},
    "fixed grid": {"grid": "fixed"},
    "length scales: median / √2": {"scale": 0.5**0.5},
    "all three": {"mediator_std": 2.0, "grid": "fixed", "scale": 0.5**0.5},
}


def choices_study(settings: Row, tell: Tell) -> list[Row]:
    """The RMSE of 0.1 on both diagonals, and of two median heuristics, under other choices."""
    rows = []
    for name, given in CHOICES.items():
        options = dict(given)
        drawn = {k: options.pop(k) for k in ("mediator_std",) if k in options}
        for n_bags, size in settings["sizes"]:
            for seed in range(settings["seeds"]):
                tell(f"{name}, {n_bags} bags of {size}, seed {seed}")
                problem = embeddings(shrinkage_toy(n_bags, size, seed=seed, **drawn), **options)
                formula = problem.shrinkage_ridge(RIDGE * n_bags)
                repeated = median_distance(np.repeat(problem.mediator, size))
                own = options.get("scale", 1.0) * repeated
                direct = problem.from_bags(problem.shrinkage_ridge(RIDGE))
                by_point = problem.from_bags(problem.standard_ridge(RIDGE))
                rows.append(
                    {
                        "choice": name,
                        "n_bags": n_bags,
                        "bag_size": size,
                        "seed": seed,
                        "rmse_direct": _rms(by_point - direct),
                        "rmse_own_median": _rms(
                            problem.from_bags(formula, own) - problem.from_bags(formula)
                        ),
                        "median_ratio": own / problem.l_scale,
                    }
                )
    return rows


def ridge_study(settings: Row, tell: Tell) -> list[Row]:
    """Errors against the truth over λ, with the paper's formulas for both operators."""
    from deconditional.mediation import ridge_shape

    rows = []
    draws = [(n, size, size) for n, size in settings["sizes"]] + settings["unequal"]
    for n_bags, smallest, largest in draws:
        for seed in range(settings["seeds"]):
            tell(f"{n_bags} bags of {smallest} to {largest}, seed {seed}")
            sizes = unequal_sizes(n_bags, smallest, largest, seed)
            problem = embeddings(shrinkage_toy(n_bags, sizes, seed=seed))
            bags = problem.toy.bags
            at: dict[float, tuple[np.ndarray, np.ndarray]] = {}
            for value in (RIDGE, *settings["lambdas"]):
                one, other = (
                    problem.from_bags(value * ridge_shape(kind, bags.effective_sizes))
                    for kind in ("standard", "shrinkage")
                )
                at[value] = one, other
            left = None
            if bags.n_points <= DENSE_CHECKS_UP_TO:
                left = _rms(problem.dense(RIDGE * bags.n_points) - at[RIDGE][0])
            truth = problem.truth
            lambdas = settings["lambdas"]
            curves = [[_rms(at[v][k] - truth) for v in lambdas] for k in (0, 1)]
            rows.append(
                {
                    "n_bags": n_bags,
                    "smallest": smallest,
                    "largest": largest,
                    "n_points": bags.n_points,
                    "seed": seed,
                    "rmse": _rms(at[RIDGE][0] - at[RIDGE][1]),
                    "rmse_dense": left,
                    "standard_error": _rms(at[RIDGE][0] - truth),
                    "shrinkage_error": _rms(at[RIDGE][1] - truth),
                    "standard_best": min(curves[0]),
                    "shrinkage_best": min(curves[1]),
                    "standard_best_lambda": lambdas[int(np.argmin(curves[0]))],
                    "shrinkage_best_lambda": lambdas[int(np.argmin(curves[1]))],
                    "standard_curve": curves[0],
                    "shrinkage_curve": curves[1],
                }
            )
    return rows


def times_study(settings: Row, tell: Tell) -> list[Row]:
    """Seconds for the coefficients on the grid, compilation excluded, and how far they agree."""
    rows = []
    for n_bags, size in settings["sizes"]:
        n = n_bags * size
        problem = embeddings(shrinkage_toy(n_bags, size, seed=0))
        scale, mediator, y = problem.l_scale, problem.mediator, problem.y
        repeated = mediator[problem.toy.bags.bag]
        ridges = {
            "standard": problem.standard_ridge(RIDGE * n),
            "shrinkage": problem.shrinkage_ridge(RIDGE * n_bags),
        }
        tell(f"{n_bags} bags of {size}, from bags")
        row: Row = {"n_bags": n_bags, "bag_size": size, "n_points": n}
        for name, ridge in ridges.items():
            row[f"{name}_seconds"] = best_seconds(
                partial(_weights, scale, mediator, ridge, y), budget=1.0
            )
        row["bag_means_seconds"] = best_seconds(
            partial(_bag_means, problem.k_scale, problem.x, problem.toy.bags.layout), budget=1.0
        )
        tell(f"{n_bags} bags of {size}, dense system of {n} points")
        limit = DENSE_UP_TO_QUICK if settings["quick"] else DENSE_UP_TO
        if n <= limit and _fits_memory(n):
            seconds, dense = _timed_dense(problem, repeated, RIDGE * n)
            row |= {"dense": "measured", "dense_seconds": seconds}
            from_bags = [problem.from_bags(ridge) for ridge in ridges.values()]
            row["rmse_dense_standard"] = _rms(dense - from_bags[0])
            row["rmse_dense_shrinkage"] = _rms(dense - from_bags[1])
        else:
            few = repeated[:: -(-n // DENSE_UP_TO_QUICK)]
            seconds = best_seconds(partial(dense_coefficients, few, y, scale, RIDGE * len(few)))
            row |= {"dense": "extrapolated", "dense_seconds": seconds * (n / len(few)) ** 3}
            row |= {"rmse_dense_standard": None, "rmse_dense_shrinkage": None}
        rows.append(row)
    return rows


def _timed_dense(
    problem: Embeddings, repeated: np.ndarray, diagonal: float
) -> tuple[float, np.ndarray]:
    began = time.perf_counter()
    coefficients = dense_coefficients(repeated, problem.y, problem.l_scale, diagonal)
    seconds = time.perf_counter() - began
    if seconds < 1.0:
        given = repeated, problem.y, problem.l_scale, diagonal
        seconds = best_seconds(lambda: dense_coefficients(*given), budget=1.0)
    away = np.subtract.outer(problem.x, problem.toy.bags.points[:, 0]) / problem.k_scale
    return seconds, np.exp(-0.5 * away**2) @ coefficients


def _fits_memory(n: int) -> bool:
    """Whether an n x n matrix fits beside what else is in memory."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return n <= DENSE_UP_TO_QUICK
    return 1.2 * 8 * n**2 < free


STUDIES: dict[str, Callable[..., list[Row]]] = {
    "senses": senses_study,
    "choices": choices_study,
    "ridge": ridge_study,
    "times": times_study,
}


# ---------------------------------------------------------------------- the run


def run(
    seeds: int | None = None,
    out: str | os.PathLike[str] = "shrinkage",
    *,
    quick: bool = False,
    overwrite: bool = False,
    figures: bool = True,
    command: str | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Run the four studies; write ``results.json``, ``table.md`` and pictures.

    Parameters
    ----------
    seeds
        Number of draws of every setting; 10 by default, 2 where `quick`. Times are of the first.
    out
        Folder to write to. A study that its ``results.json`` already has, with the same settings,
        is not run again.
    quick
        Extrapolate the time of dense systems of more than 3000 points instead of solving them.
    overwrite
        Discard what the folder holds.
    figures
        Draw the embeddings and the errors over λ.
    command
        What the table says it was made with.
    console
        Where progress goes.
    """
    from rich.console import Console
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    console = Console() if console is None else console
    seeds = (2 if quick else 10) if seeds is None else seeds
    if seeds < 1:
        raise UsageError(f"take at least 1 seed, not {seeds}.")
    if figures:
        can_draw()
    folder = output_folder(out)
    settings: Row = {
        "seeds": seeds,
        "quick": quick,
        "sizes": [list(size) for size in SETTINGS],
        "unequal": [list(size) for size in UNEQUAL],
        "lambdas": [float(f"{value:.6g}") for value in LAMBDAS],
    }
    results = {} if overwrite else _earlier(folder / "results.json", settings)
    for name, study in STUDIES.items():
        if name in results:
            console.print(f"{name}: kept from an earlier run")
            continue
        began = time.perf_counter()
        # Threads of BLAS that wait for a busy core slow small systems down tenfold.
        with console.status(f"{name} ...") as status, threadpool_limits(1, user_api="blas"):
            results[name] = study(settings, lambda text, n=name: status.update(f"{n}: {text}"))
        console.print(f"{name}: {time.perf_counter() - began:.0f} s")
        kept = {"settings": settings, "machine": machine(), **results}
        write_atomically(folder / "results.json", json.dumps(kept, indent=1) + "\n")
    write_atomically(folder / "table.md", _table(results, settings, command))
    if figures:
        _draw(folder, results, settings)
    return results


def _earlier(path: Path, settings: Row) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["settings"] == settings:
            return {name: kept[name] for name in STUDIES if name in kept}
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"{str(path)!r} is not a file of this study. Choose another folder, or start anew "
            "with --overwrite."
        ) from None
    raise UsageError(
        f"{str(path)!r} holds results of other settings. Choose another folder, or discard them "
        "with --overwrite."
    )


# ---------------------------------------------------------------------- table and pictures


def _values(rows: list[Row], name: str, **where: Any) -> np.ndarray:
    chosen = [row[name] for row in rows if all(row[k] == v for k, v in where.items())]
    return np.array([value for value in chosen if value is not None], dtype=float)


def _mean(rows: list[Row], name: str, digits: str = ".3f", **where: Any) -> str:
    values = _values(rows, name, **where)
    return f"{values.mean():{digits}}" if len(values) else "–"


def _range(rows: list[Row], name: str, digits: str = ".3f", **where: Any) -> str:
    values = _values(rows, name, **where)
    if not len(values):
        return "–"
    if values.max() < 1e-9:
        return f"< {10.0 ** np.ceil(np.log10(values.max())):.0e}" if values.any() else "0"
    return f"{values.mean():{digits}} ({values.min():{digits}} to {values.max():{digits}})"


def _table(results: dict[str, Any], settings: Row, command: str | None) -> str:
    sizes = [dict(zip(("n_bags", "bag_size"), size, strict=True)) for size in settings["sizes"]]
    heads = " | ".join(f"{s['n_bags']} bags of {s['bag_size']}" for s in sizes)
    rule = "|---" * (1 + len(sizes)) + "|"
    lines = [
        "# Standard and shrinkage embeddings",
        "",
        f"Means over {settings['seeds']} seed(s), smallest and largest in brackets; true "
        "embeddings lie between 0 and 1.",
        "",
        "## What 0.1 can mean",
        "",
        "RMSE between the standard and the shrinkage embedding on the grid.",
        "",
        f"| what is added to the diagonals | {heads} |",
        rule,
    ]
    rows = results["senses"]
    for (one, other), words in SENSES.items():
        cells = [_range(rows, "rmse", standard=one, shrinkage=other, **size) for size in sizes]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    cells = [_range(rows, "rmse_matched_dense", **size) for size in sizes]
    lines.append(f"| matched ridges, dense system against shrinkage | {' | '.join(cells)} |")
    cells = [_range(rows, "ridge_ratio_of_paper", ".2f", **size) for size in sizes]
    lines += [f"| ratio of ridges that gives the paper's RMSE | {' | '.join(cells)} |", ""]
    lines += [
        "All 16 pairs, what multiplies 0.1 for the standard and for the shrinkage operator (N bags "
        "of nj points, n in all), means:",
        "",
        f"| standard | shrinkage | {heads} |",
        "|---" + rule,
    ]
    for one in FACTORS:
        for other in FACTORS:
            cells = [
                _mean(rows, "rmse", ".2g", standard=one, shrinkage=other, **size) for size in sizes
            ]
            lines.append(f"| {one} | {other} | {' | '.join(cells)} |")
    lines += ["", "RMSE against the true embedding:", "", f"| estimate | {heads} |", rule]
    for (one, other), words in list(SENSES.items())[:2]:
        for kind in ("standard", "shrinkage"):
            cells = [
                _mean(rows, f"{kind}_error", standard=one, shrinkage=other, **size)
                for size in sizes
            ]
            lines.append(f"| {kind}, {words} | {' | '.join(cells)} |")
    lines += ["", "## What the paper leaves open", "", f"| choice | {heads} |", rule]
    for name, words in (
        ("rmse_direct", "0.1 added to both diagonals"),
        ("rmse_own_median", "the formulas, each operator with the median of its own mediators"),
    ):
        for choice in CHOICES:
            cells = [
                _range(results["choices"], name, ".4f", choice=choice, **size) for size in sizes
            ]
            lines.append(f"| {words}; {choice} | {' | '.join(cells)} |")
    lambdas = settings["lambdas"]
    lines += [
        "",
        "## Errors against the truth over λ",
        "",
        f"The paper's formulas, 0.1 and the best λ of {len(lambdas)} between {min(lambdas):g} and "
        f"{max(lambdas):g} for each operator, its median in brackets. Dense: RMSE of the n x n "
        "system against the standard form from bags.",
        "",
        "| bags | points of each | points | RMSE between | dense | standard, 0.1 | shrinkage, 0.1 "
        "| standard, best (λ) | shrinkage, best (λ) | seeds on which standard is better: 0.1, best "
        "|",
        "|---" * 10 + "|",
    ]
    rows = results["ridge"]
    for key in dict.fromkeys((r["n_bags"], r["smallest"], r["largest"]) for r in rows):
        where = dict(zip(("n_bags", "smallest", "largest"), key, strict=True))
        standard, shrinkage = (
            f"{_mean(rows, f'{kind}_best', '.4f', **where)} "
            f"({np.median(_values(rows, f'{kind}_best_lambda', **where)):.1g})"
            for kind in ("standard", "shrinkage")
        )
        better = [
            int(
                np.sum(
                    _values(rows, f"shrinkage_{which}", **where)
                    - _values(rows, f"standard_{which}", **where)
                    > 1e-9
                )
            )
            for which in ("error", "best")
        ]
        spread = str(key[1]) if key[1] == key[2] else f"{key[1]} to {key[2]}"
        cells = [
            str(key[0]),
            spread,
            _mean(rows, "n_points", ".0f", **where),
            _range(rows, "rmse", ".4f", **where),
            _range(rows, "rmse_dense", **where),
            _mean(rows, "standard_error", ".4f", **where),
            _mean(rows, "shrinkage_error", ".4f", **where),
            standard,
            shrinkage,
            f"{better[0]}, {better[1]} of {settings['seeds']}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "## Times",
        "",
        "Seconds for the coefficients at the 41 mediators of the grid, seed 0, float64, one "
        "thread of BLAS, compilation excluded: the n x n system by Cholesky in NumPy and SciPy, "
        "the others by the package. Bag means, the embeddings of the bags at the 41 points of the "
        "grid, are needed by all three and are timed apart. RMSE: of the dense standard "
        "embedding against both.",
        "",
        "| bags | points of each | dense | standard from bags | shrinkage | bag means | dense / "
        "standard from bags | dense / shrinkage | RMSE | RMSE | the paper |",
        "|---" * 11 + "|",
    ]
    for row in results["times"]:
        dense, standard, shrinkage = (
            row[f"{name}_seconds"] for name in ("dense", "standard", "shrinkage")
        )
        star = "" if row["dense"] == "measured" else " (extrapolated)"
        left = (row["rmse_dense_standard"], row["rmse_dense_shrinkage"])
        cells = [
            str(row["n_bags"]),
            str(row["bag_size"]),
            f"{dense:.3g} s{star}",
            f"{1e3 * standard:.3g} ms",
            f"{1e3 * shrinkage:.3g} ms",
            f"{1e3 * row['bag_means_seconds']:.3g} ms",
            f"{dense / standard:.3g}{star}",
            f"{dense / shrinkage:.3g}{star}",
            *("–" if value is None else f"{value:.1e}" for value in left),
            PAPER.get((row["n_bags"], row["bag_size"]), "–"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", "## How this was made", "", *provenance_lines(command), ""])


def _draw(folder: Path, results: dict[str, Any], settings: Row) -> None:
    from deconditional import plots
    from deconditional.mediation import ridge_shape

    rows = []
    for n_bags, size in settings["sizes"]:
        problem = embeddings(shrinkage_toy(n_bags, size, seed=0))
        ridges = problem.standard_ridge(RIDGE), problem.shrinkage_ridge(RIDGE)
        standard, shrinkage = map(problem.from_bags, ridges)
        rows.append((f"{n_bags} bags of {size}", problem, standard, shrinkage))
    title = "0.1 added to both diagonals: the standard operator has the smaller ridge, 0.1/nj"
    plots.save(_heat_maps(rows, title), folder / "shrinkage-equal.png", dpi=100)
    rows = []
    for n_bags, smallest, largest in settings["unequal"]:
        sizes = unequal_sizes(n_bags, smallest, largest, seed=0)
        problem = embeddings(shrinkage_toy(n_bags, sizes, seed=0))
        ridge = [
            RIDGE * ridge_shape(kind, problem.toy.bags.effective_sizes)
            for kind in ("standard", "shrinkage")
        ]
        label = f"{n_bags} bags of {smallest} to {largest}"
        standard, shrinkage = map(problem.from_bags, ridge)
        rows.append((label, problem, standard, shrinkage))
    title = "Unequal bags, the paper's formulas with λ = 0.1"
    plots.save(_heat_maps(rows, title), folder / "shrinkage-unequal.png", dpi=100)
    panels = []
    for key in dict.fromkeys((r["n_bags"], r["smallest"], r["largest"]) for r in results["ridge"]):
        mine = [r for r in results["ridge"] if (r["n_bags"], r["smallest"], r["largest"]) == key]
        if key[1] == key[2]:
            continue
        panels.append(
            {
                "lines": {
                    kind: (settings["lambdas"], [row[f"{kind}_curve"] for row in mine])
                    for kind in ("standard", "shrinkage")
                },
                "title": f"{key[0]} bags of {key[1]} to {key[2]}",
                "xlabel": "λ",
                "ylabel": "RMSE against the true embedding",
                "xscale": "log",
                "yscale": "log",
            }
        )
    figure = plots.curves(panels, "Unequal bags (line: mean, band: range over seeds)", 5.0)
    plots.save(figure, folder / "shrinkage-ridge.png", dpi=100)


def _heat_maps(rows: list[tuple[str, Embeddings, np.ndarray, np.ndarray]], title: str) -> Any:
    """Data, truth, both embeddings and their difference, a row for every setting."""
    from matplotlib.figure import Figure

    from deconditional.plots import DIVERGING, SEQUENTIAL

    figure = Figure(figsize=(15.5, 2.9 * len(rows) + 0.7))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    figure.suptitle(title, fontsize=13)
    grid: Any = figure.subplots(len(rows), 5, squeeze=False, sharey="row", sharex="row")
    for line, (name, problem, standard, shrinkage) in zip(grid, rows, strict=True):
        bags, y, x = problem.toy.bags, problem.y, problem.x
        many = bags.n_points > 3000
        line[0].plot(
            problem.mediator[bags.bag],
            bags.points[:, 0],
            ".",
            color="#0072b2",
            markersize=1 if many else 3,
            alpha=0.15 if many else 0.6,
            rasterized=True,
        )
        line[0].plot(y, problem.toy.conditional_mean(y), color="#d55e00", linewidth=1)
        line[0].set(title=f"data, {name}", ylabel="x")
        shared = {
            "cmap": SEQUENTIAL,
            "vmin": min(v.min() for v in (problem.truth, standard, shrinkage)),
            "vmax": max(v.max() for v in (problem.truth, standard, shrinkage)),
        }
        for place, values, what in (
            (line[1], problem.truth, "true embedding"),
            (line[2], standard, "standard"),
            (line[3], shrinkage, "shrinkage"),
        ):
            image = place.pcolormesh(y, x, values, shading="nearest", rasterized=True, **shared)
            place.set_title(what)
        figure.colorbar(image, ax=line[3], shrink=0.9)
        gap = standard - shrinkage
        largest = float(np.abs(gap).max()) or 1.0
        image = line[4].pcolormesh(
            y, x, gap, cmap=DIVERGING, vmin=-largest, vmax=largest, shading="nearest"
        )
        line[4].set_title(f"standard − shrinkage, RMSE {_rms(gap):.3f}")
        figure.colorbar(image, ax=line[4], shrink=0.9)
    for place in grid[-1]:
        place.set_xlabel("y")
    return figure
