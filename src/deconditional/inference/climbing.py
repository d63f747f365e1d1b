"""One climb of the bound by stochastic steps: its state, its plateaus, and its record in a file.

q(v) moves by natural gradients, which for Gaussian noise are convex steps of its natural parameters
towards those of the minibatch, or by Adam on its mean and root; the hyper-parameters move by Adam.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float

from deconditional.inference.bound import Keys, Natural, Rooted, elbo, likelihood, optimal
from deconditional.inference.minibatches import Batch, Batches
from deconditional.inference.variational import VariationalProblem

__all__ = ["Options", "Run"]

SMOOTHING = 50
"""Steps over which the bound is averaged."""

PLATEAUS = 4
"""Plateaus of the bound that end a climb."""

SHRINKAGE = 0.3
"""Factor by which steps shrink on a plateau."""


@dataclass(frozen=True)
class Options:
    """How the bound is climbed.

    Attributes
    ----------
    batch_size
        Observations per step.
    optimiser
        Of q(v): ``"natural"`` gradients or ``"adam"``.
    learning_rate, natural_step
        Of Adam, and of the natural gradient: between 0 and 1, by default 0.5, or 1 where a batch
        has all observations. Both shrink on a plateau, except a natural step of 1.
    kl_weight
        β. Below one, q(v) trusts the observations more than Bayes' rule does.
    max_steps
        At most so many, screening of restarts included.
    patience, tolerance
        Steps without an improvement of the smoothed bound by more than so many nats make a
        plateau. Each plateau shrinks the steps to 0.3 of what they were; the fourth ends the fit,
        at the average of the parameters since the third.
    progress
        Show a progress bar.
    """

    batch_size: int = 64
    optimiser: str = "natural"
    learning_rate: float = 0.05
    natural_step: float | None = None
    kl_weight: float = 1.0
    max_steps: int = 4000
    patience: int = 200
    tolerance: float = 0.1
    progress: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if self.optimiser not in ("natural", "adam"):
            raise ValueError(f"optimiser must be natural or adam, not {self.optimiser!r}.")
        for name in ("batch_size", "max_steps", "patience"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be a positive whole number, not {value!r}.")
        for name in ("learning_rate", "natural_step", "kl_weight", "tolerance"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, float | int | np.number) or not 0 < value < np.inf:
                raise ValueError(f"{name} must be a positive number, not {value!r}.")
        if self.natural_step is not None and self.natural_step > 1:
            raise ValueError(f"natural_step lies between 0 and 1, not {self.natural_step!r}.")


class State(eqx.Module):
    """Where the climb stands."""

    vector: Float[Array, " size"]
    coefficients: Natural | Rooted
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
    kl_weight: float,
) -> tuple[State, Array]:
    """One step: q(v) by the first batch, then the parameters by the second.

    The parameters' gradient is taken at a q(v) that already knows the current parameters; at an
    older one it would pull them back to where they were. Batches of their own for the two keep
    that gradient unbiased.
    """
    first, second = jr.split(key)
    q = state.coefficients
    if isinstance(q, Natural):
        part = likelihood(problem, problem.parameters.unpack(state.vector), batches[0], first)
        q = q.step(part, state.rates[1], kl_weight)
    natural = isinstance(q, Natural)

    def loss(moving: tuple[Array, Any]) -> Array:
        vector, given = moving
        now = (q if natural else given).coefficients()
        part = likelihood(problem, problem.parameters.unpack(vector), batches[1], second)
        return -(elbo(part, now, kl_weight) + problem.parameters.log_prior(vector))

    moving = (state.vector, None if natural else q)
    value, gradient = jax.value_and_grad(loss)(moving)
    updates, adam = optax.scale_by_adam().update(gradient, state.adam)
    moved = jax.tree.map(lambda p, u: p - state.rates[0] * u, moving, updates)
    usable = jnp.isfinite(value) & jnp.isfinite(moved[0]).all()
    new = State(jnp.clip(moved[0], low, high), q if natural else moved[1], adam, state.rates)
    kept = jax.tree.map(lambda a, b: jnp.where(usable, a, b), new, state)
    return kept, -value


class Run:
    """One climb: its state, its smoothed bound and its plateaus."""

    def __init__(
        self,
        problem: VariationalProblem,
        options: Options,
        start: np.ndarray | None,
        batches: Batches,
        keys: Keys,
        bounds: tuple[Array, Array],
        record: Mapping[str, Any] | None = None,
    ):
        self.problem, self.options = problem, options
        self.batches, self.keys, self.bounds = batches, keys, bounds
        step = options.natural_step
        if step is None:
            step = 1.0 if batches.size == batches.n_observations else 0.5
        self._shrink = jnp.asarray([SHRINKAGE, 1.0 if step == 1.0 else SHRINKAGE])
        self.steps = 0
        self.smoothed = -np.inf
        self.trace: list[float] = []
        self._recent: deque[float] = deque(maxlen=SMOOTHING)
        self._best, self._best_step, self._plateaus = -np.inf, 0, 0
        if record is not None:
            self._restore(record)
            return
        natural = options.optimiser == "natural"
        vector = jnp.clip(jnp.asarray(start), *bounds)
        # From the prior, early steps would explain the observations by noise and not come back.
        q: Natural | Rooted = optimal(problem, vector, batches, next(keys), options.kl_weight)
        if isinstance(q, Natural) and not natural:
            q = Rooted.of(q.coefficients())
        self.state = _first_state(vector, q, jnp.asarray([options.learning_rate, step]))
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

    def advance(
        self,
        steps: int,
        report: Callable[[int, float], None] | None = None,
        pause: Callable[[], bool] = lambda: False,
    ) -> None:
        """Climb a number of steps; fewer at the last plateau, or where `pause` says so."""
        for _ in range(steps):
            if self.ended or pause():
                return
            self._step()
        if report is not None:
            report(steps, self.smoothed)

    def _step(self) -> None:
        generator = self.batches.generator.bit_generator
        before = generator.state, self.keys.key
        try:
            state, bound = _step(
                self.problem,
                self.state,
                (self.batches.draw(), self.batches.draw()),
                next(self.keys),
                *self.bounds,
                self.options.kl_weight,
            )
            value = float(bound)
        except BaseException:
            # The step was not taken, so a checkpoint must not have the randomness it used up.
            generator.state, self.keys.key = before
            raise
        self.state = state
        self._total, self._count = self._total + self.state.vector, self._count + 1
        self._note(value)

    def _note(self, bound: float) -> None:
        self.steps += 1
        if np.isfinite(bound):
            self._recent.append(bound)
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

    # ------------------------------------------------------------------ the checkpoint

    def record(self) -> dict[str, Any]:
        """Everything the next step depends on, as arrays and whole numbers."""
        return {
            "state": [np.asarray(leaf) for leaf in jax.tree.leaves(self.state)],
            "total": np.asarray(self._total),
            "trace": np.asarray(self.trace, dtype=float),
            "recent": np.asarray(self._recent, dtype=float),
            "levels": np.asarray([self.smoothed, self._best]),
            "counts": [self.steps, self._best_step, self._plateaus, self._count],
        }

    def _restore(self, record: Mapping[str, Any]) -> None:
        """Stand where a record says; ValueError where the record is not of this climb."""
        leaves = record["state"]
        size = self.problem.parameters.size
        basis = leaves[1].shape[0]
        blank: Natural | Rooted = Natural(jnp.zeros(basis), jnp.zeros((basis, basis)))
        if self.options.optimiser != "natural":
            blank = Rooted(jnp.zeros(basis), jnp.zeros((basis, basis)), jnp.zeros(basis))
        state = _first_state(jnp.zeros(size), blank, jnp.zeros(2))
        own, structure = jax.tree.flatten(state)
        shapes = [np.shape(leaf) for leaf in leaves]
        if shapes != [leaf.shape for leaf in own] or record["total"].shape != (size,):
            raise ValueError("its climbs do not fit the problem")
        if not all(np.isfinite(leaf).all() for leaf in leaves):
            raise ValueError("its climbs have left the finite numbers")
        lines = [record[key].ndim for key in ("trace", "recent", "levels")]
        counts = record["counts"]
        if lines != [1, 1, 1] or len(counts) != 4 or not all(type(n) is int for n in counts):
            raise ValueError("its climbs are not complete")
        self.state = jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in leaves])
        self._total = jnp.asarray(record["total"])
        self.trace = [float(value) for value in record["trace"]]
        self._recent.extend(float(value) for value in record["recent"])
        self.smoothed, self._best = (float(value) for value in record["levels"])
        self.steps, self._best_step, self._plateaus, self._count = counts


def _first_state(vector: Array, q: Natural | Rooted, rates: Array) -> State:
    adam = optax.scale_by_adam().init((vector, None if isinstance(q, Natural) else q))
    return State(vector, q, adam, rates)
