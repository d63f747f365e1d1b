r"""How fast the deconditional mean operator converges, where its risk is known exactly.

The paper's theorem bounds the excess of :math:`\mathcal{E}_d(D) = E\|\ell_Y - D\,C\,\ell_Y\|^2`,
C the conditional mean operator, over its least value. Here is a problem in which C, the minimiser
and the excess are matrices in closed form, and in which a sample of N pairs is a table of counts,
so that N may be :math:`10^{17}`.

X and Y are each one of 2q + 1 places on a circle and a sign. With :math:`e_j` the sines and cosines
of frequency :math:`j \le q`, orthonormal under the uniform law,

========================  ======================================================================
:math:`Y`                 place and sign uniform, independent
:math:`X \mid Y`          the place of Y plus a step with characteristic function
                          :math:`r_j = (1 + j)^{-1/4}`; a sign that is independent of all
:math:`\ell_y`            :math:`\sqrt{s_j}\,e_j(y_1)` and :math:`\nu y_2`, of dimension 2q + 1
:math:`k_x`               :math:`\sqrt{\kappa_j}\,e_j(x_1)`, and the same and a constant times
                          :math:`x_2`, of dimension 4q + 1
:math:`C`                 :math:`r_j\sqrt{\kappa_j/s_j}` where :math:`e_j(y_1)` meets
                          :math:`e_j(x_1)`, zero elsewhere
:math:`S = C C_{YY} C^*`  eigenvalues :math:`\sigma_j = \kappa_j r_j^2`, each twice, and zero
minimiser                 the pseudo-inverse of C; its risk is :math:`\nu^2`
========================  ======================================================================

The sign of Y is the noise of the second regression: a part of :math:`\ell_Y` that no D recovers.
With :math:`\sigma_j = A j^{-b}` and :math:`s_j = j^{-bc-1}` the problem behaves, as long as q is
not felt, like one with spectral exponent b and smoothness c.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deconditional.outputs import UsageError, can_draw, output_folder, write_atomically
from deconditional.provenance import machine, provenance_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console
    from rich.status import Status

__all__ = [
    "CASES",
    "PROBLEMS",
    "Case",
    "Plan",
    "Problem",
    "bags_needed",
    "conditional_operator",
    "corner",
    "deconditional_operator",
    "draw_bags",
    "draw_mediators",
    "plan",
    "run",
    "slope",
]

Array = npt.NDArray[np.floating[Any]]

REPETITIONS = 200
SIZES = tuple(2**power for power in range(4, 21))
QUICK_REPETITIONS = 20
QUICK_SIZES = tuple(2**power for power in range(4, 17, 2))
LEAST_SIZES = 4
MOST_POINTS = 2**58
"""Draws of more points show the rounding of NumPy's binomial sampler."""

STEP_DECAY = 0.25
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

WITHIN = 1.25
"""Bags are enough once the risk is at most this many times what it is with C known."""


# ---------------------------------------------------------------------- the problem


