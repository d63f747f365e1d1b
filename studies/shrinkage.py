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
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from benchmarks.timing import best_seconds
from deconditional import __version__
from deconditional.datasets.shrinkage_toy import ShrinkageToy, shrinkage_toy
from deconditional.errors import UsageError
from deconditional.saving.outputs import output_folder, write_atomically
from studies.plots import can_draw
from studies.provenance import machine
from studies.records import finished

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

LAMBDAS = np.geomspace(1e-12, 1.0, 37)
DENSE_UP_TO, DENSE_UP_TO_QUICK = 30_000, 3000
"""Points up to which the dense system is solved and timed."""

DENSE_BLOCK = 2048
DENSE_CHECKS_UP_TO = 3000
"""Points up to which it is solved for every seed and sense."""

PAPER_RMSE = {(50, 500): 0.03, (500, 50): 0.02}
"""The paper's RMSE between the two embeddings, where it prints one."""

KINDS = ("standard", "shrinkage")

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

    if within(0.0) >= middle:
        return 0.0
    found = _smallest(lambda d: within(d) >= middle, float(ordered[-1] - ordered[0]), steps=60)
    return float(f"{found:.12g}")


def _smallest(enough: Callable[[float], bool], high: float, steps: int) -> float:
    """The smallest number between 0 and `high` that is enough, by bisection."""
    low = 0.0
    for _ in range(steps):
        half = 0.5 * (low + high)
        low, high = (low, half) if enough(half) else (half, high)
    return high


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

    @property
    def repeated(self) -> np.ndarray:
        """The mediator of every point."""
        return self.mediator[self.toy.bags.bag]

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
        return self.from_points(dense_coefficients(self.repeated, self.y, self.l_scale, diagonal))

    def from_points(self, coefficients: np.ndarray) -> np.ndarray:
        """The embedding with coefficients for every point."""
        away = np.subtract.outer(self.x, self.toy.bags.points[:, 0]) / self.k_scale
        return np.exp(-0.5 * away**2) @ coefficients

    def standard_ridge(self, diagonal: float) -> np.ndarray:
        """What a diagonal of the n x n system is to the bags: c / n_j."""
        return diagonal / self.toy.bags.sizes

    def shrinkage_ridge(self, diagonal: float) -> np.ndarray:
        """The same number for every bag."""
        return np.full(self.toy.bags.n_bags, float(diagonal))

    def with_diagonal(self, diagonal: float) -> tuple[np.ndarray, np.ndarray]:
        """The standard and the shrinkage estimate with the same on both diagonals."""
        return (
            self.from_bags(self.standard_ridge(diagonal)),
            self.from_bags(self.shrinkage_ridge(diagonal)),
        )

    def with_lambda(self, value: float) -> tuple[np.ndarray, np.ndarray]:
        """Both estimates by the paper's formulas: λn and λN on the diagonals."""
        from deconditional.observations.mediation import ridge_shape

        sizes = self.toy.bags.effective_sizes
        standard, shrinkage = (self.from_bags(value * ridge_shape(kind, sizes)) for kind in KINDS)
        return standard, shrinkage


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

    from deconditional.kernels.sweeps import bag_cross
    from deconditional.observations.mediation import CMO

    def means(k_scale: Any, x: Any, layout: Any) -> Any:
        return bag_cross(gk.RBF(lengthscale=k_scale), x, layout)

    def weights(l_scale: Any, mediator: Any, ridge: Any, y: Any) -> Any:
        return CMO(gk.RBF(lengthscale=l_scale), mediator, ridge).weights(y)

    return jax.jit(means), jax.jit(weights)


