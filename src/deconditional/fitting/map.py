"""The most probable parameters of a problem, by L-BFGS with restarts.

A problem offers ``parameters`` (a :class:`~deconditional.fitting.parameters.ParameterSet`) and
``log_posterior(vector)``; nothing here knows what the model is. Problems are pytrees, so one
compilation serves every data set of the same shape.

L-BFGS has a memory that SciPy does not hand out, so a checkpoint keeps what it was told instead:
all evaluations. A fit that goes on runs again from its start, is told the same, and comes in no
time to where it stopped, with the same memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from deconditional.errors import CheckpointError
from deconditional.fitting.interrupts import Stop, current
from deconditional.fitting.parameters import ParameterSet
from deconditional.fitting.progress import tell
from deconditional.saving.resume import Section

__all__ = ["Optimum", "Problem", "at_bounds", "loss", "loss_and_gradient", "maximise"]

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

SHORT_EVALUATION = 0.01
"""Seconds; a longer evaluation uses the cores itself, and a second beside it slows both down."""


class Problem(Protocol):
    """What can be fitted."""

    parameters: ParameterSet

    def log_posterior(self, vector: Any) -> Any:
        """Log evidence plus log prior of an unconstrained vector."""


@eqx.filter_jit
def loss(problem: Problem, vector: Any) -> Any:
    """The negative log posterior."""
    return -problem.log_posterior(vector)


@eqx.filter_jit
def loss_and_gradient(problem: Problem, vector: Any) -> tuple[Any, Any]:
    """The negative log posterior, and its gradient."""
    return jax.value_and_grad(lambda v: -problem.log_posterior(v))(vector)


class _Stopped(Exception):
    """Ends a run of the optimiser at the evaluation that would come next."""


class _Evaluations:
    """Every evaluation so far: a vector that is asked for again gets the same answer."""

    def __init__(self, section: Section, size: int):
        self.section, self.size = section, size
        self._known: dict[bytes, tuple[float, np.ndarray]] = {}
        self._rows: list[np.ndarray] = []
        self.seconds = 0.0
        self.ended = False
        if section.found is not None:
            self._take(section.found)
        if self._rows:
            section.resumed = f"{len(self._rows)} evaluations"
        section.keep(self._state)

    def _take(self, found: dict[str, Any]) -> None:
        rows: Any = found.get("evaluations")
        seconds, ended = found.get("seconds"), found.get("ended")
        shaped = isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.dtype == np.float64
        if not shaped or rows.shape[1] != 2 * self.size + 1 or not np.isfinite(rows).all():
            self.section.useless("its evaluations do not fit the problem")
        elif not isinstance(seconds, np.ndarray) or seconds.shape or not isinstance(ended, bool):
            self.section.useless("it is not complete")
        else:
            self.seconds, self.ended = float(seconds), ended
            for row in rows:
                self.add(row[: self.size], float(row[self.size]), row[self.size + 1 :])

    def _state(self) -> dict[str, Any]:
        rows = list(self._rows)
        return {
            "evaluations": np.stack(rows) if rows else np.zeros((0, 2 * self.size + 1)),
            "seconds": np.asarray(self.seconds),
            "ended": self.ended,
        }

    def of(self, vector: np.ndarray) -> tuple[float, np.ndarray] | None:
        """The evaluation at a vector, if there was one."""
        found = self._known.get(np.asarray(vector, dtype=float).tobytes())
        return None if found is None else (found[0], found[1].copy())

    def add(self, vector: np.ndarray, value: float, gradient: np.ndarray) -> None:
        """Remember an evaluation."""
        row = np.concatenate([vector, [value], gradient])
        self._known[row[: self.size].tobytes()] = (value, row[self.size + 1 :])
        self._rows.append(row)


class _Objective:
    """The loss for SciPy: float64 in and out, huge where the algebra breaks down."""

    def __init__(self, problem: Problem, memory: _Evaluations | None = None):
        self.problem = problem
        self.memory = memory
        self.evaluations = 0
        self._count = Lock()

    def known(self, vector: np.ndarray) -> tuple[float, np.ndarray] | None:
        """The evaluation at a vector where the checkpoint has it."""
        found = None if self.memory is None else self.memory.of(vector)
        if found is not None:
            with self._count:
                self.evaluations += 1
        return found

    def __call__(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = self.evaluated(vector)
        if self.memory is not None:
            self.memory.add(vector, value, gradient)
            self.memory.section.offer()
        return value, gradient

    def evaluated(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """An evaluation that is not remembered."""
        value, gradient = loss_and_gradient(self.problem, jnp.asarray(vector))
        value, gradient = float(value), np.asarray(gradient, dtype=float)
        with self._count:
            self.evaluations += 1
            count = self.evaluations
        tell("fit", count, note=f"{count} evaluations, {-value:.1f}")
        if not np.isfinite(value) or not np.isfinite(gradient).all():
            return 1e25, np.zeros_like(vector)
        return value, gradient


class _Restart:
    """One of the runs of the optimiser, with the best it has found."""

    def __init__(self, objective: _Objective, start: np.ndarray, halted: Callable[[], bool]):
        self.objective, self.halted = objective, halted
        self.vector, self.loss, self.gradient = start, np.inf, np.zeros_like(start)
        self.success = False
        self.promise = np.inf
        self.iterations = 0

    def run(
        self, low: np.ndarray, high: np.ndarray, iterations: int, options: Mapping[str, Any]
    ) -> None:
        """So many iterations; fewer where the run is halted."""
        self.success, self.promise, self.iterations = False, np.inf, 0
        try:
            result = minimize(
                self._loss,
                np.clip(self.vector, low, high),
                jac=True,
                method="L-BFGS-B",
                bounds=list(zip(low, high, strict=True)),
                callback=self._next,
                options={"maxiter": iterations, **options},
            )
        except _Stopped:
            return
        self.vector, self.loss, self.gradient = result.x, float(result.fun), result.jac
        self.success, self.iterations = bool(result.success), int(result.nit)
        if result.status == LINE_SEARCH_FAILED:
            free = _downhill(result.x, result.jac, low, high) != 0
            gradient = np.where(free, result.jac, 0.0)
            self.promise = 0.5 * float(gradient @ result.hess_inv.matvec(gradient))

    def _loss(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        found = self.objective.known(vector)
        if found is None:
            if self.halted():
                raise _Stopped
            found = self.objective(vector)
        if found[0] < self.loss:
            self.vector, self.loss, self.gradient = vector.copy(), *found
        return found

    def _next(self, xk: np.ndarray) -> None:
        self.iterations += 1


@dataclass(frozen=True)
class Optimum:
    """The best of the restarts, and draws about it where these are to take its place."""

    vector: np.ndarray
    log_posterior: float
    converged: bool
    iterations: int
    evaluations: int
    restarts: tuple[float, ...]
    compile_seconds: float
    draws: np.ndarray | None = None


def maximise(
    problem: Problem,
    *,
    n_restarts: int = 4,
    max_iter: int = 300,
    seed: int = 0,
    starts: tuple[np.ndarray, ...] = (),
    screening: int = 12,
    section: Section | None = None,
) -> Optimum:
    """Maximise the log posterior.

    The first start is every prior's median, then come `starts` (a user's own values), then draws
    from the priors. All restarts run for `screening` iterations; the better half, and at least
    two, then run to convergence. Evaluations too short to keep every core busy by themselves run
    together on a pool of threads: XLA leaves Python's lock while it computes.

    Evaluations are kept in the `section` of a checkpoint and taken from there. Where a stop is
    asked for (:mod:`deconditional.fitting.interrupts`), the best parameters so far are the answer.
    """
    parameters = problem.parameters
    stop = current()
    memory = None if section is None else _Evaluations(section, parameters.size)
    objective = _Objective(problem, memory)
    first = parameters.start()
    compile_seconds, one_evaluation, (loss, gradient) = _begin(objective, first, stop)
    if parameters.size == 0:
        return Optimum(first, -loss, True, 0, objective.evaluations, (-loss,), compile_seconds)
    keys = jax.random.split(jax.random.key(seed), max(1, n_restarts))
    drawn = [parameters.draw(key, shrink=0.5) for key in keys]
    points = [first, *starts, *drawn][: max(1, n_restarts)]
    low, high = parameters.bounds()

    options: dict[str, Any] = {"ftol": TOLERANCE, "gtol": 1e-3, "maxcor": 20}
    single = getattr(problem, "dtype", None) == jnp.float32
    if single:
        options |= {"ftol": FLOAT32_TOLERANCE, "maxls": FLOAT32_LINE_SEARCH}

    halt = Event()
    restarts = [_Restart(objective, p, lambda: halt.is_set() or stop.reached()) for p in points]
    restarts[0].loss, restarts[0].gradient = loss, gradient
    workers = os.cpu_count() or 1 if one_evaluation < SHORT_EVALUATION else 1
    with ThreadPoolExecutor(max_workers=min(len(points), workers)) as pool:
        try:
            if len(restarts) > 2:
                _together(pool, [partial(r.run, low, high, screening, options) for r in restarts])
                restarts.sort(key=lambda r: r.loss)
            if not stop.asked:
                restarts = restarts[: max(2, len(points) // 2)]
            if not stop.asked or memory is not None:
                _together(pool, [partial(r.run, low, high, max_iter, options) for r in restarts])
        except BaseException as error:
            halt.set()
            if not (isinstance(error, KeyboardInterrupt) and stop.taken()):
                raise
    restarts.sort(key=lambda r: r.loss)
    best = restarts[0]
    if memory is not None:
        memory.ended = not stop.used
        (memory.section.stopped if stop.used else memory.section.complete)()
    return Optimum(
        vector=best.vector,
        log_posterior=-best.loss,
        converged=not stop.used and _converged(best, low, high, single),
        iterations=best.iterations,
        evaluations=objective.evaluations,
        restarts=tuple(-r.loss for r in restarts if r.loss < np.inf),
        compile_seconds=compile_seconds,
    )


def _begin(
    objective: _Objective, first: np.ndarray, stop: Stop
) -> tuple[float, float, tuple[float, np.ndarray]]:
    """Seconds of the first evaluation, which compiles, and of one more; the evaluation itself.

    A fit that goes on has it in its checkpoint. It repeats it: the same data and options must give
    the same number, or the rest of the checkpoint is not to be trusted.
    """
    memory = objective.memory
    known = objective.known(first)
    began = time.perf_counter()
    if memory is None or known is None:
        found = objective(first)
        compiled = time.perf_counter()
        if not stop.asked:
            objective.evaluated(first)
        one = time.perf_counter() - compiled
        if memory is not None:
            memory.seconds = one
        return compiled - began, one, found
    if memory.ended:
        objective.evaluations += 1
        return 0.0, memory.seconds, known
    value, _ = objective.evaluated(first)
    single = getattr(objective.problem, "dtype", None) == jnp.float32
    if abs(value - known[0]) > (1e-3 if single else 1e-6) * (1.0 + abs(known[0])):
        raise CheckpointError(
            f"the checkpoint {str(memory.section.path)!r} has a log posterior of {-known[0]:.6g} "
            f"where it is {-value:.6g} now: the kernel or a prior has changed. Name another file, "
            "or delete it to begin anew."
        )
    return time.perf_counter() - began, memory.seconds, known


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


def _converged(best: _Restart, low: np.ndarray, high: np.ndarray, single: bool) -> bool:
    """Met a tolerance, or came so close that rounding, of float32 tiles most of all, ended it."""
    step = _downhill(best.vector, best.gradient, low, high)
    near = bool(np.abs(step).max() < 0.02)
    return best.success or near or (single and best.promise < FLOAT32_PROMISE)


def _downhill(
    vector: np.ndarray, gradient: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """The step against the gradient, as far as bounds let it."""
    return np.clip(vector - gradient, low, high) - vector


def at_bounds(parameters: ParameterSet, vector: np.ndarray) -> tuple[str, ...]:
    """Names of the entries of the vector that lie on a bound."""
    low, high = parameters.bounds()
    touching = (vector - low < 1e-3) | (high - vector < 1e-3)
    return tuple(name for name, on in zip(parameters.names(), touching, strict=True) if on)
