"""The most probable parameters of a problem, by L-BFGS with restarts.

L-BFGS has a memory that SciPy does not hand out. A checkpoint keeps the best parameters of every
restart, and a fit that goes on begins each anew from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from threading import Event, Lock
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize

from deconditional.errors import CheckpointError
from deconditional.fitting.evaluation import Problem, loss_and_gradient
from deconditional.fitting.interrupts import current
from deconditional.fitting.parameters import ParameterSet
from deconditional.fitting.progress import tell
from deconditional.fitting.taming import tamed
from deconditional.kernels.devices import side_by_side
from deconditional.saving.resume import CheckpointSection

TOLERANCE = 1e-7
"""Relative change of the loss that ends a run: millionths of a nat."""

FLOAT32_TOLERANCE = 1e-6
"""The same with float32 tiles, whose rounding hides smaller changes."""

FLOAT32_LINE_SEARCH = 10
"""Evaluations after which a line search with float32 tiles gives up: it meets nothing but noise."""

FLOAT32_PROMISE = 0.5
"""Nats that a run which such noise ended may have left to gain: what a standard deviation costs."""

LINE_SEARCH_FAILED = 2
"""Status of L-BFGS-B when no step goes down, not even along the gradient."""


HUGE = 1e25
"""The loss where the algebra breaks down."""


class _Stopped(Exception):
    """Ends a run of the optimiser at the evaluation that would come next."""


class _Objective:
    """The loss for SciPy: float64 in and out, huge where the algebra breaks down."""

    def __init__(self, problem: Problem, told: Callable[[], None] = lambda: None):
        self.problem, self.told = problem, told
        self.evaluations = 0
        self._count = Lock()

    def __call__(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = loss_and_gradient(self.problem, jnp.asarray(vector))
        value, gradient = float(value), np.asarray(gradient, dtype=float)
        with self._count:
            self.evaluations += 1
            count = self.evaluations
        tell("fit", count, note=f"{count} evaluations, {-value:.1f}")
        if not np.isfinite(value) or not np.isfinite(gradient).all():
            return HUGE, np.zeros_like(vector)
        return value, gradient


class _Best(NamedTuple):
    """The best a restart has come to: in one piece, since other threads write it down."""

    vector: np.ndarray
    loss: float = HUGE
    gradient: np.ndarray | None = None


class _Restart:
    """One of the runs of the optimiser, with the best it has found."""

    def __init__(self, objective: _Objective, best: _Best, halted: Callable[[], bool]):
        self.objective, self.best, self.halted = objective, best, halted
        self.success = False
        self.promise = np.inf
        self.iterations = 0

    def run(
        self, low: np.ndarray, high: np.ndarray, iterations: int, options: Mapping[str, Any]
    ) -> None:
        """So many iterations; fewer where the run is halted."""
        self.success, self.promise, self.iterations = False, np.inf, 0
        self.start: float | None = None
        try:
            result = minimize(
                self._loss,
                np.clip(self.best.vector, low, high),
                jac=True,
                method="L-BFGS-B",
                bounds=list(zip(low, high, strict=True)),
                callback=self._next,
                options={"maxiter": iterations, **options},
            )
        except _Stopped:
            return
        self.best = _Best(result.x, float(result.fun), result.jac)
        self.success, self.iterations = bool(result.success), int(result.nit)
        if result.status == LINE_SEARCH_FAILED:
            free = _downhill(result.x, result.jac, low, high) != 0
            gradient = np.where(free, result.jac, 0.0)
            self.promise = 0.5 * float(gradient @ result.hess_inv.matvec(gradient))

    def _loss(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        if self.halted():
            raise _Stopped
        found = self.objective(vector)
        if found[0] <= self.best.loss:
            self.best = _Best(vector.copy(), *found)
        self.objective.told()
        self.start = found[0] if self.start is None else self.start
        return tamed(*found, self.start)

    def _next(self, xk: np.ndarray) -> None:
        self.iterations += 1

    def converged(self, low: np.ndarray, high: np.ndarray, single: bool) -> bool:
        """Met a tolerance, or came so close that rounding, of float32 most of all, ended it."""
        if self.best.gradient is None:
            return False
        near = bool(np.abs(_downhill(self.best.vector, self.best.gradient, low, high)).max() < 0.02)
        return self.success or near or (single and self.promise < FLOAT32_PROMISE)


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


@dataclass(frozen=True)
class Standing:
    """How far a search is, in its checkpoint.

    Attributes
    ----------
    vectors, losses
        The best of every restart.
    first
        The loss at the start, by which a problem is known again.
    screened
        Whether the restarts are the better half.
    evaluations, ended
        How many there were; the optimum, if it is found.
    """

    vectors: Float[np.ndarray, "restarts size"]
    losses: Float[np.ndarray, " restarts"]
    first: float
    screened: bool
    evaluations: int
    ended: Optimum | None


def maximise(
    problem: Problem,
    *,
    n_restarts: int = 4,
    max_iter: int = 300,
    seed: int = 0,
    starts: tuple[np.ndarray, ...] = (),
    screening: int = 12,
    section: CheckpointSection | None = None,
) -> Optimum:
    """Maximise the log posterior.

    The first start is every prior's median, then come `starts` (a user's own values), then draws
    from the priors; with no restarts, `starts` alone. All restarts run for `screening` iterations;
    the better half, and at least two, then run to convergence. An evaluation keeps one core busy,
    unless it is spread over devices, so restarts run together on a pool of threads: XLA leaves
    Python's lock.

    The best of every restart is kept in the `section` of a checkpoint and taken from there. Where
    a stop is asked for (:mod:`deconditional.fitting.interrupts`), the best parameters so far are
    the answer.
    """
    search = _Search(problem, section)
    if search.ended is not None:
        return search.ended
    seconds = search.begin(_starts(problem.parameters, n_restarts, seed, starts))
    if problem.parameters.size:
        search.run(max_iter, screening)
    return search.end(seconds)


def _starts(
    parameters: ParameterSet, n_restarts: int, seed: int, starts: tuple[np.ndarray, ...]
) -> list[np.ndarray]:
    """Where restarts begin; one where there is nothing to learn."""
    if n_restarts == 0 and starts and parameters.size:
        return list(starts)
    n = max(1, n_restarts) if parameters.size else 1
    known = [parameters.start(), *starts][:n]
    return known if len(known) == n else [*known, *parameters.draws(seed, n, shrink=0.5)][:n]


class _Search:
    """All restarts of a fit: begun or gone on with, run, and brought to an end."""

    def __init__(self, problem: Problem, section: CheckpointSection | None):
        self.problem, self.section = problem, section
        self.objective = _Objective(problem, lambda: None if section is None else section.offer())
        self.stop, self.halt = current(), Event()
        self.low, self.high = problem.parameters.bounds()
        self.single = getattr(problem, "dtype", None) == jnp.float32
        self.restarts: list[_Restart] = []
        self.screened, self.first = False, HUGE
        self.ended: Optimum | None = None
        if section is not None:
            self._take(section)
            section.keep(self._state)

    def begin(self, points: list[np.ndarray]) -> float:
        """Evaluate the start; seconds of that evaluation, which compiles."""
        began = time.perf_counter()
        loss, gradient = self.objective(points[0])
        compiled = time.perf_counter()
        if self.restarts:
            self._check_first(loss)
        else:
            self.restarts = [self._restart(_Best(point)) for point in points]
            self.restarts[0].best = _Best(points[0], loss, gradient)
        self.first = loss
        return compiled - began

    def run(self, max_iter: int, screening: int) -> None:
        """Run the restarts, the better half to the end."""
        options: dict[str, Any] = {"ftol": TOLERANCE, "gtol": 1e-3, "maxcor": 20}
        if self.single:
            options |= {"ftol": FLOAT32_TOLERANCE, "maxls": FLOAT32_LINE_SEARCH}
        with ThreadPoolExecutor(side_by_side(self.problem, len(self.restarts))) as pool:
            try:
                if not self.screened and len(self.restarts) > 2:
                    self._all(pool, screening, options)
                    if not self.stop.asked:
                        self._sort()
                        self.restarts = self.restarts[: max(2, len(self.restarts) // 2)]
                self.screened = self.screened or not self.stop.asked
                if not self.stop.asked:
                    self._all(pool, max_iter, options)
            except BaseException as error:
                self.halt.set()
                if not (isinstance(error, KeyboardInterrupt) and self.stop.taken()):
                    raise

    def end(self, compile_seconds: float) -> Optimum:
        """The best of the restarts."""
        self._sort()
        best = self.restarts[0]
        size = self.problem.parameters.size
        done = size == 0 or best.converged(self.low, self.high, self.single)
        found = Optimum(
            vector=best.best.vector,
            log_posterior=-best.best.loss,
            converged=done and not self.stop.used,
            iterations=best.iterations,
            evaluations=self.objective.evaluations,
            restarts=tuple(-r.best.loss for r in self.restarts if r.best.gradient is not None),
            compile_seconds=compile_seconds,
        )
        if self.section is not None:
            if self.stop.used:
                self.section.stopped()
            else:
                self.ended = found
                self.section.complete()
        return found

    def _restart(self, best: _Best) -> _Restart:
        return _Restart(self.objective, best, lambda: self.halt.is_set() or self.stop.reached())

    def _all(self, pool: ThreadPoolExecutor, iterations: int, options: Mapping[str, Any]) -> None:
        tasks = [partial(r.run, self.low, self.high, iterations, options) for r in self.restarts]
        _together(pool, tasks)

    def _sort(self) -> None:
        self.restarts.sort(key=lambda restart: restart.best.loss)

    # ------------------------------------------------------------------ the checkpoint

    def _state(self) -> dict[str, Any]:
        bests = [restart.best for restart in self.restarts]
        vectors = np.array([best.vector for best in bests]).reshape(len(bests), len(self.low))
        losses = np.array([best.loss for best in bests], dtype=float)
        evaluations = self.objective.evaluations
        return {
            "search": Standing(vectors, losses, self.first, self.screened, evaluations, self.ended)
        }

    def _take(self, section: CheckpointSection) -> None:
        """Go on from what a section has, if anything."""
        if section.found is None:
            return
        kept: Any = section.found.get("search")
        size = (len(self.low),)
        fits = isinstance(kept, Standing) and kept.vectors.shape[1:] == size
        if not fits or (kept.ended is not None and kept.ended.vector.shape != size):
            section.useless("it does not fit the problem")
            return
        pairs = zip(kept.vectors, kept.losses.tolist(), strict=True)
        self.restarts = [self._restart(_Best(vector, loss)) for vector, loss in pairs]
        self.first, self.screened = kept.first, kept.screened
        self.objective.evaluations = kept.evaluations
        self.ended = None if kept.ended is None else replace(kept.ended, compile_seconds=0.0)
        if self.restarts:
            section.resumed = f"{kept.evaluations} evaluations"

    def _check_first(self, loss: float) -> None:
        """Raise where the start has another log posterior: what is kept is of another problem."""
        assert self.section is not None
        if abs(loss - self.first) > (1e-3 if self.single else 1e-6) * (1.0 + abs(self.first)):
            raise CheckpointError(
                f"the checkpoint {str(self.section.path)!r} has a log posterior of "
                f"{-self.first:.6g} where it is {-loss:.6g} now: the kernel or a prior has "
                "changed. Name another file, or delete it to begin anew."
            )


def _together(pool: ThreadPoolExecutor, tasks: Sequence[Callable[[], None]]) -> None:
    """Run tasks on a pool.

    Waiting is done in short pieces, since not every system wakes a thread that waits for long when
    Ctrl-C is pressed.
    """
    left = {pool.submit(task) for task in tasks}
    while left:
        done, left = wait(left, timeout=0.5, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()


def _downhill(
    vector: np.ndarray, gradient: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """The step against the gradient, as far as bounds let it."""
    return np.clip(vector - gradient, low, high) - vector
