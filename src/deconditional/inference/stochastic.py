"""The uncollapsed bound, climbed by minibatches of coarse observations from several starts.

q(v) moves by natural gradients, which for Gaussian noise are convex steps of its natural parameters
towards those of the minibatch; the hyper-parameters move by Adam.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float

from deconditional.fitting.interrupts import current
from deconditional.fitting.map import Optimum
from deconditional.fitting.progress import tell
from deconditional.inference.basis import Basis
from deconditional.inference.basis_field import BasisField
from deconditional.inference.bound import Natural, elbo, endless, full_bound, likelihood, optimal
from deconditional.inference.minibatches import Batch, Batches
from deconditional.inference.variational import VariationalProblem
from deconditional.saving.resume import CheckpointSection

SCREENING_STEPS = 100
"""Steps of every restart, after which the best alone goes on."""

SMOOTHING = 50
"""Steps over which the bound is averaged."""

PLATEAUS = 4
"""Plateaus of the bound that end a climb."""

SHRINKAGE = 0.3
"""Factor by which steps shrink on a plateau."""


@dataclass(frozen=True)
class ClimbOptions:
    """Options of a climb: sizes of batches and steps, and when it ends.

    Steps without an improvement of the smoothed bound by more than the tolerance make a plateau.
    Each plateau shrinks the steps to 0.3 of what they were, except a natural step of 1; the fourth
    ends the fit, at the average of the parameters since the third.
    """

    batch_size: int = 64  # observations per step
    learning_rate: float = 0.05  # of Adam
    natural_step: float | None = None  # 0.5, or 1 where a batch has all observations
    max_steps: int = 4000  # screening of restarts included
    patience: int = 200  # steps
    tolerance: float = 0.1  # nats

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("batch_size", "max_steps", "patience"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be a positive whole number, not {value!r}.")
        for name in ("learning_rate", "natural_step", "tolerance"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, float | int | np.number) or not 0 < value < np.inf:
                raise ValueError(f"{name} must be a positive number, not {value!r}.")
        if self.natural_step is not None and self.natural_step > 1:
            raise ValueError(f"natural_step lies between 0 and 1, not {self.natural_step!r}.")


class Climb(NamedTuple):
    """The parameters found, the posterior there, and the smoothed bound, once in ten steps."""

    optimum: Optimum
    field: BasisField
    trace: np.ndarray


def maximise_elbo(
    problem: VariationalProblem,
    options: ClimbOptions,
    *,
    n_restarts: int = 1,
    seed: int = 0,
    starts: tuple[np.ndarray, ...] = (),
    section: CheckpointSection | None = None,
) -> Climb:
    """Climb the bound from several starts; the best of a short screening goes on to the end.

    The `section` of a checkpoint has the best parameters so far; a climb that was stopped begins
    anew from there. An interrupt (Ctrl-C) ends the climb where it stands.
    """
    parameters = problem.parameters
    batches, keys = Batches(problem, options.batch_size, seed), endless(jr.key(seed))
    drawn = parameters.draws(seed, n_restarts, shrink=0.5)
    section = section or CheckpointSection()
    kept = section.starts("steps")
    ended = bool(section.found and section.found.get("ended") is True)
    points = kept or [parameters.start(), *starts, *drawn][:n_restarts]
    began = time.perf_counter()
    runs = [Run(problem, options, point, batches, keys) for point in points]
    if not ended:
        runs[0].step()
    compile_seconds = time.perf_counter() - began
    best = runs[0] if ended else _climb(runs, options, section)
    vector = best.vector
    q = optimal(problem, vector, batches, next(keys), best.state.q).coefficients()
    bound = full_bound(problem, vector, q, batches, next(keys))
    noise = problem.fine_noise_variance(parameters.unpack(vector))
    field = BasisField(_basis(problem, vector), problem.trend, q, bound, noise)
    steps = sum(run.steps for run in runs)
    optimum = Optimum(
        vector=np.asarray(vector),
        log_posterior=float(bound + parameters.log_prior(vector)),
        converged=ended or best.ended,
        iterations=steps,
        evaluations=steps,
        restarts=tuple(sorted((r.smoothed for r in runs if r.steps), reverse=True)),
        compile_seconds=compile_seconds,
    )
    return Climb(optimum, field, np.asarray(best.trace))


@eqx.filter_jit
def _basis(problem: VariationalProblem, vector: Array) -> Basis:
    return problem.basis(problem.parameters.unpack(vector))


def _climb(runs: list[Run], options: ClimbOptions, section: CheckpointSection) -> Run:
    """Screen all runs and climb with the best of them to the end, unless an interrupt comes."""
    stop = current()

    def keep() -> int:
        steps, best = sum(run.steps for run in runs), _best(runs)
        vectors = np.asarray(best.vector)[None]
        section.keep({"vectors": vectors, "done": steps, "ended": best.ended})
        return steps

    def pause() -> bool:
        tell("fit", steps := keep(), note=f"{steps} steps, {_best(runs).smoothed:.1f}")
        return stop.reached()

    try:
        if len(runs) > 1:
            for run in runs:
                if not stop.used:
                    run.advance(min(SCREENING_STEPS, options.max_steps // len(runs)), pause)
        best = _best(runs)
        if not stop.used:
            best.advance(options.max_steps - sum(r.steps for r in runs if r is not best), pause)
    except KeyboardInterrupt:
        if not stop.taken():
            raise
    keep()
    if stop.used:
        section.write(stopped=True)
    return _best(runs)


def _best(runs: list[Run]) -> Run:
    return max(runs, key=lambda run: run.smoothed)


# --------------------------------------------------------------------------- one climb


class State(eqx.Module):
    """State of a climb: parameters, q(v), Adam and the sizes of steps."""

    vector: Float[Array, " size"]
    q: Natural
    adam: Any
    rates: Float[Array, " 2"]
    """Learning rate of Adam and step of the natural gradient."""


@eqx.filter_jit
def _step(
    problem: VariationalProblem,
    state: State,
    batches: tuple[Batch, Batch],
    key: Any,
    low: Array,
    high: Array,
) -> tuple[State, Array]:
    """One step: q(v) by the first batch, then the parameters by the second.

    The parameters' gradient is taken at a q(v) that already knows the current parameters; at an
    older one it would pull them back to where they were. Batches of their own for the two keep
    that gradient unbiased.
    """
    first, second = jr.split(key)
    unpack = problem.parameters.unpack
    before = unpack(state.vector), batches[0], first, state.q.coefficients()
    q = state.q.step(likelihood(problem, *before), state.rates[1])
    coefficients = q.coefficients()

    def loss(vector: Array) -> Array:
        part = likelihood(problem, unpack(vector), batches[1], second, coefficients)
        return -(elbo(part, coefficients) + problem.parameters.log_prior(vector))

    value, gradient = jax.value_and_grad(loss)(state.vector)
    update, adam = optax.scale_by_adam().update(gradient, state.adam)
    moved = state.vector - state.rates[0] * update
    usable = jnp.isfinite(value) & jnp.isfinite(moved).all()
    new = State(jnp.clip(moved, low, high), q, adam, state.rates)
    return jax.tree.map(lambda a, b: jnp.where(usable, a, b), new, state), -value


class Run:
    """One climb: its state, its smoothed bound and its plateaus."""

    def __init__(
        self,
        problem: VariationalProblem,
        options: ClimbOptions,
        start: np.ndarray,
        batches: Batches,
        keys: Iterator[Any],
    ):
        self.problem, self.options, self.batches, self.keys = problem, options, batches, keys
        step = options.natural_step
        if step is None:
            step = 1.0 if batches.size == batches.n_observations else 0.5
        self._shrink = jnp.asarray([SHRINKAGE, 1.0 if step == 1.0 else SHRINKAGE])
        self.bounds = [jnp.asarray(each) for each in problem.parameters.bounds()]
        vector = jnp.clip(jnp.asarray(start), *self.bounds)
        # From the prior, early steps would explain the observations by noise and not come back.
        q = optimal(problem, vector, batches, next(keys))
        rates = jnp.asarray([options.learning_rate, step])
        self.state = State(vector, q, optax.scale_by_adam().init(vector), rates)
        self.steps = 0
        self.smoothed = -np.inf
        self.trace: list[float] = []
        self._recent: deque[float] = deque(maxlen=SMOOTHING)
        self._best, self._best_step, self._plateaus = -np.inf, 0, 0
        self._total, self._count = jnp.zeros_like(vector), 0

    @property
    def ended(self) -> bool:
        """Whether the last plateau was reached."""
        return self._plateaus >= PLATEAUS

    @property
    def vector(self) -> Array:
        """The parameters, averaged over the steps since the plateau before, if there was one."""
        enough = self._plateaus > 0 and self._count >= SMOOTHING
        return self._total / self._count if enough else self.state.vector

    def advance(self, to: int, pause: Callable[[], bool]) -> None:
        """Climb up to a number of steps; fewer at the last plateau, or where `pause` says so."""
        while self.steps < to and not self.ended and not pause():
            self.step()

    def step(self) -> None:
        """One step, and what it says of the bound."""
        batches = self.batches.draw(), self.batches.draw()
        self.state, bound = _step(self.problem, self.state, batches, next(self.keys), *self.bounds)
        self._total, self._count = self._total + self.state.vector, self._count + 1
        self.steps += 1
        if np.isfinite(value := float(bound)):
            self._recent.append(value)
            self.smoothed = float(np.mean(self._recent))
        if self.steps % 10 == 0:
            self.trace.append(self.smoothed)
        if self.smoothed > self._best + self.options.tolerance:
            self._best, self._best_step = self.smoothed, self.steps
        elif self.steps - self._best_step >= self.options.patience:
            self._plateaus += 1
            self._best, self._best_step = self.smoothed, self.steps
            if not self.ended:
                self._total, self._count = jnp.zeros_like(self._total), 0
            self.state = replace(self.state, rates=self._shrink * self.state.rates)