@dataclass(frozen=True)
class Problem:
    """A deconditioning problem on a circle, in coordinates.

    Parameters
    ----------
    frequencies
        q; there are 2q + 1 places.
    decay, mediator_decay
        Exponents of σ_j = A j^(-decay) and s_j = j^(-mediator_decay).
    amplitude, noise
        A and ν.

    Examples
    --------
    C takes ℓ_y to the conditional mean of k_X. The minimiser inverts it, up to the sign of Y, which
    is lost:

    >>> problem = Problem(frequencies=2, decay=2.0, mediator_decay=2.0)
    >>> given = problem.joint[:, 3] / problem.joint[:, 3].sum()
    >>> mean = given @ problem.fine_features
    >>> bool(np.allclose(mean, problem.operator @ problem.mediator_features[3]))
    True
    >>> print(round(problem.risk(problem.minimiser), 12), problem.noise**2)
    0.25 0.25
    """

    frequencies: int
    decay: float
    mediator_decay: float
    amplitude: float = 4.0
    noise: float = 0.5

    def __post_init__(self) -> None:
        if self.frequencies < 1:
            raise ValueError(f"frequencies must be at least 1, not {self.frequencies}.")
        if not (self.amplitude > 0 and self.noise > 0):
            raise ValueError(
                f"amplitude and noise must be positive, not {self.amplitude} and {self.noise}."
            )

    @property
    def places(self) -> int:
        """Number of places on the circle."""
        return 2 * self.frequencies + 1

    @cached_property
    def of_wave(self) -> Array:
        """The frequency of each sine and cosine, (2q,)."""
        return np.arange(1.0, self.frequencies + 1).repeat(2)

    @cached_property
    def steps(self) -> Array:
        """r_j of each sine and cosine."""
        return (1.0 + self.of_wave) ** -STEP_DECAY

    @cached_property
    def spectrum(self) -> Array:
        """Eigenvalues σ_j of S other than zero, decreasing."""
        return self.amplitude * self.of_wave**-self.decay

    @cached_property
    def mediator_covariance(self) -> Array:
        """The diagonal of C_YY: every s_j, then ν²."""
        return np.append(self.of_wave**-self.mediator_decay, self.noise**2)

    @cached_property
    def waves(self) -> Array:
        """Values of the sines and cosines at every place, (2q + 1, 2q)."""
        angles = np.outer(2 * np.pi * np.arange(self.places) / self.places, self.of_wave[::2])
        values = np.empty((self.places, 2 * self.frequencies))
        values[:, 0::2], values[:, 1::2] = np.cos(angles), np.sin(angles)
        return math.sqrt(2) * values

    @cached_property
    def mediator_features(self) -> Array:
        """ℓ_y of every y, one per row: all places with sign +1, then with sign -1."""
        smooth = np.tile(self.waves * np.sqrt(self.mediator_covariance[:-1]), (2, 1))
        return np.column_stack([smooth, np.repeat([self.noise, -self.noise], self.places)])

    @cached_property
    def fine_features(self) -> Array:
        """k_x of every x, one per row, in the same order."""
        scale = np.sqrt(self.spectrum) / self.steps
        smooth = self.waves * scale
        detail = np.column_stack([np.full(self.places, scale[0]), smooth])
        return np.block([[smooth, detail], [smooth, -detail]])

    @cached_property
    def joint(self) -> Array:
        """Probability of every pair (x, y)."""
        # r is a constant plus a convex sequence that falls to zero: its series is non-negative.
        law = np.maximum(1 + math.sqrt(2) * self.waves[:, 0::2] @ self.steps[0::2], 0.0)
        place = np.arange(self.places)
        table = np.tile(law[(place[:, None] - place) % self.places], (2, 2))
        return table / table.sum()

    @cached_property
    def operator(self) -> Array:
        """C, (4q + 1, 2q + 1)."""
        count = 2 * self.frequencies
        matrix = np.zeros((2 * count + 1, count + 1))
        diagonal = np.sqrt(self.spectrum / self.mediator_covariance[:-1])
        matrix[np.arange(count), np.arange(count)] = diagonal
        return matrix

    @cached_property
    def minimiser(self) -> Array:
        """The D of least norm among those of least risk, (2q + 1, 4q + 1)."""
        with np.errstate(divide="ignore"):
            return np.where(self.operator > 0, 1 / self.operator, 0.0).T

    @cached_property
    def projection(self) -> Array:
        """DC at the minimiser."""
        return np.diag(np.append(np.ones(2 * self.frequencies), 0.0))

    def risk(self, decondition: Array) -> float:
        """E‖ℓ_Y - D C ℓ_Y‖²."""
        left = np.eye(len(self.mediator_covariance)) - decondition @ self.operator
        return float(np.sum(left**2 * self.mediator_covariance))

    def excess(self, decondition: Array) -> float:
        """The risk of D less the least risk, without their cancellation."""
        return self._excess(decondition @ self.operator)

    def _excess(self, composed: Array) -> float:
        return float(np.sum((composed - self.projection) ** 2 * self.mediator_covariance))

    def excess_of(self, covariance: Array, operator: Array, epsilon: float) -> float:
        """The excess of the D that ridge regression finds, in 2q + 1 dimensions throughout.

        Parameters
        ----------
        covariance, operator
            Estimates of C_YY and C, or these themselves.
        epsilon
            The ridge.
        """
        return self._excess(_composed(covariance, operator, epsilon, self.operator))


