"""The most probable parameters of a problem, by L-BFGS with restarts.

L-BFGS has a memory that SciPy does not hand out. A checkpoint keeps the best parameters of every
restart, and a fit that goes on begins each anew from there.
"""

from __future__ import annotations

import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from threading import Event, Lock
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from deconditional.fitting.evaluation import Problem, loss_and_gradient
from deconditional.fitting.interrupts import current
from deconditional.fitting.parameters import ParameterSet
from deconditional.fitting.progress import tell
from deconditional.kernels.devices import side_by_side
from deconditional.saving.resume import CheckpointSection

TOLERANCE = 1e-7
"""Relative change of the loss that ends a run: millionths of a nat."""

FLOAT32_TOLERANCE = 1e-6
"""Relative change that ends a run with float32 tiles, whose rounding hides smaller ones."""

FLOAT32_LINE_SEARCH = 10
"""Evaluations after which a line search with float32 tiles gives up: it meets nothing but noise."""

FLOAT32_PROMISE = 0.5
"""Nats that a run which such noise ended may have left to gain: what a standard deviation costs."""

LINE_SEARCH_FAILED = 2
"""Status of L-BFGS-B when no step goes down, not even along the gradient."""

SCREENING = 12
"""Iterations of all restarts, after which the better half goes on."""

FAR = 1e4
"""Nats above the start from which a loss grows like its logarithm."""

HUGE = 1e25
"""The loss where the algebra breaks down."""


@dataclass(frozen=True)
class Optimum:
    """The best of the restarts."""

    vector: np.ndarray
    log_posterior: float
    converged: bool
    iterations: int
    evaluations: int
    restarts: tuple[float, ...]
    compile_seconds: float


def maximise(
    problem: Problem,
    *,
    n_restarts: int = 4,
    max_iter: int = 300,
    seed: int = 0,
    starts: tuple[np.ndarray, ...] = (),
    tolerance: float | None = None,
    section: CheckpointSection | None = None,
) -> Optimum:
    """Maximise the log posterior.

    The first start is every prior's median, then come `starts` (a user's own values), then draws
    from the priors; with no restarts, `starts` alone. All restarts run for 12 iterations;
    the better half, and at least two, then run to convergence. An evaluation keeps one core busy,
    unless it is spread over devices, so restarts run together on a pool of threads: XLA leaves
    Python's lock.

    A run ends where a step gains less than `tolerance`, or a ten-millionth of the loss.

    The best of every restart is kept in the `section` of a checkpoint and taken from there. Where
    a stop is asked for (:mod:`deconditional.fitting.interrupts`), the best parameters so far are
    the answer.
    """
    section, size = section or CheckpointSection(), problem.parameters.size
    kept = section.starts("evaluations")
    ended = section.found and section.found["ended"]
    if ended:
        return replace(ended, compile_seconds=0.0)
    points = kept or _starts(problem.parameters, n_restarts, seed, starts)
    search = _Search(problem, section, [_Restart(point) for point in points], tolerance)
    began = time.perf_counter()
    search.loss(search.restarts[0], points[0])
    compile_seconds = time.perf_counter() - began
    if size:
        search.run(max_iter)
    search.restarts = search.best_first()
    best = search.restarts[0]
    found = Optimum(
        vector=best.vector,
        log_posterior=-best.loss,
        converged=(size == 0 or search.has_converged(best)) and not search.stop.used,
        iterations=best.iterations,
        evaluations=search.evaluations,
        restarts=tuple(-r.loss for r in search.restarts if r.gradient is not None),
        compile_seconds=compile_seconds,
    )
    section.keep(search.state(None if search.stop.used else found))
    section.write(stopped=search.stop.used)
    return found


def _starts(
    parameters: ParameterSet, n_restarts: int, seed: int, starts: tuple[np.ndarray, ...]
) -> list[np.ndarray]:
    """Where restarts begin; one where there is nothing to learn."""
    if n_restarts == 0 and starts and parameters.size:
        return list(starts)
    n = max(1, n_restarts) if parameters.size else 1
    known = [parameters.start(), *starts][:n]
    return known if len(known) == n else [*known, *parameters.draws(seed, n, shrink=0.5)][:n]


class _Stopped(Exception):
    """Ends a run of the optimiser at the evaluation that would come next."""


class _Restart:
    """One of the runs of the optimiser: where it begins, then the best it has found."""

    def __init__(self, start: np.ndarray):
        self.vector, self.loss = start, HUGE
        self.gradient: np.ndarray | None = None
        self.success, self.promise, self.iterations = False, np.inf, 0


