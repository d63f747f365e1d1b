"""How fast the deconditional mean operator converges, next to the paper's theorem.

The theorem bounds the excess risk of the estimate from N bags and M observations, and prescribes N
and both ridges. Two parts, on the problems of :mod:`studies.convergence_problem`, whose risk is
known exactly:

- rates: the excess risk at what the theorem prescribes, against M;
- bags: the excess risk against N, and so the N from which on more bags bring little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from deconditional.errors import UsageError
from studies import plots
from studies.command import option, whole
from studies.convergence_problem import (
    MOST_POINTS,
    Array,
    Problem,
    conditional_operator,
    draw_bags,
    draw_mediators,
)
from studies.frame import Outcome, Study
from studies.records import Record, Results
from studies.tables import markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["CASES", "PROBLEMS", "Case", "Convergence", "Plan", "corner", "plan", "slope"]

SIZES = tuple(2**power for power in range(4, 21))
QUICK_SIZES = tuple(2**power for power in range(4, 17, 2))
LEAST_SIZES = 4

OBSERVATIONS = (2**6, 2**8, 2**10, 2**12)
BAGS = tuple(2**power for power in range(4, 37, 2))
RULES = {
    "N^(-1/3)": (1 / 3, 1),
    "N^(-1/2)": (1 / 2, 1),
    "1/N": (1.0, 1),
    "1/(100 N), bags of 100": (1.0, 100),
}
"""How λ falls with the number of points, and how many of them a bag has. The first is the theorem's
choice."""

PARTS = ("total", "known", "every", "corner")
"""Both estimated; C known, as for infinite N; C_YY known to the second stage, as for infinite M;
both estimated, with the ε of the corner."""

WITHIN = 1.25
"""Bags are enough once the risk is at most this many times what it is with C known."""

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")
MARKS = "osD^"


# ---------------------------------------------------------------------- the theorem


@dataclass(frozen=True)
class Plan:
    """What the theorem prescribes for M observations, and the rate it promises."""

    bags: int
    ridge: float
    epsilon: float
    rate: float


def corner(b: float, c: float) -> float:
    """The a from which more bags bring nothing; b may be infinite.

    Examples
    --------
    >>> corner(2.0, 1.5), corner(math.inf, 2.0)
    (1.25, 1.5)
    """
    return (c + 1) / c if math.isinf(b) else b * (c + 1) / (b * c + 1)


def plan(size: int, a: float, b: float, c: float, c_prime: float = 2.0, iota: float = 1.0) -> Plan:
    """N, λ and ε of the theorem for M observations, and the exponent of its rate.

    Examples
    --------
    >>> plan(16, a=1.25, b=2.0, c=1.5)
    Plan(bags=32768, ridge=0.03125, epsilon=0.25, rate=0.75)
    """
    for name, value, inside, allowed in (
        ("size", size, size >= 1, "at least 1"),
        ("a", a, a > 0, "positive"),
        ("b", b, b > 1, "greater than 1"),
        ("c", c, 1 < c <= 2, "in ]1, 2]"),
        ("c_prime", c_prime, 1 < c_prime <= 2, "in ]1, 2]"),
        ("iota", iota, 0 < iota <= 1, "in ]0, 1]"),
    ):
        if not inside:
            raise ValueError(f"{name} must be {allowed}, not {value}.")
    bags = max(1, round(size ** (a * (c_prime + 1) / (iota * (c_prime - 1)))))
    step = min(a, corner(b, c)) / (c + 1)
    return Plan(bags, bags ** (-1 / (c_prime + 1)), size**-step, step * c)


@dataclass(frozen=True)
class Case:
    """A problem, read as a member of the class with exponents b and c, and the a to try."""

    problem: str
    b: float
    c: float
    a: tuple[float, ...]

    @property
    def corner(self) -> float:
        """The a from which more bags bring nothing."""
        return corner(self.b, self.c)

    def plan(self, size: int, a: float) -> Plan:
        """What the theorem prescribes for M observations."""
        return plan(size, a, self.b, self.c)


PROBLEMS = {
    "finite": Problem(frequencies=2, decay=2.0, mediator_decay=2.0),
    "polynomial": Problem(frequencies=64, decay=2.0, mediator_decay=4.0),
}
CASES = {
    "finite rank": Case("finite", math.inf, 2.0, (0.75, 1.0, 1.5, 1.75)),
    "finite rank, wider class": Case("finite", 2.0, 1.5, (0.625, 1.25, 1.75)),
    "polynomial spectrum": Case("polynomial", 2.0, 1.5, (0.625, 1.0, 1.25, 1.75)),
}
OWN_CASE = {"finite": "finite rank", "polynomial": "polynomial spectrum"}


# ---------------------------------------------------------------------- the study


class Step(NamedTuple):
    """One case at one number: of observations for the rates, of bags for the bags."""

    part: str
    case: str
    number: int

    def __str__(self) -> str:
        return f"{self.part}: {self.case}, {self.number}"


@dataclass(frozen=True)
class Convergence(Study):
    """How the excess risk falls with the number of observations and of bags."""

    name: ClassVar[str] = "convergence"
    help: ClassVar[str] = "rates of the deconditional mean operator (theorem 4.2)"
    title: ClassVar[str] = "Convergence of the deconditional mean operator"
    task: ClassVar[type[Any]] = Step

    repetitions: int = option(200, "independent draws of both data sets at every size", quick=20)
    sizes: tuple[int, ...] = option(
        SIZES,
        "numbers of observations; each a uses those for which N is feasible",
        quick=QUICK_SIZES,
        metavar="M",
    )
    seed: int = option(0, "of all draws", type=whole)

    def settings(self) -> Record:
        """The number of draws and their seed."""
        return {"repetitions": self.repetitions, "seed": self.seed}

    def tasks(self) -> list[Step]:
        """Every case at every size, then every problem at every number of bags."""
        if self.repetitions < 2:
            raise UsageError(f"take at least 2 repetitions, not {self.repetitions}.")
        if self.seed < 0:
            raise UsageError(f"the seed must not be negative, and is {self.seed}.")
        sizes = sorted(set(self.sizes))
        if sizes[0] < 2:
            raise UsageError(f"sizes must be at least 2, not {sizes[0]}.")
        tasks = []
        for name, case in CASES.items():
            for a in case.a:
                feasible = [size for size in sizes if case.plan(size, a).bags <= MOST_POINTS]
                if len(feasible) < LEAST_SIZES:
                    raise UsageError(
                        f"sizes must leave at least {LEAST_SIZES} for which N stays below 2^58; "
                        f"for a = {a:g} ({name}) {sizes} leaves fewer. Take more sizes up to 2000."
                    )
                tasks += [Step("rates", _rates_name(name, a), size) for size in feasible]
        return [*tasks, *(Step("bags", name, bags) for name in PROBLEMS for bags in BAGS)]

    def fit(self, task: Step) -> list[Outcome]:
        """The excess risk, averaged over draws."""
        with threadpool_limits(1):  # the matrices are too small to share out among threads
            if task.part == "bags":
                return [Outcome(task, self._bags(task.case, task.number))]
            name, a = task.case.rsplit(", a = ", 1)
            return [Outcome(task, [self._rates(name, float(a), task.number)])]

    def _rates(self, name: str, a: float, size: int) -> Record:
        """The excess risk at the theorem's N, λ and ε.

        Beside it stand, on the same draws, the excess with C known, with C_YY known to the second
        stage, and with the ε of the corner; and with C and C_YY known, which is the bias of ε.
        """
        case = CASES[name]
        problem = PROBLEMS[case.problem]
        exact = np.diag(problem.mediator_covariance)
        rng = np.random.default_rng([self.seed, list(CASES).index(name), round(1000 * a), size])
        todo, best = case.plan(size, a), case.plan(size, case.corner).epsilon
        values = np.empty((self.repetitions, len(PARTS)))
        for row in values:
            operator = conditional_operator(*draw_bags(problem, todo.bags, rng), todo.ridge)
            covariance = draw_mediators(problem, size, rng)
            row[:] = (
                problem.excess_of(covariance, operator, todo.epsilon),
                problem.excess_of(covariance, problem.operator, todo.epsilon),
                problem.excess_of(exact, operator, todo.epsilon),
                problem.excess_of(covariance, operator, best),
            )
        return {
            "size": size,
            "bags": todo.bags,
            "ridge": todo.ridge,
            "epsilon": todo.epsilon,
            "rate": todo.rate,
            **_mean_and_error(values, PARTS),
            "bias": problem.excess_of(exact, problem.operator, todo.epsilon),
        }

    def _bags(self, name: str, bags: int) -> list[Record]:
        """The excess risk at the ε of the corner with N bags, for a few M and several λ."""
        problem, case = PROBLEMS[name], CASES[OWN_CASE[name]]
        epsilon = [case.plan(size, case.corner).epsilon for size in OBSERVATIONS]
        kinds = sorted({points for _, points in RULES.values()})
        entropy = len(CASES) + list(PROBLEMS).index(name)
        rng = np.random.default_rng([self.seed, entropy, bags])
        values = np.empty((self.repetitions, len(OBSERVATIONS), 1 + len(RULES)))
        for row in values:
            operators = [problem.operator]
            moments = {n: draw_bags(problem, bags, rng, n) for n in kinds}
            for power, n in RULES.values():
                operators.append(conditional_operator(*moments[n], (n * bags) ** -power))
            for place, size in enumerate(OBSERVATIONS):
                covariance = draw_mediators(problem, size, rng)
                row[place] = [problem.excess_of(covariance, o, epsilon[place]) for o in operators]
        rows = []
        for place, size in enumerate(OBSERVATIONS):
            here = _mean_and_error(values[:, place], ("known", *RULES))
            rows += [
                {
                    "size": size,
                    "bags": bags,
                    "rule": rule,
                    "total": here[rule],
                    "total_error": here[f"{rule}_error"],
                    "known": here["known"],
                }
                for rule in RULES
            ]
        return rows

    def table(self, results: Results) -> list[str]:
        """Slopes next to the theorem's, and the number of bags that is enough."""
        return [
            f"{self.repetitions} repetitions at every size, seed {self.seed}.",
            "",
            *_rates_table(results),
            *_bags_table(results),
        ]

    def figures(self, results: Results) -> None:
        """``convergence.png`` and ``convergence-bags.png``."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.4 * len(CASES), 7.4), layout="constrained")
        grid: Any = figure.subplots(2, len(CASES), squeeze=False, height_ratios=[1.4, 1])
        figure.suptitle("Excess risk against the number of observations; dashed: the theorem's")
        for name, (upper, lower) in zip(CASES, grid.T, strict=True):
            _draw_rates(upper, lower, name, results)
        plots.save(figure, results.folder / "convergence.png")

        figure = Figure(figsize=(9.4, 3.9 * len(PROBLEMS)), layout="constrained")
        grid = figure.subplots(len(PROBLEMS), 2, squeeze=False)
        figure.suptitle("How many bags are enough (of one point, unless said otherwise)")
        for name, (left, right) in zip(PROBLEMS, grid, strict=True):
            _draw_bags(left, right, name, results.where(part="bags", case=name))
        plots.save(figure, results.folder / "convergence-bags.png")


def _rates_name(case: str, a: float) -> str:
    return f"{case}, a = {a:g}"


def _rates_of(results: Results, case: str, a: float) -> list[Record]:
    return results.where(part="rates", case=_rates_name(case, a))


def _mean_and_error(values: Array, names: Sequence[str]) -> dict[str, float]:
    error = values.std(0, ddof=1) / math.sqrt(len(values))
    means = dict(zip(names, values.mean(0).tolist(), strict=True))
    return means | {f"{name}_error": e for name, e in zip(names, error.tolist(), strict=True)}


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


def fitted(rows: Sequence[Record], part: str = "total") -> tuple[float, float]:
    """Slope over the upper half of the sizes, and its standard error."""
    return _slope(rows[len(rows) // 2 :], part)


def local_slopes(rows: Sequence[Record], part: str = "total") -> tuple[Array, Array, Array]:
    """Slopes between neighbouring sizes: where (geometric mean), value and standard error."""
    neighbours = list(pairwise(rows))
    where = np.array([math.sqrt(one["size"] * two["size"]) for one, two in neighbours])
    both = np.array([_slope(pair, part) for pair in neighbours])
    return where, both[:, 0], both[:, 1]


def _slope(rows: Sequence[Record], part: str) -> tuple[float, float]:
    return slope(*(_column(rows, name) for name in ("size", part, f"{part}_error")))


def _column(rows: Sequence[Record], name: str) -> Array:
    return np.array([row[name] for row in rows], dtype=float)


def needed(rows: Sequence[Record], rule: str) -> list[tuple[int, float, float]]:
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


def _measured(rows: Sequence[Record], rule: str, size: int) -> list[Record]:
    return [row for row in rows if row["rule"] == rule and row["size"] == size]


def _growth(found: Sequence[tuple[int, float, float]]) -> tuple[float, float]:
    """The power of M with which the N needed grows, and its standard error."""
    size, number, error = zip(*found, strict=True)
    if not np.isfinite([*number, *error]).all():
        return math.nan, math.nan
    rate, spread = slope(size, number, error)
    return -rate, spread


# ---------------------------------------------------------------------- tables


def _rates_table(results: Results) -> list[str]:
    lines = []
    for name, case in CASES.items():
        for a in case.a:
            rows = _rates_of(results, name, a)
            if len(rows) < LEAST_SIZES:  # some failed
                continue
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
            lines.append(cells)
    head = ["case", "read as", "a", "N", "M fitted", "predicted", "measured", "last"]
    return [
        "## Rates",
        "",
        "N, λ and ε as the theorem prescribes, c' = 2, ι = 1. Measured: slope of the mean excess "
        "risk over the upper half of the sizes, with a 95% interval for sampling error; last: the "
        "slope between the two largest sizes; ε of the corner: measured with the same N and λ, and "
        "that ε. The last three columns are at the largest size: mean excess risk, and as shares "
        "of it the excess with C known and the bias of ε alone.",
        "",
        *markdown([*head, "ε of the corner", "excess", "C known", "bias"], lines),
        "",
    ]


def _bags_table(results: Results) -> list[str]:
    lines = []
    for name in PROBLEMS:
        rows = results.where(part="bags", case=name)
        theorem = f"{3 * CASES[OWN_CASE[name]].corner:g}"
        for rule in RULES:
            enough = needed(rows, rule)
            counts = [_count(number) for _, number, _ in enough]
            lines.append([name, rule, *counts, _interval(*_growth(enough)), theorem])
    sizes = [f"M = {size}" for size in OBSERVATIONS]
    return [
        "## Bags needed",
        "",
        "Bags have one point unless the rule for λ says otherwise. The N from which on the mean "
        f"excess risk is at most {WITHIN:g} times that with C known, at the ε of the corner; the "
        "growth of N as a power of M, with a 95% interval; and the power of the theorem at its "
        "corner.",
        "",
        *markdown(["problem", "λ", *sizes, "power of M", "theorem"], lines),
    ]


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


def _draw_rates(upper: Axes, lower: Axes, name: str, results: Results) -> None:
    case = CASES[name]
    for a, colour, mark in zip(case.a, COLOURS, MARKS, strict=False):
        rows = _rates_of(results, name, a)
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


def _draw_bags(left: Axes, right: Axes, name: str, rows: Sequence[Record]) -> None:
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