def _composed(covariance: Array, operator: Array, epsilon: float, behind: Array) -> Array:
    """D times a matrix."""
    system = covariance @ (operator.T @ operator)
    system[np.diag_indices_from(system)] += epsilon
    return np.linalg.solve(system, covariance @ (operator.T @ behind))


def deconditional_operator(covariance: Array, operator: Array, epsilon: float) -> Array:
    r"""The estimate :math:`\hat D = A\hat C^\top(\hat C A\hat C^\top + \epsilon I)^{-1}`.

    A is the covariance of :math:`\ell` at the observations. The push-through identity gives
    :math:`(A\hat C^\top\hat C + \epsilon I)^{-1}A\hat C^\top`, of the size of A.

    Examples
    --------
    >>> deconditional_operator(np.array([[2.0]]), np.array([[3.0]]), epsilon=1.0).item() == 6 / 19
    True
    """
    return _composed(covariance, operator, epsilon, np.eye(len(operator)))


def conditional_operator(covariance: Array, cross: Array, ridge: float) -> Array:
    r"""The estimate :math:`\hat C = \hat C_{XY}(\hat C_{YY} + \lambda I)^{-1}`.

    Examples
    --------
    >>> conditional_operator(np.array([[2.0]]), np.array([[3.0]]), ridge=0.5).item()
    1.2
    """
    return np.linalg.solve(covariance + ridge * np.eye(len(covariance)), cross.T).T


def draw_mediators(problem: Problem, size: int, rng: np.random.Generator) -> Array:
    """The covariance of ℓ over a sample of mediators.

    Examples
    --------
    >>> problem = Problem(1, 2.0, 2.0)
    >>> estimate = draw_mediators(problem, 10**12, np.random.default_rng(0))
    >>> bool(np.allclose(estimate, np.diag(problem.mediator_covariance), atol=1e-5))
    True
    """
    features = problem.mediator_features
    share = rng.multinomial(size, np.full(len(features), 1 / len(features))) / size
    return features.T @ (share[:, None] * features)


def draw_bags(
    problem: Problem, size: int, rng: np.random.Generator, points: int = 1
) -> tuple[Array, Array]:
    """The covariance of ℓ, and that of k with ℓ, over a sample of bags.

    Parameters
    ----------
    size, points
        Number of bags, and of points in each. All points of a bag share its mediator. Bags of one
        point are the pairs of the theorem.

    Examples
    --------
    >>> problem = Problem(1, 2.0, 2.0)
    >>> exact = problem.operator @ np.diag(problem.mediator_covariance)
    >>> for points in (1, 10):
    ...     _, cross = draw_bags(problem, 10**12, np.random.default_rng(0), points)
    ...     print(bool(np.allclose(cross, exact, atol=1e-4)))
    True
    True
    """
    joint = problem.joint
    if points == 1:
        drawn = rng.multinomial(size, joint.ravel()).reshape(joint.shape) / size
        of_y = drawn.sum(0)
    else:
        given = joint.sum(0)
        number = rng.multinomial(size, given)
        drawn = rng.multinomial(points * number, (joint / given).T).T / (points * size)
        of_y = number / size
    features = problem.mediator_features
    covariance = features.T @ (of_y[:, None] * features)
    return covariance, problem.fine_features.T @ (drawn @ features)


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
    if not above:
        return math.nan
    last = above[-1]
    if last + 1 == len(bags):
        return math.nan
    y = np.log([ratio[last], ratio[last + 1]])
    x = np.log([bags[last], bags[last + 1]])
    return float(np.exp(x[0] + (np.log(within) - y[0]) * (x[1] - x[0]) / (y[1] - y[0])))


# ---------------------------------------------------------------------- studies


@dataclass(frozen=True)
class Case:
    """A problem, read as a member of the class with exponents b and c, and the a to try."""

    problem: str
    b: float
    c: float
    a: tuple[float, ...]


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
PARTS = ("total", "known", "every", "corner")
"""Both estimated; C known, as for infinite N; C_YY known to the second stage, as for infinite M;
both estimated, with the ε of the corner."""