class _Search:
    """All restarts of a fit, and what they share: the problem, its bounds, a count, an end."""

    def __init__(
        self,
        problem: Problem,
        section: CheckpointSection,
        restarts: list[_Restart],
        tolerance: float | None = None,
    ):
        self.problem, self.section, self.restarts = problem, section, restarts
        self.tolerance = tolerance
        self.stop, self._halt, self._counting = current(), Event(), Lock()
        self.low, self.high = problem.parameters.bounds()
        self.single = getattr(problem, "dtype", None) == jnp.float32
        self.evaluations = int(section.found["done"]) if section.found else 0

    def loss(self, restart: _Restart, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss, huge where the algebra breaks down, and its gradient; the best is kept."""
        found, gradient = loss_and_gradient(self.problem, jnp.asarray(vector))
        value, slope = float(found), np.asarray(gradient, dtype=float)
        with self._counting:
            self.evaluations += 1
            count = self.evaluations
        tell("fit", count, note=f"{count} evaluations, {-value:.1f}")
        if not np.isfinite(value) or not np.isfinite(slope).all():
            value, slope = HUGE, np.zeros_like(vector)
        if value <= restart.loss:
            restart.vector, restart.loss, restart.gradient = vector.copy(), value, slope
        self.section.keep(self.state())
        return value, slope

    def run(self, max_iter: int) -> None:
        """Run the restarts, the better half to the end."""
        with ThreadPoolExecutor(side_by_side(self.problem, len(self.restarts))) as pool:
            try:
                if len(self.restarts) > 2:
                    self._all(pool, SCREENING)
                    if not self.stop.asked:
                        self.restarts = self.best_first()[: max(2, len(self.restarts) // 2)]
                if not self.stop.asked:
                    self._all(pool, max_iter)
            except BaseException as error:
                self._halt.set()
                if not (isinstance(error, KeyboardInterrupt) and self.stop.taken()):
                    raise

    def _all(self, pool: ThreadPoolExecutor, iterations: int) -> None:
        """Run all restarts.

        Waiting is done in short pieces, since not every system wakes a thread that waits for long
        when Ctrl-C is pressed.
        """
        left = {pool.submit(self._climb, each, iterations) for each in self.restarts}
        while left:
            done, left = wait(left, timeout=0.5, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()

    def _climb(self, restart: _Restart, iterations: int) -> None:
        """Run one restart for some iterations; fewer where the search is to end."""
        restart.success, restart.promise, restart.iterations = False, np.inf, 0
        start: float | None = None

        def loss(vector: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal start
            if self._halt.is_set() or self.stop.reached():
                raise _Stopped
            found = self.loss(restart, vector)
            start = found[0] if start is None else start
            return tamed(*found, start)

        def count(xk: np.ndarray) -> None:
            restart.iterations += 1

        options: dict[str, Any] = {"ftol": TOLERANCE, "gtol": 1e-3, "maxcor": 20}
        if self.single:
            options |= {"ftol": FLOAT32_TOLERANCE, "maxls": FLOAT32_LINE_SEARCH}
        if self.tolerance is not None:
            options["ftol"] = self.tolerance / max(abs(self.restarts[0].loss), 1.0)
        try:
            result = minimize(
                loss,
                np.clip(restart.vector, self.low, self.high),
                jac=True,
                method="L-BFGS-B",
                bounds=list(zip(self.low, self.high, strict=True)),
                callback=count,
                options={"maxiter": iterations, **options},
            )
        except _Stopped:
            return
        restart.vector, restart.loss, restart.gradient = result.x, float(result.fun), result.jac
        restart.success, restart.iterations = bool(result.success), int(result.nit)
        if result.status == LINE_SEARCH_FAILED:
            free = self._downhill(restart) != 0
            gradient = np.where(free, result.jac, 0.0)
            restart.promise = 0.5 * float(gradient @ result.hess_inv.matvec(gradient))

    def has_converged(self, restart: _Restart) -> bool:
        """Met a tolerance, or came so close that rounding, of float32 most of all, ended it."""
        if restart.gradient is None:
            return False
        near = bool(np.abs(self._downhill(restart)).max() < 0.02)
        return restart.success or near or (self.single and restart.promise < FLOAT32_PROMISE)

    def _downhill(self, restart: _Restart) -> np.ndarray:
        """The step against the gradient, as far as bounds let it."""
        assert restart.gradient is not None
        step = np.clip(restart.vector - restart.gradient, self.low, self.high)
        return step - restart.vector

    def best_first(self) -> list[_Restart]:
        """The restarts by their losses."""
        return sorted(self.restarts, key=lambda restart: restart.loss)

    def state(self, ended: Optimum | None = None) -> dict[str, Any]:
        """What a checkpoint has of a search."""
        vectors = np.stack([restart.vector for restart in self.best_first()])
        return {"vectors": vectors, "done": self.evaluations, "ended": ended}


def tamed(loss: float, gradient: np.ndarray, start: float) -> tuple[float, np.ndarray]:
    """A loss and its gradient, no more absurd than a line search can use.

    The first step of L-BFGS-B goes as far as the gradient, or to the bounds. After a loss of 1e90
    there the step that is interpolated is none, and the search ends where it began.

    Examples
    --------
    >>> tamed(5.0, np.array([1.0]), 2.0), round(tamed(1e90, np.array([1.0]), 2.0)[0])
    ((5.0, array([1.])), 1990225)
    """
    rise = loss - start
    if not np.isfinite(start) or rise <= FAR:
        return loss, gradient
    return start + FAR * (1.0 + float(np.log(rise / FAR))), gradient * (FAR / rise)