def rms(difference: np.ndarray) -> float:
    """Root of the mean square."""
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
                standard[name], shrinkage[name] = problem.with_diagonal(diagonal)
                if n_bags * size <= DENSE_CHECKS_UP_TO:
                    matched = problem.from_bags(problem.shrinkage_ridge(diagonal / size))
                    left[name] = rms(problem.dense(diagonal) - matched)
            wanted = PAPER_RMSE.get((n_bags, size))
            ratio = None if wanted is None else _ridge_ratio(problem, RIDGE * n_bags, wanted)
            rows += [
                {
                    "n_bags": n_bags,
                    "bag_size": size,
                    "seed": seed,
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
    return rows


def _ridge_ratio(problem: Embeddings, ridge: float, rmse: float) -> float:
    """How much larger than `ridge` another one is whose embedding is that far away."""
    start = problem.from_bags(problem.shrinkage_ridge(ridge))

    def far(log_ratio: float) -> bool:
        other = problem.from_bags(problem.shrinkage_ridge(ridge * np.exp(log_ratio)))
        return rms(other - start) >= rmse

    return float(np.exp(_smallest(far, 10.0, steps=25)))


CHOICES = {
    "as in the first table": (2.0**0.5, "data", 1.0),
    "N(0, 2): a standard deviation of 2": (2.0, "data", 1.0),
    "fixed grid": (2.0**0.5, "fixed", 1.0),
    "length scales: median / √2": (2.0**0.5, "data", 0.5**0.5),
    "all three": (2.0, "fixed", 0.5**0.5),
}
"""Standard deviation of mediators, grid, and length scales over the median distance."""


def choices_study(settings: Row, tell: Tell) -> list[Row]:
    """The RMSE of 0.1 on both diagonals, and of two median heuristics, under other choices."""
    rows = []
    for name, (std, grid, scale) in CHOICES.items():
        for n_bags, size in settings["sizes"]:
            for seed in range(settings["seeds"]):
                tell(f"{name}, {n_bags} bags of {size}, seed {seed}")
                toy = shrinkage_toy(n_bags, size, mediator_std=std, seed=seed)
                problem = embeddings(toy, grid, scale)
                standard, shrinkage = problem.with_diagonal(RIDGE)
                formula = problem.shrinkage_ridge(RIDGE * n_bags)
                own = scale * median_distance(problem.repeated)
                apart = problem.from_bags(formula, own) - problem.from_bags(formula)
                rows.append(
                    {
                        "choice": name,
                        "n_bags": n_bags,
                        "bag_size": size,
                        "seed": seed,
                        "rmse_direct": rms(standard - shrinkage),
                        "rmse_own_median": rms(apart),
                        "median_ratio": own / problem.l_scale,
                    }
                )
    return rows


def ridge_study(settings: Row, tell: Tell) -> list[Row]:
    """Errors against the truth over λ, with the paper's formulas for both operators."""
    rows = []
    lambdas = settings["lambdas"]
    draws = [(n, size, size) for n, size in settings["sizes"]] + settings["unequal"]
    for n_bags, smallest, largest in draws:
        for seed in range(settings["seeds"]):
            tell(f"{n_bags} bags of {smallest} to {largest}, seed {seed}")
            sizes = unequal_sizes(n_bags, smallest, largest, seed)
            problem = embeddings(shrinkage_toy(n_bags, sizes, seed=seed))
            n = problem.toy.bags.n_points
            both = problem.with_lambda(RIDGE)
            row: Row = {
                "n_bags": n_bags,
                "smallest": smallest,
                "largest": largest,
                "n_points": n,
                "seed": seed,
                "rmse": rms(both[0] - both[1]),
                "rmse_dense": (
                    rms(problem.dense(RIDGE * n) - both[0]) if n <= DENSE_CHECKS_UP_TO else None
                ),
            }
            over = [problem.with_lambda(value) for value in lambdas]
            for kind, estimate, others in zip(KINDS, both, zip(*over, strict=True), strict=True):
                curve = [rms(other - problem.truth) for other in others]
                row |= {
                    f"{kind}_error": rms(estimate - problem.truth),
                    f"{kind}_best": min(curve),
                    f"{kind}_best_lambda": lambdas[int(np.argmin(curve))],
                    f"{kind}_curve": curve,
                }
            rows.append(row)
    return rows


def times_study(settings: Row, tell: Tell) -> list[Row]:
    """Seconds for the coefficients on the grid, compilation excluded, and how far they agree."""
    rows = []
    limit = DENSE_UP_TO_QUICK if settings["quick"] else DENSE_UP_TO
    for n_bags, size in settings["sizes"]:
        n = n_bags * size
        problem = embeddings(shrinkage_toy(n_bags, size, seed=0))
        scale, y = problem.l_scale, problem.y
        ridges = {
            "standard": problem.standard_ridge(RIDGE * n),
            "shrinkage": problem.shrinkage_ridge(RIDGE * n_bags),
        }
        tell(f"{n_bags} bags of {size}, from bags")
        row: Row = {"n_bags": n_bags, "bag_size": size, "n_points": n}
        for kind, ridge in ridges.items():
            solve = partial(_weights, scale, problem.mediator, ridge, y)
            row[f"{kind}_seconds"] = best_seconds(solve, budget=1.0)
        means = partial(_bag_means, problem.k_scale, problem.x, problem.toy.bags.layout)
        row["bag_means_seconds"] = best_seconds(means, budget=1.0)
        tell(f"{n_bags} bags of {size}, dense system of {n} points")
        if n <= limit and _fits_memory(n):
            seconds, dense = _timed_dense(problem, RIDGE * n)
            row |= {"dense": "measured", "dense_seconds": seconds}
            for kind, ridge in ridges.items():
                row[f"rmse_dense_{kind}"] = rms(dense - problem.from_bags(ridge))
        else:
            few = problem.repeated[:: -(-n // DENSE_UP_TO_QUICK)]
            seconds = best_seconds(partial(dense_coefficients, few, y, scale, RIDGE * len(few)))
            row |= {"dense": "extrapolated", "dense_seconds": seconds * (n / len(few)) ** 3}
            row |= {f"rmse_dense_{kind}": None for kind in KINDS}
        rows.append(row)
    return rows


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
    from threadpoolctl import threadpool_limits

    from studies import shrinkage_output

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
        "version": __version__,
    }
    path, studies = folder / "results.json", dict.fromkeys(STUDIES, list)
    results = {} if overwrite else finished(path, {"settings": settings}, studies)
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
        write_atomically(path, json.dumps(kept, indent=1) + "\n")
    write_atomically(folder / "table.md", shrinkage_output.table(results, settings, command))
    if figures:
        shrinkage_output.draw(folder, results, settings)
    return results