def run(
    repetitions: int | None = None,
    seed: int = 0,
    sizes: Sequence[int] | None = None,
    *,
    quick: bool = False,
    out: str | os.PathLike[str] = "convergence",
    overwrite: bool = False,
    figures: bool = True,
    command: str | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure rates and the bags needed; write ``results.json``, ``table.md`` and pictures.

    Parameters
    ----------
    repetitions
        Number of independent draws of both data sets at every size: 200, or 20 if quick.
    seed
        Of all draws.
    sizes
        Numbers of observations M: powers of two from 16 to 2^20, or of four to 2^16 if quick. Each
        a uses those for which the theorem's N is at most 2^58. How many bags are needed is measured
        at four M of its own.
    quick
        Fewer repetitions and sizes, unless they are given.
    out
        Folder to write to. What its ``results.json`` already has, with the same settings, is not
        run again.
    overwrite
        Discard what the folder holds.
    figures
        Draw the curves.
    """
    from rich.console import Console
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    console = Console() if console is None else console
    if repetitions is None:
        repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    if sizes is None:
        sizes = QUICK_SIZES if quick else SIZES
    settings = _settings(repetitions, seed, sizes)
    if figures:
        can_draw()
    folder = output_folder(out)
    path = folder / "results.json"
    results = {"rates": {}, "bags": {}} if overwrite else _earlier(path, settings)
    for kind, name, work in _work(settings):
        if name in results[kind]:
            console.print(f"{name}: kept from an earlier run")
            continue
        began = time.perf_counter()
        # The matrices are too small to share out among threads.
        with console.status(f"{name} ...") as status, threadpool_limits(1):
            rows = work(partial(_say, status, name))
        results[kind][name] = rows
        console.print(f"{name}: {time.perf_counter() - began:.0f} s")
        kept = {"settings": settings, "machine": machine(), **results}
        write_atomically(path, json.dumps(kept, indent=1, allow_nan=False) + "\n")
    write_atomically(folder / "table.md", _table(results, settings, command))
    if figures:
        _draw(folder, results)
    return results


def _say(status: Status, name: str, text: str) -> None:
    status.update(f"{name}: {text}")


def _settings(repetitions: int, seed: int, sizes: Sequence[int]) -> dict[str, Any]:
    if repetitions < 2:
        raise UsageError(f"take at least 2 repetitions, not {repetitions}.")
    if seed < 0:
        raise UsageError(f"the seed must not be negative, and is {seed}.")
    chosen = sorted({int(size) for size in sizes})
    if not chosen or chosen[0] < 2 or any(size != int(size) for size in sizes):
        raise UsageError(f"sizes must be whole numbers of at least 2, not {list(sizes)}.")
    for name, case in CASES.items():
        if len(_feasible(chosen, case, max(case.a))) < LEAST_SIZES:
            raise UsageError(
                f"sizes must leave at least {LEAST_SIZES} for which N stays below 2^58; for "
                f"a = {max(case.a):g} ({name}) {chosen} leaves fewer. Take more sizes up to 2000."
            )
    return {"repetitions": repetitions, "seed": seed, "sizes": chosen}


def _feasible(sizes: Sequence[int], case: Case, a: float) -> list[int]:
    return [size for size in sizes if plan(size, a, case.b, case.c).bags <= MOST_POINTS]


def _earlier(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    if not path.exists():
        return {"rates": {}, "bags": {}}
    remedy = "Name another folder, or start anew with --overwrite."
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        found = {kind: dict(kept[kind]) for kind in ("rates", "bags")}
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{str(path)!r} is not a file of this study. {remedy}") from None
    if kept.get("settings") != settings:
        raise UsageError(f"{str(path)!r} holds results of other settings. {remedy}")
    return found


Work = Callable[[Callable[[str], None]], list[dict[str, Any]]]


def _work(settings: dict[str, Any]) -> list[tuple[str, str, Work]]:
    """All there is to do: kind, name, and a function that does it."""
    work: list[tuple[str, str, Work]] = []
    for index, (name, case) in enumerate(CASES.items()):
        for a in case.a:
            entropy = [settings["seed"], index, round(1000 * a)]
            work.append(
                ("rates", f"{name}, a = {a:g}", partial(rates_study, case, a, settings, entropy))
            )
    for index, name in enumerate(PROBLEMS):
        entropy = [settings["seed"], len(CASES) + index]
        work.append(("bags", name, partial(bags_study, name, settings, entropy)))
    return work


def rates_study(
    case: Case,
    a: float,
    settings: dict[str, Any],
    entropy: list[int],
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    """The excess risk at the theorem's N, λ and ε, for every M.

    Beside it stand, on the same draws, the excess with C known, with C_YY known to the second
    stage, and with the ε of the corner; and with C and C_YY known, which is the bias of ε.
    """
    problem = PROBLEMS[case.problem]
    exact = np.diag(problem.mediator_covariance)
    rows = []
    for size in _feasible(settings["sizes"], case, a):
        tell(f"M = {size}")
        rng = np.random.default_rng([*entropy, size])
        todo = plan(size, a, case.b, case.c)
        best = plan(size, corner(case.b, case.c), case.b, case.c).epsilon
        values = np.empty((settings["repetitions"], len(PARTS)))
        for row in values:
            operator = conditional_operator(*draw_bags(problem, todo.bags, rng), todo.ridge)
            covariance = draw_mediators(problem, size, rng)
            row[0] = problem.excess_of(covariance, operator, todo.epsilon)
            row[1] = problem.excess_of(covariance, problem.operator, todo.epsilon)
            row[2] = problem.excess_of(exact, operator, todo.epsilon)
            row[3] = problem.excess_of(covariance, operator, best)
        rows.append(
            {
                "size": size,
                "bags": todo.bags,
                "ridge": todo.ridge,
                "epsilon": todo.epsilon,
                "rate": todo.rate,
                **_mean_and_error(values, PARTS),
                "bias": problem.excess_of(exact, problem.operator, todo.epsilon),
            }
        )
    return rows


def _mean_and_error(values: Array, names: Sequence[str]) -> dict[str, float]:
    error = values.std(0, ddof=1) / math.sqrt(len(values))
    means = dict(zip(names, values.mean(0).tolist(), strict=True))
    return means | {f"{name}_error": e for name, e in zip(names, error.tolist(), strict=True)}


def bags_study(
    name: str, settings: dict[str, Any], entropy: list[int], tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The excess risk at the ε of the corner against N, for a few M and several λ."""
    problem, case = PROBLEMS[name], CASES[OWN_CASE[name]]
    epsilon = [plan(size, corner(case.b, case.c), case.b, case.c).epsilon for size in OBSERVATIONS]
    kinds = sorted({points for _, points in RULES.values()})
    rows = []
    for bags in BAGS:
        tell(f"N = {bags}")
        rng = np.random.default_rng([*entropy, bags])
        values = np.empty((settings["repetitions"], len(OBSERVATIONS), 1 + len(RULES)))
        for row in values:
            operators = [problem.operator]
            moments = {n: draw_bags(problem, bags, rng, n) for n in kinds}
            for power, n in RULES.values():
                operators.append(conditional_operator(*moments[n], (n * bags) ** -power))
            for place, size in enumerate(OBSERVATIONS):
                covariance = draw_mediators(problem, size, rng)
                row[place] = [problem.excess_of(covariance, o, epsilon[place]) for o in operators]
        for place, size in enumerate(OBSERVATIONS):
            here = _mean_and_error(values[:, place], ("known", *RULES))
            for rule in RULES:
                rows.append(
                    {
                        "size": size,
                        "bags": bags,
                        "rule": rule,
                        "total": here[rule],
                        "total_error": here[f"{rule}_error"],
                        "known": here["known"],
                    }
                )
    return rows


# ---------------------------------------------------------------------- what they say


def fitted(rows: Sequence[dict[str, Any]], part: str = "total") -> tuple[float, float]:
    """Slope over the upper half of the sizes, and its standard error."""
    upper = rows[len(rows) // 2 :]
    names = ("size", part, f"{part}_error")
    return slope(*([row[name] for row in upper] for name in names))


def local_slopes(rows: Sequence[dict[str, Any]], part: str = "total") -> tuple[Array, Array, Array]:
    """Slopes between neighbouring sizes: where (geometric mean), value and standard error."""
    neighbours = list(pairwise(rows))
    where = np.array([math.sqrt(one["size"] * two["size"]) for one, two in neighbours])
    names = ("size", part, f"{part}_error")
    both = np.array([slope(*([r[name] for r in pair] for name in names)) for pair in neighbours])
    return where, both[:, 0], both[:, 1]


def needed(rows: Sequence[dict[str, Any]], rule: str) -> list[tuple[int, float, float]]:
    """For every M the N needed under one choice of λ, and its standard error."""
    found = []
    for size in OBSERVATIONS:
        mine = [row for row in rows if row["size"] == size and row["rule"] == rule]
        bags = [row["bags"] for row in mine]
        ratio = np.array([row["total"] / row["known"] for row in mine])
        error = np.array([row["total_error"] / row["total"] for row in mine])
        middle, high, low = (
            bags_needed(bags, (ratio * (1 + sign * error)).tolist()) for sign in (0, 1, -1)
        )
        found.append((size, middle, (high - low) / 2))
    return found


def _growth(found: Sequence[tuple[int, float, float]]) -> tuple[float, float]:
    size, number, error = zip(*found, strict=True)
    if not np.isfinite([*number, *error]).all():
        return math.nan, math.nan
    rate, spread = slope(size, number, error)
    return -rate, spread


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


def _table(results: dict[str, Any], settings: dict[str, Any], command: str | None) -> str:
    lines = [
        "# Convergence of the deconditional mean operator",
        "",
        f"{settings['repetitions']} repetitions at every size, seed {settings['seed']}.",
        "",
        "## Rates",
        "",
        "N, λ and ε as the theorem prescribes, c' = 2, ι = 1. Measured: slope of the mean excess "
        "risk over the upper half of the sizes, with a 95% interval for sampling error; last: the "
        "slope between the two largest sizes; ε of the corner: measured with the same N and λ, and "
        "that ε. The last three columns are at the largest size: mean excess risk, and as shares "
        "of it the excess with C known and the bias of ε alone.",
        "",
        "| case | read as | a | N | M fitted | predicted | measured | last | ε of the "
        "corner | excess | C known | bias |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, case in CASES.items():
        for a in case.a:
            rows = results["rates"][f"{name}, a = {a:g}"]
            last, first = rows[-1], rows[len(rows) // 2]
            where = corner(case.b, case.c)
            mark = " (corner)" if math.isclose(a, where) else ""
            cells = [
                name,
                _exponents(case),
                f"{a:g}{mark}",
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
            lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "## Bags needed",
        "",
        "Bags have one point unless the rule for λ says otherwise. The N from which on the mean "
        f"excess risk is at most {WITHIN:g} times that with C known, at the ε of the corner; the "
        "growth of N as a power of M, with a 95% interval; and the power of the theorem at its "
        "corner.",
        "",
        f"| problem | λ | {' | '.join(f'M = {size}' for size in OBSERVATIONS)} | power of M "
        "| theorem |",
        f"|---|---|{'---|' * len(OBSERVATIONS)}---|---|",
    ]
    for name in PROBLEMS:
        case = CASES[OWN_CASE[name]]
        for rule in RULES:
            found = needed(results["bags"][name], rule)
            cells = [
                name,
                rule,
                *(_count(number) for _, number, _ in found),
                _interval(*_growth(found)),
                f"{3 * corner(case.b, case.c):g}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", "## How this was made", "", *provenance_lines(command), ""])


COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")
MARKS = "osD^"


def _draw(folder: Path, results: dict[str, Any]) -> None:
    from matplotlib.figure import Figure

    from deconditional import plots

    figure = Figure(figsize=(4.4 * len(CASES), 7.4), layout="constrained")
    grid: Any = figure.subplots(2, len(CASES), squeeze=False, height_ratios=[1.4, 1])
    figure.suptitle("Excess risk against the number of observations; dashed: the theorem's slope")
    for column, name in enumerate(CASES):
        _draw_rates(grid[0, column], grid[1, column], name, results["rates"])
    plots.save(figure, folder / "convergence.png")

    figure = Figure(figsize=(9.4, 3.9 * len(PROBLEMS)), layout="constrained")
    grid = figure.subplots(len(PROBLEMS), 2, squeeze=False)
    figure.suptitle("How many bags are enough (of one point, unless said otherwise)")
    for row, name in enumerate(PROBLEMS):
        _draw_bags(grid[row, 0], grid[row, 1], name, results["bags"][name])
    plots.save(figure, folder / "convergence-bags.png")


def _draw_rates(upper: Axes, lower: Axes, name: str, rates: dict[str, Any]) -> None:
    case = CASES[name]
    for a, colour, mark in zip(case.a, COLOURS, MARKS, strict=False):
        rows = rates[f"{name}, a = {a:g}"]
        size = np.array([row["size"] for row in rows], dtype=float)
        mean = np.array([row["total"] for row in rows])
        error = 1.96 * np.array([row["total_error"] for row in rows])
        at_corner = ", corner" if math.isclose(a, corner(case.b, case.c)) else ""
        style: dict[str, Any] = {"color": colour, "marker": mark, "ms": 4}
        upper.plot(size, mean, **style, label=f"a = {a:g}{at_corner}")
        upper.fill_between(size, mean - error, mean + error, color=colour, alpha=0.25, lw=0)
        rate = rows[0]["rate"]
        upper.plot(size, mean[-1] * (size / size[-1]) ** -rate, color=colour, ls="--", lw=1)
        where, value, spread = local_slopes(rows)
        lower.plot(where, value, **style)
        band = 1.96 * spread
        lower.fill_between(where, value - band, value + band, color=colour, alpha=0.2, lw=0)
        lower.axhline(rate, color=colour, ls="--", lw=1)
    upper.set(
        title=f"{name}: {_exponents(case)}",
        xscale="log",
        yscale="log",
        ylabel="excess risk",
    )
    lower.set(xscale="log", xlabel="observations M", ylabel="local slope", ylim=(0, 1.4))
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    upper.legend(fontsize=8)


def _draw_bags(left: Axes, right: Axes, name: str, rows: list[dict[str, Any]]) -> None:
    size = OBSERVATIONS[len(OBSERVATIONS) // 2]
    case = CASES[OWN_CASE[name]]
    for rule, colour, mark in zip(RULES, COLOURS, MARKS, strict=False):
        mine = [row for row in rows if row["rule"] == rule and row["size"] == size]
        bags = np.array([row["bags"] for row in mine])
        ratio = np.array([row["total"] / row["known"] for row in mine])
        band = 1.96 * np.array([row["total_error"] / row["known"] for row in mine])
        style: dict[str, Any] = {"color": colour, "marker": mark, "ms": 4, "label": f"λ = {rule}"}
        left.plot(bags, ratio, **style)
        left.fill_between(bags, ratio - band, ratio + band, color=colour, alpha=0.2, lw=0)
        found = [entry for entry in needed(rows, rule) if math.isfinite(entry[1])]
        right.plot([entry[0] for entry in found], [entry[1] for entry in found], **style)
    observations = np.array(OBSERVATIONS, dtype=float)
    power = 3 * corner(case.b, case.c)
    right.plot(observations, observations**power, "k--", lw=1, label=f"theorem, M^{power:g}")
    right.plot(observations, observations, "k:", lw=1, label="N = M")
    left.axhline(WITHIN, color="0.3", ls="--", lw=1, label=f"{WITHIN:g}")
    left.axvline(size, color="0.3", ls=":", lw=1, label="N = M")
    left.set(
        title=f"{OWN_CASE[name]}, M = {size}",
        xscale="log",
        yscale="log",
        xlabel="bags N",
        ylabel="excess risk / that with C known",
    )
    right.set(
        title=f"{OWN_CASE[name]}, bags needed",
        xscale="log",
        yscale="log",
        xlabel="observations M",
        ylabel=f"N for a ratio of {WITHIN:g}",
    )
    right.set_ylim(top=1e5 * observations[-1] ** power)  # room for the legend
    for axes in (left, right):
        axes.grid(alpha=0.3)
    left.legend(fontsize=8, loc="upper right")
    right.legend(fontsize=8, loc="upper left")
