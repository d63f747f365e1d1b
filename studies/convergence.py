"""How fast the deconditional mean operator converges, next to the paper's theorem.

The theorem bounds the excess risk of the estimate from N bags and M observations, and prescribes N
and both ridges. Two studies, on problems whose risk :mod:`.convergence_problem` knows exactly:

- rates: the excess risk at what the theorem prescribes, against M;
- bags: the excess risk against N, and so the N from which on more bags bring little.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from deconditional import __version__
from deconditional.errors import UsageError
from deconditional.saving.outputs import output_folder, write_atomically
from studies.convergence_problem import (
    MOST_POINTS,
    Array,
    Problem,
    conditional_operator,
    draw_bags,
    draw_mediators,
)
from studies.plots import can_draw
from studies.provenance import machine
from studies.records import finished

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["CASES", "PROBLEMS", "Case", "Plan", "corner", "plan", "run"]

REPETITIONS = 200
SIZES = tuple(2**power for power in range(4, 21))
QUICK_REPETITIONS = 20
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

Row = dict[str, Any]
Tell = Callable[[str], None]
Work = Callable[[Tell], list[Row]]


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


# ---------------------------------------------------------------------- studies


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


def rates_name(case: str, a: float) -> str:
    """Under which the results keep the rates of a case."""
    return f"{case}, a = {a:g}"


def rates_study(case: Case, a: float, settings: Row, entropy: list[int], tell: Tell) -> list[Row]:
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
        todo = case.plan(size, a)
        best = case.plan(size, case.corner).epsilon
        values = np.empty((settings["repetitions"], len(PARTS)))
        for row in values:
            operator = conditional_operator(*draw_bags(problem, todo.bags, rng), todo.ridge)
            covariance = draw_mediators(problem, size, rng)
            row[:] = (
                problem.excess_of(covariance, operator, todo.epsilon),
                problem.excess_of(covariance, problem.operator, todo.epsilon),
                problem.excess_of(exact, operator, todo.epsilon),
                problem.excess_of(covariance, operator, best),
            )
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


def _feasible(sizes: Sequence[int], case: Case, a: float) -> list[int]:
    return [size for size in sizes if case.plan(size, a).bags <= MOST_POINTS]


def _mean_and_error(values: Array, names: Sequence[str]) -> dict[str, float]:
    error = values.std(0, ddof=1) / math.sqrt(len(values))
    means = dict(zip(names, values.mean(0).tolist(), strict=True))
    return means | {f"{name}_error": e for name, e in zip(names, error.tolist(), strict=True)}


def bags_study(name: str, settings: Row, entropy: list[int], tell: Tell) -> list[Row]:
    """The excess risk at the ε of the corner against N, for a few M and several λ."""
    problem, case = PROBLEMS[name], CASES[OWN_CASE[name]]
    epsilon = [case.plan(size, case.corner).epsilon for size in OBSERVATIONS]
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


# ---------------------------------------------------------------------- the run


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
    command
        What the table says it was made with.
    console
        Where progress goes.
    """
    from rich.console import Console

    from studies import convergence_output

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
    results: dict[str, Any] = {"rates": {}, "bags": {}}
    if not overwrite:
        results |= finished(path, {"settings": settings}, dict.fromkeys(results, dict))
    for kind, name, work in _work(settings):
        if name in results[kind]:
            console.print(f"{name}: kept from an earlier run")
            continue
        results[kind][name] = _done(work, name, console)
        kept = {"settings": settings, "machine": machine(), **results}
        write_atomically(path, json.dumps(kept, indent=1, allow_nan=False) + "\n")
    write_atomically(folder / "table.md", convergence_output.table(results, settings, command))
    if figures:
        convergence_output.draw(folder, results)
    return results


def _done(work: Work, name: str, console: Console) -> list[Row]:
    from threadpoolctl import threadpool_limits

    began = time.perf_counter()
    # The matrices are too small to share out among threads.
    with console.status(f"{name} ...") as status, threadpool_limits(1):
        rows = work(lambda text: status.update(f"{name}: {text}"))
    console.print(f"{name}: {time.perf_counter() - began:.0f} s")
    return rows


def _settings(repetitions: int, seed: int, sizes: Sequence[int]) -> Row:
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
    return {
        "repetitions": repetitions,
        "seed": seed,
        "sizes": chosen,
        "version": __version__,
    }


def _work(settings: Row) -> list[tuple[str, str, Work]]:
    """All there is to do: kind, name, and a function that does it."""
    work: list[tuple[str, str, Work]] = []
    for index, (name, case) in enumerate(CASES.items()):
        for a in case.a:
            entropy = [settings["seed"], index, round(1000 * a)]
            study = partial(rates_study, case, a, settings, entropy)
            work.append(("rates", rates_name(name, a), study))
    for index, name in enumerate(PROBLEMS):
        entropy = [settings["seed"], len(CASES) + index]
        work.append(("bags", name, partial(bags_study, name, settings, entropy)))
    return work
